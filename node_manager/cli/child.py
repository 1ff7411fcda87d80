"""A short-lived program beside the agent, such as systemctl: started, listened to within bounds, ended."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress

MAX_OUTPUT_BYTES = 64 * 1024
"""More than any of these programs has to say."""

Done = Callable[[bytes, str], None]


class Child:
    """One run. `done` gets what it wrote to both outputs, and why it was ended ("": it ended itself).

    Standard input comes from `stdin_fd`. Its exit status is for whoever reaps orphans: what it says has to tell enough.
    Raises OSError where it cannot be started.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: str,
        arguments: list[str] | tuple[str, ...],
        environment: Mapping[str, str],
        *,
        stdin_fd: int,
        timeout_s: float,
        done: Done,
    ) -> None:
        self._loop = loop
        self._done: Done | None = done
        self._output = b""
        self._output_fd, writing = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.posix_spawn(
                path,
                arguments,
                environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, at) for fd, at in ((stdin_fd, 0), (writing, 1), (writing, 2))],
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
        self._timer = loop.call_later(timeout_s, self._end, f"it gave no answer within {timeout_s:g} s")

    def close(self) -> None:
        """End it; `done` is not called."""
        if self._done is not None:
            self._done = None
            self._end("")

    def _readable(self) -> None:
        try:
            data = os.read(self._output_fd, MAX_OUTPUT_BYTES)
        except BlockingIOError:
            return
        self._output += data
        if not data or len(self._output) >= MAX_OUTPUT_BYTES:
            self._end("")

    def _end(self, problem: str) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._output_fd)
        os.close(self._output_fd)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        done, self._done = self._done, None
        if done is not None:
            done(self._output, problem)
