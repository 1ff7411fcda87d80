"""Thresholds of probes: from single answers to a verdict. The parameters mean what the kubelet means by them.

A probe's verdict is True (passed), False (failed) or None (nothing is known yet). Readiness begins as not passed,
liveness as unknown; `success_threshold` answers in a row make it pass, `failure_threshold` make it fail. An answer
`UNKNOWN` (the probe itself could not run) changes no count. Passive checks (heartbeat, notify) have no answers of
their own: the component's messages pass them and a deadline fails them.
"""

from node_manager.core.changed import replace
from node_manager.core.events import Outcome
from node_manager.core.spec import PASSIVE_CHECKS, ProbeSpec
from node_manager.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeState:
    """One probe of one run."""

    verdict: bool | None = None
    successes: int = 0
    failures: int = 0
    next_ns: int | None = None
    """When it is carried out next, or for a passive check: when silence becomes failure."""
    detail: str = ""
    last_outcome: Outcome | None = None


def begin(spec: ProbeSpec, started_ns: int, now: int) -> ProbeState:
    """Return the state of a probe that becomes due `initial_delay_ns` after the process's start, or now if later."""
    if isinstance(spec.check, PASSIVE_CHECKS):
        return ProbeState()
    return ProbeState(next_ns=max(now, started_ns + spec.initial_delay_ns))


def startup_deadline_ns(spec: ProbeSpec, started_ns: int) -> int:
    """Return when a passive startup check has failed: as late as an active one would have found out."""
    return started_ns + spec.initial_delay_ns + spec.period_ns * spec.failure_threshold


def wait_until(spec: ProbeSpec, state: ProbeState, deadline_ns: int) -> ProbeState:
    """Return the state of a passive check that fails at `deadline_ns`; an active one asks and needs no deadline."""
    return replace(state, next_ns=deadline_ns) if isinstance(spec.check, PASSIVE_CHECKS) else state


def schedule(spec: ProbeSpec, state: ProbeState, now: int) -> ProbeState:
    """Return the state with the next run one period after this one; missed periods are skipped, not made up."""
    planned = now if state.next_ns is None else state.next_ns
    behind = now - planned
    periods = 1 + max(0, behind) // spec.period_ns
    return replace(state, next_ns=planned + periods * spec.period_ns)


def answer(spec: ProbeSpec, state: ProbeState, outcome: Outcome, detail: str) -> ProbeState:
    """Return the state after one answer of an active probe."""
    if outcome is Outcome.UNKNOWN:
        return replace(state, detail=detail, last_outcome=outcome)
    if outcome is Outcome.OK:
        successes = min(state.successes + 1, spec.success_threshold)
        verdict = True if successes >= spec.success_threshold else state.verdict
        return replace(state, successes=successes, failures=0, verdict=verdict, detail=detail, last_outcome=outcome)
    failures = min(state.failures + 1, spec.failure_threshold)
    verdict = False if failures >= spec.failure_threshold else state.verdict
    return replace(state, successes=0, failures=failures, verdict=verdict, detail=detail, last_outcome=outcome)


def settle(state: ProbeState, verdict: bool | None, detail: str, *, next_ns: int | None) -> ProbeState:
    """Return the state of a passive check whose verdict a message or a deadline decided, to be judged at `next_ns`."""
    if state.verdict is verdict and state.detail == detail and state.next_ns == next_ns:
        return state
    return replace(state, verdict=verdict, detail=detail, next_ns=next_ns)
