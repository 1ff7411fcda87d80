"""A cgroup of a test's own, delegated as systemd delegates one."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from node_manager.runtime import cgroupfs
from tests.unit.runtime.rig import BOUND_S


def tree() -> Path | None:
    """Where the cgroup v2 tree is mounted, if this process may make groups there."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            point = Path(line.split()[4])
            return point if os.geteuid() == 0 and os.access(point / "cgroup.procs", os.W_OK) else None
    return None


needs_cgroups = pytest.mark.skipif(tree() is None, reason="needs root and a cgroup v2 tree that can be written to")


@contextmanager
def delegated() -> Iterator[Path]:
    """A new group; whatever lives in it at the end is killed."""
    top = tree()
    assert top is not None
    root = top / f"xce-test-{os.getpid()}-{time.monotonic_ns()}"
    root.mkdir()
    os.setxattr(root, "user.delegate", b"1")
    try:
        yield root
    finally:
        until_s = time.monotonic() + BOUND_S
        while not cgroupfs.remove(root):
            assert time.monotonic() < until_s, f"{root} does not become empty"
            with suppress(OSError):
                cgroupfs.write(root, "cgroup.kill", "1")
            with suppress(ChildProcessError):
                while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
                    pass
