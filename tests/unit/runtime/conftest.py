"""Fixtures of the runtime's tests: short paths, a rig of real processes, and proof that nothing leaks."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.runtime.rig import Rig


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name (108 bytes)."""
    path = Path(tempfile.mkdtemp(prefix="xce"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """After the test there are no more descriptors than before, and no child, dead or alive."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    after = set(os.listdir("/proc/self/fd"))
    extra = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in after - before if os.path.lexists(f"/proc/self/fd/{fd}")}
    assert not extra, f"descriptors left open: {extra}"
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


@pytest.fixture
def rig(no_leaks: None, short_dir: Path) -> Iterator[Rig]:
    made = Rig(short_dir)
    yield made
    made.close()
