"""The program that is judged: started as the agent starts a component, and never left running."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_SETS_MAIN_PID = '[ -n "$XCE_MAIN_PID" ] || export XCE_MAIN_PID=$$; exec "$@"'
"""For sh -c: exec keeps the pid, so that the program finds its own."""
_SYS_PIDFD_GETFD = 438
"""The same number on every architecture (pidfd_getfd(2))."""
_TAIL_BYTES = 400
_PRIVATE = ("XCE_HEARTBEAT_SOCKET", "XCE_COMPONENT", "XCE_GENERATION", "XCE_MAIN_PID", "XCE_TERM",
            "XCE_LEASE_VALID_UNTIL_NS", "NOTIFY_SOCKET")  # fmt: skip
"""Variables of an agent that this kit may itself run under."""


class Program:
    """One run of a command in a session of its own. What it prints goes to `output`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        self._output = output
        base = {key: value for key, value in os.environ.items() if key not in _PRIVATE}
        with output.open("ab") as log:
            self._popen = subprocess.Popen(  # noqa: S603  the user's own command
                ["/bin/sh", "-c", _SETS_MAIN_PID, "sh", *command],
                env={**base, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self.stopped = False

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._popen.poll()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.status is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the main process, if there is one."""
        if self.running:
            self._popen.send_signal(number)
            self.stopped = {signal.SIGSTOP: True, signal.SIGCONT: False}.get(number, self.stopped)

    def end(self) -> None:
        """Kill all of its session that is still in its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()

    def why_ended(self) -> str:
        """Its exit status and the end of what it printed, in one line; how it is while it runs."""
        if self.running:
            return "it runs"
        words = self._output.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace").strip().splitlines()[-3:]
        return f"it ended with {self.status}{': ' if words else ''}{' / '.join(words)}"

    def waits(self) -> int:
        """How often its threads have waited for something, in all (proc(5), voluntary_ctxt_switches)."""
        total = 0
        for task in Path(f"/proc/{self.pid}/task").glob("*/status"):
            with contextlib.suppress(OSError):
                for line in task.read_text().splitlines():
                    if line.startswith("voluntary_ctxt_switches:"):
                        total += int(line.split()[1])
        return total

    def heartbeat_socket(self, path: str) -> socket.socket | None:
        """A copy of its end of the heartbeat connection, or None where the kernel does not give it.

        Found among its descriptors by the peer's address. It takes the rights of a parent over its child (ptrace(2)).
        """
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            return None
        try:
            for entry in Path(f"/proc/{self.pid}/fd").iterdir():
                copy = libc.syscall(_SYS_PIDFD_GETFD, pidfd, int(entry.name), 0)
                if copy < 0 or not str(entry.readlink()).startswith("socket:"):
                    if copy >= 0:
                        os.close(copy)
                    continue
                sock = socket.socket(fileno=copy)
                with contextlib.suppress(OSError):
                    if sock.family == socket.AF_UNIX and sock.getpeername() == path:
                        return sock
                sock.close()
        except OSError:
            return None
        finally:
            os.close(pidfd)
        return None
