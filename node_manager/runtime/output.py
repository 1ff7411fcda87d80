"""Where a component's output goes: its own file, the journal, or the agent's standard error.

Opening never blocks and never fails a start: what cannot be opened falls back, and the caller is told why. The child
holds the file or the stream itself: what it says does not pass through the agent, and needs no agent.
"""

import functools
import os
import socket
import stat
from pathlib import Path

from node_manager.core.spec import LogSink
from node_manager.runtime import cgroupfs, kernel

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
            return _open_journal(journal, name, own_unit())
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


def journal_matches(sink: LogSink, name: str, journal: Path = JOURNAL_SOCKET) -> list[str] | None:
    """What selects a component's output for journalctl(1), or None where it goes elsewhere.

    By the name, said by something of this service or of the agent's user: of a process that is gone before journald
    looks, journald does not know the unit. Anybody may call their output so, but not from there.
    """
    if sink is not LogSink.JOURNAL or not journal.exists():
        return None
    identifier, unit = f"SYSLOG_IDENTIFIER={name}", own_unit()
    by_user = [identifier, f"_UID={os.geteuid()}"]
    return [identifier, f"_SYSTEMD_UNIT={unit}", "+", *by_user] if unit else by_user


@functools.cache
def own_unit() -> str:
    """The systemd service that this process is of; empty: of none."""
    path = cgroupfs.group_of(os.getpid()) or ""
    return next((part for part in reversed(path.split("/")) if part.endswith(".service")), "")


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


def _open_journal(journal: Path, name: str, unit: str) -> int:
    """A stream to the journal with its header sent: identifier, unit, priority, level prefix, three forwards.

    The protocol has no room for other fields. journald takes `unit` from root alone, and then for what a process says
    that is gone before journald looks: the last words of what ends at once.
    """
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.setblocking(False)  # a journal that hangs must not hang the agent
        stream.connect(str(journal))
        stream.sendall(f"{name}\n{unit}\n{_PRIORITY_INFO}\n1\n0\n0\n0\n".encode())
        stream.shutdown(socket.SHUT_RD)
        stream.setblocking(True)
        return stream.detach()
    finally:
        stream.close()
