"""What the status API needs from the agent, and nothing more.

The agent implements `Backend`; tests use a fake that keeps the same contract. Every method is called on the agent's
loop, from a callback: it must return at once. Callbacks handed in (`wake`, `done`) must be called on that loop too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from node_manager.core.events import Verb


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A change that somebody who may change this node asked for; every text in it is bounded and printable."""

    verb: Verb
    by: str
    """Who asked: `alice (uid 1000)` or `uid 1000`; the uid is the kernel's word, the name the caller's."""
    component: str | None = None
    reason: str = ""
    deadline_s: float | None = None
    """For a drain: when it must be over, counted from now."""
    enable: bool = True
    """For maintenance: on or off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The answer to a command. `ok` False: refused, and `rule` names what forbids it where a rule does."""

    ok: bool
    detail: str
    rule: str | None = None


class Backend(Protocol):
    """The agent as the API sees it."""

    def status(self) -> dict[str, Any]:
        """Body of `/v1/status` (schema `Status` of `openapi.json`)."""
        ...

    def status_text(self, encode: Callable[[Any], bytes]) -> bytes:
        """The same as the text that `encode` makes of it; parts of it may be kept from one question to the next."""
        ...

    def why(self, component: str) -> dict[str, Any] | None:
        """Body of `/v1/components/{name}/why` (schema `Why`); None where there is no such component."""
        ...

    def events(self, after: int, limit: int) -> list[dict[str, Any]]:
        """The oldest `limit` events whose `seq` is greater than `after`, in ascending order (schema `Event`).

        A repeat that is collapsed into an earlier entry gives that entry a new `seq` and a `count`, so that somebody
        who follows sees it.
        """
        ...

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Ask for `wake()` whenever `events` has something new; the result ends that."""
        ...

    def command(self, request: CommandRequest, done: Callable[[CommandResult], None]) -> None:
        """Ask for a change. `done` is called exactly once, at once or once the change is durable."""
        ...

    def reload(self, by: str, done: Callable[[CommandResult], None]) -> None:
        """Read the configuration again. `done` as in `command`."""
        ...

    def reexec(self, by: str, done: Callable[[CommandResult], None]) -> None:
        """Replace the running program by the installed one. `done` as in `command`, before it happens."""
        ...

    def metrics(self) -> str:
        """Body of `/metrics`: Prometheus text format, version 0.0.4."""
        ...

    def may_change(self, uid: int, gid: int, groups: Sequence[int]) -> bool:
        """Tell whether this peer may change the node: root, group xce-admin, outside systemd the agent's own user."""
        ...
