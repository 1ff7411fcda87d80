"""The way to the primary controller: try the addresses in turn, greet, and come back with jitter when it is lost.

A controller's absence is no reason to stop: whoever uses a link goes on with what it has.
"""

import random
from collections.abc import Callable
from typing import Any

from node_manager.reference.clock import NS_PER_S
from node_manager.reference.journal import Journal
from node_manager.reference.lines import Connection, Message
from node_manager.reference.loop import Loop
from node_manager.reference.settings import Address

FIRST_DELAY_NS = NS_PER_S // 10
MAX_DELAY_NS = 5 * NS_PER_S
"""Hosts that lost a controller together come back spread over seconds, and each within this time."""
GREETING_NS = 2 * NS_PER_S
"""A controller that has not answered the greeting by then is given up: it may be stopped, or drop packets."""
REPORT_NS = 2 * NS_PER_S
"""Between two reports on a joined link."""
UNANSWERED_NS = 10 * NS_PER_S
"""A joined controller that has answered nothing for this long is taken for lost."""


class Link:
    """One connection at a time.

    `greeting()` makes the first message. Its answer goes to `on_answer`, which returns whether the link is joined;
    `on_message` gets everything after that, `on_lost` is called when a joined link ends.
    """

    def __init__(
        self,
        loop: Loop,
        controllers: tuple[Address, ...],
        journal: Journal,
        *,
        greeting: Callable[[], Message],
        on_answer: Callable[[Message], bool],
        on_message: Callable[[Message], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._controllers = controllers
        self._journal = journal
        self._greeting = greeting
        self._on_answer = on_answer
        self._on_message = on_message
        self._on_lost = on_lost
        self._connection: Connection | None = None
        self._index = 0
        self._refused = 0
        self._delay_ns = FIRST_DELAY_NS
        self._next_ns = 0
        self._begun_ns = 0
        self._silent = False
        self.joined = False

    @property
    def address(self) -> Address:
        """The controller that is or will be asked."""
        return self._controllers[self._index]

    def tick(self, now_ns: int) -> int:
        """Connect when it is time, give up what does not answer; returns when to be called again."""
        if self._connection is None and now_ns >= self._next_ns:
            self._connect(now_ns)
        connection = self._connection
        if connection is None:
            return self._next_ns
        due_ns = connection.heard_ns + UNANSWERED_NS if self.joined else self._begun_ns + GREETING_NS
        if now_ns >= due_ns:
            connection.close("it does not answer")
            return self._next_ns
        return due_ns

    def send(self, message: Message) -> bool:
        """Send on a joined link; False where there is none."""
        if not self.joined or self._connection is None:
            return False
        self._connection.send(message)
        return not self._connection.closed

    def close(self) -> None:
        """End it; nothing is called any more."""
        self._silent = True
        if self._connection is not None:
            self._connection.close("stopping")

    def _connect(self, now_ns: int) -> None:
        self._begun_ns = now_ns
        try:
            connection = Connection.connect(
                self._loop, self.address, on_message=self._received, on_close=self._closed_by
            )
        except OSError as error:
            self._begin_wait(now_ns, str(error))
            return
        self._connection = connection
        connection.send(self._greeting())

    def _received(self, connection: Connection, message: Message) -> None:
        if self.joined:
            self._on_message(message)
        elif self._on_answer(message):
            self.joined = True
            self._delay_ns = FIRST_DELAY_NS
            self._refused = 0
        else:
            connection.close(str(message.get("error", "refused"))[:200])

    def _closed_by(self, connection: Connection, reason: str) -> None:
        was_joined, self.joined = self.joined, False
        self._connection = None
        if self._silent:
            return
        self._begin_wait(connection.heard_ns if was_joined else self._begun_ns, reason)
        if was_joined:
            self._on_lost()

    def _begin_wait(self, now_ns: int, reason: str) -> None:
        """Next address at once while there is one not tried in this round, then a delay."""
        self._journal.complain(f"no link to controller {self.address}: {reason}")
        self._index = (self._index + 1) % len(self._controllers)
        self._refused += 1
        if self._refused % len(self._controllers):
            self._next_ns = now_ns
            return
        self._next_ns = now_ns + int(self._delay_ns * random.uniform(0.5, 1.0))  # noqa: S311 -- spreads load, no secret
        self._delay_ns = min(2 * self._delay_ns, MAX_DELAY_NS)


def is_ok(message: Message) -> bool:
    """Whether a reply says that it was done."""
    return message.get("ok") is True


def code_of(message: Message) -> str:
    """Why it was not done, for programs."""
    code: Any = message.get("code")
    return code if isinstance(code, str) else ""
