"""`python -m tests.simulation.assumptions`: each assumption of the design, shown to be needed.

Every row is one fixed run, played twice: once with the assumption kept, which must break no invariant, and once with
nothing changed but that assumption, which must break the one that is named. The last column shows the second line: how
many writes of a scheduler under an older term a receiver has refused in the broken run, had nobody stopped the run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.cluster import Assumptions, Cluster
from tests.simulation.host import Host
from tests.simulation.invariants import Violation
from tests.simulation.processes import Process
from tests.simulation.programs import CLOCK_RATE_BOUND
from tests.simulation.scenarios_stage import MakeHost, Stage, WrongError
from tests.simulation.world import NS_PER_MS, NS_PER_S

MANAGERS = 3
SEEDS = (1, 2, 3)
"""Each run is played with these: one that breaks by luck would be no proof."""
SLOW_RATE = 0.7
"""A clock that runs far slower than the store's."""
PAUSE_S = 60.0
"""Two leases: whoever may take over has done so."""
WRITE_NS = 250 * NS_PER_MS
"""How often a scheduler that runs writes."""

ONE, RUNS = "one scheduler", "scheduler runs"
"""Names of the invariants that break."""


class SleepyHost(Host):
    """A host whose CLOCK_BOOTTIME stands still while it is suspended: a virtual machine that was paused."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.cluster, host.name, host.spec, rate=1.0)
        self._slept_ns = 0
        self._asleep_since_ns = 0

    def clock(self) -> int:
        asleep_ns = self.world.now - self._asleep_since_ns if self.suspended else 0
        return super().clock() - self._slept_ns - asleep_ns

    def suspend(self, suspended: bool) -> None:
        if not suspended:
            self._slept_ns += self.world.now - self._asleep_since_ns
        self._asleep_since_ns = self.world.now
        super().suspend(suspended)
        if not suspended:
            # The kernel's timers stood still as well.
            for component, (generation, at_ns) in list(self.fuses.items()):
                self.arm_fuse(component, generation, at_ns)


def _with_rate(rate: float) -> MakeHost:
    return lambda host: Host(host.cluster, host.name, host.spec, rate=rate)


# --- what happens -------------------------------------------------------------------------------------------------
# `kept` False breaks one assumption, and nothing else. Schedulers ignore SIGTERM: what has time to end by itself is no
# test of a bound.


def _suspended(stage: Stage, kept: bool) -> None:
    """The leader's host is suspended for two leases. What differs is the kind of host."""
    del kept
    host = stage.leader()
    host.suspend(True)
    stage.run(PAUSE_S)
    host.suspend(False)


def _cut_off(stage: Stage, kept: bool) -> None:
    """The leader's host is cut off from the store. What differs is the rate of its clock."""
    del kept
    stage.cluster.cut.add(stage.leader().name)
    stage.run(PAUSE_S)


def _unkillable(stage: Stage, kept: bool) -> None:
    """The leader is cut off, and its scheduler hangs in the kernel."""
    host = stage.leader()
    stage.main(host, "scheduler").uninterruptible = not kept
    stage.cluster.cut.add(host.name)
    stage.run(PAUSE_S)


def _store_forgets(stage: Stage, kept: bool) -> None:
    """The leader is cut off for a moment, and the store loses its lease: restored, or failed over to a stale copy."""
    host = stage.leader()
    stage.cluster.cut.add(host.name)
    if not kept:
        stage.cluster.store.expires_ns = stage.now_ns
    stage.run(12)
    stage.cluster.cut.clear()


def _late_answer(stage: Stage, kept: bool) -> None:
    """The answer to a renewal is read late; broken, the lease is counted from the answer."""
    host = stage.leader()
    process, program = stage.main(host, "controller"), stage.controller(host)
    asked_ns = host.clock()
    grant = stage.cluster.store.request(host.name)
    stage.freeze(process, frozen=True)
    stage.cluster.cut.add(host.name)
    stage.run(20)
    stage.freeze(process, frozen=False)
    program.heard(asked_ns if kept else host.clock(), grant)
    stage.run(PAUSE_S)


def _released_by_death(stage: Stage, kept: bool) -> None:
    """The controller dies and cannot reach the store again; broken, its lease ends with its session."""
    host = stage.leader()
    stage.cluster.cut.add(host.name)
    stage.kill(host, "controller")
    if not kept:
        stage.cluster.store.expires_ns = stage.now_ns
    stage.run(PAUSE_S)


def _released_by_step_down(stage: Stage, kept: bool) -> None:
    """The controller steps down; broken, it gives its lease up before what it stated has ended."""
    host = stage.leader()
    stage.controller(host).step_down()
    if not kept:
        stage.cluster.store.expires_ns = stage.now_ns
    stage.run(PAUSE_S)


def _speaks_from_memory(stage: Stage, kept: bool) -> None:
    """A controller that starts without the store; broken, it says what it was before it has read what it is."""
    host = stage.leader()
    term = stage.controller(host).term
    stage.cluster.cut.add(host.name)
    stage.run(15)
    old = stage.kill(host, "controller")
    stage.until("a new controller runs", lambda: [item for item in host.mains("controller") if item is not old], 10)
    stage.run(1)
    if not kept:
        program = stage.controller(host)
        program.has_read, program.leads, program.term = True, True, term
        program.valid_until_ns = host.clock() + 29 * NS_PER_S
        program.say()
    stage.run(PAUSE_S)


def _term_goes_down(stage: Stage, kept: bool) -> None:
    """The store starts anew, as do the controllers; broken, it counts its terms from one again."""
    for _ in range(2):
        stage.controller(stage.leader()).step_down()
        stage.run(PAUSE_S)
    if not kept:
        stage.cluster.store.term = 0
    for host in stage.cluster.hosts:
        stage.kill(host, "controller")
    stage.cluster.store.holder = None
    stage.run(PAUSE_S)


def _agent_stopped(stage: Stage, kept: bool) -> None:
    """The leader's agent is stopped, and its controller dies. What differs is whether there is a fuse."""
    del kept
    host = stage.leader()
    host.freeze_agent(True)
    stage.kill(host, "controller")
    stage.run(PAUSE_S)
    host.freeze_agent(False)


@dataclass(frozen=True, slots=True)
class Assumption:
    """One assumption, the run that needs it, and the invariant that breaks without it."""

    name: str
    play: Callable[[Stage, bool], None]
    breaks: str = ONE
    writes_are_refused: bool = True
    """The second line is seen to hold: two schedulers write, and the older one's writes are refused."""
    kept_host: MakeHost | None = None
    broken_host: MakeHost | None = None
    broken: Assumptions | None = None


ASSUMPTIONS = (
    Assumption("CLOCK_BOOTTIME advances while a host is suspended", _suspended, broken_host=SleepyHost),
    Assumption(
        "clock rates differ by at most rho",
        _cut_off,
        kept_host=_with_rate(1 - CLOCK_RATE_BOUND),
        broken_host=_with_rate(SLOW_RATE),
    ),
    Assumption("SIGKILL is effective", _unkillable, writes_are_refused=False),
    Assumption("the store keeps a lease to its end", _store_forgets),
    Assumption("an authority counts its lease from before the request", _late_answer),
    Assumption("a lease outlives its holder's death", _released_by_death),
    Assumption("an authority gives up no lease before what it stated ends", _released_by_step_down),
    Assumption("an authority reads the store before it speaks", _speaks_from_memory),
    Assumption("TERM never goes down", _term_goes_down, breaks=RUNS, writes_are_refused=False),
    Assumption("the fuse lives", _agent_stopped, broken=Assumptions(fuse=False)),
)


class Receiver:
    """Whoever receives the schedulers' writes, and refuses those under an older term: the second line."""

    def __init__(self, cluster: Cluster) -> None:
        self.refused = 0
        self._cluster = cluster
        self._highest = 0
        self._look()

    def _look(self) -> None:
        for host in self._cluster.hosts:
            for process in host.mains("scheduler"):
                if process.running and not process.uninterruptible:
                    self._write(process)
        self._cluster.world.later(WRITE_NS, self._look)

    def _write(self, process: Process) -> None:
        term = process.term or 0
        self.refused += term < self._highest
        self._highest = max(self._highest, term)


def broken_invariant(assumption: Assumption, seed: int, *, kept: bool) -> str | None:
    """Play the run; return the invariant that broke, or None."""
    stage = _stage(assumption, seed, kept=kept)
    try:
        assumption.play(stage, kept)
        stage.settle()
    except Violation as violation:
        return violation.name
    except WrongError as error:
        return f"another run: {error}"
    return None


def refused_writes(assumption: Assumption, seed: int) -> int:
    """Play the broken run to its end, with nobody looking; return how many older writes were refused."""
    stage = _stage(assumption, seed, kept=False)
    stage.cluster.world.after_event = lambda: None
    receiver = Receiver(stage.cluster)
    assumption.play(stage, False)
    stage.run(PAUSE_S)
    return receiver.refused


def _stage(assumption: Assumption, seed: int, *, kept: bool) -> Stage:
    stage = Stage(
        managers=MANAGERS,
        workers=0,
        seed=seed,
        assumptions=None if kept else assumption.broken,
        make_host=assumption.kept_host if kept else assumption.broken_host,
    )
    stage.cluster.faults.ignore_term = 1.0
    return stage


def main() -> int:
    """Print the table; the exit status says whether every row is as it must be."""
    failed = False
    print(f"{'assumption':60} {'kept':8} {'broken':28} refused")
    for assumption in ASSUMPTIONS:
        kept = {broken_invariant(assumption, seed, kept=True) for seed in SEEDS}
        broken = {broken_invariant(assumption, seed, kept=False) for seed in SEEDS}
        failed = failed or kept != {None} or broken != {assumption.breaks}
        seeds = "/".join(map(str, SEEDS))
        ends = [", ".join(name or "passed" for name in names) for names in (kept, broken)]
        refused = sum(refused_writes(assumption, seed) for seed in SEEDS)
        print(f"{assumption.name:60} {ends[0]:8} {f'{ends[1]} (seeds {seeds})':34} {refused}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
