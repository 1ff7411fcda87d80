"""One run of a component: the process of one generation, what it said and how its probes judge it.

Nothing here outlives the run: counts re-arm with every restart because a new run is a new value.
"""

from typing import assert_never

from node_manager.core import probes
from node_manager.core.changed import replace
from node_manager.core.events import Beat, Notified, ProbeDone
from node_manager.core.probes import ProbeState
from node_manager.core.spec import (
    NS_PER_S,
    PASSIVE_CHECKS,
    ComponentSpec,
    HeartbeatCheck,
    NotifyCheck,
    ProbeKind,
    ProbeSpec,
)
from node_manager.core.symbols import Symbol
from node_manager.core.values import dataclass
from node_manager.core.wedge import Verdict, Watch

LATE_AFTER_INTERVALS = 2
"""Late by so many intervals it is looked at for the first time: one beat is missing, and one interval is left to
compare looks before it is silent."""
WATCHDOG_LATE_QUARTERS = 3
"""Likewise after so many quarters of the time that it promised: sd_notify(3) advises to speak each half."""
SILENT_AFTER_INTERVALS = 3
"""A component that is late by three of the intervals that it promised is silent (heartbeat protocol 1)."""
_SILENT_WHEN_LATE = SILENT_AFTER_INTERVALS - LATE_AFTER_INTERVALS
"""Intervals from late to silent."""
RECONNECT_NS = 10 * NS_PER_S
"""What an adopted component has to find the new agent, before its silence counts: twice the longest delay between two
attempts of the heartbeat client."""
MAX_STATUS_CHARS = 256
"""Bound on the free text that a component says of itself."""


class Phase(Symbol):
    """What exists of a run."""

    CHECK = "check"
    """The check before the start is running; there is no main process yet."""
    SPAWN = "spawn"
    """The spawn was asked for and has not been answered."""
    LIVE = "live"
    """The main process exists."""
    TREE = "tree"
    """The main process is reaped; the rest of its tree is being cleared."""


Failure = tuple[ProbeKind, ProbeSpec, ProbeState]
"""A probe that has failed, and what it saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is known of the current generation."""

    phase: Phase
    started_ns: int
    """When the spawn was asked for: the origin of delays and of probes' grace."""
    pid: int | None = None
    adopted: bool = False
    terms: tuple[tuple[str, int], ...] = ()
    """Terms of leased facts that it was started under."""
    lease_until_ns: int | None = None
    """End of the lease that it runs under, as last stated; SIGKILL must be out before it."""
    startup: ProbeState | None = None
    readiness: ProbeState | None = None
    liveness: ProbeState | None = None
    passed_startup: bool = False
    hello: bool = False
    interval_ns: int | None = None
    last_beat_ns: int | None = None
    said_ready: bool | None = None
    notify_ready: bool | None = None
    """False: it notified STOPPING=1; None: it has not notified READY=1."""
    watchdog_ns: int | None = None
    last_watchdog_ns: int | None = None
    asked_for_restart: bool = False
    """It sent WATCHDOG=trigger, and no WATCHDOG=1 since."""
    status: str = ""
    progress: int | None = None
    jobs: int | None = None
    epoch: int | None = None
    """The epoch that it stated for this host."""
    told_to_drain: bool = False
    watch: Watch | None = None
    """It is late, and looked at."""


def begin(spec: ComponentSpec, run: Run, now: int) -> Run:
    """Return the run with its first probes armed, once its main process exists."""
    if spec.startup is not None and not run.passed_startup:
        return replace(run, startup=probes.begin(spec.startup, run.started_ns, now))
    return after_startup(spec, run, now)


def after_startup(spec: ComponentSpec, run: Run, now: int) -> Run:
    """Return the run with readiness and liveness armed instead of the startup probe, for which they wait (kubelet)."""
    readiness = None if spec.readiness is None else probes.begin(spec.readiness, run.started_ns, now)
    liveness = None if spec.liveness is None else probes.begin(spec.liveness, run.started_ns, now)
    return judge(spec, replace(run, passed_startup=True, startup=None, readiness=readiness, liveness=liveness), now)


def rearm(old: ComponentSpec, spec: ComponentSpec, run: Run, now: int) -> Run:
    """Return the run of a live process under a changed spec: the probes that changed begin again.

    Readiness keeps its verdict until the new probe gives its own; a run without a readiness probe was ready.
    """
    if not run.passed_startup:
        return run if spec.startup == old.startup else begin(spec, replace(run, startup=None), now)
    readiness, liveness = run.readiness, run.liveness
    if spec.readiness != old.readiness:
        verdict = True if readiness is None else readiness.verdict
        readiness = None if spec.readiness is None else probes.begin(spec.readiness, run.started_ns, now)
        readiness = None if readiness is None else replace(readiness, verdict=verdict)
    if spec.liveness != old.liveness:
        liveness = None if spec.liveness is None else probes.begin(spec.liveness, run.started_ns, now)
    return replace(run, readiness=readiness, liveness=liveness)


def due(spec: ComponentSpec, run: Run, now: int) -> tuple[Run, tuple[tuple[ProbeKind, ProbeSpec], ...]]:
    """Return the run with its next probes scheduled, and the active probes to carry out now."""
    found: list[tuple[ProbeKind, ProbeSpec]] = []
    for kind, probe, state in _probes(spec, run):
        if state.next_ns is None or state.next_ns > now or isinstance(probe.check, PASSIVE_CHECKS):
            continue
        found.append((kind, probe))
        run = _with(run, kind, probes.schedule(probe, state, now))
    return run, tuple(found)


def answered(spec: ComponentSpec, run: Run, event: ProbeDone) -> Run:
    """Return the run after an active probe's answer; one that is not armed any more changes nothing."""
    for kind, probe, state in _probes(spec, run):
        if kind is event.probe:
            return _with(run, kind, probes.answer(probe, state, event.outcome, event.detail))
    return run


def heard(run: Run, event: Beat, now: int) -> Run:
    """Return the run after a heartbeat record."""
    return replace(
        run,
        hello=run.hello or event.hello,
        interval_ns=run.interval_ns if event.interval_ns is None else event.interval_ns,
        last_beat_ns=now,
        said_ready=_ready(run.said_ready, event),
        status=run.status if event.status is None else event.status[:MAX_STATUS_CHARS],
        progress=run.progress if event.progress is None else event.progress,
        jobs=run.jobs if event.jobs is None else event.jobs,
        epoch=run.epoch if event.epoch is None else event.epoch,
    )


def _ready(before: bool | None, event: Beat) -> bool | None:
    if event.stopping:
        return False
    return before if event.ready is None else event.ready


def notified(run: Run, event: Notified, now: int) -> Run:
    """Return the run after an sd_notify datagram."""
    watchdog_ns = run.watchdog_ns if event.watchdog_ns is None else event.watchdog_ns
    alive = event.watchdog or event.watchdog_ns is not None
    return replace(
        run,
        notify_ready=False if event.stopping else True if event.ready else run.notify_ready,
        watchdog_ns=watchdog_ns,
        last_watchdog_ns=now if alive else run.last_watchdog_ns,
        asked_for_restart=event.watchdog_trigger or (run.asked_for_restart and not event.watchdog),
        status=run.status if event.status is None else event.status[:MAX_STATUS_CHARS],
    )


def stalled(run: Run, duration_ns: int, now: int) -> Run:
    """Return the run with its deadlines put off by time in which the agent itself could not listen.

    How long before that its stall began is not known, and the component may have stood still as well (a suspended
    host): so whatever it owes, it has at least one interval from now to say it.
    """

    def later(at: int | None, at_least: int) -> int | None:
        return None if at is None else max(at + duration_ns, at_least)

    def put_off(state: ProbeState | None) -> ProbeState | None:
        return None if state is None else replace(state, next_ns=later(state.next_ns, now + NS_PER_S))

    interval_ns, watchdog_ns = run.interval_ns or 0, run.watchdog_ns or 0
    return replace(
        run,
        last_beat_ns=later(run.last_beat_ns, now - (SILENT_AFTER_INTERVALS - 1) * interval_ns),
        last_watchdog_ns=later(run.last_watchdog_ns, now - watchdog_ns // 2),
        startup=put_off(run.startup),
        readiness=put_off(run.readiness),
        liveness=put_off(run.liveness),
        # What was seen before says nothing about time in which everything stood still.
        watch=None,
    )


def judge(spec: ComponentSpec, run: Run, now: int) -> Run:
    """Return the run with the verdicts of its passive checks as they stand at `now`."""
    if not run.passed_startup:
        startup = _judged(ProbeKind.STARTUP, spec.startup, run.startup, run, now)
        return run if startup is run.startup else replace(run, startup=startup)
    readiness = _judged(ProbeKind.READINESS, spec.readiness, run.readiness, run, now)
    liveness = _judged(ProbeKind.LIVENESS, spec.liveness, run.liveness, run, now)
    if readiness is run.readiness and liveness is run.liveness:
        return run
    return replace(run, readiness=readiness, liveness=liveness)


def _judged(
    kind: ProbeKind, probe: ProbeSpec | None, state: ProbeState | None, run: Run, now: int
) -> ProbeState | None:
    if probe is None or state is None:
        return state
    match probe.check:
        case HeartbeatCheck():
            return _judge_heartbeat(kind, probe, state, run, now)
        case NotifyCheck():
            return _judge_notify(kind, probe, state, run, now)
        case _:
            return state


def _judge_heartbeat(kind: ProbeKind, probe: ProbeSpec, state: ProbeState, run: Run, now: int) -> ProbeState:
    silent_at = _silent_at(run)
    silent = silent_at is not None and now >= silent_at
    match kind:
        case ProbeKind.STARTUP:
            return _judge_startup(probe, state, run, now, passed=run.hello, waits_for="hello")
        case ProbeKind.READINESS:
            if silent:
                return probes.settle(state, None, "silent: its heartbeats do not come", next_ns=None)
            if run.said_ready is True:
                return probes.settle(state, True, "it says that it is ready", next_ns=silent_at)
            # What an earlier agent knew of an adopted run is not what it says now.
            withdrawn = run.said_ready is False and (run.hello or not run.adopted)
            detail = "says that it is not ready" if withdrawn else "has not said READY=1"
            return probes.settle(state, False, detail, next_ns=silent_at)
        case ProbeKind.LIVENESS:
            if silent_at is None:
                return probes.settle(state, None, "no hello yet", next_ns=state.next_ns)
            if silent:
                interval_ms = (run.interval_ns or 0) // 1_000_000
                detail = f"silent for {SILENT_AFTER_INTERVALS} intervals of {interval_ms} ms"
                return probes.settle(state, False, detail, next_ns=None)
            late_at = silent_at - _SILENT_WHEN_LATE * (run.interval_ns or 0)
            next_ns = late_at if now < late_at else silent_at
            if not run.hello:  # adopted: its promise is known, and it was not heard of yet
                return probes.settle(state, None, "no hello to this agent yet", next_ns=next_ns)
            return probes.settle(state, True, "its heartbeats come", next_ns=next_ns)
        case _ as never:
            assert_never(never)


def _judge_notify(kind: ProbeKind, probe: ProbeSpec, state: ProbeState, run: Run, now: int) -> ProbeState:
    match kind:
        case ProbeKind.STARTUP:
            return _judge_startup(probe, state, run, now, passed=run.notify_ready is True, waits_for="READY=1")
        case ProbeKind.READINESS:
            if run.notify_ready is False:
                return probes.settle(state, False, "it notified STOPPING=1", next_ns=state.next_ns)
            detail = "it notified READY=1" if run.notify_ready else "has not notified READY=1"
            return probes.settle(state, run.notify_ready is True, detail, next_ns=state.next_ns)
        case ProbeKind.LIVENESS:
            if run.asked_for_restart:
                return probes.settle(state, False, "it asked for it with WATCHDOG=trigger", next_ns=None)
            if run.watchdog_ns is None or run.last_watchdog_ns is None:
                return probes.settle(state, None, "has not asked for a watchdog", next_ns=state.next_ns)
            silent_at = run.last_watchdog_ns + run.watchdog_ns
            if now >= silent_at:
                return probes.settle(state, False, f"no WATCHDOG=1 for {run.watchdog_ns / NS_PER_S:g} s", next_ns=None)
            late_at = _watchdog_late_at(run.last_watchdog_ns, run.watchdog_ns)
            return probes.settle(state, True, "its WATCHDOG=1 comes", next_ns=late_at if now < late_at else silent_at)
        case _ as never:
            assert_never(never)


def _judge_startup(
    probe: ProbeSpec, state: ProbeState, run: Run, now: int, *, passed: bool, waits_for: str
) -> ProbeState:
    if passed:
        return probes.settle(state, True, f"{waits_for} came", next_ns=None)
    if state.verdict is False:
        return state
    # A deadline that a stall of the agent put off is kept; the first judgement sets it.
    fails_at = probes.startup_deadline_ns(probe, run.started_ns) if state.next_ns is None else state.next_ns
    if now >= fails_at:
        waited_s = (fails_at - run.started_ns) / NS_PER_S
        return probes.settle(state, False, f"no {waits_for} within {waited_s:g} s", next_ns=None)
    return probes.settle(state, None, f"waits for {waits_for}", next_ns=fails_at)


def _silent_at(run: Run) -> int | None:
    if run.interval_ns is None or run.last_beat_ns is None:
        return None
    return run.last_beat_ns + SILENT_AFTER_INTERVALS * run.interval_ns


def _watchdog_late_at(last_ns: int, within_ns: int) -> int:
    return last_ns + within_ns * WATCHDOG_LATE_QUARTERS // 4


def is_late(spec: ComponentSpec, run: Run, now: int) -> bool:
    """Tell whether a sign of life is overdue, though its probe may not have failed yet."""
    if not run.passed_startup:
        return run.startup is not None and (run.startup.failures > 0 or run.startup.verdict is False)
    if spec.liveness is None or run.liveness is None:
        return False
    match spec.liveness.check:
        case HeartbeatCheck():
            silent_at = _silent_at(run)
            return silent_at is not None and now >= silent_at - _SILENT_WHEN_LATE * (run.interval_ns or 0)
        case NotifyCheck():
            if run.watchdog_ns is None or run.last_watchdog_ns is None:
                return run.asked_for_restart
            return run.asked_for_restart or now >= _watchdog_late_at(run.last_watchdog_ns, run.watchdog_ns)
        case _:
            return run.liveness.failures > 0


def verdict(run: Run) -> Verdict | None:
    """Return what is said of its process: `ok` where its liveness probe vouches for it, None where nothing does."""
    if run.watch is not None:
        return run.watch.finding.verdict
    return Verdict.OK if run.liveness is not None and run.liveness.verdict is True else None


def wake_ns(run: Run) -> int | None:
    """Return when time alone will next change something about this run's probes, or None."""
    earliest: int | None = None
    for state in (run.startup, run.readiness, run.liveness):
        if state is not None and state.next_ns is not None and (earliest is None or state.next_ns < earliest):
            earliest = state.next_ns
    return earliest if run.watch is None else _earlier(earliest, run.watch.wake_ns)


def _earlier(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


def ready(spec: ComponentSpec, run: Run, *, running: bool) -> bool | None:
    """Tell whether the component may be used; None: it cannot be told.

    What has failed its liveness probe is not ready, whatever it said before, and whatever follows from the failure.
    """
    if not running or (run.liveness is not None and run.liveness.verdict is False):
        return False
    if spec.readiness is None or run.readiness is None:
        return None if _unheard(spec, run) else True
    if run.readiness.verdict is None and spec.readiness.check.__class__ not in PASSIVE_CHECKS:
        return False
    return run.readiness.verdict


def _unheard(spec: ComponentSpec, run: Run) -> bool:
    """Tell whether a run that was not ready under an earlier agent has yet to be heard by this one."""
    speaks = spec.liveness is not None and isinstance(spec.liveness.check, HeartbeatCheck)
    return speaks and run.adopted and not run.hello and run.said_ready is False


def failed(spec: ComponentSpec, run: Run) -> Failure | None:
    """Return the startup or liveness probe that has failed, if one has."""
    if run.passed_startup:
        kind, probe, state = ProbeKind.LIVENESS, spec.liveness, run.liveness
    else:
        kind, probe, state = ProbeKind.STARTUP, spec.startup, run.startup
    if probe is None or state is None or state.verdict is not False:
        return None
    return kind, probe, state


def why_failed(run: Run, failure: Failure) -> str:
    """Return the sentence that names the failed probe, what it saw, and what is said of the process."""
    sentence = failure_sentence(*failure)
    if run.watch is None or not run.watch.decided or run.watch.before is None:
        return sentence  # nothing was seen
    return f"{sentence}; {run.watch.finding.verdict.value}: {run.watch.finding.detail}"


def failure_sentence(kind: ProbeKind, _probe: ProbeSpec, state: ProbeState) -> str:
    """Return the sentence that names the failed probe and what it saw."""
    return f"{kind.value} probe failed: {state.detail}"


def startup_passed(run: Run) -> bool:
    """Tell whether the startup probe is passed, or there is none."""
    return run.passed_startup or (run.startup is not None and run.startup.verdict is True)


def listing(spec: ComponentSpec, run: Run) -> tuple[tuple[ProbeKind, ProbeSpec, ProbeState], ...]:
    """Return the probes that are armed now, for display."""
    return tuple(_probes(spec, run))


def _probes(spec: ComponentSpec, run: Run) -> list[tuple[ProbeKind, ProbeSpec, ProbeState]]:
    if not run.passed_startup:
        if spec.startup is None or run.startup is None:
            return []
        return [(ProbeKind.STARTUP, spec.startup, run.startup)]
    found = []
    if spec.readiness is not None and run.readiness is not None:
        found.append((ProbeKind.READINESS, spec.readiness, run.readiness))
    if spec.liveness is not None and run.liveness is not None:
        found.append((ProbeKind.LIVENESS, spec.liveness, run.liveness))
    return found


def _with(run: Run, kind: ProbeKind, state: ProbeState) -> Run:
    match kind:
        case ProbeKind.STARTUP:
            return replace(run, startup=state)
        case ProbeKind.READINESS:
            return replace(run, readiness=state)
        case ProbeKind.LIVENESS:
            return replace(run, liveness=state)
        case _ as never:
            assert_never(never)
