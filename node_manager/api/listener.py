"""The listening Unix socket: made with care for what stands in its place, accepted from without blocking."""

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from node_manager.api.limits import LISTEN_BACKLOG

SOCKET_MODE = 0o666
"""Everyone may ask; who may change is decided by the kernel's credentials of the peer."""
MAX_PATH_BYTES = 107
"""`sun_path` of unix(7) less its end."""
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class ListenError(Exception):
    """The socket cannot be made; the sentence says why and what to do."""


def bind(path: Path) -> socket.socket:
    """Listen at `path`, replacing a socket on which nobody listens any more.

    Raises ListenError: the path is too long or stands for something else, another agent answers there, or the system
    refuses.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ListenError(
            f"cannot listen at {path}: longer than {MAX_PATH_BYTES} bytes; use a shorter runtime directory"
        )
    _clear(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.bind(os.fspath(path))
        path.chmod(SOCKET_MODE)
        sock.listen(LISTEN_BACKLOG)
    except OSError as error:
        sock.close()
        raise ListenError(f"cannot listen at {path}: {error.strerror}") from error
    return sock


def accept(listener: socket.socket) -> socket.socket | None:
    """Take one waiting connection, None where there is none.

    Raises OSError where the process or the system has run out of descriptors or memory.
    """
    try:
        sock, _ = listener.accept()
    except OSError as error:
        if error.errno in _OUT_OF_RESOURCES:
            raise
        # Nobody waits, or whoever waited has gone: accept(2) passes such errors of the new connection on.
        return None
    sock.setblocking(False)
    return sock


def _clear(path: Path) -> None:
    """Remove a stale socket, and nothing else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ListenError(f"cannot listen at {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"cannot listen at {path}: something that is not a socket is there; move it away")
    if _answers(path):
        raise ListenError(f"cannot listen at {path}: another agent answers there; stop it first")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ListenError(f"cannot remove the old socket {path}: {error.strerror}") from error


def _answers(path: Path) -> bool:
    """Tell whether somebody listens: only a refused connection proves that nobody does."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)) as probe:
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as error:
            # A socket of another type, such as the one of an older version: nobody speaks HTTP on it.
            return error.errno != errno.EPROTOTYPE
    return True
