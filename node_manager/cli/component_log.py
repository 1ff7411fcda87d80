"""`xce-nodectl logs`: a component's output, from its file or from the journal, read here and never by the agent."""

from __future__ import annotations

import os
import stat
import sys
import time

from node_manager.api.text import printable
from node_manager.cli.terminal import error, one_line

TYPE_CHECKING = False  # typing itself costs some milliseconds at each start of a command
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from node_manager.cli.terminal import Screen

DONE, NOT_SO, FORBIDDEN = 0, 1, 4
LOOK_S = 0.2
"""Between two looks at a file that is followed."""
MAX_LINE_BYTES = 64 * 1024
"""A longer line is shown in parts: some programs never end one."""
MAX_LAST_BYTES = 64 * 1024 * 1024
"""What is read at most to find the last lines."""
_BLOCK_BYTES = 64 * 1024
_MARK_BYTES = 64
"""What stands before the place that was read up to; where it is not there any more, the file was begun anew."""
_ROTATED = ".1"
"""What logrotate(8) appends to the name of the newest older file."""


def show(why: dict[str, Any], screen: Screen, *, lines: int, follow: bool, as_json: bool) -> int:
    """Show the last lines of a component's output, and with `follow` each further one until Ctrl-C.

    `why` is the agent's answer about the component. The result is the exit status, unless journalctl takes over.
    """
    component = one_line(why["component"])
    if why.get("journal"):
        return _journalctl(why["journal"], lines=lines, follow=follow, as_json=as_json)
    path = why.get("log")
    if not path:
        error(f"cannot show the output of {component}: it goes to the standard error of the agent")
        return NOT_SO
    try:
        for line in _output(path, lines, follow=follow):
            screen.print(_rendered(line, as_json=as_json))
    except PermissionError:
        error(f"cannot read {path}: permission denied; it is for the agent's user and group")
        return FORBIDDEN
    except OSError as problem:
        error(f"cannot read {path}: {problem.strerror}")
        return NOT_SO
    except KeyboardInterrupt:
        pass
    return DONE


def _journalctl(matches: list[str], *, lines: int, follow: bool, as_json: bool) -> int:
    """Become journalctl(1): it knows the journal's files, and who may read them."""
    command = ["journalctl", "--no-pager", f"--lines={lines}"]
    command += ["--follow"] if follow else []
    command += ["--output=json"] if as_json else []
    sys.stdout.flush()
    try:
        os.execvp(command[0], [*command, "--", *matches])  # noqa: S606 - no shell is what is wanted
    except OSError as problem:
        error(f"cannot run {command[0]}: {problem.strerror}; the output is in the journal: {' '.join(matches)}")
        return NOT_SO


def _rendered(line: bytes, *, as_json: bool) -> str:
    text = line.decode(errors="replace")
    if as_json:
        import json

        return json.dumps({"MESSAGE": text})
    return printable(text.expandtabs())


def _output(path: str, lines: int, *, follow: bool) -> Iterator[bytes]:
    """Yield the last lines of a file, and with `follow` those to come. Raises OSError."""
    with _Log(path) as log:
        last = log.last(lines)
        last += [] if follow else log.rest()
        yield from last[max(0, len(last) - lines) :]
        while follow:
            time.sleep(LOOK_S)
            yield from log.more()


class _Log:
    """A file that grows, and that is rotated: emptied in place, or renamed with another one in its place."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = _open(path)
        self._at = 0
        self._mark = b""
        """The last bytes that were read."""
        self._begun = b""
        """A line without its end."""

    def __enter__(self) -> _Log:  # noqa: PYI034  Self lives in typing
        return self

    def __exit__(self, *_exception: object) -> None:
        os.close(self._fd)

    def last(self, lines: int) -> list[bytes]:
        """The last whole lines; from the file that was rotated away what this one has too few of."""
        size = os.fstat(self._fd).st_size
        found, self._begun = _last_lines(self._fd, size, lines)
        self._went_to(size)
        if len(found) < lines:
            found = _older(self._path, lines - len(found)) + found
        return found + (self.rest() if len(self._begun) > MAX_LINE_BYTES else [])

    def rest(self) -> list[bytes]:
        """The line that has no end yet."""
        rest, self._begun = self._begun, b""
        return [rest] if rest else []

    def more(self) -> Iterator[bytes]:
        """What was written since. Raises OSError."""
        yield from self._grown(self._fd)
        if self._after(self._fd) is None:
            # Emptied in place, perhaps with as much in it again; what was said before that is in the copy.
            copy = _opened(self._path + _ROTATED)
            if copy is not None:
                try:
                    yield from self._grown(copy)
                finally:
                    os.close(copy)
            yield from self.rest()
            self._went_to(0)
            yield from self._grown(self._fd)
        following = self._next()
        if following is not None:
            yield from self._grown(self._fd)  # said between the two looks
            yield from self.rest()
            os.close(self._fd)
            self._fd = following
            self._went_to(0)
            yield from self._grown(self._fd)

    def _grown(self, fd: int) -> Iterator[bytes]:
        while data := self._after(fd):
            self._at += len(data)
            self._mark = (self._mark + data)[-_MARK_BYTES:]
            *whole, self._begun = (self._begun + data).split(b"\n")
            yield from whole
            if len(self._begun) > MAX_LINE_BYTES:
                yield from self.rest()

    def _after(self, fd: int) -> bytes | None:
        """What a file has after the place that was read up to; None: what was read stands there no more."""
        data = os.pread(fd, len(self._mark) + _BLOCK_BYTES, self._at - len(self._mark))
        return data[len(self._mark) :] if data.startswith(self._mark) else None

    def _went_to(self, at: int) -> None:
        begin = max(0, at - _MARK_BYTES)
        self._mark = os.pread(self._fd, at - begin, begin)
        # Shorter where it has just been emptied.
        self._at = at if begin + len(self._mark) == at else 0
        self._mark = self._mark if self._at else b""

    def _next(self) -> int | None:
        """The file that has begun in the place of this one, renamed since; None: there is none."""
        fd = _opened(self._path)
        if fd is not None and os.path.sameopenfile(fd, self._fd):
            os.close(fd)
            return None
        return fd


def _older(path: str, lines: int) -> list[bytes]:
    """The last lines of the file that was rotated away, where there is one that can be read."""
    fd = _opened(path + _ROTATED)
    if fd is None:
        return []
    try:
        found, begun = _last_lines(fd, os.fstat(fd).st_size, lines)
        return ([*found, begun] if begun else found)[-lines:]
    finally:
        os.close(fd)


def _last_lines(fd: int, size: int, lines: int) -> tuple[list[bytes], bytes]:
    """The last whole lines of what a file has up to `size`, and the line begun after them."""
    blocks: list[bytes] = []
    ends = 0
    begin = size
    while begin > 0 and ends <= lines and size - begin < MAX_LAST_BYTES:
        step = min(_BLOCK_BYTES, begin)
        begin -= step
        blocks.append(os.pread(fd, step, begin))
        ends += blocks[-1].count(b"\n")
    *whole, begun = b"".join(reversed(blocks)).split(b"\n")
    return whole[len(whole) - min(lines, len(whole)) :], begun


def _opened(path: str) -> int | None:
    try:
        return _open(path)
    except OSError:
        return None


def _open(path: str) -> int:
    """Open a file and nothing else, without waiting. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "it is not a regular file")
    return fd
