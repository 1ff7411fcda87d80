"""What a terminal needs: its width, colour, clean text, and times that people read."""

from __future__ import annotations

import os
import sys
import time

from node_manager.api.text import printable

TYPE_CHECKING = False  # typing itself costs some milliseconds at each start of a command
if TYPE_CHECKING:
    from typing import Any, TextIO

PIPE_WIDTH = 100
"""Columns where there is no terminal: what a mail or a ticket shows without wrapping."""
MIN_WIDTH = 40
"""Narrower than this nothing is laid out any more, lines just wrap."""
NS_PER_S = 1_000_000_000
RED, GREEN, YELLOW, DIM, BOLD = "31", "32", "33", "2", "1"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_STATES_IN_WORDS = {"backoff": "waiting to restart", "killing": "being killed"}


class Screen:
    """Where output goes, and what it can show. Colour needs a terminal, a TERM that has it, and no NO_COLOR."""

    def __init__(self, out: TextIO, environment: dict[str, str] | os._Environ[str]) -> None:
        self.out = out
        self.terminal = out.isatty()
        self._environment = environment
        self._colour = self.terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"

    def size(self) -> tuple[int, int]:
        """Columns and lines: COLUMNS and LINES rule, as in every other program; 0 lines means no limit."""
        columns, lines = self._number("COLUMNS"), self._number("LINES")
        if self.terminal and not (columns and lines):
            try:
                real = os.get_terminal_size(self.out.fileno())
            except OSError:
                real = os.terminal_size((0, 0))
            columns, lines = columns or real.columns, lines or real.lines
        return max(MIN_WIDTH, columns or PIPE_WIDTH), lines if self.terminal else 0

    def _number(self, name: str) -> int:
        text = self._environment.get(name, "")
        return int(text) if text.isascii() and text.isdigit() else 0

    def paint(self, text: str, *codes: str) -> str:
        """Colour a text where this screen shows colour."""
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self._colour and codes else text

    def print(self, *lines: str) -> None:
        """Write lines at once, so that a follower behind a pipe sees them."""
        self.out.write("".join(f"{line}\n" for line in lines))
        self.out.flush()


def clean(value: Any) -> Any:
    """Make every string of an answer harmless for a terminal; only line ends stay, see `one_line`."""
    if isinstance(value, str):
        return printable(value.expandtabs(), keep="\n")
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return value


def one_line(text: object) -> str:
    """Show a value within a line: whoever wrote it cannot begin a line of their own. None is empty."""
    return "" if text is None else " ".join(printable(str(text), keep="\n").split())


def error(message: str) -> None:
    """Say on standard error what could not be done."""
    sys.stderr.write(f"xce-nodectl: {one_line(message)}\n")


def duration(ns: int) -> str:
    """Show a length of time by its two largest units: `8s`, `4m12s`, `3h05m`, `2d4h`; below a second `0.3s`."""
    seconds = max(0, ns) // NS_PER_S
    if seconds < 1:
        return "0s" if ns <= 0 else f"{ns / NS_PER_S:.1f}s"
    if seconds < _MINUTE:
        return f"{seconds}s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m{seconds % _MINUTE:02}s"
    if seconds < _DAY:
        return f"{seconds // _HOUR}h{seconds % _HOUR // _MINUTE:02}m"
    return f"{seconds // _DAY}d{seconds % _DAY // _HOUR}h"


def state_words(state: object) -> str:
    """Say a state after `is`: those that are no English words in that place are said in words too."""
    text = one_line(state)
    return f"{_STATES_IN_WORDS[text]} ({text})" if text in _STATES_IN_WORDS else text


def jobs(count: int, what: str = "", *, old: object = False) -> str:
    """`1 job`, `2 jobs left`; `old`: it is what was reported last, and nobody knows better now."""
    text = f"{count} job{'' if count == 1 else 's'}{what}"
    return f"{text} (last known)" if old else text


def clock(wall_ns: int) -> str:
    """Show an instant as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ns / NS_PER_S))


class Moments:
    """Instants on CLOCK_BOOTTIME as people say them, from the answer that they came with."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.now_ns: int = body["now_ns"]
        self._offset_ns: int = body["wall_offset_ns"]

    def clock(self, at_ns: int) -> str:
        """Local date and time."""
        return clock(at_ns + self._offset_ns)

    def ago(self, at_ns: int) -> str:
        """`4m12s ago`."""
        return f"{duration(self.now_ns - at_ns)} ago"

    def ahead(self, at_ns: int) -> str:
        """`in 12s`, or `now` where it is due."""
        return f"in {duration(at_ns - self.now_ns)}" if at_ns > self.now_ns else "now"

    def deadline(self, at_ns: int) -> str:
        """`deadline 2025-10-09 09:03:20 (in 10m00s)`; how long ago where it has passed."""
        distance = self.ahead(at_ns) if at_ns > self.now_ns else self.ago(at_ns)
        return f"deadline {self.clock(at_ns)} ({distance})"

    def next(self, following: dict[str, Any] | None) -> str:
        """`start in 12s`; empty where nothing happens by itself."""
        if following is None:
            return ""
        what = one_line(following["what"])
        return what if following["at_ns"] is None else f"{what} {self.ahead(following['at_ns'])}"
