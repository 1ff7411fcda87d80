"""The short-lived process that reads and validates: started, listened to with a bound, ended, reaped.

pydantic and the YAML parser live in that process alone, so that neither a hanging file system nor a hostile file nor
their memory concerns the agent. `conversation` is the whole course as a generator that does no waiting itself: it
yields what it waits for and is sent whether that came in time. `talk` drives it for a command, `talk_async` for the
agent's loop; neither needs a thread. The standard library alone: this module lives in the agent.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import node_manager
from node_manager.config.sources import Sources

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""A specification of 256 components with long environments is well under 1 MiB."""
CHUNK_BYTES = 64 * 1024
"""One read: what a pipe holds by default (pipe(7))."""
EXIT_WAIT_S = 1.0
"""How long an end may take, after the answer or after SIGKILL. A process in D state takes longer: it is left."""
MAX_LEFT = 4
"""Validators that may be left hanging in the kernel before no more is started: each holds memory."""

# -I: no PYTHON* variables, no user site, no current directory. The package's own root is added where it is no
# installed one, so that a source tree validates with its own code.
_BOOTSTRAP = (
    "import sys; root, request = sys.argv[1:]; root in sys.path or sys.path.insert(0, root); "
    "from node_manager.config.validator import main; main(request)"
)
_left: list[int] = []
"""pidfds of validators that outlived SIGKILL; a pidfd cannot come to mean another process. Reaped by the next run."""
_begun: list[tuple[Sources, "_Child"]] = []
"""The validator that was started before anybody asked for its answer: one at most."""


class Wait(NamedTuple):
    """Wait until `fd` is readable, at most until `deadline_s` (time.monotonic)."""

    fd: int
    deadline_s: float


class ChildError(Exception):
    """The validator gave no answer; the sentence says why."""


class UnheardError(ChildError):
    """It had no chance to: it was not started, or its time was over. That says nothing of what it was to read."""


@dataclass(slots=True)
class _Child:
    """The validator's process: its pidfd and the reading end of its standard output."""

    pidfd: int
    output: int

    @classmethod
    def start(cls, sources: Sources) -> "_Child":
        root = str(Path(node_manager.__file__).parent.parent)
        reading, writing = os.pipe()
        nowhere = -1
        try:
            nowhere = os.open(os.devnull, os.O_RDONLY)
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-c", _BOOTSTRAP, root, _request(sources)],
                {"PATH": os.defpath, "LANG": "C.UTF-8"},
                file_actions=[(os.POSIX_SPAWN_DUP2, nowhere, 0), (os.POSIX_SPAWN_DUP2, writing, 1)],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE),
            )
            pidfd = _open_pidfd(pid)
        except OSError as error:
            os.close(reading)
            raise UnheardError(f"the validator cannot be started: {os.strerror(error.errno or 0)}") from error
        finally:
            os.close(writing)
            if nowhere >= 0:
                os.close(nowhere)
        os.set_blocking(reading, False)
        return cls(pidfd, reading)

    def kill(self) -> None:
        """It never forks, so that the process is the whole group."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return

    def leave(self) -> str:
        """Let go of it: kill it where it still runs, reap it if it has ended, else remember it. How it ended."""
        os.close(self.output)
        self.kill()
        ended, how = _reap(self.pidfd)
        if ended:
            os.close(self.pidfd)
        else:
            _left.append(self.pidfd)
        return how


def begin(sources: Sources) -> None:
    """Start the validator of these sources; the next conversation about them is with it.

    For an agent's start: one process reads while the other still imports. What cannot be started is told by that
    conversation. Nothing must be open that a child may not inherit.
    """
    with suppress(ChildError):
        _begun.append((sources, _Child.start(sources)))


def _begun_for(sources: Sources) -> "_Child | None":
    """The validator that was begun for the same sources; another one is ended."""
    child = None
    for begun_for, begun in _begun:
        if begun_for == sources:
            child = begun
        else:
            begun.leave()
    _begun.clear()
    return child


def _open_pidfd(pid: int) -> int:
    """A pidfd of the child just started: one thread starts and reaps, so that the pid is still the child's."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        raise


def _request(sources: Sources) -> str:
    return json.dumps(
        {
            "config": str(sources.config),
            "roles_dirs": [str(directory) for directory in sources.roles_dirs],
            "runtime_dir": str(sources.runtime_dir),
            "state_dir": str(sources.state_dir),
        }
    )


def _reap(pidfd: int) -> tuple[bool, str]:
    """Whether the process is gone for good, and how it ended as far as this is known."""
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return True, "reaped elsewhere"
    if result is None:
        return False, "still running"
    if result.si_code == os.CLD_EXITED:
        return True, f"exit status {result.si_status}"
    return True, f"signal {signal.Signals(result.si_status).name}"


def _reap_left() -> None:
    for pidfd in tuple(_left):
        ended, _ = _reap(pidfd)
        if ended:
            _left.remove(pidfd)
            os.close(pidfd)


def conversation(sources: Sources, timeout_s: float) -> Generator[Wait, bool, dict[str, Any]]:
    """One run of the validator: returns its answer, a JSON object; ChildError when there is none.

    Whatever way it ends, closing included, the process is killed and reaped, or remembered to be reaped later.
    """
    _reap_left()
    if len(_left) >= MAX_LEFT:
        raise UnheardError(f"{len(_left)} earlier validators still hang in the kernel: a file system does not answer")
    deadline_s = time.monotonic() + timeout_s
    child = _begun_for(sources) or _Child.start(sources)
    answer = bytearray()
    trouble: ChildError | None = None
    how = ""
    try:
        while trouble is None:
            if not (yield Wait(child.output, deadline_s)):
                trouble = UnheardError(f"the validator took longer than {timeout_s:g} s and was killed")
            elif not (chunk := os.read(child.output, CHUNK_BYTES)):
                break
            else:
                answer += chunk
                if len(answer) > MAX_ANSWER_BYTES:
                    trouble = ChildError(f"the validator's answer is longer than {MAX_ANSWER_BYTES} bytes")
        if trouble is not None:
            child.kill()
        yield Wait(child.pidfd, time.monotonic() + EXIT_WAIT_S)
    finally:
        how = child.leave()
    if trouble is not None:
        raise trouble
    try:
        decoded = json.loads(answer)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise ChildError(f"the validator ended without an answer ({how})")
    return decoded


def talk(sources: Sources, timeout_s: float) -> dict[str, Any]:
    """The validator's answer; blocks for at most `timeout_s` and EXIT_WAIT_S."""
    steps = conversation(sources, timeout_s)
    try:
        wait = next(steps)
        while True:
            wait = steps.send(_readable(wait))
    except StopIteration as end:
        answer: dict[str, Any] = end.value
        return answer
    finally:
        steps.close()


async def talk_async(sources: Sources, timeout_s: float) -> dict[str, Any]:
    """The validator's answer; the loop goes on meanwhile. Cancelling it ends the validator."""
    steps = conversation(sources, timeout_s)
    try:
        wait = next(steps)
        while True:
            wait = steps.send(await _readable_async(wait))
    except StopIteration as end:
        answer: dict[str, Any] = end.value
        return answer
    finally:
        steps.close()


def _readable(wait: Wait) -> bool:
    poll = select.poll()
    poll.register(wait.fd, select.POLLIN)
    return bool(poll.poll(max(0.0, wait.deadline_s - time.monotonic()) * 1000))


async def _readable_async(wait: Wait) -> bool:
    import asyncio  # half of the time that this module took before it could start a validator

    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(wait.fd, on_readable)
    try:
        async with asyncio.timeout(max(0.0, wait.deadline_s - time.monotonic())):
            await ready
    except TimeoutError:
        return False
    else:
        return True
    finally:
        loop.remove_reader(wait.fd)
