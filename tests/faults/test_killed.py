"""Kill -9, of the agent and of components, at random instants and often."""

import heapq
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from node_manager.api.client import Client, NotReachable
from node_manager.runtime import files
from tests.faults.ledger import Ledger
from tests.faults.observer import start_time
from tests.faults.rig import BYSTANDER, QUICK, Field, kill, python, witness
from tests.integration.host import BOUND_S, Host, wait_until

AGENT_KILLS = 200
SETTLE_EVERY = 20
LIFE_S = 0.8
"""An agent lives for at most this long: about half of them are still starting and adopting when they are killed."""
IN_CHARGE_EVERY = 10
"""As often the instant comes after the agent answers, however slow the machine is."""
STEADY = ("steady0", "steady1", "steady2")
COMPONENT_KILLS = 1000
REPLACEMENTS = 6
INTERRUPTIONS = 6
_WORKER = """
import os, sys
# What a worker does: users' jobs in sessions of their own, with its whole environment, that outlive it.
bystander, notes, then = sys.argv[1:]
if not os.path.exists(notes):
    open(notes, "w").close()
    for number in range(3):
        if os.fork() == 0:
            os.setsid()
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", bystander, f"{notes}-{number}"])
os.execv("/bin/sh", ["/bin/sh", "-c", then])
"""


def worker(base: Path, then: str) -> dict[str, Any]:
    """Return a component that starts users' jobs, `base`/jobs-0 to 2, and whose end is not theirs."""
    command = python(_WORKER, BYSTANDER, f"{base}/jobs", witness(base, "worker", then)[-1])
    return {"command": command, "restart": QUICK, "stop": {"kill_scope": "process"}}


def test_two_hundred_kills_of_the_agent(
    make_host: Callable[..., Host], place: Path, ledger: Ledger, dice: random.Random, fenced: Callable[[Host], str]
) -> None:
    """Kill -9 of the agent 200 times, while it starts, adopts, spawns and probes: nothing is lost, doubled or hurt.

    There are two agents, each with a host of its own, which are killed in turn.
    """
    fields = [Field(make_host, ledger, busy(place / name), fenced, name) for name in ("h1", "h2")]
    for field in fields:
        field.launch()
        for number in range(3):
            field.watch(field.host.base / f"jobs-{number}")
    now_s = time.monotonic()
    instants = [(now_s + dice.uniform(0, LIFE_S), index) for index in range(len(fields))]
    for number in range(1, AGENT_KILLS + 1):
        at_s, index = heapq.heappop(instants)
        field = fields[index]
        wait_until(lambda at_s=at_s: time.monotonic() >= at_s, "the instant has come")  # type: ignore[misc]
        field.host.kill_agent()
        ledger.inject()
        field.not_doubled()
        field.launch()
        if number % SETTLE_EVERY == 0:
            field.settled()
            field.kept(*STEADY)
            field.untouched()
        elif number % IN_CHARGE_EVERY == 0:
            field.answers()
        heapq.heappush(instants, (time.monotonic() + dice.uniform(0, LIFE_S), index))
    for field in fields:
        field.settled()
        field.kept(*STEADY)
        field.end()


def busy(base: Path) -> dict[str, Any]:
    """Return components that keep an agent busy; those of STEADY do not end by themselves."""
    probe = {"liveness": {"exec": {"command": ["/bin/true"]}, "period_s": 0.1}}
    components: dict[str, Any] = {name: {"command": witness(base, name), "probes": probe} for name in STEADY}
    for number in range(4):
        # Ends by itself, soon and again and again, and leaves a child in a session of its own behind.
        then = f"setsid sleep 1000 & exec sleep 0.{number + 1}"
        components[f"restless{number}"] = {"command": witness(base, f"restless{number}", then), "restart": QUICK}
    components["worker"] = worker(base, "exec sleep 0.3")
    return components


def test_an_agent_that_is_replaced_in_place_under_load_loses_nothing(
    make_host: Callable[..., Host], place: Path, ledger: Ledger, dice: random.Random, fenced: Callable[[Host], str]
) -> None:
    """Re-exec again and again while components end and start, now and then killed in it: as if nothing had been."""
    base = place / "h1"
    field = Field(make_host, ledger, busy(base), fenced)
    field.launch()
    for number in range(3):
        field.watch(base / f"jobs-{number}")
    field.settled()
    field.answers()
    for _ in range(REPLACEMENTS):
        ledger.inject()
        if dice.random() < 0.7:
            pid = field.agent.pid
            field.host.ctl("reexec", ok=None)
            assert start_time(pid) is not None
        else:
            asked = field.ask("reexec")
            at_s = time.monotonic() + dice.uniform(0, LIFE_S)
            wait_until(lambda at_s=at_s: time.monotonic() >= at_s, "the instant has come")  # type: ignore[misc]
            field.host.kill_agent()
            asked.wait()
            field.launch()
            field.answers()
        field.not_doubled()
    field.settled()
    field.kept(*STEADY)
    field.end()


def test_a_kill_at_any_instant_of_a_replacement_leads_to_adoption(
    make_host: Callable[..., Host], place: Path, ledger: Ledger, dice: random.Random, fenced: Callable[[Host], str]
) -> None:
    """Kill -9 from the question to the new program's first turns: it leaves no lock, and the next agent adopts all."""
    base = place / "h1"
    names = [f"steady{number}" for number in range(3)]
    field = Field(make_host, ledger, {name: {"command": witness(base, name)} for name in names}, fenced)
    field.launch()
    field.settled()
    field.answers()
    for number in range(INTERRUPTIONS):
        before = _executed(field.host)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(_ask_for_replacement, field.host)
            if number % 4:  # between exec and its first turns, mostly
                wait_until(lambda before=before: _executed(field.host) > before, "it executes")  # type: ignore[misc]
            time.sleep(dice.uniform(0, LIFE_S))  # the random instant that is the fault
            field.host.kill_agent()
            ledger.inject()
            asked.result(BOUND_S)
        lock = field.host.run_dir / "lock"
        wait_until(lambda lock=lock: _is_free(lock), "nobody has kept the lock of the dead agent")  # type: ignore[misc]
        field.launch()
        field.answers()
        field.settled()
        field.kept(*names)
    field.end()


def _executed(host: Host) -> int:
    """How many agents have gone on to execute their successor."""
    return host.agent_log.read_text(errors="replace").count("agent.replacing")


def _ask_for_replacement(host: Host) -> None:
    with suppress(NotReachable):
        Client(str(host.socket)).post("/v1/reexec", {"by": "operator"}, BOUND_S)


def _is_free(lock: Path) -> bool:
    try:
        os.close(files.lock(lock))
    except files.LockHeldError:
        return False
    return True


def test_a_thousand_kills_of_components(
    make_host: Callable[..., Host], place: Path, ledger: Ledger, dice: random.Random, fenced: Callable[[Host], str]
) -> None:
    """Kill -9 of components 1,000 times, several at once, also just as they start: each is replaced, none twice."""
    base = place / "h1"
    names = [f"victim{number}" for number in range(20)]
    # Half of them leave a child that keeps their lock: a start before it is gone would be told of.
    components: dict[str, Any] = {
        name: {
            "command": witness(base, name, "setsid sleep 1000 & exec sleep 1000" if number % 2 else "exec sleep 1000")
        }
        | {"restart": QUICK}
        for number, name in enumerate(names)
    }
    components["spared"] = {"command": witness(base, "spared")}
    components["worker"] = worker(base, "exec sleep 1000")
    field = Field(make_host, ledger, components, fenced)
    field.launch()
    for number in range(3):
        field.watch(base / f"jobs-{number}")
    field.settled()
    kills = 0
    while kills < COMPONENT_KILLS:
        mains = field.observer.mains()
        for name in dice.sample([*names, "worker"], dice.randint(1, len(names))):
            kills += sum(kill(seen) for seen in mains.get(name, ()))
        field.not_doubled(mains)
    ledger.inject(kills)
    field.settled()
    field.kept("spared")
    field.end()
