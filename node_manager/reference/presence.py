"""Which hosts speak to the primary, which are away for a while, and which it gives up.

A host that is silent is given up after the grace. It is not, as long as it has said when it will be back: its worker's
agent knows how long a restart takes at worst, which the worker passes on when it joins; and the agent beside this
controller counts down to the return of the worker here (`EXPECTED_BACK_MS`). Who is not back by then is lost.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from node_manager.heartbeat.client import AgentView
from node_manager.reference.clock import NS_PER_MS, NS_PER_S
from node_manager.reference.loop import MAX_WAIT_NS

Key = tuple[str, str]
"""A host's name and instance."""
WORKER = "worker"
MAX_REJOIN_MS = 86_400_000
"""A day, as the longest grace: what promises more is not believed."""


@dataclass(slots=True, kw_only=True)
class _Host:
    """Times are CLOCK_BOOTTIME of this host."""

    silent_ns: int | None
    """Since when; None: it is connected."""
    rejoin_ns: int = 0
    """How long a restart of its worker takes at worst, as it said; 0: it did not."""
    lost: bool = False


class Presence:
    """`grace_ns`: how long a host may be silent that has not said when it will be back."""

    def __init__(self, grace_ns: int) -> None:
        self._grace_ns = grace_ns
        self._hosts: dict[Key, _Host] = {}
        self._heard: AgentView | None = None
        self._expected: tuple[str, int] = ("", 0)
        """The host whose agent we hear, and by when its worker must be back, as it last said."""

    def begin(self, keys: Iterable[Key], now_ns: int) -> None:
        """This controller leads from now on: nobody has had a chance to speak to it yet."""
        self._hosts = {key: _Host(silent_ns=now_ns) for key in keys}

    def joined(self, key: Key, rejoin_ms: int | None) -> bool:
        """A worker has joined; returns whether its host had been given up."""
        before = self._hosts.get(key)
        self._hosts[key] = _Host(silent_ns=None, rejoin_ns=(rejoin_ms or 0) * NS_PER_MS)
        return before is not None and before.lost

    def gone(self, key: Key, now_ns: int) -> None:
        """A worker's connection has ended."""
        host = self._hosts.get(key)
        if host is not None:
            host.silent_ns = now_ns

    def forget(self, key: Key) -> None:
        """The host does not belong to the cluster any more: nobody waits for it."""
        self._hosts.pop(key, None)

    def expect(self, name: str, agent: AgentView, now_ns: int) -> None:
        """What the agent beside this controller says of the worker here, on the host `name`.

        Only its newest word counts, from when it came: what is left of an earlier one runs out.
        """
        if agent is self._heard:
            return
        self._heard = agent
        left_ms = agent.levels.get(f"COMPONENT.{WORKER}.EXPECTED_BACK_MS", "")
        if left_ms.isascii() and left_ms.isdigit():
            self._expected = (name, now_ns + min(int(left_ms), MAX_REJOIN_MS) * NS_PER_MS)

    def tick(self, now_ns: int) -> tuple[list[str], int]:
        """A sentence for each host that is given up now, and when the next one may be."""
        sentences = []
        next_ns = now_ns + MAX_WAIT_NS
        for key, host in self._hosts.items():
            if host.silent_ns is None or host.lost:
                continue
            due_ns = self._due_ns(key, host, host.silent_ns)
            if now_ns >= due_ns:
                host.lost = True
                silent_s = (now_ns - host.silent_ns) / NS_PER_S
                sentences.append(f"host {key[0]} ({key[1] or 'no instance id'}) is lost: silent for {silent_s:.1f} s")
            else:
                next_ns = min(next_ns, due_ns)
        return sentences, next_ns

    def level(self, key: Key, now_ns: int) -> Mapping[str, str | float | None]:
        """For listings: where the host stands, and for how long it is still waited for."""
        host = self._hosts.get(key)
        if host is None or host.silent_ns is None:
            return {"presence": "away" if host is None else "connected", "given_up_in_s": None}
        if host.lost:
            return {"presence": "lost", "given_up_in_s": None}
        return {
            "presence": "away",
            "given_up_in_s": max(0, self._due_ns(key, host, host.silent_ns) - now_ns) / NS_PER_S,
        }

    def _due_ns(self, key: Key, host: _Host, silent_ns: int) -> int:
        name, back_ns = self._expected
        due_ns = silent_ns + max(self._grace_ns, host.rejoin_ns)
        return max(due_ns, back_ns) if key[0] == name else due_ns
