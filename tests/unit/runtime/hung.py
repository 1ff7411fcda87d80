"""A file system that does not answer: whoever looks into it hangs, as on a server that is gone."""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.runtime.rig import BOUND_S

_FUSE = "/dev/fuse"
_DETACH = 2
"""MNT_DETACH, umount2(2)."""


@contextmanager
def hung_directory(path: Path) -> Iterator[Callable[[], None]]:
    """A FUSE file system whose server reads nothing, mounted over `path`; yields what makes every access to it fail.

    After BOUND_S that happens by itself: what hangs on the test's own thread hangs no longer than that. Skips where
    it cannot be mounted.
    """
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

    bound = threading.Timer(BOUND_S, fail)
    try:
        options = f"fd={server},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}"
        if libc.mount(b"xce-hung", os.fsencode(path), b"fuse", 0, options.encode()) != 0:
            pytest.skip(f"cannot mount: {os.strerror(ctypes.get_errno())}")
        bound.start()
        try:
            yield fail
        finally:
            libc.umount2(os.fsencode(path), _DETACH)
    finally:
        bound.cancel()
        fail()
