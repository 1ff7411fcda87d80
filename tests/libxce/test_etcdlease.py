"""The example's lease in etcd, with a real server, and beside the reference's."""

import socket
from collections.abc import Iterator

import pytest

from node_manager.reference.clock import NS_PER_S, boottime_ns
from node_manager.reference.loop import Loop
from tests.cluster.etcd import MISSING, PROGRAM, alone, ask, code, granted
from tests.integration.host import free_port, wait_until
from tests.libxce.conftest import MINUTE_MS, MakeDriver
from tests.libxce.test_library import CAN_BUILD, WHY_NOT
from tests.unit.reference.test_etcd import Gate, held, lease, look, taken
from tests.unit.reference.test_etcd import acquire as python_acquire

MINUTE_NS = 60 * NS_PER_S
SHORT_MS = 2_000
"""The shortest that etcd gives."""

pytestmark = [
    pytest.mark.skipif(not CAN_BUILD, reason=WHY_NOT),
    pytest.mark.skipif(PROGRAM is None, reason=MISSING),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The client address of a cluster of one."""
    with alone(tmp_path_factory.mktemp("etcd")) as member:
        yield member.client


def bound_to(server: str, name: str) -> str:
    """The lease of etcd's that the record is bound to."""
    found: str = ask(server, "/v3/kv/range", {"key": code(name)})["kvs"][0]["lease"]
    return found


def test_the_term_is_the_revision_and_renewals_keep_it(driver: MakeDriver, server: str, name: str) -> None:
    """The term is what the store was at when the lease was taken; each renewal lasts from before it was asked for."""
    holder = driver(server)
    assert holder.look() == ("free", "0")
    before_ns = boottime_ns()
    term, until_ns = holder.hold()
    after_ns = boottime_ns()
    assert term == int(ask(server, "/v3/kv/range", {"key": code(f"{name}/term")})["kvs"][0]["mod_revision"])
    assert before_ns <= until_ns - MINUTE_NS <= after_ns
    again, later_ns = holder.hold()
    assert again == term
    assert later_ns > until_ns


def test_the_validity_counts_from_before_the_request(driver: MakeDriver, server: str) -> None:
    """However long the store takes, the lease is counted from before it was asked."""
    with Gate(server) as gate:
        holder = driver(gate.address)
        gate.hold("/v3/lease/grant")
        holder.order("acquire", MINUTE_MS, 0)
        wait_until(lambda: gate.held == 1, "it has asked")
        asked_ns = boottime_ns()
        gate.let_go()
        word, _term, until_ns = holder.answer()
        assert word == "held"
        assert int(until_ns) - MINUTE_NS <= asked_ns


def test_others_wait_until_etcd_ends_the_lease_and_have_a_higher_term(driver: MakeDriver, server: str) -> None:
    """While it lasts a rival is told who has it; after its end it takes it, never before what the first was granted."""
    first, rival = driver(server), driver(server, "b")  # neither ends it by its own clock
    term, until_ns = first.hold(length_ms=SHORT_MS)
    assert rival.acquire(length_ms=SHORT_MS)[:2] == ("taken", str(term))
    theirs: list[tuple[str, ...]] = []

    def gets_it() -> bool:
        theirs.append(rival.acquire(length_ms=SHORT_MS))
        return theirs[-1][0] == "held"

    wait_until(gets_it, "the rival gets it")
    assert int(theirs[-1][1]) > term
    assert int(theirs[-1][2]) - SHORT_MS * 1_000_000 >= until_ns
    assert first.acquire()[:2] == ("taken", theirs[-1][1])


def test_a_rival_need_not_wait_for_etcd_to_end_a_lease(driver: MakeDriver, server: str) -> None:
    """Once the same record has stood for longer than its holder can have the lease, it is taken over, not before.

    A renewal begins that time anew.
    """
    holder, rival, other = driver(server), driver(server, "b"), driver(server, "c")
    term, _until_ns = holder.hold()
    word, _term, over_ns = rival.acquire()
    assert word == "taken"
    assert rival.jump(0) - MINUTE_NS * 1001 // 1000 < int(over_ns) - MINUTE_NS * 1001 // 1000 <= rival.jump(0)
    rival.jump(MINUTE_NS - NS_PER_S)
    assert rival.acquire() == ("taken", str(term), over_ns)
    holder.hold()
    rival.jump(2 * NS_PER_S)
    word, _term, over_ns = rival.acquire()
    assert word == "taken"
    rival.jump(int(over_ns) - rival.jump(0))
    assert other.acquire()[:2] == ("taken", str(term))
    theirs, _until_ns = rival.hold()
    assert theirs > term
    assert holder.acquire()[:2] == ("taken", str(theirs))


@pytest.mark.parametrize(
    "record",
    [
        '{"holder": "a", "identity": "a", "lease_ms": true}',
        '{"holder": "a", "identity": "z", "lease_ms": 1.5}',
        '{"holder": "a", "identity": "z", "lease_ms": "4000"}',
        '{"holder": "a", "identity": "z", "lease_ms": 0}',
        '{"holder": "a", "identity": "z", "lease_ms": 9007199254741}',
        '{"holder": "a", "identity": "z", "lease_ms": 4000',
        '{"holder": "", "identity": "z", "lease_ms": 4000}',
        '{"holder": "a", "identity": 7, "lease_ms": 4000}',
        '{"holder": "a"}',
        "[" * 1000,
        "rubbish",
        "",
    ],
    ids=range(12),
)
def test_a_record_of_unknown_length_is_waited_for(driver: MakeDriver, server: str, name: str, record: str) -> None:
    """Where the record does not say for how long its holder has the lease, only its vanishing ends it."""
    rival = driver(server, "b")
    ask(server, "/v3/kv/put", {"key": code(name), "value": code(record)})
    assert rival.acquire() == ("taken", "0", "-1")
    rival.jump(3600 * NS_PER_S)
    assert rival.acquire() == ("taken", "0", "-1")


def test_a_restarted_holder_goes_on_and_its_namesake_does_not(driver: MakeDriver, server: str) -> None:
    """The same identity continues its term as a new process; another one of the same holder's name waits."""
    term, _until_ns = driver(server).hold()
    assert driver(server).hold()[0] == term
    assert driver(server, identity="of-another-host").acquire()[:2] == ("taken", str(term))


def test_a_new_leadership_of_the_same_holder_has_a_new_term_and_no_gap(
    driver: MakeDriver, server: str, name: str
) -> None:
    """Asked for a new term, the holder gets one without the record ever vanishing."""
    holder = driver(server)
    first, _until_ns = holder.hold()
    second, _until_ns = holder.hold(new_term=True)
    assert second > first
    record = ask(server, "/v3/kv/range", {"key": code(name)})["kvs"][0]
    assert int(record["create_revision"]) == first
    assert driver(server).hold(new_term=True)[0] > second


def test_release_ends_the_own_term_only(driver: MakeDriver, server: str) -> None:
    """Given back under its term it is free at once; under another one, or by another, nothing changes."""
    holder, rival = driver(server), driver(server, "b")
    term, _until_ns = holder.hold()
    for wrong, of in ((rival, term), (holder, term - 1)):
        assert wrong.release(of) == ("unknown", "the lease is not ours any more")
    assert rival.look()[:2] == ("taken", str(term))
    assert holder.release(term) == ("free", str(term))
    assert rival.hold()[0] > term


def test_the_next_member_is_asked_after_one_that_fails(driver: MakeDriver, server: str) -> None:
    """A member that refuses, and one that never answers, each cost one question of bounded time."""
    dead = f"127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        holder = driver(f"{dead},{address},{server}", lease_ms=800)
        assert holder.unknown() == f"cannot use etcd at {dead}: Connection refused"
        assert holder.unknown() == f"cannot use etcd at {address}: no answer in time"
    patient = driver(f"{dead},{server}")
    patient.unknown()
    patient.hold()


def test_a_record_that_was_deleted_is_lost(driver: MakeDriver, server: str, name: str) -> None:
    """Whoever deletes the record takes the lease away: the holder learns it at its next renewal, with no lease left."""
    holder = driver(server)
    term, _until_ns = holder.hold()
    ask(server, "/v3/kv/deleterange", {"key": code(name)})
    assert holder.acquire() == ("free", str(term))
    assert holder.hold()[0] > term


def test_a_lease_that_etcd_does_not_know_is_no_end(driver: MakeDriver, server: str) -> None:
    """Revoked between granting and binding ("lease not found"): unknown, and the next renewal succeeds."""
    with Gate(server) as gate:
        holder = driver(gate.address)
        term, _until_ns = holder.hold()
        before = granted(server)
        gate.hold("/v3/kv/txn")
        holder.order("acquire", MINUTE_MS, 0)
        wait_until(lambda: gate.held == 1, "it binds")
        (unbound,) = granted(server) - before
        ask(server, "/v3/lease/revoke", {"ID": unbound})
        gate.let_go()
        word, why = holder.answer()
        assert word == "unknown"
        assert "lease not found" in why
        assert holder.hold()[0] == term


def test_a_request_that_was_held_up_changes_nothing_afterwards(driver: MakeDriver, server: str, name: str) -> None:
    """A renewal that a stopped member carries out late does not bind the record to its older lease again."""
    with Gate(server) as gate:
        holder = driver(f"{gate.address},{server}", lease_ms=4000)
        term, _until_ns = holder.hold()
        gate.hold("/v3/kv/txn")
        assert "no answer in time" in holder.unknown()
        wait_until(lambda: holder.acquire()[0] == "held", "it has renewed at the next member")
        newest = bound_to(server, name)
        gate.let_go()
        wait_until(lambda: gate.done >= 1, "the late request was carried out")
        assert bound_to(server, name) == newest
        assert holder.look()[:2] == ("taken", str(term))


def test_compaction_and_defragmentation_change_nothing(driver: MakeDriver, server: str) -> None:
    """Only the present is read, so a history that is gone is not missed."""
    holder = driver(server)
    term, _until_ns = holder.hold()
    revision = ask(server, "/v3/kv/range", {"key": code("/")})["header"]["revision"]
    assert "header" in ask(server, "/v3/kv/compaction", {"revision": revision, "physical": True})
    assert "error" not in ask(server, "/v3/maintenance/defragment", {})
    assert holder.hold()[0] == term
    assert driver(server, "b").look()[:2] == ("taken", str(term))


def test_a_store_whose_term_went_back_grants_nothing(driver: MakeDriver, server: str, name: str) -> None:
    """A holder that has seen a higher term than the store knows takes no lease from it, and says why."""
    holder = driver(server)
    term, _until_ns = holder.hold()
    holder.release(term)
    ask(server, "/v3/kv/deleterange", {"key": code(f"{name}/term")})
    assert f"its term is 0 and was {term}: was it restored" in holder.unknown()
    assert holder.look()[0] == "unknown"


def test_it_is_one_lease_with_the_references(driver: MakeDriver, server: str, name: str, loop: Loop) -> None:
    """Each reads the other's record, waits for it, goes on with it where it is the same holder's, and takes over."""
    ours, theirs = driver(server, "c"), lease(loop, server, name, "python")
    term, _until_ns = ours.hold()
    assert taken(python_acquire(loop, theirs)) == ("c", term)
    assert held(python_acquire(loop, lease(loop, server, name, "c"))).term == term, "the same identity"
    assert ours.acquire()[0] == "unknown", "another process of its identity has renewed meanwhile"
    assert ours.hold()[0] == term
    ours.release(term)
    second = held(python_acquire(loop, theirs)).term
    assert second > term
    word, of, over_ns = ours.acquire()
    assert (word, of) == ("taken", str(second))
    assert int(over_ns) <= boottime_ns() + MINUTE_NS * 1001 // 1000
    ours.jump(int(over_ns) - ours.jump(0))
    third, _until_ns = ours.hold()
    assert third > second
    assert taken(look(loop, theirs)) == ("c", third)


def test_a_newer_question_takes_the_place_of_one_that_waits(driver: MakeDriver, server: str) -> None:
    """What the first question would have been answered is never taken for the answer to the second."""
    with Gate(server) as gate:
        holder = driver(gate.address)
        gate.hold("/v3/lease/grant")
        holder.order("acquire", MINUTE_MS, 0)
        wait_until(lambda: gate.held == 1, "it has asked")
        assert holder.look() == ("free", "0")
        gate.let_go()
        assert holder.hold()[0] > 0
