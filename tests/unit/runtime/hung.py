"""A file system that does not answer: whoever looks into it hangs, as on a server that is gone."""

import ctypes
import os
import select
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.runtime.rig import BOUND_S

_FUSE = "/dev/fuse"
_DETACH = 2
"""MNT_DETACH, umount2(2)."""
_INIT = struct.Struct("=IiQ IIII 48x")
"""fuse_out_header and fuse_init_out of linux/fuse.h, as far as a server has to fill them in."""
_MAX_REQUEST_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class Silent:
    """A file system whose server reads what it is asked, and never answers: not even SIGKILL ends who waits for it."""

    server: int
    fail: Callable[[], None]
    """Make every access fail: whoever waits goes on, or dies."""

    def take(self) -> bytes:
        """Read the next request, when it comes."""
        poller = select.poll()
        poller.register(self.server, select.POLLIN)
        assert poller.poll(BOUND_S * 1000), "nobody asks"
        return os.read(self.server, _MAX_REQUEST_BYTES)

    def begin(self) -> None:
        """Answer the mount itself: without that nothing else is asked."""
        unique = struct.unpack_from("=IIQ", self.take())[2]
        os.write(self.server, _INIT.pack(_INIT.size, 0, unique, 7, 31, 0, 0))


@contextmanager
def silent_directory(path: Path) -> Iterator[Silent]:
    """Such a file system, mounted over `path`; see `hung_directory`. Not for the test's own thread: it lasts longer."""
    with _mounted(path, 4 * BOUND_S) as silent:
        silent.begin()
        yield silent


@contextmanager
def hung_directory(path: Path) -> Iterator[Callable[[], None]]:
    """A FUSE file system whose server reads nothing, mounted over `path`; yields what makes every access to it fail.

    After BOUND_S that happens by itself: what hangs on the test's own thread hangs no longer than that. Skips where
    it cannot be mounted.
    """
    with _mounted(path, BOUND_S) as silent:
        yield silent.fail


@contextmanager
def _mounted(path: Path, bound_s: float) -> Iterator[Silent]:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        server = os.open(_FUSE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"no {_FUSE}: {error}")
    lock = threading.Lock()
    open_fds = [server]

    def fail() -> None:
        with lock:
            while open_fds:
                os.close(open_fds.pop())  # the server is gone: ENOTCONN for everybody

    bound = threading.Timer(bound_s, fail)
    try:
        options = f"fd={server},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}"
        if libc.mount(b"xce-hung", os.fsencode(path), b"fuse", 0, options.encode()) != 0:
            pytest.skip(f"cannot mount: {os.strerror(ctypes.get_errno())}")
        bound.start()
        try:
            yield Silent(server, fail)
        finally:
            libc.umount2(os.fsencode(path), _DETACH)
    finally:
        bound.cancel()
        fail()
