"""A small file that several processes replace: each reads it freely, and changes it only as it was when read.

A lock guards the comparison and the rename alone, for microseconds, and is never waited for: a process stopped
between them makes others report `BUSY` and try again later, it cannot make two of them win.
"""

import contextlib
import fcntl
import os
import zlib
from collections.abc import Callable
from enum import Enum
from pathlib import Path

MAX_FILE = 4 * 1024 * 1024
"""No file of ours comes near; a larger one is not ours."""
FILE_MODE = 0o640


class Replaced(Enum):
    """The outcome of a replacement."""

    DONE = "done"
    CHANGED = "changed"
    """Someone else replaced it since it was read."""
    BUSY = "busy"
    """Someone else is replacing it just now."""


class GuardedFile:
    """One such file. `writer` names the caller's slot: it keeps one temporary file, however often it crashes."""

    def __init__(self, path: Path, *, writer: str) -> None:
        self.path = path
        self.lock_path = path.with_name(path.name + ".lock")
        self._temporary = path.with_name(f".{path.name}.{zlib.crc32(writer.encode()):08x}.tmp")

    def read(self) -> bytes | None:
        """Whole contents, or None where there is no file. Raises OSError."""
        return read_bounded(self.path)

    def read_lock(self) -> bytes:
        """What was written into the lock file by `note` of `replace`; empty where nothing ever was."""
        return read_bounded(self.lock_path) or b""

    def replace(self, expected: bytes | None, data: bytes, *, note: Callable[[int], None] | None = None) -> Replaced:
        """Put `data` in place of `expected`, durably. Raises OSError; then nothing is certain and the caller re-reads.

        `note` may write into the lock file (it gets its descriptor) before the data is put in place.
        """
        write_durably(self._temporary, data)
        lock = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return Replaced.BUSY
            if self.read() != expected:
                return Replaced.CHANGED
            if note is not None:
                note(lock)
            self._temporary.rename(self.path)
        finally:
            os.close(lock)  # frees the lock
        sync_directory(self.path.parent)
        return Replaced.DONE


def read_bounded(path: Path) -> bytes | None:
    """Contents of a regular file of at most MAX_FILE bytes, None where it does not exist. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        data = stream.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise OSError(f"{path} is larger than {MAX_FILE} bytes")
    return data


def write_durably(path: Path, data: bytes) -> None:
    """Write and fsync a file that only this process writes. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file that only this process writes: readers see the old or the new contents. Raises OSError."""
    temporary = path.with_name(f".{path.name}.tmp")
    write_durably(temporary, data)
    temporary.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a rename in this directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
