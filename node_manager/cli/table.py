"""A table that fits: columns shrink, then disappear, in the order that the caller gives."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself costs some milliseconds at each start of a command
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GAP = "  "
ELLIPSIS = "…"
FIRST = 0
"""`Column.drop` of a column that is worth less than the end of a text."""


class Column:
    """One column.

    `shrink` is the width that it may shrink to (None: never), `drop` the order in which columns go where even that is
    too wide (None: never; FIRST: before any text is cut). Once no column is left to drop, what shrinks may go to its
    title. `right` aligns numbers.
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

    A column whose cells are all empty is left out. A text with nothing but empty cells at its right runs on over them.
    `paint(padded text, column title, row number)` may colour a cell; the title's row number is -1.
    """
    shown = [i for i in range(len(columns)) if not rows or any(row[i] for row in rows)]
    while True:
        natural = _natural(columns, rows, shown)
        widths = _fit(columns, natural, width, hard=False)
        droppable = [i for i in shown if columns[i].drop is not None]
        first = widths != natural and any(columns[i].drop == FIRST for i in shown)
        if not droppable or (widths is not None and not first):
            break
        shown.remove(min(droppable, key=lambda i: columns[i].drop or 0))
    widths = widths or _fit(columns, natural, width, hard=True) or natural
    lines = []
    for number, row in enumerate([[column.title for column in columns], *rows], start=-1):
        last = max((place for place, i in enumerate(shown) if row[i]), default=0)
        cells = []
        for place, i in enumerate(shown[: last + 1]):
            room = sum(widths[j] + len(GAP) for j in shown[place:]) - len(GAP) if place == last else widths[i]
            text = cut(row[i], room)
            padded = text.rjust(widths[i]) if columns[i].right else text if place == last else text.ljust(widths[i])
            cells.append(paint(padded, columns[i].title, number))
        lines.append(GAP.join(cells))
    return lines


def _natural(columns: Sequence[Column], rows: Sequence[Sequence[str]], shown: list[int]) -> dict[int, int]:
    """The widths at which nothing is cut: what runs on over empty cells needs less of its own column."""
    natural = {i: len(columns[i].title) for i in shown}
    running_on = []
    for row in rows:
        filled = [i for i in shown if row[i]]
        for i in filled:
            if i == filled[-1] and i != shown[-1]:
                running_on.append((i, len(row[i])))
            else:
                natural[i] = max(natural[i], len(row[i]))
    for i, needed in running_on:
        room = sum(natural[j] + len(GAP) for j in shown if j >= i) - len(GAP)
        natural[i] += max(0, needed - room)
    return natural


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
