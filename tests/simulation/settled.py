"""What must hold when the faults have ceased for long enough: every host shows what its facts call for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from node_manager.core import latches
from node_manager.core.events import HostState, Verb
from node_manager.core.nodestate import Member, NodePhase, NodeState
from node_manager.core.ordering import process_digest
from node_manager.core.spec import OnFailure
from node_manager.core.states import State
from tests.simulation.reasons import Violation
from tests.simulation.words import HOST, MAINTENANCE

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.host import Host
    from tests.simulation.processes import Process

_LEAVING = {HostState.DRAINING, HostState.DRAINED}


def check(cluster: Cluster) -> None:
    """Look at the whole cluster. Raises Violation."""
    for host in cluster.hosts:
        agent = host.agent
        if agent is None or agent.state.phase is not NodePhase.RUNNING:
            raise Violation("settled", f"{host.name} has no agent in charge")
        for name in agent.state.members:
            _component(cluster, host, name, agent.state)
        for process in host.processes.values():
            if process.alive and process.component is not None and process.component not in agent.state.members:
                raise Violation("settled", f"{process.component} on {host.name} runs and is not configured")
        _host(cluster, host, agent.state)
    alive = [process for process in cluster.invariants.schedulers if process.alive]
    leased = cluster.world.now < cluster.store.expires_ns
    leader = next((host for host in cluster.hosts if leased and host.name == cluster.store.holder), None)
    if leader is not None and _may_lead(leader) and len(alive) != 1:
        raise Violation("scheduler runs", f"{len(alive)} schedulers run, the lease is with {leader.name}")
    # A controller that hangs before its first word is reported and not ended: it may be busy.
    controllers = (process for host in cluster.hosts for process in host.mains("controller"))
    if leader is None and any(not process.hangs for process in controllers):
        raise Violation("scheduler runs", "controllers run and nobody has the lease")


def _component(cluster: Cluster, host: Host, name: str, state: NodeState) -> None:
    machine = state.members[name].state
    mains = host.mains(name)
    where = f"{name} on {host.name} is {machine.state.value}, {len(mains)} processes ({machine.reason})"
    if machine.want.up and machine.want.waits is None and machine.hold is None:
        if machine.state is not State.RUNNING or len(mains) != 1:
            raise Violation("settled", where)
    elif not machine.want.up and (mains or machine.state is not State.STOPPED):
        raise Violation("settled", where)
    if mains and machine.run is not None and mains[0].pid != machine.run.pid:
        raise Violation("settled", f"{where}; the agent knows pid {machine.run.pid}")
    for process in mains:
        _not_hung(process, state.members[name], state, where)
    word = cluster.invariants.words.last(host.identity, name)
    held = latches.hold_of(state.in_force, name) is not None
    if word is Verb.STOP and not held:
        raise Violation("last word", f"{name} on {host.name} was stopped by an operator and is not held")
    if word in {Verb.START, Verb.RESTART} and held:
        raise Violation("last word", f"{name} on {host.name} was started by an operator and is held")


def _not_hung(process: Process, member: Member, state: NodeState, where: str) -> None:
    """See that somebody tries where something hangs, that status says so, and that it runs as configured."""
    liveness = member.spec.liveness
    reported = liveness is None or liveness.on_failure is OnFailure.REPORT
    if process.hangs and not reported and state.in_force.maintenance is None:
        raise Violation("settled", f"{where}; it hangs")
    if process.hangs and member.state.ready is True:
        raise Violation("status is honest", f"{where}; it hangs and is shown as ready")
    if process.digest not in {None, process_digest(member.spec)}:
        raise Violation("configuration holds", f"{where}; it was started with another configuration")


def _host(cluster: Cluster, host: Host, state: NodeState) -> None:
    words = cluster.invariants.words
    if host.agent is not None and host.agent.answers:
        raise Violation("settled", f"{host.name}: {len(host.agent.answers)} commands were never answered")
    if state.writeback.pending:
        raise Violation("settled", f"{host.name}: {len(state.writeback.pending)} changes are not durable")
    if words.is_certain(host.identity, MAINTENANCE):
        asked = words.last(host.identity, MAINTENANCE) is not None
        if asked is not (state.in_force.maintenance is not None):
            raise Violation("last word", f"{host.name}: maintenance was {'begun' if asked else 'ended'} and is not")
    if words.is_certain(host.identity, HOST) and state.in_force.doubt is None:
        _host_state(cluster, host, state)
    for process in host.mains("scheduler"):
        if process.term != cluster.store.term:
            raise Violation("settled", f"scheduler on {host.name} under term {process.term}")


def _host_state(cluster: Cluster, host: Host, state: NodeState) -> None:
    """See that the host is in the more severe of the states that operators and controllers put it in."""
    word = cluster.invariants.words.last(host.identity, HOST)
    asked = {Verb.DRAIN: HostState.DRAINING, Verb.DECOMMISSION: HostState.DECOMMISSIONED}.get(
        word or Verb.UNDRAIN, HostState.ACTIVE
    )
    if latches.SEVERITY[state.host_state] < latches.SEVERITY[asked]:
        raise Violation("last word", f"{host.name}: {word} by an operator, and it is {state.host_state.value}")
    decided, epoch = cluster.register(host.name, host.instance)
    if epoch <= cluster.invariants.released.get(host.identity, -1):
        decided = HostState.ACTIVE
    speaks = bool(host.mains("worker"))
    seen = state.in_force.epoch_seen
    if speaks and decided is HostState.DECOMMISSIONED and state.host_state is not decided:
        raise Violation("settled", f"{host.name} is decommissioned under epoch {epoch} and still works")
    if not speaks and seen < epoch:
        return  # nobody could tell it
    expected = max(asked, decided, key=lambda one: latches.SEVERITY[one])
    if state.host_state is not expected and not {state.host_state, expected} <= _LEAVING:
        raise Violation(
            "settled",
            f"{host.name} is {state.host_state.value}; operators say {asked.value}, "
            f"controllers {decided.value} under epoch {epoch} (seen: {seen})",
        )


def _may_lead(host: Host) -> bool:
    """Tell whether nothing that an operator said keeps this host from running a scheduler."""
    agent = host.agent
    if agent is None or not {"controller", "scheduler"} <= agent.state.members.keys():
        return False
    if any(agent.state.members[name].state.hold is not None for name in ("controller", "scheduler")):
        return False
    record = agent.state.in_force
    held = {hold.component for hold in record.holds}
    return not held & {"controller", "scheduler"} and record.maintenance is None
