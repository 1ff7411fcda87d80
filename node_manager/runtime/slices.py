"""Long work in short pieces: looking at thousands of processes must not keep the loop from everything else.

All pieces of one agent share the time of a turn and take turns within it, so that a tree of thousands neither delays
a lease's end nor the kill of a small tree beside it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator

SLICE_S = 0.01
"""Time of one turn of the loop that goes into all work together: well below the margin of any lease."""
STEPS_PER_TURN = 1024
"""Steps of one turn: one takes some 20 microseconds where nothing is slow, so that both bounds are about the same."""
_STEPS_AT_ONCE = 16
"""Steps of one piece before the clock is read and the next piece has its go."""


class Work:
    """One piece of work on its way. `then` gets what the generator returns."""

    def __init__(self, steps: Generator[None, None, bool], then: Callable[[bool], None]) -> None:
        self.steps = steps
        self.then = then


class Slices:
    """Does the work of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[Work] = deque()
        self._handle: asyncio.Handle | None = None

    def begin(self, steps: Generator[None, None, bool], then: Callable[[bool], None]) -> Work:
        """Take work on; nothing of it is done before this returns. Its steps must not raise, and not drop the work."""
        work = Work(steps, then)
        self._queue.append(work)
        self._schedule()
        return work

    def drop(self, work: Work) -> None:
        """Leave it unfinished: `then` is not called."""
        if work in self._queue:
            self._queue.remove(work)
        work.steps.close()
        if not self._queue and self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _schedule(self) -> None:
        if self._queue and self._handle is None:
            self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._handle = None
        until_s = time.monotonic() + SLICE_S
        steps = 0
        while self._queue and steps < STEPS_PER_TURN and time.monotonic() < until_s:
            steps += _STEPS_AT_ONCE
            work = self._queue.popleft()
            try:
                for _ in range(_STEPS_AT_ONCE):
                    next(work.steps)
            except StopIteration as end:
                work.then(bool(end.value))
            else:
                self._queue.append(work)
        self._schedule()
