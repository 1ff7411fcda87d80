"""Where a component's output goes: its own file, the journal, or the agent's standard error.

Opening never blocks and never fails a start: what cannot be opened falls back, and the caller is told why.
"""

import os
import socket
import stat
from pathlib import Path

from node_manager.core.spec import LogSink
from node_manager.runtime import kernel

JOURNAL_SOCKET = Path("/run/systemd/journal/stdout")
"""systemd-journald's stream socket, sd_journal_stream_fd(3)."""
_MODE = 0o640
_PRIORITY_INFO = 6


def open_output(sink: LogSink, name: str, log_dir: Path | None, journal: Path = JOURNAL_SOCKET) -> int | None:
    """A descriptor for the child's output, or None: the agent's own standard error. The caller closes it.

    Raises OutputError where the sink that the role names exists and cannot be used.
    """
    if sink is LogSink.INHERIT:
        return None
    if sink is LogSink.JOURNAL:
        try:
            return _open_journal(journal, name)
        except FileNotFoundError:
            pass  # no systemd here
        except OSError as error:
            raise OutputError(f"cannot log to the journal: {kernel.explain(error)}") from error
    return None if log_dir is None else _open_file(log_dir / f"{name}.log")


def log_file(sink: LogSink, name: str, log_dir: Path | None, journal: Path = JOURNAL_SOCKET) -> Path | None:
    """The file that a component's output goes to, or None where it goes to the journal or to standard error."""
    if sink is LogSink.INHERIT or log_dir is None or (sink is LogSink.JOURNAL and journal.exists()):
        return None
    return log_dir / f"{name}.log"


def try_file(path: Path) -> None:
    """Open a component's log and close it again: it is there, or known to fail. Raises OutputError."""
    os.close(_open_file(path))


class OutputError(Exception):
    """The sink cannot be used; the text begins with "cannot". The agent's standard error serves instead."""


def _open_file(path: Path) -> int:
    try:
        # Not blocking, so that a FIFO of that name cannot stop the agent.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        fd = os.open(path, flags, _MODE)
    except OSError as error:
        raise OutputError(f"cannot open the log {path}: {kernel.explain(error)}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OutputError(f"cannot write the log {path}: it is not a regular file; remove it")
    os.set_blocking(fd, True)
    return fd


def _open_journal(journal: Path, name: str) -> int:
    """A stream to the journal with its header sent: identifier, unit, priority, level prefix, three forwards."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.setblocking(False)  # a journal that hangs must not hang the agent
        stream.connect(str(journal))
        stream.sendall(f"{name}\n\n{_PRIORITY_INFO}\n1\n0\n0\n0\n".encode())
        stream.shutdown(socket.SHUT_RD)
        stream.setblocking(True)
        return stream.detach()
    finally:
        stream.close()
