import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_manager.core.durable import DurableFacts, Hold, Latch
from node_manager.runtime import kernel
from node_manager.runtime.store import Loaded, Step, Store

pytestmark = pytest.mark.usefixtures("no_leaks")


def facts(epoch: int, identity: str = "me", holds: int = 0, reason: str = "r") -> DurableFacts:
    latch = Latch(state="decommissioned", by="operator", reason=reason, at_wall_ns=epoch)
    kept = tuple(Hold(component=f"c{i}", by="x", reason="y" * 40, at_wall_ns=i) for i in range(holds))
    return DurableFacts(identity=identity, epoch_seen=epoch, operator_latch=latch, holds=kept)


def no_exchange(_first: str, _second: str) -> None:
    raise OSError(errno.EINVAL, "no")


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


KILL_AT = """
import os, signal, sys
from pathlib import Path
from node_manager.runtime import kernel
from node_manager.runtime.store import Step, Store
from tests.unit.runtime.test_store import facts, no_exchange
armed = False
def step(now):
    if armed and now is Step[sys.argv[2]]:
        os.kill(os.getpid(), signal.SIGKILL)
store = Store(Path(sys.argv[1]), step=step, exchange=no_exchange if sys.argv[3] == "rename" else kernel.exchange)
for epoch in range(1, int(sys.argv[4]) + 1):
    store.load("me")
    store.write(facts(epoch, holds=epoch * 10))
    print(epoch, flush=True)
armed = True
store.load("me")
store.write(facts(99, holds=300))
print(99, flush=True)
"""


@pytest.mark.parametrize("way", ["exchange", "rename"])
@pytest.mark.parametrize("before", [0, 1, 4])
@pytest.mark.parametrize("step", list(Step))
def test_a_kill_at_any_step_keeps_what_was_acknowledged(tmp_path: Path, step: Step, before: int, way: str) -> None:
    """Kill -9 at each point of a write: the next agent has the earlier or the new facts, no doubt, and can write."""
    command = [sys.executable, "-c", KILL_AT, str(tmp_path), step.name, way, str(before)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    acknowledged = max([0, *map(int, done.stdout.split())])
    assert done.returncode == -9
    store = Store(tmp_path, exchange=no_exchange if way == "rename" else kernel.exchange)
    loaded = store.load("me")
    assert loaded.unreadable is None
    assert loaded.facts.epoch_seen in {acknowledged, 99}
    if step is Step.DONE:
        assert loaded.facts.epoch_seen == 99
    # and the same again, over what the kill left
    store.write(facts(100))
    assert Loaded(facts=facts(100)) == Store(tmp_path).load("me")


@pytest.mark.parametrize("second", [Step.BEFORE, Step.TORN, Step.EXCHANGED])
@pytest.mark.parametrize("first", [Step.TORN, Step.OVERWRITTEN, Step.SYNCED, Step.EXCHANGED])
def test_two_kills_in_a_row_lose_nothing_that_was_seen(tmp_path: Path, first: Step, second: Step) -> None:
    """What the agent after the first kill loaded is there after a kill of its own write too, or the newer facts are."""
    store = Store(tmp_path)
    store.load("me")
    store.write(facts(1))
    store.write(facts(2))
    command = [sys.executable, "-c", KILL_AT, str(tmp_path), first.name, "exchange", "0"]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == -9
    seen = Store(tmp_path).load("me").facts.epoch_seen
    command[4] = second.name
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == -9
    loaded = Store(tmp_path).load("me")
    assert loaded.unreadable is None
    assert loaded.facts.epoch_seen in {seen, 99}


def test_a_kill_while_a_damaged_file_is_replaced_loses_nothing_more(tmp_path: Path) -> None:
    """With facts.json damaged, the only whole record is not overwritten before there is another."""
    store = Store(tmp_path)
    store.load("me")
    store.write(facts(1))
    store.write(facts(2))
    damage(tmp_path / "facts.json", "flipped")
    command = [sys.executable, "-c", KILL_AT, str(tmp_path), Step.TORN.name, "exchange", "0"]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == -9
    assert Store(tmp_path).load("me").facts == facts(1)


def test_what_a_failed_write_left_is_not_made_the_primary(tmp_path: Path) -> None:
    """After a failed fsync the spare may look whole and not be on the disk: it is overwritten, never promoted."""
    failing = False
    promoted: list[bool] = []

    def step(now: Step) -> None:
        if failing and now is Step.OVERWRITTEN:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def exchange(first: str, second: str) -> None:
        promoted.append(b'"epoch_seen": 50' in Path(first).read_bytes())
        kernel.exchange(first, second)

    store = Store(tmp_path, step=step, exchange=exchange)
    store.load("me")
    store.write(facts(1))
    failing = True
    with pytest.raises(OSError, match="Input/output"):
        store.write(facts(50))
    failing = False
    store.write(facts(3))
    assert promoted == [False]


@pytest.mark.parametrize("at", [step for step in Step if step is not Step.DONE])
def test_a_write_that_fails_leaves_the_earlier_facts(tmp_path: Path, at: Step) -> None:
    """An I/O error at any step: OSError, the acknowledged facts stay, and the next write succeeds."""
    failing = False

    def step(now: Step) -> None:
        if failing and now is at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = Store(tmp_path, step=step)
    store.load("me")
    store.write(facts(1))
    store.write(facts(2))
    for _ in range(3):
        failing = True
        with pytest.raises(OSError, match="Input/output"):
            store.write(facts(50))
        loaded = Store(tmp_path).load("me")
        assert loaded.unreadable is None
        assert loaded.facts.epoch_seen in {2, 50}
    failing = False
    store.write(facts(3))
    assert Loaded(facts=facts(3)) == Store(tmp_path).load("me")


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
