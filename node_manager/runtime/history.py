"""The event history: the last things that happened, bounded, with endless repeats collapsed into a count.

A timeline is what an operator reads, so what happens a few times stands there a few times. A component that restarts
for ever must not push out of the history what led to it (SCENARIOS 19): once an event has come KEPT_REPEATS times
within the window, each further one takes the place of the last, with a `count`.
"""

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from node_manager.core.actions import Log

MAX_ENTRIES = 2048
"""Bound on the history: hours of an eventful host, about 1 MiB."""
MAX_TEXT = 512
"""Bound on one text of an entry."""
COLLAPSE_WITHIN_NS = 600 * 1_000_000_000
"""Repeats further apart than this are events of their own: an operator wants to see both times."""
NEVER_COLLAPSED = "command."
"""Prefix of the events that are an operator's words: each keeps its own place."""
KEPT_REPEATS = 8
"""Repeats that keep a place of their own: enough to see a rhythm."""
VARYING = frozenset({"generation", "pid", "duration_ms", "path"})
"""Figures that differ at each repeat of what is otherwise the same event."""

_OWN = frozenset({"seq", "at", "event", "component", "count", "first_at"})
"""What the history itself puts into an entry."""

_Key = tuple[object, ...]


class History:
    """See the module. Entries are the JSON objects of `/v1/events`."""

    def __init__(self, *, max_entries: int = MAX_ENTRIES) -> None:
        self._max = max_entries
        self._seq = 0
        self._entries: dict[int, dict[str, Any]] = {}
        """By sequence number, so in order."""
        self._keys: dict[int, _Key] = {}
        self._repeats: dict[_Key, deque[int]] = {}
        """Sequence numbers of the entries that say the same, the oldest first."""
        self._times: dict[int, int] = {}
        self._wakes: list[Callable[[], None]] = []

    def add(self, log: Log, wall_ns: int) -> dict[str, Any]:
        """Add what the core logged at `wall_ns` (nanoseconds since the epoch) and return the entry."""
        self._seq += 1
        fields = {name: _bounded(value) for name, value in log.fields}
        entry: dict[str, Any] = {"seq": self._seq, "at": _iso(wall_ns), "event": log.event, "component": log.component}
        entry.update(fields)
        if not log.event.startswith(NEVER_COLLAPSED):
            self._collapse(_key(log.event, log.component, fields), entry, wall_ns)
        self._entries[self._seq] = entry
        if len(self._entries) > self._max:
            self._forget(next(iter(self._entries)))
        for wake in tuple(self._wakes):
            wake()
        return entry

    def _collapse(self, key: _Key, entry: dict[str, Any], wall_ns: int) -> None:
        """Let the entry take the last one's place, where enough recent ones say the same."""
        repeats = self._repeats.setdefault(key, deque())
        while repeats and abs(wall_ns - self._times[repeats[0]]) > COLLAPSE_WITHIN_NS:
            self._unlink(repeats[0])
            repeats = self._repeats.setdefault(key, deque())
        if len(repeats) >= KEPT_REPEATS:
            before = self._forget(repeats[-1])
            entry["count"] = before.get("count", 1) + 1
            entry["first_at"] = before.get("first_at", before["at"])
        self._link(self._seq, key, wall_ns)

    def _link(self, seq: int, key: _Key, wall_ns: int) -> None:
        self._keys[seq] = key
        self._times[seq] = wall_ns
        self._repeats.setdefault(key, deque()).append(seq)

    def _unlink(self, seq: int) -> None:
        """Let an entry stand for itself: no repeat counts on it any more."""
        key = self._keys.pop(seq, None)
        if key is None:
            return
        del self._times[seq]
        repeats = self._repeats[key]
        repeats.remove(seq)
        if not repeats:
            del self._repeats[key]

    def _forget(self, seq: int) -> dict[str, Any]:
        self._unlink(seq)
        return self._entries.pop(seq)

    def keep(self) -> list[dict[str, Any]]:
        """Return every entry, oldest first, for a successor."""
        return list(self._entries.values())

    def restore(self, entries: list[dict[str, Any]]) -> None:
        """Go on with a predecessor's entries and its sequence numbers."""
        for entry in entries[-self._max :]:
            self._seq = seq = entry["seq"]
            self._entries[seq] = entry
            if not entry["event"].startswith(NEVER_COLLAPSED):
                key = _key(entry["event"], entry["component"], {n: v for n, v in entry.items() if n not in _OWN})
                self._link(seq, key, round(datetime.fromisoformat(entry["at"]).timestamp() * 1_000_000_000))

    def after(self, seq: int, limit: int) -> list[dict[str, Any]]:
        """Return the oldest `limit` entries whose `seq` is greater than `seq`."""
        found: list[dict[str, Any]] = []
        for entry in reversed(self._entries.values()):
            if entry["seq"] <= seq:
                break
            found.append(entry)
        found.reverse()
        return found[:limit]

    def of(self, component: str, limit: int) -> list[dict[str, Any]]:
        """Return the last `limit` entries of one component, oldest first."""
        found: list[dict[str, Any]] = []
        for entry in reversed(self._entries.values()):
            if entry["component"] == component:
                found.append(entry)
                if len(found) == limit:
                    break
        found.reverse()
        return found

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have `wake` called after each new entry; the result ends that."""
        self._wakes.append(wake)
        return lambda: self._wakes.remove(wake)


def _key(event: str, component: str | None, fields: dict[str, Any]) -> _Key:
    """Return what entries have in common that say the same."""
    return (event, component, *((name, fields[name]) for name in fields if name not in VARYING))


def _bounded(value: str | int | bool | None) -> str | int | bool | None:
    return value[:MAX_TEXT] if isinstance(value, str) else value


def _iso(wall_ns: int) -> str:
    seconds, rest_ns = divmod(wall_ns, 1_000_000_000)
    return f"{_second(seconds)}.{rest_ns // 1_000_000:03d}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    """What comes at once comes in the same second mostly."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
