"""A backend that keeps the contract of `Backend` and lets a test say what the node is like."""

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from node_manager.api.backend import CommandRequest, CommandResult
from node_manager.api.limits import Limits
from node_manager.api.server import ApiServer

NOW_NS = 5_000_000_000_000
WALL_OFFSET_NS = 1_760_000_000_000_000_000 - NOW_NS
"""The fake's present is 2025-10-09 08:53:20 UTC."""
S = 1_000_000_000
OUTCOME_AFTER = 2
"""Queries that are answered after a re-exec before its outcome is known."""
BOUND_S = 20
"""Longest wait of a test for something that happens within milliseconds."""


def component(name: str, **changes: Any) -> dict[str, Any]:
    """A component that runs and is ready, with changes."""
    return {
        "name": name,
        "role": "manager",
        "state": "running",
        "desired": "up",
        "ready": True,
        "pid": 4711,
        "generation": 1,
        "restarts": 0,
        "since_ns": NOW_NS - 90 * S,
        "rule": "configured",
        "reason": "the configuration wants it",
        "next": None,
        "uptime_ns": 90 * S,
        "last_exit": None,
    } | changes


def status_body(*components: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A whole status; `node` and `host` in `changes` are merged into the defaults."""
    node = {
        "name": "node-0042",
        "instance_id": "i-0abc",
        "roles": ["manager", "worker"],
        "state": "running",
        "ready": True,
        "config_error": None,
        "cgroup_mode": "session",
    }
    host = {"state": "active", "epoch": None, "reason": None, "by": None, "deadline_ns": None, "jobs_left": None}
    return {
        "schema": 1,
        "node": node | changes.pop("node", {}),
        "host": host | changes.pop("host", {}),
        "components": list(components),
        "facts": [],
        "warnings": [],
        "now_ns": NOW_NS,
        "wall_offset_ns": WALL_OFFSET_NS,
    } | changes


def why_body(name: str, **changes: Any) -> dict[str, Any]:
    """An explanation of a component that runs, with changes."""
    body: dict[str, Any] = {
        "component": name,
        "role": "manager",
        "state": "running",
        "desired": "up",
        "ready": True,
        "rule": "configured",
        "reason": "the configuration wants it",
        "since_ns": NOW_NS - 90 * S,
        "next": None,
        "claims": [
            {
                "rule": "configured",
                "reason": "the configuration wants it",
                "since_ns": NOW_NS - 90 * S,
                "by": None,
                "at": None,
            }
        ],
        "last_exit": None,
        "probes": [],
        "history": [],
        "now_ns": NOW_NS,
        "wall_offset_ns": WALL_OFFSET_NS,
    }
    return body | changes


def event(seq: int, name: str = "component.state_changed", **fields: Any) -> dict[str, Any]:
    """One event of the history."""
    return {"seq": seq, "at": f"2025-10-09T08:53:{seq % 60:02}.123Z", "event": name, "component": "worker"} | fields


class FakeBackend:
    """Holds what a test puts in. Attributes may be replaced from the test's thread; `add_event` goes to the loop."""

    def __init__(self) -> None:
        self.body = status_body(component("controller"), component("worker", role="worker"))
        self.reasons: dict[str, dict[str, Any]] = {}
        self.history: list[dict[str, Any]] = []
        self.result = CommandResult(ok=True, detail="done")
        self.hold_answers = False
        self.held: list[Callable[[CommandResult], None]] = []
        self.requests: list[CommandRequest] = []
        self.reloads: list[str] = []
        self.reexecs: list[str] = []
        self.outcome: dict[str, Any] | None = None
        """What becomes of a re-exec, for status, some queries later."""
        self.asked: list[tuple[int, int, tuple[int, ...]]] = []
        self.allowed = True
        self.wakes: list[Callable[[], None]] = []
        self.status_calls = 0
        self.queries_since = 0
        self.events_after = 0
        """The furthest that anybody has read in the history."""

    def status(self) -> dict[str, Any]:
        self.status_calls += 1
        if self.reexecs:
            self.queries_since += 1
            if self.outcome is not None and self.queries_since > OUTCOME_AFTER:
                self.body["node"]["reexec"] = self.outcome
        return self.body

    def status_text(self, encode: Callable[[Any], bytes]) -> bytes:
        return encode(self.status())

    def why(self, component: str) -> dict[str, Any] | None:
        if all(known["name"] != component for known in self.body["components"]):
            return None
        return self.reasons.get(component) or why_body(component)

    def events(self, after: int, limit: int) -> list[dict[str, Any]]:
        self.events_after = max(self.events_after, after)
        return [entry for entry in self.history if entry["seq"] > after][:limit]

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        self.wakes.append(wake)
        return lambda: self.wakes.remove(wake)

    def command(self, request: CommandRequest, done: Callable[[CommandResult], None]) -> None:
        self.requests.append(request)
        self._answer(done)

    def reload(self, by: str, done: Callable[[CommandResult], None]) -> None:
        self.reloads.append(by)
        self._answer(done)

    def reexec(self, by: str, done: Callable[[CommandResult], None]) -> None:
        self.reexecs.append(by)
        self._answer(done)

    def metrics(self) -> str:
        return "# TYPE xce_node_ready gauge\nxce_node_ready 1\n"

    def may_change(self, uid: int, gid: int, groups: Sequence[int]) -> bool:
        self.asked.append((uid, gid, tuple(groups)))
        return self.allowed

    def _answer(self, done: Callable[[CommandResult], None]) -> None:
        if self.hold_answers:
            self.held.append(done)
        else:
            done(self.result)

    def happen(self, entry: dict[str, Any]) -> None:
        """Add to the history; called on the loop."""
        self.history.append(entry)
        for wake in tuple(self.wakes):
            wake()


class Service:
    """A server with a fake behind it, on a loop in a thread of its own. Use as a context manager."""

    def __init__(self, directory: Path, limits: Limits | None = None) -> None:
        self.path = directory / "status.sock"
        self.backend = FakeBackend()
        self.errors: list[dict[str, Any]] = []
        """What the loop's exception handler was told: a bug of ours in a callback."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _loop, context: self.errors.append(context))
        self.server = ApiServer(self._loop, self.path, self.backend, version="1.2.3", limits=limits)
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self.server.start()
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.on_loop(self.server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive()
        self._loop.close()

    def on_loop(self, what: Callable[[], Any]) -> Any:
        """Run something on the loop's thread and hand back its result."""
        done = threading.Event()
        results: list[Any] = []

        def run() -> None:
            try:
                results.append(what())
            finally:
                done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(BOUND_S)
        return results[0]

    def until(self, what: Callable[[], bool]) -> None:
        """Turn the loop until a condition that its callbacks bring about holds."""
        turned = threading.Event()

        def look() -> None:
            if what():
                turned.set()
            else:
                self._loop.call_later(0.005, look)

        self._loop.call_soon_threadsafe(look)
        assert turned.wait(BOUND_S)

    def happen(self, *entries: dict[str, Any]) -> None:
        """Let events happen."""

        def add() -> None:
            for entry in entries:
                self.backend.happen(entry)

        self.on_loop(add)

    def connect(self) -> socket.socket:
        """Open a connection."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(BOUND_S)
        sock.connect(os.fspath(self.path))
        return sock


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name (107 bytes)."""
    directory = Path(tempfile.mkdtemp(prefix="xce"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
