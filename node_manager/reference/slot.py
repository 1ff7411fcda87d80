"""A holder's place in an election: held by one process at a time, with what its successor has to know."""

import contextlib
import fcntl
import os
import secrets
import zlib
from pathlib import Path

from node_manager.reference.guarded import FILE_MODE

_IDENTITY_BYTES = 16
_IDENTITY = 2 * _IDENTITY_BYTES
"""Characters of the identity; the mark follows it."""
_OVER, _GOES_ON = b"-", b"+"


class Slot:
    """The slot of `holder` beside `path`, for the life of this process. BlockingIOError: another process has it.

    `identity` is random and stays with the file: two places with the same holder's name, on two hosts perhaps, are
    told apart by it. `over`: the last term was given up, so a successor has to begin a new one.
    """

    def __init__(self, path: Path, holder: str) -> None:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        name = f"{path.name}.{zlib.crc32(holder.encode()):08x}.slot"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path.with_name(name), flags, FILE_MODE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept = os.pread(self._fd, _IDENTITY + 1, 0)
            if len(kept) <= _IDENTITY:
                kept = secrets.token_hex(_IDENTITY_BYTES).encode() + _GOES_ON
                os.pwrite(self._fd, kept, 0)
        except OSError:
            os.close(self._fd)
            raise
        self.identity = kept[:_IDENTITY].decode("ascii", "replace")
        self.over = kept[_IDENTITY:] == _OVER

    def remember(self, over: bool) -> None:
        """Keep whether the last term is over. Only a process of this boot asks, so that nothing has to reach the disk.

        One byte is replaced in place: a full disk does not hinder it. On a disk that fails all the same, a restart
        inside the lease goes on under the old term, and nothing worse.
        """
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _OVER if over else _GOES_ON, _IDENTITY)

    def close(self) -> None:
        """Give the place free."""
        os.close(self._fd)
