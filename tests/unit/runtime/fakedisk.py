"""A disk in memory that forgets what was not made durable, and one that ends or fails at a chosen call.

What survives a power cut is worked out against us: of the writes to a file since it was last made durable, page by
page, any may have reached the disk and any may not, and so may each change of a name. Only an exchange or a rename is
one step.
"""

import errno
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TypeVar

from node_manager.runtime.disk import Disk

PAGE = 512
"""A sector: what a disk writes in one piece."""
MAX_SUBSETS = 64
"""Outcomes of one power cut that are tried; beyond that a sample of this size, with all and none."""

T = TypeVar("T")


class KilledError(BaseException):
    """The program ends here: nothing after this call happens."""


@dataclass(slots=True, eq=False)
class _File:
    durable: bytes = b""
    now: bytes = b""
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    """Pages by offset, in the order of the writes."""

    def put(self, offset: int, data: bytes) -> None:
        self.now = _patched(self.now, offset, data)
        while data:
            length = PAGE - offset % PAGE
            self.pending.append((offset, data[:length]))
            offset, data = offset + length, data[length:]

    def sync(self) -> None:
        self.durable = self.now
        self.pending.clear()

    def after(self, kept: Sequence[bool]) -> bytes:
        """What is left of it when these of the pending pages had reached the disk."""
        data = self.durable
        for (offset, page), keep in zip(self.pending, kept, strict=True):
            if keep:
                data = _patched(data, offset, page)
        return data


def _patched(data: bytes, offset: int, part: bytes) -> bytes:
    return data[:offset].ljust(offset, b"\0") + part + data[offset + len(part) :]


Names = dict[str, _File]
Change = Mapping[str, _File | None]


class FakeDisk:
    """One directory. `room` bounds its bytes; `exchanges` False: a file system that cannot swap names."""

    def __init__(self, directory: Path, *, room: int | None = None, exchanges: bool = True) -> None:
        self.directory = directory
        self.room = room
        self.exchanges = exchanges
        self._names: Names = {}
        self._durable: Names = {}
        self._pending: list[Change] = []
        self._open: dict[int, _File | None] = {}
        self._next_fd = 1000

    @property
    def leaked(self) -> int:
        """Descriptors that are open."""
        return len(self._open)

    # --- Disk -----------------------------------------------------------------------------------------------------

    def open(self, path: Path, flags: int) -> int:
        if path == self.directory:
            return self._descriptor(None)
        name = self._name(path)
        if name in self._names and flags & os.O_EXCL:
            raise _error(errno.EEXIST)
        if name not in self._names:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT)
            self._change({name: _File()})
        return self._descriptor(self._names[name])

    def close(self, fd: int) -> None:
        del self._open[fd]

    def is_regular(self, fd: int) -> bool:
        return self._open[fd] is not None

    def size(self, fd: int) -> int:
        return len(self._file(fd).now)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        return self._file(fd).now[offset : offset + length]

    def allocate(self, fd: int, size: int) -> None:
        found = self._file(fd)
        have = len(found.now)
        if size > have:
            if self._left() < size - have:
                raise _error(errno.ENOSPC)
            found.put(have, bytes(size - have))

    def write(self, fd: int, data: bytes, offset: int) -> int:
        found = self._file(fd)
        more = max(0, offset + len(data) - len(found.now))
        fits = len(data) - max(0, more - self._left())
        if fits <= 0 < len(data):
            raise _error(errno.ENOSPC)
        found.put(offset, data[:fits])
        return fits

    def sync(self, fd: int) -> None:
        found = self._open[fd]
        if found is None:
            self._durable = dict(self._names)
            self._pending.clear()
        else:
            found.sync()

    def rename(self, source: Path, target: Path) -> None:
        moved = self._existing(source)
        if self._names.get(self._name(target)) is moved:
            return  # two names of one file: rename(2) does nothing
        self._change({self._name(source): None, self._name(target): moved})

    def exchange(self, first: Path, second: Path) -> None:
        if not self.exchanges:
            raise _error(errno.EINVAL)
        one, other = self._existing(first), self._existing(second)
        self._change({self._name(first): other, self._name(second): one})

    def link(self, source: Path, target: Path) -> None:
        found = self._existing(source)
        if self._name(target) in self._names:
            raise _error(errno.EEXIST)
        self._change({self._name(target): found})

    def unlink(self, path: Path) -> None:
        self._existing(path)
        self._change({self._name(path): None})

    def names(self, directory: Path) -> list[str]:
        assert directory == self.directory
        return list(self._names)

    # --- ends -----------------------------------------------------------------------------------------------------

    def after_kill(self) -> "FakeDisk":
        """What the next program finds after kill -9 of this one: everything that was done, still to be lost."""
        copies: dict[_File, _File] = {}

        def copy(names: Change) -> dict[str, _File]:
            return {name: _copied(found, copies) for name, found in names.items() if found is not None}

        made = FakeDisk(self.directory, room=self.room, exchanges=self.exchanges)
        made._names, made._durable = copy(self._names), copy(self._durable)
        made._pending = [dict.fromkeys(change) | copy(change) for change in self._pending]
        return made

    def after_power_cuts(self, dice: random.Random) -> Iterator["FakeDisk"]:
        """What the next boot may find after a power cut now, each outcome a disk."""
        for kept in _subsets(len(self._pending), dice):
            names = dict(self._durable)
            for change, keep in zip(self._pending, kept, strict=True):
                if keep:
                    _apply(names, change)
            files = list(dict.fromkeys(names.values()))
            pages = [len(found.pending) for found in files]
            for outcome in _subsets(sum(pages), dice):
                contents: dict[_File, bytes] = {}
                rest = list(outcome)
                for found, count in zip(files, pages, strict=True):
                    contents[found] = found.after(rest[:count])
                    rest = rest[count:]
                yield self._made({name: contents[found] for name, found in names.items()})

    # --- inside ---------------------------------------------------------------------------------------------------

    def _made(self, contents: dict[str, bytes]) -> "FakeDisk":
        made = FakeDisk(self.directory, room=self.room, exchanges=self.exchanges)
        made._names = {name: _File(durable=data, now=data) for name, data in contents.items()}
        made._durable = dict(made._names)
        return made

    def _change(self, change: Change) -> None:
        _apply(self._names, change)
        self._pending.append(change)

    def _left(self) -> int:
        if self.room is None:
            return 2**62
        return self.room - sum(len(found.now) for found in dict.fromkeys(self._names.values()))

    def _descriptor(self, found: _File | None) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = found
        return self._next_fd

    def _file(self, fd: int) -> _File:
        found = self._open[fd]
        assert found is not None, "a directory"
        return found

    def _existing(self, path: Path) -> _File:
        found = self._names.get(self._name(path))
        if found is None:
            raise _error(errno.ENOENT)
        return found

    def _name(self, path: Path) -> str:
        assert path.parent == self.directory
        return path.name


class FaultyDisk:
    """Another disk, with a word before each call that changes anything, and in the middle of each write.

    `fault` gets the number of the point, counted from 1, and may raise. `points` counts them.
    """

    def __init__(self, disk: Disk, fault: Callable[[int], None]) -> None:
        self._disk = disk
        self._fault = fault
        self.points = 0

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self._point()
        return self._disk.open(path, flags)

    def close(self, fd: int) -> None:
        self._disk.close(fd)

    def is_regular(self, fd: int) -> bool:
        return self._disk.is_regular(fd)

    def size(self, fd: int) -> int:
        return self._disk.size(fd)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        return self._disk.read(fd, length, offset)

    def allocate(self, fd: int, size: int) -> None:
        self._point()
        self._disk.allocate(fd, size)

    def write(self, fd: int, data: bytes, offset: int) -> int:
        self._point()
        half = len(data.rstrip(b" ")) // 2  # within the record, not within the blanks behind it
        written = self._disk.write(fd, data[:half], offset)
        self._point()
        return written if written < half else written + self._disk.write(fd, data[half:], offset + half)

    def sync(self, fd: int) -> None:
        self._point()
        self._disk.sync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._point()
        self._disk.rename(source, target)

    def exchange(self, first: Path, second: Path) -> None:
        self._point()
        self._disk.exchange(first, second)

    def link(self, source: Path, target: Path) -> None:
        self._point()
        self._disk.link(source, target)

    def unlink(self, path: Path) -> None:
        self._point()
        self._disk.unlink(path)

    def names(self, directory: Path) -> list[str]:
        return self._disk.names(directory)

    def _point(self) -> None:
        self.points += 1
        self._fault(self.points)


def _copied(found: _File, copies: dict[_File, _File]) -> _File:
    if found not in copies:
        copies[found] = _File(durable=found.durable, now=found.now, pending=list(found.pending))
    return copies[found]


def _apply(names: Names, change: Change) -> None:
    for name, found in change.items():
        if found is None:
            names.pop(name, None)
        else:
            names[name] = found


def _subsets(count: int, dice: random.Random) -> Iterator[Sequence[bool]]:
    """Every choice among so many things, or a sample with all, none, and each alone and left out."""
    if 2**count <= MAX_SUBSETS:
        yield from product((False, True), repeat=count)
        return
    yield [False] * count
    yield [True] * count
    for alone in range(min(count, MAX_SUBSETS // 4)):
        yield [index == alone for index in range(count)]
        yield [index != alone for index in range(count)]
    for _ in range(MAX_SUBSETS // 4):
        yield [dice.random() < 0.5 for _ in range(count)]


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
