"""What was measured, kept as lines of JSON, and the figures that are drawn from it."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one session yields of one metric. `load_percent`: how busy the machine was meanwhile (100: all cores)."""

    round: int
    peer: str
    count: int
    metric: str
    values: tuple[float, ...]
    load_percent: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    """What else is worth keeping: how many got lost, the rate that was reached, an error's text."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of all values of all rounds. `p99` of fewer than 100 values is the greatest."""

    median: float
    low: float
    high: float
    p99: float
    values: int


def spread(values: Sequence[float]) -> Spread:
    """Summarise at least one value."""
    return Spread(statistics.median(values), min(values), max(values), percentile(values, 99), len(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of all do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def write(sample: Sample, path: Path) -> None:
    """Append one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(sample)) + "\n")


def read(path: Path) -> list[Sample]:
    """Every sample of a file. Raises OSError, ValueError."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Sample(**{**raw, "values": tuple(raw["values"])}) for raw in map(json.loads, lines)]


class Results:
    """Samples by metric, number of components and peer."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples = tuple(samples)
        self._values: dict[tuple[str, int, str], list[float]] = {}
        for sample in self.samples:
            self._values.setdefault((sample.metric, sample.count, sample.peer), []).extend(sample.values)

    def spread(self, metric: str, count: int, peer: str) -> Spread | None:
        """The summary of one cell; None: nothing was measured."""
        values = self._values.get((metric, count, peer))
        return spread(values) if values else None

    def ratio(self, metric: str, count: int, peer: str, other: str) -> float | None:
        """The median of `peer` by that of `other`; None where one is missing or the other is 0."""
        ours, theirs = self.spread(metric, count, peer), self.spread(metric, count, other)
        return ours.median / theirs.median if ours and theirs and theirs.median else None

    def cells(self) -> list[tuple[str, int]]:
        """Every metric with every number of components that something was measured of, in the order of the samples."""
        return list(dict.fromkeys((sample.metric, sample.count) for sample in self.samples if sample.values))

    def peers(self) -> list[str]:
        """Every peer, in the order of the samples."""
        return list(dict.fromkeys(sample.peer for sample in self.samples))

    def rounds(self) -> int:
        """How many rounds there were."""
        return len({sample.round for sample in self.samples})
