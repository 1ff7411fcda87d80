"""sd_notify(3) in both directions: what components say to the agent, and what the agent says to systemd.

Each component has a datagram socket of its own, so that a daemon which knows nothing of this project and everything of
systemd works unchanged. Who sent a datagram is told by the kernel (SCM_CREDENTIALS), never by the datagram.

A known race, the same as systemd's: under `notify_access: tree` a short-lived sender (systemd-notify(1) in a script)
may be gone when its datagram is read. The kernel still names its pid, but nothing can tell any more whose child it
was: the datagram is refused and counted. `systemd-notify` waits for the receiver by default (BARRIER=1), which closes
that gap; a script that uses `--no-block` has it.
"""

import array
import asyncio
import contextlib
import os
import re
import socket
import stat
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path

from node_manager.core.events import Event, Notified
from node_manager.core.spec import NotifyAccess
from node_manager.heartbeat import sockets
from node_manager.heartbeat.bucket import TokenBucket

MAX_DATAGRAM_BYTES = 4096
"""What systemd takes (NOTIFY_BUFFER_MAX)."""
MAX_LINES = 64
"""Assignments read of one datagram: no more than a handful are defined."""
MAX_STATUS_CHARS = 512
"""What is kept of a STATUS text: it is one line of a table."""
MAX_USEC = (2**63 - 1) // 1000
"""Longest time taken, so that it is an int64_t in nanoseconds too."""
MAX_DESCRIPTORS = 2
"""Room for the one descriptor of a barrier (and its padding); the kernel closes what does not fit."""
READS_PER_CALLBACK = 16
"""So many datagrams are read of one socket before the loop looks at all the others again."""
DISCARD_LIMIT = 1024
"""Datagrams thrown away when a socket changes hands: above net.unix.max_dgram_qlen of any known system."""
FLOOD_RATE_PER_S = 50
FLOOD_BURST = 100
"""Datagrams of one component that are taken for ever, and at once; more are read and forgotten."""
DIRECTORY_MODE = 0o755
"""Components of any user reach their sockets in it; only the agent makes or removes one."""
LISTEN_FDS_START = 3
"""SD_LISTEN_FDS_START."""
MAX_STORED = 64
"""Far above what the agent stores; a number beyond it is not systemd's word."""
SEND_TEXT_BYTES = 1024
"""Longest STATUS= sent to systemd."""

_MTIME_SETTLED_NS = 1_000_000_000
"""Above the step of the clock that file systems take their times from: some milliseconds."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DIGITS = re.compile(r"[0-9]{1,19}")
_BLANKS = dict.fromkeys(range(0x20), " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyCounters:
    """What has happened on all notify sockets."""

    accepted: int = 0
    """Datagrams that became events."""
    malformed: int = 0
    """Datagrams that are too long, not UTF-8, or give a number that is none."""
    wrong_sender: int = 0
    """Datagrams of a process that may not speak for the component, or of which that cannot be told any more."""
    flooded: int = 0
    """Datagrams forgotten because there were too many."""
    mainpid_refused: int = 0
    """MAINPID of another process than the sender: the agent knows its children. The rest of the datagram counts."""
    descriptors_closed: int = 0
    """Descriptors that nobody had asked for (FDSTORE=1 and the like)."""


class MalformedDatagram(ValueError):  # noqa: N818  like MalformedRecord of the heartbeat protocol
    """A datagram that sd_notify(3) does not describe."""


def parse(datagram: bytes) -> dict[str, str]:
    """Take a datagram apart: assignments by their key, the last of several. Lines without `=` are skipped."""
    try:
        text = datagram.decode()
    except UnicodeDecodeError:
        raise MalformedDatagram("not UTF-8") from None
    if "\0" in text:
        raise MalformedDatagram("a NUL byte in it")
    lines = text.split("\n", MAX_LINES)[:MAX_LINES]
    return {key: value for key, equals, value in (line.partition("=") for line in lines) if equals and key}


def notified_from(fields: dict[str, str], component: str, generation: int) -> Notified | None:
    """Make an event of the assignments; None if there is nothing in them that the agent listens to."""
    status = fields.get("STATUS")
    event = Notified(
        component=component,
        generation=generation,
        ready=fields.get("READY") == "1",
        stopping=fields.get("STOPPING") == "1",
        watchdog=fields.get("WATCHDOG") == "1",
        watchdog_trigger=fields.get("WATCHDOG") == "trigger",
        watchdog_ns=_duration_ns(fields, "WATCHDOG_USEC"),
        extend_ns=_duration_ns(fields, "EXTEND_TIMEOUT_USEC"),
        status=None if status is None else status.translate(_BLANKS)[:MAX_STATUS_CHARS],
    )
    return None if event == Notified(component=component, generation=generation) else event


def _duration_ns(fields: dict[str, str], key: str) -> int | None:
    text = fields.get(key)
    if text is None:
        return None
    if not _DIGITS.fullmatch(text) or int(text) > MAX_USEC:
        raise MalformedDatagram(f"{key} is not a number of microseconds")
    return int(text) * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSocket:
    """A component's socket that a successor in the same process takes over, with whatever waits in it."""

    fd: int
    component: str
    generation: int
    access: NotifyAccess
    owner: int | None


class _Socket:
    """The socket of one component, for its current generation."""

    __slots__ = ("access", "bucket", "component", "generation", "owner", "path", "place", "sock")

    def __init__(self, component: str, path: Path, sock: socket.socket, owner: int | None, bucket: TokenBucket) -> None:
        self.component = component
        self.path = path
        self.sock = sock
        self.owner = owner
        self.bucket = bucket
        self.place = sockets.place_of(path)
        """What stands at the path while it is ours."""
        self.generation = 0
        self.access = NotifyAccess.MAIN


class NotifySockets:
    """The components' notify sockets, `NAME.sock` in `directory`, which is made if its parent exists.

    `post` takes the events. `identify` names the component and generation whose current main process has a pid;
    `member` names the component in whose tree a pid is; both answer None for a stranger and must not block.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        directory: Path,
        *,
        post: Callable[[Event], None],
        identify: Callable[[int], tuple[str, int] | None],
        member: Callable[[int], str | None],
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._post = post
        self._identify = identify
        self._member = member
        self._sockets: dict[str, _Socket] = {}
        self._counters = NotifyCounters()
        self._errors: dict[str, str] = {}
        self._looked_at: tuple[int, int, int] | None = None
        """The directory as it was when every socket was last seen in it; None: it may have changed at that instant."""

    @property
    def counters(self) -> NotifyCounters:
        """A snapshot of what has been counted."""
        return self._counters

    @property
    def refused(self) -> bool:
        """Whether there is a `last_error` of anybody."""
        return bool(self._errors)

    def last_error(self, component: str) -> str | None:
        """Why a datagram on this component's socket was last refused."""
        return self._errors.get(component)

    def open(self, component: str, generation: int, access: NotifyAccess, *, uid: int | None = None) -> Path:
        """Listen for this generation and return the path for its NOTIFY_SOCKET.

        `uid` is the user of the component: where its main process alone may speak, nobody else but root can send, nor
        fill the short queue of the kernel. Without it, and for `tree` (whose processes may have any user), all can.

        Call it before each spawn and for each adopted process. A socket that is open already passes to the new
        generation; what the older one left in it is thrown away. Raises OSError with a sentence.
        """
        if not _NAME.fullmatch(component):
            raise ValueError(f"cannot make a notify socket for {component!r}: not a component's name")
        owner = uid if access is NotifyAccess.MAIN else None
        entry = self._sockets.get(component)
        if entry is not None and entry.owner != owner:
            self.close(component)  # whoever is connected to the old one could go on sending
            entry = None
        if entry is None:
            self._make_directory()
            path = self._directory / f"{component}.sock"
            entry = self._add(component, path, sockets.bind(path, socket.SOCK_DGRAM, owner=owner), owner)
        elif entry.generation != generation:
            self._discard(entry)
            entry.bucket = TokenBucket(FLOOD_RATE_PER_S, FLOOD_BURST, self._loop.time())
        entry.generation = generation
        entry.access = access
        return entry.path

    def keep(self) -> tuple[KeptSocket, ...]:
        """Name the sockets for a successor in this very process."""
        return tuple(
            KeptSocket(
                fd=entry.sock.fileno(),
                component=entry.component,
                generation=entry.generation,
                access=entry.access,
                owner=entry.owner,
            )
            for entry in self._sockets.values()
        )

    def resume(self, kept: tuple[KeptSocket, ...]) -> None:
        """Go on with a predecessor's sockets."""
        for one in kept:
            path = self._directory / f"{one.component}.sock"
            entry = self._add(one.component, path, socket.socket(fileno=one.fd), one.owner)
            entry.generation, entry.access = one.generation, one.access

    def restore(self) -> bool:
        """Make the sockets anew that somebody has removed or replaced; False: all stand there.

        What waits in the old ones is read first. Raises OSError with a sentence for the first that cannot be made, when
        all the others are: until it can be, each call does.
        """
        if self._untouched():
            return False
        lost = [entry for entry in self._sockets.values() if sockets.place_of(entry.path) != entry.place]
        failure: OSError | None = None
        for entry in lost:
            self._read(entry, DISCARD_LIMIT)
            try:
                self._make_directory()
                sock = sockets.bind(entry.path, socket.SOCK_DGRAM, owner=entry.owner)
            except OSError as error:
                failure = failure or error
                continue
            self._loop.remove_reader(entry.sock.fileno())
            entry.sock.close()
            entry.sock, entry.place = sock, sockets.place_of(entry.path)
            self._loop.add_reader(sock.fileno(), self._read, entry, READS_PER_CALLBACK)
        if failure is not None:
            self._looked_at = None
            raise failure
        return bool(lost)

    def _untouched(self) -> bool:
        """Whether nothing was put into the directory or taken out since the last look at every socket.

        Asked every other second, and of a hundred sockets each look would cost more than all else that an idle agent
        does. A change within a second before a look might be followed by one with the same time: that look proves
        nothing to the next one.
        """
        try:
            found = self._directory.lstat()
        except OSError:
            self._looked_at = None
            return False
        now = (found.st_dev, found.st_ino, found.st_mtime_ns)
        untouched = now == self._looked_at
        self._looked_at = now if time.time_ns() - found.st_mtime_ns > _MTIME_SETTLED_NS else None
        return untouched

    def read_now(self, component: str, generation: int) -> None:
        """Take what this generation has sent and was not read yet: to be called before its end is posted."""
        entry = self._sockets.get(component)
        if entry is not None and entry.generation == generation:
            self._read(entry, DISCARD_LIMIT)

    def close(self, component: str) -> None:
        """Close the component's socket and remove its path."""
        entry = self._sockets.pop(component, None)
        self._errors.pop(component, None)
        if entry is not None:
            self._loop.remove_reader(entry.sock.fileno())
            entry.sock.close()
            entry.path.unlink(missing_ok=True)

    def close_all(self) -> None:
        """Close every socket and remove the paths."""
        for component in tuple(self._sockets):
            self.close(component)

    def _add(self, component: str, path: Path, sock: socket.socket, owner: int | None) -> _Socket:
        bucket = TokenBucket(FLOOD_RATE_PER_S, FLOOD_BURST, self._loop.time())
        entry = self._sockets[component] = _Socket(component, path, sock, owner, bucket)
        self._loop.add_reader(sock.fileno(), self._read, entry, READS_PER_CALLBACK)
        return entry

    def _make_directory(self) -> None:
        try:
            self._directory.mkdir()
            self._directory.chmod(DIRECTORY_MODE)
        except FileExistsError as error:
            if not stat.S_ISDIR(self._directory.lstat().st_mode):
                raise OSError(f"cannot use {self._directory}: it is not a directory; remove it") from error
        except OSError as error:
            raise OSError(f"cannot make {self._directory}: {error.strerror}") from error

    def _read(self, entry: _Socket, limit: int) -> None:
        for _ in range(limit):
            message = self._receive(entry)
            if message is None:
                return
            try:
                self._take(entry, message)
            except MalformedDatagram as error:
                self._count("malformed", entry, str(error))
            finally:
                # For a barrier this is the answer: what was sent before it has been taken (sd_notify_barrier(3)).
                message.close_descriptors()

    def _discard(self, entry: _Socket) -> None:
        for _ in range(DISCARD_LIMIT):
            message = self._receive(entry)
            if message is None:
                return
            message.close_descriptors()

    def _receive(self, entry: _Socket) -> sockets.Message | None:
        try:
            return sockets.receive(entry.sock, MAX_DATAGRAM_BYTES, descriptors=MAX_DESCRIPTORS)
        except BlockingIOError:
            return None
        except OSError as error:
            self._errors[entry.component] = f"cannot read its notify socket: {error.strerror}"
            return None

    def _take(self, entry: _Socket, message: sockets.Message) -> None:
        if not self._may_speak(entry, message.pid):
            self._count("wrong_sender", entry, f"process {message.pid} may not speak for {entry.component}")
            return
        if not entry.bucket.take(self._loop.time()):
            self._count("flooded", entry, f"more than {FLOOD_RATE_PER_S} datagrams a second")
            return
        if message.truncated:
            raise MalformedDatagram(f"longer than {MAX_DATAGRAM_BYTES} bytes")
        fields = parse(message.data)
        if "BARRIER" in fields:
            return
        if message.descriptors or message.control_truncated:
            self._count("descriptors_closed", entry, "descriptors came that nobody had asked for")
        if fields.get("MAINPID", str(message.pid)) != str(message.pid):
            self._count("mainpid_refused", entry, "MAINPID is refused: the agent knows its children")
        event = notified_from(fields, entry.component, entry.generation)
        if event is not None:
            self._counters = replace(self._counters, accepted=self._counters.accepted + 1)
            self._post(event)

    def _may_speak(self, entry: _Socket, pid: int | None) -> bool:
        if pid is None or pid <= 0:
            return False
        if self._identify(pid) == (entry.component, entry.generation):
            return True
        return entry.access is NotifyAccess.TREE and self._member(pid) == entry.component

    def _count(self, counter: str, entry: _Socket, reason: str) -> None:
        number: int = getattr(self._counters, counter)
        self._counters = replace(self._counters, **{counter: number + 1})
        self._errors[entry.component] = reason


class SystemdNotifier:
    """The agent's own word to systemd, on the socket that NOTIFY_SOCKET in `environ` names.

    The constructor takes the variables of this protocol out of `environ`, so that no component ever speaks on the
    agent's socket. Nothing here waits or raises: each method answers whether systemd's socket took the message, and
    False without systemd. What must arrive (READY=1) is sent again by the caller until it did.
    """

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self.address = environ.pop("NOTIFY_SOCKET", "")
        self.watchdog_interval_s = _watchdog_interval_s(
            environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        )
        """WATCHDOG=1 is due within this time, better at half of it; None where systemd does not ask for it."""
        self.stored = _stored(environ)
        """Descriptors that systemd kept for this process, by name (FDSTORE=1); whoever takes one owns it."""

    @property
    def active(self) -> bool:
        """Whether there is a systemd to talk to."""
        return self.address.startswith(("/", "@"))

    def ready(self, status: str = "") -> bool:
        """The agent is in charge."""
        return self._send("READY=1", status)

    def status(self, text: str) -> bool:
        """One line for `systemctl status`."""
        return self._send("", text)

    def watchdog(self) -> bool:
        """The agent's loop turns."""
        return self._send("WATCHDOG=1")

    def stopping(self, status: str = "") -> bool:
        """The agent is on its way out."""
        return self._send("STOPPING=1", status)

    def reloading(self) -> bool:
        """The agent reads its configuration again; `ready` ends it."""
        return self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def extend_timeout(self, extend_ns: int) -> bool:
        """Starting or stopping needs this much longer from now."""
        return self._send(f"EXTEND_TIMEOUT_USEC={max(0, extend_ns) // 1000}")

    def store(self, name: str, descriptor: int) -> bool:
        """Let systemd keep a copy of a descriptor over a restart of the agent (FDSTORE=1)."""
        return self._send(f"FDSTORE=1\nFDNAME={name}", descriptors=(descriptor,))

    def forget(self, name: str) -> bool:
        """Let systemd close what it keeps under this name (FDSTOREREMOVE=1)."""
        return self._send(f"FDSTOREREMOVE=1\nFDNAME={name}")

    def _send(self, lines: str, status: str = "", *, descriptors: tuple[int, ...] = ()) -> bool:
        if not self.active:
            return False
        if status:
            text = status.translate(_BLANKS).encode("utf-8", "replace")[:SEND_TEXT_BYTES].decode("utf-8", "ignore")
            lines = f"{lines}\nSTATUS={text}" if lines else f"STATUS={text}"
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        # A failure is the answer False: systemd's socket is full, or there is none.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendmsg([lines.encode()], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, address)
            return True
        return False


def _stored(environ: MutableMapping[str, str]) -> dict[str, int]:
    """Take the descriptors over that systemd passes (sd_listen_fds(3)); of several with one name the last counts."""
    count, pid = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    environ.pop("LISTEN_PIDFDID", None)
    found: dict[str, int] = {}
    if pid != str(os.getpid()) or not _DIGITS.fullmatch(count) or int(count) > MAX_STORED:
        return found
    for place in range(int(count)):
        fd = LISTEN_FDS_START + place
        os.set_inheritable(fd, False)
        name = names[place] if place < len(names) else ""
        if name in found:
            os.close(found[name])
        found[name] = fd
    return found


def _watchdog_interval_s(usec: str, pid: str) -> float | None:
    """WATCHDOG_USEC in seconds, where it is meant for this process (sd_watchdog_enabled(3))."""
    if not _DIGITS.fullmatch(usec) or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 1_000_000
