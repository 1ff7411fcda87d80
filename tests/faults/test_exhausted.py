"""A component, or the host, that takes everything there is: processes, descriptors, zombies, the agent's attention."""

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.ledger import Ledger
from tests.faults.rig import QUICK, Field, kill, python, replaced, witness
from tests.integration.host import Host, wait_until

Make = Callable[..., Host]

BOMB_PROCESSES = 150
"""Limited by RLIMIT_NPROC. Each of them wants a processor of its own, like the agent."""
_NOBODY = 100_000 + os.getpid()
"""A user id that nothing on the host has, nor another run of the suite: the limit counts a user's processes."""
_BOMB = """
import os, signal
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    try:
        signal.signal(number, signal.SIG_IGN)
    except OSError:
        pass
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
"""
ZOMBIES = 10_000
_ZOMBIES = """
import os, signal, sys
# Parents that do not wait for their children, and end all at once: every child becomes the agent's in one moment.
total, parents = int(sys.argv[1]), 20
reading, writing = os.pipe()
ready, told = os.pipe()
for _ in range(parents):
    if os.fork() == 0:
        os.close(writing)
        for _ in range(total // parents):
            if os.fork() == 0:
                os._exit(0)
        os.write(told, b".")
        os.read(reading, 1)
        os._exit(0)
for _ in range(parents):
    os.read(ready, 1)
os.close(writing)
open(sys.argv[2], "w").close()
while True:
    signal.pause()
"""


def test_a_fork_bomb_is_stopped_and_hurts_nobody_else(
    make_host: Make, place: Path, ledger: Ledger, fenced: Callable[[Host], str]
) -> None:
    """Processes that fork for ever, each its own session, deaf to signals: others are replaced, a stop clears all."""
    base = place / "h1"
    limit = f"--nproc={BOMB_PROCESSES}:{BOMB_PROCESSES}"
    program = [os.path.realpath(sys.executable), "-I", "-S", "-c", _BOMB]
    if os.geteuid() == 0:
        program = ["setpriv", f"--reuid={_NOBODY}", "--clear-groups", "--", *program]
    components: dict[str, Any] = {
        "bomb": {"command": ["prlimit", limit, *program], "stop": {"timeout_s": 0.2}},
        "other": {"command": witness(base, "other"), "restart": QUICK},
        "steady": {"command": witness(base, "steady")},
    }
    field = Field(make_host, ledger, components, fenced)
    field.launch()
    field.answers()

    def bombs() -> int:
        return sum(seen.component == "bomb" for seen in field.observer.look())

    wait_until(lambda: bombs() > BOMB_PROCESSES // 2, "the bomb is at work")
    ledger.inject()
    replaced(field, "other")
    field.host.ctl("stop", "bomb")
    wait_until(lambda: bombs() == 0, "nothing of the bomb is left")
    field.host.wait_for("bomb", state="stopped")
    field.kept("steady")
    field.end()


def test_an_agent_without_descriptors_loses_nothing(make_host: Make, place: Path, ledger: Ledger) -> None:
    """No descriptor can be had: what dies is started when one can; a probe that wants one is not a failed probe."""
    base = place / "h1"
    probe = {"exec": {"command": ["/bin/true"]}, "period_s": 0.1, "failure_threshold": 1}
    components: dict[str, Any] = {
        "probed": {"command": witness(base, "probed"), "probes": {"liveness": probe}},
        # Whether its tree is empty cannot be looked at, so that it must not be started.
        "tree": {"command": witness(base, "tree"), "restart": QUICK},
        # It is started again and again, and that fails.
        "process": {"command": witness(base, "process"), "restart": QUICK, "stop": {"kill_scope": "process"}},
    }
    field = Field(make_host, ledger, components)
    field.launch()
    field.answers()
    mains = field.settled()
    before = resource.prlimit(field.agent.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(field.agent.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    ledger.inject()
    for name in ("tree", "process"):
        assert kill(mains[name])
        ledger.inject()
    wait_until(lambda: field.host.agent_log.read_text().count("cannot start /bin/sh") > 10, "it tries to start it")
    assert set(field.observer.mains()) == {"probed"}
    resource.prlimit(field.agent.pid, resource.RLIMIT_NOFILE, before)
    field.settled()
    field.kept("probed")
    field.end()


def test_ten_thousand_zombies_at_once_are_reaped(make_host: Make, place: Path, ledger: Ledger) -> None:
    """A component leaves 10,000 ended orphans in one moment: all are reaped, and others are replaced meanwhile."""
    base = place / "h1"
    components: dict[str, Any] = {
        "litter": {"command": python(_ZOMBIES, str(ZOMBIES), f"{base}/orphaned")},
        "other": {"command": witness(base, "other"), "restart": QUICK},
        "steady": {"command": witness(base, "steady")},
    }
    field = Field(make_host, ledger, components)
    field.launch()
    field.answers()
    wait_until((base / "orphaned").exists, "the orphans")
    ledger.inject(ZOMBIES)
    replaced(field, "other")
    wait_until(lambda: _zombies(field.agent.pid) == 0, "every orphan is reaped")
    field.answers()
    field.kept("steady")
    field.end()


def _zombies(parent: int) -> int:
    count = 0
    for entry in os.listdir("/proc"):  # noqa: PTH208 - thousands of entries, and their names are all
        try:
            stat = Path(f"/proc/{entry}/stat").read_bytes() if entry.isdigit() else b""
        except OSError:
            continue
        fields = stat[stat.rfind(b")") + 2 :].split()
        count += fields[:2] == [b"Z", b"%d" % parent]
    return count
