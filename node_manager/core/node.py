"""The whole node: `step(state, event, now) -> (state, actions)`. The one way into the core.

Pure: no I/O, no clock, no randomness. `now` is CLOCK_BOOTTIME in nanoseconds and never goes back. Identical states
and events give identical results.
"""

from typing import assert_never

from node_manager.core import commands, configuring, facts, hostlife
from node_manager.core import writeback as wb
from node_manager.core.actions import Action, WriteFacts
from node_manager.core.changed import replace
from node_manager.core.events import (
    Beat,
    Booted,
    Command,
    ConfigFailed,
    ConfigLoaded,
    Event,
    EvidenceTaken,
    Exited,
    FactsWriteFailed,
    FactsWritten,
    FuseLost,
    HeartbeatClosed,
    HelperDone,
    Leadership,
    Looked,
    Notified,
    PreStartDone,
    ProbeDone,
    Spawned,
    SpawnFailed,
    Stalled,
    StopNode,
    Tick,
    TreeEmpty,
    WallClock,
)
from node_manager.core.latches import Doubted
from node_manager.core.nodestate import NodePhase, NodeState, drain_deadline_ns
from node_manager.core.spec import NS_PER_S, ComponentSpec
from node_manager.core.states import wake_ns
from node_manager.core.turn import Turn

NODE_STOP_BOUND_NS = 90 * NS_PER_S
"""One bound on the stop of everything; what is left then is killed (systemd's DefaultTimeoutStopSec)."""


UNKILLABLE_GRACE_NS = 10 * NS_PER_S
"""How long after that bound the agent waits for what SIGKILL does not end, before it leaves it behind and says so."""


def step(state: NodeState, event: Event, now: int) -> tuple[NodeState, tuple[Action, ...]]:
    """Return the node after `event`, and what is to be done, in order."""
    turn = Turn(state, now)
    turn.expire()
    _take(turn, event)
    turn.settle()
    if turn.node.phase is not NodePhase.WAITING_CONFIG:
        hostlife.advance(turn, before=state.host_state)
        turn.settle()
    return turn.result()


def next_wake_ns(state: NodeState) -> int | None:
    """Return when the node needs a `Tick` if nothing else happens before, or None."""
    times: list[int] = []
    for member in state.members.values():
        if (at := wake_ns(member.state)) is not None:
            times.append(at)
        if member.condition_until_ns is not None:
            times.append(member.condition_until_ns)
    if state.writeback.retry_at_ns is not None:
        times.append(state.writeback.retry_at_ns)
    deadline_ns = drain_deadline_ns(state)
    if deadline_ns is not None and not state.drain_expired and state.phase is not NodePhase.WAITING_CONFIG:
        times.append(deadline_ns)
    if state.stop_by_ns is not None and not state.finished:
        times.append(state.stop_by_ns if not state.stop_bound_passed else state.stop_by_ns + UNKILLABLE_GRACE_NS)
    return min(times, default=None)


def _take(turn: Turn, event: Event) -> None:
    # The classes are asked in this order: what comes often stands first.
    match event:
        case Beat():
            if _is_current(turn, event.component, event.generation):
                _beat(turn, event)
        case Tick():
            _tick(turn)
        case (
            ProbeDone() | Notified() | Spawned() | SpawnFailed() | TreeEmpty() | PreStartDone() | HeartbeatClosed()
            | Looked() | EvidenceTaken() | FuseLost()
        ):  # fmt: skip
            if event.component in turn.members:
                turn.feed(event.component, event)
        case Booted():
            _booted(turn, event)
        case ConfigLoaded():
            configuring.loaded(turn, event)
        case ConfigFailed():
            configuring.failed(turn, event)
        case StopNode():
            _stop_node(turn, event)
        case Stalled():
            _stalled(turn, event)
        case WallClock():
            turn.node = replace(turn.node, wall_offset_ns=event.offset_ns)
        case FactsWritten():
            _written(turn, event)
        case FactsWriteFailed():
            if turn.node.writeback.pending and turn.node.writeback.error != event.error:
                turn.log("store.failed", error=event.error)
            turn.node = replace(turn.node, writeback=wb.failed(turn.node.writeback, event.error, turn.now))
        case Command():
            commands.obey(turn, event)
        case Exited():
            if event.component in turn.members:
                gone = hostlife.exited(turn, event)
                turn.feed(event.component, replace(gone, want=turn.ruling(event.component)))
        case HelperDone():
            turn.log("component.helper_done", event.component, purpose=event.purpose, ok=event.ok, detail=event.detail)
        case _ as never:
            assert_never(never)


def _is_current(turn: Turn, name: str, generation: int) -> bool:
    member = turn.members.get(name)
    return member is not None and member.state.run is not None and member.state.generation == generation


def _booted(turn: Turn, event: Booted) -> None:
    durable = wb.Writeback(durable=event.facts, in_force=event.facts)
    turn.node = replace(
        turn.node,
        boot_id=event.boot_id,
        writeback=durable,
        table=facts.restore(event.leases, event.highest_terms, turn.now),
        kept_holds=event.holds,
    )
    if event.unreadable is not None:
        turn.log("store.unreadable", why=event.unreadable)
        turn.change(Doubted(why=event.unreadable))


def _stop_node(turn: Turn, event: StopNode) -> None:
    if turn.node.phase is NodePhase.STOPPING:
        return
    turn.log("agent.stopping", reason=event.reason)
    turn.node = replace(
        turn.node, phase=NodePhase.STOPPING, stop_reason=event.reason, stop_by_ns=turn.now + NODE_STOP_BOUND_NS
    )
    turn.tell_host_state()  # on its way before the first signal
    turn.mark_all()


def _stalled(turn: Turn, event: Stalled) -> None:
    turn.log("agent.stalled", duration_ms=event.duration_ns // 1_000_000)
    if turn.node.stop_by_ns is not None:
        turn.node = replace(turn.node, stop_by_ns=turn.node.stop_by_ns + event.duration_ns)
    for name in tuple(turn.members):
        turn.feed(name, event)


def _tick(turn: Turn) -> None:
    writeback = turn.node.writeback
    if writeback.retry_at_ns is not None and turn.now >= writeback.retry_at_ns:
        turn.node = replace(turn.node, writeback=replace(writeback, retry_at_ns=None))
        turn.actions.append(WriteFacts(seq=writeback.next_seq - 1, facts=wb.target(writeback)))
    stop_by_ns = turn.node.stop_by_ns
    if stop_by_ns is not None and turn.now >= stop_by_ns and not turn.node.stop_bound_passed:
        turn.node = replace(turn.node, stop_bound_passed=True)
        turn.mark_all()
    elif stop_by_ns is not None and turn.now >= stop_by_ns + UNKILLABLE_GRACE_NS and not turn.node.finished:
        turn.leave_behind()
    for name, member in tuple(turn.members.items()):
        at = wake_ns(member.state)
        if at is not None and at <= turn.now:
            turn.feed(name, Tick())


def _written(turn: Turn, event: FactsWritten) -> None:
    before = turn.node.in_force
    if turn.node.writeback.error is not None:
        turn.log("store.recovered")
    state, done = wb.written(turn.node.writeback, event.seq)
    turn.node = replace(turn.node, writeback=state)
    turn.in_force_changed(before)
    for item in done:
        commands.became_durable(turn, item)


def _beat(turn: Turn, event: Beat) -> None:
    turn.feed(event.component, event)
    spec = turn.members[event.component].spec
    for said in _statements(spec, event):
        turn.state_fact(said, spec.max_lease_ns)
    hostlife.controller_says(turn, spec, event)


def _statements(spec: ComponentSpec, event: Beat) -> list[facts.Statement]:
    """Return what a beat says about leased facts that its sender is the authority for."""
    found = []
    if event.leadership is not None and facts.PRIMARY in spec.states:
        found.append(
            facts.Statement(
                fact=facts.PRIMARY,
                authority=spec.name,
                value=event.leadership is Leadership.PRIMARY,
                term=event.term,
                valid_until_ns=event.valid_until_ns,
            )
        )
    for lease in event.leases:
        name = f"{facts.LEASE_PREFIX}{lease.name}"
        if name in spec.states:
            found.append(
                facts.Statement(
                    fact=name,
                    authority=spec.name,
                    value=lease.held,
                    term=lease.token,
                    valid_until_ns=lease.valid_until_ns,
                )
            )
    return found
