"""One HTTP request over its own connection, without waiting: HTTP/1.0, so that the end of the answer is the end of it.

Every call ends by its deadline, with an answer or with what was wrong.
"""

import json
import os
import selectors
import socket
from dataclasses import dataclass
from typing import Any

from node_manager.reference.loop import Loop
from node_manager.reference.settings import Address

MAX_ANSWER = 64 * 1024
"""What is asked for is a few hundred bytes."""
READ_SIZE = 16 * 1024
HTTP_OK = 200
MAX_QUOTED = 200
"""Characters of the server's own words that an error repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The server did what was asked: the object in its body."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """It is not known whether the server did it."""

    reason: str


class Call:
    """POST of a JSON object. `result` is None until it has ended: at `deadline_ns` (CLOCK_BOOTTIME) at the latest."""

    def __init__(self, loop: Loop, address: Address, path: str, body: dict[str, Any], *, deadline_ns: int) -> None:
        self._loop = loop
        self._address = address
        self.deadline_ns = deadline_ns
        self.result: Answered | Failed | None = None
        data = json.dumps(body, separators=(",", ":")).encode()
        head = f"POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        self._output = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        self._input = bytearray()
        self._sock: socket.socket | None = None
        try:
            self._sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            self._sock.connect_ex(address)
            loop.watch(self._sock.fileno(), selectors.EVENT_WRITE, self._ready)
        except OSError as error:
            self._end(Failed(reason=str(error)))

    def poll(self, now_ns: int) -> Answered | Failed | None:
        """The result, once there is one."""
        if self.result is None and now_ns >= self.deadline_ns:
            self._end(Failed(reason="no answer in time"))
        return self.result

    def close(self) -> None:
        """Forget it. Whether the server does what was asked is open."""
        if self.result is None:
            self._end(Failed(reason="given up"))

    def _ready(self, events: int) -> None:
        assert self._sock is not None, "only an open socket is watched"
        try:
            if events & selectors.EVENT_WRITE:
                self._send(self._sock)
            if events & selectors.EVENT_READ:
                self._receive(self._sock)
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(Failed(reason=error.strerror or str(error)))

    def _send(self, sock: socket.socket) -> None:
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        self._output = self._output[sock.send(self._output) :]
        if not self._output:
            self._loop.watch(sock.fileno(), selectors.EVENT_READ, self._ready)

    def _receive(self, sock: socket.socket) -> None:
        data = sock.recv(READ_SIZE)
        self._input += data
        if len(self._input) > MAX_ANSWER:
            self._end(Failed(reason=f"its answer is longer than {MAX_ANSWER} bytes"))
        elif not data:
            self._end(read_answer(bytes(self._input)))

    def _end(self, result: Answered | Failed) -> None:
        if isinstance(result, Failed):
            result = Failed(reason=f"{self._address}: {result.reason}")
        self.result = result
        if self._sock is not None:
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()
            self._sock = None


def read_answer(data: bytes) -> Answered | Failed:
    """What a whole answer says. Anything but a complete 200 with a JSON object is a failure."""
    head, separator, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if not separator or not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdecimal():  # noqa: PLR2004
        return Failed(reason="its answer is not HTTP, or not whole")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    length = headers.get("content-length", "")
    if length and length != str(len(body)):
        return Failed(reason="its answer is cut off")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if int(words[1]) == HTTP_OK and isinstance(value, dict):
        return Answered(body=value)
    said = value.get("message") if isinstance(value, dict) else None
    return Failed(reason=f"HTTP {words[1]}" + (f": {said[:MAX_QUOTED]}" if isinstance(said, str) else ""))
