"""Entries of the journal with fields of their own, in journald's native protocol.

The protocol is stable and small: one datagram for each entry, one line for each field
(https://systemd.io/JOURNAL_NATIVE_PROTOCOL/). systemd-python sends them where it is installed; it seldom is, because it
has to be compiled on each host: docs/decisions/0013-journal.md.
"""

import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

SOCKET = Path("/run/systemd/journal/socket")
MAX_VALUE_BYTES = 8 * 1024
"""Of one field: the protocol takes more only by a file in memory, and the agent's texts are shorter."""


def sender() -> Callable[[Mapping[str, str]], None]:
    """Return what sends an entry: systemd-python where it is installed, else `send`."""
    try:
        from systemd import journal  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return send

    def send_by_library(fields: Mapping[str, str]) -> None:
        journal.send(fields["MESSAGE"], **{name: text for name, text in fields.items() if name != "MESSAGE"})

    return send_by_library


def send(fields: Mapping[str, str], path: Path = SOCKET) -> None:
    """Send an entry to the journal; may wait for it, so it is for a thread that may. Raises OSError.

    Names are capital letters, digits and underscores, and begin with a letter.
    """
    # A socket for each: a journal that was restarted is found again, and entries are rare.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.sendto(datagram(fields), str(path))


def datagram(fields: Mapping[str, str]) -> bytes:
    """An entry: `NAME=VALUE` a line; a value with a line end stands after its length, 64 bits, little-endian."""
    return b"".join(_field(name.encode("ascii"), value) for name, value in fields.items())


def _field(name: bytes, text: str) -> bytes:
    value = text.encode(errors="replace")[:MAX_VALUE_BYTES]
    if b"\n" in value:
        return name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return name + b"=" + value + b"\n"
