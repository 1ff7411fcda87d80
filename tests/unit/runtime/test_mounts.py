"""What is on a disk of this host's own, and until when that is known."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from node_manager.runtime.mounts import LocalDirectories

HERE = "36 35 %d:%d / / rw,noatime master:1 - %s /dev/root rw,errors=continue\n"


@pytest.fixture
def local() -> Iterator[LocalDirectories]:
    """What this host says."""
    found = LocalDirectories()
    yield found
    found.close()


def _told(directory: Path, *types: str) -> LocalDirectories:
    """What a host says on which the directory lies on file systems of these types."""
    device = directory.stat().st_dev
    lines = [HERE % (os.major(device), os.minor(device), name) for name in types]
    mountinfo = directory / "mountinfo"
    mountinfo.write_text("".join([*lines, HERE % (0, 99, "proc")]))
    return LocalDirectories(mountinfo)


def test_nothing_is_known_unless_it_was_looked_at(local: LocalDirectories, tmp_path: Path) -> None:
    """And of a directory that is not there nothing becomes known."""
    local.look(tmp_path / "missing")
    assert not local.knows(tmp_path)
    assert not local.knows(tmp_path / "missing")


@pytest.mark.parametrize(
    ("types", "known"),
    [
        (["ext4"], True),
        (["xfs"], True),
        (["tmpfs", "tmpfs"], True),
        (["nfs4"], False),
        (["ext4", "fuse.sshfs"], False),
        ([], False),
    ],
)
def test_the_type_decides(tmp_path: Path, types: list[str], *, known: bool) -> None:
    """Every mount of the device has to be of a type that waits for no other host."""
    found = _told(tmp_path, *types)
    found._poller = _Quiet()  # type: ignore[assignment]  # noqa: SLF001 - a file that is no mountinfo tells nothing
    found.look(tmp_path)
    assert found.knows(tmp_path) is known
    found.close()


class _Quiet:
    """Mounts that never change."""

    def register(self, fd: int, events: int) -> None:
        """Nothing is watched."""

    def poll(self, _timeout: int) -> list[tuple[int, int]]:
        """Nothing has changed."""
        return []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_change_of_the_mounts_ends_what_is_known(tmp_path: Path) -> None:
    """Whatever it is: the directory may lie elsewhere now."""
    place = tmp_path / "mount"
    place.mkdir()
    script = f"""
import subprocess, sys
from pathlib import Path
from node_manager.runtime.mounts import LocalDirectories
found = LocalDirectories()
place = Path({str(place)!r})
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
found.look(place)
assert found.knows(place) and found.knows(place), "a tmpfs is local"
subprocess.run(["umount", place], check=True)
assert not found.knows(place), "the mounts have changed"
found.look(Path("/proc"))
assert not found.knows(Path("/proc")), "proc is no disk"
"""
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run(command, check=True, env=environment)


def test_after_the_end_nothing_is_known(local: LocalDirectories, tmp_path: Path) -> None:
    """A thread that comes late changes nothing."""
    local.close()
    local.look(tmp_path)
    assert not local.knows(tmp_path)


def test_the_loop_and_threads_may_ask_at_once(local: LocalDirectories, tmp_path: Path) -> None:
    """Each gets an answer: many starts are looked at in threads while the loop decides about the next."""
    local.look(tmp_path)

    def ask(number: int) -> bool:
        local.look(tmp_path / str(number))
        return all(local.knows(tmp_path) for _ in range(2000))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [True] * 8
