"""The group whose members may change the node: its number, looked up beside the loop.

The look-up goes through NSS and may hang for as long as a directory service likes. So it has a thread, which an agent
that begins waits for within a bound; after that nobody does. Once the number is known it is asked for no more. Where it
is not, because nobody answers or there is no such group yet, whoever is refused for that has it looked up once more.
"""

import grp
import threading
import time
from collections.abc import Callable, Sequence

ANSWER_S = 1.0
"""How long an agent that begins waits: components go unattended meanwhile."""
AGAIN_S = 5.0
"""A group that does not exist is asked for at most so often, however many are refused."""


class AdminGroup:
    """One group, by its name. `ask` asks the host: its number, or None where there is no such group."""

    def __init__(
        self,
        name: str,
        *,
        ask: Callable[[str], int | None] | None = None,
        answer_s: float = ANSWER_S,
        again_s: float = AGAIN_S,
    ) -> None:
        self._name = name
        self._ask = ask or _asked_of_nss
        self._again_s = again_s
        self._gid: int | None = None
        self._asked_s = 0.0
        self._told = threading.Event()
        self._begin()
        self._told.wait(answer_s)

    def includes(self, gid: int, groups: Sequence[int]) -> bool:
        """Whether a process with these groups is a member, as far as is known now. Waits for nobody."""
        if self._gid is None:
            if self._told.is_set() and time.monotonic() - self._asked_s >= self._again_s:
                self._begin()
            return False
        return self._gid == gid or self._gid in groups

    def trouble(self) -> str | None:
        """What keeps members from changing the node, as a sentence; None: nothing, as far as is known."""
        if self._told.is_set():
            return None
        return (
            f"who is in the group {self._name} is not known: whoever knows the groups of this host does not answer; "
            "until then its members may not change this node"
        )

    def _begin(self) -> None:
        self._asked_s = time.monotonic()
        self._told.clear()
        try:
            threading.Thread(target=self._look, name="xce-group", daemon=True).start()
        except RuntimeError:  # the host has no more threads: with the next who is refused
            self._told.set()

    def _look(self) -> None:
        try:
            self._gid = self._ask(self._name)
        finally:
            self._told.set()


def _asked_of_nss(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, OSError):
        return None
