"""The example's lease in etcd against servers that answer wrongly, halfway, or never."""

import shutil
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from node_manager.reference.clock import boottime_ns
from node_manager.reference.loop import Loop
from tests.libxce.conftest import BOUND_S, MINUTE_MS, MakeDriver
from tests.libxce.test_library import CAN_BUILD, WHY_NOT, make
from tests.unit.reference.test_etcd import acquire, answer, held, lease

pytestmark = pytest.mark.skipif(not CAN_BUILD, reason=WHY_NOT)


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
                held(acquire(loop, store))
                store.release(term=4)
                answer(loop, store)
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
