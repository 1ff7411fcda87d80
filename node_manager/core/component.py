"""One component: `step(spec, state, event, now) -> (state, actions)`.

The node decides *whether* a component should run (`Want`, from the ledger); this machine decides *how* to get there.
A run passes through STARTING, RUNNING, STOPPING and KILLING; between runs it is STOPPED, BACKOFF, EXITED or FAILED.
Whatever arrives in between is kept as data (`state.want`, `aim`, `forced`) and looked at when the run has ended, so
that a stop or a start asked for during any transition is never lost.
"""

from dataclasses import dataclass, replace
from typing import assert_never

from node_manager.core import backoff
from node_manager.core import run as runs
from node_manager.core.actions import (
    Action,
    CancelPreStart,
    EndRun,
    KillTree,
    Log,
    RunPreStart,
    RunProbe,
    Signal,
    Spawn,
)
from node_manager.core.events import (
    Beat,
    ExitStatus,
    Found,
    HeartbeatClosed,
    Notified,
    PreStartDone,
    ProbeDone,
    Spawned,
    SpawnFailed,
    Stalled,
    Tick,
    TreeEmpty,
)
from node_manager.core.intent import Want
from node_manager.core.run import Phase, Run
from node_manager.core.spec import LEASE_MARGIN_NS, NS_PER_S, ComponentSpec, KillScope
from node_manager.core.states import TRANSITIONS, WATCHED, Aim, ComponentState, State, describe_exit, rule_of

SIGKILL = 9
UNKILLABLE_RECHECK_NS = 5 * NS_PER_S
"""How often SIGKILL is repeated on what survived it (uninterruptible sleep): often enough to see it end."""
MAX_EXTENSION_NS = 600 * NS_PER_S
"""Bound on all EXTEND_TIMEOUT_USEC of one stop together: a stop ends, however hopeful the component is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The ledger's ruling for this component has changed."""

    want: Want


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAsked:
    """An operator asks for a start; the node has checked that no rule forbids it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartAsked:
    """End this run and begin another at once."""

    reason: str
    manual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """The main process is reaped. `hold` is set where its exit status means that it is not to be started again."""

    generation: int
    status: ExitStatus
    left: int | None = None
    jitter: int = 0
    oom: bool = False
    hold: str | None = None
    want: Want | None = None
    """The ledger's ruling at this very instant: the exit itself may have changed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A process of an earlier agent is taken into charge."""

    found: Found


ComponentEvent = (
    Wanted
    | StartAsked
    | RestartAsked
    | Adopted
    | Spawned
    | SpawnFailed
    | PreStartDone
    | Gone
    | TreeEmpty
    | ProbeDone
    | Beat
    | HeartbeatClosed
    | Notified
    | Stalled
    | Tick
)


def step(
    spec: ComponentSpec, state: ComponentState, event: ComponentEvent, now: int
) -> tuple[ComponentState, tuple[Action, ...]]:
    """Return the component after `event`, and what is to be done. Total: every pair of state and event is defined."""
    turn = _Turn(spec, state, now)
    turn.take(event)
    turn.settle_readiness()
    return turn.state, tuple(turn.actions)


class _Turn:
    """The work of one step: the state so far and the actions so far. It lives for one call."""

    def __init__(self, spec: ComponentSpec, state: ComponentState, now: int) -> None:
        self.spec = spec
        self.state = state
        self.now = now
        self.actions: list[Action] = []

    def take(self, event: ComponentEvent) -> None:
        match event:
            case Wanted():
                self.wanted(event.want)
            case StartAsked():
                self.start_asked()
            case RestartAsked():
                self.restart_asked(event)
            case Adopted():
                self.adopted(event.found)
            case Stalled():
                self.stalled(event)
            case Tick():
                self.tick()
            case (
                Spawned() | SpawnFailed() | PreStartDone() | Gone() | TreeEmpty()
                | ProbeDone() | Beat() | HeartbeatClosed() | Notified()
            ):  # fmt: skip
                if self.state.run is not None and event.generation == self.state.generation:
                    self.of_this_run(self.state.run, event)
            case _ as never:
                assert_never(never)

    def of_this_run(
        self,
        run: Run,
        event: Spawned | SpawnFailed | PreStartDone | Gone | TreeEmpty | ProbeDone | Beat | HeartbeatClosed | Notified,
    ) -> None:
        match event:
            case Spawned() if run.phase is Phase.SPAWN:
                self.spawned(run, event)
            case SpawnFailed() if run.phase is Phase.SPAWN:
                self.could_not_start(run, event.reason, event.jitter)
            case PreStartDone() if run.phase is Phase.CHECK:
                self.checked(run, event)
            case Gone() if run.phase is Phase.LIVE or run.phase is Phase.SPAWN:
                self.gone(run, event)
            case TreeEmpty() if run.phase is Phase.TREE:
                self.end_run()
            case ProbeDone() if run.phase is Phase.LIVE:
                self.set_run(runs.answered(self.spec, run, event))
                self.act_on_probes()
            case Beat() if run.phase is Phase.LIVE:
                self.set_run(runs.heard(run, event, self.now))
                self.act_on_probes()
            case Notified() if run.phase is Phase.LIVE:
                self.set_run(runs.notified(run, event, self.now))
                self.extend(event.extend_ns)
                self.act_on_probes()
            case _:
                # A late answer of a phase that is over, or a closed connection: silence is what counts, not closing.
                pass

    # --- what is asked of it ------------------------------------------------------------------------------------

    def wanted(self, want: Want) -> None:
        self.note_want(want)
        run = self.state.run
        if run is None:
            self.rest()
        elif want.up:
            self.follow_lease(run, want)
            self.act_on_probes()
        elif not want.held:
            self.stop(Aim.DOWN, want.reason)

    def note_want(self, want: Want) -> None:
        if want.rule is not self.state.want.rule or want.up is not self.state.want.up:
            self.state = replace(self.state, want_since_ns=self.now)
        self.state = replace(self.state, want=want, forced=self.state.forced and want.up)

    def follow_lease(self, run: Run, want: Want) -> None:
        if want.lease is None or run.phase not in {Phase.SPAWN, Phase.LIVE}:
            return
        if want.lease.terms == run.terms:
            later = max(run.lease_until_ns or 0, want.lease.valid_until_ns)
            self.set_run(replace(run, lease_until_ns=later))
            return
        changed = _changed_terms(self.spec, run.terms, want.lease.terms)
        if changed and self.state.aim is Aim.NONE:
            self.stop(Aim.RESTART, changed)

    def start_asked(self) -> None:
        self.state = replace(
            self.state, forced=True, hold=None, gave_up=None, starts=(), failures=0, not_before_ns=self.now
        )
        if self.state.run is None:
            self.rest()
        elif not self.is_ending():
            self.state = replace(self.state, forced=False)

    def is_ending(self) -> bool:
        run = self.state.run
        return run is not None and (self.state.aim is not Aim.NONE or run.phase is Phase.TREE)

    def restart_asked(self, event: RestartAsked) -> None:
        if event.manual and (self.state.run is None or self.is_ending()):
            self.start_asked()
        elif self.state.run is not None and self.state.want.up and self.state.aim is Aim.NONE:
            if event.manual:
                self.state = replace(self.state, failures=0, starts=())
            self.stop(Aim.RESTART, event.reason)

    def adopted(self, found: Found) -> None:
        if self.state.run is not None or self.state.state is not State.STOPPED:
            return
        run = Run(
            phase=Phase.LIVE,
            started_ns=found.started_ns,
            pid=found.pid,
            adopted=True,
            terms=found.terms,
            lease_until_ns=found.lease_until_ns,
            passed_startup=found.started_before,
        )
        self.state = replace(
            self.state, generation=found.generation, restarts=found.restarts, failures=found.failures, run=run
        )
        # The probes begin as in a new run; what it was before is believed until they answer.
        run = runs.begin(self.spec, run, self.now)
        if found.ready and run.readiness is not None:
            run = replace(run, readiness=replace(run.readiness, verdict=True, detail="ready when it was adopted"))
        self.set_run(run)
        self.actions.append(Log(event="component.adopted", component=self.spec.name, fields=(("pid", found.pid),)))
        self.enter(State.RUNNING if run.passed_startup else State.STARTING, "adopted")
        self.act_on_probes()

    # --- a run begins ---------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Decide what follows while there is no run: the one place where a component is started."""
        state, want = self.state, self.state.want
        if not want.up:
            self.idle(State.STOPPED, want.reason)
        elif state.hold is not None:
            self.idle(State.EXITED, state.hold)
        elif state.gave_up is not None:
            self.idle(State.FAILED, state.gave_up)
        elif want.waits is not None:
            self.idle(State.STOPPED, want.waits.reason)
        elif not state.forced and self.now < state.not_before_ns:
            self.idle(State.BACKOFF, state.reason if state.state is State.BACKOFF else self.ended_reason())
            self.state = replace(self.state, deadline_ns=state.not_before_ns)
        elif not state.forced and backoff.limit_reached(self.spec.restart, state.starts, self.now):
            window_s = self.spec.restart.limit_window_ns / NS_PER_S
            gave_up = f"{len(state.starts)} starts within {window_s:g} s: the configured limit"
            self.state = replace(state, gave_up=gave_up)
            self.idle(State.FAILED, gave_up)
        else:
            self.begin_run()

    def idle(self, new: State, reason: str) -> None:
        self.state = replace(self.state, deadline_ns=None, stop_by_ns=None, aim=Aim.NONE)
        self.enter(new, reason)

    def begin_run(self) -> None:
        starts = backoff.recent(self.spec.restart, (*self.state.starts, self.now), self.now)
        restarts = self.state.restarts + (1 if self.state.generation > 0 else 0)
        phase = Phase.SPAWN if self.spec.pre_start is None else Phase.CHECK
        self.state = replace(
            self.state,
            generation=self.state.generation + 1,
            run=Run(phase=phase, started_ns=self.now),
            aim=Aim.NONE,
            deadline_ns=None,
            stop_by_ns=None,
            forced=False,
            starts=starts,
            restarts=restarts,
        )
        if self.spec.pre_start is None:
            self.enter(State.STARTING, "starting")
            self.spawn()
            return
        self.enter(State.STARTING, "checking before the start")
        self.actions.append(
            RunPreStart(
                component=self.spec.name,
                generation=self.state.generation,
                spec=self.spec,
                command=self.spec.pre_start,
            )
        )

    def spawn(self) -> None:
        run, lease = self.state.run, self.state.want.lease
        assert run is not None
        run = replace(run, phase=Phase.SPAWN)
        if lease is not None:
            run = replace(run, terms=lease.terms, lease_until_ns=lease.valid_until_ns)
        self.set_run(run)
        self.actions.append(
            Spawn(
                component=self.spec.name,
                generation=self.state.generation,
                spec=self.spec,
                term=None if lease is None else lease.terms[0][1],
                lease_valid_until_ns=None if lease is None else lease.valid_until_ns,
                not_after_ns=None if lease is None else lease.not_after_ns,
            )
        )

    def checked(self, run: Run, event: PreStartDone) -> None:
        if self.state.aim is not Aim.NONE or not self.state.want.up:
            self.end_run()
        elif event.ok:
            self.spawn()
        else:
            self.could_not_start(run, f"pre_start failed: {event.detail}", event.jitter)

    def could_not_start(self, run: Run, reason: str, jitter: int) -> None:
        self.state = replace(self.state, last_exit=reason)
        self.count_failure(run, jitter)
        self.end_run()

    def spawned(self, run: Run, event: Spawned) -> None:
        run = runs.begin(self.spec, replace(run, phase=Phase.LIVE, pid=event.pid), self.now)
        self.set_run(run)
        fields = (("generation", event.generation), ("pid", event.pid))
        self.actions.append(Log(event="component.spawned", component=self.spec.name, fields=fields))
        if self.state.aim is not Aim.NONE or (not self.state.want.up and not self.state.want.held):
            aim, reason = self.state.aim, self.state.reason
            if aim is Aim.NONE:
                aim, reason = Aim.DOWN, self.state.want.reason
            self.state = replace(self.state, aim=Aim.NONE)
            self.stop(aim, reason)
            return
        if run.passed_startup:
            self.enter(State.RUNNING, "running")
        if self.state.want.up:
            self.follow_lease(run, self.state.want)
        self.act_on_probes()

    # --- a run is judged ------------------------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        self.state = replace(self.state, run=run)

    def act_on_probes(self) -> None:
        run = self.state.run
        if run is None or run.phase is not Phase.LIVE or self.state.state not in WATCHED:
            return
        before = runs.failed(self.spec, run)
        run = runs.judge(self.spec, run, self.now)
        if self.state.state is State.STARTING and runs.startup_passed(run):
            run = runs.after_startup(self.spec, run, self.now)
            self.enter(State.RUNNING, "running")
        run, due = runs.due(self.spec, run, self.now)
        self.set_run(run)
        for kind, probe in due:
            self.actions.append(
                RunProbe(
                    component=self.spec.name,
                    generation=self.state.generation,
                    probe=kind,
                    spec=self.spec,
                    check=probe,
                )
            )
        failed = runs.failed(self.spec, run)
        if failed is not None and before is None:
            fields = (("probe", failed[0].value), ("detail", failed[2].detail), ("pid", run.pid))
            self.actions.append(Log(event="component.probe_failed", component=self.spec.name, fields=fields))
        why = runs.must_restart(self.spec, run)
        if why is not None and self.state.want.up and not self.state.want.patient:
            self.stop(Aim.RETRY, why)

    def settle_readiness(self) -> None:
        state, run = self.state, self.state.run
        running = state.state is State.RUNNING and run is not None
        ready = False if run is None else runs.ready(self.spec, run, running=running)
        if ready is state.ready:
            return
        self.state = replace(state, ready=ready)
        fields = (("ready", ready), ("generation", state.generation))
        self.actions.append(Log(event="component.readiness_changed", component=self.spec.name, fields=fields))

    def stalled(self, event: Stalled) -> None:
        run, deadline_ns, stop_by_ns = self.state.run, self.state.deadline_ns, self.state.stop_by_ns
        if run is None:
            return
        self.set_run(runs.stalled(run, event.duration_ns))
        if self.state.state is State.STOPPING and deadline_ns is not None and stop_by_ns is not None:
            # It could not be heard leaving. `hurry` takes back what a lease does not allow.
            self.state = replace(
                self.state, deadline_ns=deadline_ns + event.duration_ns, stop_by_ns=stop_by_ns + event.duration_ns
            )
            self.hurry(run, self.state.reason)
        self.act_on_probes()

    # --- a run ends -----------------------------------------------------------------------------------------------

    def stop(self, aim: Aim, reason: str) -> None:
        run = self.state.run
        assert run is not None
        if self.state.aim is not Aim.NONE:
            if aim is Aim.DOWN:
                self.state = replace(self.state, aim=Aim.DOWN)
                self.hurry(run, reason)
            return
        self.state = replace(self.state, aim=aim)
        if run.phase is Phase.CHECK or run.phase is Phase.SPAWN:
            # There is no process to signal yet; the answer that is under way ends it.
            self.state = replace(self.state, reason=reason)
        if run.phase is Phase.CHECK:
            self.actions.append(CancelPreStart(component=self.spec.name, generation=self.state.generation))
        elif run.phase is Phase.LIVE:
            timeout_ns = self.spec.stop.timeout_ns
            self.state = replace(
                self.state, deadline_ns=self.now + timeout_ns, stop_by_ns=self.now + timeout_ns + MAX_EXTENSION_NS
            )
            self.enter(State.STOPPING, reason)
            self.actions.append(
                Signal(component=self.spec.name, generation=self.state.generation, signal=self.spec.stop.signal)
            )
            self.hurry(run, reason)

    def hurry(self, run: Run, reason: str) -> None:
        """Bring SIGKILL forward where a lease or the node leaves less time than the stop's own time-out."""
        deadline_ns = self.state.deadline_ns
        if self.state.state is not State.STOPPING or deadline_ns is None:
            return
        if self.state.want.kill:
            deadline_ns = self.now
        if run.lease_until_ns is not None:
            deadline_ns = min(deadline_ns, run.lease_until_ns - self.spec.stop.kill_timeout_ns - LEASE_MARGIN_NS)
        self.state = replace(self.state, deadline_ns=deadline_ns)
        if deadline_ns <= self.now:
            self.kill(reason)

    def extend(self, extend_ns: int | None) -> None:
        """Give a stop more time (EXTEND_TIMEOUT_USEC): never a leased component's, never beyond the bound."""
        state = self.state
        if extend_ns is None or state.state is not State.STOPPING or state.run is None or state.run.terms:
            return
        if state.deadline_ns is None or state.stop_by_ns is None or state.want.kill:
            return
        later = min(self.now + extend_ns, state.stop_by_ns)
        self.state = replace(state, deadline_ns=max(state.deadline_ns, later))

    def kill(self, reason: str) -> None:
        self.state = replace(self.state, deadline_ns=self.now + self.spec.stop.kill_timeout_ns)
        self.enter(State.KILLING, reason)
        self.send_kill()

    def send_kill(self) -> None:
        name, generation = self.spec.name, self.state.generation
        run = self.state.run
        assert run is not None
        if self.clears_tree() or run.phase is Phase.TREE:
            self.actions.append(KillTree(component=name, generation=generation))
        else:
            self.actions.append(Signal(component=name, generation=generation, signal=SIGKILL))

    def clears_tree(self) -> bool:
        if self.spec.stop.kill_scope is KillScope.TREE:
            return True
        return self.state.want.clear_tree and not self.state.want.up

    def gone(self, run: Run, event: Gone) -> None:
        if event.want is not None:
            self.note_want(event.want)
        how = describe_exit(event.status, oom=event.oom)
        asked = self.state.aim is not Aim.NONE
        self.state = replace(self.state, last_exit=how)
        fields = (("how", how), ("generation", event.generation), ("pid", run.pid), ("asked", asked))
        self.actions.append(Log(event="component.exited", component=self.spec.name, fields=fields))
        if event.hold is not None:
            self.state = replace(self.state, hold=event.hold, hold_since_ns=self.now, forced=False)
        if self.state.aim in {Aim.NONE, Aim.RETRY}:
            self.count_failure(run, event.jitter)
        elif self.state.aim is Aim.RESTART:
            self.state = replace(self.state, not_before_ns=self.now)
        self.actions.append(EndRun(component=self.spec.name, generation=self.state.generation))
        if self.clears_tree() and event.left != 0:
            self.set_run(replace(run, phase=Phase.TREE))
            if self.state.state is not State.KILLING:
                self.enter(State.KILLING, f"{how}; clearing what it left behind")
            self.state = replace(self.state, deadline_ns=self.now + self.spec.stop.kill_timeout_ns)
            self.send_kill()
            return
        self.end_run()

    def count_failure(self, run: Run, jitter: int) -> None:
        failures, not_before_ns = backoff.after_run(
            self.spec.restart,
            failures=self.state.failures,
            started_ns=run.started_ns,
            ended_ns=self.now,
            jitter=jitter,
        )
        self.state = replace(self.state, failures=failures, not_before_ns=not_before_ns)

    def end_run(self) -> None:
        self.state = replace(self.state, run=None, aim=Aim.NONE, deadline_ns=None, stop_by_ns=None)
        self.rest()

    def ended_reason(self) -> str:
        return self.state.last_exit or "waits"

    # --- time -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        at = self.state.deadline_ns
        if at is not None and self.now >= at:
            match self.state.state:
                case State.BACKOFF:
                    self.rest()
                    return
                case State.STOPPING:
                    self.kill(f"{self.state.reason}; did not stop in time")
                    return
                case State.KILLING:
                    self.state = replace(self.state, deadline_ns=self.now + UNKILLABLE_RECHECK_NS)
                    self.enter(State.KILLING, "unkillable: SIGKILL was sent and it is still there")
                    self.send_kill()
                    return
                case State.STOPPED | State.STARTING | State.RUNNING | State.EXITED | State.FAILED:
                    # None of these sets a deadline: see `invariants.check_component`.
                    raise AssertionError(self.state.state)
                case _ as never:
                    assert_never(never)
        self.act_on_probes()

    # --- states ---------------------------------------------------------------------------------------------------

    def enter(self, new: State, reason: str) -> None:
        old = self.state.state
        if old is new and new is not State.STARTING:
            self.state = replace(self.state, reason=reason)
            return
        if (old, new) not in TRANSITIONS:
            raise AssertionError(old, new)
        self.state = replace(self.state, state=new, reason=reason, since_ns=self.now)
        fields = (
            ("old", old.value),
            ("new", new.value),
            ("reason", reason),
            ("rule", rule_of(self.state).value),
            ("generation", self.state.generation),
        )
        self.actions.append(Log(event="component.state_changed", component=self.spec.name, fields=fields))


def _changed_terms(
    spec: ComponentSpec, old: tuple[tuple[str, int], ...], new: tuple[tuple[str, int], ...]
) -> str | None:
    before, after = dict(old), dict(new)
    for name in spec.restart_on_change:
        fact = name.removesuffix(".term")
        if before.get(fact) != after.get(fact):
            return f"{name} changed from {before.get(fact, 'unknown')} to {after.get(fact, 'unknown')}"
    return None
