"""Virtual time: one heap of events, and one source of randomness for each purpose.

A purpose (a host's crashes, the network's delays) has a generator of its own, derived from the seed, so that taking
one fault out of a schedule leaves everything else as it was: that is what makes shrinking work.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from itertools import count

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
LAST_EVENTS = 400
"""How much of a run is kept for a failure's report."""


class Timer:
    """Something that happens later, unless it is cancelled."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Let it not happen."""
        self.cancelled = True


class World:
    """See the module. `now` is the world's own time in nanoseconds; hosts have clocks of their own."""

    def __init__(self, seed: int, *, keep_all: bool = False) -> None:
        self.seed = seed
        self.now = 0
        self.events = 0
        self.after_event: Callable[[], None] = lambda: None
        self.log: deque[tuple[int, str]] = deque(maxlen=None if keep_all else LAST_EVENTS)
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = count()
        self._random: dict[str, random.Random] = {}

    def rng(self, purpose: str) -> random.Random:
        """Return the generator of one purpose."""
        found = self._random.get(purpose)
        if found is None:
            found = self._random[purpose] = random.Random(f"{self.seed}/{purpose}")
        return found

    def later(self, delay_ns: int, callback: Callable[[], None]) -> Timer:
        """Have something happen after a delay; things of the same instant happen in the order they were asked for."""
        timer = Timer(callback)
        heapq.heappush(self._heap, (self.now + max(0, delay_ns), next(self._order), timer))
        return timer

    def note(self, text: str) -> None:
        """Keep a line for the report of a failure and for `--replay`."""
        self.log.append((self.now, text))

    def run_until(self, end_ns: int) -> None:
        """Let time pass."""
        heap = self._heap
        while heap and heap[0][0] <= end_ns:
            at, _, timer = heapq.heappop(heap)
            if timer.cancelled:
                continue
            self.now = at
            self.events += 1
            timer.callback()
            self.after_event()
        self.now = end_ns
