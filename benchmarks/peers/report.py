"""The tables: for each metric every peer's median, spread and ratio; and our aims."""

from benchmarks.peers.metrics import AIMS, METRICS, Aim
from benchmarks.peers.results import Results, Spread

OURS = "xce"


def markdown(results: Results, versions: dict[str, str]) -> str:
    """Return the whole report."""
    parts = [f"# Supervisors side by side\n\n{results.rounds()} rounds, interleaved.\n"]
    parts.append(_table(("peer", "version"), [[peer, version] for peer, version in versions.items()]))
    measured = results.cells()
    for metric, about in METRICS.items():
        for count in sorted(count for found, count in measured if found == metric):
            parts.append(f"\n## {about.title}; {count} component{'s' if count != 1 else ''}\n")
            parts.append(cell(results, metric, count))
    aims = [row for aim in AIMS if (row := _judged(results, aim)) is not None]
    if aims:
        parts.append("\n## Aims\n")
        parts.append(_table(("metric", "components", "figure", "ours", "at most", "met"), aims))
    failures = [sample for sample in results.samples if sample.metric == "error"]
    if failures:
        parts.append("\n## What failed while it was measured\n")
        rows = [[s.peer, str(s.count), str(s.notes["metric"]), str(s.notes["error"])[:200]] for s in failures]
        parts.append(_table(("peer", "components", "metric", "error"), rows))
    return "\n".join(parts)


def cell(results: Results, metric: str, count: int) -> str:
    """One table: a peer in each row, the best first. `ours by it`: our median by the peer's."""
    found = [(spread, peer) for peer in results.peers() if (spread := results.spread(metric, count, peer)) is not None]
    best_is_greatest = METRICS[metric].better == "more"
    found.sort(key=lambda pair: pair[0].median, reverse=best_is_greatest)
    rows = [
        [
            f"**{peer}**" if peer == OURS else peer,
            figure(spread.median),
            f"{figure(spread.low)} to {figure(spread.high)}",
            figure(spread.p99),
            str(spread.values),
            _ratio(results, metric, count, peer),
        ]
        for spread, peer in found
    ]
    return _table(("peer", "median", "spread", "p99", "values", "ours by it"), rows)


def figure(value: float) -> str:
    """Three significant digits, and no exponent."""
    if value == 0:
        return "0"
    size = abs(value)
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3  # noqa: PLR2004 - powers of ten
    return f"{value:,.{decimals}f}"


def _ratio(results: Results, metric: str, count: int, peer: str) -> str:
    ratio = results.ratio(metric, count, OURS, peer)
    return "" if peer == OURS or ratio is None else figure(ratio)


def _judged(results: Results, aim: Aim) -> list[str] | None:
    """One row; None where either side was not measured."""
    ours = results.spread(aim.metric, aim.count, OURS)
    limit = aim.factor
    said = figure(limit)
    if aim.peer is not None:
        theirs = results.spread(aim.metric, aim.count, aim.peer)
        if theirs is None:
            return None
        limit *= theirs.median
        said = f"{figure(limit)} ({aim.factor:g} times {aim.peer})"
    if ours is None:
        return None
    value = _value(ours, aim.figure)
    met = "yes" if value <= limit else "no"
    return [METRICS[aim.metric].title, str(aim.count), aim.figure, figure(value), said, met]


def _value(spread: Spread, which: str) -> float:
    return spread.p99 if which == "p99" else spread.median


def _table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
