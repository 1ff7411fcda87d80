"""Tcp and http probes against peers that misbehave, and name lookups that hang."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from node_manager.core.events import Outcome, ProbeDone
from node_manager.core.spec import ExecCheck, HttpCheck, TcpCheck
from node_manager.runtime.netprobe import MAX_BODY_BYTES, MAX_HEADER_BYTES, NetProbe
from node_manager.runtime.resolver import MAX_ADDRESSES, MAX_THREADS, MAX_WAITING, Resolver
from tests.unit.runtime.rig import BOUND_S, Rig
from tests.unit.runtime.test_probers import NS, OK_ANSWER, Bench, serving

HEAD = b"HTTP/1.1 200 OK\r\n"
PORT = 9


class Lookups:
    """A resolver whose lookups a test answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.begun: list[str] = []
        self.released = threading.Event()
        self.answers: list[tuple[tuple[str, ...], str]] = []
        self.resolver = Resolver(loop, self.look)

    def look(self, host: str) -> tuple[tuple[str, ...], str]:
        self.begun.append(host)
        if host.startswith("slow"):
            assert self.released.wait(BOUND_S)
        return ("192.0.2.1", host), ""

    def answer(self, addresses: tuple[str, ...], trouble: str) -> None:
        self.answers.append((addresses, trouble))


@pytest.fixture
def lookups(rig: Rig) -> Iterator[Lookups]:
    made = Lookups(rig.loop)
    yield made
    made.released.set()
    made.resolver.close()
    rig.run_until(lambda: not any(thread.name == "xce-resolver" for thread in threading.enumerate()))


@pytest.fixture
def bench(rig: Rig) -> Iterator[Bench]:
    made = Bench(rig)
    yield made
    made.close()


def probe(rig: Rig, check: TcpCheck | HttpCheck, resolver: Resolver, timeout_s: float = BOUND_S) -> tuple[Outcome, str]:
    """The answer of one probe."""
    found: list[tuple[Outcome, str]] = []
    NetProbe(rig.loop, resolver, check, timeout_s, lambda outcome, detail: found.append((outcome, detail)))
    rig.run_until(lambda: found, "an answer")
    return found[0]


def sending(*parts: bytes, reset: bool = False) -> Callable[[socket.socket], None]:
    """A server that takes the request, sends this, and closes, or resets."""

    def answer(peer: socket.socket) -> None:
        peer.recv(65536)
        for part in parts:
            peer.sendall(part)
        if reset:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return answer


def flooding(head: bytes, again: bytes, sent: list[int]) -> Callable[[socket.socket], None]:
    """A server that never ends its answer."""

    def answer(peer: socket.socket) -> None:
        peer.recv(65536)
        try:
            peer.sendall(head)
            while True:
                peer.sendall(again)
                sent.append(len(again))
        except OSError:
            return

    return answer


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"zz\r\n"), (Outcome.OK, "has status 200")),
        ((HEAD + b"Content-Length: 100\r\n\r\n", b"cut off"), (Outcome.OK, "has status 200")),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), (Outcome.OK, "has status 204")),
        ((b"HTTP/1.1 302 X\r\nLocation: http://192.0.2.1/\r\n\r\n",), (Outcome.OK, "has status 302")),
        ((b"HTTP/1.1 500 X\r\nContent-Length: 9\r\n\r\n",), (Outcome.FAILED, "has status 500")),
        ((b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",), (Outcome.FAILED, "is not HTTP")),
        ((b"HTTP/1.1 999 X\r\n\r\n",), (Outcome.FAILED, "has status 999")),
        ((b"HTTP/1.1 20 X\r\n\r\n",), (Outcome.FAILED, "is not HTTP")),
        ((b"\0" * 100,), (Outcome.FAILED, "is not HTTP")),
        ((b"HTTP/1.1 100 Continue\r\n\r\n",), (Outcome.FAILED, "did not come: the connection was closed")),
    ],
)
def test_the_status_decides_whatever_follows(
    bench: Bench, parts: tuple[bytes, ...], expected: tuple[Outcome, str]
) -> None:
    """What follows the status changes nothing, a redirect is not followed, and what is no status is a failure."""
    with serving(socket.AF_INET, ("127.0.0.1", 0), sending(*parts)) as port:
        outcome, detail = bench.answer(HttpCheck(port=port))
    assert (outcome, expected[1] in detail) == (expected[0], True), detail


def test_a_reset_in_place_of_an_answer_is_a_failure(bench: Bench) -> None:
    """RST before the status fails the probe at once; after it, it changes nothing."""
    with serving(socket.AF_INET, ("127.0.0.1", 0), sending(reset=True)) as port:
        outcome, detail = bench.answer(HttpCheck(port=port))
    assert (outcome, "Connection reset by peer" in detail) == (Outcome.FAILED, True), detail
    with serving(socket.AF_INET, ("127.0.0.1", 0), sending(HEAD + b"\r\n", reset=True)) as port:
        outcome, detail = bench.answer(HttpCheck(port=port))
    assert outcome is Outcome.OK or "Connection reset" in detail


def test_endless_preliminary_answers_are_cut_off(bench: Bench) -> None:
    """`100 Continue` without end is a failure after a bounded number of bytes, long before the time-out."""
    sent: list[int] = []
    part = b"HTTP/1.1 100 Continue\r\n\r\n" * 40
    with serving(socket.AF_INET, ("127.0.0.1", 0), flooding(b"", part, sent)) as port:
        outcome, detail = bench.answer(HttpCheck(port=port), timeout_ns=1000 * NS)
    assert (outcome, detail) == (Outcome.FAILED, f"the answer to GET / has no status within {MAX_HEADER_BYTES} bytes")


def test_an_endless_body_is_cut_off(bench: Bench) -> None:
    """A body without end is read up to a bound, long before the time-out, and the status stands."""
    sent: list[int] = []
    with serving(socket.AF_INET, ("127.0.0.1", 0), flooding(HEAD + b"\r\n", b"x" * 1024, sent)) as port:
        assert bench.answer(HttpCheck(port=port), timeout_ns=1000 * NS)[0] is Outcome.OK
    assert MAX_HEADER_BYTES < MAX_BODY_BYTES


def test_a_body_that_does_not_come_is_not_waited_for(bench: Bench) -> None:
    """Once the status is known a body gets a moment, not the whole time-out."""
    released = threading.Event()
    in_time: list[bool] = []

    def answer(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(HEAD + b"Content-Length: 100\r\n\r\n")
        in_time.append(released.wait(BOUND_S / 2))

    with serving(socket.AF_INET, ("127.0.0.1", 0), answer) as port:
        assert bench.answer(HttpCheck(port=port), timeout_ns=1000 * NS)[0] is Outcome.OK
        released.set()
    assert in_time == [True]


def test_a_server_can_say_all_that_it_has_to_say(bench: Bench) -> None:
    """A small body is read in full: the server sees an orderly end, and logs no broken connection at each probe."""
    ends: list[bytes] = []

    def answer(peer: socket.socket) -> None:
        peer.recv(65536)
        peer.sendall(HEAD + b"Content-Length: 20000\r\n\r\n" + b"x" * 20_000)
        ends.append(peer.recv(1))

    with serving(socket.AF_INET, ("127.0.0.1", 0), answer) as port:
        assert bench.answer(HttpCheck(port=port))[0] is Outcome.OK
        bench.rig.run_until(lambda: ends, "the server has seen the end")
    assert ends == [b""]


def test_a_unix_socket_with_a_full_backlog_is_asked_again(bench: Bench) -> None:
    """A Unix socket that takes nobody for a while is not refused: the probe waits, and is answered."""
    path = str(bench.rig.directory / "http.sock")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(path)
        server.listen(0)
        first.connect(path)
        bench.run(HttpCheck(socket=path))
        bench.rig.turn()

        def serve() -> None:
            server.settimeout(BOUND_S)
            server.accept()[0].close()
            with server.accept()[0] as peer:
                peer.recv(65536)
                peer.sendall(OK_ANSWER)

        thread = threading.Thread(target=serve)
        thread.start()
        outcome = bench.rig.wait_for(ProbeDone).outcome
        thread.join(BOUND_S)
    assert outcome is Outcome.OK


@pytest.mark.parametrize("late", [False, True])
def test_a_time_out_that_the_agent_kept_up_says_nothing(bench: Bench, late: bool) -> None:
    """Where the agent itself stood still a probe that ran out of time is UNKNOWN, by network or by command."""
    released = threading.Event()

    def answer(peer: socket.socket) -> None:
        released.wait(BOUND_S)
        peer.close()

    with serving(socket.AF_INET, ("127.0.0.1", 0), answer) as port:
        timeout_ns = 30 * NS if late else NS // 5
        bench.run(HttpCheck(port=port), timeout_ns=timeout_ns, name="net")
        bench.run(ExecCheck(command=("/bin/sleep", "1000")), timeout_ns=timeout_ns, name="command")
        bench.rig.turn()
        if late:
            bench.clock.shown_s += 90.0
        bench.rig.wait_for(ProbeDone, 2)
        released.set()
    outcomes = {done.outcome for done in bench.rig.of(ProbeDone)}
    assert outcomes == {Outcome.UNKNOWN if late else Outcome.FAILED}


def test_every_address_of_a_name_is_tried(rig: Rig, lookups: Lookups) -> None:
    """A name with an address that refuses and one that answers is healthy; one where all refuse is not."""
    with serving(socket.AF_INET, ("127.0.0.1", 0), lambda _peer: None) as port:
        resolver = Resolver(rig.loop, lambda _host: (("127.0.0.2", "::1", "127.0.0.1"), ""))
        assert probe(rig, TcpCheck(port=port, host="name"), resolver) == (Outcome.OK, "")
        resolver = Resolver(rig.loop, lambda _host: (("127.0.0.2", "::1"), ""))
        outcome, detail = probe(rig, TcpCheck(port=port, host="name"), resolver)
    assert (outcome, detail) == (
        Outcome.FAILED,
        f"a connection to ::1 port {port} failed: Connection refused (ECONNREFUSED)",
    )
    assert lookups.begun == []


def test_a_name_with_thousands_of_addresses_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a name server's flood of addresses a few are tried."""
    many = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (f"127.1.{n // 250}.{n % 250}", 0)) for n in range(5000)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_kwargs: many)
    found: list[tuple[str, ...]] = []
    resolver = Resolver(rig.loop)
    resolver.resolve("many", lambda addresses, _trouble: found.append(addresses))
    rig.run_until(lambda: found, "the addresses")
    resolver.close()
    assert len(found[0]) == MAX_ADDRESSES


def test_a_lookup_that_hangs_holds_up_no_other_name(rig: Rig, lookups: Lookups) -> None:
    """A dead name server for one name leaves the others their answers, and is asked once for that name."""
    for _ in range(100):
        lookups.resolver.resolve("slow", lookups.answer)
    lookups.resolver.resolve("fast", lookups.answer)
    rig.run_until(lambda: lookups.answers, "the other name")
    assert lookups.answers == [(("192.0.2.1", "fast"), "")]
    assert sorted(lookups.begun) == ["fast", "slow"]
    lookups.released.set()
    rig.run_until(lambda: len(lookups.answers) == 101, "every answer")


def test_lookups_that_hang_are_bounded_and_forgotten(rig: Rig, lookups: Lookups) -> None:
    """Hanging names take a bounded number of threads and of places; who gave up is not called, nor kept."""
    for number in range(MAX_THREADS + MAX_WAITING):
        lookups.resolver.resolve(f"slow{number}", lookups.answer)
        rig.run_until(lambda number=number: len(lookups.begun) == min(number + 1, MAX_THREADS))  # type: ignore[misc]
    lookups.resolver.resolve("one-more", lookups.answer)
    rig.run_until(lambda: lookups.answers, "a refusal")
    assert lookups.answers == [((), "cannot look one-more up: too many lookups wait for the resolver")]
    for number in range(MAX_THREADS + MAX_WAITING):
        lookups.resolver.forget(f"slow{number}", lookups.answer)
    asked = partial(lookups.answer)
    lookups.resolver.resolve("slow0", asked)
    lookups.released.set()
    rig.run_until(lambda: len(lookups.answers) == 2, "the one that still waits")


def test_a_probe_whose_lookup_hangs_is_unknown_in_time(rig: Rig, lookups: Lookups) -> None:
    """A name that is not resolved in time says nothing about the component, and leaves nobody waiting."""
    outcome, detail = probe(rig, TcpCheck(port=PORT, host="slow"), lookups.resolver, timeout_s=0.1)
    assert (outcome, detail) == (Outcome.UNKNOWN, "the lookup of slow did not come within 0.1 s")
    lookups.released.set()
