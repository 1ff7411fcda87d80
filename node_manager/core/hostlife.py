"""A host on its way out of the cluster, and back: what the controller says of it, drains, mapped exit statuses."""

from collections.abc import Mapping
from dataclasses import replace

from node_manager.core import latches
from node_manager.core.actions import RunHelper, SendLevels, Signal
from node_manager.core.component import Gone
from node_manager.core.durable import Latch
from node_manager.core.events import Beat, Exited, HostState
from node_manager.core.facts import HOST_PREFIX
from node_manager.core.latches import ControllerLatched, OperatorDrainDone
from node_manager.core.nodestate import Member, drain_deadline_ns
from node_manager.core.run import Phase
from node_manager.core.spec import CommandSpec, ComponentSpec, ExitMeaning
from node_manager.core.states import Aim
from node_manager.core.turn import Turn


def controller_says(turn: Turn, spec: ComponentSpec, beat: Beat) -> None:
    """Take HOST_STATE from the component that states the host's facts.

    Without an epoch, or under one that is not newer, it changes nothing: nothing final follows from one message that
    cannot be ordered (SCENARIOS 18).
    """
    if beat.host_state is None or not any(fact.startswith(HOST_PREFIX) for fact in spec.states):
        return
    if beat.host_state is HostState.DRAINED:
        drain_completed(turn, spec.name)
    if beat.epoch is None:
        turn.log("fact.refused", spec.name, fact=f"host.{beat.host_state.value}", why="no epoch")
        return
    said = None
    if beat.host_state is not HostState.ACTIVE:
        said = _latch(turn, beat.host_state, spec.name, beat.epoch, beat.drain_deadline_ns)
    change = latches.controller_change(turn.target(), said, beat.epoch)
    if change is not None:
        turn.log("host.state_stated", spec.name, state=beat.host_state.value, epoch=beat.epoch)
        turn.change(change)


def drain_completed(turn: Turn, name: str) -> None:
    """Note that a component has completed the drain under way, and end the drain when all have."""
    if turn.node.host_state is not HostState.DRAINING or name in turn.node.drain_done:
        return
    turn.node = replace(turn.node, drain_done=turn.node.drain_done | {name})
    turn.log("component.drained", name)
    turn.mark(name)
    end_drain_if_complete(turn)


def end_drain_if_complete(turn: Turn) -> None:
    """Make the host drained once nothing that takes part in the drain has anything left to do."""
    left = [
        name
        for name, member in turn.members.items()
        if member.spec.drain is not None and name not in turn.node.drain_done
    ]
    latch = latches.ruling_latch(turn.node.in_force)
    if left or latch is None or turn.node.host_state is not HostState.DRAINING:
        return
    turn.log("host.drained", by=latch.by)
    record = turn.node.in_force
    if record.operator_latch is not None:
        turn.change(OperatorDrainDone())
    controller = turn.node.in_force.controller_latch
    if controller is not None and controller.state == HostState.DRAINING.value:
        turn.change(ControllerLatched(latch=replace(controller, state=HostState.DRAINED.value)))


def advance(turn: Turn, *, before: HostState) -> None:
    """Carry the drain under way on: tell whoever has not been told, and act when its deadline passes."""
    if turn.node.host_state is not HostState.DRAINING:
        if turn.node.host_state is not before:
            _forget_drain(turn)
        return
    deadline_ns = drain_deadline_ns(turn.node)
    if deadline_ns is not None and turn.now >= deadline_ns and not turn.node.drain_expired:
        turn.node = replace(turn.node, drain_expired=True)
        turn.log("host.drain_deadline_passed", jobs_left=jobs_left_in(turn.members))
        turn.mark_all()
    for name in tuple(turn.members):
        _direct(turn, name)


def _direct(turn: Turn, name: str) -> None:
    member = turn.members[name]
    drain, run = member.spec.drain, member.state.run
    if drain is None or name in turn.node.drain_done:
        return
    if run is None:
        if turn.node.drain_expired and member.state.want.clear_tree:
            drain_completed(turn, name)
        return
    if run.phase is not Phase.LIVE or run.told_to_drain or member.state.aim is not Aim.NONE:
        return
    turn.members[name] = replace(member, state=replace(member.state, run=replace(run, told_to_drain=True)))
    generation = member.state.generation
    turn.log("component.told_to_drain", name, generation=generation)
    match drain.how:
        case CommandSpec():
            turn.actions.append(
                RunHelper(component=name, generation=generation, purpose="drain", spec=member.spec, command=drain.how)
            )
        case int():
            turn.actions.append(Signal(component=name, generation=generation, signal=drain.how))
        case None:
            turn.actions.append(SendLevels(component=name))


def _forget_drain(turn: Turn) -> None:
    turn.node = replace(turn.node, drain_done=frozenset(), drain_expired=False)
    for name, member in turn.members.items():
        run = member.state.run
        if run is not None and run.told_to_drain:
            turn.members[name] = replace(member, state=replace(member.state, run=replace(run, told_to_drain=False)))


def exited(turn: Turn, event: Exited) -> Gone:
    """Give an exit its meaning: what the role file maps its status to, and whether it completes a drain."""
    member = turn.members[event.component]
    spec, state, run = member.spec, member.state, member.state.run
    hold: str | None = None
    if run is not None and state.generation == event.generation and event.status.code is not None:
        meaning = dict(spec.exit_status).get(event.status.code)
        draining = turn.node.host_state is HostState.DRAINING and run.told_to_drain
        finished = event.status.code == 0 and event.left == 0
        if draining and (finished or meaning is ExitMeaning.DRAINED):
            drain_completed(turn, event.component)
        elif meaning is ExitMeaning.DECOMMISSIONED:
            hold = _latched_by_exit(turn, spec, run.epoch, event.status.code)
        elif meaning is not None and state.aim in {Aim.NONE, Aim.RETRY}:
            hold = f"exit status {event.status.code}: the role file says that it is final"
    return Gone(
        generation=event.generation,
        status=event.status,
        left=event.left,
        jitter=event.jitter,
        oom=event.oom,
        hold=hold,
    )


def _latched_by_exit(turn: Turn, spec: ComponentSpec, epoch: int | None, code: int) -> str | None:
    """Latch at the epoch that was stated earlier in that run; without a new one, only this component is held."""
    if epoch is None or epoch <= turn.node.in_force.released_epoch:
        return f"rejoin refused (exit status {code})"
    if not turn.host_is("host.decommissioned"):
        turn.change(ControllerLatched(latch=_latch(turn, HostState.DECOMMISSIONED, spec.name, epoch, None)))
    return None


def _latch(turn: Turn, state: HostState, by: str, epoch: int, deadline_ns: int | None) -> Latch:
    offset = turn.node.wall_offset_ns
    return Latch(
        state=state.value,
        by=by,
        reason=f"stated by {by}",
        at_wall_ns=turn.now + offset,
        epoch=epoch,
        boot_id=turn.node.boot_id,
        deadline_ns=deadline_ns,
        deadline_wall_ns=None if deadline_ns is None else deadline_ns + offset,
    )


def jobs_left_in(members: Mapping[str, Member]) -> int | None:
    """Return how many jobs the components that report them still have, or None where none reports."""
    counts = [member.state.run.jobs for member in members.values() if member.state.run is not None]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
