"""Who is at the other end of a Unix socket, as the kernel tells it."""

import array
import socket
import struct
from dataclasses import dataclass

_UCRED = struct.Struct("iII")
"""`struct ucred` of unix(7): pid, uid, gid."""
_SO_PEERGROUPS = 59
"""asm-generic/socket.h; Python's socket module does not name it."""
_GROUPS_BYTES = 1024
"""Most that `getsockopt` of Python returns: 256 groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Credentials of a peer at the time of its connect(2)."""

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def peer_of(sock: socket.socket) -> Peer:
    """Ask the kernel. A peer in more than 256 groups is known by its primary group alone.

    Raises OSError where the kernel cannot tell: such a connection must not be served.
    """
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        raw = b""
    groups = array.array("I")
    groups.frombytes(raw)
    return Peer(pid=pid, uid=uid, gid=gid, groups=tuple(groups))
