import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_manager.api.client import MAX_HEAD_BYTES, Client, NotReachable
from tests.unit.api.fake import BOUND_S, Service, event, short_directory


@pytest.fixture
def path() -> Iterator[Path]:
    """Where something that is not an agent listens."""
    with short_directory() as directory:
        yield directory / "s"


def answer_with(path: Path, data: bytes, *, close: bool = True) -> "Impostor":
    """Make a server that reads a request and answers these bytes."""
    return Impostor(path, data, close=close)


class Impostor:
    """Answers one connection with given bytes."""

    def __init__(self, path: Path, data: bytes, *, close: bool) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._listener.settimeout(BOUND_S)
        self._data = data
        self._close = close
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        with sock:
            sock.recv(65536)
            try:
                sock.sendall(self._data)
            except OSError:
                return
            if not self._close:
                self._over.wait(BOUND_S)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        self._thread.join(BOUND_S)
        self._listener.close()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Len", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "closed the connection"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "no bounded length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "no bounded length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "no bounded length"),
        (b"x" * (MAX_HEAD_BYTES * 8), "no end of its header"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n{",
            "cannot understand the answer",
        ),
    ],
)
def test_what_is_not_an_agent_is_named(path: Path, data: bytes, sentence: str) -> None:
    """Something else behind the socket leads to a sentence, and never to waiting or to memory without bound."""
    with answer_with(path, data), pytest.raises(NotReachable, match=sentence):
        Client(str(path)).get("/v1/status")


def test_agent_that_does_not_answer(path: Path) -> None:
    """A stuck agent costs a bounded time."""
    with answer_with(path, b"HTTP/1.1 200", close=False), pytest.raises(NotReachable, match="does not answer in time"):
        Client(str(path), timeout_s=0.2).get("/v1/status")


def test_trickling_does_not_extend_the_time(path: Path) -> None:
    """The bound holds for the whole answer, not for each of its bytes."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(1)
    over = threading.Event()

    def trickle() -> None:
        sock, _ = listener.accept()
        with sock:
            while not over.wait(0.02):
                try:
                    sock.sendall(b"H")
                except OSError:
                    return

    thread = threading.Thread(target=trickle)
    thread.start()
    with pytest.raises(NotReachable, match="does not answer in time"):
        Client(str(path), timeout_s=0.3).get("/v1/status")
    over.set()
    thread.join(BOUND_S)
    listener.close()


def test_full_queue_of_connections_is_waited_for(path: Path) -> None:
    """A busy agent is told from an absent one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(0)
        waiting = []
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.setblocking(False)
            waiting.append(sock)
            try:
                sock.connect(str(path))
            except BlockingIOError:
                break
        with pytest.raises(NotReachable, match="accepts no connection"):
            Client(str(path), timeout_s=0.2).get("/v1/status")

        def serve() -> None:
            for _ in range(len(waiting)):
                sock, _ = listener.accept()
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                served.append(sock)

        served: list[socket.socket] = []
        listener.settimeout(BOUND_S)
        # The last of the waiting was not taken into the queue: the client comes in its place, once there is room.
        server = threading.Timer(0.2, serve)
        server.start()
        assert Client(str(path), timeout_s=BOUND_S).get("/v1/status").body == b"ok"
        server.join(BOUND_S)
        for sock in (*waiting, *served):
            sock.close()


def test_path_that_is_too_long() -> None:
    """A path that cannot be a socket's is a sentence, not a traceback."""
    with pytest.raises(NotReachable, match="cannot reach the agent"):
        Client("/tmp/" + "x" * 200).get("/v1/status")


def test_interim_answers_are_skipped(path: Path) -> None:
    """1xx is not the answer."""
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    with answer_with(path, data):
        answer = Client(str(path)).get("/metrics")
    assert (answer.status, answer.body, answer.ok) == (200, b"ok", True)


def test_refusal_before_the_body_was_read(service: Service) -> None:
    """The server's early refusal of a body that is too large is what the caller sees."""
    answer = Client(str(service.path)).post("/v1/host/drain", {"reason": "x" * 5_000_000}, 20)
    assert (answer.status, answer.ok) == (413, False)


def test_stream(service: Service) -> None:
    """Events come as they happen, a wait without any is [], and the end is None."""
    service.happen(event(1), event(2))
    stream = Client(str(service.path)).follow(1)
    assert [entry["seq"] for entry in stream.read(BOUND_S) or []] == [2]
    assert stream.read(0) == []
    assert stream.read(0.05) == []
    service.happen(event(3, detail="x" * 100_000))
    assert [entry["seq"] for entry in stream.read(BOUND_S) or []] == [3]
    service.on_loop(service.server.close)
    assert stream.read(BOUND_S) is None
    assert stream.read(BOUND_S) is None
    stream.close()


def test_stream_that_is_refused(path: Path) -> None:
    """No stream to be had is a sentence."""
    data = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    with answer_with(path, data), pytest.raises(NotReachable, match="the agent answers 503"):
        Client(str(path)).follow(0)


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"-5\r\n", b"fffffffff\r\n", b"3\r\n{]\n\r\n"])
def test_stream_that_is_garbage(path: Path, chunk: bytes) -> None:
    """A stream that cannot be understood is a sentence."""
    with answer_with(path, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk):
        stream = Client(str(path)).follow(0)
        with pytest.raises(NotReachable, match=r"no chunk|exceeds|cannot understand an event"):
            stream.read(BOUND_S)
        stream.close()
