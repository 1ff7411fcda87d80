"""The protocol among the reference components: one JSON object per line, over TCP, with a bound on everything.

A message that is not understood ends its own connection and nothing else.
"""

import contextlib
import json
import os
import selectors
import socket
from collections.abc import Callable
from typing import Any, NoReturn

from node_manager.reference.clock import NS_PER_S, boottime_ns
from node_manager.reference.loop import Loop
from node_manager.reference.settings import Address

MAX_LINE = 64 * 1024
"""A full listing of hosts or jobs fits; nothing that one of us sends is longer."""
MAX_OUTPUT = 256 * 1024
"""Unsent bytes kept for a peer that does not read; beyond it the connection is closed."""
SILENCE_NS = 30 * NS_PER_S
"""Workers and schedulers speak every two seconds; whoever says nothing for this long has gone."""
BACKLOG = 128
READ_SIZE = 16 * 1024
MAX_TEXT = 512

Message = dict[str, Any]


class LineError(Exception):
    """The peer sent what the protocol does not allow; the text says what."""


def encode(message: Message) -> bytes:
    """One line."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The object in one line. Raises LineError."""
    try:
        value = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise LineError("cannot read the line: it is not JSON") from None
    if not isinstance(value, dict):
        raise LineError("cannot read the line: it is not a JSON object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def text(message: Message, key: str, *, default: str | None = None, limit: int = MAX_TEXT) -> str:
    """A printable text of at most `limit` characters; required where there is no default. Raises LineError."""
    value = message.get(key, default)
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise LineError(f"cannot use {key!r}: give a printable text of at most {limit} characters")
    return value


def number(message: Message, key: str, *, low: float, high: float, optional: bool = False) -> float | None:
    """A finite number between the bounds; None only where it is optional and absent. Raises LineError."""
    value = message.get(key)
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise LineError(f"cannot use {key!r}: give a number between {low:g} and {high:g}")
    return value


def count(message: Message, key: str, *, low: int = 0, high: int, optional: bool = False) -> int | None:
    """A whole number between the bounds; None only where it is optional and absent. Raises LineError."""
    value = message.get(key)
    if value is None and optional:
        return None
    if type(value) is not int or not low <= value <= high:
        raise LineError(f"cannot use {key!r}: give a whole number between {low} and {high}")
    return value


def whole(message: Message, key: str, *, low: int = 0, high: int) -> int:
    """A required whole number between the bounds. Raises LineError."""
    value = count(message, key, low=low, high=high)
    if value is None:
        raise LineError(f"cannot do without {key!r}")
    return value


class LineBuffer:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now. Raises LineError."""
        self._rest += data
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        if len(rest) > MAX_LINE or any(len(line) > MAX_LINE for line in lines):
            raise LineError(f"cannot read the line: it is longer than {MAX_LINE} bytes")
        return [decode(line) for line in lines if line.strip()]


class Connection:
    """One connection, either side. `on_message` may close it; `on_close` is called once, with the reason."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        *,
        on_message: Callable[["Connection", Message], None],
        on_close: Callable[["Connection", str], None],
        connecting: bool = False,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._on_message = on_message
        self._on_close = on_close
        self._connecting = connecting
        self._buffer = LineBuffer()
        self._output = bytearray()
        self._finishing = ""
        self.closed = False
        self.heard_ns = boottime_ns()
        self._watch()

    @classmethod
    def connect(
        cls,
        loop: Loop,
        address: Address,
        *,
        on_message: Callable[["Connection", Message], None],
        on_close: Callable[["Connection", str], None],
    ) -> "Connection":
        """Begin to connect; what is sent meanwhile waits. Raises OSError where that is refused at once."""
        sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            with contextlib.suppress(BlockingIOError):
                sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            sock.close()
            raise
        return cls(loop, sock, on_message=on_message, on_close=on_close, connecting=True)

    def send(self, message: Message) -> None:
        """Queue one message. A peer that has not read MAX_OUTPUT bytes loses the connection."""
        if self.closed or self._finishing:
            return
        self._output += encode(message)
        if len(self._output) > MAX_OUTPUT:
            self.close("it does not read what it is sent")
        elif not self._connecting:
            self._write()

    def finish(self, reason: str) -> None:
        """Close as soon as what is queued has been sent; nothing more is read."""
        self._finishing = reason
        if not self.closed and not self._output:
            self.close(reason)
        elif not self.closed:
            self._watch()

    def close(self, reason: str) -> None:
        """Close now."""
        if self.closed:
            return
        self.closed = True
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        self._on_close(self, reason)

    def _watch(self) -> None:
        events = 0 if self._finishing or self._connecting else selectors.EVENT_READ
        if self._output or self._connecting:
            events |= selectors.EVENT_WRITE
        self._loop.watch(self._sock.fileno(), events, self._ready)

    def _ready(self, events: int) -> None:
        if self._connecting:
            error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self.close(os.strerror(error))
                return
            self._connecting = False
            self._watch()
        if events & selectors.EVENT_WRITE:
            self._write()
        if events & selectors.EVENT_READ and not self.closed and not self._finishing:
            self._read()

    def _write(self) -> None:
        try:
            while self._output and not self.closed:
                sent = self._sock.send(self._output)
                del self._output[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(str(error))
            return
        if self._finishing and not self._output:
            self.close(self._finishing)
        else:
            self._watch()

    def _read(self) -> None:
        try:
            data = self._sock.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(str(error))
            return
        if not data:
            self.close("closed by the peer")
            return
        self.heard_ns = boottime_ns()
        try:
            for message in self._buffer.feed(data):
                self._on_message(self, message)
                if self.closed or self._finishing:
                    return
        except LineError as error:
            self.send({"ok": False, "code": "bad-request", "error": str(error)})
            self.finish(str(error))


class LineServer:
    """A listening socket. Beyond `limit` connections a new one is told so and closed."""

    def __init__(
        self,
        loop: Loop,
        address: Address,
        *,
        limit: int,
        on_message: Callable[[Connection, Message], None],
        on_close: Callable[[Connection, str], None],
    ) -> None:
        self._loop = loop
        self._limit = limit
        self._on_message = on_message
        self._on_close = on_close
        self.connections: set[Connection] = set()
        self._sock = listen(address)
        self.address = Address(*self._sock.getsockname()[:2])
        self._loop.watch(self._sock.fileno(), selectors.EVENT_READ, self._accept)

    def _accept(self, _ready: int) -> None:
        try:
            sock, _peer = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the peer has gone again
            return
        except OSError:  # no descriptor or memory is free: the backlog keeps it until the next sweep
            self._loop.unwatch(self._sock.fileno())
            return
        sock.setblocking(False)
        connection = Connection(self._loop, sock, on_message=self._on_message, on_close=self._closed)
        self.connections.add(connection)
        if len(self.connections) > self._limit:
            connection.send({"ok": False, "code": "busy", "error": "cannot serve more connections: try again later"})
            connection.finish("too many connections")

    def sweep(self, now_ns: int) -> None:
        """To be called about once a second: end silent connections, and listen again after a shortage."""
        for connection in tuple(self.connections):
            if now_ns - connection.heard_ns > SILENCE_NS:
                connection.close("it was silent for too long")
        self._loop.watch(self._sock.fileno(), selectors.EVENT_READ, self._accept)

    def _closed(self, connection: Connection, reason: str) -> None:
        self.connections.discard(connection)
        self._on_close(connection, reason)

    def close(self) -> None:
        """Stop listening and close every connection."""
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        for connection in tuple(self.connections):
            connection.close("stopping")


def listen(address: Address) -> socket.socket:
    """A listening non-blocking socket. Raises OSError."""
    sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"{error.strerror}: {address}") from None
    return sock
