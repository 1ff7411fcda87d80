"""Standing for a lease: when to say primary, when to stop saying it. Used by the controller and the lease keeper.

What is stated ends a little before the lease does in the store, by the share that clock rates may differ. Stepping
down is to say standby and to stop renewing; the lease runs out by itself.

The store may answer late, or never. An answer counts by when its question was asked: one that comes after standby was
said brings no leadership back, and the validity is that from before the question.
"""

from collections.abc import Callable
from enum import Enum

from node_manager.reference.clock import NS_PER_MS
from node_manager.reference.lease import RATE_MARGIN_DIVISOR, Answer, Free, Held, LeaseStore, Taken, Unknown

RETRY_DIVISOR = 4
"""Tries per renewal interval while the store does not answer."""
MIN_RETRY_NS = 20 * NS_PER_MS
"""A waiting rival looks at the lease no more often than this."""


class Stance(Enum):
    """What may be said about the leadership."""

    UNREAD = "unread"
    """The store has never been read: nothing may be said."""
    STANDBY = "standby"
    PRIMARY = "primary"


class _Question(Enum):
    """What the store was asked, and has not answered yet."""

    NONE = "none"
    LOOK = "look"
    ACQUIRE = "acquire"
    """To take or renew the lease under the term it has."""
    BEGIN = "begin"
    """To take it under a new term."""
    RELEASE = "release"


class Election:
    """One candidate. `poll` does the store's work when it is due; all times are CLOCK_BOOTTIME in nanoseconds.

    `new_term`: an earlier process of this holder has said standby, so its term is over. `remember` is told, before it
    is said, whether that holds for the next process.
    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        holder: str,
        lease_ns: int,
        renew_ns: int,
        willing: bool = True,
        new_term: bool = False,
        remember: Callable[[bool], None] = lambda _new_term: None,
    ) -> None:
        self._store = store
        self.holder = holder
        self._lease_ns = lease_ns
        self._renew_ns = renew_ns
        self.willing = willing
        self._new_term = new_term
        self._remember = remember
        self._question = _Question.NONE
        self._due_ns = 0
        self.stance = Stance.UNREAD
        self.term = 0
        self.valid_until_ns = 0
        """End of what was last stated, in this stance or before it."""
        self.leader: str | None = None
        self.released = False
        """The lease was given back early; until the next leadership."""
        self.trouble = ""

    @property
    def next_ns(self) -> int:
        """When to poll again at the latest."""
        return self._due_ns if self._question is _Question.NONE else self._store.next_ns()

    @property
    def releasing(self) -> bool:
        """The store was asked to end the lease early, and has not answered yet."""
        return self._question is _Question.RELEASE

    def leads(self, now_ns: int) -> bool:
        """Whether it may act as primary at this instant. Ask with a fresh clock: the process may have been stopped."""
        return self.stance is Stance.PRIMARY and now_ns < self.valid_until_ns

    def poll(self, now_ns: int) -> None:
        """Notice the end of the lease, take the store's answer, ask it where that is due."""
        if self.stance is Stance.PRIMARY and now_ns >= self.valid_until_ns:
            self._give_up()
            self._due_ns = now_ns
        self._take(now_ns)
        if self._question is _Question.NONE and now_ns >= self._due_ns:
            self._ask()
            self._take(now_ns)

    def step_down(self) -> None:
        """Say standby and stop renewing. Nobody waits, and the lease is left alone."""
        self.willing = False
        if self.stance is Stance.PRIMARY:
            self._give_up()

    def stand(self, now_ns: int) -> None:
        """Stand again. A leadership given up before does not come back under its old term."""
        if not self.willing:
            self.willing = True
            self._new_term = True
            self._due_ns = now_ns

    def release(self) -> None:
        """End the lease early. The caller has proof that every dependant was stopped after standby was said.

        `released` says when it is done; if the store does not do it, the lease runs out.
        """
        if self.stance is not Stance.PRIMARY:
            self._question = _Question.RELEASE
            self._store.release(term=self.term)

    def _ask(self) -> None:
        if not self.willing:
            self._question = _Question.LOOK
            self._store.look()
            return
        self._question = _Question.BEGIN if self._new_term else _Question.ACQUIRE
        self._store.acquire(lease_ns=self._lease_ns, new_term=self._new_term)

    def _take(self, now_ns: int) -> None:
        if self._question is _Question.NONE:
            return
        answer = self._store.answer(now_ns)
        if answer is None:
            return
        question, self._question = self._question, _Question.NONE
        self._due_ns = now_ns + self._renew_ns
        self.trouble = ""
        if question is _Question.RELEASE:
            self.released = isinstance(answer, Free)
        else:
            self._heed(question, answer, now_ns)

    def _heed(self, question: _Question, answer: Answer, now_ns: int) -> None:
        match answer:
            case Held():
                self._hold(question, answer, now_ns)
            case Taken():
                # Its own record, while it does not stand, is only running out.
                self._follow(answer.term, answer.holder if answer.holder != self.holder else None)
                if answer.valid_until_ns is not None:
                    self._due_ns = max(min(self._due_ns, answer.valid_until_ns), now_ns + MIN_RETRY_NS)
            case Free():
                self._follow(answer.term, None)
                if question is not _Question.LOOK:  # lost meanwhile: stand anew
                    self._due_ns = now_ns + MIN_RETRY_NS
            case Unknown():
                # What was validly stated holds until its own end; nothing new is stated.
                self.trouble = answer.reason
                self._due_ns = now_ns + max(self._renew_ns // RETRY_DIVISOR, MIN_RETRY_NS)

    def _hold(self, question: _Question, answer: Held, now_ns: int) -> None:
        if not self.willing:
            self._follow(answer.term, None)
            return
        if self._new_term and question is not _Question.BEGIN:
            # Asked before standby was said: that term is over.
            self._follow(answer.term, None)
            self._due_ns = now_ns
            return
        if answer.term < self.term:
            self._follow(self.term, None)
            self.trouble = f"the store's term went back from {self.term} to {answer.term}"
            return
        self.term = answer.term
        self.leader = self.holder
        until_ns = answer.valid_until_ns - self._lease_ns // RATE_MARGIN_DIVISOR
        if now_ns < until_ns:
            if self._new_term:
                self._new_term = False
                self._remember(False)
            self.released = False
            self.valid_until_ns = until_ns
            self.stance = Stance.PRIMARY
        else:
            self._follow(answer.term, None)

    def _follow(self, term: int, leader: str | None) -> None:
        if self.stance is Stance.PRIMARY:
            self._give_up()
        self.stance = Stance.STANDBY
        self.term = max(self.term, term)
        self.leader = leader

    def _give_up(self) -> None:
        """Standby is said from now on: a leadership after this is another one, with another term."""
        self.stance = Stance.STANDBY
        self._new_term = True
        self._remember(True)
