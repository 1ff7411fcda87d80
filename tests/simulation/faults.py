"""Faults: what goes wrong, how often by itself, and the schedule of what is done to the cluster and when."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node_manager.core.events import Verb
from tests.simulation.world import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.host import Host

MAX_FREEZE_S = 90


@dataclass(slots=True)
class Rates:
    """Chances of what goes wrong without being scheduled. All are set to 0 when the faults cease."""

    crash_at_start: float = 0.05
    hang_at_start: float = 0.02
    ignore_term: float = 0.2
    slow_term: float = 0.1
    fail_spawn: float = 0.03
    fail_probe: float = 0.002
    lose_beat: float = 0.05
    garble_beat: float = 0.01
    pause_in_spawn: float = 0.1
    lose_message: float = 0.02

    def cease(self) -> None:
        """Let nothing go wrong any more."""
        for name in self.__slots__:
            setattr(self, name, 0.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of a schedule: from `at_ns` on for `lasts_ns` on one host (by number)."""

    at_ns: int
    kind: str
    host: int
    lasts_ns: int

    def __str__(self) -> str:
        return f"{self.at_ns / NS_PER_S:9.3f} s  {self.kind} on host {self.host} for {self.lasts_ns / NS_PER_S:.3f} s"


def schedule(seed: int, hosts: int, until_ns: int, every_ns: int) -> list[Fault]:
    """Return a random schedule: on average one fault in `every_ns`."""
    rng = random.Random(f"{seed}/schedule")
    kinds = list(KINDS)
    found = []
    at = 10 * NS_PER_S
    while at < until_ns:
        at += int(rng.expovariate(1.0) * every_ns) + NS_PER_MS
        # Short ones find races, long ones outlast leases and time-outs.
        lasts_ns = rng.choice((rng.randrange(1, NS_PER_S), rng.randrange(NS_PER_S, MAX_FREEZE_S * NS_PER_S)))
        found.append(Fault(at, rng.choice(kinds), rng.randrange(hosts), min(lasts_ns, max(1, until_ns - at))))
    return [fault for fault in found if fault.at_ns < until_ns]


def apply(cluster: Cluster, fault: Fault) -> None:
    """Do it."""
    host = cluster.hosts[fault.host]
    cluster.world.note(f"--- {fault.kind} on {host.name} for {fault.lasts_ns / NS_PER_S:.3f} s")
    cluster.invariants.fault(fault)
    KINDS[fault.kind](cluster, host, fault.lasts_ns)


def _agent_killed(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del cluster
    host.kill_agent(min(lasts_ns, 20 * NS_PER_S))


def _agent_stopped(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    agent = host.agent
    host.freeze_agent(True)
    cluster.world.later(lasts_ns, lambda: host.freeze_agent(False) if host.agent is agent else None)


def _suspended(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    host.suspend(True)
    cluster.world.later(lasts_ns, lambda: host.suspend(False))


def _reboot(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del cluster, lasts_ns
    host.reboot()


def _killed(component: str) -> Callable[[Cluster, Host, int], None]:
    def do(cluster: Cluster, host: Host, lasts_ns: int) -> None:
        del cluster, lasts_ns
        for process in host.mains(component):
            process.signal(9)

    return do


def _stopped(component: str) -> Callable[[Cluster, Host, int], None]:
    def do(cluster: Cluster, host: Host, lasts_ns: int) -> None:
        for process in host.mains(component):
            process.frozen = True
            process.stood_still_ns = cluster.world.now

            def go_on(process: object = process) -> None:
                process.frozen = False  # type: ignore[attr-defined]
                process.resume()  # type: ignore[attr-defined]

            cluster.world.later(lasts_ns, go_on)

    return do


def _stepped_down(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del cluster, lasts_ns
    for process in host.mains("controller"):
        program = process.program
        if program is not None:
            process.run(program.step_down)  # type: ignore[attr-defined]


def _grandchild(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """A component forks something that stays."""
    for component in ("controller", "scheduler"):
        for process in host.mains(component):
            child = host.new_process(None, parent=process)
            cluster.world.later(lasts_ns, lambda child=child: child.signal(9))  # type: ignore[misc]
            # And its parent dies at once: what it left is still there.
            process.later(NS_PER_MS, lambda process=process: process.signal(9))  # type: ignore[misc]


def _partition(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    cluster.cut.add(host.name)
    cluster.world.later(lasts_ns, lambda: cluster.cut.discard(host.name))


def _disk_full(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    host.disk.full = True
    _flap(cluster, host, times=2)
    cluster.world.later(lasts_ns, lambda: setattr(host.disk, "full", False))


def _disk_slow(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    host.disk.slow_ns = min(lasts_ns, 20 * NS_PER_S)
    cluster.world.later(lasts_ns, lambda: setattr(host.disk, "slow_ns", 0))


def _record_lost(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del cluster
    from tests.simulation.host import EMPTY

    host.record = EMPTY
    host.kill_agent(min(lasts_ns, 2 * NS_PER_S))


def _config_wrong(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    host.config_broken = True
    if host.agent is not None:
        host.agent.reload()

    def mend() -> None:
        host.config_broken = False
        if host.agent is not None:
            host.agent.reload()

    cluster.world.later(lasts_ns, mend)


def _config_changed(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del lasts_ns
    host.wanted_spec = cluster.changed_spec(host)
    if host.agent is not None:
        host.agent.reload()


def _wall_clock(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del lasts_ns
    from node_manager.core.events import WallClock

    host.wall_offset_ns += cluster.world.rng("wall").choice((-3600, 3600)) * NS_PER_S
    if host.agent is not None:
        host.agent.post(WallClock(offset_ns=host.wall_offset_ns))


def _commands(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Several operators at once, each with a word of their own."""
    del lasts_ns
    rng = cluster.world.rng("operators")
    for _ in range(rng.randrange(1, 4)):
        verb = rng.choice((Verb.START, Verb.STOP, Verb.RESTART, Verb.DRAIN, Verb.UNDRAIN, Verb.MAINTENANCE))
        component = None
        if verb in {Verb.START, Verb.STOP, Verb.RESTART}:
            component = rng.choice([spec.name for spec in host.spec.components])
        cluster.world.later(
            rng.randrange(1, 200 * NS_PER_MS),
            lambda verb=verb, component=component: cluster.operator(host, verb, component),  # type: ignore[misc]
        )


def _flap(cluster: Cluster, host: Host, *, times: int) -> None:
    """An operator who cannot decide, with milliseconds in between; the last word is a start."""
    rng = cluster.world.rng("operators")
    component = rng.choice([spec.name for spec in host.spec.components])
    at = 0
    for _ in range(times):
        for verb in (Verb.STOP, Verb.START):
            at += rng.randrange(1, 30 * NS_PER_MS)
            cluster.world.later(at, lambda verb=verb: cluster.operator(host, verb, component))  # type: ignore[misc]


def _undecided(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del lasts_ns
    _flap(cluster, host, times=6)


def _killed_in_a_start(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """The agent dies within milliseconds of a restart that an operator asked for."""
    rng = cluster.world.rng("operators")
    for spec in host.spec.components:
        cluster.operator(host, Verb.RESTART, spec.name)
        for process in host.mains(spec.name):
            process.signal(9)
    cluster.world.later(rng.randrange(1, 60 * NS_PER_MS), lambda: host.kill_agent(min(lasts_ns, 100 * NS_PER_MS)))


def _decommission(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    cluster.operator(host, Verb.DECOMMISSION, None)
    cluster.world.later(lasts_ns, lambda: cluster.operator(host, Verb.RECOMMISSION, None))


def _controller_decommissions(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    cluster.decide(host, "decommissioned")
    cluster.world.later(lasts_ns, lambda: cluster.operator(host, Verb.RECOMMISSION, None))
    cluster.world.later(lasts_ns + NS_PER_S, lambda: cluster.decide(host, "active"))


def _controller_drains(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    cluster.decide(host, "draining")
    cluster.world.later(lasts_ns, lambda: cluster.decide(host, "active"))


def _crash_loop(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Whatever is started on this host ends at once, for a while."""
    host.crash_loop = True
    for process in list(host.processes.values()):
        if process.component is not None:
            process.signal(9)
    cluster.world.later(lasts_ns, lambda: setattr(host, "crash_loop", False))
    cluster.world.later(lasts_ns // 2, lambda: _flap(cluster, host, times=3))


def _uninterruptible(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Let the worker hang in the kernel; not the scheduler, for that SIGKILL is effective is an assumption."""
    for process in host.mains("worker"):
        process.uninterruptible = True
        cluster.world.later(lasts_ns, process.wake_up)


KINDS: dict[str, Callable[[Cluster, Host, int], None]] = {
    "agent killed": _agent_killed,
    "agent stopped": _agent_stopped,
    "host suspended": _suspended,
    "reboot": _reboot,
    "controller killed": _killed("controller"),
    "scheduler killed": _killed("scheduler"),
    "worker killed": _killed("worker"),
    "controller stopped": _stopped("controller"),
    "scheduler stopped": _stopped("scheduler"),
    "worker stopped": _stopped("worker"),
    "controller steps down": _stepped_down,
    "grandchild": _grandchild,
    "partition": _partition,
    "disk full": _disk_full,
    "disk slow": _disk_slow,
    "record lost": _record_lost,
    "config wrong": _config_wrong,
    "config changed": _config_changed,
    "wall clock jumps": _wall_clock,
    "operators": _commands,
    "decommission": _decommission,
    "controller decommissions": _controller_decommissions,
    "controller drains": _controller_drains,
    "uninterruptible": _uninterruptible,
    "crash loop": _crash_loop,
    "undecided operator": _undecided,
    "agent killed in a start": _killed_in_a_start,
}
