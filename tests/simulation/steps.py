"""What must hold after every step of every agent's core."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from node_manager.core import latches
from node_manager.core import node as core
from node_manager.core import writeback as wb
from node_manager.core.actions import Action, Log, WriteFacts
from node_manager.core.durable import DurableFacts, Latch
from node_manager.core.events import (
    Beat,
    Booted,
    Command,
    ConfigLoaded,
    Event,
    Exited,
    FactsWriteFailed,
    FactsWritten,
    HostState,
    PreStartDone,
    SpawnFailed,
    Tick,
    Verb,
)
from node_manager.core.intent import Rule
from node_manager.core.invariants import check_invariants
from node_manager.core.latches import Recommissioned, Undrained
from node_manager.core.nodestate import Member, NodePhase, NodeState, drain_of
from node_manager.core.spec import LEASE_MARGIN_NS, NS_PER_S, ExitMeaning, stop_budget_ns
from node_manager.core.states import Aim, State, rule_of
from tests.simulation.reasons import Violation

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.invariants import Invariants

REPLAYED_STEPS = 50
"""Each so manieth step is done twice, to see that identical histories give identical actions."""
EXPLAINED_STEPS = 10
"""After each so manieth step the ledger's explanation is compared with the facts."""
MAX_ACTIONS = 100
"""Bound on the actions of one step, on hosts of one or two components."""
STOP_SLACK_NS = 1_200_000_000
"""What a stop may take beyond its time-out: what the agent grants after a stall, and a turn."""
SILENT_NS = 15 * NS_PER_S
"""Three of the intervals that the modelled programs promise."""
LATE_KILL_NS = 1_100_000_000
"""Beyond this an agent has noticed that it stood still, and gives a stop under way some time after it."""
PROMPT_NS = NS_PER_S // 10
"""How long an agent that runs may take to act."""
REFUSED = 79
PRECEDENCE = (
    "decommissioned", "node-stopping", "drained", "operator-hold", "exit-hold", "condition", "dependency",
    "maintenance", "start-limit", "backoff", "configured",
)  # fmt: skip
"""The order of the rules as the design states it, not as the core has it."""


@dataclass(slots=True)
class Seen:
    """What the observer has seen of one agent's life."""

    heard_ns: dict[tuple[str, int], int] = field(default_factory=dict)
    """Component and generation -> when its last heartbeat was taken, in the host's clock."""
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    """Component and generation -> the epoch that it stated last."""
    final: set[str] = field(default_factory=set)
    """Components that ended for good; an operator has not asked for a start since."""
    stops: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Component -> since when it is being stopped, and how long the agent had stood still then."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one agent."""

    agent: Agent
    before: NodeState
    event: Event
    after: NodeState
    actions: tuple[Action, ...]
    now: int

    @property
    def where(self) -> str:
        """Return the host's name."""
        return self.agent.host.name

    @property
    def identity(self) -> str:
        """Return the host's identity."""
        return self.agent.host.identity


def check(observer: Invariants, step: Step) -> None:
    """Look at one step. Raises Violation."""
    after, event, now = step.after, step.event, step.now
    try:
        check_invariants(after, now)
    except AssertionError as error:
        raise Violation("machine consistent", f"{step.where}: {error}") from error
    name = getattr(event, "component", None)
    member = None if name is None else step.before.members.get(name)
    kind = type(event).__name__
    observer.state_events[(member.state.state.value if member is not None else step.before.phase.value, kind)] += 1
    replayed = observer.steps % REPLAYED_STEPS == 0 or isinstance(event, Exited)
    if replayed and core.step(step.before, event, now) != (after, step.actions):
        raise Violation("identical", f"{step.where}: {kind}")
    for action in step.actions:
        if isinstance(action, Log) and action.event == "component.probe_failed":
            _check_silence(step, action)
    if len(step.actions) > MAX_ACTIONS:
        raise Violation("bounded", f"{step.where}: {len(step.actions)} actions in one step")
    _check_generation(step)
    _note(observer, step)
    _check_members(step)
    if step.before.writeback is not after.writeback:
        _check_writes(step)
        _check_latches(observer, step)
    match event:
        case Tick():
            _check_time(step)
        case Exited():
            _check_delay(observer, step, event)
            _check_exit(observer, step, event)
        case FactsWriteFailed():
            if after.writeback.pending and after.writeback.retry_at_ns is None and not step.agent.effects.writing:
                raise Violation("writes are repeated", f"{step.where}: {len(after.writeback.pending)} changes wait")
        case SpawnFailed() | PreStartDone():
            _check_delay(observer, step, event)
        case ConfigLoaded():
            _check_configuration(step)
            if step.before.spec is None:
                _check_takeover(observer, step)
        case _:
            pass
    if observer.steps % EXPLAINED_STEPS == 0:
        _check_explanations(step)


def _note(observer: Invariants, step: Step) -> None:
    event, seen = step.event, step.agent.seen
    match event:
        case Beat():
            key = (event.component, event.generation)
            seen.heard_ns[key] = step.now
            if event.epoch is not None:
                seen.epochs[key] = event.epoch
        case Command():
            observer.words.asked(step.agent, event)
            if event.verb in {Verb.START, Verb.RESTART}:
                seen.final.discard(event.component or "")
        case Booted():
            if event.facts.identity != step.identity:
                raise Violation("inherits nothing", f"{step.identity} begins with the facts of {event.facts.identity}")
            known = observer.released.get(step.identity, -1)
            observer.released[step.identity] = max(known, event.facts.released_epoch)
        case FactsWritten():
            facts = step.before.writeback.durable
            for item in step.before.writeback.pending:
                if item.seq <= event.seq:
                    if isinstance(item.change, Recommissioned | Undrained):
                        observer.released[step.identity] = facts.epoch_seen
                    facts = latches.apply(facts, item.change)
        case _:
            pass


def _check_silence(step: Step, action: Log) -> None:
    """See that silence is judged when three intervals are over: not before, and not later by another one."""
    name, agent = action.component or "", step.agent
    member = step.after.members.get(name)
    if member is None or "silent for" not in str(dict(action.fields).get("detail")):
        return
    heard_ns = agent.seen.heard_ns.get((name, member.state.generation))
    if heard_ns is None or max(agent.thawed_ns, agent.born_ns) > agent.world.now - 2 * SILENT_NS:
        return
    if step.now - heard_ns < SILENT_NS:
        raise Violation("patience", f"{name} on {step.where}: heard {step.now - heard_ns} ns ago")
    if step.now - heard_ns > SILENT_NS + PROMPT_NS:
        raise Violation("silence ends", f"{name} on {step.where}: heard {step.now - heard_ns} ns ago")


def _check_generation(step: Step) -> None:
    name, generation = getattr(step.event, "component", None), getattr(step.event, "generation", None)
    old = step.before.members.get(name) if isinstance(name, str) else None
    if (
        old is None
        or not isinstance(name, str)
        or generation is None
        or generation == old.state.generation
        or name not in step.after.members
    ):
        return
    due = old.condition_until_ns is not None and old.condition_until_ns <= step.now
    if not due and step.after.members[name].state != old.state:
        raise Violation("older generations", f"{name} on {step.where}: {type(step.event).__name__}")


# --- durable facts ----------------------------------------------------------------------------------------------


def _check_writes(step: Step) -> None:
    known = wb.target(step.before.writeback)
    for action in step.actions:
        if isinstance(action, WriteFacts) and not isinstance(step.event, Tick | Command) and action.facts == known:
            raise Violation("needless write", f"{step.where}: {type(step.event).__name__}")


def _check_latches(observer: Invariants, step: Step) -> None:
    old, new = step.before.in_force, step.after.in_force
    latch = new.controller_latch
    if latch is not None and (latch.epoch or 0) <= observer.released.get(step.identity, -1):
        raise Violation("last word", f"{step.where}: epoch {latch.epoch} was released and latches again")
    # A mapped exit status latches at the epoch that the run stated before: that one may have been of another word.
    if latch is not None and latch != old.controller_latch and not isinstance(step.event, Exited | Booted):
        decided = step.agent.host.cluster.decided.get((step.identity, latch.epoch or 0))
        completed = decided is HostState.DRAINING and latch.state == HostState.DRAINED.value
        if decided is not None and latch.state != decided.value and not completed:
            raise Violation(
                "controller's word", f"{step.where}: {latch.state} under epoch {latch.epoch}, not {decided.value}"
            )
    if isinstance(step.event, Booted) or old == new:
        return
    if _severity(new.operator_latch) < _severity(old.operator_latch) and not _released(step):
        raise Violation("latches apart", f"{step.where}: the operator's latch is gone without an operator's word")
    milder = _severity(latch) < _severity(old.controller_latch)
    if milder and not _released(step) and new.epoch_seen <= _epoch(old):
        raise Violation("latches apart", f"{step.where}: the controller's latch is gone under the same epoch")
    host, ended = step.agent.host, (HostState.DRAINING, HostState.DRAINED)
    if (latches.host_state(old), latches.host_state(new)) == ended and host.jobs() and not host.forgot_removed:
        raise Violation("drained means empty", f"{step.where}: {len(host.jobs())} jobs")


def _released(step: Step) -> bool:
    """Tell whether an operator's release became durable in this step."""
    event = step.event
    return isinstance(event, FactsWritten) and any(
        item.seq <= event.seq and isinstance(item.change, Recommissioned | Undrained)
        for item in step.before.writeback.pending
    )


def _severity(latch: Latch | None) -> int:
    return 0 if latch is None else list(HostState).index(HostState(latch.state))


def _epoch(facts: DurableFacts) -> int:
    return 0 if facts.controller_latch is None else facts.controller_latch.epoch or 0


# --- time, exits, takeovers -------------------------------------------------------------------------------------


def _check_time(step: Step) -> None:
    agent, after, now = step.agent, step.after, step.now
    wake_ns = core.next_wake_ns(after)
    if wake_ns is not None and wake_ns <= now:
        raise Violation("timer", f"{step.where}: wakes {now - wake_ns} ns ago")
    for name, old in step.before.members.items():
        deadline_ns = old.state.deadline_ns
        if old.state.state is State.STOPPING and deadline_ns is not None and now - deadline_ns > LATE_KILL_NS:
            late_s = (now - deadline_ns) / NS_PER_S
            raise Violation("patience", f"{name} on {step.where}: killed {late_s} s late, with no time after a stall")
    for name, (since_ns, stood_still_ns, timeout_ns) in agent.seen.stops.items():
        bound_ns = timeout_ns + agent.stood_still_ns - stood_still_ns + STOP_SLACK_NS
        if now - since_ns > bound_ns:
            raise Violation("stops end", f"{name} on {step.where}: SIGTERM was {(now - since_ns) / NS_PER_S} s ago")


def _check_delay(observer: Invariants, step: Step, event: Exited | SpawnFailed | PreStartDone) -> None:
    """See that the delay has not grown by more than the failures since the last run that went well."""
    old, new = step.before.members.get(event.component), step.after.members.get(event.component)
    run = None if old is None else old.state.run
    if old is None or new is None or run is None or old.state.generation != event.generation:
        return
    restart, key = old.spec.restart, (step.where, event.component)
    failed = observer.failed.get(key, 0)
    if isinstance(event, Exited) and step.now - run.started_ns >= restart.reset_after_ns:
        failed = 0
    failed += old.state.aim in {Aim.NONE, Aim.RETRY}
    observer.failed[key] = failed
    delay_ns = restart.initial_ns * restart.factor ** min(max(failed - 1, 0), 20)
    if new.state.state is State.BACKOFF and (new.state.deadline_ns or 0) > max(run.started_ns + delay_ns, step.now):
        raise Violation("backoff forgets", f"{event.component} on {step.where} waits for {failed} failures too long")


def _check_exit(observer: Invariants, step: Step, event: Exited) -> None:
    old = step.before.members.get(event.component)
    if old is None or old.state.run is None or old.state.generation != event.generation:
        return
    meaning = dict(old.spec.exit_status).get(event.status.code or 0)
    if meaning is ExitMeaning.HOLD and old.state.aim is Aim.NONE:
        step.agent.seen.final.add(event.component)
    epoch = step.agent.seen.epochs.get((event.component, event.generation))
    if event.status.code != REFUSED or epoch is None or epoch <= observer.released.get(step.identity, -1):
        return
    if epoch < step.before.in_force.epoch_seen:
        return  # a newer word is known: only this component is held
    if step.after.host_state is not HostState.DECOMMISSIONED:
        raise Violation("exit 79 latches", f"{step.where}: refused under epoch {epoch}")


def _check_configuration(step: Step) -> None:
    """See that a configuration changes what it names, and not whose host this is."""
    before, spec = step.before.spec, step.after.spec
    if spec is None:
        return
    if before is not None and spec.host.instance_id != before.host.instance_id:
        raise Violation("configuration holds", f"{step.where} became {spec.host.instance_id} in the middle of a boot")
    named = {one.name for one in spec.components}
    step.agent.seen.final &= named
    for name, member in step.after.members.items():
        if name not in named and member.state.want.up:
            raise Violation("configuration holds", f"{name} on {step.where} was removed and is wanted")


def _check_takeover(observer: Invariants, step: Step) -> None:
    for name in observer.final.pop(step.where, ()):
        member = step.after.members.get(name)
        if member is not None and member.state.hold is None:
            raise Violation("final exit", f"{name} on {step.where}: the next agent knows nothing of it")
    for name, (generation, spec) in observer.handed_over.pop(step.where, {}).items():
        wanted = next((one for one in step.agent.host.spec.components if one.name == name), None)
        if wanted != spec:
            continue  # it was configured otherwise in the meantime
        member = step.after.members.get(name)
        machine = None if member is None else member.state
        if member is not None and member.spec.run_while:
            # The fuse knows when the lease ends, whatever the agent was told of it.
            _, fuse_ns = step.agent.host.fuses.get(name, (0, 0))
            if fuse_ns + LEASE_MARGIN_NS - stop_budget_ns(member.spec) <= step.now:
                continue
        if machine is None or machine.run is None or machine.generation != generation or machine.aim is not Aim.NONE:
            raise Violation("takes over quietly", f"{name} on {step.where}, generation {generation}")


# --- components -------------------------------------------------------------------------------------------------


def _check_members(step: Step) -> None:
    """Note what is being stopped; see that no scheduler is kept under an old term."""
    stops = step.agent.seen.stops
    for name in [name for name in stops if name not in step.after.members]:
        del stops[name]
    for name, member in step.after.members.items():
        if member.state.state is not State.STOPPING:
            stops.pop(name, None)
        elif name not in stops or stops[name][0] != member.state.since_ns:
            # A stop under way keeps the time-out with which it began, whatever the configuration says now.
            stops[name] = member.state.since_ns, step.agent.stood_still_ns, member.spec.stop.timeout_ns
        if not member.spec.restart_on_change or member.state.run is None or member.state.aim is not Aim.NONE:
            continue
        process = step.agent.effects.handles.get((name, member.state.generation))
        fact = step.after.table.leased.get("controller.primary")
        if process is None or fact is None or not fact.value or not member.state.want.up:
            continue
        if process.term is not None and process.term < fact.term:
            raise Violation("terms", f"{name} on {step.where} goes on under term {process.term} of {fact.term}")


def _check_explanations(step: Step) -> None:
    for name, member in step.after.members.items():
        shown, holds = rule_of(member.state), _strongest(step, member)
        if shown.value != holds:
            raise Violation("ledger explains", f"{name} on {step.where}: shows {shown.value}, {holds} holds")
        if member.state.state is not State.RUNNING and member.state.ready is not True:
            continue
        process = step.agent.effects.handles.get((name, member.state.generation))
        if process is None or (not process.alive and not _will_hear(step.agent, name)):
            raise Violation("status is honest", f"{name} on {step.where} is shown as {member.state.state.value}")


def _will_hear(agent: Agent, name: str) -> bool:
    return any(isinstance(event, Exited) and event.component == name for event in agent.queue)


def _strongest(step: Step, member: Member) -> str:
    """Return the strongest rule that holds, from the facts alone."""
    node, spec, machine = step.after, member.spec, member.state
    host, holds = node.host_state, {"configured"}
    if host is HostState.DECOMMISSIONED and "host.decommissioned" in spec.stop_when:
        holds.add("decommissioned")
    if node.phase is NodePhase.STOPPING:
        holds.add("node-stopping")
    left = host in {HostState.DRAINED, HostState.DECOMMISSIONED} or spec.name in node.drain_done
    if drain_of(spec) is not None and host is not HostState.ACTIVE and left:
        holds.add("drained")
    if any(hold.component == spec.name for hold in node.in_force.holds):
        holds.add("operator-hold")
    if not _met(step, member):
        holds.add("condition")
    if machine.run is None:
        if machine.hold is not None:
            holds.add("exit-hold")
        if any(name not in node.members or node.members[name].state.ready is not True for name in spec.after):
            holds.add("dependency")
        if node.in_force.maintenance is not None and not machine.forced:
            holds.add("maintenance")
        if machine.state is State.BACKOFF:
            holds.add("backoff")
    return next(rule for rule in PRECEDENCE if rule in holds)


def _met(step: Step, member: Member) -> bool:
    """Tell whether the leased facts that a component depends on hold for long enough."""
    for name in member.spec.run_while:
        fact = step.after.table.leased.get(name)
        if fact is None or not fact.value or step.now >= fact.valid_until_ns - stop_budget_ns(member.spec):
            return False
    return True


assert len(PRECEDENCE) == len(Rule), "every rule has its place"
