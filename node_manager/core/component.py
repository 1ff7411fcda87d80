"""One component: `step(spec, state, event, now) -> (state, actions)`.

The node decides *whether* a component should run (`Want`, from the ledger); this machine decides *how* to get there.
A run passes through STARTING, RUNNING, STOPPING and KILLING; between runs it is STOPPED, BACKOFF, EXITED or FAILED.
Whatever arrives in between is kept as data (`state.want`, `aim`, `forced`) and looked at when the run has ended, so
that a stop or a start asked for during any transition is never lost.
"""

from typing import assert_never

from node_manager.core import backoff, probes
from node_manager.core import run as runs
from node_manager.core.actions import Action, EndRun, RunPreStart, RunProbe, SendLevels, Spawn
from node_manager.core.changed import replace
from node_manager.core.events import (
    Beat,
    EvidenceTaken,
    Found,
    FuseLost,
    HeartbeatClosed,
    Looked,
    Notified,
    PreStartDone,
    ProbeDone,
    Spawned,
    SpawnFailed,
    Stalled,
    Tick,
    TreeEmpty,
)
from node_manager.core.happenings import (
    Adopted,
    ComponentEvent,
    Gone,
    RestartAsked,
    RunEvent,
    StartAsked,
    Updated,
    Wanted,
)
from node_manager.core.intent import Want
from node_manager.core.run import Phase, Run
from node_manager.core.spec import NS_PER_S, ComponentSpec
from node_manager.core.states import WATCHED, Aim, ComponentState, State, describe_exit, jobs_of
from node_manager.core.watch import Watcher

_WAS_ENDING = "it was ending when the agent began"


def step(
    spec: ComponentSpec, state: ComponentState, event: ComponentEvent, now: int
) -> tuple[ComponentState, tuple[Action, ...]]:
    """Return the component after `event`, and what is to be done. Total: every pair of state and event is defined."""
    turn = _Turn(spec, state, now)
    turn.take(event)
    turn.settle_readiness()
    turn.settle_verdict()
    return turn.state, tuple(turn.actions)


class _Turn(Watcher):
    """The work of one step."""

    __slots__ = ()

    def take(self, event: ComponentEvent) -> None:
        # The classes are asked in this order: what comes often stands first.
        match event:
            case (
                Beat() | ProbeDone() | Notified() | Spawned() | SpawnFailed() | PreStartDone() | Gone() | TreeEmpty()
                | HeartbeatClosed() | Looked() | EvidenceTaken() | FuseLost()
            ):  # fmt: skip
                if self.state.run is not None and event.generation == self.state.generation:
                    self.of_this_run(self.state.run, event)
            case Tick():
                self.tick()
            case Wanted():
                self.wanted(event.want)
            case StartAsked():
                self.start_asked()
            case RestartAsked():
                self.restart_asked(event)
            case Adopted():
                self.adopted(event.found)
            case Updated():
                self.updated(event.old)
            case Stalled():
                self.stalled(event)
            case _ as never:
                assert_never(never)

    def of_this_run(self, run: Run, event: RunEvent) -> None:
        match event:
            # What a process says before its spawn was answered counts: it may say hello within microseconds.
            case Beat() if run.phase is Phase.LIVE or run.phase is Phase.SPAWN:
                if event.interval_ns is not None and event.interval_ns != run.interval_ns:
                    # The next agent has to know it: the record is kept when something is to be done.
                    self.actions.append(SendLevels(component=self.spec.name))
                self.judge(runs.heard(run, event, self.now))
            case ProbeDone() if run.phase is Phase.LIVE:
                self.judge(runs.answered(self.spec, run, event), before=run)
            case Notified() if run.phase is Phase.LIVE or run.phase is Phase.SPAWN:
                self.extend(run, event.extend_ns)
                self.judge(runs.notified(run, event, self.now))
            case Looked():
                self.judge(self.looked(run, event))
            case EvidenceTaken():
                self.judge(self.evidence_taken(run, event))
            case Spawned() if run.phase is Phase.SPAWN:
                self.spawned(run, event)
            case SpawnFailed() if run.phase is Phase.SPAWN:
                self.could_not_start(run, event.reason, event.jitter)
            case FuseLost() if run.phase is Phase.LIVE or run.phase is Phase.SPAWN:
                self.fuse_lost(event)
            case PreStartDone() if run.phase is Phase.CHECK:
                self.checked(run, event)
            case Gone() if run.phase is Phase.LIVE or run.phase is Phase.SPAWN:
                self.gone(run, event)
            case TreeEmpty() if run.phase is Phase.TREE:
                self.state = replace(self.state, litter=False, last_jobs=None, run=replace(run, jobs=None))
                self.end_run()
            case _:
                # A late answer of a phase that is over, or a closed connection: silence is what counts, not closing.
                pass

    # --- what is asked of it ------------------------------------------------------------------------------------

    def wanted(self, want: Want) -> None:
        self.note_want(want)
        run = self.state.run
        if run is None:
            self.rest()
            return
        if want.up or want.held:
            self.follow_lease(run, want)
            self.act_on_probes()
        else:
            self.stop(Aim.DOWN, want.reason)

    def note_want(self, want: Want) -> None:
        if want.rule is not self.state.want.rule or want.up is not self.state.want.up:
            self.state = replace(self.state, want_since_ns=self.now)
        self.state = replace(self.state, want=want, forced=self.state.forced and want.up)

    def follow_lease(self, run: Run, want: Want) -> None:
        """Keep the run's last instant up to date, and end it where a term has changed that it was started under."""
        if want.lease is None:
            self.set_run(replace(run, lease_until_ns=None))
        elif run.phase is Phase.SPAWN or run.phase is Phase.LIVE:
            changed = _changed_terms(self.spec, run.terms, want.lease.terms)
            if changed is None:
                self.set_run(replace(run, lease_until_ns=want.lease.valid_until_ns))
            elif self.state.aim is Aim.NONE:
                # The stop stays bound by the lease of the old term.
                self.stop(Aim.RESTART, changed)

    def start_asked(self) -> None:
        self.state = replace(
            self.state,
            forced=self.state.want.up,
            hold=None,
            gave_up=None,
            starts=(),
            failures=0,
            not_before_ns=self.now,
        )
        if self.state.run is None:
            self.rest()
        elif not self.is_ending():
            self.state = replace(self.state, forced=False)

    def is_ending(self) -> bool:
        run = self.state.run
        return run is not None and (self.state.aim is not Aim.NONE or run.phase is Phase.TREE)

    def restart_asked(self, event: RestartAsked) -> None:
        run = self.state.run
        if event.manual and (run is None or self.is_ending()):
            self.start_asked()
        elif run is None:
            # Another command is another program: what the old one had earned is forgotten.
            self.state = replace(self.state, failures=0, starts=(), gave_up=None, not_before_ns=self.now)
            self.rest()
        elif self.state.want.up and self.state.aim is Aim.NONE:
            # What is ended to be started again is started again: maintenance does not make a stop of it.
            self.state = replace(self.state, forced=True, failures=0, starts=())
            self.stop(Aim.RESTART, event.reason)

    def fuse_lost(self, event: FuseLost) -> None:
        """End what nothing guards any more; the next start has a fuse, or is none."""
        if self.state.aim is Aim.NONE:
            self.stop(Aim.RETRY, f"its fuse, which guards the end of its lease, was lost: {event.reason}")

    def updated(self, old: ComponentSpec) -> None:
        run, restart = self.state.run, self.spec.restart
        self.state = replace(self.state, starts=backoff.recent(restart, self.state.starts, self.now))
        if run is None:
            if restart != old.restart:
                self.state = replace(self.state, gave_up=None)
            self.rest()
        elif run.phase is Phase.LIVE:
            self.judge(runs.rearm(old, self.spec, run, self.now))

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
            # What it was before is believed until it is heard again: it owes the new agent no second READY=1.
            said_ready=found.ready,
            notify_ready=True if found.ready else None,
            # What it promised holds on: one that hangs since before this agent must not be waited for for ever.
            interval_ns=found.interval_ns,
            last_beat_ns=None if found.interval_ns is None else self.now + runs.RECONNECT_NS,
            watchdog_ns=found.watchdog_ns,
            last_watchdog_ns=None if found.watchdog_ns is None else self.now,
        )
        self.state = replace(
            self.state, generation=found.generation, restarts=found.restarts, failures=found.failures, run=run
        )
        # The probes begin as in a new run, but nobody listened until now: the time to say hello counts from here.
        run = runs.begin(self.spec, run, self.now)
        if run.startup is not None and self.spec.startup is not None:
            deadline_ns = probes.startup_deadline_ns(self.spec.startup, self.now)
            run = replace(run, startup=probes.wait_until(self.spec.startup, run.startup, deadline_ns))
        if found.ready and run.readiness is not None:
            run = replace(run, readiness=replace(run.readiness, verdict=True, detail="ready when it was adopted"))
        self.set_run(run)
        self.log("component.adopted", role=self.spec.role, generation=found.generation, pid=found.pid)
        if found.dying:
            # As if it had ended already: started again when it is gone. But gone it must be, whatever the kill scope.
            self.state = replace(self.state, aim=Aim.RESTART, ending=_WAS_ENDING)
            self.kill(f"{_WAS_ENDING} and is still there")
        else:
            self.enter(State.RUNNING if run.passed_startup else State.STARTING, "adopted")
            self.state = replace(self.state, since_ns=found.started_ns)
            self.act_on_probes()
        if not self.state.want.up and not self.state.want.held:
            self.stop(Aim.DOWN, self.state.want.reason)

    # --- a run begins ---------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Decide what follows while there is no run: the one place where a component is started."""
        state, want = self.state, self.state.want
        if self.must_clear():
            self.clear_tree(Run(phase=Phase.TREE, started_ns=self.now), "clearing what an earlier run left behind")
        elif not want.up:
            self.idle(State.STOPPED, want.reason)
        elif state.hold is not None:
            self.idle(State.EXITED, state.hold)
        elif state.gave_up is not None:
            self.idle(State.FAILED, state.gave_up)
        elif want.waits is not None:
            self.idle(State.STOPPED, want.waits.reason)
        elif not state.forced and self.now < state.not_before_ns:
            self.idle(State.BACKOFF, state.last_exit or "waits")
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
            ending="",
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
        run = replace(run, phase=Phase.SPAWN, started_ns=self.now)
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
        if self.state.aim is not Aim.NONE or not self.state.want.up or self.must_clear():
            self.end_run()
        elif event.ok:
            self.spawn()
        else:
            self.could_not_start(run, f"pre_start failed: {event.detail}", event.jitter)

    def could_not_start(self, run: Run, reason: str, jitter: int) -> None:
        if self.state.aim is Aim.NONE:
            self.state = replace(self.state, last_exit=reason, crashes=self.state.crashes + 1)
            self.count_failure(run, jitter)
        else:
            self.state = replace(self.state, last_exit=f"{self.state.ending}; {reason}")
        self.end_run()

    def spawned(self, run: Run, event: Spawned) -> None:
        run = runs.begin(self.spec, replace(run, phase=Phase.LIVE, pid=event.pid), self.now)
        self.set_run(run)
        self.log("component.spawned", role=self.spec.role, generation=event.generation, pid=event.pid)
        if self.state.aim is not Aim.NONE:
            self.signal_stop(run, self.state.reason)
            return
        if run.passed_startup:
            self.enter(State.RUNNING, "running")
        self.act_on_probes()

    # --- a run is judged ------------------------------------------------------------------------------------------

    def act_on_probes(self) -> None:
        """Judge the run as it is, where there is one."""
        if self.state.run is not None:
            self.judge(self.state.run)

    def judge(self, run: Run, *, before: Run | None = None) -> None:
        """Remember the run after what was heard, as its probes judge it now, and act on that.

        `before` is the run before an answer that is in it already; None: nothing was answered.
        """
        if run.phase is not Phase.LIVE or self.state.state not in WATCHED:
            self.set_run(run)
            return
        known = runs.failed(self.spec, before or run)
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
        if failed is not None and known is None:
            self.log("component.probe_failed", probe=failed[0].value, detail=failed[2].detail, pid=run.pid)
        self.watch(run, failed)

    def settle_readiness(self) -> None:
        state, run = self.state, self.state.run
        running = state.state is State.RUNNING and run is not None
        ready = False if run is None else runs.ready(self.spec, run, running=running)
        if ready is state.ready:
            return
        self.state = replace(state, ready=ready)
        self.log("component.readiness_changed", ready=ready, generation=state.generation)

    def stalled(self, event: Stalled) -> None:
        run = self.state.run
        if run is None:
            return
        run = runs.stalled(run, event.duration_ns, self.now)
        self.set_run(run)
        self.put_off(run, event.duration_ns)
        self.act_on_probes()

    # --- a run ends -----------------------------------------------------------------------------------------------

    def gone(self, run: Run, event: Gone) -> None:
        if event.want is not None:
            self.note_want(event.want)
        how = describe_exit(event.status, oom=event.oom)
        asked = self.state.aim is not Aim.NONE
        self.state = replace(self.state, last_exit=f"{self.state.ending}; {how}" if asked else how)
        self.log("component.exited", how=how, generation=event.generation, pid=run.pid, asked=asked)
        if event.hold is not None and not self.state.forced:
            # A start that was asked for while this run was ending is the later word.
            self.state = replace(self.state, hold=event.hold, hold_since_ns=self.now)
        # A run that lasted is forgotten for, also where it was ended and did not fail.
        failures = backoff.remembered(
            self.spec.restart, failures=self.state.failures, started_ns=run.started_ns, ended_ns=self.now
        )
        self.state = replace(self.state, failures=failures)
        if self.state.aim in {Aim.NONE, Aim.RETRY}:
            self.count_failure(run, event.jitter)
            if self.state.want.up and event.hold is None:
                self.state = replace(self.state, crashes=self.state.crashes + 1)
        elif self.state.aim is Aim.RESTART:
            self.state = replace(self.state, not_before_ns=self.now)
        self.actions.append(EndRun(component=self.spec.name, generation=self.state.generation))
        self.state = replace(self.state, litter=event.left != 0)
        if event.left == 0 and self.state.state is State.KILLING and self.clears_tree():
            # SIGKILL went to everything, and nothing is left: so much for its jobs.
            run = replace(run, jobs=None)
            self.state = replace(self.state, run=run, last_jobs=None)
        if self.must_clear():
            self.clear_tree(run, f"{how}; clearing what it left behind")
        else:
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
        last_jobs = jobs_of(self.state)
        self.state = replace(self.state, run=None, aim=Aim.NONE, deadline_ns=None, stop_by_ns=None, last_jobs=last_jobs)
        self.rest()

    # --- time -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        at, state = self.state.deadline_ns, self.state.state
        if at is None or self.now < at:
            self.act_on_probes()
        elif state is State.BACKOFF:
            self.rest()
        elif state is State.STOPPING:
            self.kill(f"{self.state.reason}; did not stop in time")
        else:
            assert state is State.KILLING, "no other state has a deadline"
            self.kill_again()


def _changed_terms(
    spec: ComponentSpec, old: tuple[tuple[str, int], ...], new: tuple[tuple[str, int], ...]
) -> str | None:
    before, after = dict(old), dict(new)
    for name in spec.restart_on_change:
        fact = name.removesuffix(".term")
        if before.get(fact) != after.get(fact):
            return f"{name} changed from {before.get(fact, 'unknown')} to {after.get(fact, 'unknown')}"
    return None
