"""An observer of its own: what runs on a host of a test, by the process table alone.

It uses nothing of the agent but the names of two environment variables, and never asks the agent.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Seen:
    """One living process with the marker of a host."""

    pid: int
    start: int
    component: str
    main: bool
    """Its marker names its own pid: a child that inherited the environment does not have that."""


class Observer:
    """Knows the processes whose environment names the directory of one host of a test."""

    def __init__(self, base: Path) -> None:
        self._marker = f"{base}/".encode()

    def look(self) -> list[Seen]:
        """Return every living process of this host but its agents, which are no components."""
        return list(self._look())

    def mains(self) -> dict[str, list[Seen]]:
        """Return the main processes by component."""
        found: dict[str, list[Seen]] = {}
        for seen in self._look():
            if seen.main:
                found.setdefault(seen.component, []).append(seen)
        return found

    def _look(self) -> Iterator[Seen]:
        for entry in os.listdir("/proc"):  # noqa: PTH208 - thousands of entries, and their names are all
            if not entry.isdigit():
                continue
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes()
                if self._marker not in environment:
                    continue
                stat = Path(f"/proc/{entry}/stat").read_bytes()
            except OSError:
                continue  # it has ended
            marks = dict(part.partition(b"=")[::2] for part in environment.split(b"\0"))
            component = marks.get(b"XCE_COMPONENT", b"").decode()
            fields = stat[stat.rindex(b")") + 2 :].split()
            if component and fields[0] not in {b"Z", b"X"}:
                yield Seen(
                    pid=int(entry),
                    start=int(fields[19]),
                    component=component,
                    main=marks.get(b"XCE_MAIN_PID") == entry.encode() and b"XCE_HELPER" not in marks,
                )


def start_time(pid: int) -> int | None:
    """Return when a living process began, in ticks since boot; None: it does not live."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])
