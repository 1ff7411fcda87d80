"""Faults of one host: its agent, its processes, its power, and every point between a decision and its effect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from node_manager.core.events import Verb
from node_manager.core.spec import LEASE_MARGIN_NS
from tests.simulation.effects import CHILD_POINTS, POINTS
from tests.simulation.host import Host, How, Trap
from tests.simulation.world import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.processes import Process

AGENT_POINTS = tuple(point for point in POINTS if point not in CHILD_POINTS)
LEASED = "scheduler"


def leader(cluster: Cluster, host: Host) -> Host:
    """Return the host whose controller holds the lease, or `host`."""
    return next((one for one in cluster.hosts if one.name == cluster.store.holder), host)


# --- the agent --------------------------------------------------------------------------------------------------


def _agent_killed(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del cluster
    host.kill_agent(min(lasts_ns, 20 * NS_PER_S))


def stop_agent(host: Host, lasts_ns: int) -> None:
    """Stop the agent for some time."""
    agent = host.agent
    host.freeze_agent(True)
    host.world.later(lasts_ns, lambda: host.freeze_agent(False) if host.agent is agent else None)


def _agent_stopped(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del cluster
    stop_agent(host, lasts_ns)


def _stopped_to_the_end(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """The leader's controller dies for a while, and its agent is not there until shortly before the lease is over."""
    rng = cluster.world.rng("points")
    host = leader(cluster, host)
    fuse = host.fuses.get(LEASED)
    if fuse is None:
        return
    host.crash_loop = True
    host.world.later(45 * NS_PER_S + lasts_ns, partial(setattr, host, "crash_loop", False))
    for process in host.mains("controller"):
        process.signal(9)
    for process in host.mains(LEASED):
        if process.program is not None and rng.random() < 0.5:
            process.run(process.program.hang)
    at_ns = host.until(fuse[1] + LEASE_MARGIN_NS - rng.randrange(8 * NS_PER_S))
    if at_ns > NS_PER_MS:
        rng.choice((stop_agent, Host.kill_agent, Host.reexec_agent))(host, at_ns)


def _fuse_lost(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Something kills the fuse of the leader's scheduler."""
    del lasts_ns
    leader(cluster, host).lose_fuse(LEASED)


def _late_start(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """The leader's scheduler is started by a child that stands still beyond the lease, and so does its agent."""
    host = leader(cluster, host)
    pause_ns = 31 * NS_PER_S + lasts_ns // 3
    host.traps[CHILD_POINTS[1]] = Trap(How.STOP, pause_ns)
    host.traps["forked"] = Trap(How.STOP, pause_ns + NS_PER_S)
    for process in host.mains(LEASED):
        process.signal(9)


def _replaced(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del cluster
    host.reexec_agent(min(lasts_ns, 3 * NS_PER_S))


def _not_replaced(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """The new program gives up within its first moments, and the old one comes back in its place."""
    blind_ns = min(lasts_ns, NS_PER_S)
    host.reexec_agent(blind_ns)
    soon_ns = cluster.world.rng("points").randrange(1, 5 * NS_PER_MS)
    cluster.world.later(blind_ns + soon_ns, lambda: host.reexec_agent(200 * NS_PER_MS))


def _node_stopped(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Stop everything in order, as at a shutdown; the agent is started again later."""
    del cluster
    if host.agent is not None:
        host.agent.stop()
    host.world.later(lasts_ns + 120 * NS_PER_S, host.start_agent)


# --- points between a decision and its effect ---------------------------------------------------------------------


def _at_a_point(how: How) -> Callable[[Cluster, Host, int], None]:
    """Have something happen at a random point, and give the agent a reason to pass there."""

    def do(cluster: Cluster, host: Host, lasts_ns: int) -> None:
        rng = cluster.world.rng("points")
        point = rng.choice(AGENT_POINTS)
        if rng.random() < 0.5:
            host = leader(cluster, host)
        host.traps[point] = Trap(how, lasts_ns if how is How.STOP else min(lasts_ns, 5 * NS_PER_S))
        cluster.world.later(NS_PER_S, partial(_drop_trap, host, point))
        _pass_points(cluster, host)

    return do


def _drop_trap(host: Host, point: str) -> None:
    host.traps.pop(point, None)


def _pass_points(cluster: Cluster, host: Host) -> None:
    """Do what leads through starts, stops, writes and answers."""
    rng = cluster.world.rng("points")
    component = rng.choice([spec.name for spec in host.whole_spec.components])
    what = rng.randrange(4)
    if what == 0:
        cluster.operator(host, Verb.RESTART, component)
    elif what == 1:
        cluster.operator(host, Verb.STOP, component)
        cluster.world.later(rng.randrange(1, 500 * NS_PER_MS), partial(cluster.operator, host, Verb.START, component))
    elif what == 2:
        cluster.operator(host, rng.choice((Verb.DRAIN, Verb.DECOMMISSION)), None)
    else:
        for process in host.mains(component):
            process.signal(9)


def _child_paused(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """A child stands still before exec, and meanwhile somebody wants something else."""
    rng = cluster.world.rng("points")
    if rng.random() < 0.5:
        host = leader(cluster, host)
    host.traps[rng.choice(CHILD_POINTS)] = Trap(How.STOP, lasts_ns)
    if rng.random() < 0.3:
        host.traps["forked"] = Trap(How.STOP, lasts_ns + NS_PER_S)
    component = rng.choice([spec.name for spec in host.whole_spec.components])
    for process in host.mains(component):
        process.signal(9)
    words = ((Verb.STOP, component), (Verb.DECOMMISSION, None), (Verb.RESTART, component))
    cluster.world.later(rng.randrange(50 * NS_PER_MS, NS_PER_S), partial(cluster.operator, host, *rng.choice(words)))


# --- power and time -------------------------------------------------------------------------------------------------


def _suspended(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    host.suspend(True)
    cluster.world.later(lasts_ns, lambda: host.suspend(False))


def _reboot(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del cluster, lasts_ns
    host.reboot()


def _power_cut(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del cluster, lasts_ns
    host.reboot(power_cut=True)


def _other_instance(*, cloned: bool) -> Callable[[Cluster, Host, int], None]:
    def do(cluster: Cluster, host: Host, lasts_ns: int) -> None:
        del cluster, lasts_ns
        host.become(max(host.instances()) + 1, cloned=cloned)

    return do


def _earlier_instance(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    del lasts_ns
    host.become(cluster.world.rng("instances").choice(host.instances()), cloned=False)


# --- processes --------------------------------------------------------------------------------------------------


def _killed(component: str) -> Callable[[Cluster, Host, int], None]:
    def do(cluster: Cluster, host: Host, lasts_ns: int) -> None:
        del cluster, lasts_ns
        for process in host.mains(component):
            process.signal(9)

    return do


def _stopped(component: str) -> Callable[[Cluster, Host, int], None]:
    def do(cluster: Cluster, host: Host, lasts_ns: int) -> None:
        for process in host.mains(component):
            process.stop()
            cluster.world.later(lasts_ns, process.go_on)

    return do


def _hangs(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Components stop doing anything, and SIGTERM is no exception; nor does it help that another agent comes."""
    rng = cluster.world.rng("hangs")
    component = rng.choice(("scheduler", "worker"))
    if component == LEASED:
        host = leader(cluster, host)
    if rng.random() < 0.5:
        again = partial(rng.choice((Host.kill_agent, Host.reexec_agent)), host, min(lasts_ns, NS_PER_S))
        cluster.world.later(rng.randrange(1, 12 * NS_PER_S), again)
    for process in host.mains(component):
        if process.program is not None:
            process.run(process.program.hang)


def _finishes(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """A worker ends for good; an operator stops it all the same, and starts it later."""
    for process in host.mains("worker"):
        if process.program is not None:
            process.run(process.program.finish)
    for delay_ns, verb in ((NS_PER_S, Verb.STOP), (5 * NS_PER_S + lasts_ns, Verb.START)):
        cluster.world.later(delay_ns, partial(cluster.operator, host, verb, "worker"))


def _grandchild(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """A component forks something that stays."""
    for component in ("controller", "scheduler"):
        for process in host.mains(component):
            child = host.new_process(None, parent=process)
            cluster.world.later(lasts_ns, partial(child.signal, 9))
            # And its parent dies at once: what it left is still there.
            process.later(NS_PER_MS, partial(process.signal, 9))


def _crash_loop(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Whatever is started on this host ends at once, for a while; an operator tries to start it all the same."""
    host.crash_loop = True
    for process in list(host.processes.values()):
        if process.component is not None:
            process.signal(9)
    cluster.world.later(lasts_ns, lambda: setattr(host, "crash_loop", False))
    for spec in host.whole_spec.components:
        cluster.world.later(lasts_ns // 2, partial(cluster.operator, host, Verb.START, spec.name))


def _uninterruptible(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """Let the worker hang in the kernel; not the scheduler, for that SIGKILL is effective is an assumption."""
    for process in host.mains("worker"):
        process.uninterruptible = True
        cluster.world.later(lasts_ns, process.wake_up)


def _pid_reused(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """While no agent runs a component dies, and somebody else's process gets its pid."""
    host.kill_agent(NS_PER_S + min(lasts_ns, 5 * NS_PER_S))

    def take(process: Process) -> None:
        if not process.alive:
            host.stranger(process.pid)

    for process in [process for process in host.processes.values() if process.component is not None]:
        process.signal(9)
        cluster.world.later(500 * NS_PER_MS, partial(take, process))


def _flood(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """A component says the same hundreds of times within milliseconds."""
    del lasts_ns
    records = cluster.world.rng("flood").randrange(100, 1000)
    for process in [process for process in host.processes.values() if process.program is not None]:
        if process.program is not None:
            process.run(partial(process.program.flood, records))


def _denied(cluster: Cluster, host: Host, lasts_ns: int) -> None:
    """The heartbeat socket refuses everybody for a while."""
    host.denied = True
    cluster.world.later(lasts_ns, lambda: setattr(host, "denied", False))


KINDS: dict[str, Callable[[Cluster, Host, int], None]] = {
    "agent killed": _agent_killed,
    "agent stopped": _agent_stopped,
    "fuse lost": _fuse_lost,
    "late start": _late_start,
    "agent stopped to the lease's end": _stopped_to_the_end,
    "agent replaced": _replaced,
    "agent not replaced": _not_replaced,
    "node stopped": _node_stopped,
    "agent stopped at a point": _at_a_point(How.STOP),
    "agent killed at a point": _at_a_point(How.KILL),
    "power cut at a point": _at_a_point(How.POWER_CUT),
    "child paused": _child_paused,
    "host suspended": _suspended,
    "reboot": _reboot,
    "power cut": _power_cut,
    "another instance": _other_instance(cloned=False),
    "cloned instance": _other_instance(cloned=True),
    "earlier instance": _earlier_instance,
    "controller killed": _killed("controller"),
    "scheduler killed": _killed("scheduler"),
    "worker killed": _killed("worker"),
    "controller stopped": _stopped("controller"),
    "scheduler stopped": _stopped("scheduler"),
    "worker stopped": _stopped("worker"),
    "component hangs": _hangs,
    "worker ends for good": _finishes,
    "grandchild": _grandchild,
    "crash loop": _crash_loop,
    "uninterruptible": _uninterruptible,
    "pid reused": _pid_reused,
    "heartbeat flood": _flood,
    "heartbeats denied": _denied,
}
