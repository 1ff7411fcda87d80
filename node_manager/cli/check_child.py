"""The installed program, started beside the running one to say whether it can take over."""

import asyncio
import json
import os
from collections.abc import Callable

from node_manager.cli.child import Child
from node_manager.runtime.handover import Program

TIMEOUT_S = 20.0
"""It starts Python, imports the agent and validates the configuration: about a second on a slow machine."""
COMMAND = "self-check"
_INSTEAD_OF = "run"
_MAX_SHOWN = 300

Checked = Callable[[str | None, str], None]


def check(loop: asyncio.AbstractEventLoop, program: Program, state_fd: int, done: Checked) -> Child:
    """Show the program the state; `done` gets its version, or None and what is wrong. Raises OSError."""
    arguments = list(program.arguments)
    arguments[arguments.index(_INSTEAD_OF)] = COMMAND

    def answered(output: bytes, problem: str) -> None:
        done(*((None, problem) if problem else judge(output)))

    return Child(loop, program.path, arguments, os.environ, stdin_fd=state_fd, timeout_s=TIMEOUT_S, done=answered)


def judge(answer: bytes) -> tuple[str | None, str]:
    """Return the version of the program that gave this answer, or None and why it cannot take over."""
    lines = answer.decode("utf-8", "replace").strip().splitlines() or ["(nothing)"]
    try:
        body = json.loads(lines[-1])
    except ValueError:
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("version"), str):
        text = "".join(one if one.isprintable() else "?" for one in lines[-1])
        return None, f"it does not answer as it should, but: {text[:_MAX_SHOWN]}"
    problem = body.get("problem")
    return (None, str(problem)) if problem is not None else (body["version"], "")
