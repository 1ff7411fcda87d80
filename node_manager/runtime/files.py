"""Small files: read with a bound, replaced in one step, locked. Nothing here waits for a FIFO or follows a link."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from node_manager.runtime.disk import LOCAL, Disk, sync_directory, write_all

_PART_BYTES = 64 * 1024
_MAX_HOLDER_BYTES = 32
"""A process id, and a newline."""


class LockHeldError(Exception):
    """Another process has the lock. `holder` is its process id as it wrote it, or "not named"."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


def read(path: Path, limit: int, disk: Disk = LOCAL) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises OSError, also for anything else."""
    fd = disk.open(path, os.O_RDONLY)
    try:
        if not disk.is_regular(fd):
            raise OSError("it is not a regular file")
        data = b""
        while len(data) <= limit and (part := disk.read(fd, _PART_BYTES, len(data))):
            data += part
    finally:
        disk.close(fd)
    if len(data) > limit:
        raise OSError(f"it is larger than {limit} bytes")
    return data


def replace(path: Path, data: bytes, disk: Disk = LOCAL) -> None:
    """Write a new file beside, make it durable, and rename it into place. Blocks. Raises OSError."""
    temporary = path.with_name(f"{path.name}.new")
    with suppress(FileNotFoundError):
        disk.unlink(temporary)  # of a write that failed, or none of ours
    fd = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        write_all(disk, fd, data)
        disk.sync(fd)
    finally:
        disk.close(fd)
    disk.rename(temporary, path)
    sync_directory(disk, path.parent)


def lock(path: Path) -> int:
    """Lock a file (flock(2)) and write our process id to it; the lock ends with the descriptor, which no exec keeps.

    Raises LockHeldError, and OSError where it cannot be opened or locked at all. A process that is forked meanwhile
    holds it too, until it executes its program.
    """
    fd = LOCAL.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = b""
        with suppress(OSError):
            holder = os.pread(fd, _MAX_HOLDER_BYTES, 0)
        os.close(fd)
        if error.errno != errno.EWOULDBLOCK:
            raise
        name = holder.decode("ascii", "replace").strip()
        raise LockHeldError(name if name.isdecimal() else "not named") from error
    with suppress(OSError):  # a full disk: the lock holds without a name too
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
