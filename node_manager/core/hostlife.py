"""A host on its way out of the cluster, and back: what the controller says of it, drains, mapped exit statuses."""

from collections.abc import Mapping
from typing import assert_never

from node_manager.core import latches
from node_manager.core.actions import RunHelper, SendLevels, Signal
from node_manager.core.changed import replace
from node_manager.core.durable import Latch
from node_manager.core.events import Beat, Exited, HostState
from node_manager.core.facts import HOST_PREFIX
from node_manager.core.happenings import Gone
from node_manager.core.latches import ControllerLatched, OperatorDrainDone
from node_manager.core.nodestate import (
    Member,
    NodeState,
    drain_deadline_ns,
    drain_of,
    drain_reserve_ns,
    latch_deadline_ns,
    states_host,
)
from node_manager.core.run import Phase
from node_manager.core.spec import NS_PER_S, CommandSpec, ComponentSpec, ExitMeaning
from node_manager.core.states import Aim, jobs_of
from node_manager.core.turn import Turn
from node_manager.core.writeback import MAX_PENDING


def controller_says(turn: Turn, spec: ComponentSpec, beat: Beat) -> None:
    """Take HOST_STATE from the component that states the host's facts.

    Without an epoch, or under one that is not newer, it changes nothing: nothing final follows from one message that
    cannot be ordered (SCENARIOS 18).
    """
    if beat.host_state is None or not states_host(spec):
        return
    if beat.host_state is HostState.DRAINED:
        drain_completed(turn, spec.name)
    if beat.epoch is None:
        turn.log("fact.refused", spec.name, fact=f"host.{beat.host_state.value}", why="no epoch")
        return
    if len(turn.node.writeback.pending) >= MAX_PENDING:
        # Nothing is lost: it is a level, and comes again with the next beat.
        turn.log(
            "fact.refused", spec.name, fact=f"host.{beat.host_state.value}", why="too many changes wait for the disk"
        )
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


def participants(members: Mapping[str, Member]) -> list[str]:
    """Return the names of the components that take part in a drain."""
    return [name for name, member in members.items() if drain_of(member.spec) is not None]


def removed_with_jobs(node: NodeState) -> list[str]:
    """Return the names of what left the configuration and may have jobs: nobody has said that they ended.

    Its last report may be old, so whatever was left of it counts too. What a successor found running and no longer in
    the configuration takes part in nothing, and counts until it has ended.
    """
    gone = [name for name, past in node.past.items() if (past.last_jobs or past.left) and name not in node.members]
    going = [name for name, member in node.members.items() if member.removed and drain_of(member.spec) is None]
    return [*gone, *going]


def end_drain_if_complete(turn: Turn) -> None:
    """Make the host drained once nothing that takes part in the drain has anything left to do."""
    if turn.node.host_state is not HostState.DRAINING:
        return
    waits_for = [*participants(turn.members), *removed_with_jobs(turn.node)]
    if any(name not in turn.node.drain_done for name in waits_for):
        return
    # What is being taken back is on its way to the disk: a drain that ends meanwhile must not come after it.
    record = turn.target()
    if record.operator_latch is None and record.controller_latch is None:
        return
    turn.log("host.drained")
    if record.operator_latch is not None:
        turn.change(OperatorDrainDone())
    if record.controller_latch is not None:
        turn.change(ControllerLatched(latch=replace(record.controller_latch, state=HostState.DRAINED.value)))


def advance(turn: Turn, *, before: HostState) -> None:
    """Carry the drain under way on: tell whoever has not been told, and act when its deadline passes."""
    host_state = turn.node.host_state
    if host_state is not HostState.DRAINING:
        if host_state is not before:
            _forget_drain(turn)
        return
    deadline_ns = drain_deadline_ns(turn.node)
    expired = deadline_ns is not None and turn.now >= deadline_ns
    if expired is not turn.node.drain_expired:
        turn.node = replace(turn.node, drain_expired=expired)
        if expired:
            turn.log("host.drain_time_over", what=drain_over(turn.node, turn.now), jobs_left=jobs_left_in(turn.members))
        turn.mark_all()
        turn.settle()
    for name in participants(turn.members):
        _direct(turn, name)
    end_drain_if_complete(turn)


def drain_over(node: NodeState, now: int) -> str:
    """Return what it means that the time of the drain under way is over."""
    latch = latches.ruling_latch(node.in_force)
    assert latch is not None, "a drain is latched"
    deadline_ns = latch_deadline_ns(latch, node)
    assert deadline_ns is not None, "only a drain with a deadline is over by itself"
    if now >= deadline_ns:
        return "the drain's deadline has passed"
    kept_s = drain_reserve_ns(latch) / NS_PER_S
    return f"the time to drain is over; {kept_s:.3g} s are kept for the last report"


def _direct(turn: Turn, name: str) -> None:
    member = turn.members[name]
    drain, run = drain_of(member.spec), member.state.run
    if drain is None or name in turn.node.drain_done:
        return
    if run is None:
        if member.state.want.clear_tree and not jobs_of(member.state):
            # Its time is over, and nothing of it is left: neither seen, nor reported by itself.
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
        case _ as never:
            assert_never(never)


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
        # Jobs that it reported may live where they cannot be seen (no cgroup): only its own word ends them.
        finished = event.status.code == 0 and event.left == 0 and not jobs_of(state)
        if draining and (finished or meaning is ExitMeaning.DRAINED):
            drain_completed(turn, event.component)
        elif meaning is ExitMeaning.DECOMMISSIONED or meaning is ExitMeaning.DRAINED:
            hold = _latched_by_exit(turn, spec, HostState(meaning.value.removeprefix(HOST_PREFIX)), run.epoch)
        elif meaning is ExitMeaning.HOLD and state.aim in {Aim.NONE, Aim.RETRY}:
            hold = "the role file says that it is final"
        if hold is not None:
            hold = f"exit status {event.status.code}: {hold}"
    return Gone(
        generation=event.generation,
        status=event.status,
        left=event.left,
        jitter=event.jitter,
        oom=event.oom,
        hold=hold,
    )


def _latched_by_exit(turn: Turn, spec: ComponentSpec, state: HostState, epoch: int | None) -> str | None:
    """Latch at the epoch that was stated earlier in that run; without a new one, only this component is held."""
    record = turn.node.in_force
    if epoch is None or epoch <= record.released_epoch or epoch < record.epoch_seen:
        return "rejoin refused"
    if not turn.host_is(f"{HOST_PREFIX}{state.value}"):
        turn.change(ControllerLatched(latch=_latch(turn, state, spec.name, epoch, None)))
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
    """Return how many jobs the components had when they last reported, or None where none ever did."""
    known = [count for member in members.values() if (count := jobs_of(member.state)) is not None]
    return sum(known) if known else None
