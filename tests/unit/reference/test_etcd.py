"""The lease in etcd, against a real server, and against servers that answer wrongly, late or never."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from node_manager.reference.clock import NS_PER_MS, NS_PER_S, boottime_ns
from node_manager.reference.etcd import EtcdLease
from node_manager.reference.httpcall import Answered, Failed, read_answer
from node_manager.reference.lease import Answer, Free, Held, Taken, Unknown
from node_manager.reference.loop import Loop
from node_manager.reference.settings import parse_etcd
from tests.cluster.etcd import MISSING, PROGRAM, alone, ask, code, granted
from tests.integration.host import free_port, wait_until

BOUND_S = 40.0
LEASE_NS = 2 * NS_PER_S
"""The shortest that etcd gives."""

needs_etcd = pytest.mark.skipif(PROGRAM is None, reason=MISSING)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The client address of a cluster of one."""
    with alone(tmp_path_factory.mktemp("etcd")) as member:
        yield member.client


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A lease that no other test has."""
    return f"/xce/{request.node.name}"


def lease(
    loop: Loop,
    endpoints: str,
    name: str,
    holder: str = "a",
    *,
    lease_ns: int = 60 * NS_PER_S,
    clock: Callable[[], int] = boottime_ns,
) -> EtcdLease:
    """A holder whose identity is its name. Its patience is long: a busy machine must not fail a test."""
    return EtcdLease(
        loop, parse_etcd(endpoints), name=name, holder=holder, identity=holder, lease_ns=lease_ns, clock=clock
    )


def answer(loop: Loop, store: EtcdLease) -> Answer:
    """Wait for the answer to what was asked."""
    until = time.monotonic() + BOUND_S
    while True:
        found = store.answer(boottime_ns())
        if found is not None:
            return found
        assert time.monotonic() < until, "no answer"
        loop.turn(max(min(store.next_ns() - boottime_ns(), NS_PER_S), 0) / NS_PER_S)


def hold(loop: Loop, store: EtcdLease, *, lease_ns: int = 60 * NS_PER_S, new_term: bool = False) -> Held:
    """Acquire, which must succeed, although a busy machine's store may not answer in time."""
    until = time.monotonic() + BOUND_S
    while True:
        found = acquire(loop, store, lease_ns=lease_ns, new_term=new_term)
        if not isinstance(found, Unknown) or "no answer in time" not in found.reason or time.monotonic() > until:
            return held(found)


def acquire(loop: Loop, store: EtcdLease, *, lease_ns: int = 60 * NS_PER_S, new_term: bool = False) -> Answer:
    store.acquire(lease_ns=lease_ns, new_term=new_term)
    return answer(loop, store)


def look(loop: Loop, store: EtcdLease) -> Answer:
    store.look()
    return answer(loop, store)


def held(found: Answer) -> Held:
    assert isinstance(found, Held), found
    return found


def taken(found: Answer) -> tuple[str, int]:
    """Who has it, under which term."""
    assert isinstance(found, Taken), found
    return found.holder, found.term


def bound_to(server: str, name: str) -> str:
    """The lease of etcd's that the record is bound to."""
    found: str = ask(server, "/v3/kv/range", {"key": code(name)})["kvs"][0]["lease"]
    return found


@needs_etcd
def test_the_term_is_the_revision_and_renewals_keep_it(loop: Loop, server: str, name: str) -> None:
    """The term is what the store was at when the lease was taken; each renewal lasts from before it was asked for."""
    store = lease(loop, server, name)
    assert look(loop, store) == Free(term=0)
    before_ns = boottime_ns()
    first = hold(loop, store)
    after_ns = boottime_ns()
    revision = int(ask(server, "/v3/kv/range", {"key": code(f"{name}/term")})["kvs"][0]["mod_revision"])
    assert first.term == revision
    assert before_ns <= first.valid_until_ns - 60 * NS_PER_S <= after_ns
    again = hold(loop, store)
    assert again.term == first.term
    assert again.valid_until_ns > first.valid_until_ns


@needs_etcd
def test_the_validity_counts_from_before_the_request(loop: Loop, server: str, name: str) -> None:
    """However long the store takes, the lease is counted from before it was asked."""
    with Gate(server) as gate:
        store = lease(loop, gate.address, name)
        gate.hold("/v3/lease/grant")
        store.acquire(lease_ns=60 * NS_PER_S, new_term=False)
        wait_for(loop, store, lambda: gate.held == 1)
        asked_ns = boottime_ns()
        gate.let_go()
        assert held(answer(loop, store)).valid_until_ns - 60 * NS_PER_S <= asked_ns


@needs_etcd
def test_others_wait_until_etcd_ends_the_lease_and_have_a_higher_term(loop: Loop, server: str, name: str) -> None:
    """While it lasts a rival is told who has it; after its end it takes it, never before what the first was granted."""
    first, rival = lease(loop, server, name), lease(loop, server, name, "b")  # neither ends it by its own clock
    mine = hold(loop, first, lease_ns=LEASE_NS)
    assert taken(acquire(loop, rival, lease_ns=LEASE_NS)) == ("a", mine.term)
    until = time.monotonic() + BOUND_S
    while isinstance(found := acquire(loop, rival, lease_ns=LEASE_NS), Taken):
        assert time.monotonic() < until
    theirs = held(found)
    assert theirs.term > mine.term
    assert theirs.valid_until_ns - LEASE_NS >= mine.valid_until_ns
    assert taken(acquire(loop, first)) == ("b", theirs.term)


@needs_etcd
def test_a_rival_need_not_wait_for_etcd_to_end_a_lease(loop: Loop, server: str, name: str) -> None:
    """Once the same record has stood for longer than its holder can have the lease, it is taken over, not before.

    A renewal begins that time anew, and so does its being seen first by another rival.
    """
    now_ns = [boottime_ns()]
    minute_ns = 60 * NS_PER_S + 60 * NS_PER_S // 1000
    holder = lease(loop, server, name)
    rival, other = (lease(loop, server, name, each, clock=lambda: now_ns[0]) for each in "bc")
    mine = hold(loop, holder)
    assert taken(acquire(loop, rival)) == ("a", mine.term)
    now_ns[0] += minute_ns - 1
    assert taken(acquire(loop, rival)) == ("a", mine.term)
    hold(loop, holder)
    now_ns[0] += 1
    assert acquire(loop, rival) == Taken(holder="a", term=mine.term, valid_until_ns=now_ns[0] + minute_ns)
    now_ns[0] += minute_ns
    assert taken(acquire(loop, other)) == ("a", mine.term)
    theirs = hold(loop, rival)
    assert theirs.term > mine.term
    assert taken(acquire(loop, holder)) == ("b", theirs.term)


@needs_etcd
def test_a_record_of_unknown_length_is_waited_for(loop: Loop, server: str, name: str) -> None:
    """Where the record does not say for how long its holder has the lease, only its vanishing ends it."""
    now_ns = [boottime_ns()]
    rival = lease(loop, server, name, "b", clock=lambda: now_ns[0])
    for text in ('{"holder": "a", "identity": "a", "lease_ms": true}', '{"holder": "a"}', "rubbish"):
        ask(server, "/v3/kv/put", {"key": code(name), "value": code(text)})
        for _ in range(2):
            found = acquire(loop, rival)
            assert isinstance(found, Taken)
            assert found.valid_until_ns is None
            now_ns[0] += 3600 * NS_PER_S


@needs_etcd
def test_a_restarted_holder_goes_on_and_its_namesake_does_not(loop: Loop, server: str, name: str) -> None:
    """The same identity continues its term as a new process; another one of the same holder's name waits."""
    mine = hold(loop, lease(loop, server, name))
    assert hold(loop, lease(loop, server, name)).term == mine.term
    namesake = EtcdLease(
        loop, parse_etcd(server), name=name, holder="a", identity="of another host", lease_ns=60 * NS_PER_S
    )
    assert taken(acquire(loop, namesake)) == ("a", mine.term)


@needs_etcd
def test_a_new_leadership_of_the_same_holder_has_a_new_term_and_no_gap(loop: Loop, server: str, name: str) -> None:
    """Asked for a new term, the holder gets one without the record ever vanishing."""
    store = lease(loop, server, name)
    first = hold(loop, store)
    second = hold(loop, store, new_term=True)
    assert second.term > first.term
    record = ask(server, "/v3/kv/range", {"key": code(name)})["kvs"][0]
    assert int(record["create_revision"]) == first.term
    restarted = lease(loop, server, name)
    assert hold(loop, restarted, new_term=True).term > second.term


@needs_etcd
def test_release_ends_the_own_term_only(loop: Loop, server: str, name: str) -> None:
    """Given back under its term it is free at once; under another one, or by another, nothing changes."""
    store, rival = lease(loop, server, name), lease(loop, server, name, "b")
    mine = hold(loop, store)
    for wrong, term in ((rival, mine.term), (store, mine.term - 1)):
        wrong.release(term=term)
        assert isinstance(answer(loop, wrong), Unknown)
    assert taken(look(loop, rival)) == ("a", mine.term)
    store.release(term=mine.term)
    assert answer(loop, store) == Free(term=mine.term)
    assert hold(loop, rival).term > mine.term


@needs_etcd
def test_the_next_member_is_asked_after_one_that_fails(loop: Loop, server: str, name: str) -> None:
    """A member that refuses, and one that never answers, each cost one question of bounded time."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        dead = f"127.0.0.1:{free_port()}"
        store = lease(
            loop, f"http://{dead}/,127.0.0.1:{silent.getsockname()[1]},{server}", name, lease_ns=800 * NS_PER_MS
        )
        for words in ("Connection refused", "no answer in time"):
            found = acquire(loop, store, lease_ns=LEASE_NS)
            assert isinstance(found, Unknown)
            assert words in found.reason
    patient = lease(loop, f"{dead},{server}", name)
    assert isinstance(acquire(loop, patient), Unknown)
    assert isinstance(acquire(loop, patient), Held)


@needs_etcd
def test_a_record_that_was_deleted_is_lost(loop: Loop, server: str, name: str) -> None:
    """Whoever deletes the record takes the lease away: the holder learns it at its next renewal, with no lease left."""
    store = lease(loop, server, name)
    mine = hold(loop, store)
    ask(server, "/v3/kv/deleterange", {"key": code(name)})
    assert acquire(loop, store) == Free(term=mine.term)
    assert hold(loop, store).term > mine.term


@needs_etcd
def test_a_lease_that_etcd_does_not_know_is_no_end(loop: Loop, server: str, name: str) -> None:
    """Revoked between granting and binding ("lease not found"): unknown, and the next renewal succeeds."""
    mine = hold(loop, lease(loop, server, name))
    with Gate(server) as gate:
        store = lease(loop, gate.address, name)
        assert hold(loop, store).term == mine.term
        before = granted(server)
        gate.hold("/v3/kv/txn")
        store.acquire(lease_ns=60 * NS_PER_S, new_term=False)
        wait_for(loop, store, lambda: gate.held == 1)
        (unbound,) = granted(server) - before
        ask(server, "/v3/lease/revoke", {"ID": unbound})
        gate.let_go()
        found = answer(loop, store)
        assert isinstance(found, Unknown)
        assert "lease not found" in found.reason
        assert hold(loop, store).term == mine.term


@needs_etcd
def test_a_request_that_was_held_up_changes_nothing_afterwards(loop: Loop, server: str, name: str) -> None:
    """A renewal that a stopped member carries out late does not bind the record to its older lease again."""
    with Gate(server) as gate:
        store = lease(loop, f"{gate.address},{server}", name, lease_ns=4 * NS_PER_S)
        mine = hold(loop, store)
        gate.hold("/v3/kv/txn")
        found = acquire(loop, store)
        assert isinstance(found, Unknown)
        assert "no answer in time" in found.reason
        while not isinstance(found := acquire(loop, store), Held):
            pass
        assert found.term == mine.term
        newest = bound_to(server, name)
        gate.let_go()
        wait_until(lambda: gate.done >= 1, "the late request was carried out")
        assert bound_to(server, name) == newest


@needs_etcd
def test_compaction_and_defragmentation_change_nothing(loop: Loop, server: str, name: str) -> None:
    """Only the present is read, so a history that is gone is not missed."""
    store = lease(loop, server, name)
    mine = hold(loop, store)
    revision = ask(server, "/v3/kv/range", {"key": code(name)})["header"]["revision"]
    assert "header" in ask(server, "/v3/kv/compaction", {"revision": revision, "physical": True})
    assert "error" not in ask(server, "/v3/maintenance/defragment", {})
    assert hold(loop, store).term == mine.term
    assert isinstance(look(loop, lease(loop, server, name, "b")), Taken)


@needs_etcd
def test_a_store_whose_term_went_back_grants_nothing(loop: Loop, server: str, name: str) -> None:
    """A holder that has seen a higher term than the store knows takes no lease from it, and says why."""
    store = lease(loop, server, name)
    mine = hold(loop, store)
    store.release(term=mine.term)
    answer(loop, store)
    ask(server, "/v3/kv/deleterange", {"key": code(f"{name}/term")})
    found = acquire(loop, store)
    assert isinstance(found, Unknown)
    assert f"its term is 0 and was {mine.term}" in found.reason
    assert isinstance(look(loop, store), Unknown)


@needs_etcd
def test_a_record_that_cannot_be_read_is_somebodys(loop: Loop, server: str, name: str) -> None:
    """Whatever stands under the name, it is not overwritten."""
    ask(server, "/v3/kv/put", {"key": code(name), "value": code("[" * 1000)})
    found = acquire(loop, lease(loop, server, name))
    assert isinstance(found, Taken)
    assert "cannot be read" in found.holder


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.0 200 OK\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n\r\n[]",
        b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 100_000,
        b"HTTP/1.0 503 Service Unavailable\r\n\r\n{}",
    ],
)
def test_what_is_no_whole_answer_is_a_failure(data: bytes) -> None:
    """A cut, strange or unhappy answer never counts as done."""
    assert isinstance(read_answer(data), Failed)


def test_an_error_of_the_server_is_quoted_and_bounded() -> None:
    """Operators see etcd's own words, and no more of them than fit in a line."""
    body = json.dumps({"message": "etcdserver: mvcc: database space exceeded" + "x" * 1000}).encode()
    found = read_answer(b"HTTP/1.0 500 Internal Server Error\r\n\r\n" + body)
    assert isinstance(found, Failed)
    assert found.reason.startswith("HTTP 500: etcdserver: mvcc: database space exceeded")
    assert len(found.reason) < 250
    assert read_answer(b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}') == Answered(body={"a": 1})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"responses": []},
        {"responses": [{}, {}]},
        {"responses": [{"response_range": {"kvs": 7}}, {"response_range": {}}]},
        {"responses": [{"response_range": {"kvs": [{"value": "%", "mod_revision": "1"}]}}, {"response_range": {}}]},
        {"responses": [{"response_range": {}}, {"response_range": {"kvs": [{"mod_revision": "-1"}]}}]},
        {"responses": [{"response_range": {}}, {"response_range": {"kvs": [{"mod_revision": "9" * 30}]}}]},
    ],
)
def test_an_answer_that_is_none_grants_nothing(loop: Loop, body: dict[str, Any]) -> None:
    """JSON of another shape than the gateway's is unknown, whatever it is."""
    with Liar(json.dumps(body).encode()) as liar:
        assert isinstance(acquire(loop, lease(loop, liar.address, "/x")), Unknown)
        assert isinstance(look(loop, lease(loop, liar.address, "/x")), Unknown)


def test_an_endless_answer_is_cut_off(loop: Loop) -> None:
    """A server that sends without end costs 64 KiB and the question."""
    with Liar(b"x" * 1_000_000) as liar:
        found = look(loop, lease(loop, liar.address, "/x"))
        assert isinstance(found, Unknown)
        assert "longer than" in found.reason


def wait_for(loop: Loop, store: EtcdLease, condition: Callable[[], bool]) -> None:
    """Go on with the store's question until something else has happened."""
    until = time.monotonic() + BOUND_S
    while not condition():
        assert store.answer(boottime_ns()) is None
        assert time.monotonic() < until
        loop.turn(0.01)


class Liar:
    """A server that answers every request with the same body."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._sock.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while True:
            try:
                peer, _address = self._sock.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                peer.recv(65536)
                peer.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + self._body)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(BOUND_S)
        self._sock.close()


class Gate:
    """Stands before a server, and can keep requests for a path back until it lets them go: as a stopped member does."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._sock.getsockname()[1]}"
        self._path = b"\0"
        self._open = threading.Event()
        self._threads: list[threading.Thread] = [threading.Thread(target=self._serve)]
        self.held = 0
        self.done = 0
        """Requests that were held and then carried out."""

    def hold(self, path: str) -> None:
        """Keep requests for this path back."""
        self._path = path.encode()

    def let_go(self) -> None:
        """Carry out what was kept back, and everything after it."""
        self._path = b"\0"
        self._open.set()

    def _serve(self) -> None:
        while True:
            try:
                peer, _address = self._sock.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._exchange, args=(peer,))
            self._threads.append(thread)
            thread.start()

    def _exchange(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            request = peer.recv(65536)
            mine = request.startswith(b"POST " + self._path)
            if mine:
                self.held += 1
                self._open.wait(BOUND_S)
            with socket.create_connection(self._server) as real:
                real.sendall(request)
                answer = b""
                while data := real.recv(65536):
                    answer += data
            self.done += mine
            peer.sendall(answer)

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.set()
        self._sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(BOUND_S)
        self._sock.close()
