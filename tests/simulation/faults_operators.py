"""People: operators on the hosts, several at once, and administrators who decide at the controller."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from node_manager.core.events import ExitStatus, Verb
from tests.simulation.host import How, Trap
from tests.simulation.world import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.host import Host


def _commands(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Several operators at once, each with a word of their own."""
    del lasts_ns
    rng = cluster.world.rng("operators")
    for _ in range(rng.randrange(1, 4)):
        verb = rng.choice((Verb.START, Verb.STOP, Verb.RESTART, Verb.DRAIN, Verb.UNDRAIN, Verb.MAINTENANCE))
        component = None
        if verb in {Verb.START, Verb.STOP, Verb.RESTART}:
            component = rng.choice([spec.name for spec in host.whole_spec.components])
        enable = rng.random() < 0.3
        speak = partial(cluster.operator, host, verb, component, enable=enable or verb is not Verb.MAINTENANCE)
        cluster.world.later(rng.randrange(1, 200 * NS_PER_MS), speak)


def _undecided(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """An operator who cannot decide, with milliseconds in between; the last word is a start."""
    del lasts_ns
    rng = cluster.world.rng("operators")
    component = rng.choice([spec.name for spec in host.whole_spec.components])
    at = 0
    for _ in range(6):
        for verb in (Verb.STOP, Verb.START):
            at += rng.randrange(1, 30 * NS_PER_MS)
            cluster.world.later(at, partial(cluster.operator, host, verb, component))


def _killed_in_a_start(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """The agent dies within milliseconds of a restart that an operator asked for."""
    rng = cluster.world.rng("operators")
    for spec in host.whole_spec.components:
        cluster.operator(host, Verb.RESTART, spec.name)
        for process in host.mains(spec.name):
            process.signal(9)
    cluster.world.later(rng.randrange(1, 60 * NS_PER_MS), lambda: host.kill_agent(min(lasts_ns, 100 * NS_PER_MS)))


def _held(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """An operator stops a component, and starts it again some time later."""
    component = cluster.world.rng("operators").choice([spec.name for spec in host.whole_spec.components])
    cluster.operator(host, Verb.STOP, component)
    cluster.world.later(lasts_ns, partial(cluster.operator, host, Verb.START, component))


def _maintained(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Maintenance, in which something dies and is started by hand, or hangs for long and is left alone."""
    cluster.operator(host, Verb.MAINTENANCE, None)
    rng = cluster.world.rng("operators")
    component = rng.choice([spec.name for spec in host.whole_spec.components])
    hangs = rng.random() < 0.5 and component != "controller"
    if hangs:
        lasts_ns = max(lasts_ns, 45 * NS_PER_S)

    def fail() -> None:
        for process in host.mains(component):
            if hangs and process.program is not None:
                process.run(process.program.hang)
            else:
                process.signal(9)

    cluster.world.later(NS_PER_S if hangs else lasts_ns // 3, fail)
    if not hangs:
        cluster.world.later(lasts_ns // 2, partial(cluster.operator, host, Verb.START, component))
    cluster.world.later(lasts_ns, partial(cluster.operator, host, Verb.MAINTENANCE, None, enable=False))


def _decommission(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    cluster.operator(host, Verb.DECOMMISSION, None)
    cluster.world.later(lasts_ns, lambda: cluster.operator(host, Verb.RECOMMISSION, None))


def _decommission_and_cut(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """The power fails within milliseconds of a decommission, and nobody takes it back for a while."""
    cluster.operator(host, Verb.DECOMMISSION, None)
    at_ns = cluster.world.rng("operators").randrange(1, 12 * NS_PER_MS)
    cluster.world.later(at_ns, lambda: host.reboot(power_cut=True))
    cluster.world.later(lasts_ns + 120 * NS_PER_S, lambda: cluster.operator(host, Verb.RECOMMISSION, None))


def _decommission_again(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """The agent dies in the write of a decommission; it is said again to the next one, and then the power fails."""
    host.traps["before the disk has it"] = Trap(How.KILL, 100 * NS_PER_MS)
    for delay_ns in (1, 500 * NS_PER_MS):
        cluster.world.later(delay_ns, lambda: cluster.operator(host, Verb.DECOMMISSION, None))
    cluster.world.later(900 * NS_PER_MS, lambda: host.reboot(power_cut=True))
    cluster.world.later(lasts_ns + 120 * NS_PER_S, lambda: cluster.operator(host, Verb.RECOMMISSION, None))


def _controller_decommissions(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """At the controller; an operator on the host takes it back, with or without the controller's agreement."""
    cluster.decide(host, "decommissioned")
    cluster.world.later(lasts_ns, lambda: cluster.operator(host, Verb.RECOMMISSION, None))
    later_ns = cluster.world.rng("administrators").choice((1, 60)) * NS_PER_S
    cluster.world.later(lasts_ns + later_ns, lambda: cluster.decide(host, "active"))


def _controller_drains(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    cluster.decide(host, "draining")
    cluster.world.later(lasts_ns, lambda: cluster.decide(host, "active"))


def _controller_undecided(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Drained and taken back again and again: a word may come just when the worker has nothing left to do."""
    rng = cluster.world.rng("administrators")
    host = rng.choice([one for one in cluster.hosts if one.whole_spec.components[-1].name == "worker"] or [host])

    def drain() -> None:
        cluster.decide(host, "draining")
        # Long enough for the worker to hear of it; then it has nothing left to do, and at that instant hears otherwise.
        empty_ns = rng.randrange(10 * NS_PER_S, 20 * NS_PER_S)
        for job in host.jobs():
            job.later(empty_ns, partial(job.die, ExitStatus(code=0)))
        cluster.world.later(empty_ns + rng.randrange(5 * NS_PER_S), partial(cluster.decide, host, "active"))

    at = 0
    while at <= lasts_ns:
        cluster.world.later(at, drain)
        at += 25 * NS_PER_S + rng.randrange(12 * NS_PER_S)


def _both_drain(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Operator and controller both want a host gone, and only the controller thinks better of it."""
    cluster.operator(host, Verb.DRAIN, None)
    cluster.decide(host, "draining")
    cluster.world.later(min(lasts_ns, 15 * NS_PER_S), lambda: cluster.decide(host, "active"))


KINDS: dict[str, Callable[[Cluster, Host, int], None]] = {
    "operators": _commands,
    "undecided operator": _undecided,
    "agent killed in a start": _killed_in_a_start,
    "operator holds": _held,
    "maintenance": _maintained,
    "decommission": _decommission,
    "decommission and power cut": _decommission_and_cut,
    "decommission said again": _decommission_again,
    "controller decommissions": _controller_decommissions,
    "controller drains": _controller_drains,
    "undecided controller": _controller_undecided,
    "operator and controller drain": _both_drain,
}
