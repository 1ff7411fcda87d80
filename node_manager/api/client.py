"""A small synchronous client of the status socket, for commands and scripts: standard library only, quick to import.

It speaks just the HTTP that our own server sends. http.client would cost a command another 15 ms before it starts.
"""

from __future__ import annotations

import json
import socket
import time

TYPE_CHECKING = False  # typing itself costs some milliseconds at each start of a command
if TYPE_CHECKING:
    from typing import Any

CONNECT_RETRY_S = 0.05
"""Pause before the next connect while the server's queue of connections is full."""
TIMEOUT_S = 10.0
"""From the connect to the last byte of an answer."""
MAX_HEAD_BYTES = 16 * 1024
"""Status line and header fields of an answer."""
MAX_BODY_BYTES = 64 * 1024 * 1024
"""Body of an answer, or one line of a stream: far above the status of any host."""
RECEIVE_BYTES = 64 * 1024


class NotReachable(Exception):  # noqa: N818  what happened, not whose error it is
    """The agent did not answer: no socket, nobody behind it, too slow, or not HTTP."""


class NotPermitted(Exception):  # noqa: N818  likewise
    """The file system does not let this user connect."""


class Answer:
    """A complete answer. `body` is the parsed JSON, or bytes where it is something else."""

    __slots__ = ("body", "status")

    def __init__(self, status: int, body: Any) -> None:
        self.status = status
        self.body = body

    @property
    def ok(self) -> bool:
        """Success, with the body that was asked for; otherwise the body is a problem (RFC 9457)."""
        return self.status == 200  # noqa: PLR2004  "OK"


class Client:
    """Asks the agent at the Unix socket `path`; each request has a connection of its own and `timeout_s`."""

    def __init__(self, path: str, timeout_s: float = TIMEOUT_S) -> None:
        self.path = path
        self._timeout_s = timeout_s

    def get(self, target: str) -> Answer:
        """Read. Raises NotReachable, NotPermitted."""
        return self._exchange("GET", target, b"", self._timeout_s)

    def post(self, target: str, fields: dict[str, Any], timeout_s: float) -> Answer:
        """Change. `timeout_s` should exceed the server's own bound for commands. Raises NotReachable, NotPermitted."""
        return self._exchange("POST", target, json.dumps(fields).encode("ascii"), timeout_s)

    def follow(self, after: int) -> EventStream:
        """Open the stream of events that are newer than `after`. Raises NotReachable, NotPermitted."""
        wire = _Wire(self.path, self._timeout_s)
        try:
            wire.send(_render("GET", f"/v1/events?after={after}&follow=1", b""))
            wire.begin_stream()
        except BaseException:
            wire.close()
            raise
        return EventStream(wire)

    def _exchange(self, method: str, target: str, body: bytes, timeout_s: float) -> Answer:
        wire = _Wire(self.path, timeout_s)
        try:
            wire.send(_render(method, target, body))
            status, headers = wire.head()
            content = wire.exactly(_length(headers, self.path))
        finally:
            wire.close()
        if not headers.get("content-type", "").endswith("json") or "ndjson" in headers["content-type"]:
            return Answer(status, content)
        try:
            return Answer(status, json.loads(content))
        except ValueError as error:
            raise NotReachable(f"cannot understand the answer from {self.path}: {error}") from error


class EventStream:
    """Events as they come. Close it."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._text = bytearray()
        self._ended = False

    def read(self, timeout_s: float) -> list[dict[str, Any]] | None:
        """Wait for events: those that came, [] where none came in time, None once the stream has ended."""
        self._wire.bound(timeout_s)
        while not self._ended:
            lines = self._lines()
            if lines:
                return lines
            try:
                if not self._wire.more():
                    self._ended = True
            except TimeoutError:
                return []
            except OSError:
                self._ended = True
        return None

    def close(self) -> None:
        """Let go of the connection."""
        self._wire.close()

    def _lines(self) -> list[dict[str, Any]]:
        """Take what is complete out of the buffers."""
        while not self._ended:
            chunk = self._wire.chunk()
            if chunk is None:
                break
            self._ended = not chunk
            self._text += chunk
        complete, newline, rest = self._text.rpartition(b"\n")
        if not newline:
            return []
        self._text = rest
        try:
            return [json.loads(line) for line in complete.splitlines()]
        except ValueError as error:
            raise NotReachable(f"cannot understand an event: {error}") from error


class _Wire:
    """One connection and its input buffer, under one deadline."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self._path = path
        self._buffer = bytearray()
        self._deadline_s = time.monotonic() + timeout_s
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect()
        except BaseException:
            self._sock.close()
            raise

    def _connect(self) -> None:
        path = self._path
        while True:
            self._sock.settimeout(self._remaining_s())
            try:
                self._sock.connect(path)
                return
            except FileNotFoundError as error:
                raise NotReachable(f"cannot reach the agent: there is no socket {path}") from error
            except ConnectionRefusedError as error:
                raise NotReachable(f"cannot reach the agent: nobody listens at {path}") from error
            except PermissionError as error:
                raise NotPermitted(f"cannot connect to {path}: {error.strerror}") from error
            except BlockingIOError:
                # The server's queue is full: it is busy, not absent.
                time.sleep(CONNECT_RETRY_S)
                if self._remaining_s() <= CONNECT_RETRY_S:
                    raise NotReachable(f"cannot reach the agent at {path}: it accepts no connection") from None
            except OSError as error:
                raise NotReachable(f"cannot reach the agent at {path}: {error.strerror or error}") from error

    def bound(self, timeout_s: float) -> None:
        """Start a new deadline."""
        self._deadline_s = time.monotonic() + timeout_s

    def _remaining_s(self) -> float:
        """Time left; never 0, which would mean non-blocking."""
        return max(0.001, self._deadline_s - time.monotonic())

    def send(self, data: bytes) -> None:
        """Send a request. A server that refuses it early has answered already: that answer is then read."""
        self._sock.settimeout(self._remaining_s())
        try:
            self._sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return
        except OSError as error:
            raise NotReachable(f"cannot send to the agent at {self._path}: {error.strerror or error}") from error

    def more(self) -> bool:
        """Receive into the buffer; False at the end. Raises OSError, TimeoutError among them."""
        if time.monotonic() >= self._deadline_s:
            # What is there already is still taken, so that a bound of 0 means "without waiting".
            self._sock.settimeout(0)
        else:
            self._sock.settimeout(self._remaining_s())
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError as error:
            raise TimeoutError from error
        self._buffer += data
        return bool(data)

    def _fill(self) -> None:
        try:
            if self.more():
                return
        except TimeoutError as error:
            raise NotReachable(f"cannot read from the agent at {self._path}: it does not answer in time") from error
        except OSError as error:
            raise NotReachable(f"cannot read from the agent at {self._path}: {error.strerror or error}") from error
        raise NotReachable(f"cannot read from the agent at {self._path}: it closed the connection")

    def head(self) -> tuple[int, dict[str, str]]:
        """Read status and header fields of the final answer."""
        while True:
            while (end := self._buffer.find(b"\r\n\r\n")) < 0:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    raise NotReachable(f"cannot understand what answers at {self._path}: no end of its header")
                self._fill()
            lines = self._buffer[:end].decode("latin-1").split("\r\n")
            del self._buffer[: end + 4]
            version, _, rest = lines[0].partition(" ")
            code = rest[:3]
            if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit()):
                raise NotReachable(f"cannot understand what answers at {self._path}: it does not speak HTTP")
            fields = (line.partition(":") for line in lines[1:])
            headers = {name.strip().lower(): value.strip() for name, _, value in fields}
            if int(code) >= 200:  # noqa: PLR2004  1xx are interim
                return int(code), headers

    def begin_stream(self) -> None:
        """Read the header of an answer that comes in chunks."""
        status, headers = self.head()
        if status != 200 or headers.get("transfer-encoding") != "chunked":  # noqa: PLR2004  "OK"
            raise NotReachable(f"cannot follow events at {self._path}: the agent answers {status}")

    def exactly(self, size: int) -> bytes:
        """Read so many bytes."""
        while len(self._buffer) < size:
            self._fill()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def chunk(self) -> bytes | None:
        """Take one chunk out of the buffer: b"" is the last, None where it is not complete yet."""
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return None
        try:
            size = int(self._buffer[:end].partition(b";")[0], 16)
        except ValueError as error:
            raise NotReachable(f"cannot understand what comes from {self._path}: no chunk") from error
        if not 0 <= size <= MAX_BODY_BYTES:
            raise NotReachable(f"cannot read from {self._path}: a chunk exceeds {MAX_BODY_BYTES} bytes")
        begin = end + 2
        if len(self._buffer) < begin + size + 2:
            return None
        data = bytes(self._buffer[begin : begin + size])
        del self._buffer[: begin + size + 2]
        return data

    def close(self) -> None:
        self._sock.close()


def _render(method: str, target: str, body: bytes) -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n"
    if method == "POST":
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n".encode("ascii") + body


def _length(headers: dict[str, str], path: str) -> int:
    text = headers.get("content-length", "")
    if not (text.isascii() and text.isdigit()) or int(text) > MAX_BODY_BYTES:
        raise NotReachable(f"cannot understand what answers at {path}: its answer has no bounded length")
    return int(text)
