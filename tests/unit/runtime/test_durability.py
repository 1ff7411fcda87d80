"""The sequence of calls behind each durable file, ended, failed and forgotten at every point of it."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from node_manager.core.durable import DurableFacts, Hold, Latch
from node_manager.runtime import files
from node_manager.runtime.disk import Disk, LocalDisk
from node_manager.runtime.store import Store
from tests.unit.runtime.fakedisk import FakeDisk, FaultyDisk, KilledError

DIRECTORY = Path("/state")
HOLDS = 45
"""A record of several sectors more."""
MANY_HOLDS = 90
"""A record that outgrows the slots of a small one."""

ways = pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "rename"])
sizes = pytest.mark.parametrize("holds", [0, HOLDS], ids=["small", "large"])
histories = pytest.mark.parametrize("before", [0, 1, 3])


def _random(seed: int) -> random.Random:
    """The same choices in every run."""
    return random.Random(seed)  # noqa: S311 - chance, no secret


def facts(epoch: int, holds: int = 0, identity: str = "me") -> DurableFacts:
    latch = Latch(state="decommissioned", by="operator", reason="r", at_wall_ns=epoch)
    kept = tuple(Hold(component=f"c{i}", by="x", reason="y" * 40, at_wall_ns=i) for i in range(holds))
    return DurableFacts(identity=identity, epoch_seen=epoch, operator_latch=latch, holds=kept)


def write(disk: Disk, epoch: int, holds: int = 0, identity: str = "me") -> None:
    store = Store(DIRECTORY, disk=disk)
    store.load(identity)
    store.write(facts(epoch, holds, identity))


def with_history(before: int, *, exchanges: bool = True, holds: int = 0) -> FakeDisk:
    """A disk to which so many records were written, with epochs 1 to `before`, each acknowledged."""
    disk = FakeDisk(DIRECTORY, exchanges=exchanges)
    for epoch in range(1, before + 1):
        write(disk, epoch, holds)
    return disk


def epoch_on(disk: Disk, identity: str = "me") -> int:
    """The epoch that the next agent loads, which must not doubt it."""
    loaded = Store(DIRECTORY, disk=disk).load(identity)
    assert loaded.unreadable is None
    return loaded.facts.epoch_seen


def points_of(action: Callable[[Disk], None], disk: Disk) -> int:
    """How many points an action has at which it can be ended."""
    faulty = FaultyDisk(disk, lambda _point: None)
    action(faulty)
    return faulty.points


def interrupted(action: Callable[[Disk], None], disk: FakeDisk, at: int, error: OSError | None = None) -> bool:
    """Do it with an end, or a failing call, at this point. True: it was acknowledged all the same."""

    def fault(point: int) -> None:
        if point == at:
            raise error or KilledError

    try:
        action(FaultyDisk(disk, fault))
    except (KilledError, OSError):
        return False
    return True


@ways
@sizes
@histories
def test_a_kill_at_any_call_keeps_what_was_acknowledged(before: int, holds: int, *, exchanges: bool) -> None:
    """Kill -9 before each call and in the middle of each write, then again in the next agent's write: old or new."""
    dice = _random(1)

    def again(disk: Disk) -> None:
        write(disk, 99, holds)

    points = points_of(again, with_history(before, exchanges=exchanges))
    assert points > 5
    for at in range(1, points + 1):
        disk = with_history(before, exchanges=exchanges)
        interrupted(again, disk, at)
        left = disk.after_kill()
        seen = epoch_on(left)
        assert seen in {before, 99}
        for second in range(1, points_of(again, left.after_kill()) + 1):
            twice = left.after_kill()
            interrupted(again, twice, second)
            assert epoch_on(twice.after_kill()) in {seen, 99}
            # and a power cut after all that, which finds what neither of them made durable
            if holds == 0:
                assert {epoch_on(later) for later in twice.after_power_cuts(dice)} <= {before, seen, 99}
        write(left, 100)
        assert epoch_on(left.after_kill()) == 100


@ways
@histories
def test_what_an_agent_has_read_outlives_a_power_cut(before: int, *, exchanges: bool) -> None:
    """An agent may say "decommissioned already" of what an interrupted write left: so reading makes it durable."""
    dice = _random(1)

    def again(disk: Disk) -> None:
        write(disk, 99)

    for at in range(1, points_of(again, with_history(before, exchanges=exchanges)) + 2):
        disk = with_history(before, exchanges=exchanges)
        interrupted(again, disk, at)
        left = disk.after_kill()
        seen = epoch_on(left)
        assert {epoch_on(later) for later in left.after_power_cuts(dice)} == {seen}


def test_what_cannot_be_made_durable_is_read_all_the_same() -> None:
    """A disk that refuses is said to: a power cut may bring earlier facts back, and an operator should know."""
    disk = with_history(1)

    def refuse(_point: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    loaded = Store(DIRECTORY, disk=FaultyDisk(disk, refuse)).load("me")
    assert (loaded.facts, loaded.unreadable) == (facts(1), None)
    assert "cannot make what was read of /state/facts.json durable" in (loaded.note or "")


@ways
@sizes
@histories
def test_a_power_cut_at_any_call_keeps_what_was_acknowledged(before: int, holds: int, *, exchanges: bool) -> None:
    """Whatever of what was not made durable is lost, page by page and name by name: old or new, and no doubt."""
    dice = _random(1)

    def again(disk: Disk) -> None:
        write(disk, 99, holds)

    for at in range(1, points_of(again, with_history(before, exchanges=exchanges)) + 2):
        disk = with_history(before, exchanges=exchanges)
        acknowledged = interrupted(again, disk, at)
        for left in disk.after_power_cuts(dice):
            assert epoch_on(left) in ({99} if acknowledged else {before, 99})
            write(left, 100)
            assert {epoch_on(later) for later in left.after_power_cuts(dice)} == {100}


@ways
@sizes
@histories
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_call_that_fails_loses_nothing(before: int, holds: int, number: int, *, exchanges: bool) -> None:
    """Full, broken or read-only at each call: refused or done, never half; the next write succeeds; nothing leaks."""
    dice = _random(1)

    def again(disk: Disk) -> None:
        write(disk, 99, holds)

    for at in range(1, points_of(again, with_history(before, exchanges=exchanges)) + 1):
        disk = with_history(before, exchanges=exchanges)
        acknowledged = interrupted(again, disk, at, OSError(number, os.strerror(number)))
        assert disk.leaked == 0
        for left in (disk.after_kill(), *disk.after_power_cuts(dice)):
            assert epoch_on(left) in ({99} if acknowledged else {before, 99})
        write(disk, 100)
        assert {epoch_on(left) for left in disk.after_power_cuts(dice)} == {100}


@ways
def test_one_agent_goes_on_over_its_own_failed_writes(*, exchanges: bool) -> None:
    """The same store, each of its writes failing at another call: what it acknowledged last is what counts."""
    dice = _random(1)
    broken = False

    def fault(_point: int) -> None:
        if broken and dice.random() < 0.2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    for seed in range(10):
        dice.seed(seed)
        disk = FakeDisk(DIRECTORY, exchanges=exchanges)
        store = Store(DIRECTORY, disk=FaultyDisk(disk, fault))
        store.load("me")
        done = 0
        for epoch in range(1, 20):
            broken = epoch % 6 != 0
            try:
                store.write(facts(epoch, dice.choice([0, 0, HOLDS])))
                done = epoch
            except OSError:
                assert broken
            for left in disk.after_power_cuts(dice):
                assert epoch_on(left) in range(done, epoch + 1)


def test_a_read_only_disk_is_read() -> None:
    """Every change is refused: the facts are there, a write says so, and nothing has changed."""
    disk = with_history(2)

    def refuse(_point: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    store = Store(DIRECTORY, disk=FaultyDisk(disk, refuse))
    assert store.load("me").facts == facts(2)
    with pytest.raises(OSError, match="Read-only"):
        store.write(facts(3))
    assert epoch_on(disk.after_kill()) == 2
    # another identity's record is not moved, and not used
    foreign = Store(DIRECTORY, disk=FaultyDisk(disk, refuse)).load("other")
    assert (foreign.facts, foreign.unreadable) == (DurableFacts(identity="other"), None)
    assert "could not be moved" in (foreign.note or "")


@ways
def test_a_disk_of_any_size_takes_a_record_or_refuses_it(*, exchanges: bool) -> None:
    """From no room at all upwards: what was acknowledged last is loaded, whatever was refused after it."""
    acknowledged = refused = 0
    for room in range(0, 96 * 1024, 1024):
        disk = FakeDisk(DIRECTORY, room=room, exchanges=exchanges)
        store = Store(DIRECTORY, disk=disk)
        store.load("me")
        done = 0
        for epoch, holds in enumerate((0, 0, MANY_HOLDS, 1, 0), start=1):
            try:
                store.write(facts(epoch, holds))
                done = epoch
            except OSError:
                refused += 1
            assert epoch_on(disk.after_kill()) == done
        acknowledged += done
    assert acknowledged > 200
    assert refused > 20


def test_a_damaged_record_is_replaced_without_losing_the_whole_one() -> None:
    """With facts.json damaged, the only whole record is not overwritten before there is another."""

    def again(disk: Disk) -> None:
        write(disk, 99)

    disk = with_history(2)
    overwrite(disk, b"not a record")
    for at in range(1, points_of(again, disk.after_kill()) + 1):
        ended = disk.after_kill()
        interrupted(again, ended, at)
        assert Store(DIRECTORY, disk=ended.after_kill()).load("me").facts in {facts(1), facts(99)}


def test_what_a_failed_write_left_is_not_made_the_primary() -> None:
    """After a failed fsync the spare may look whole and not be on the disk: it is overwritten, never promoted."""
    failing = False

    class Forgetful(FakeDisk):
        """Fails to make a file durable, and says later that it is (fsync(2) reports an error once)."""

        def sync(self, fd: int) -> None:
            if failing and self.is_regular(fd):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().sync(fd)

        def exchange(self, first: Path, second: Path) -> None:
            promoted.append(files.read(first, 1 << 20, self))
            super().exchange(first, second)

    promoted: list[bytes] = []
    store = Store(DIRECTORY, disk=Forgetful(DIRECTORY))
    store.load("me")
    store.write(facts(1))
    failing = True
    with pytest.raises(OSError, match="Input/output"):
        store.write(facts(50))
    failing = False
    store.write(facts(3))
    assert [b'"epoch_seen": 50' in record for record in promoted] == [False]


def overwrite(disk: FakeDisk, data: bytes) -> None:
    """Have this in facts.json, durably."""
    disk.unlink(DIRECTORY / "facts.json")
    fd = disk.open(DIRECTORY / "facts.json", os.O_RDWR | os.O_CREAT)
    disk.write(fd, data, 0)
    disk.sync(fd)
    disk.close(fd)


def test_damage_anywhere_is_never_taken_for_another_record() -> None:
    """Any byte of facts.json changed, and cut off anywhere: the record itself, or the older one with the doubt said."""
    disk = with_history(3)
    text = files.read(DIRECTORY / "facts.json", 1 << 20, disk)
    length = len(text.rstrip(b" "))
    for position in range(length):
        for damaged in (text[:position], text[:position] + bytes([text[position] ^ 1]) + text[position + 1 :]):
            hurt = disk.after_kill()
            overwrite(hurt, damaged)
            loaded = Store(DIRECTORY, disk=hurt).load("me")
            if loaded.facts != facts(3):
                assert loaded.facts == facts(2)
                assert (loaded.unreadable or "").startswith("cannot use /state/facts.json: ")


@ways
@pytest.mark.parametrize("interrupted_write", [False, True])
def test_another_hosts_record_outlives_any_end(*, interrupted_write: bool, exchanges: bool) -> None:
    """An image boots elsewhere and is ended while it puts the record aside: the first host has its latch again."""
    dice = _random(1)

    def boot(disk: Disk) -> None:
        Store(DIRECTORY, disk=disk).load("other")

    def first() -> FakeDisk:
        disk = with_history(2, exchanges=exchanges)
        if interrupted_write:  # and an own record in the spare is newer than the other host's
            write(disk, 7, identity="other")
            points = points_of(lambda on: write(on, 3), disk.after_kill())
            interrupted(lambda on: write(on, 3), disk, points // 2)
        return disk.after_kill()

    theirs = epoch_on(first().after_kill())
    for at in range(1, points_of(boot, first()) + 2):
        disk = first()
        interrupted(boot, disk, at)
        for left in (disk.after_kill(), *disk.after_power_cuts(dice)):
            assert epoch_on(left.after_kill()) == theirs
            assert epoch_on(left.after_kill(), "other") == (7 if interrupted_write else 0)


@pytest.mark.parametrize("old", [None, b"old" * 3000], ids=["first", "replacing"])
def test_a_replaced_file_is_old_or_new_at_any_end(old: bytes | None) -> None:
    """The runtime record and the last good configuration: killed, cut off or failed at each call, never a mixture."""
    dice = _random(1)
    path, new = DIRECTORY / "config.json", b"new" * 5000

    def begin() -> FakeDisk:
        disk = FakeDisk(DIRECTORY)
        if old is not None:
            files.replace(path, old, disk)
        return disk

    def content(disk: FakeDisk) -> bytes | None:
        try:
            return files.read(path, 1 << 20, disk)
        except FileNotFoundError:
            return None

    def again(disk: Disk) -> None:
        files.replace(path, new, disk)

    for error in (None, OSError(errno.ENOSPC, ""), OSError(errno.EROFS, "")):
        for at in range(1, points_of(again, begin()) + 2):
            disk = begin()
            acknowledged = interrupted(again, disk, at, error)
            assert disk.leaked == 0
            for left in (disk.after_kill(), *disk.after_power_cuts(dice)):
                assert content(left) in ({new} if acknowledged else {old, new})
                again(left)  # over whatever is left of the one before
                assert content(left) == new


def _exercise(disk: Disk, directory: Path, dice: random.Random) -> list[object]:
    """Random calls, and what they answered."""
    said: list[object] = []
    paths = [directory / name for name in "abc"]

    def on(path: Path, flags: int) -> None:
        fd = disk.open(path, flags)
        try:
            said.append((disk.is_regular(fd), disk.size(fd)))
            said.append(disk.write(fd, dice.randbytes(dice.randrange(1, 9000)), dice.randrange(9000)))
            disk.allocate(fd, dice.randrange(1, 20_000))
            disk.sync(fd)
            said.append(disk.read(fd, dice.randrange(1, 20_000), dice.randrange(9000)))
        finally:
            disk.close(fd)

    for _ in range(300):
        one, other = dice.choice(paths), dice.choice(paths)
        calls: list[Callable[[], object]] = [
            lambda one=one: on(one, os.O_RDWR),  # type: ignore[misc]
            lambda one=one: on(one, os.O_RDWR | os.O_CREAT),  # type: ignore[misc]
            lambda one=one: on(one, os.O_RDWR | os.O_CREAT | os.O_EXCL),  # type: ignore[misc]
            lambda one=one, other=other: disk.rename(one, other) if one != other else None,  # type: ignore[misc]
            lambda one=one, other=other: disk.exchange(one, other) if one != other else None,  # type: ignore[misc]
            lambda one=one, other=other: disk.link(one, other),  # type: ignore[misc]
            lambda one=one: disk.unlink(one),  # type: ignore[misc]
        ]
        try:
            said.append(dice.choice(calls)())
        except OSError as error:
            said.append(error.errno)
        said.append(sorted(disk.names(directory)))
    return said


def test_the_disk_in_memory_is_like_the_real_one(tmp_path: Path) -> None:
    """The same calls get the same answers, or what was proven with the one says nothing of the other."""
    for seed in range(5):
        real = tmp_path / str(seed)
        real.mkdir()
        expected = _exercise(LocalDisk(), real, _random(seed))
        assert expected == _exercise(FakeDisk(DIRECTORY), DIRECTORY, _random(seed))
