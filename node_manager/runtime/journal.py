"""The event journal: every step of the core with its time, its event and its actions, one line of JSON each.

The core is a pure function, so a journal that begins with the agent's life, or with the state that another program of
the same agent handed over (re-exec), is enough to make the same decisions again on any machine:
`xce-node-manager replay` does, and the first line with other actions is a fault, of the core or of the
journal. The loop only puts the step, whose values are all frozen, into a bounded queue; a thread of its own renders
and writes it. Not the writer's thread: a slow or full disk under a journal must not hold up a latch. A journal with a
hole cannot be replayed, so recording stops for good at the first line that cannot be kept, and says why.

What a component's environment holds stays out: each value is replaced by a digest under a key that is never written,
which tells a changed value from an unchanged one, and nothing else.
"""

import fcntl
import hashlib
import json
import os
import queue
import secrets
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from node_manager import __version__
from node_manager.config import codec
from node_manager.core import node as core
from node_manager.core.actions import Action
from node_manager.core.events import ConfigLoaded, Event, Found
from node_manager.core.nodestate import NodeState
from node_manager.core.ordering import DIGEST_VERSION, digest_differs, process_digest
from node_manager.core.spec import ComponentSpec, NodeSpec
from node_manager.runtime import carry, kernel

FORMAT = 1
"""Version of the lines. Another version is not replayed: the events mean what the core of that time made of them."""
LIMIT_BYTES = 256 * 1024 * 1024
"""Bound on the file: about a day of a host with some components, and no danger to a disk."""
MAX_WAITING = 10_000
"""Steps that wait for the disk: half a minute of an event storm. Beyond it the disk is too slow to record on."""
BATCH = 256
"""Steps written in one piece."""
STATE = "state"
"""Key of a header: what a predecessor handed over. Without it a life begins with nothing."""
CLOSE_TIMEOUT_S = 5.0
"""How long the end of the agent waits for a disk that hangs."""
ACTIONS, RAISED = OUTCOMES = ("actions", "raised")
"""Keys of a step's outcome: it has exactly one of them."""
_HEADER_KEY = "xce_event_journal"
_END_BYTES = 1024
"""Room that is kept for the line that says why recording stopped."""
_LEAST_SHARE = 16
"""An agent does not begin to record where less than one part in so many of the limit is left."""
_DIGEST_BYTES = 8
_MODE = 0o600
_LOOK_S = 0.05
"""How often `flush` looks whether the thread still lives."""

Stopped = Callable[[str], None]
Write = Callable[[int, bytes], int]


class JournalError(Exception):
    """A file cannot be recorded to. The text says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One step as it happened; `raised` in place of actions where the core failed."""

    now: int
    event: Event
    actions: tuple[Action, ...]
    raised: str | None = None


class EventJournal:
    """Records the steps of one agent's life, after those of earlier lives in the same file.

    `state` is what the life begins with where a predecessor handed something over (re-exec). Raises JournalError where
    the file cannot be used. `stopped` is called once, from the journal's own thread, when recording ends before
    `close`. `write` is write(2).
    """

    def __init__(
        self,
        path: Path,
        *,
        stopped: Stopped,
        state: NodeState | None = None,
        limit_bytes: int = LIMIT_BYTES,
        write: Write = os.write,
    ) -> None:
        self._path = path
        self._stopped = stopped
        self._write = write
        self._limit_bytes = limit_bytes
        self._key = secrets.token_bytes(32)
        self._hidden: dict[ComponentSpec, ComponentSpec] = {}
        self._digests: dict[ComponentSpec, str] = {}
        self._queue: queue.Queue[_Step | threading.Event | None] = queue.Queue(MAX_WAITING)
        self._overrun = False
        self._number = 0
        self._descriptor, self._size = _open(path, limit_bytes)
        header: dict[str, Any] = {_HEADER_KEY: FORMAT, "agent_version": __version__, "pid": os.getpid()}
        if state is not None:
            header[STATE] = carry.encode(self._hidden_within(state))
        try:
            self._append(_line(header))
        except OSError as error:
            os.close(self._descriptor)
            raise JournalError(f"cannot record to {path}: {kernel.explain(error)}; choose another file") from error
        # A daemon: a thread that hangs in the disk must not keep the agent from ending.
        self._thread = threading.Thread(target=self._run, name="xce-journal", daemon=True)
        self._thread.start()

    def step(self, state: NodeState, event: Event, now: int) -> tuple[NodeState, tuple[Action, ...]]:
        """Make one step of the core, and record it. Never waits."""
        try:
            after, actions = core.step(state, event, now)
        except Exception as error:
            self._put(_Step(now, event, (), raised=repr(error)))
            raise
        self._put(_Step(now, event, actions))
        return after, actions

    def flush(self, bound_s: float) -> None:
        """Write what waits, within a bound: the program is about to be replaced."""
        written = threading.Event()
        with suppress(queue.Full):
            self._queue.put_nowait(written)
            while not written.wait(_LOOK_S) and self._thread.is_alive() and bound_s > 0:
                bound_s -= _LOOK_S

    def close(self) -> None:
        """Write what waits, within a bound, and let go of the file."""
        try:
            self._queue.put(None, timeout=CLOSE_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_TIMEOUT_S)

    def _put(self, step: _Step) -> None:
        if self._overrun or not self._thread.is_alive():
            return
        try:
            self._queue.put_nowait(step)
        except queue.Full:
            self._overrun = True

    # --- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            why = self._record()
        except OSError as error:
            why = kernel.explain(error)
        finally:
            os.close(self._descriptor)
        if why is not None:
            self._stopped(f"events are not recorded to {self._path} any more: {why}")

    def _record(self) -> str | None:
        """Write until the end, or until one more line cannot be kept: then return why."""
        while True:
            steps, waiting, ended = self._next()
            lines = []
            room = self._limit_bytes - self._size - _END_BYTES
            full = False
            for step in steps:
                line = self._render(step)
                room -= len(line)
                full = room < 0
                if full:
                    break
                lines.append(line)
            self._append(b"".join(lines))
            for one in waiting:
                one.set()
            if full:
                return self._end(f"its limit of {self._limit_bytes} bytes is reached")
            if self._overrun and self._queue.empty():
                return self._end(f"the disk is too slow: {MAX_WAITING} steps waited for it")
            if ended:
                return None

    def _next(self) -> tuple[list[_Step], list[threading.Event], bool]:
        """Wait for steps, and for those who wait until they are written; True with the last ones."""
        steps: list[_Step] = []
        waiting: list[threading.Event] = []
        while len(steps) < BATCH and (not (steps or waiting) or not self._queue.empty()):
            item = self._queue.get()
            if item is None:
                return steps, waiting, True
            if isinstance(item, threading.Event):
                waiting.append(item)
            else:
                steps.append(item)
        return steps, waiting, False

    def _end(self, why: str) -> str:
        self._append(_line({"end": why}))
        return why

    def _append(self, data: bytes) -> None:
        self._size += len(data)
        while data:
            data = data[self._write(self._descriptor, data) :]

    def _render(self, step: _Step) -> bytes:
        self._number += 1
        event = self._without_secrets(step.event)
        fields: dict[str, Any] = {"step": self._number, "now_ns": step.now, "event": codec.encode_event(event)}
        if step.raised is not None:
            return _line(fields | {RAISED: step.raised})
        return _line(fields | {ACTIONS: [self._action(action) for action in step.actions]})

    def _action(self, action: Action) -> dict[str, Any]:
        spec = _spec_of(action)
        return render_action(action if spec is None else _with_spec(action, self._hide(spec)), self._digests)

    def _without_secrets(self, event: Event) -> Event:
        if not isinstance(event, ConfigLoaded):
            return event
        # What an older configuration held is not needed any more.
        self._hidden.clear()
        self._digests.clear()
        components = tuple(self._hide(component) for component in event.spec.components)
        found = tuple(self._comparable(one, event.spec) for one in event.found)
        return replace(event, spec=replace(event.spec, components=components), found=found)

    def _hide(self, spec: ComponentSpec) -> ComponentSpec:
        hidden = self._hidden.get(spec)
        if hidden is None:
            environment = tuple((name, self._digest(value)) for name, value in spec.environment)
            hidden = self._hidden[spec] = replace(spec, environment=environment)
        return hidden

    def _hidden_within(self, value: Any) -> Any:
        """Return a value of the core with every specification in it hidden, wherever it stands."""
        if isinstance(value, ComponentSpec):
            return self._hide(value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{one.name: self._hidden_within(getattr(value, one.name)) for one in fields(value)})
        if isinstance(value, Mapping):
            return {key: self._hidden_within(item) for key, item in value.items()}
        if isinstance(value, tuple):
            return tuple(self._hidden_within(item) for item in value)
        return value

    def _comparable(self, found: Found, spec: NodeSpec) -> Found:
        """Return an adopted process whose digest compares with the hidden spec as the true one did with the true."""
        wanted = next((component for component in spec.components if component.name == found.component), None)
        if wanted is None:
            return replace(found, spec_digest="")
        if digest_differs(found.spec_digest, process_digest(wanted)):
            return replace(found, spec_digest=f"{DIGEST_VERSION}:another")
        return replace(found, spec_digest=process_digest(self._hide(wanted)))

    def _digest(self, value: str) -> str:
        keyed = hashlib.blake2b(value.encode(errors="surrogateescape"), key=self._key, digest_size=_DIGEST_BYTES)
        return f"hidden:{keyed.hexdigest()}"


def render_action(action: Action, digests: dict[ComponentSpec, str]) -> dict[str, Any]:
    """Return an action as a line of a journal shows it: a whole spec is its digest there. `digests` is a cache."""
    spec = _spec_of(action)
    if spec is None:
        return codec.encode_action(action)
    digest = digests.get(spec)
    if digest is None:
        text = json.dumps(codec.encode_component(spec), sort_keys=True)
        digest = digests[spec] = hashlib.sha256(text.encode()).hexdigest()[: 2 * _DIGEST_BYTES]
    return codec.encode_action(_with_spec(action, _NO_SPEC)) | {"spec": digest}


def is_header(line: dict[str, Any]) -> bool:
    """Tell whether a line begins an agent's life. Raises ValueError for one of another version."""
    if _HEADER_KEY not in line:
        return False
    if line[_HEADER_KEY] != FORMAT:
        raise ValueError(f"it has format {line[_HEADER_KEY]!r}; this version replays format {FORMAT}")
    return True


_NO_SPEC = ComponentSpec(name="", role="", command=())


def _spec_of(action: Action) -> ComponentSpec | None:
    """Return the whole specification that an action carries, with its environment, or None. Whatever kind it is."""
    spec = getattr(action, "spec", None)
    return spec if isinstance(spec, ComponentSpec) else None


def _with_spec(action: Any, spec: ComponentSpec) -> Action:
    changed: Action = replace(action, spec=spec)
    return changed


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _open(path: Path, limit_bytes: int) -> tuple[int, int]:
    """Open a journal to append to, alone; return the descriptor and the size."""
    advice = "choose another file"
    try:
        # O_NONBLOCK: opening a FIFO would wait for its other end; a regular file does not know the flag.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, _MODE)
    except OSError as error:
        raise JournalError(f"cannot record to {path}: {kernel.explain(error)}; {advice}") from error
    try:
        problem = _problem(descriptor, limit_bytes)
        if problem is None:
            os.fchmod(descriptor, _MODE)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                # The last line of an agent that was killed: it ends here, and replay knows it as torn.
                size += os.write(descriptor, b"\n")
            return descriptor, size
    except OSError as error:
        problem = kernel.explain(error)
    os.close(descriptor)
    raise JournalError(f"cannot record to {path}: {problem}; {advice}")


def _problem(descriptor: int, limit_bytes: int) -> str | None:
    """Return why an open file is no place for a journal, or None. Raises OSError."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if found.st_uid != os.geteuid():
        return f"it belongs to uid {found.st_uid}"
    head = f'{{"{_HEADER_KEY}":'.encode()
    if found.st_size and os.pread(descriptor, len(head), 0) != head:
        return "it holds something else than a journal"
    if found.st_size > limit_bytes - limit_bytes // _LEAST_SHARE:
        return f"it has reached its limit of {limit_bytes} bytes"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "another agent records to it"
    return None
