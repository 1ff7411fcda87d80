"""The sending side of one heartbeat connection: levels, never a queue.

What is sent is the state at the moment of sending. There is a flag that something is due; when the socket takes data,
the current levels are rendered and what the peer does not know yet goes out, directives first. A peer that does not
read leaves the flag up and costs nothing more.
"""

import asyncio
import errno
import socket
from collections.abc import Callable

from node_manager.heartbeat.codec import Pairs, encode_parts

DIRECTIVES = ("DRAIN", "DRAIN_DEADLINE_NS", "UNDRAIN", "EPOCH", "DECOMMISSIONED")
"""Keys that lead each record, in this order: they must get through before anything else."""

FULL_STATE_S = 30.0
"""A full state goes out at least this often, so that a peer's picture cannot stay wrong for longer."""

_NO_MEMORY = (errno.ENOBUFS, errno.ENOMEM)


class Output:
    """Tells one peer the current levels. Nothing is sent before `greet`.

    `hello` and `levels` render the answer to a hello and the current state; they are called when it is sent.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        *,
        hello: Callable[[], Pairs],
        levels: Callable[[], Pairs],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._hello = hello
        self._levels = levels
        self._sent: dict[str, str] = {}
        """Levels that the peer has been told, in full or as changes."""
        self._hello_due = False
        self._full_due = False
        self._beat_due = False
        self._beat = 0
        self._interval_s = 0.0
        self._last_full_s = 0.0
        self._greeted = False
        self._closed = False
        self._waiting = False
        """The socket took no more: its writer is registered with the loop."""
        self._timer: asyncio.TimerHandle | None = None

    def greet(self, interval_s: float) -> None:
        """Answer a hello with the agent's own and the full state, then speak each interval."""
        self._greeted = True
        self._hello_due = self._full_due = True
        self.set_interval(interval_s)
        self.touch()

    @property
    def interval_s(self) -> float:
        """How often the agent speaks; 0 before the peer has said how often it does."""
        return self._interval_s

    def set_interval(self, interval_s: float) -> None:
        """Change how often the agent speaks."""
        if self._closed or interval_s == self._interval_s:
            return
        self._interval_s = interval_s
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(interval_s, self._on_interval)

    def touch(self) -> None:
        """Something has changed: send it now if the socket takes it, else as soon as it does."""
        if self._greeted and not self._closed and not self._waiting:
            self._flush()

    def close(self) -> None:
        """Send nothing any more. The socket remains its owner's to close."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stop_waiting()

    def _on_interval(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._on_interval)
        self._beat_due = True
        if self._loop.time() - self._last_full_s >= FULL_STATE_S:
            self._full_due = True
        self.touch()

    def _on_writable(self) -> None:
        self._stop_waiting()
        self.touch()

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting = False
            self._loop.remove_writer(self._sock.fileno())

    def _flush(self) -> None:
        levels = dict(self._levels())
        if not self._sent.keys() <= levels.keys():
            # Only a full state can say that a key is gone.
            self._full_due = True
        parts = encode_parts(self._due(levels))
        for part in parts:
            if not self._send(part.record):
                # What comes next starts over with the state of that time.
                return
            self._beat_due = False
            self._sent.update((key, value) for key, value in part.pairs if levels.get(key) == value)
        if self._full_due:
            self._full_due = self._hello_due = False
            self._sent = levels
            self._last_full_s = self._loop.time()

    def _due(self, levels: dict[str, str]) -> Pairs:
        head: list[tuple[str, str]] = []
        if self._hello_due:
            head += self._hello()
        if self._full_due:
            head.append(("FULL", "1"))
        tell = levels if self._full_due else {k: v for k, v in levels.items() if self._sent.get(k) != v}
        directives = [(key, tell[key]) for key in DIRECTIVES if key in tell]
        others = [(key, value) for key, value in tell.items() if key not in DIRECTIVES]
        beat: list[tuple[str, str]] = []
        if self._beat_due or self._full_due:
            self._beat += 1
            beat.append(("BEAT", str(self._beat)))
        return [*head, *directives, *beat, *others]

    def _send(self, record: bytes) -> bool:
        try:
            self._sock.send(record, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            self._waiting = True
            self._loop.add_writer(self._sock.fileno(), self._on_writable)
            return False
        except OSError as error:
            if error.errno not in _NO_MEMORY:
                # The peer is gone. Its last words may still wait to be read: the reader finds the end.
                self.close()
            return False
        return True
