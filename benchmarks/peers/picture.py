"""One page of pictures, SVG by hand: for each metric a bar for every peer, on a logarithmic scale where it must be."""

import math
from html import escape

from benchmarks.peers.metrics import METRICS
from benchmarks.peers.report import OURS, figure
from benchmarks.peers.results import Results, Spread

_SHOWN = (
    ("restart_ms", 1),
    ("mass_crash_ms", 100),
    ("start_ms", 100),
    ("start_ms", 500),
    ("stop_ms", 100),
    ("pss_mib", 1),
    ("pss_mib", 500),
    ("idle_cpu_percent", 100),
    ("status_command_ms", 100),
    ("status_kept_ms", 100),
    ("storm_status_ms", 100),
    ("storm_restart_ms", 100),
)
_COLUMNS = 3
_WIDTH, _LEFT, _BAR, _ROW, _TITLE, _GAP = 400, 136, 180, 17, 30, 22
_OURS, _FLOOR, _PEER, _INK = "#0b6e4f", "#b9b9b9", "#6b8fb5", "#222"
_DECADES_OF_LOG = 1.3
"""Beyond this spread, in powers of ten, a linear bar would show nothing of the smaller ones."""


def pictures(results: Results) -> str:
    """Return the file's text; what was not measured has no panel."""
    panels = []
    for metric, count in _SHOWN:
        found = [(spread, peer) for peer in results.peers() if (spread := results.spread(metric, count, peer))]
        if found:
            panels.append((f"{METRICS[metric].title}; {count}", sorted(found, key=lambda pair: pair[0].median)))
    heights = [
        max((len(rows) for _, rows in panels[first : first + _COLUMNS]), default=0) * _ROW + _TITLE + _GAP
        for first in range(0, len(panels), _COLUMNS)
    ]
    body = []
    for index, (title, rows) in enumerate(panels):
        line, column = divmod(index, _COLUMNS)
        body.append(f'<g transform="translate({column * _WIDTH + 8},{sum(heights[:line])})">')
        body += _panel(title, rows)
        body.append("</g>")
    width, height = _COLUMNS * _WIDTH, sum(heights)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
    return "\n".join(
        (f'{head} font-size="11" fill="{_INK}">', '<rect width="100%" height="100%" fill="#fff"/>', *body, "</svg>\n")
    )


def _panel(title: str, rows: list[tuple[Spread, str]]) -> list[str]:
    positive = [spread.median for spread, _ in rows if spread.median > 0]
    top = max(positive, default=1.0)
    bottom = min(positive, default=1.0)
    logarithmic = math.log10(top / bottom) > _DECADES_OF_LOG
    scale = ", log" if logarithmic else ""
    lines = [f'<text y="18" font-weight="bold">{escape(title)} <tspan font-weight="normal">{scale}</tspan></text>']
    for index, (spread, peer) in enumerate(rows):
        y = _TITLE + index * _ROW
        length = _length(spread.median, bottom, top, logarithmic=logarithmic)
        colour = _OURS if peer == OURS else _FLOOR if peer.startswith("floor") else _PEER
        weight = ' font-weight="bold"' if peer == OURS else ""
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 10}" text-anchor="end"{weight}>{escape(peer)}</text>')
        lines.append(f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_ROW - 4}" fill="{colour}"/>')
        lines.append(f'<text x="{_LEFT + length + 4:.1f}" y="{y + 10}"{weight}>{figure(spread.median)}</text>')
    return lines


def _length(value: float, bottom: float, top: float, *, logarithmic: bool) -> float:
    """A bar's, at least a hair's; the smallest of a logarithmic panel has a tenth of the width."""
    if value <= 0:
        return 1.0
    if not logarithmic:
        return max(1.0, _BAR * value / top)
    return _BAR * (0.1 + 0.9 * math.log10(value / bottom) / math.log10(top / bottom))
