"""A few threads for work that may hang: reading /proc, looking a name up, opening a log, writing to a disk.

They are made when there is something to do and end when there is nothing more, so an idle agent has none. One does
everything while it answers at once; another comes when something has waited for a moment. What hangs keeps its thread,
and never more than those of its crew; whoever asked waits with a bound of its own.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 0.02
"""How long work waits before it gets another thread: what does not hang takes far less, a hundred of them too."""


class Crew:
    """Up to `size` daemon threads named `name`; at most `max_waiting` pieces of work wait for one. The loop's own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, *, size: int, max_waiting: int) -> None:
        self._loop = loop
        self._name = name
        self._size = size
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._threads = 0
        self._growing: asyncio.TimerHandle | None = None
        self._closed = False

    def do(self, work: Callable[[], T], done: Callable[[T], None]) -> bool:
        """Have `work` done in a thread; the loop calls `done` with what it returns. `work` must not raise.

        False: it is not done, because too much waits already, or the host has no more threads.
        """
        item = (work, done)
        with self._lock:
            if self._closed or len(self._waiting) >= self._max_waiting:
                return False
            self._waiting.append(item)
            first = self._threads == 0
        if first and not self._another():
            with self._lock:
                self._waiting.remove(item)
            return False
        if not first and self._growing is None:
            self._growing = self._loop.call_later(PATIENCE_S, self._grow)
        return True

    def close(self) -> None:
        """Begin nothing more, and call nobody any more; what hangs is left to itself."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
        if self._growing is not None:
            self._growing.cancel()

    def _grow(self) -> None:
        """Those at work do not get to what waits: another thread, and a look again."""
        self._growing = None
        with self._lock:
            wanted = bool(self._waiting) and self._threads < self._size
        if wanted:
            self._another()  # where there cannot be one, what waits goes on waiting
            self._growing = self._loop.call_later(PATIENCE_S, self._grow)

    def _another(self) -> bool:
        """One thread more. False: the host has no more threads."""
        with self._lock:
            self._threads += 1
        try:
            # A daemon: what hangs must not keep the agent from ending.
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._threads -= 1
            return False
        return True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                work, done = self._waiting.popleft()
            try:
                result = work()
            except BaseException:
                with self._lock:
                    self._threads -= 1
                raise
            try:
                self._loop.call_soon_threadsafe(self._tell, done, result)
            except RuntimeError:
                return  # the loop is closed

    def _tell(self, done: Callable[[Any], None], result: object) -> None:
        if not self._closed:
            done(result)
