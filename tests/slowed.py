"""Slows parts of the agent down on purpose, so that a test that relies on their speed fails at once.

On an idle machine such a test fails once in a hundred runs, on a busy one now and then, and nobody can tell it from
chance. The environment variable XCE_TEST_SLOWED of a test run names the parts, with commas between them; `make races`
sets each in turn.
"""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

PROGRAM = {
    "disk": "xce-node-manager",
    "log": "xce-node-manager",
    "loop": "xce-node-manager",
    "components": "xce-reference",
}
"""The parts, and the program that each is a part of."""
_DELAYS_S = {"disk": 0.5, "log": 0.3, "loop": 0.05, "components": 0.7}
"""How much longer a write of a record takes, one of the log, a turn of the loop, the start of a component."""


def parts() -> list[str]:
    """What this test run slows down. ValueError for a part that is none."""
    named = [part for part in os.environ.get("XCE_TEST_SLOWED", "").split(",") if part]
    unknown = set(named) - set(PROGRAM)
    if unknown:
        raise ValueError(f"XCE_TEST_SLOWED: {', '.join(sorted(unknown))} is none of {', '.join(PROGRAM)}")
    return named


def begin(*named: str) -> None:
    """Slow these parts of this process down, until it ends."""
    if "disk" in named:
        from node_manager.runtime import writer

        _delay(writer.Writer, "_write", _DELAYS_S["disk"])
        _delay(writer.Writer, "_write_facts", _DELAYS_S["disk"])
    if "log" in named:
        from node_manager.cli import logs

        _delay(logs.Sink, "_write", _DELAYS_S["log"])
    if "loop" in named:
        from node_manager.cli import premises

        _delay(premises.Premises, "look", _DELAYS_S["loop"])
    if "components" in named:
        time.sleep(_DELAYS_S["components"])


def _delay(owner: type, name: str, delay_s: float) -> None:
    method: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(method)
    def delayed(*args: Any, **kwargs: Any) -> Any:
        time.sleep(delay_s)
        return method(*args, **kwargs)

    setattr(owner, name, delayed)
