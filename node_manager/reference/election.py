"""Standing for a lease: when to say primary, when to stop saying it. Used by the controller and the lease keeper.

What is stated ends a little before the record does, by the share that clock rates may differ. Stepping down is to
say standby and to stop renewing; the record runs out by itself.
"""

import zlib
from enum import Enum
from pathlib import Path

from node_manager.reference.clock import NS_PER_MS
from node_manager.reference.guarded import take_slot
from node_manager.reference.lease import Free, Held, LeaseStore, Taken, Unknown

RATE_MARGIN_DIVISOR = 1000
"""Clock rates of two hosts differ by less than one in a thousand (NTP disciplines within 500 ppm each)."""
RETRY_DIVISOR = 4
"""Tries per renewal interval while the store does not answer."""
MIN_RETRY_NS = 20 * NS_PER_MS
"""A waiting rival looks at the record no more often than this."""


class Stance(Enum):
    """What may be said about the leadership."""

    UNREAD = "unread"
    """The store has never been read: nothing may be said."""
    STANDBY = "standby"
    PRIMARY = "primary"


class Election:
    """One candidate. `poll` does the store's work when it is due; all times are CLOCK_BOOTTIME in nanoseconds."""

    def __init__(self, store: LeaseStore, *, holder: str, lease_ns: int, renew_ns: int, willing: bool = True) -> None:
        self._store = store
        self.holder = holder
        self._lease_ns = lease_ns
        self._renew_ns = renew_ns
        self.willing = willing
        self._new_term = False
        self.stance = Stance.UNREAD
        self.term = 0
        self.valid_until_ns = 0
        """End of what was last stated, in this stance or before it."""
        self.leader: str | None = None
        self.trouble = ""
        self.next_ns = 0

    def leads(self, now_ns: int) -> bool:
        """Whether it may act as primary at this instant. Ask with a fresh clock: the process may have been stopped."""
        return self.stance is Stance.PRIMARY and now_ns < self.valid_until_ns

    def poll(self, now_ns: int) -> None:
        """Notice the end of the lease, then read or renew where that is due."""
        if self.stance is Stance.PRIMARY and now_ns >= self.valid_until_ns:
            self.stance = Stance.STANDBY
            self.next_ns = now_ns
        if now_ns < self.next_ns:
            return
        answer = (
            self._store.acquire(holder=self.holder, lease_ns=self._lease_ns, new_term=self._new_term)
            if self.willing
            else self._store.look()
        )
        self.next_ns = now_ns + self._renew_ns
        self.trouble = ""
        match answer:
            case Held():
                self._hold(answer, now_ns)
            case Taken():
                # Its own record, while it does not stand, is only running out.
                self._follow(answer.term, answer.holder if answer.holder != self.holder else None)
                self.next_ns = max(min(self.next_ns, answer.valid_until_ns), now_ns + MIN_RETRY_NS)
            case Free():
                self._follow(answer.term, None)
            case Unknown():
                # What was validly stated holds until its own end; nothing new is stated.
                self.trouble = answer.reason
                self.next_ns = now_ns + max(self._renew_ns // RETRY_DIVISOR, MIN_RETRY_NS)

    def _hold(self, answer: Held, now_ns: int) -> None:
        if answer.term < self.term:
            self._follow(self.term, None)
            self.trouble = f"the store's term went back from {self.term} to {answer.term}"
            return
        self._new_term = False
        self.term = answer.term
        self.leader = self.holder
        self.valid_until_ns = answer.valid_until_ns - self._lease_ns // RATE_MARGIN_DIVISOR
        self.stance = Stance.PRIMARY if now_ns < self.valid_until_ns else Stance.STANDBY

    def _follow(self, term: int, leader: str | None) -> None:
        self.stance = Stance.STANDBY
        self.term = max(self.term, term)
        self.leader = leader

    def step_down(self) -> None:
        """Say standby and stop renewing. Nobody waits, and the record is left alone."""
        self.willing = False
        if self.stance is Stance.PRIMARY:
            self.stance = Stance.STANDBY

    def stand(self, now_ns: int) -> None:
        """Stand again. A leadership given up before does not come back under its old term."""
        if not self.willing:
            self.willing = True
            self._new_term = True
            self.next_ns = now_ns

    def release(self) -> bool:
        """End the lease early. The caller has proof that every dependant was stopped after standby was said."""
        return self.stance is not Stance.PRIMARY and self._store.release(holder=self.holder, term=self.term)


def claim_slot(lease: Path, holder: str) -> int:
    """Make sure that one process alone stands under this holder's name: its term is kept over a restart.

    Returns the descriptor to keep open. BlockingIOError: another process stands under this name.
    """
    return take_slot(lease.with_name(f"{lease.name}.{zlib.crc32(holder.encode()):08x}.slot"))
