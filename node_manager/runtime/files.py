"""Small files: read with a bound, replaced in one step, locked. Nothing here waits for a FIFO or follows a link."""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

_MODE = 0o600
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: opening a FIFO would wait for its other end; a regular file does not know the flag."""
_MAX_HOLDER_BYTES = 32
"""A process id, and a newline."""


class LockHeldError(Exception):
    """Another process has the lock. `holder` is its process id as it wrote it, or "not named"."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


def read(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises OSError, also for anything else."""
    fd = os.open(path, os.O_RDONLY | _SAFELY)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("it is not a regular file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    finally:
        os.close(fd)
    if len(data) > limit:
        raise OSError(f"it is larger than {limit} bytes")
    return data


def replace(path: Path, data: bytes) -> None:
    """Write a new file beside, make it durable, and rename it into place. Blocks. Raises OSError."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)  # of a write that failed, or none of ours
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, _MODE)
    with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor, opened without following links
        file.write(data)
        file.flush()
        os.fsync(fd)
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def lock(path: Path) -> int:
    """Lock a file (flock(2)) and write our process id to it; the lock ends with the descriptor, which no exec keeps.

    Raises LockHeldError, and OSError where it cannot be opened or locked at all. A process that is forked meanwhile
    holds it too, until it executes its program.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | _SAFELY, _MODE)
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
