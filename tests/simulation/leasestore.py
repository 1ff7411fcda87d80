"""The store in which controllers elect: one lease with a time to live, a revision that never goes down."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to a request: whether it was granted, under which term."""

    granted: bool
    term: int


class LeaseStore:
    """One lease. Requests and answers take time and get lost in the network, which is not modelled here.

    While it stands still (`paused`) requests wait, while it is down they are lost; it forgets nothing.
    """

    def __init__(self, world: World, ttl_ns: int) -> None:
        self._world = world
        self.ttl_ns = ttl_ns
        self.holder: str | None = None
        self.term = 0
        self.expires_ns = 0
        self.down = False
        self._waiting: list[Callable[[], None]] | None = None
        self.trusts_time = True
        """False: forgets the lease before its time (an assumption broken on purpose)."""

    def ask(self, holder: str, answer: Callable[[Grant], None]) -> None:
        """Answer a request, now or once the store goes on; never where it is down."""
        if self.down:
            return
        if self._waiting is not None:
            self._waiting.append(lambda: answer(self.request(holder)))
        else:
            answer(self.request(holder))

    def pause(self, paused: bool) -> None:
        """Stand still, or go on with what came in meanwhile."""
        if paused:
            self._waiting = self._waiting or []
            return
        waiting, self._waiting = self._waiting or [], None
        for serve in waiting:
            serve()

    def restore(self) -> None:
        """Come back under a higher revision: whoever holds the lease holds it under a new term."""
        self.term += 1

    def request(self, holder: str) -> Grant:
        """Grant or renew the lease, from now on for the time to live."""
        now = self._world.now
        expired = now >= self.expires_ns or (not self.trusts_time and self._world.rng("store").random() < 0.2)
        if self.holder == holder and now < self.expires_ns:
            self.expires_ns = now + self.ttl_ns
            return Grant(True, self.term)
        if not expired:
            return Grant(False, self.term)
        self.holder, self.term, self.expires_ns = holder, self.term + 1, now + self.ttl_ns
        return Grant(True, self.term)
