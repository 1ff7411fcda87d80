"""The seam between what is durable and the disk: every call by which a file or a directory is read or changed.

Each is one system call, so that a test can end the program, or fail the call, at any of them; and a disk in memory can
forget whatever was not made durable.
"""

import os
import stat
from pathlib import Path
from typing import Protocol

from node_manager.runtime import kernel

_MODE = 0o600
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: opening a FIFO would wait for its other end; a regular file does not know the flag."""


class Disk(Protocol):
    """A part of a file system. Every call raises OSError; a descriptor must be closed."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file, or a directory to make its names durable; a link is not followed (ELOOP)."""

    def close(self, fd: int) -> None:
        """Let go of a descriptor."""

    def is_regular(self, fd: int) -> bool:
        """Tell whether this is a regular file."""

    def size(self, fd: int) -> int:
        """Return the size in bytes."""

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """Return up to `length` bytes; none at the end."""

    def allocate(self, fd: int, size: int) -> None:
        """Have blocks for so many bytes (posix_fallocate(3))."""

    def write(self, fd: int, data: bytes, offset: int) -> int:
        """Write a part of `data`, and return how much."""

    def sync(self, fd: int) -> None:
        """Make a file's content, or a directory's names, durable (fsync(2))."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in the place of whatever has it."""

    def exchange(self, first: Path, second: Path) -> None:
        """Swap two names in one step; EINVAL where the file system cannot."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name (EEXIST)."""

    def unlink(self, path: Path) -> None:
        """Take a name away (ENOENT)."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory."""


class LocalDisk:
    """The real one."""

    def open(self, path: Path, flags: int) -> int:
        """See Disk."""
        return os.open(path, flags | _SAFELY, _MODE)

    def close(self, fd: int) -> None:
        """See Disk."""
        os.close(fd)

    def is_regular(self, fd: int) -> bool:
        """See Disk."""
        return stat.S_ISREG(os.fstat(fd).st_mode)

    def size(self, fd: int) -> int:
        """See Disk."""
        return os.fstat(fd).st_size

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """See Disk."""
        return os.pread(fd, length, offset)

    def allocate(self, fd: int, size: int) -> None:
        """See Disk."""
        os.posix_fallocate(fd, 0, size)

    def write(self, fd: int, data: bytes, offset: int) -> int:
        """See Disk."""
        return os.pwrite(fd, data, offset)

    def sync(self, fd: int) -> None:
        """See Disk."""
        os.fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        """See Disk."""
        source.rename(target)

    def exchange(self, first: Path, second: Path) -> None:
        """See Disk."""
        kernel.exchange(str(first), str(second))

    def link(self, source: Path, target: Path) -> None:
        """See Disk."""
        target.hardlink_to(source)

    def unlink(self, path: Path) -> None:
        """See Disk."""
        path.unlink()

    def names(self, directory: Path) -> list[str]:
        """See Disk."""
        return [entry.name for entry in directory.iterdir()]


LOCAL = LocalDisk()
"""It has no state."""


def write_all(disk: Disk, fd: int, data: bytes, offset: int = 0) -> None:
    """Write everything; a full disk shows as a short write or ENOSPC."""
    while data:
        written = disk.write(fd, data, offset)
        data = data[written:]
        offset += written


def sync_directory(disk: Disk, path: Path) -> None:
    """Make a directory's names durable."""
    fd = disk.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.sync(fd)
    finally:
        disk.close(fd)
