"""The installed program, started beside the running one to say whether it can take over."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from node_manager.runtime.handover import Program

TIMEOUT_S = 20.0
"""It starts Python, imports the agent and validates the configuration: about a second on a slow machine."""
COMMAND = "self-check"
_INSTEAD_OF = "run"
_MAX_ANSWER_BYTES = 64 * 1024
_MAX_SHOWN = 300

Checked = Callable[[str | None, str], None]


class SelfCheck:
    """One run of it. `done` gets its version, or None and what is wrong. Raises OSError where it cannot be started."""

    def __init__(self, loop: asyncio.AbstractEventLoop, program: Program, state_fd: int, done: Checked) -> None:
        self._loop = loop
        self._done: Checked | None = done
        self._answer = b""
        arguments = list(program.arguments)
        arguments[arguments.index(_INSTEAD_OF)] = COMMAND
        self._output_fd, writing = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.posix_spawn(
                program.path,
                arguments,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, source, target)
                    for source, target in ((state_fd, 0), (writing, 1), (writing, 2))
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE),
            )
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            os.close(self._output_fd)
            raise
        finally:
            os.close(writing)
        os.set_blocking(self._output_fd, False)
        loop.add_reader(self._output_fd, self._readable)
        self._timer = loop.call_later(TIMEOUT_S, self._end, f"it gave no answer within {TIMEOUT_S:g} s")

    def close(self) -> None:
        """End it without an answer."""
        self._done = None
        self._end("")

    def _readable(self) -> None:
        try:
            data = os.read(self._output_fd, _MAX_ANSWER_BYTES)
        except BlockingIOError:
            return
        if data and len(self._answer) < _MAX_ANSWER_BYTES:
            self._answer += data
            return
        self._end("")

    def _end(self, problem: str) -> None:
        """It has said all it has to say, or too little in time. Its status is for whoever reaps orphans."""
        self._timer.cancel()
        self._loop.remove_reader(self._output_fd)
        os.close(self._output_fd)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        done, self._done = self._done, None
        if done is not None:
            done(*((None, problem) if problem else judge(self._answer)))


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
