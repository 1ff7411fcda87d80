"""Real processes in each of the ways in which one can be stuck."""

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from node_manager.core.wedge import Finding, judge
from node_manager.runtime.procfs import ProcFs
from node_manager.runtime.samples import Looks
from tests.unit.runtime.rig import BOUND_S

CGROUPS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
_EXIT_THREAD = {"x86_64": 60, "aarch64": 93}
"""The system call that ends one thread."""
LOOK_S = 0.02

FUTEX = "import threading\nlock = threading.Lock()\nlock.acquire()\nprint('up', flush=True)\nlock.acquire()\n"
"""It waits for a lock that it holds itself."""
BUSY = "print('up', flush=True)\nwhile True: pass\n"
FORK_BUSY = f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {BUSY!r}])\n"
"""It sleeps, and what it started does not."""
HALF_DEAD = (
    "import ctypes, threading, time\n"
    "threading.Thread(target=threading.Event().wait).start()\n"
    "print('up', flush=True)\n"
    f"ctypes.CDLL(None).syscall({_EXIT_THREAD.get(platform.machine(), 0)}, 0)\n"
)
"""Its main thread has ended, another sleeps."""
UNINTERRUPTIBLE = (
    "import ctypes, os, signal\nif ctypes.CDLL(None).vfork() == 0:\n    os.write(1, b'up\\n')\n    signal.pause()\n"
)
"""A parent in vfork(2) sleeps in state D until its child executes something or ends."""


class Specimen:
    """A process, and looks at it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        stat = ProcFs().stat(pid)
        assert stat is not None
        self.start_ticks = stat.start_ticks
        self.looks = Looks()

    def verdict(self, *, tree: bool = False, until: Callable[[Finding], object] = lambda _found: True) -> Finding:
        """The verdict of two looks in a row, when there is one and it is as awaited."""
        deadline = time.monotonic() + BOUND_S
        before = after = self.looks.look(self.pid, self.start_ticks, tree=tree)
        while time.monotonic() < deadline:
            after = self.looks.look(self.pid, self.start_ticks, tree=tree)
            found = judge(before, after)
            if found is not None:
                if until(found):
                    return found
                before = after
            time.sleep(LOOK_S)
        raise AssertionError(f"no such verdict; the last two looks: {before}, {after}")


@contextmanager
def running(code: str, *arguments: str, **options: object) -> Iterator[Specimen]:
    """A process that runs this code, once it has written a line."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        start_new_session=True,
        **options,  # type: ignore[call-overload]
    )
    try:
        assert process.stdout.readline() == b"up\n"
        yield Specimen(process.pid)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait(BOUND_S)


@contextmanager
def frozen_group(pid: int) -> Iterator[Path]:
    """A frozen cgroup with this process in it; skips where no v2 hierarchy can be written."""
    root = next((path for path in CGROUPS if (path / "cgroup.procs").exists()), None)
    if root is None or not os.access(root / "cgroup.procs", os.W_OK):
        pytest.skip("no cgroup v2 hierarchy to write to")
    group = root / f"xce-test-{pid}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "cgroup.freeze").write_text("1")
        deadline = time.monotonic() + BOUND_S
        while "frozen 1" not in (group / "cgroup.events").read_text():
            assert time.monotonic() < deadline
            time.sleep(LOOK_S)
        yield group
    finally:
        (group / "cgroup.freeze").write_text("0")
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + BOUND_S
        while "populated 1" in (group / "cgroup.events").read_text():
            assert time.monotonic() < deadline
            time.sleep(LOOK_S)
        group.rmdir()
