"""One tcp or http probe: sockets that never block, callbacks of the loop, no task."""

import asyncio
import errno
import socket
from collections.abc import Callable

import h11

from node_manager.core.events import Outcome
from node_manager.core.spec import HttpCheck, TcpCheck
from node_manager.runtime import kernel
from node_manager.runtime.resolver import Resolver, literal_addresses
from node_manager.runtime.timekeeper import STALL_NS

MAX_HEADER_BYTES = 16 * 1024
"""All that comes before the status is known, `100 Continue` and the like included, and the headers with it."""
MAX_BODY_BYTES = 64 * 1024
BODY_S = 0.2
"""What is read of a body, and for how long: a small one in full, so that the server does not see its answer cut off.
The status stands by then, whatever the body does."""
LATE_S = STALL_NS / 1_000_000_000
"""A time-out that comes later than this after its time was kept up by the agent, which could not listen meanwhile."""
_READ_BYTES = 4 * 1024
_OK_FROM, _OK_BELOW = 200, 400
"""Statuses that count as healthy: those of the kubelet's httpGet."""
_OUR_TROUBLE = {
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.EADDRNOTAVAIL,
    errno.EACCES,
    errno.EPERM,
    errno.EAFNOSUPPORT,
    errno.ENAMETOOLONG,
}
"""The probe could not be carried out; says nothing about the component."""
_FULL_RETRY_S = 0.05
"""A Unix socket whose backlog is full answers EAGAIN instead of waiting (connect(2)); asked again until time-out."""

Done = Callable[[Outcome, str], None]
Target = tuple[socket.AddressFamily, str | tuple[str, int]]


class NetProbe:
    """Carries out one check. `done` is called once, from the loop, within `timeout_s`, unless it is cancelled."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        resolver: Resolver,
        check: TcpCheck | HttpCheck,
        timeout_s: float,
        done: Done,
    ) -> None:
        self._loop = loop
        self._resolver = resolver
        self._check = check
        self._done: Done | None = done
        self._timeout_s = timeout_s
        self._targets: list[Target] = []
        self._doing = f"the lookup of {check.host}"
        self._socket: socket.socket | None = None
        self._http: h11.Connection | None = None
        self._received = 0
        self._result: tuple[Outcome, str] | None = None
        """Known from the status; the body is still being read."""
        self._to_send = b""
        self._retry: asyncio.TimerHandle | None = None
        self._until_s = loop.time() + timeout_s
        self._timer = loop.call_at(self._until_s, self._timed_out)
        addresses = literal_addresses(check.host)
        if isinstance(check, HttpCheck) and check.socket is not None:
            self._targets = [(socket.AF_UNIX, check.socket)]
            loop.call_soon(self._connect)
        elif addresses:
            loop.call_soon(self._resolved, addresses, "")
        else:
            resolver.resolve(check.host, self._resolved)

    def cancel(self) -> None:
        """End it; `done` is not called."""
        self._done = None
        self._timer.cancel()
        self._resolver.forget(self._check.host, self._resolved)
        self._drop_socket()

    def _resolved(self, addresses: tuple[str, ...], trouble: str) -> None:
        if not addresses:
            self._finish(Outcome.UNKNOWN, trouble)
            return
        port = self._check.port or 0
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._targets.append((family, (address, port)))
        self._connect()

    def _connect(self) -> None:
        """Try the first address that is left."""
        if self._done is None:
            return
        self._drop_socket()
        family, address = self._targets[0]
        where = address if isinstance(address, str) else f"{address[0]} port {address[1]}"
        self._doing = f"a connection to {where}"
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            number = self._socket.connect_ex(address)
        except OSError as error:  # without a number: a path too long for a socket
            number = error.errno or errno.ENAMETOOLONG
        if number == errno.EAGAIN:
            self._retry = self._loop.call_later(_FULL_RETRY_S, self._connect)
        elif number == errno.EINPROGRESS and self._socket is not None:
            self._loop.add_writer(self._socket, self._connecting_ended, self._socket)
        else:
            self._connection(number)

    def _connecting_ended(self, connection: socket.socket) -> None:
        number = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number == 0 and not _is_connected(connection):
            return  # woken for nothing: the absence of an error is no connection
        self._loop.remove_writer(connection)
        self._connection(number)

    def _connection(self, number: int) -> None:
        """Connected, or not: try the next address, say so, or go on to the request."""
        connection = self._socket
        if number == 0 and connection is not None and _to_itself(connection):
            number = errno.ECONNREFUSED
        if number != 0 or connection is None:
            if len(self._targets) > 1:
                del self._targets[0]
                self._connect()
                return
            outcome = Outcome.UNKNOWN if number in _OUR_TROUBLE else Outcome.FAILED
            self._finish(outcome, f"{self._doing} failed: {kernel.describe(number)}")
        elif isinstance(self._check, TcpCheck):
            self._finish(Outcome.OK, "")
        else:
            self._ask(connection, self._check)

    def _ask(self, connection: socket.socket, check: HttpCheck) -> None:
        host = check.host if check.socket is None else "localhost"
        if ":" in host:
            host = f"[{host}]"
        if check.port is not None:
            host = f"{host}:{check.port}"
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER_BYTES)
        headers = [("Host", host), ("User-Agent", "xce-node-manager"), ("Accept", "*/*"), ("Connection", "close")]
        try:
            request = h11.Request(method="GET", target=check.path, headers=headers)
            self._to_send = self._http.send(request) or b""
            self._http.send(h11.EndOfMessage())
        except h11.LocalProtocolError as error:
            self._finish(Outcome.UNKNOWN, f"cannot ask for {check.path!r}: {error}")
            return
        self._doing = f"the answer to GET {check.path}"
        self._loop.add_reader(connection, self._readable, connection)
        self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        try:
            self._to_send = self._to_send[connection.send(self._to_send) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._to_send = b""  # the other side closed; what it said before can still be read
        if self._to_send:
            self._loop.add_writer(connection, self._send, connection)
        else:
            self._loop.remove_writer(connection)

    def _readable(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(Outcome.FAILED, f"{self._doing} failed: {kernel.explain(error)}")
            return
        if not data and self._result is None:
            self._finish(Outcome.FAILED, f"{self._doing} did not come: the connection was closed")
            return
        self._received += len(data)
        assert self._http is not None, "whoever reads has asked"
        try:
            self._take(self._http, data)
        except h11.RemoteProtocolError as error:
            self._end(Outcome.FAILED, f"{self._doing} is not HTTP: {error}")

    def _take(self, http: h11.Connection, data: bytes) -> None:
        """Look for the status, then for the end of the body. Raises RemoteProtocolError."""
        http.receive_data(data)
        event = http.next_event()
        while isinstance(event, h11.InformationalResponse | h11.Response | h11.Data):
            if isinstance(event, h11.Response):
                self._status_known(event.status_code)
            event = http.next_event()
        enough = MAX_HEADER_BYTES if self._result is None else MAX_BODY_BYTES
        if event is not h11.NEED_DATA or self._received > enough:
            self._end(Outcome.FAILED, f"{self._doing} has no status within {MAX_HEADER_BYTES} bytes")

    def _status_known(self, status: int) -> None:
        healthy = _OK_FROM <= status < _OK_BELOW
        self._result = (Outcome.OK if healthy else Outcome.FAILED, f"{self._doing} has status {status}")
        self._timer.cancel()
        self._timer = self._loop.call_at(min(self._until_s, self._loop.time() + BODY_S), self._timed_out)

    def _timed_out(self) -> None:
        detail = f"{self._doing} did not come within {self._timeout_s:g} s"
        if self._loop.time() > self._until_s + LATE_S:
            self._end(Outcome.UNKNOWN, f"{detail}, in which the agent itself stood still")
        else:
            # A name that is not resolved in time is the resolver's fault, not the component's.
            self._end(Outcome.FAILED if self._targets else Outcome.UNKNOWN, detail)

    def _end(self, outcome: Outcome, detail: str) -> None:
        """Finish with what the status said where one came, and with this otherwise."""
        self._finish(*(self._result or (outcome, detail)))

    def _finish(self, outcome: Outcome, detail: str) -> None:
        done = self._done
        self.cancel()
        if done is not None:
            done(outcome, detail)

    def _drop_socket(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None


def _is_connected(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError as error:
        return error.errno != errno.ENOTCONN
    return True


def _to_itself(connection: socket.socket) -> bool:
    """TCP connects a socket to itself when the port is its own by chance: nobody listens there."""
    if connection.family == socket.AF_UNIX:
        return False
    try:
        return bool(connection.getsockname() == connection.getpeername())
    except OSError:
        return False
