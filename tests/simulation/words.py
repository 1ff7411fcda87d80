"""What operators have said, and what they may rely on since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from node_manager.core.events import Command, Verb

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

HOST, MAINTENANCE = "host", "maintenance"
"""Subjects of words that concern no single component."""

Key = tuple[str, str]


class Words:
    """The last acknowledged word about each subject of each host (by identity).

    A word that was taken and not answered, because the agent died, may be durable or not: until a later one about the
    same subject is acknowledged nothing is relied on.
    """

    def __init__(self) -> None:
        self._last: dict[Key, tuple[Verb, bool]] = {}
        self._open: dict[Key, list[tuple[Agent, Command]]] = {}

    def asked(self, agent: Agent, command: Command) -> None:
        """An agent takes a command."""
        self._open.setdefault(_key(agent, command), []).append((agent, command))

    def answered(self, agent: Agent, command_id: int, *, ok: bool) -> Command | None:
        """It answers it: whatever was asked before about the same subject has become what it is. Return the command."""
        for key, waiting in self._open.items():
            for place, (asked, command) in enumerate(waiting):
                if asked is agent and command.id == command_id:
                    del waiting[0 if ok else place : place + 1]
                    self._take(key, command, ok=ok)
                    return command
        return None

    def _take(self, key: Key, command: Command, *, ok: bool) -> None:
        if ok:
            self._last[key] = command.verb, command.enable
        elif command.verb in {Verb.START, Verb.RESTART}:
            # The hold may be lifted all the same, and another rule forbids the start.
            self._last.pop(key, None)

    def forget(self, identity: str) -> None:
        """What the host knew is lost, but for what a record in doubt holds: the words about the host itself."""
        for key in [key for key in self._last if key[0] == identity and key[1] != HOST]:
            del self._last[key]

    def last(self, identity: str, subject: str) -> Verb | None:
        """Return the last word that can be relied on. MAINTENANCE means that it is on."""
        key = (identity, subject)
        verb, enabled = self._last.get(key, (None, True))
        return verb if enabled and not self._open.get(key) else None

    def is_certain(self, identity: str, subject: str) -> bool:
        """Tell whether every word about the subject was answered."""
        return not self._open.get((identity, subject))


def _key(agent: Agent, command: Command) -> Key:
    subject = command.component or (MAINTENANCE if command.verb is Verb.MAINTENANCE else HOST)
    return agent.host.identity, subject
