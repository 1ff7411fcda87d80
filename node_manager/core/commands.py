"""What operators ask for. Every command is answered exactly once: done, or refused with the rule that forbids it."""

from typing import assert_never

from node_manager.core import claims, latches
from node_manager.core.actions import RunHelper, Signal
from node_manager.core.durable import MAX_HOLDS, DurableFacts, Hold, Latch, Maintenance
from node_manager.core.events import Command, HostState, Verb
from node_manager.core.facts import HOST_PREFIX
from node_manager.core.happenings import RestartAsked, StartAsked
from node_manager.core.hostlife import end_drain_if_complete, participants
from node_manager.core.intent import REFUSES_START, Rule, ruling
from node_manager.core.latches import (
    HoldReleased,
    HoldSet,
    MaintenanceEnded,
    MaintenanceSet,
    OperatorLatched,
    Recommissioned,
    Undrained,
)
from node_manager.core.nodestate import NodePhase, drain_of
from node_manager.core.run import Phase
from node_manager.core.spec import CommandSpec
from node_manager.core.states import Aim
from node_manager.core.turn import Turn
from node_manager.core.writeback import MAX_PENDING, Pending


def obey(turn: Turn, command: Command) -> None:
    """Carry out one command, or refuse it."""
    turn.log("command.received", command.component, verb=command.verb.value, by=command.by, reason=command.reason)
    if turn.node.phase is NodePhase.WAITING_CONFIG:
        turn.reply(command.id, f"cannot {command.verb.value}: there is no configuration yet", ok=False)
    elif len(turn.node.writeback.pending) >= MAX_PENDING:
        why = f"{MAX_PENDING} changes wait for the disk already: {turn.node.writeback.error}"
        turn.reply(command.id, f"cannot {command.verb.value}: {why}", ok=False)
    elif command.component is not None:
        _of_component(turn, command, command.component)
    else:
        _of_host(turn, command)


def _of_component(turn: Turn, command: Command, name: str) -> None:
    if name not in turn.members:
        known = ", ".join(sorted(turn.members)) or "none"
        turn.reply(command.id, f"cannot {command.verb.value} {name}: no such component here (known: {known})", ok=False)
        return
    match command.verb:
        case Verb.START:
            _start(turn, command, name, restart=False)
        case Verb.RESTART:
            _start(turn, command, name, restart=True)
        case Verb.STOP if _too_many_holds(turn, name):
            why = f"{MAX_HOLDS} components are held already; start one of them"
            turn.reply(command.id, f"cannot stop {name}: {why}", ok=False)
        case Verb.STOP:
            hold = Hold(component=name, by=command.by, reason=command.reason, at_wall_ns=_wall(turn))
            turn.change(HoldSet(hold=hold), command_id=command.id, answer=_stop_answer(turn, name))
        case Verb.RELOAD_COMPONENT:
            _reload(turn, command, name)
        case _:
            turn.reply(command.id, f"cannot {command.verb.value} {name}: it concerns the whole host", ok=False)


def _records(turn: Turn) -> tuple[DurableFacts, DurableFacts]:
    """Return what is in force and what is to become durable: a word is done with when it is in both."""
    return turn.node.in_force, turn.target()


def _too_many_holds(turn: Turn, name: str) -> bool:
    """Tell whether one more hold would exceed what the durable record may hold."""
    held = turn.target()
    return len(held.holds) >= MAX_HOLDS and latches.hold_of(held, name) is None


def _start(turn: Turn, command: Command, name: str, *, restart: bool) -> None:
    """Start or restart: lifts a hold once that is durable, and is refused by what a start does not override."""
    if _refused(turn, command.id, command.verb.value, name):
        return
    if any(latches.hold_of(record, name) is not None for record in _records(turn)):
        answer = f"released the hold of {name}"
        turn.change(HoldReleased(component=name), command_id=command.id, answer=answer, start=name, restart=restart)
        return
    start_now(turn, name, command.id, restart=restart, by=command.by)


def start_now(turn: Turn, name: str, command_id: int | None, *, restart: bool, by: str) -> None:
    """Start or restart a component that no rule forbids, and say what follows."""
    if _refused(turn, command_id, "start", name):
        return
    if restart:
        turn.feed(name, RestartAsked(reason=f"restart asked for by {by}", manual=True))
    else:
        turn.feed(name, StartAsked())
    turn.mark(name)
    turn.settle()
    member = turn.members[name]
    detail = f"{name} is {member.state.state.value}"
    if member.state.run is None and member.state.want.waits is not None:
        detail = f"{name} will be started as soon as it may: {member.state.want.waits.reason}"
    elif member.state.run is not None and member.state.run.pid is not None:
        detail = f"{detail}, pid {member.state.run.pid}"
    turn.reply(command_id, detail)


def _refused(turn: Turn, command_id: int | None, what: str, name: str) -> bool:
    member = turn.members[name]
    against = [claim for claim in claims.outer(turn.node, member, turn.now) if claim.rule in REFUSES_START]
    if member.removed:
        turn.reply(command_id, f"cannot {what} {name}: it was removed from the configuration", ok=False)
        return True
    if not against:
        return False
    claim = ruling(against)
    turn.reply(command_id, f"cannot {what} {name}: {claim.reason}", ok=False, rule=claim.rule.value)
    return True


def became_durable(turn: Turn, item: Pending) -> None:
    """Answer the command that waited for this change, and do what was to follow it."""
    if item.start is None:
        turn.reply(item.command_id, item.answer)
    elif item.start not in turn.members:
        turn.reply(item.command_id, f"cannot start {item.start}: it was removed meanwhile", ok=False)
    elif (hold := latches.hold_of(turn.node.in_force, item.start)) is not None:
        # A stop that came after this start is the operators' last word.
        detail = f"cannot start {item.start}: stopped again by {hold.by} meanwhile"
        turn.reply(item.command_id, detail, ok=False, rule=Rule.OPERATOR_HOLD.value)
    else:
        turn.settle()
        start_now(turn, item.start, item.command_id, restart=item.restart, by="an operator")


def _stop_answer(turn: Turn, name: str) -> str:
    member = turn.members[name]
    if member.state.run is None:
        return f"{name} is held; it was not running"
    return f"{name} is held and being stopped"


def _reload(turn: Turn, command: Command, name: str) -> None:
    member = turn.members[name]
    run, how = member.state.run, member.spec.reload
    if how is None:
        turn.reply(command.id, f"cannot reload {name}: its role file has no reload", ok=False)
    elif run is None or run.phase is not Phase.LIVE or member.state.aim is not Aim.NONE:
        turn.reply(command.id, f"cannot reload {name}: it is {member.state.state.value}", ok=False)
    elif isinstance(how, CommandSpec):
        generation = member.state.generation
        turn.actions.append(
            RunHelper(component=name, generation=generation, purpose="reload", spec=member.spec, command=how)
        )
        turn.reply(command.id, f"{name}: its reload command was started; its result is an event")
    else:
        turn.actions.append(Signal(component=name, generation=member.state.generation, signal=how))
        turn.reply(command.id, f"{name} was sent its reload signal")


def _of_host(turn: Turn, command: Command) -> None:
    match command.verb:
        case Verb.DRAIN:
            _drain(turn, command)
        case Verb.DECOMMISSION:
            _decommission(turn, command)
        case Verb.UNDRAIN:
            _undrain(turn, command)
        case Verb.RECOMMISSION:
            if all(latches.host_state(record) is HostState.ACTIVE for record in _records(turn)):
                turn.reply(command.id, "this host is active already")
                return
            turn.change(Recommissioned(), command_id=command.id, answer="this host is recommissioned")
        case Verb.MAINTENANCE:
            _maintenance(turn, command)
        case Verb.START | Verb.STOP | Verb.RESTART | Verb.RELOAD_COMPONENT:
            turn.reply(command.id, f"cannot {command.verb.value}: name a component", ok=False)
        case _ as never:
            assert_never(never)


def _drain(turn: Turn, command: Command) -> None:
    if latches.reached(turn.target(), "host.decommissioned"):
        rule = Rule.DECOMMISSIONED.value
        turn.reply(command.id, "cannot drain: this host is decommissioned", ok=False, rule=rule)
        return
    if latches.reached(turn.target(), "host.drained"):
        turn.reply(command.id, "this host is drained already")
        return
    names = participants(turn.members)
    answer = f"draining {', '.join(names)}" if names else "drained: no component here takes part in a drain"
    latch = _operator_latch(turn, command, HostState.DRAINING)
    turn.change(OperatorLatched(latch=latch), command_id=command.id, answer=answer)
    end_drain_if_complete(turn)


def _undrain(turn: Turn, command: Command) -> None:
    if latches.reached(turn.target(), "host.decommissioned"):
        detail = "cannot undrain: this host is decommissioned; `recommission` releases that"
        turn.reply(command.id, detail, ok=False, rule=Rule.DECOMMISSIONED.value)
    elif all(latches.host_state(record) is HostState.ACTIVE for record in _records(turn)):
        turn.reply(command.id, "this host is not draining")
    else:
        turn.change(Undrained(), command_id=command.id, answer="the drain is taken back")


def _decommission(turn: Turn, command: Command) -> None:
    stops = [
        name
        for name, member in turn.members.items()
        if drain_of(member.spec) is not None or any(fact.startswith(HOST_PREFIX) for fact in member.spec.stop_when)
    ]
    answer = f"decommissioned: stops {', '.join(stops)}" if stops else "decommissioned: nothing here depends on it"
    latch = _operator_latch(turn, command, HostState.DECOMMISSIONED)
    turn.change(OperatorLatched(latch=latch), command_id=command.id, answer=answer)


def _maintenance(turn: Turn, command: Command) -> None:
    if command.enable:
        maintenance = Maintenance(by=command.by, reason=command.reason, at_wall_ns=_wall(turn))
        answer = "maintenance: nothing is started or killed by itself"
        turn.change(MaintenanceSet(maintenance=maintenance), command_id=command.id, answer=answer)
    elif all(record.maintenance is None for record in _records(turn)):
        turn.reply(command.id, "maintenance is off already")
    else:
        turn.change(MaintenanceEnded(), command_id=command.id, answer="maintenance is over")


def _operator_latch(turn: Turn, command: Command, state: HostState) -> Latch:
    deadline_ns = command.deadline_ns
    return Latch(
        state=state.value,
        by=command.by,
        reason=command.reason,
        at_wall_ns=_wall(turn),
        boot_id=turn.node.boot_id,
        deadline_ns=deadline_ns,
        deadline_wall_ns=None if deadline_ns is None else deadline_ns + turn.node.wall_offset_ns,
    )


def _wall(turn: Turn) -> int:
    return turn.now + turn.node.wall_offset_ns
