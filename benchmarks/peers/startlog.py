"""The file that all probes of a session write to: when each was started, and when it ended by itself."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOK_S = 0.001
"""How often the file is looked at. The times in it are the probes' own: this enters no result."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the file. `at_ns` is CLOCK_MONOTONIC."""

    at_ns: int
    pid: int
    ppid: int
    name: str
    what: str


class StartLog:
    """Reads the file as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[Note] = []
        self.newest: dict[str, Note] = {}
        """The newest start of each component."""
        self._rest = b""
        path.write_bytes(b"")
        self._file = path.open("rb", buffering=0)

    def poll(self) -> None:
        """Read what is new."""
        data = self._file.read()
        if not data:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            at_ns, pid, ppid, name, what = line.decode().split()
            note = Note(int(at_ns), int(pid), int(ppid), name, what)
            self.notes.append(note)
            if what == "start":
                self.newest[name] = note

    def wait(self, condition: Callable[[], bool], bound_s: float) -> bool:
        """Wait until the condition holds of what was read; False: it does not within the bound."""
        until = time.monotonic() + bound_s
        while True:
            self.poll()
            if condition():
                return True
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_S)

    def all_started(self, names: Iterable[str], after_ns: int = 0) -> bool:
        """Whether each of them was started after that instant."""
        return all(name in self.newest and self.newest[name].at_ns > after_ns for name in names)

    def close(self) -> None:
        """Let go of the file and remove it."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def restarts_ms(notes: Sequence[Note], from_ns: int, to_ns: int) -> list[float]:
    """From each end by itself in that time to the component's next start. A last end without a start counts not."""
    ended: dict[str, int] = {}
    found = []
    for note in sorted(notes, key=lambda note: note.at_ns):
        if note.what == "end" and from_ns <= note.at_ns < to_ns:
            ended[note.name] = note.at_ns
        elif note.what == "start" and note.name in ended:
            found.append((note.at_ns - ended.pop(note.name)) / 1e6)
    return found
