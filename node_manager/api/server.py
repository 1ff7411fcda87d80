"""The status API's server: HTTP/1.1 on a Unix socket, in callbacks of the agent's own loop.

There is no task and no thread: each client is a `Connection` that reacts to readiness and to timers. A stuck loop
therefore answers nothing, which is what `/v1/live` is for.
"""

import asyncio
import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from node_manager.api.backend import Backend
from node_manager.api.connection import Connection, Phase
from node_manager.api.limits import ACCEPT_BATCH, ACCEPT_RETRY_S, Limits
from node_manager.api.listener import accept, bind
from node_manager.api.messages import Answer, Problem, Request
from node_manager.api.peer import peer_of
from node_manager.api.routes import Routes

_FULL_BODY = Problem(503, "all connections wait for answers; try again shortly").response().body
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%b" % (len(_FULL_BODY), _FULL_BODY)
)
"""Sent without parsing anything where not one connection can be given up for a new one."""


class ApiServer:
    """Serves `backend` at `path` on `loop`. `version` is the agent's, for the Server header field.

    All methods are called on the loop's thread, before it runs or from its callbacks.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: str | Path,
        backend: Backend,
        *,
        version: str,
        limits: Limits | None = None,
    ) -> None:
        self.loop = loop
        self.limits = Limits() if limits is None else limits
        self.software = f"xce-node-manager/{version}"
        self._path = Path(path)
        self._backend = backend
        self._routes = Routes(backend, loop.call_soon)
        self._listener: socket.socket | None = None
        self._bound: tuple[int, int] | None = None
        """Device and inode of the socket that this server made, and so removes."""
        self._connections: set[Connection] = set()
        self._streams: dict[Connection, None] = {}
        """Followers, oldest first."""
        self._unsubscribe: Callable[[], None] | None = None
        self._commands = 0
        self._retry: asyncio.TimerHandle | None = None

    @property
    def listener(self) -> socket.socket | None:
        """The listening socket while it serves, for a descriptor store or a successor."""
        return self._listener

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    @property
    def streams(self) -> int:
        """Followers of events among them."""
        return len(self._streams)

    @property
    def waiting_commands(self) -> int:
        """Commands that were handed to the backend and not answered yet."""
        return self._commands

    @property
    def accepting(self) -> bool:
        """False while closed, and while the process is out of descriptors or memory for new connections."""
        return self._listener is not None and self._retry is None

    def start(self, sock: socket.socket | None = None, *, at_path: bool = False) -> None:
        """Serve, at the path or on `sock`, which listens already and which the server then owns.

        `at_path`: that one stands at the path, and is this server's to remove. Raises ListenError where the path cannot
        be used.
        """
        if sock is None:
            sock, at_path = bind(self._path), True
        else:
            sock.setblocking(False)
        if at_path:
            with contextlib.suppress(FileNotFoundError):
                made = self._path.lstat()
                self._bound = (made.st_dev, made.st_ino)
        self._listener = sock
        self.loop.add_reader(sock, self._accept)

    @property
    def busy(self) -> bool:
        """Whether a request is being read or answered."""
        return any(one.phase in {Phase.READING, Phase.ANSWERING, Phase.WRITING} for one in self._connections)

    def restore(self) -> bool:
        """Listen at the path again where somebody has removed or replaced the socket; False: it stands there.

        Connections stay as they are. Raises ListenError.
        """
        if self._listener is None or self._bound is None:
            return False
        with contextlib.suppress(OSError):
            there = self._path.lstat()
            if (there.st_dev, there.st_ino) == self._bound:
                return False
        fresh = bind(self._path)
        self.loop.remove_reader(self._listener)
        self._listener.close()
        self._listener = None
        self.start(fresh, at_path=True)
        return True

    def pause(self) -> None:
        """Accept nobody: whoever connects waits, for a successor or for `accept_again`."""
        if self._listener is not None:
            self.loop.remove_reader(self._listener)

    def accept_again(self) -> None:
        """End a pause."""
        self._accept_again()

    def close(self, *, keep_path: bool = False) -> None:
        """End every connection and the listener, and remove the socket if this server made it. Harmless when repeated.

        `keep_path`: somebody else has the listener open as well, so the socket stays.
        A caller that keeps the listener for a successor duplicates it before and passes it to `start` there.
        """
        if self._listener is None:
            return
        self.loop.remove_reader(self._listener)
        self._listener.close()
        self._listener = None
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for connection in tuple(self._connections):
            connection.finish()
        if not keep_path:
            self._remove_socket()

    def _remove_socket(self) -> None:
        if self._bound is None:
            return
        # A successor may have put its own socket there meanwhile, and a read-only directory keeps a stale one.
        with contextlib.suppress(OSError):
            there = self._path.lstat()
            if (there.st_dev, there.st_ino) == self._bound:
                os.unlink(self._path)  # noqa: PTH108  the path that was looked at, and nothing that it points to
        self._bound = None

    # --- accepting ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(ACCEPT_BATCH):
            if self._listener is None:
                return
            try:
                sock = accept(self._listener)
            except OSError:
                # Level-triggered: without a pause the loop would spin on what it cannot take.
                self.loop.remove_reader(self._listener)
                self._retry = self.loop.call_later(ACCEPT_RETRY_S, self._accept_again)
                return
            if sock is None:
                return
            self._serve(sock)

    def _accept_again(self) -> None:
        self._retry = None
        if self._listener is not None:
            self.loop.add_reader(self._listener, self._accept)

    def _serve(self, sock: socket.socket) -> None:
        try:
            peer = peer_of(sock)
        except OSError:
            sock.close()
            return
        if len(self._connections) >= self.limits.connections and not self._evict():
            with contextlib.suppress(OSError):
                sock.send(_FULL)
            sock.close()
            return
        self._connections.add(Connection(self, sock, peer))

    def _evict(self) -> bool:
        """Close one connection that waits for its client, so that a newcomer is served.

        The user with most connections pays, so that nobody is locked out by another; of theirs an idle one goes before
        one with a request under way, and the one that waits longest before the others.
        """
        per_user = Counter(connection.peer.uid for connection in self._connections)
        candidates = [connection for connection in self._connections if connection.evictable]
        if not candidates:
            return False
        victim = max(candidates, key=lambda c: (per_user[c.peer.uid], c.phase is Phase.IDLE, -c.since))
        victim.close()
        return True

    # --- what connections need (connection.Owner) ---------------------------------------------------------------

    def answer(self, request: Request) -> Answer:
        """Route one request."""
        return self._routes.answer(request)

    def events(self, after: int, limit: int) -> list[dict[str, object]]:
        """Read the history, as `Backend.events` does."""
        return self._backend.events(after, limit)

    def admit_stream(self, connection: Connection) -> None:
        """Count one more follower, or raise Problem 503.

        Where all places are taken, the user with most of them gives one up to a user with clearly fewer.
        """
        per_user = Counter(follower.peer.uid for follower in self._streams)
        own = per_user[connection.peer.uid]
        if own >= self.limits.streams_per_user:
            raise _too_many(f"uid {connection.peer.uid} follows events {own} times already")
        if len(self._streams) >= self.limits.streams:
            greediest, count = per_user.most_common(1)[0]
            if count <= own + 1:
                raise _too_many(f"events are followed {len(self._streams)} times already")
            next(follower for follower in self._streams if follower.peer.uid == greediest).finish()
        self._streams[connection] = None
        if self._unsubscribe is None:
            self._unsubscribe = self._backend.subscribe(self._wake)

    def admit_command(self) -> Callable[[], None]:
        """Count one more command that waits, or raise Problem 503; the result counts it off."""
        if self._commands >= self.limits.commands:
            raise _too_many(f"{self._commands} commands wait to be confirmed")
        self._commands += 1
        return self._command_answered

    def closed(self, connection: Connection) -> None:
        """Forget this connection."""
        self._connections.discard(connection)
        self._streams.pop(connection, None)
        if not self._streams and self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _command_answered(self) -> None:
        self._commands -= 1

    def _wake(self) -> None:
        for follower in self._streams:
            follower.wake()


def _too_many(what: str) -> Problem:
    return Problem(503, f"{what}; try again later", headers=(("Retry-After", "1"),))
