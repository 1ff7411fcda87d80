"""What `test_reuse` runs as a program in a pid namespace of its own, where few pids go round and round.

It reads the directory of the host from standard input, and the seed from XCE_FAULTS_SEED; it prints the ledger as JSON.
"""

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.ledger import Ledger
from tests.faults.observer import Seen
from tests.faults.rig import QUICK, Field, kill, witness
from tests.integration.host import Host, wait_until

PIDS = 400
"""pid_max of the namespace: a number returns after a few seconds."""
ROUNDS = 18
_PER_NAMESPACE = (6, 14)
"""The kernel from which pid_max belongs to the namespace; before, it would be the whole machine's."""
_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def main() -> int:
    """Run the scenario."""
    base = Path(sys.stdin.read())
    dice = random.Random(int(os.environ["XCE_FAULTS_SEED"]))  # noqa: S311 - chance, no secret
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release >= _PER_NAMESPACE:
        Path("/proc/sys/kernel/pid_max").write_text(str(PIDS))
    ledger = Ledger()
    hosts: list[Host] = []

    def make(**options: Any) -> Host:
        hosts.append(Host(base, **options))
        return hosts[-1]

    try:
        scenario(make, base, ledger, dice)
    finally:
        print(json.dumps(ledger.counts))  # noqa: T201 - the answer
        for host in hosts:
            host.end()
    return 0


def scenario(make: Callable[..., Host], base: Path, ledger: Ledger, dice: random.Random) -> None:
    """Give the pids of dead components to strangers, with and without an agent, while probes and starts use up pids."""
    victims = [f"victim{number}" for number in range(3)]
    probe = {"liveness": {"exec": {"command": ["/bin/true"]}, "period_s": 0.1}}
    components: dict[str, Any] = {
        name: {"command": witness(base, name, "setsid sleep 1000 & exec sleep 1000"), "restart": QUICK, "probes": probe}
        for name in victims
    }
    components["steady"] = {"command": witness(base, "steady"), "probes": probe}
    field = Field(make, ledger, components)
    field.launch()
    field.answers()
    for _ in range(ROUNDS):
        mains = field.settled()
        without_agent = dice.random() < 0.5
        if without_agent:
            field.host.kill_agent()
            ledger.inject()
        for name in dice.sample(victims, dice.randint(1, len(victims))):
            assert kill(mains[name])
            ledger.inject()
            take(field, mains[name])
        if without_agent:
            field.launch()
            field.answers()
        field.settled()
        field.untouched()
        field.kept("steady")
        field.release(keep=30)
    field.end()


def take(field: Field, dead: Seen) -> None:
    """Have a stranger under the pid of a dead component, unless somebody else was faster."""
    wait_until(lambda: _began(dead.pid) != dead.start, "it is reaped")
    for _ in range(20):
        if _began(dead.pid) is not None:
            return
        _LAST_PID.write_text(str(dead.pid - 1))
        if field.bystander() == dead.pid:
            field.ledger.inject()
            return


def _began(pid: int) -> int | None:
    """When whatever has this pid began, a zombie too; None: nobody has it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


if __name__ == "__main__":
    sys.exit(main())
