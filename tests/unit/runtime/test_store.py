import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_manager.core.durable import DurableFacts, Hold, Latch, Maintenance
from node_manager.runtime.store import Loaded, StateDirError, Store, lock

pytestmark = pytest.mark.usefixtures("no_leaks")


def facts(epoch: int, identity: str = "me", holds: int = 0, reason: str = "r") -> DurableFacts:
    latch = Latch(state="decommissioned", by="operator", reason=reason, at_wall_ns=epoch)
    kept = tuple(Hold(component=f"c{i}", by="x", reason="y" * 40, at_wall_ns=i) for i in range(holds))
    return DurableFacts(identity=identity, epoch_seen=epoch, operator_latch=latch, holds=kept)


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_a_first_boot_has_nothing_and_no_doubt(tmp_path: Path) -> None:
    """No file at all is a host without latches, not an unreadable one."""
    assert Loaded(facts=DurableFacts(identity="me")) == Store(tmp_path).load("me")


def test_what_was_written_is_loaded(tmp_path: Path) -> None:
    """Write after write, the last is loaded by the next agent; two files, mode 0600, readable as JSON."""
    for epoch in range(5):
        store = Store(tmp_path)
        store.load("me")
        store.write(facts(epoch))
        store.write(facts(epoch + 100))
        assert Loaded(facts=facts(epoch + 100)) == Store(tmp_path).load("me")
    assert names(tmp_path) == ["facts.json", "facts.json.spare"]
    for name in names(tmp_path):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        assert (tmp_path / name).stat().st_size % (16 * 1024) == 0
    body = json.loads((tmp_path / "facts.json").read_text())
    assert body["record"]["facts"]["epoch_seen"] == 104


def damage(path: Path, how: str) -> None:
    text = path.read_bytes()
    match how:
        case "torn":
            path.write_bytes(text[:100])
        case "empty":
            path.write_bytes(b"")
        case "flipped":
            path.write_bytes(text.replace(b"decommissioned", b"decommissiOned"))
        case "garbage":
            path.write_bytes(os.urandom(200))
        case "large":
            path.write_bytes(b" " * (5 * 1024 * 1024))
        case "version":
            record = b'{"version": 2, "seq": 9, "facts": {}}'
            digest = hashlib.sha256(record).hexdigest().encode()
            path.write_bytes(b'{"sha256": "' + digest + b'", "record": ' + record + b"}\n")
        case "directory":
            path.unlink()
            path.mkdir()
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize("how", ["torn", "empty", "flipped", "garbage", "large", "version", "directory"])
def test_a_damaged_file_is_never_taken_for_no_latch(tmp_path: Path, how: str) -> None:
    """Whatever happened to facts.json: `unreadable` says so (scenario 23); the older record is offered."""
    store = Store(tmp_path)
    store.load("me")
    store.write(facts(1))
    damage(tmp_path / "facts.json", how)
    loaded = Store(tmp_path).load("me")
    assert re.match(r"cannot use .*facts\.json: .*; no other record is there", loaded.unreadable or "")
    if how != "directory":
        again = Store(tmp_path)
        again.load("me")
        again.write(facts(7))
        assert Loaded(facts=facts(7)) == Store(tmp_path).load("me")


def test_damage_to_the_newest_offers_the_one_before(tmp_path: Path) -> None:
    """The spare's facts are used, with the warning that later ones may be lost; writing loses neither."""
    store = Store(tmp_path)
    store.load("me")
    for epoch in (1, 2, 3):
        store.write(facts(epoch))
    damage(tmp_path / "facts.json", "flipped")
    store = Store(tmp_path)
    loaded = store.load("me")
    assert facts(2) == loaded.facts
    assert "its checksum is wrong; an older record is used" in (loaded.unreadable or "")
    store.write(facts(4))
    assert Loaded(facts=facts(4)) == Store(tmp_path).load("me")


def test_a_removed_file_is_noticed(tmp_path: Path) -> None:
    """facts.json gone while its spare is there is not a first boot."""
    store = Store(tmp_path)
    store.load("me")
    store.write(facts(1))
    store.write(facts(2))
    (tmp_path / "facts.json").unlink()
    loaded = Store(tmp_path).load("me")
    assert facts(1) == loaded.facts
    assert (loaded.unreadable or "").startswith(f"cannot find {tmp_path}/facts.json, only ")
    damage(tmp_path / "facts.json.spare", "torn")
    assert "nor use" in (Store(tmp_path).load("me").unreadable or "")


@pytest.mark.parametrize("how", ["as it was made", "empty"])
def test_a_blank_spare_alone_is_no_first_boot(tmp_path: Path, how: str) -> None:
    """A spare is made only after a record: where it is alone, a latch may be lost, until a later write says."""
    store = Store(tmp_path)
    store.load("me")
    store.write(facts(1))
    (tmp_path / "facts.json").unlink()
    if how == "empty":
        damage(tmp_path / "facts.json.spare", how)
    again = Store(tmp_path)
    loaded = again.load("me")
    assert loaded.unreadable == (
        f"cannot find {tmp_path}/facts.json, nor use {tmp_path}/facts.json.spare: it is empty; no other record is there"
    )
    assert DurableFacts(identity="me") == loaded.facts
    again.write(facts(2))
    assert Loaded(facts=facts(2)) == Store(tmp_path).load("me")
    (tmp_path / "facts.json").unlink()
    (tmp_path / "facts.json.spare").unlink()
    assert Loaded(facts=DurableFacts(identity="me")) == Store(tmp_path).load("me")


def test_a_write_that_was_interrupted_in_another_host_s_directory_counts(tmp_path: Path) -> None:
    """Our newer record is in the spare, another identity's in the primary: ours is found, theirs is kept for them."""
    for directory, identity in (("theirs", "them"), ("ours", "me")):
        (tmp_path / directory).mkdir()
        store = Store(tmp_path / directory)
        store.load(identity)
        store.write(facts(1, identity))
        store.write(facts(2, identity))
    (tmp_path / "ours" / "facts.json").rename(tmp_path / "theirs" / "facts.json.spare")
    loaded = Store(tmp_path / "theirs").load("me")
    assert (facts(2), None) == (loaded.facts, loaded.unreadable)
    assert "and kept as" in (loaded.note or "")
    assert Loaded(facts=facts(2)) == Store(tmp_path / "theirs").load("me")
    assert facts(2, "them") == Store(tmp_path / "theirs").load("them").facts


# The format on the disks of hosts that run already. Whoever changes a field of the durable facts sees these tests fail:
# then the format needs a new version (`_VERSION`), and `_READERS` a reading of this one, which stays here as it is with
# the facts that it means then. Never change the record of a version: an upgrade would make every latch unreadable.
VERSION_1 = (
    rb"""{"sha256": "9c7a97c09b4e7971b0dc0b754641a55e81fec159f40562a8814d9e8c6f95b703", "record": """
    rb"""{"version": 1, "seq": 3, "facts": {"identity": "i-0abc", "epoch_seen": 7, "released_epoch": 5, """
    rb""""controller_latch": {"state": "draining", "by": "controller", "reason": "spot \u201cnotice\u201d", """
    rb""""at_wall_ns": 1700000000000000001, "epoch": 7, "boot_id": "b", "deadline_ns": 2, "deadline_wall_ns": 3}, """
    rb""""operator_latch": {"state": "decommissioned", "by": "uid 0", "reason": "broken", "at_wall_ns": 4, """
    rb""""epoch": null, "boot_id": "", "deadline_ns": null, "deadline_wall_ns": null}, """
    rb""""holds": [{"component": "worker", "by": "uid 0", "reason": "r", "at_wall_ns": 5}], """
    rb""""maintenance": {"by": "uid 0", "reason": "m", "at_wall_ns": 6}, "doubt": "cannot use it"}}}"""
    b"\n"
)
FACTS_OF_VERSION_1 = DurableFacts(
    identity="i-0abc",
    epoch_seen=7,
    released_epoch=5,
    controller_latch=Latch(
        state="draining",
        by="controller",
        reason="spot \u201cnotice\u201d",
        at_wall_ns=1_700_000_000_000_000_001,
        epoch=7,
        boot_id="b",
        deadline_ns=2,
        deadline_wall_ns=3,
    ),
    operator_latch=Latch(state="decommissioned", by="uid 0", reason="broken", at_wall_ns=4),
    holds=(Hold(component="worker", by="uid 0", reason="r", at_wall_ns=5),),
    maintenance=Maintenance(by="uid 0", reason="m", at_wall_ns=6),
    doubt="cannot use it",
)


def test_a_record_of_version_1_is_read(tmp_path: Path) -> None:
    """What an earlier program wrote means the same to this one, field by field."""
    (tmp_path / "facts.json").write_bytes(VERSION_1)
    assert Loaded(facts=FACTS_OF_VERSION_1) == Store(tmp_path).load("i-0abc")


def test_what_is_written_is_version_1(tmp_path: Path) -> None:
    """An earlier program of this version reads what this one writes, after a downgrade too."""
    store = Store(tmp_path)
    store.load("i-0abc")
    for _ in range(3):
        store.write(FACTS_OF_VERSION_1)
    assert (tmp_path / "facts.json").read_bytes().rstrip(b" ") == VERSION_1


LOCK = """
import os, sys, time
from pathlib import Path
from node_manager.runtime.store import StateDirError, lock
if len(sys.argv) > 2:
    os.setgid(54321); os.setuid(54321)
try:
    print(lock(Path(sys.argv[1])), flush=True)
except StateDirError as error:
    print(error, flush=True)
sys.stdin.read()
"""


def test_a_second_agent_with_the_same_state_directory_is_refused(tmp_path: Path) -> None:
    """Two agents would write over each other's latches: the error names the first, and ends with it."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCK, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline().endswith(b", None)\n")
        with pytest.raises(StateDirError) as refused:
            lock(tmp_path)
        assert str(refused.value) == (
            f"cannot use the state directory {tmp_path}: another node manager (pid {first.pid}) keeps its facts there; "
            "stop it first, or choose another directory with --state-dir"
        )
        first.kill()
    fd, reason = lock(tmp_path)
    assert reason is None
    assert fd is not None
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        os.close(fd)
        fd, _ = lock(tmp_path)  # no child keeps it
        assert fd is not None
        os.close(fd)
        assert child.poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_state_directory_that_cannot_be_written_is_used_without_a_lock(tmp_path: Path) -> None:
    """An agent must supervise all the same: no lock, and a sentence for the log."""
    for directory in (tmp_path, *tmp_path.parents[:3]):
        if directory.owner() == "root" and directory != Path("/tmp"):
            directory.chmod(0o755)
    command = [sys.executable, "-c", LOCK, str(tmp_path), "as another user"]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"(None, 'cannot take the lock {tmp_path}/lock: Permission denied (EACCES); ")
    assert lock(tmp_path / "absent")[0] is None


@pytest.mark.parametrize("kind", ["directory", "link", "FIFO"])
def test_a_lock_that_is_no_file_does_not_stop_the_agent(tmp_path: Path, kind: str) -> None:
    """Whatever stands in the lock's place, the call returns at once."""
    match kind:
        case "directory":
            (tmp_path / "lock").mkdir()
        case "link":
            (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
        case _:
            os.mkfifo(tmp_path / "lock")
    fd, reason = lock(tmp_path)
    assert (fd is None) == (reason is not None)
    if fd is not None:
        os.close(fd)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_file_that_may_not_be_read_is_unreadable(tmp_path: Path) -> None:
    """EACCES is not "no latch"."""
    store = Store(tmp_path)
    store.load("me")
    store.write(facts(1))
    code = (
        "import os, sys; from pathlib import Path; from node_manager.runtime.store import Store\n"
        "os.setgid(54321); os.setuid(54321); print(Store(Path(sys.argv[1])).load('me').unreadable)"
    )
    for directory in (tmp_path, *tmp_path.parents[:3]):
        if directory.owner() == "root" and directory != Path("/tmp"):
            directory.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"cannot use {tmp_path}/facts.json: Permission denied (EACCES)")


def test_another_host_inherits_nothing(tmp_path: Path) -> None:
    """Facts of another identity are kept aside, one file at most, and belong to it again when it comes back."""
    for identity, epoch in (("first", 1), ("second", 2), ("third", 3)):
        store = Store(tmp_path)
        loaded = store.load(identity)
        assert (DurableFacts(identity=identity), None) == (loaded.facts, loaded.unreadable)
        assert (identity != "first") == ("belongs to another host" in (loaded.note or ""))
        assert Loaded(facts=DurableFacts(identity=identity)) == Store(tmp_path).load(identity)
        store.write(facts(epoch, identity))
    aside = [name for name in names(tmp_path) if ".of-" in name]
    assert len(aside) == 1
    assert aside[0].startswith("facts.json.of-second-")
    store = Store(tmp_path)
    assert facts(2, "second") == store.load("second").facts
    assert facts(2, "second") == Store(tmp_path).load("second").facts
    store.write(facts(5, "second"))
    assert Loaded(facts=facts(5, "second")) == Store(tmp_path).load("second")
    assert facts(3, "third") == Store(tmp_path).load("third").facts


def test_an_identity_cannot_name_a_path(tmp_path: Path) -> None:
    """Whatever an identity contains, what is kept aside stays in the directory."""
    state = tmp_path / "state"
    state.mkdir()
    store = Store(state)
    store.load("../../" + "x" * 300)
    store.write(facts(1, "../../" + "x" * 300))
    Store(state).load("me")
    assert names(tmp_path) == ["state"]
    assert len(names(state)) == 1


def test_growing_facts_are_kept(tmp_path: Path) -> None:
    """A record that outgrows its slot gets a larger one; a smaller one after it leaves no remains."""
    store = Store(tmp_path)
    store.load("me")
    for holds in (0, 300, 900, 10, 0):
        store.write(facts(holds, holds=holds))
        assert Loaded(facts=facts(holds, holds=holds)) == Store(tmp_path).load("me")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "xce-test", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root and its rights")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file:
        free = os.statvfs(disk).f_bfree * os.statvfs(disk).f_bsize
        file.write(b"x" * free)
        with pytest.raises(OSError, match="No space left"):
            file.write(b"x")


def test_a_full_disk_takes_a_decommission(tiny_disk: Path) -> None:
    """With no block left, latch after latch is durable: the slots exist already."""
    store = Store(tiny_disk)
    store.load("me")
    store.write(DurableFacts(identity="me"))
    fill(tiny_disk)
    for epoch in range(1, 20):
        store.write(facts(epoch, holds=epoch, reason="the disk is full " * epoch))
        assert epoch == Store(tiny_disk).load("me").facts.epoch_seen
    again = Store(tiny_disk)
    again.load("me")
    again.write(facts(21, reason="x" * 10_000))  # beyond what a slot keeps free, still within the slot
    again.write(facts(22, reason="x" * 10_000))
    assert Loaded(facts=facts(22, reason="x" * 10_000)) == Store(tiny_disk).load("me")


def test_a_full_disk_at_the_first_write_says_so_and_recovers(tiny_disk: Path) -> None:
    """No slot yet and no room: an error, nothing half made counts; with room again the write succeeds."""
    fill(tiny_disk)
    store = Store(tiny_disk)
    store.load("me")
    with pytest.raises(OSError, match="No space left"):
        store.write(facts(1, holds=300))
    assert Loaded(facts=DurableFacts(identity="me")) == Store(tiny_disk).load("me")
    (tiny_disk / "ballast").unlink()
    store.write(facts(1))
    assert Loaded(facts=facts(1)) == Store(tiny_disk).load("me")


def test_a_full_disk_is_locked_or_the_agent_runs_without(tiny_disk: Path) -> None:
    """No room for the lock's file: a sentence. No room for the name in it: locked all the same."""
    fill(tiny_disk)
    fd, reason = lock(tiny_disk)
    assert (fd is None) == (reason is not None)
    if fd is not None:
        with pytest.raises(StateDirError, match=r"another node manager \(pid (not named|\d+)\)"):
            lock(tiny_disk)
        os.close(fd)


def test_facts_too_large_for_a_full_disk_fail_and_leave_the_earlier(tiny_disk: Path) -> None:
    """A record beyond the slot on a full disk is refused, the earlier facts stay whole, smaller ones go on."""
    store = Store(tiny_disk)
    store.load("me")
    store.write(facts(1))
    store.write(facts(2))
    fill(tiny_disk)
    with pytest.raises(OSError, match="No space left"):
        store.write(facts(3, holds=1000))
    loaded = Store(tiny_disk).load("me")
    assert (facts(2), None) == (loaded.facts, loaded.unreadable)
    store.write(facts(4))
    assert Loaded(facts=facts(4)) == Store(tiny_disk).load("me")
