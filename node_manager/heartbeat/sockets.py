"""Unix sockets whose peers the kernel names: binding, and receiving with credentials (unix(7), SCM_CREDENTIALS).

The pid of a message is that of the process that sent it, at the time of sending, in this process's pid namespace: 0
for a process outside it. Only root can state another one.
"""

import array
import contextlib
import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

SOCKET_MODE = 0o666
"""Anyone may connect or send, because components run as many users: the credentials decide, not the file's mode."""
PRIVATE_MODE = 0o600
"""Only the owner may: others could fill the kernel's short queue, and the owner's own messages would be lost."""

_UCRED = struct.Struct("iII")
"""struct ucred: pid, uid, gid."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message and what the kernel says about it. The receiver owns `descriptors` and closes them.

    `pid` and `uid` are None only at the end of a connection (then `data` is empty) or where the kernel gave none.
    """

    data: bytes
    pid: int | None
    uid: int | None
    truncated: bool
    """It was longer than the buffer (MSG_TRUNC)."""
    control_truncated: bool
    """Descriptors came that did not fit; the kernel closed them (MSG_CTRUNC)."""
    descriptors: tuple[int, ...]

    @property
    def ended(self) -> bool:
        """Whether this is the end of a connection. An empty message has a sender; the end has none."""
        return not self.data and self.pid is None

    def close_descriptors(self) -> None:
        """Close every descriptor that came along."""
        for descriptor in self.descriptors:
            # A failing close has released the descriptor all the same (close(2)).
            with contextlib.suppress(OSError):
                os.close(descriptor)


def bind(path: Path, kind: socket.SocketKind, *, owner: int | None = None) -> socket.socket:
    """Make a non-blocking socket at `path` that receives credentials, replacing a socket that stands there.

    `owner` is the one user (beside root) who may send to it; None: everybody. Raises OSError with a sentence, also
    when something stands at `path` that is not a socket.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(f"cannot bind {path}: something that is not a socket stands there; move it away")
        path.unlink()
    except FileNotFoundError:
        pass
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            sock.bind(str(path))
        except OSError as error:
            raise OSError(f"cannot bind {path}: {error.strerror or error}") from error
        _admit(path, owner)
    except BaseException:
        sock.close()
        raise
    return sock


def _admit(path: Path, owner: int | None) -> None:
    """Let those who may send reach the socket. Until then it has what the umask leaves: others cannot write."""
    if owner is None:
        path.chmod(SOCKET_MODE)
        return
    path.chmod(PRIVATE_MODE)
    if owner != os.geteuid():
        try:
            os.chown(path, owner, -1)
        except OSError as error:
            raise OSError(f"cannot give {path} to uid {owner}: {error.strerror}; only root can") from error


def place_of(path: Path) -> tuple[int, int] | None:
    """Return what stands at the path, device and inode; None: nothing, or it cannot be told."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def receive(sock: socket.socket, size: int, *, descriptors: int = 0) -> Message:
    """Receive one message of at most `size` bytes without waiting, with room for so many descriptors.

    Descriptors that do not fit never enter this process. Raises what recvmsg(2) raises.
    """
    space = socket.CMSG_SPACE(_UCRED.size)
    if descriptors:
        space += socket.CMSG_SPACE(descriptors * array.array("i").itemsize)
    data, ancillary, flags, _ = sock.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
    pid = uid = None
    came = array.array("i")
    for level, kind, content in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_CREDENTIALS and len(content) >= _UCRED.size:
            pid, uid, _ = _UCRED.unpack_from(content)
        elif kind == socket.SCM_RIGHTS:
            came.frombytes(content[: len(content) - len(content) % came.itemsize])
    return Message(
        data=data,
        pid=pid,
        uid=uid,
        truncated=bool(flags & socket.MSG_TRUNC),
        control_truncated=bool(flags & socket.MSG_CTRUNC),
        descriptors=tuple(came),
    )


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Return pid and uid of the process that connected (SO_PEERCRED)."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid
