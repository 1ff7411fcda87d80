"""The line protocol: bounds and hostile input, over real connections."""

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_manager.reference.lines import (
    MAX_LINE,
    MAX_OUTPUT,
    SILENCE_NS,
    Connection,
    LineBuffer,
    LineError,
    LineServer,
    Message,
    count,
    encode,
    number,
    text,
    whole,
)
from node_manager.reference.loop import Loop
from node_manager.reference.settings import Address

LOOPBACK = Address("127.0.0.1", 0)


@dataclass
class Side:
    """What one side of a connection saw."""

    messages: list[Message] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    def on_message(self, connection: Connection, message: Message) -> None:
        self.messages.append(message)
        if "echo" in message:
            connection.send({"echoed": message["echo"]})

    def on_close(self, _connection: Connection, reason: str) -> None:
        self.ends.append(reason)


@dataclass
class Pair:
    loop: Loop
    server: LineServer
    served: Side

    def turn_until(self, condition: Callable[[], object]) -> None:
        for _ in range(2000):
            if condition():
                return
            self.loop.turn(0.02)
        pytest.fail("nothing happened")

    def client(self) -> socket.socket:
        return socket.create_connection(self.server.address, timeout=10)


@pytest.fixture
def pair() -> Iterator[Pair]:
    loop = Loop()
    served = Side()
    server = LineServer(loop, LOOPBACK, limit=3, on_message=served.on_message, on_close=served.on_close)
    yield Pair(loop, server, served)
    server.close()
    loop.close()


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text() | st.none()), max_size=5), st.data())
def test_messages_survive_any_cutting(messages: list[Message], data: st.DataObject) -> None:
    """Lines arrive in pieces of any size; the messages are the ones that were sent."""
    raw = b"".join(encode(message) for message in messages)
    buffer = LineBuffer()
    got: list[Message] = []
    while raw:
        size = data.draw(st.integers(1, len(raw)))
        got += buffer.feed(raw[:size])
        raw = raw[size:]
    assert messages == got


@pytest.mark.parametrize(
    "line", [b"x", b"[]", b'"a"', b"\xff", b'{"a": NaN}', b"[" * 60_000, b'{"a": ' + b"9" * 5000 + b"}", b"{}x"]
)
def test_what_is_not_a_json_object_is_an_error(line: bytes) -> None:
    """Anything else in a line is refused, also what breaks a parser."""
    with pytest.raises(LineError):
        LineBuffer().feed(line + b"\n")


def test_an_endless_line_is_refused() -> None:
    """A line without an end is refused once it is too long, before it is parsed."""
    buffer = LineBuffer()
    for _ in range(MAX_LINE // 1024):
        assert buffer.feed(b"x" * 1024) == []
    with pytest.raises(LineError, match="longer"):
        buffer.feed(b"x")


def test_fields_are_checked() -> None:
    """Types and bounds of what a message carries; a boolean is no number."""
    message: Message = {"t": "x", "n": 1.5, "i": 3, "b": True, "long": "x" * 600, "bell": "\a"}
    assert text(message, "t") == "x"
    assert text(message, "absent", default="d") == "d"
    assert number(message, "n", low=0, high=2) == 1.5
    assert number(message, "absent", low=0, high=2, optional=True) is None
    assert whole(message, "i", high=3) == 3
    assert count(message, "absent", high=3, optional=True) is None
    for check in (
        lambda: text(message, "absent"),
        lambda: text(message, "long"),
        lambda: text(message, "bell"),
        lambda: number(message, "b", low=0, high=2),
        lambda: number(message, "n", low=0, high=1),
        lambda: whole(message, "b", high=2),
        lambda: whole(message, "n", high=2),
        lambda: whole(message, "i", high=2),
        lambda: whole(message, "absent", high=2),
    ):
        with pytest.raises(LineError, match="cannot use"):
            check()


def test_a_conversation(pair: Pair) -> None:
    """A connecting side may send at once; answers come back; the end is told once, to both."""
    asked = Side()
    connection = Connection.connect(
        pair.loop, pair.server.address, on_message=asked.on_message, on_close=asked.on_close
    )
    connection.send({"echo": 1})
    pair.turn_until(lambda: asked.messages)
    assert asked.messages == [{"echoed": 1}]
    connection.close("done")
    connection.close("again")
    pair.turn_until(lambda: pair.served.ends)
    assert (asked.ends, pair.served.ends) == (["done"], ["closed by the peer"])


def test_bad_input_ends_its_own_connection_only(pair: Pair) -> None:
    """The offender is told and closed; another connection goes on."""
    with pair.client() as good, pair.client() as bad:
        bad.sendall(b"rubbish\n")
        pair.turn_until(lambda: pair.served.ends)
        assert json.loads(bad.recv(4096))["code"] == "bad-request"
        assert bad.recv(4096) == b""
        good.sendall(encode({"echo": 2}))
        pair.turn_until(lambda: pair.served.messages)
        assert json.loads(good.recv(4096)) == {"echoed": 2}


def test_a_peer_that_does_not_read_is_dropped(pair: Pair) -> None:
    """Unsent output is bounded; a peer that lets it grow loses the connection."""
    with pair.client() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        pair.turn_until(lambda: pair.server.connections)
        (connection,) = pair.server.connections
        for _ in range(1000):
            connection.send({"x": "y" * (MAX_OUTPUT // 4)})
            if connection.closed:
                break
        assert pair.served.ends == ["it does not read what it is sent"]


def test_too_many_connections_are_told_so(pair: Pair) -> None:
    """Beyond the limit a connection is answered `busy` and closed; the others stay."""
    clients = [pair.client() for _ in range(4)]
    pair.turn_until(lambda: pair.served.ends)
    answers = []
    for client in clients:
        client.setblocking(False)
        try:
            answers.append(json.loads(client.recv(4096))["code"])
        except BlockingIOError:
            answers.append("open")
        client.close()
    assert sorted(answers) == ["busy", "open", "open", "open"]


def test_silent_connections_are_swept(pair: Pair) -> None:
    """Who says nothing for long enough is closed."""
    with pair.client():
        pair.turn_until(lambda: pair.server.connections)
        (connection,) = pair.server.connections
        pair.server.sweep(connection.heard_ns + SILENCE_NS)
        assert not pair.served.ends
        pair.server.sweep(connection.heard_ns + SILENCE_NS + 1)
        assert pair.served.ends == ["it was silent for too long"]


def test_a_refused_connection_is_an_end(pair: Pair) -> None:
    """A controller that does not listen is told as the end of the connection, with the reason."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        asked = Side()
        address = Address("127.0.0.1", reserved.getsockname()[1])
        Connection.connect(pair.loop, address, on_message=asked.on_message, on_close=asked.on_close)
        pair.turn_until(lambda: asked.ends)
    assert len(asked.ends) == 1
    assert asked.ends[0]
