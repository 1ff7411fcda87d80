"""`xce-node-manager replay`: make the decisions of an event journal again, and compare them."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from node_manager.config import codec
from node_manager.core import node as core
from node_manager.core.events import Event
from node_manager.core.nodestate import NodeState
from node_manager.core.spec import ComponentSpec
from node_manager.runtime import carry, kernel
from node_manager.runtime.journal import ACTIONS, OUTCOMES, RAISED, STATE, is_header, render_action

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Bound on one line: a configuration of a thousand components is far below it."""


class ReplayError(Exception):
    """The file is no journal that can be replayed. The text says where and why."""


class DiffersError(Exception):
    """A step has another outcome now. The text shows step, event, and both outcomes."""


class Replay:
    """One journal made again. `name` stands in messages."""

    def __init__(self, name: str) -> None:
        self.lives = 0
        self.steps = 0
        self.torn = 0
        """Lives whose last line was cut off."""
        self.ends: list[str] = []
        """Why recordings ended before their agent did."""
        self._name = name
        self._state = NodeState()
        self._step = 0
        self._digests: dict[ComponentSpec, str] = {}

    def run(self, file: IO[bytes]) -> None:
        """Replay an open journal. Raises ReplayError and DiffersError; reading raises OSError."""
        for number, line in self._lines(file):
            where = f"{self._name}:{number}"
            try:
                if is_header(line):
                    self.lives, self._step = self.lives + 1, 0
                    self._state = carry.decode(NodeState, line[STATE], STATE) if STATE in line else NodeState()
                elif not self.lives:
                    break
                elif "end" in line:
                    self.ends.append(str(line["end"]))
                else:
                    self._replay(where, line)
            except (ValueError, KeyError, TypeError) as error:
                raise ReplayError(f"cannot replay {where}: {error!r}") from error
        if not self.lives:
            raise ReplayError(f"cannot replay {self._name}: it does not begin like an event journal")

    def _replay(self, where: str, line: dict[str, Any]) -> None:
        self._step += 1
        if line["step"] != self._step:
            raise ReplayError(f"cannot replay {where}: step {line['step']} stands there, step {self._step} is missing")
        event, now = codec.decode_event(line["event"]), int(line["now_ns"])
        expected: dict[str, Any] = {key: line[key] for key in OUTCOMES if key in line}
        actual = self._decide(event, now)
        if actual != expected:
            raise DiffersError(_difference(f"{where}: step {self._step} of life {self.lives}", line, expected, actual))
        if RAISED in actual:
            self.ends.append(f"the core failed in step {self._step}: {actual[RAISED]}")
        self.steps += 1

    def _decide(self, event: Event, now: int) -> dict[str, Any]:
        """Make one step; return its outcome as a line of the journal has it."""
        try:
            self._state, actions = core.step(self._state, event, now)
        except Exception as error:  # noqa: BLE001 - that the core fails here is the outcome
            return {RAISED: repr(error)}
        return {ACTIONS: [render_action(action, self._digests) for action in actions]}

    def _lines(self, file: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Read line by line. A line that was cut off where a life ends is counted; anywhere else it is an error."""
        torn: str | None = None
        number = 0
        while data := file.readline(MAX_LINE_BYTES):
            number += 1
            try:
                line = json.loads(data)
            except ValueError as error:
                torn = torn or f"cannot replay {self._name}:{number}: {error}"
                continue
            if not isinstance(line, dict):
                raise ReplayError(f"cannot replay {self._name}:{number}: it is no object")
            if torn is not None:
                if not is_header(line):
                    raise ReplayError(torn)
                self.torn += 1
                torn = None
            yield number, line
        if torn is not None:
            self.torn += 1


def replay(path: Path) -> int:
    """Replay a journal and say what came of it; return the exit status."""
    found = Replay(str(path))
    try:
        with path.open("rb") as file:
            found.run(file)
    except OSError as error:
        print(f"cannot replay {path}: {kernel.explain(error)}", file=sys.stderr)
        return 1
    except (ReplayError, DiffersError) as error:
        print(error, file=sys.stderr)
        return 1
    lives = f"{found.lives} {'life' if found.lives == 1 else 'lives'} of an agent"
    print(f"{path}: {lives}, {found.steps} steps, the same actions in each")
    if found.torn:
        print(f"note: {found.torn} torn last lines: the agent was killed, or lost its disk, while it wrote")
    for why in found.ends:
        print(f"note: a recording ended early: {why}")
    return 0


def _difference(where: str, line: dict[str, Any], expected: dict[str, Any], actual: dict[str, Any]) -> str:
    """Return a step, its event and both outcomes as lines; `!` marks the actions that differ."""
    parts = [f"{where}, at {line['now_ns']} ns, has another outcome", f"event      {_text(line['event'])}"]
    for label, outcome, other in (("expected", expected, actual), ("actual", actual, expected)):
        if ACTIONS not in outcome:
            parts.append(f"{label:8} ! the core raises {outcome.get(RAISED)}")
            continue
        rows, theirs = outcome[ACTIONS], other.get(ACTIONS, [])
        if not rows:
            parts.append(f"{label:8} ! no action")
        for index, row in enumerate(rows):
            same = index < len(theirs) and theirs[index] == row
            parts.append(f"{label:8} {' ' if same else '!'} {_text(row)}")
    return "\n".join(parts)


def _text(value: dict[str, Any]) -> str:
    fields = " ".join(f"{key}={json.dumps(item)}" for key, item in value.items() if key != "kind" and item is not None)
    return f"{value.get('kind')} {fields}"
