"""How fast the agent follows its authority, from benchmarks/leadership.py: only ours has such a thing."""

from collections.abc import Iterator

from benchmarks import leadership
from benchmarks.peers.results import Sample


def samples(rounds: int) -> Iterator[Sample]:
    """From `primary` to the scheduler's exec, and from `standby` to its SIGTERM; milliseconds."""
    mode, found = leadership.measure(rounds, grouped=False)
    for index, metric in enumerate(("primary_to_exec_ms", "standby_to_sigterm_ms")):
        values = tuple(round(pair[index] / 1000, 3) for pair in found)
        yield Sample(round=0, peer="xce", count=2, metric=metric, values=values, notes={"mode": mode})
