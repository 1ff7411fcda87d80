"""The file lease: its promises, and what breaks a store."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from node_manager.reference.guarded import GuardedFile, Replaced
from node_manager.reference.lease import FileLease, Free, Held, Taken, Unknown

LEASE_NS = 1000
HOLDERS = ("a", "b", "c")


class Clock:
    def __init__(self) -> None:
        self.now_ns = 10**12

    def __call__(self) -> int:
        return self.now_ns


class SlowClock(Clock):
    """A clock that advances each time it is read: work takes time."""

    def __call__(self) -> int:
        self.now_ns += 10
        return self.now_ns


def store(path: Path, clock: Clock, *, writer: str = "w", boot_id: str = "boot-1") -> FileLease:
    return FileLease(path / "lease", boot_id=boot_id, writer=writer, clock=clock)


def test_the_first_acquisition_has_term_one_and_a_validity_from_before(directory: Path) -> None:
    """The validity counts from the moment before the request, the terms from one."""
    clock = SlowClock()
    begun_ns = clock.now_ns
    lease = store(directory, clock)
    first_look_ns = begun_ns + 10
    assert lease.acquire(holder="a", lease_ns=LEASE_NS) == Held(term=1, valid_until_ns=first_look_ns + LEASE_NS)


def test_a_renewal_keeps_the_term_and_an_acquisition_raises_it(directory: Path) -> None:
    """The same holder keeps its term inside its lease, also as a new process; after it, or when asked, it is new."""
    clock = Clock()
    assert store(directory, clock).acquire(holder="a", lease_ns=LEASE_NS) == Held(term=1, valid_until_ns=10**12 + 1000)
    clock.now_ns += 999
    again = store(directory, clock).acquire(holder="a", lease_ns=LEASE_NS)
    assert again == Held(term=1, valid_until_ns=10**12 + 1999)
    clock.now_ns += 1000
    assert store(directory, clock).acquire(holder="a", lease_ns=LEASE_NS) == Held(term=2, valid_until_ns=10**12 + 2999)
    assert store(directory, clock).acquire(holder="a", lease_ns=LEASE_NS, new_term=True) == Held(
        term=3, valid_until_ns=10**12 + 2999
    )


def test_a_rival_waits_for_the_end(directory: Path) -> None:
    """Until the very end of the lease others are refused and told who has it; at its end they get a higher term."""
    clock = Clock()
    store(directory, clock).acquire(holder="a", lease_ns=LEASE_NS)
    clock.now_ns += 999
    expected = Taken(holder="a", term=1, valid_until_ns=10**12 + 1000)
    assert store(directory, clock, writer="v").acquire(holder="b", lease_ns=LEASE_NS) == expected
    assert store(directory, clock).look() == expected
    clock.now_ns += 1
    assert store(directory, clock).look() == Free(term=1)
    taken = store(directory, clock, writer="v").acquire(holder="b", lease_ns=LEASE_NS)
    assert taken == Held(term=2, valid_until_ns=10**12 + 2000)


def test_a_record_of_another_boot_has_run_out(directory: Path) -> None:
    """CLOCK_BOOTTIME of another boot says nothing; the term goes on."""
    clock = Clock()
    store(directory, clock).acquire(holder="a", lease_ns=LEASE_NS)
    other = store(directory, clock, boot_id="boot-2")
    assert other.look() == Free(term=1)
    assert other.acquire(holder="a", lease_ns=LEASE_NS) == Held(term=2, valid_until_ns=10**12 + 1000)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"holder": "a", "term": 1, "valid_until_ns": 5}',
        b'{"holder": "a", "term": true, "valid_until_ns": 5, "boot_id": "boot-1"}',
        b'{"holder": "a", "term": 0, "valid_until_ns": 5, "boot_id": "boot-1"}',
        b'{"holder": "a", "term": 1e99, "valid_until_ns": 5, "boot_id": "boot-1"}',
        b'{"holder": 7, "term": 1, "valid_until_ns": 5, "boot_id": "boot-1"}',
        b'{"holder": "a", "term": 1, "valid_until_ns": -5, "boot_id": "boot-1"}',
    ],
)
def test_an_unreadable_record_grants_nothing(directory: Path, damage: bytes) -> None:
    """Whatever is wrong with a record, nobody acquires, and nobody overwrites it."""
    (directory / "lease").write_bytes(damage)
    lease = store(directory, Clock())
    assert isinstance(lease.look(), Unknown)
    assert isinstance(lease.acquire(holder="a", lease_ns=LEASE_NS), Unknown)
    assert not lease.release(holder="a", term=1)
    assert (directory / "lease").read_bytes() == damage


def test_a_vanished_record_may_have_granted_a_lease(directory: Path) -> None:
    """After the loss of the record nobody acquires before a whole lease has passed, and the term still rises."""
    clock = Clock()
    lease = store(directory, clock)
    lease.acquire(holder="a", lease_ns=LEASE_NS)
    (directory / "lease").unlink()
    assert isinstance(lease.acquire(holder="b", lease_ns=LEASE_NS), Unknown)
    clock.now_ns += LEASE_NS - 1
    assert isinstance(lease.acquire(holder="b", lease_ns=LEASE_NS), Unknown)
    clock.now_ns += 1
    assert lease.acquire(holder="b", lease_ns=LEASE_NS) == Held(term=2, valid_until_ns=clock.now_ns + LEASE_NS)


def test_a_record_that_vanishes_again_is_waited_for_again(directory: Path) -> None:
    """A candidate that saw the first loss, and not the lease that followed it, does not count from the first."""
    clock = Clock()
    first, second = store(directory, clock), store(directory, clock, writer="v")
    first.acquire(holder="a", lease_ns=LEASE_NS)
    (directory / "lease").unlink()
    for lease, holder in ((first, "a"), (second, "b")):
        assert isinstance(lease.acquire(holder=holder, lease_ns=LEASE_NS), Unknown)
    clock.now_ns += LEASE_NS
    assert isinstance(first.acquire(holder="a", lease_ns=LEASE_NS), Held)
    (directory / "lease").unlink()
    assert isinstance(second.acquire(holder="b", lease_ns=LEASE_NS), Unknown)


def test_without_record_and_counter_there_is_no_term(directory: Path) -> None:
    """Where neither tells the highest term, granting one could go back: unknown. A whole record mends the counter."""
    clock = Clock()
    lease = store(directory, clock)
    (directory / "lease.lock").write_bytes(b"rubbish")
    assert isinstance(lease.acquire(holder="a", lease_ns=LEASE_NS), Unknown)
    record = {"holder": "a", "term": 7, "valid_until_ns": 5, "boot_id": "boot-1"}
    (directory / "lease").write_text(json.dumps(record), encoding="utf-8")
    assert lease.acquire(holder="a", lease_ns=LEASE_NS) == Held(term=8, valid_until_ns=clock.now_ns + LEASE_NS)
    assert int((directory / "lease.lock").read_text(encoding="ascii")) == 8


def test_release_ends_the_holders_own_lease_only(directory: Path) -> None:
    """A release needs the holder and the term of the record."""
    clock = Clock()
    lease = store(directory, clock)
    lease.acquire(holder="a", lease_ns=LEASE_NS)
    assert not lease.release(holder="b", term=1)
    assert not lease.release(holder="a", term=2)
    assert isinstance(lease.look(), Taken)
    assert lease.release(holder="a", term=1)
    assert lease.look() == Free(term=1)
    assert lease.acquire(holder="b", lease_ns=LEASE_NS) == Held(term=2, valid_until_ns=clock.now_ns + LEASE_NS)


def test_a_store_that_cannot_be_written_grants_nothing(directory: Path) -> None:
    """An errno of the file system is "unknown", like everything that is not understood."""
    lease = FileLease(directory / "absent" / "lease", boot_id="b", writer="w", clock=Clock())
    answer = lease.acquire(holder="a", lease_ns=LEASE_NS)
    assert isinstance(answer, Unknown)
    assert "No such file" in answer.reason


def test_of_two_changes_made_from_the_same_reading_one_wins(directory: Path) -> None:
    """Whoever is overtaken between reading and writing changes nothing: a stopped process cannot write late."""
    slow, fast = (GuardedFile(directory / "file", writer=writer) for writer in ("slow", "fast"))
    seen = slow.read()
    assert fast.replace(fast.read(), b"fast") is Replaced.DONE
    assert slow.replace(seen, b"slow") is Replaced.CHANGED
    assert fast.read() == b"fast"


def test_a_change_under_way_is_not_waited_for(directory: Path) -> None:
    """A process that holds the lock, perhaps stopped, makes others busy; it does not block them."""
    first, second = (GuardedFile(directory / "file", writer=writer) for writer in ("first", "second"))
    outcomes = []
    assert first.replace(None, b"1", note=lambda _fd: outcomes.append(second.replace(None, b"2"))) is Replaced.DONE
    assert outcomes == [Replaced.BUSY]
    assert second.read() == b"1"


class LeaseMachine(RuleBasedStateMachine):
    """Three candidates, restarts, reboots, torn and lost records, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="xce"))
        self.clock = Clock()
        self.boot = 1
        self.stores: dict[str, FileLease] = {}
        self.held: dict[str, Held] = {}
        self.terms: dict[int, str] = {}
        self.highest = 0

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @initialize()
    def begin(self) -> None:
        for holder in HOLDERS:
            self.restart(holder)

    @rule(holder=st.sampled_from(HOLDERS))
    def restart(self, holder: str) -> None:
        self.stores[holder] = store(self.directory, self.clock, writer=holder, boot_id=f"boot-{self.boot}")

    @rule(holder=st.sampled_from(HOLDERS), new_term=st.booleans())
    def acquire(self, holder: str, new_term: bool) -> None:
        answer = self.stores[holder].acquire(holder=holder, lease_ns=LEASE_NS, new_term=new_term)
        if isinstance(answer, Held):
            assert answer.term >= self.highest
            assert answer.valid_until_ns == self.clock.now_ns + LEASE_NS
            assert self.terms.setdefault(answer.term, holder) == holder, "two holders under one term"
            self.highest = answer.term
            self.held[holder] = answer

    @rule(holder=st.sampled_from(HOLDERS))
    def release(self, holder: str) -> None:
        held = self.held.get(holder)
        if held is not None and self.stores[holder].release(holder=holder, term=held.term):
            del self.held[holder]

    @rule(step_ns=st.sampled_from([1, LEASE_NS // 2, LEASE_NS - 1, LEASE_NS]))
    def wait(self, step_ns: int) -> None:
        self.clock.now_ns += step_ns

    @rule(length=st.integers(0, 60))
    def tear(self, length: int) -> None:
        path = self.directory / "lease"
        if path.exists():
            path.write_bytes(path.read_bytes()[:length])

    @rule()
    def lose(self) -> None:
        (self.directory / "lease").unlink(missing_ok=True)

    @rule()
    def reboot(self) -> None:
        self.boot += 1
        self.clock.now_ns = 5
        self.held.clear()
        self.begin()

    @invariant()
    def at_most_one_holder_is_valid(self) -> None:
        valid = [holder for holder, held in self.held.items() if self.clock.now_ns < held.valid_until_ns]
        assert len(valid) <= 1


LeaseMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestLeaseMachine = LeaseMachine.TestCase
