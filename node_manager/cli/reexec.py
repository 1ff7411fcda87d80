"""`xce-nodectl reexec`: ask for it, and wait for the new program to say that it is in charge."""

from __future__ import annotations

import time

from node_manager.api.client import NotReachable

TYPE_CHECKING = False  # typing itself costs some milliseconds at each start of a command
if TYPE_CHECKING:
    from typing import Any

    from node_manager.api.client import Answer, Client

ASK_TIMEOUT_S = 35.0
"""Above the agent's own bounds for its check and for a quiet moment."""
OUTCOME_TIMEOUT_S = 45.0
"""From the announcement until a program is in charge again: the new one, or after its bound the old one."""
_LOOK_S = 0.1


def reexec(client: Client, by: str) -> tuple[Answer, dict[str, Any] | None]:
    """Return the agent's answer, and how it went: `node.reexec` of the status; None: refused, or not known in time.

    Raises NotReachable, NotPermitted.
    """
    before = _last(client.get("/v1/status")) or {"count": 0}
    answer = client.post("/v1/reexec", {"by": by}, ASK_TIMEOUT_S)
    if not answer.ok:
        return answer, None
    until_s = time.monotonic() + OUTCOME_TIMEOUT_S
    while time.monotonic() < until_s:
        try:
            now = _last(client.get("/v1/status"))
        except NotReachable:
            now = None  # a moment between two programs, or the agent has ended and is started again
        if now is not None and now["count"] != before["count"]:
            return answer, now
        time.sleep(_LOOK_S)
    return answer, None


def _last(answer: Answer) -> dict[str, Any] | None:
    found: dict[str, Any] | None = answer.body["node"].get("reexec") if answer.ok else None
    return found
