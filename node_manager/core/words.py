"""How times and counts are written in sentences for operators."""

from node_manager.core.spec import NS_PER_S

_UNITS = ((48 * 3600, 86_400, "days"), (2 * 3600, 3_600, "h"), (120, 60, "min"), (0, 1, "s"))
"""From so many seconds on a span is told in this unit: two of the larger one say more than 119 of the smaller."""


def span(duration_ns: int) -> str:
    """Return a span of time in whole units, `4 s` or `3 h`; a negative one (a clock was set back) is none."""
    seconds = max(0, duration_ns) // NS_PER_S
    size, unit = next((size, unit) for least, size, unit in _UNITS if seconds >= least)
    return f"{seconds // size} {unit}"


def jobs(count: int) -> str:
    """Return `1 job` or `2 jobs`."""
    return f"{count} job" if count == 1 else f"{count} jobs"


def because(reason: str) -> str:
    """Return `: reason`, or nothing where none was given."""
    return f": {reason}" if reason else ""
