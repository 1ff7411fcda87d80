"""A loop whose clock can be moved on, a node to talk to, and peers in other processes."""

import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path
from typing import TypeVar, TypeVarTuple, Unpack

from node_manager.core.events import Beat, Event, HeartbeatClosed
from node_manager.heartbeat.codec import Pairs, decode, encode

BOUND_S = 30.0
"""How long a test waits for what must happen: far above what a busy machine needs."""

_E = TypeVar("_E")
_Ts = TypeVarTuple("_Ts")


class MovableLoop(asyncio.SelectorEventLoop):
    """A real loop on real sockets; `advance` makes its timers due."""

    def __init__(self) -> None:
        self._offset_s = 0.0
        self._timers: list[asyncio.TimerHandle] = []
        super().__init__()

    def call_at(
        self, when: float, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self._timers.append(handle)
        return handle

    def pending_timers(self) -> int:
        """How many timers have yet to come."""
        return sum(not handle.cancelled() and handle.when() > self.time() for handle in self._timers)

    def time(self) -> float:
        return super().time() + self._offset_s

    def advance(self, seconds: float) -> None:
        self._offset_s += seconds

    def turn(self, times: int = 3) -> None:
        """Let the loop run its ready callbacks and what they make ready."""
        for _ in range(times):
            self.call_soon(self.stop)
            self.run_forever()

    def until(self, condition: Callable[[], bool]) -> None:
        """Run until the condition holds; fail when it does not within the bound."""
        end = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < end, "what must happen did not happen"
            self.call_later(0.002, self.stop)
            self.run_forever()


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name (sun_path has 108 bytes)."""
    path = Path(tempfile.mkdtemp(prefix="xce"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Node:
    """What the agent gives the sockets: who is who, what to say, and where events go."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.owners: dict[int, tuple[str, int]] = {}
        self.members: dict[int, str] = {}
        self.said: dict[str, list[tuple[str, str]]] = {}
        self.rendered = 0

    def identify(self, pid: int) -> tuple[str, int] | None:
        return self.owners.get(pid)

    def member(self, pid: int) -> str | None:
        return self.members.get(pid)

    def hello(self, component: str) -> Pairs:
        assert component
        return [
            ("XCE_HEARTBEAT", "1"),
            ("NODE", "node-1"),
            ("INSTANCE_ID", "i-1"),
            ("BOOT_ID", "b"),
            ("ROLES", "manager,worker"),
        ]

    def levels(self, component: str) -> Pairs:
        self.rendered += 1
        return self.said.get(component, [])

    def of(self, kind: type[_E]) -> list[_E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def beats(self) -> list[Beat]:
        return self.of(Beat)

    @property
    def closed(self) -> list[HeartbeatClosed]:
        return self.of(HeartbeatClosed)


class Peer:
    """A raw client: says exactly what it is told to."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.setblocking(False)
        self.sock.connect(str(path))

    def say(self, *pairs: tuple[str, str]) -> None:
        for record in encode(pairs):
            self.sock.send(record)

    def hello(self, component: str, interval_ms: int = 1000, *more: tuple[str, str]) -> None:
        self.say(("XCE_HEARTBEAT", "1"), ("COMPONENT", component), ("INTERVAL_MS", str(interval_ms)), *more)

    def heard(self) -> list[dict[str, str]]:
        """Every record that waits to be read."""
        records: list[dict[str, str]] = []
        while True:
            try:
                data = self.sock.recv(65536)
            except BlockingIOError:
                return records
            if not data:
                return records
            records.append(decode(data))

    def is_closed(self) -> bool:
        """Whether the other side has closed; what it had said is thrown away."""
        try:
            while self.sock.recv(65536):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True

    def close(self) -> None:
        self.sock.close()


@contextmanager
def child(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs a script, with pipes to talk over; ended by the end of its input."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(BOUND_S)


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that a child prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], line: str) -> None:
    """Send a child a line."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
