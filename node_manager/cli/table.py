"""A table that fits: columns shrink, then disappear, in the order that the caller gives."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself costs some milliseconds at each start of a command
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GAP = "  "
ELLIPSIS = "…"


class Column:
    """One column.

    `shrink` is the width that it may shrink to (None: never), `drop` the order in which columns go where even that is
    too wide (None: never). Once no column is left to drop, what shrinks may go to its title. `right` aligns numbers.
    """

    __slots__ = ("drop", "right", "shrink", "title")

    def __init__(self, title: str, *, shrink: int | None = None, drop: int | None = None, right: bool = False) -> None:
        self.title = title
        self.shrink = shrink
        self.drop = drop
        self.right = right


def cut(text: str, width: int) -> str:
    """Shorten a text to a width, and show that it was."""
    return text if len(text) <= width else text[: max(0, width - 1)] + ELLIPSIS


def layout(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int,
    paint: Callable[[str, str, int], str] = lambda text, _title, _row: text,
) -> list[str]:
    """Render title and rows, each line at most `width` characters where the columns can be made to fit.

    `paint(padded text, column title, row number)` may colour a cell; the title's row number is -1.
    """
    shown = list(range(len(columns)))
    while True:
        natural = {i: max(len(columns[i].title), *(len(row[i]) for row in rows), 0) for i in shown}
        widths = _fit(columns, natural, width, hard=False)
        droppable = [i for i in shown if columns[i].drop is not None]
        if widths is not None or not droppable:
            break
        shown.remove(min(droppable, key=lambda i: columns[i].drop or 0))
    widths = widths or _fit(columns, natural, width, hard=True) or natural
    lines = []
    for number, row in enumerate([[column.title for column in columns], *rows], start=-1):
        cells = []
        for i in shown:
            text = cut(row[i], widths[i])
            padded = text.rjust(widths[i]) if columns[i].right else text.ljust(widths[i])
            if i == shown[-1]:
                padded = padded.rstrip()
            cells.append(paint(padded, columns[i].title, number))
        lines.append(GAP.join(cells).rstrip())
    return lines


def _fit(columns: Sequence[Column], natural: dict[int, int], width: int, *, hard: bool) -> dict[int, int] | None:
    """Shrink the widest shrinkable column step by step; None where it cannot fit."""
    widths = dict(natural)
    floor = {
        i: max(len(columns[i].title), 0 if hard else columns[i].shrink or 0)
        for i in natural
        if columns[i].shrink is not None
    }
    excess = sum(widths.values()) + len(GAP) * (len(widths) - 1) - width
    while excess > 0:
        candidates = [i for i in floor if widths[i] > floor[i]]
        if not candidates:
            return None
        widest = max(candidates, key=lambda i: widths[i])
        widths[widest] -= 1
        excess -= 1
    return widths
