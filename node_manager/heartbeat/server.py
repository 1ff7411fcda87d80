"""The agent's side of the heartbeat socket: who speaks is told by the kernel, what is said becomes events.

Nothing here decides about a component, waits for one, or holds more than a bounded amount for one. A peer that breaks
the protocol loses its own connection and nothing else.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from node_manager.core.events import Beat, Event, HeartbeatClosed
from node_manager.core.spec import NS_PER_S
from node_manager.heartbeat import sockets
from node_manager.heartbeat.bucket import TokenBucket
from node_manager.heartbeat.codec import MAX_RECORD_BYTES, MalformedRecord, Pairs, beat_from, decode
from node_manager.heartbeat.output import Output

MAX_CONNECTIONS = 256
"""All connections together: four times the components of a large host."""
MAX_UNGREETED = 4
"""Connections of one component that have not said hello: room for a few quick reconnects, not for hoarding."""
HELLO_TIMEOUT_S = 5.0
"""A connection says hello within this time or is closed: a client says it at once."""
BACKLOG = 128
"""Connections that wait to be accepted: all components of a host reconnect at once after an agent's restart."""
ACCEPTS_PER_CALLBACK = 16
READS_PER_CALLBACK = 16
"""So much work is done for one socket before the loop looks at all the others again."""
FLOOD_RATE_PER_S = 50
"""Records of one component that are taken for ever: five times the fastest beat."""
FLOOD_BURST = 300
"""What a default send buffer holds of the smallest records (208 KiB, at least 768 bytes each). So many can wait after
the agent itself stood still, which is not the component's fault."""
ACCEPT_PAUSE_S = 0.5
"""How long accepting rests when the process is out of descriptors or memory: the socket stays readable, so that a
loop without a pause would spin."""

_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatCounters:
    """What has happened on the socket since it was opened."""

    accepted: int = 0
    """Connections of components."""
    records: int = 0
    """Records that became events."""
    malformed: int = 0
    """Connections closed for a record that breaks the protocol."""
    oversize: int = 0
    """Connections closed for a record longer than `MAX_RECORD_BYTES`."""
    wrong_peer: int = 0
    """Connections closed because a process spoke that is no component's current main process."""
    flooded: int = 0
    """Connections closed or refused for more records than are taken."""
    replaced: int = 0
    """Connections closed because their component said hello on another one."""
    dropped_connections: int = 0
    """Connections closed because they never said hello, or refused because there were too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptConnection:
    """A connection that a successor in the same process takes over: its descriptor, and whose it is."""

    fd: int
    component: str
    generation: int
    pid: int | None
    """Who said hello; None: nobody yet."""
    interval_ms: int


class _Connection:
    """One accepted connection. `owner` is the component and generation of the process that connected."""

    __slots__ = ("greeted", "output", "owner", "pid", "sock", "timer")

    def __init__(self, sock: socket.socket, owner: tuple[str, int], output: Output) -> None:
        self.sock = sock
        self.owner = owner
        self.output = output
        self.pid: int | None = None
        """Who said hello."""
        self.greeted = False
        self.timer: asyncio.TimerHandle | None = None


class HeartbeatServer:
    """The heartbeat socket at `path`.

    `post` takes the events. `identify` names the component and generation whose current main process has a pid, or
    None. `hello` and `levels` render for a component the answer to its hello and what it should know now; they are
    called at the moment of sending. All callbacks run on the loop and must not block.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: Path,
        *,
        post: Callable[[Event], None],
        identify: Callable[[int], tuple[str, int] | None],
        hello: Callable[[str], Pairs],
        levels: Callable[[str], Pairs],
    ) -> None:
        self._loop = loop
        self._path = path
        self._post = post
        self._identify = identify
        self._hello = hello
        self._levels = levels
        self._listener: socket.socket | None = None
        self._accepting = False
        self._owns_path = False
        self._place: tuple[int, int] | None = None
        """What stood at the path when it was ours."""
        self._pause: asyncio.TimerHandle | None = None
        self._connections: set[_Connection] = set()
        self._by_component: dict[str, _Connection] = {}
        """The connection of each component that has said hello."""
        self._buckets: dict[str, TokenBucket] = {}
        """Of each component, not each connection: a reconnect does not make a flood harmless."""
        self._errors: dict[str, str] = {}
        self._counters = HeartbeatCounters()

    @property
    def counters(self) -> HeartbeatCounters:
        """A snapshot of what has been counted."""
        return self._counters

    @property
    def refused(self) -> bool:
        """Whether there is a `last_error` of anybody."""
        return bool(self._errors)

    def last_error(self, component: str) -> str | None:
        """Why a connection of this component was last closed or refused; of "", one of a process of no component."""
        return self._errors.get(component)

    def start(self, fd: int | None = None) -> None:
        """Listen at the path, in place of a socket that an earlier agent left there, or on a listening `fd`.

        Whoever connects waits until `accept`. The server owns `fd` from here on. Raises OSError with a sentence.
        """
        if fd is None:
            listener = sockets.bind(self._path, socket.SOCK_SEQPACKET)
            listener.listen(BACKLOG)
            self._own_path()
        else:
            listener = socket.socket(fileno=fd)
            if (listener.family, listener.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
                listener.close()
                raise OSError(f"cannot listen on descriptor {fd}: it is not a Unix SOCK_SEQPACKET socket")
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._listener = listener
        self._watch(listener)

    def accept(self) -> None:
        """Take connections in, from now on: to be called once `identify` knows every component that runs.

        Before that a component of an earlier agent would be refused as a stranger. Harmless when repeated.
        """
        if not self._accepting:
            self._accepting = True
            if self._listener is not None:
                self._watch(self._listener)

    def _watch(self, listener: socket.socket) -> None:
        if self._accepting:
            self._loop.add_reader(listener.fileno(), self._on_acceptable)

    def _own_path(self) -> None:
        self._owns_path = True
        self._place = sockets.place_of(self._path)

    def restore(self) -> bool:
        """Listen at the path again where somebody has removed or replaced the socket; False: it stands there.

        Connections stay as they are. Raises OSError with a sentence.
        """
        if self._listener is None or not self._owns_path or sockets.place_of(self._path) == self._place:
            return False
        old = self._listener
        if self._pause is None:
            self._loop.remove_reader(old.fileno())
        else:
            self._pause.cancel()
            self._pause = None
        self._listener = None
        try:
            self.start()
        except OSError:
            self._listener = old
            self._watch(old)
            raise
        old.close()
        return True

    @property
    def listener(self) -> socket.socket | None:
        """The listening socket while it serves, for a successor."""
        return self._listener

    def keep(self) -> tuple[KeptConnection, ...]:
        """Name the connections for a successor in this very process; what they have sent stays in them."""
        return tuple(
            KeptConnection(
                fd=connection.sock.fileno(),
                component=connection.owner[0],
                generation=connection.owner[1],
                pid=connection.pid,
                interval_ms=round(connection.output.interval_s * 1000),
            )
            for connection in self._connections
        )

    def resume(self, fd: int, kept: tuple[KeptConnection, ...]) -> None:
        """Listen on a predecessor's socket and go on with its connections; the path is this server's to remove.

        New connections wait until `accept`. Each peer that had said hello is told everything anew. Raises OSError.
        """
        self.start(fd)
        self._own_path()
        for one in kept:
            connection = self._enlist(socket.socket(fileno=one.fd), (one.component, one.generation))
            if one.pid is not None:
                connection.pid = one.pid
                self._welcome(connection)
                if one.interval_ms:  # else it has not said yet how often it speaks
                    connection.output.greet(one.interval_ms / 1000)

    def close(self, *, keep_path: bool = False) -> None:
        """Close everything, without events. The path is removed if this server made it, unless it is to be kept."""
        for connection in tuple(self._connections):
            self._release(connection)
        self._by_component.clear()
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
            if self._owns_path and not keep_path:
                self._path.unlink(missing_ok=True)

    def send(self, component: str) -> None:
        """Let this component know what has changed: now if its socket takes it, else as soon as it does."""
        if connection := self._by_component.get(component):
            connection.output.touch()

    def read_now(self, component: str, generation: int) -> None:
        """Take what this generation has sent and was not read yet.

        To be called when its main process has ended, while `identify` still knows the pid and before the end is
        posted: the last words of a process (decommissioned, at that epoch) are worth as much as the others.
        """
        if self._accepting and self._pause is None:
            self._on_acceptable()  # it may have connected, spoken and ended since the listener was looked at
        for connection in [one for one in self._connections if one.owner == (component, generation)]:
            self._read(connection, FLOOD_BURST)

    def end(self, component: str, generation: int) -> None:
        """Close every connection of this generation, and of older ones of the component."""
        for connection in tuple(self._connections):
            name, of = connection.owner
            if name == component and of <= generation:
                self._drop(connection)
        self._buckets.pop(component, None)

    # --- accepting ----------------------------------------------------------------------------------------------

    def _on_acceptable(self) -> None:
        for _ in range(ACCEPTS_PER_CALLBACK):
            if self._listener is None:
                return
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _RESOURCES:
                    self._errors[""] = f"cannot accept heartbeat connections: {error.strerror}; trying again"
                    self._loop.remove_reader(self._listener.fileno())
                    self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._resume)
                    return
                continue  # that one connection failed (accept(2)); the next is another matter
            self._admit(sock)

    def _resume(self) -> None:
        self._pause = None
        if self._listener is not None:
            self._watch(self._listener)

    def _admit(self, sock: socket.socket) -> None:
        """Take a connection in, or close it at once. Strangers never occupy a place."""
        pid, uid = sockets.peer_of(sock)
        owner = self._identify(pid)
        if owner is None:
            sock.close()
            self._count("wrong_peer", "", f"process {pid} of user {uid} is not the main process of a component")
            return
        name = owner[0]
        if not self._bucket(name).take(self._loop.time()):
            sock.close()
            self._count("flooded", name, f"more than {FLOOD_RATE_PER_S} records a second")
            return
        ungreeted = sum(not c.greeted and c.owner[0] == name for c in self._connections)
        if len(self._connections) >= MAX_CONNECTIONS or ungreeted >= MAX_UNGREETED:
            sock.close()
            self._count("dropped_connections", name, "too many connections")
            return
        self._enlist(sock, owner)
        self._counters = replace(self._counters, accepted=self._counters.accepted + 1)

    def _enlist(self, sock: socket.socket, owner: tuple[str, int]) -> _Connection:
        name = owner[0]
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        output = Output(self._loop, sock, hello=partial(self._hello, name), levels=partial(self._levels, name))
        connection = _Connection(sock, owner, output)
        self._connections.add(connection)
        connection.timer = self._loop.call_later(HELLO_TIMEOUT_S, self._on_no_hello, connection)
        self._loop.add_reader(sock.fileno(), self._read, connection, READS_PER_CALLBACK)
        return connection

    def _on_no_hello(self, connection: _Connection) -> None:
        self._refuse(connection, "dropped_connections", f"no hello within {HELLO_TIMEOUT_S:g} s")

    # --- reading ------------------------------------------------------------------------------------------------

    def _read(self, connection: _Connection, limit: int) -> None:
        for _ in range(limit):
            if connection not in self._connections:
                return
            try:
                message = sockets.receive(connection.sock, MAX_RECORD_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # The peer closed with records of ours unread. What it had said before is still there to be read.
                continue
            except OSError as error:
                self._errors[connection.owner[0]] = f"cannot read its heartbeat: {error.strerror}"
                self._drop(connection)
                return
            if message.ended:
                self._drop(connection)
                return
            self._take(connection, message)

    def _take(self, connection: _Connection, message: sockets.Message) -> None:
        """Judge one record: the sender first, then how many, then its size, then its content."""
        name, generation = connection.owner
        if message.pid is None or self._identify(message.pid) != connection.owner:
            if connection.pid is not None and message.pid == connection.pid:
                self._drop(connection)  # the very process that said hello, which has ended meanwhile
            else:
                self._refuse(connection, "wrong_peer", f"process {message.pid} is not the main process of {name}")
        elif not self._bucket(name).take(self._loop.time()):
            self._refuse(connection, "flooded", f"more than {FLOOD_RATE_PER_S} records a second")
        elif message.truncated:
            self._refuse(connection, "oversize", f"a record longer than {MAX_RECORD_BYTES} bytes")
        elif message.control_truncated:
            # The kernel has closed it: `receive` left no room for any.
            self._refuse(connection, "malformed", "a descriptor came with a record")
        else:
            try:
                fields = decode(message.data)
                beat = beat_from(fields, name, generation)
            except MalformedRecord as error:
                self._refuse(connection, "malformed", error.reason)
                return
            if beat.hello and fields["COMPONENT"] != name:
                self._refuse(connection, "wrong_peer", f"the main process of {name} says that it is another component")
            elif not (beat.hello or connection.greeted):
                self._refuse(connection, "malformed", "the first record must be a hello")
            else:
                connection.pid = message.pid
                self._hear(connection, beat)

    def _hear(self, connection: _Connection, beat: Beat) -> None:
        if beat.hello:
            self._welcome(connection)
        self._counters = replace(self._counters, records=self._counters.records + 1)
        self._post(beat)
        if beat.interval_ns is None:
            return
        if beat.hello:
            connection.output.greet(beat.interval_ns / NS_PER_S)
        else:
            connection.output.set_interval(beat.interval_ns / NS_PER_S)

    def _welcome(self, connection: _Connection) -> None:
        """Make this the component's connection: a new hello ends the older one, whatever that had queued."""
        name = connection.owner[0]
        older = self._by_component.get(name)
        if older is not None and older is not connection:
            self._refuse(older, "replaced", "replaced by a newer connection")
        self._by_component[name] = connection
        connection.greeted = True
        if connection.timer is not None:
            connection.timer.cancel()
            connection.timer = None

    # --- ending -------------------------------------------------------------------------------------------------

    def _refuse(self, connection: _Connection, counter: str, reason: str) -> None:
        self._count(counter, connection.owner[0], reason)
        self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._release(connection)
        name, generation = connection.owner
        if self._by_component.get(name) is connection:
            del self._by_component[name]
        if connection.greeted:
            self._post(HeartbeatClosed(component=name, generation=generation))

    def _release(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        if connection.timer is not None:
            connection.timer.cancel()
        connection.output.close()
        self._loop.remove_reader(connection.sock.fileno())
        connection.sock.close()

    def _bucket(self, component: str) -> TokenBucket:
        bucket = self._buckets.get(component)
        if bucket is None:
            bucket = TokenBucket(FLOOD_RATE_PER_S, FLOOD_BURST, self._loop.time())
            self._buckets[component] = bucket
        return bucket

    def _count(self, counter: str, component: str, reason: str) -> None:
        number: int = getattr(self._counters, counter)
        self._counters = replace(self._counters, **{counter: number + 1})
        self._errors[component] = reason
