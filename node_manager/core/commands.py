"""What operators ask for. Every command is answered exactly once: done, or refused with the rule that forbids it."""

from typing import assert_never

from node_manager.core import claims, latches
from node_manager.core.actions import RunHelper, Signal
from node_manager.core.changed import replace
from node_manager.core.durable import MAX_HOLDS, DurableFacts, Hold, Latch, Maintenance
from node_manager.core.events import Command, HostState, Verb
from node_manager.core.facts import HOST_PREFIX
from node_manager.core.happenings import RestartAsked, StartAsked
from node_manager.core.hostlife import end_drain_if_complete, participants, removed_with_jobs
from node_manager.core.intent import REFUSES_START, Rule, ruling
from node_manager.core.latches import (
    Change,
    HoldReleased,
    HoldSet,
    MaintenanceEnded,
    MaintenanceSet,
    OperatorLatched,
    Recommissioned,
    Undrained,
)
from node_manager.core.nodestate import Member, NodePhase, drain_of, states_host
from node_manager.core.run import Phase
from node_manager.core.spec import CommandSpec, KillScope, OnDeadline
from node_manager.core.states import Aim, jobs_are_old, jobs_of
from node_manager.core.turn import Turn
from node_manager.core.words import because, jobs, span
from node_manager.core.writeback import MAX_PENDING, Pending


def obey(turn: Turn, command: Command) -> None:
    """Carry out one command, or refuse it."""
    turn.log("command.received", command.component, verb=command.verb.value, by=command.by, reason=command.reason)
    if turn.node.phase is NodePhase.WAITING_CONFIG:
        turn.refuse(command, f"cannot {command.verb.value}: there is no configuration yet")
    elif len(turn.node.writeback.pending) >= MAX_PENDING:
        why = f"{MAX_PENDING} changes wait for the disk already: {turn.node.writeback.error}"
        turn.refuse(command, f"cannot {command.verb.value}: {why}")
    elif command.component is not None:
        _of_component(turn, command, command.component)
    else:
        _of_host(turn, command)


def _of_component(turn: Turn, command: Command, name: str) -> None:
    if name not in turn.members:
        known = ", ".join(sorted(turn.members)) or "none"
        turn.refuse(command, f"cannot {command.verb.value} {name}: no such component here (known: {known})")
        return
    match command.verb:
        case Verb.START | Verb.RESTART:
            _start(turn, command, name)
        case Verb.STOP if _too_many_holds(turn, name):
            why = f"{MAX_HOLDS} components are held already; start one of them"
            turn.refuse(command, f"cannot stop {name}: {why}")
        case Verb.STOP:
            _stop(turn, command, name)
        case Verb.RELOAD_COMPONENT:
            _reload(turn, command, name)
        case _:
            turn.refuse(command, f"cannot {command.verb.value} {name}: it concerns the whole host")


def _records(turn: Turn) -> tuple[DurableFacts, DurableFacts]:
    """Return what is in force and what is to become durable: a word is done with when it is in both."""
    return turn.node.in_force, turn.target()


def _too_many_holds(turn: Turn, name: str) -> bool:
    """Tell whether one more hold would exceed what the durable record may hold."""
    held = turn.target()
    return len(held.holds) >= MAX_HOLDS and latches.hold_of(held, name) is None


def _start(turn: Turn, command: Command, name: str) -> None:
    """Start or restart: lifts a hold once that is durable, and is refused by what a start does not override."""
    if _refused(turn, command, name):
        return
    if any(latches.hold_of(record, name) is not None for record in _records(turn)):
        turn.change(HoldReleased(component=name), command=command)
        return
    _start_now(turn, command, name)


def _start_now(turn: Turn, command: Command, name: str) -> None:
    """Start or restart a component that no rule forbids, and say what follows."""
    if _refused(turn, command, name):
        return
    if command.verb is Verb.RESTART and not turn.began(name):
        turn.feed(name, RestartAsked(reason=f"restart asked for by {command.by}", manual=True))
    else:
        # A run that began a moment ago, because its hold was released, is the one that was asked for.
        turn.feed(name, StartAsked())
    turn.mark(name)
    turn.settle()
    member = turn.members[name]
    detail = f"{name} is {member.state.state.value}"
    if member.state.run is None and member.state.want.waits is not None:
        detail = f"{name} will be started as soon as it may: {member.state.want.waits.reason}"
    elif member.state.run is not None and member.state.run.pid is not None:
        detail = f"{detail}, pid {member.state.run.pid}"
    turn.reply(command.id, detail)


def _refused(turn: Turn, command: Command, name: str) -> bool:
    member, what = turn.members[name], command.verb.value
    against = [claim for claim in claims.outer(turn.node, member, turn.now) if claim.rule in REFUSES_START]
    if member.removed:
        turn.refuse(command, f"cannot {what} {name}: it was removed from the configuration")
        return True
    if not against:
        return False
    claim = ruling(against)
    turn.refuse(command, f"cannot {what} {name}: {claim.reason}", rule=claim.rule)
    return True


def became_durable(turn: Turn, item: Pending) -> None:
    """Answer the command that waited for this change, and do what was to follow it."""
    command = item.command
    if command is None:
        return
    name = command.component
    if name is None or command.verb is Verb.STOP:
        turn.reply(command.id, item.answer)
        return
    if name not in turn.members:
        turn.refuse(command, f"cannot {command.verb.value} {name}: it was removed meanwhile")
    elif (hold := latches.hold_of(turn.node.in_force, name)) is not None:
        # A stop that came after this start is the operators' last word.
        detail = f"cannot {command.verb.value} {name}: stopped again by {hold.by} meanwhile"
        turn.refuse(command, detail, rule=Rule.OPERATOR_HOLD)
    else:
        turn.settle()
        _start_now(turn, command, name)


def _stop(turn: Turn, command: Command, name: str) -> None:
    held = latches.hold_of(turn.target(), name)
    hold = Hold(component=name, by=command.by, reason=command.reason, at_wall_ns=_wall(turn))
    if held is not None and command.reason in {"", held.reason}:
        hold = held
    _say(
        turn,
        command,
        HoldSet(hold=hold),
        answer=f"{name} is held; it was not running"
        if turn.members[name].state.run is None
        else f"{name} is held and being stopped",
        again=f"{name} is held already{_said(turn, hold)}",
    )


def _say(turn: Turn, command: Command, change: Change, *, answer: str, again: str) -> None:
    """Put a change under way. A word that changes nothing is answered with `again`, once that is durable."""
    if latches.apply(turn.target(), change) == turn.target():
        answer = again
    if all(latches.apply(record, change) == record for record in (turn.node.writeback.durable, *_records(turn))):
        turn.reply(command.id, answer)
    else:
        turn.change(change, command=command, answer=answer)


def _said(turn: Turn, word: Hold | Maintenance | Latch) -> str:
    """Return who said it, how long ago, and why."""
    return f" by {word.by}, for {span(_wall(turn) - word.at_wall_ns)}{because(word.reason)}"


def _reload(turn: Turn, command: Command, name: str) -> None:
    member = turn.members[name]
    run, how = member.state.run, member.spec.reload
    if how is None:
        turn.refuse(command, f"cannot reload {name}: its role file has no reload")
    elif run is None or run.phase is not Phase.LIVE or member.state.aim is not Aim.NONE:
        turn.refuse(command, f"cannot reload {name}: it is {member.state.state.value}")
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
            turn.change(Recommissioned(), command=command, answer="this host is recommissioned")
        case Verb.MAINTENANCE:
            _maintenance(turn, command)
        case Verb.START | Verb.STOP | Verb.RESTART | Verb.RELOAD_COMPONENT:
            turn.refuse(command, f"cannot {command.verb.value}: name a component")
        case _ as never:
            assert_never(never)


def _drain(turn: Turn, command: Command) -> None:
    target = turn.target()
    if latches.reached(target, "host.decommissioned"):
        detail = "cannot drain: this host is decommissioned; `recommission` releases that"
        turn.refuse(command, detail, rule=Rule.DECOMMISSIONED)
        return
    if latches.reached(target, "host.drained"):
        latch = latches.ruling_latch(target)
        assert latch is not None, "what has been reached was latched"
        turn.reply(command.id, f"this host is drained already{_said(turn, latch)}")
        return
    names = [*participants(turn.members), *removed_with_jobs(turn.node)]
    latch = _operator_latch(turn, command, HostState.DRAINING)
    _say(
        turn,
        command,
        OperatorLatched(latch=latch),
        answer=f"draining {', '.join(names)}" if names else "drained: no component here takes part in a drain",
        again=f"this host is draining already{_said(turn, latch)}",
    )
    end_drain_if_complete(turn)


def _undrain(turn: Turn, command: Command) -> None:
    if latches.reached(turn.target(), "host.decommissioned"):
        detail = "cannot undrain: this host is decommissioned; `recommission` releases that"
        turn.refuse(command, detail, rule=Rule.DECOMMISSIONED)
    elif all(latches.host_state(record) is HostState.ACTIVE for record in _records(turn)):
        turn.reply(command.id, "this host is not draining")
    else:
        turn.change(Undrained(), command=command, answer="the drain is taken back")


def _decommission(turn: Turn, command: Command) -> None:
    stops = [
        member
        for member in turn.members.values()
        if drain_of(member.spec) is not None or any(fact.startswith(HOST_PREFIX) for fact in member.spec.stop_when)
    ]
    parts = [f"stops {', '.join(member.spec.name for member in stops)}" if stops else "nothing here depends on it"]
    parts += map(_fate_of_jobs, filter(_has_jobs, stops))
    # Only who states the host's facts could tell its controller, and it is not started again to do so.
    mute = [member.spec.name for member in stops if states_host(member.spec) and member.state.run is None]
    parts += [f"{name} is down and tells no controller: decommission the host there too" for name in mute]
    latch = _operator_latch(turn, command, HostState.DECOMMISSIONED)
    _say(
        turn,
        command,
        OperatorLatched(latch=latch),
        answer=f"decommissioned: {'; '.join(parts)}",
        again=f"this host is decommissioned already{_said(turn, latch)}",
    )


def _has_jobs(member: Member) -> bool:
    return bool(jobs_of(member.state))


def _fate_of_jobs(member: Member) -> str:
    """Return what becomes of the jobs of a component that a decommission stops."""
    count, drain = jobs_of(member.state) or 0, drain_of(member.spec)
    killed = member.spec.stop.kill_scope is KillScope.TREE or (
        drain is not None and drain.on_deadline is OnDeadline.KILL
    )
    known = " that it last reported" if jobs_are_old(member.state) else ""
    one = count == 1
    are = ("is" if one else "are") + (" killed" if killed else " left running")
    return f"the {jobs(count)} of {member.spec.name}{known} {are}"


def _maintenance(turn: Turn, command: Command) -> None:
    if command.enable:
        on = turn.target().maintenance
        maintenance = Maintenance(by=command.by, reason=command.reason, at_wall_ns=_wall(turn))
        if on is not None and command.reason in {"", on.reason}:
            maintenance = on
        _say(
            turn,
            command,
            MaintenanceSet(maintenance=maintenance),
            answer="maintenance: nothing is started or killed by itself",
            again=f"maintenance is on already{_said(turn, maintenance)}",
        )
    elif all(record.maintenance is None for record in _records(turn)):
        turn.reply(command.id, "maintenance is off already")
    else:
        turn.change(MaintenanceEnded(), command=command, answer="maintenance is over")


def _operator_latch(turn: Turn, command: Command, state: HostState) -> Latch:
    """Return the latch that the command sets. One that repeats what holds keeps what it does not say anew."""
    old, deadline_ns = turn.target().operator_latch, command.deadline_ns
    repeats = old is not None and old.state == state.value
    reason = old.reason if repeats and old is not None and not command.reason else command.reason
    new = Latch(
        state=state.value,
        by=command.by,
        reason=reason,
        at_wall_ns=_wall(turn),
        boot_id=turn.node.boot_id,
        deadline_ns=deadline_ns,
        deadline_wall_ns=None if deadline_ns is None else deadline_ns + turn.node.wall_offset_ns,
    )
    if old is None or not repeats or deadline_ns is not None:
        return new
    return old if reason == old.reason else replace(old, by=command.by, reason=reason)


def _wall(turn: Turn) -> int:
    return turn.now + turn.node.wall_offset_ns
