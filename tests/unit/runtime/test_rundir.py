import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from node_manager.runtime import files, rundir
from node_manager.runtime.record import Encoder, RuntimeRecord
from node_manager.runtime.rundir import RuntimeDirError

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_it_is_made_and_accepted_again(tmp_path: Path) -> None:
    """An absent directory is made with mode 0755, whatever the umask; an existing good one is taken."""
    path = tmp_path / "run"
    before = os.umask(0o077)
    try:
        rundir.prepare(path)
    finally:
        os.umask(before)
    rundir.prepare(path)
    assert path.stat().st_mode & 0o7777 == 0o755


def test_a_directory_that_others_can_change_is_refused(tmp_path: Path) -> None:
    """Group or world writable, a file, a link, no parent: refused with what to do."""
    shared, file, link = tmp_path / "shared", tmp_path / "file", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o775)
    file.touch()
    link.symlink_to(tmp_path)
    for path, expected in (
        (shared, r"others may write to it \(mode 0775\); run `chmod go-w "),
        (file, "it is not a directory; remove it"),
        (link, "it is not a directory; remove it"),
        (tmp_path / "no" / "parent", r"No such file or directory \(ENOENT\); make it for the agent's user"),
    ):
        with pytest.raises(RuntimeDirError, match=f"^cannot .*{expected}"):
            rundir.prepare(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    """The agent's sockets and records live only where nobody else can swap them."""
    path = tmp_path / "run"
    path.mkdir()
    os.chown(path, 65534, -1)
    with pytest.raises(RuntimeDirError, match=r"belongs to uid 65534, the agent runs as uid 0; run the agent as"):
        rundir.prepare(path)


def test_the_nonce_is_made_once_per_boot(tmp_path: Path) -> None:
    """Read back within the boot, made anew for another boot, and when it is not ours alone."""
    first = rundir.nonce(tmp_path, "boot")
    assert len(first) == 32
    assert first == rundir.nonce(tmp_path, "boot")
    assert (tmp_path / "nonce").stat().st_mode & 0o777 == 0o600
    second = rundir.nonce(tmp_path, "next")
    assert first != second
    (tmp_path / "nonce").chmod(0o666)
    assert second != rundir.nonce(tmp_path, "next")
    (tmp_path / "nonce").write_text("short boot")
    assert len(rundir.nonce(tmp_path, "next")) == 32


def spoil(nonce_file: Path, how: str) -> None:
    """Make the nonce's file unusable."""
    if how == "missing":
        nonce_file.unlink()
    elif how == "torn":
        nonce_file.write_text(nonce_file.read_text()[:10])
    elif how == "mode":
        nonce_file.chmod(0o664)
    elif how in {"link", "fifo", "socket"}:
        nonce_file.unlink()
        if how == "link":
            nonce_file.symlink_to("/etc/hostname")
        else:
            os.mknod(nonce_file, 0o600 | (stat.S_IFIFO if how == "fifo" else stat.S_IFSOCK))
    else:
        nonce_file.write_bytes(bytes(range(120, 180)))


@pytest.mark.parametrize("how", ["missing", "torn", "mode", "garbage", "link", "fifo", "socket"])
def test_a_lost_nonce_is_taken_back_from_the_record(tmp_path: Path, how: str) -> None:
    """Whatever became of its file, a host goes on with the nonce that its processes carry, and keeps it again."""
    first = rundir.nonce(tmp_path, "boot")
    files.replace(tmp_path / "runtime.json", Encoder().encode(RuntimeRecord(boot_id="boot", nonce=first)))
    spoil(tmp_path / "nonce", how)
    assert first == rundir.nonce(tmp_path, "boot")
    (tmp_path / "runtime.json").unlink()
    assert first == rundir.nonce(tmp_path, "boot")


@pytest.mark.parametrize("name", ["nonce", "nonce.new"])
def test_a_directory_in_the_nonces_place_is_said(tmp_path: Path, name: str) -> None:
    """What stands there may be somebody's: it is not removed, and the sentence says what to do."""
    (tmp_path / name).mkdir()
    with pytest.raises(
        RuntimeDirError, match=r"^cannot keep the nonce .*/nonce: it, or nonce\.new beside it, is a dir"
    ):
        rundir.nonce(tmp_path, "boot")


@pytest.mark.parametrize("how", ["absent", "boot", "mode", "torn", "nonce", "directory"])
def test_a_record_that_proves_nothing_gives_no_nonce(tmp_path: Path, how: str) -> None:
    """Another boot's record, one that others may write, half of one: a new nonce is made."""
    first = rundir.nonce(tmp_path, "boot")
    path = tmp_path / "runtime.json"
    kept = RuntimeRecord(boot_id="next" if how == "boot" else "boot", nonce="x" if how == "nonce" else first)
    data = Encoder().encode(kept)
    if how == "directory":
        path.mkdir()
    elif how != "absent":
        files.replace(path, data[:-9] if how == "torn" else data)
        path.chmod(0o664 if how == "mode" else 0o600)
    (tmp_path / "nonce").unlink()
    second = rundir.nonce(tmp_path, "boot")
    assert len(second) == 32
    assert first != second


def test_a_second_agent_is_told_who_is_first(tmp_path: Path) -> None:
    """The lock names its holder, ends with it, and is not inherited by children."""
    code = (
        "import sys, pathlib; from node_manager.runtime import rundir\n"
        "rundir.lock(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RuntimeDirError, match=rf"another node manager \(pid {holder.pid}\) supervises there; stop"):
            rundir.lock(tmp_path)
        holder.kill()
    fd = rundir.lock(tmp_path)
    assert not os.get_inheritable(fd)
    assert f"{os.getpid()}\n" == (tmp_path / "lock").read_text()
    os.close(fd)
