"""When an ended component may start again.

The delay grows with each run that failed, is counted from the *start* of the last run and is forgotten after a run
that lasted. So a component that had been running well comes back at once, and one that dies at birth does not spin.
"""

from node_manager.core.events import JITTER_STEPS
from node_manager.core.spec import RestartSpec

JITTER_PARTS = 5
"""Jitter takes at most one fifth off a delay: enough to spread a rack's restarts, never longer than configured."""


def delay_ns(spec: RestartSpec, failures: int, jitter: int) -> int:
    """Return the delay after the `failures`-th failed run in a row (the first is 0), in nanoseconds.

    `jitter` is a number from 0 to 1023; the result lies in (0.8 d, d] with d = initial * factor**failures, capped.
    """
    full = spec.initial_ns
    for _ in range(failures):
        if full >= spec.cap_ns or spec.factor == 1:
            break
        full *= spec.factor
    full = min(full, spec.cap_ns)
    return full - full * jitter // (JITTER_PARTS * JITTER_STEPS)


def remembered(spec: RestartSpec, *, failures: int, started_ns: int, ended_ns: int) -> int:
    """Return the failures that still count after a run that ended at `ended_ns`, whatever ended it."""
    return 0 if ended_ns - started_ns >= spec.reset_after_ns else failures


def after_run(spec: RestartSpec, *, failures: int, started_ns: int, ended_ns: int, jitter: int) -> tuple[int, int]:
    """Return (failures so far, earliest next start) after a run that failed at `ended_ns`.

    `failures` are those before it that still count.
    """
    return failures + 1, max(ended_ns, started_ns + delay_ns(spec, failures, jitter))


def limit_reached(spec: RestartSpec, starts: tuple[int, ...], now: int) -> bool:
    """Tell whether one more start now would exceed the configured start limit (none by default)."""
    if spec.limit is None:
        return False
    return len(recent(spec, starts, now)) >= spec.limit


def recent(spec: RestartSpec, starts: tuple[int, ...], now: int) -> tuple[int, ...]:
    """Return the starts that still count for the limit; bounded by the limit itself."""
    if spec.limit is None:
        return ()
    return tuple(at for at in starts if now - at < spec.limit_window_ns)[-spec.limit :]
