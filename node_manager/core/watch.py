"""Watching a late component: looks at its process, the verdict, and evidence before it is killed for it.

A component that is in time is not looked at. One that is late (a beat is missing, an active probe failed once) is: at
once, again when its probe has failed, then every few seconds. A failed probe ends the run only when a look from that
instant on has decided that it is not spared, and when evidence was taken, or could not be within its bound: so a kill
comes at most LOOK_WAIT_NS for each of two looks and EVIDENCE_WAIT_NS after the failure.
"""

from node_manager.core import run as runs
from node_manager.core.actions import LookAt, TakeEvidence
from node_manager.core.changed import replace
from node_manager.core.events import EvidenceTaken, Looked
from node_manager.core.ladder import Ladder
from node_manager.core.run import Failure, Phase, Run
from node_manager.core.spec import NS_PER_MS, NS_PER_S, HeartbeatCheck, KillScope, NotifyCheck, OnFailure, ProbeKind
from node_manager.core.states import WATCHED, Aim
from node_manager.core.wedge import LOOK_WAIT_NS, MIN_SPAN_NS, SPARED, Finding, Sample, Verdict, Watch, judge
from node_manager.core.words import span

RELOOK_NS = 5 * NS_PER_S
"""Between looks at what stays late: soon enough to see it go on, and nothing to notice for a host that is short."""
EVIDENCE_WAIT_NS = 3 * NS_PER_S
"""How long a kill waits for evidence: reading /proc takes milliseconds, a disk that is busy a second."""
DEADLOCK_PATIENCE_NS = 60 * NS_PER_S
"""After so long a `deadlocked` without a break even what is only reported is restarted (DESIGN 4: the controller)."""


class Watcher(Ladder):
    """The part of a component's step that watches."""

    __slots__ = ()

    def settle_verdict(self) -> None:
        """Say what is said of the process now, where that is another thing than before."""
        state, run = self.state, self.state.run
        watched = run is not None and run.phase is Phase.LIVE and state.state in WATCHED
        new, old = runs.verdict(run) if run is not None and watched else None, state.verdict
        if new is old:
            return
        self.state = replace(state, verdict=new)
        if new is None or (old is None and new is Verdict.OK):
            return  # a run begins or ends, which says enough
        detail = None if run is None or run.watch is None else run.watch.finding.detail
        pid = None if run is None else run.pid
        self.log(
            "component.verdict_changed",
            old=None if old is None else old.value,
            new=new.value,
            detail=detail,
            generation=state.generation,
            pid=pid,
        )

    def watch(self, run: Run, failed: Failure | None) -> None:
        """Look at a run that is late, and end it where its probe has failed and nothing speaks against that."""
        if not runs.is_late(self.spec, run, self.now):
            if run.watch is not None:
                self.set_run(replace(run, watch=None))
            return
        watch = run.watch or Watch(since_ns=self.now, look_ns=self.now)
        if failed is not None and watch.failed_ns is None:
            watch = replace(watch, failed_ns=self.now, look_ns=self.now)
        if watch.asked_ns is not None and not watch.hangs and self.now >= watch.asked_ns + LOOK_WAIT_NS:
            # What cannot be looked at is not spared.
            finding = Finding(verdict=Verdict.SLOW, detail="it cannot be told what it does: a look at it hangs")
            watch = replace(watch, hangs=True, finding=finding, decided=failed is not None, deadlocked_ns=None)
        if watch.asked_ns is None and watch.look_ns is not None and self.now >= watch.look_ns:
            watch = replace(watch, asked_ns=self.now, look_ns=None)
            self.actions.append(
                LookAt(
                    component=self.spec.name,
                    generation=self.state.generation,
                    tree=self.spec.stop.kill_scope is KillScope.TREE,
                )
            )
        if watch.evidence_by_ns is not None and not watch.evidence_done and self.now >= watch.evidence_by_ns:
            watch = replace(watch, evidence_done=True)
            self.log("component.evidence", path=None, detail=f"not written within {span(EVIDENCE_WAIT_NS)}")
        run = replace(run, watch=watch)
        self.set_run(run)
        if failed is not None:
            self.decide(run, watch, failed)

    def looked(self, run: Run, event: Looked) -> Run:
        """Return the run after a look."""
        watch = run.watch
        if watch is None:
            return run  # it spoke meanwhile
        if event.sample is None:
            finding = Finding(verdict=Verdict.SLOW, detail=event.trouble)
            watch = replace(watch, finding=finding, before=None, decided=watch.failed_ns is not None)
            watch = replace(watch, look_ns=self.now + RELOOK_NS, deadlocked_ns=None)
        else:
            watch = self.seen(run, watch, event.sample)
        return replace(run, watch=replace(watch, asked_ns=None, hangs=False))

    def seen(self, run: Run, watch: Watch, sample: Sample) -> Watch:
        """Return the watch after a look."""
        before = watch.before
        heard = before is not None and max(run.last_beat_ns or 0, run.last_watchdog_ns or 0) > before.at_ns
        known = run.progress is not None and watch.progress is not None
        found = judge(before, sample, heard=heard, progressed=run.progress != watch.progress if known else None)
        goes_on = watch.finding.verdict in SPARED and (found is None or found.verdict not in SPARED)
        if goes_on:
            # It stood still until a moment ago: it has one interval to be heard before that counts against it.
            at_ns = self.now + self.grace_ns(run)
            watch = replace(watch, failed_ns=None if watch.failed_ns is None else at_ns, decided=False)
            watch = replace(watch, evidence_by_ns=None, evidence_done=False)
            found, look_ns = Finding(verdict=Verdict.SLOW, detail="it goes on, and was not heard of yet"), at_ns
        elif found is None:
            found, look_ns = watch.finding, self.now + MIN_SPAN_NS
        else:
            watch = replace(watch, decided=watch.failed_ns is not None and sample.at_ns >= watch.failed_ns)
            look_ns = self.now + RELOOK_NS
        if found.verdict is Verdict.DEADLOCKED and watch.failed_ns is None:
            # Who is only late may sleep for good reasons; that nothing ran counts once its probe has failed.
            found = Finding(verdict=Verdict.SLOW, detail=f"it is late; {found.detail}")
        deadlocked_ns = watch.deadlocked_ns or self.now if found.verdict is Verdict.DEADLOCKED else None
        look_ns = look_ns if watch.look_ns is None else min(look_ns, watch.look_ns)
        return replace(
            watch,
            finding=found,
            before=sample,
            progress=run.progress,
            look_ns=look_ns,
            deadlocked_ns=deadlocked_ns,
        )

    def grace_ns(self, run: Run) -> int:
        """Return how long a component that goes on may take until it has to be heard of."""
        probe = self.spec.liveness if run.passed_startup else self.spec.startup
        assert probe is not None, "only what is probed is watched"
        if isinstance(probe.check, HeartbeatCheck) and run.interval_ns is not None:
            return run.interval_ns
        if isinstance(probe.check, NotifyCheck) and run.watchdog_ns is not None:
            return run.watchdog_ns
        return probe.period_ns + probe.timeout_ns

    def decide(self, run: Run, watch: Watch, failed: Failure) -> None:
        """End a run whose probe has failed, after evidence, unless something speaks against it."""
        kind, probe, _ = failed
        if not self.state.want.up or self.state.want.patient:
            return
        # What asks for its own restart needs no verdict.
        if not run.asked_for_restart and (not watch.decided or watch.finding.verdict in SPARED):
            return
        if probe.on_failure is OnFailure.REPORT and not self.is_hopeless(kind, watch):
            return
        if watch.evidence_by_ns is None:
            watch = replace(watch, evidence_by_ns=self.now + EVIDENCE_WAIT_NS, evidence_done=False)
            self.set_run(replace(run, watch=watch))
            self.actions.append(
                TakeEvidence(
                    component=self.spec.name,
                    generation=self.state.generation,
                    spec=self.spec,
                    said=_said(run, watch, failed, self.now),
                )
            )
        elif watch.evidence_done:
            self.stop(Aim.RETRY, runs.why_failed(run, failed))

    def is_hopeless(self, kind: ProbeKind, watch: Watch) -> bool:
        """Tell whether even a component whose failure is only reported is to be restarted."""
        since_ns = watch.deadlocked_ns
        return kind is ProbeKind.LIVENESS and since_ns is not None and self.now >= since_ns + DEADLOCK_PATIENCE_NS

    def evidence_taken(self, run: Run, event: EvidenceTaken) -> Run:
        """Name the file, and return the run whose end waits for it no longer."""
        watch = run.watch
        self.log(
            "component.evidence",
            path=event.path,
            detail=event.trouble or None,
            verdict=None if watch is None else watch.finding.verdict.value,
            generation=event.generation,
            pid=run.pid,
        )
        if watch is None or watch.evidence_by_ns is None:
            return run
        return replace(run, watch=replace(watch, evidence_done=True))


def _said(run: Run, watch: Watch, failed: Failure, now: int) -> tuple[str, ...]:
    """Return what is known of a run without looking at its process, for the evidence."""

    def ago(at_ns: int | None) -> str:
        return "never" if at_ns is None else f"{(now - at_ns) // NS_PER_MS} ms ago"

    promised = "" if run.interval_ns is None else f", promised each {run.interval_ns // NS_PER_MS} ms"
    watchdog = "" if run.watchdog_ns is None else f", promised within {run.watchdog_ns // NS_PER_MS} ms"
    return (
        f"why: {runs.why_failed(run, failed)}",
        f"started: {ago(run.started_ns)}; late since: {ago(watch.since_ns)}",
        f"last heartbeat: {ago(run.last_beat_ns)}{promised}",
        f"last WATCHDOG=1: {ago(run.last_watchdog_ns)}{watchdog}",
        f"PROGRESS: {run.progress}; JOBS: {run.jobs}; READY: {run.said_ready}; STATUS: {run.status}",
    )
