"""Waiting for something to change, over the agent's event stream and over the agent's own restarts."""

from __future__ import annotations

import time

from node_manager.api.client import Client, NotReachable

TYPE_CHECKING = False  # typing itself costs some milliseconds at each start of a command
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from node_manager.api.client import EventStream

SETTLE_S = 0.1
"""Pause after a change, so that a burst of events leads to one look."""
RETRY_S = 0.2
"""Pause between attempts while the agent is not reachable or has no stream to spare."""
_PATIENCE_S = 3600.0
"""One wait for events; nothing depends on it."""


class Changes:
    """Wakes whoever looks at the status again. A context manager: it holds a stream."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stream: EventStream | None = None

    def __enter__(self) -> Changes:  # noqa: PYI034  Self lives in typing
        return self

    def __exit__(self, *_exception: object) -> None:
        self._close()

    def wait(self, timeout_s: float) -> None:
        """Return soon after something has changed, or after `timeout_s` at the latest.

        It may return early without a change. Where there is no stream it is a pause of RETRY_S.
        """
        deadline_s = time.monotonic() + timeout_s
        if self._stream is None:
            try:
                # The history comes first: whatever happened since the caller looked wakes it.
                self._stream = self._client.follow(0)
            except NotReachable:
                time.sleep(min(RETRY_S, timeout_s))
                return
        if self._read(timeout_s):
            time.sleep(max(0.0, min(SETTLE_S, deadline_s - time.monotonic())))
            while self._read(0):
                pass

    def _read(self, timeout_s: float) -> list[dict[str, Any]]:
        if self._stream is None:
            return []
        events = self._stream.read(timeout_s)
        if events is None:
            self._close()
            time.sleep(min(RETRY_S, timeout_s))
        return events or []

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def follow(client: Client, after: int) -> Iterator[dict[str, Any]]:
    """Yield events newer than `after`, then each as it happens; a lost connection is taken up where it broke off.

    A new agent begins its history anew: then everything it has is shown. Raises NotReachable once nobody answers.
    """
    last: dict[str, Any] | None = None
    while True:
        stream = client.follow(after)
        try:
            while (events := stream.read(_PATIENCE_S)) is not None:
                for event in events:
                    after, last = event["seq"], event
                    yield event
        finally:
            stream.close()
        time.sleep(RETRY_S)
        if last is not None and not _same_history(client, last):
            after = 0


def _same_history(client: Client, last: dict[str, Any]) -> bool:
    """Tell whether the agent still has, or once had, this event."""
    import json

    answer = client.get(f"/v1/events?after={last['seq'] - 1}&limit=1")
    lines = answer.body.splitlines() if isinstance(answer.body, bytes) else []
    if not lines:
        return False
    first = json.loads(lines[0])
    return bool(first["seq"] > last["seq"] or first["at"] == last["at"])
