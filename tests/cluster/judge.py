"""What the schedulers' own log says: each wrote its term and the time, every few milliseconds, to one file."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A scheduler was at work at this moment (CLOCK_BOOTTIME)."""

    at_ns: int
    term: int
    pid: int
    """0: its log does not say."""
    valid_until_ns: int
    """What it knew of its lease; 0: its log does not say."""


class Log:
    """The file, read on as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.signs: list[Sign] = []

    def read(self) -> list[Sign]:
        """Every sign so far, in the order of the file."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._at += len(whole)
            self.signs.extend(map(_sign, whole.splitlines()))
        return self.signs


def _sign(line: bytes) -> Sign:
    entry = json.loads(line)
    return Sign(
        at_ns=entry["boottime_ns"],
        term=entry["term"],
        pid=entry.get("pid", 0),
        valid_until_ns=entry.get("valid_until_ns", 0),
    )


def interleaved(signs: Iterable[Sign]) -> list[str]:
    """Every moment at which a scheduler shows again after another one has, or a term after a newer one."""
    found = []
    before: Sign | None = None
    over: set[tuple[int, int]] = set()
    for sign in sorted(signs, key=lambda sign: sign.at_ns):
        if before is not None and (sign.term, sign.pid) != (before.term, before.pid):
            over.add((before.term, before.pid))
            if sign.term < before.term or (sign.term, sign.pid) in over:
                found.append(
                    f"term {sign.term} (pid {sign.pid}) at {sign.at_ns} after term {before.term} (pid {before.pid})"
                )
        before = sign
    return found


def longest_gap_ns(signs: Iterable[Sign]) -> int:
    """The longest time without a scheduler."""
    times = sorted(sign.at_ns for sign in signs)
    return max((later - earlier for earlier, later in pairwise(times)), default=0)
