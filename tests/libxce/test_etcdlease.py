"""The example's lease in etcd: with a real server, beside the reference's, and against wrong ones."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from node_manager.reference.clock import NS_PER_S, boottime_ns
from node_manager.reference.loop import Loop
from tests.cluster.etcd import MISSING, PROGRAM, Member, ask, code, healthy
from tests.integration.host import free_port, wait_until
from tests.libxce.test_library import SOURCE, can_sanitize, make
from tests.unit.reference.test_etcd import Gate, held, lease, look, taken
from tests.unit.reference.test_etcd import acquire as python_acquire
from tests.unit.reference.test_etcd import answer as python_answer

BOUND_S = 40.0
MINUTE_MS = 60_000
MINUTE_NS = 60 * NS_PER_S
SHORT_MS = 2_000
"""The shortest that etcd gives."""

pytestmark = pytest.mark.skipif(
    shutil.which("make") is None or shutil.which("cc") is None or not SOURCE.is_dir(),
    reason="the sources of libxce, make and a C compiler are needed",
)
needs_etcd = pytest.mark.skipif(PROGRAM is None, reason=MISSING)


class Driver:
    """One holder: a program with the example's lease, which obeys lines."""

    def __init__(
        self, command: list[str], endpoints: str, name: str, holder: str, identity: str, lease_ms: int
    ) -> None:
        self._process = subprocess.Popen(
            [*command, endpoints, name, holder, identity, str(lease_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def order(self, *words: object) -> None:
        """Say it, and do not wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> tuple[str, ...]:
        """The next line's words; those of `unknown` are one."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().rstrip("\n")
        assert line, self._process.stderr.read() if self._process.stderr else ""
        word, _, rest = line.partition(" ")
        return (word, rest) if word == "unknown" else (word, *rest.split())

    def look(self) -> tuple[str, ...]:
        self.order("look")
        return self.answer()

    def acquire(self, *, length_ms: int = MINUTE_MS, new_term: bool = False) -> tuple[str, ...]:
        self.order("acquire", length_ms, int(new_term))
        return self.answer()

    def hold(self, *, length_ms: int = MINUTE_MS, new_term: bool = False) -> tuple[int, int]:
        """Acquire, which must succeed; the term and the end."""
        found = self.acquire(length_ms=length_ms, new_term=new_term)
        assert found[0] == "held", found
        return int(found[1]), int(found[2])

    def unknown(self) -> str:
        """Acquire, which must fail; why."""
        found = self.acquire()
        assert found[0] == "unknown", found
        return found[1]

    def release(self, term: int) -> tuple[str, ...]:
        self.order("release", term)
        return self.answer()

    def jump(self, delta_ns: int) -> int:
        """Let its clock jump; its new time."""
        self.order("clock", delta_ns)
        word, now = self.answer()
        assert word == "clock"
        return int(now)

    def end(self) -> None:
        """Let it end, which it must in order: sanitizers and valgrind would say so."""
        if self._process.poll() is None:
            _out, errors = self._process.communicate(timeout=BOUND_S)
            assert (self._process.returncode, errors) == (0, "")

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libxce")


@pytest.fixture(scope="module")
def program(build: Path) -> str:
    """Where the driver is; with sanitizers, where the compiler has them."""
    path = build / ("sanitize/leasedriver" if can_sanitize(build) else "leasedriver")
    make(str(path), build)
    return str(path)


MakeDriver = Callable[..., Driver]


@pytest.fixture
def driver(program: str, name: str) -> Iterator[MakeDriver]:
    """Make holders, whose identity is their name; each must end in order."""
    made: list[Driver] = []

    def start(
        endpoints: str,
        holder: str = "a",
        *,
        identity: str = "",
        lease_ms: int = MINUTE_MS,
        command: list[str] | None = None,
    ) -> Driver:
        made.append(Driver(command or [program], endpoints, name, holder, identity or holder, lease_ms))
        return made[-1]

    try:
        yield start
        for each in made:
            each.end()
    finally:
        for each in made:
            each.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The client address of a cluster of one."""
    member = Member(tmp_path_factory.mktemp("etcd"), "e1", "127.0.0.1", client=free_port(), peer=free_port())
    member.start([member])
    try:
        wait_until(lambda: healthy(member.client), "etcd answers")
        yield member.client
    finally:
        member.end()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A lease that no other test has."""
    return f"/xce/c/{request.node.name}"


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def bound_to(server: str, name: str) -> str:
    """The lease of etcd's that the record is bound to."""
    found: str = ask(server, "/v3/kv/range", {"key": code(name)})["kvs"][0]["lease"]
    return found


# --- a real server --------------------------------------------------------------------------------------------------


@needs_etcd
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


@needs_etcd
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


@needs_etcd
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


@needs_etcd
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


@needs_etcd
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


@needs_etcd
def test_a_restarted_holder_goes_on_and_its_namesake_does_not(driver: MakeDriver, server: str) -> None:
    """The same identity continues its term as a new process; another one of the same holder's name waits."""
    term, _until_ns = driver(server).hold()
    assert driver(server).hold()[0] == term
    assert driver(server, identity="of-another-host").acquire()[:2] == ("taken", str(term))


@needs_etcd
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


@needs_etcd
def test_release_ends_the_own_term_only(driver: MakeDriver, server: str) -> None:
    """Given back under its term it is free at once; under another one, or by another, nothing changes."""
    holder, rival = driver(server), driver(server, "b")
    term, _until_ns = holder.hold()
    for wrong, of in ((rival, term), (holder, term - 1)):
        assert wrong.release(of) == ("unknown", "the lease is not ours any more")
    assert rival.look()[:2] == ("taken", str(term))
    assert holder.release(term) == ("free", str(term))
    assert rival.hold()[0] > term


@needs_etcd
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


@needs_etcd
def test_a_record_that_was_deleted_is_lost(driver: MakeDriver, server: str, name: str) -> None:
    """Whoever deletes the record takes the lease away: the holder learns it at its next renewal, with no lease left."""
    holder = driver(server)
    term, _until_ns = holder.hold()
    ask(server, "/v3/kv/deleterange", {"key": code(name)})
    assert holder.acquire() == ("free", str(term))
    assert holder.hold()[0] > term


@needs_etcd
def test_a_lease_that_etcd_does_not_know_is_no_end(driver: MakeDriver, server: str, name: str) -> None:
    """Revoked between granting and binding ("lease not found"): unknown, and the next renewal succeeds."""
    with Gate(server) as gate:
        holder = driver(gate.address)
        term, _until_ns = holder.hold()
        gate.hold("/v3/kv/txn")
        holder.order("acquire", MINUTE_MS, 0)
        wait_until(lambda: gate.held == 1, "it binds")
        for granted in ask(server, "/v3/lease/leases", {})["leases"]:
            if granted["ID"] != bound_to(server, name):
                ask(server, "/v3/lease/revoke", {"ID": granted["ID"]})
        gate.let_go()
        word, why = holder.answer()
        assert word == "unknown"
        assert "lease not found" in why
        assert holder.hold()[0] == term


@needs_etcd
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


@needs_etcd
def test_compaction_and_defragmentation_change_nothing(driver: MakeDriver, server: str) -> None:
    """Only the present is read, so a history that is gone is not missed."""
    holder = driver(server)
    term, _until_ns = holder.hold()
    revision = ask(server, "/v3/kv/range", {"key": code("/")})["header"]["revision"]
    assert "header" in ask(server, "/v3/kv/compaction", {"revision": revision, "physical": True})
    assert "error" not in ask(server, "/v3/maintenance/defragment", {})
    assert holder.hold()[0] == term
    assert driver(server, "b").look()[:2] == ("taken", str(term))


@needs_etcd
def test_a_store_whose_term_went_back_grants_nothing(driver: MakeDriver, server: str, name: str) -> None:
    """A holder that has seen a higher term than the store knows takes no lease from it, and says why."""
    holder = driver(server)
    term, _until_ns = holder.hold()
    holder.release(term)
    ask(server, "/v3/kv/deleterange", {"key": code(f"{name}/term")})
    assert f"its term is 0 and was {term}: was it restored" in holder.unknown()
    assert holder.look()[0] == "unknown"


@needs_etcd
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


# --- a scripted one -------------------------------------------------------------------------------------------------


class Script:
    """A server that gives each connection the next of these answers, as bytes; after the last one the last again.

    It reads the request first, and closes after the answer unless it `stays`.
    """

    def __init__(self, *answers: bytes, stays: bool = False) -> None:
        self._answers = list(answers)
        self._stays = stays
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._sock.getsockname()[1]}"
        self.requests: list[bytes] = []
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while True:
            try:
                peer, _address = self._sock.accept()
            except OSError:
                return
            self._open.append(peer)
            with suppress(OSError):
                self.requests.append(peer.recv(65536))
                peer.sendall(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])
                if not self._stays:
                    peer.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        for peer in self._open:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        self._thread.join(BOUND_S)
        for sock in (self._sock, *self._open):
            sock.close()


def ok(body: str) -> bytes:
    return f"HTTP/1.0 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


NOBODY = ok('{"header":{"revision":"3"},"succeeded":true,"responses":[{"response_range":{}},{"response_range":{}}]}')
GRANTED = ok('{"header":{"revision":"3"},"ID":"77","TTL":"60"}')
BOUND = ok('{"header":{"revision":"4"},"succeeded":true,"responses":[{"response_put":{}},{"response_put":{}}]}')


def test_what_it_asks_is_what_the_reference_asks(driver: MakeDriver, name: str, loop: Loop) -> None:
    """Byte for byte the same requests, but for the server's address: to etcd both are one kind of client."""
    asked = []
    for which in ("c", "python"):
        with Script(NOBODY, GRANTED, BOUND, ok("{}")) as server:
            if which == "c":
                holder = driver(server.address)
                holder.hold()
                holder.release(4)
            else:
                store = lease(loop, server.address, name)
                held(python_acquire(loop, store))
                store.release(term=4)
                python_answer(loop, store)
            asked.append([request.replace(server.address.encode(), b"") for request in server.requests])
    assert len(asked[0]) == 4
    assert asked[0] == asked[1]


GARBAGE = [
    b"",
    b"\0" * 100,
    b"SSH-2.0-OpenSSH\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n",
    b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n{}",
    b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\n[]",
    b"HTTP/1.0 200 OK\r\n\r\n{}",
    b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 60_000,
    b"HTTP/1.0 503 Service Unavailable\r\n\r\n{}",
    NOBODY[:-1],
    ok('{"responses":[]}'),
    ok('{"responses":[{},{}]}'),
    ok('{"responses":[{"response_range":{"kvs":7}},{"response_range":{}}]}'),
    ok('{"responses":[{"response_range":{"kvs":[7]}},{"response_range":{}}]}'),
    ok('{"responses":[{"response_range":{"kvs":[{"value":"%","mod_revision":"1"}]}},{"response_range":{}}]}'),
    ok('{"responses":[{"response_range":{"kvs":[{"value":7,"mod_revision":"1"}]}},{"response_range":{}}]}'),
    ok('{"responses":[{"response_range":{"kvs":[{"value":"YQ=="}]}},{"response_range":{}}]}'),
    ok('{"responses":[{"response_range":{}},{"response_range":{"kvs":[{"mod_revision":"-1"}]}}]}'),
    ok(
        '{"responses":[{"response_range":{}},{"response_range":{"kvs":[{"mod_revision":"999999999999999999999999"}]}}]}'
    ),
    ok('{"responses":[{"response_range":{}},{"response_range":{"kvs":[{"mod_revision":"9007199254740993"}]}}]}'),
    ok('{"responses":[{"response_range":{}},{"response_range":{}},{"response_range":{}}]}'),
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("step", [0, 1, 2], ids=["seeing", "granting", "binding"])
def test_what_is_no_answer_grants_nothing(driver: MakeDriver, data: bytes, step: int) -> None:
    """Cut, strange, of another shape or unhappy: at no step of a question does it count as done."""
    with Script(*[NOBODY, GRANTED][:step], data) as server:
        assert server.address in driver(server.address).unknown()


@pytest.mark.parametrize(
    ("granted", "bound", "length_ms"),
    [
        (GRANTED, BOUND, MINUTE_MS),
        (ok('{"ID":"77","TTL":"2"}'), BOUND, 2000),
        (ok('{"ID":77,"TTL":"9007199254740992"}'), BOUND, MINUTE_MS),
        (ok('{"ID":"77"}'), BOUND, 0),
        (ok('{"TTL":"60"}'), BOUND, None),
        (ok('{"ID":"0","TTL":"60"}'), BOUND, None),
        (ok('{"ID":"77","TTL":"-1"}'), BOUND, None),
        (GRANTED, ok('{"header":{"revision":"4"},"succeeded":"true"}'), None),
        (GRANTED, ok('{"header":{},"succeeded":true}'), None),
        (GRANTED, ok('{"succeeded":true}'), None),
    ],
    ids=range(10),
)
def test_a_grant_lasts_as_long_as_etcd_says_and_no_longer(
    driver: MakeDriver, granted: bytes, bound: bytes, length_ms: int | None
) -> None:
    """A shorter lease of etcd's is a shorter one of ours; one without a number is none, nor is it bound without one."""
    with Script(NOBODY, granted, bound) as server:
        holder = driver(server.address)
        before_ns = boottime_ns()
        found = holder.acquire()
        if length_ms is None:
            assert found[0] == "unknown"
        else:
            assert found[:2] == ("held", "4")
            assert before_ns <= int(found[2]) - length_ms * 1_000_000 <= boottime_ns()


def test_a_binding_under_an_old_revision_is_no_leadership(driver: MakeDriver) -> None:
    """A store whose revision is not above the terms that were seen is another one, or an older state of it."""
    seen = ok(
        '{"responses":[{"response_range":{}},{"response_range":{"kvs":[{"mod_revision":"9","value":"YQ=="}]}}],'
        '"header":{"revision":"9"}}'
    )
    with Script(seen, GRANTED, BOUND) as server:
        assert "its revision is not above the last term" in driver(server.address).unknown()


def test_an_error_of_the_server_is_quoted_and_bounded(driver: MakeDriver) -> None:
    """Operators see etcd's own words, and no more of them than fit in a line."""
    body = '{"error":"x","code":8,"message":"etcdserver: mvcc: database space exceeded' + "x" * 1000 + '"}'
    with Script(b"HTTP/1.0 500 Internal Server Error\r\n\r\n" + body.encode()) as server:
        why = driver(server.address).unknown()
        assert why.startswith(
            f"cannot use etcd at {server.address}: HTTP 500: etcdserver: mvcc: database space exceeded"
        )
        assert len(why) < 256


def test_an_endless_answer_is_cut_off(driver: MakeDriver) -> None:
    """A server that sends without end costs 64 KiB and the question."""
    with Script(b"x" * 1_000_000) as server:
        assert "longer than 65536 bytes" in driver(server.address).unknown()


@pytest.mark.parametrize("data", [b"", BOUND[:20], BOUND], ids=["silence", "half an answer", "a whole one without end"])
def test_an_answer_that_does_not_end_costs_its_time_and_no_more(driver: MakeDriver, data: bytes) -> None:
    """Whatever a member that stands still has sent, the question ends after an eighth of the lease."""
    with Script(data, stays=True) as server:
        assert "no answer in time" in driver(server.address, lease_ms=800).unknown()


@needs_etcd
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


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is needed")
def test_it_is_clean_under_valgrind(driver: MakeDriver, build: Path) -> None:
    """Over real sockets nothing that was never written is read or sent, and nothing stays open."""
    make(str(build / "leasedriver"), build)
    valgrind = ["valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full", str(build / "leasedriver")]
    answers = [NOBODY, GRANTED, BOUND, GRANTED, BOUND, ok("{}"), *GARBAGE]
    with Script(*answers) as server:
        holder = driver(server.address, command=valgrind)
        holder.hold()
        for _ in range(len(answers)):
            holder.acquire()
        holder.end()
