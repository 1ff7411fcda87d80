"""The apiserver: HTTP for users, answered from the primary controller. Stateless; every request has its bounds."""

import json
import selectors
import socket
from typing import Any

from node_manager.reference.clock import NS_PER_S, boottime_ns
from node_manager.reference.httpwire import HttpError, Request, RequestParser, problem, render
from node_manager.reference.lines import Connection, Message, listen
from node_manager.reference.link import code_of, is_ok
from node_manager.reference.loop import EXIT_OK, MAX_WAIT_NS, Context, publish_port
from node_manager.reference.settings import Address

MAX_CLIENTS = 64
CLIENT_NS = 5 * NS_PER_S
"""From accepting to having answered, whatever the client does."""
UPSTREAM_NS = 2 * NS_PER_S
"""For all controllers together."""
READ_SIZE = 16 * 1024
STATUS_OF_CODE = {"unknown-host": 404, "bad-request": 400}
SUBMIT_KEYS = ("host", "seconds", "count")


class ApiServer:
    """Component. `GET /healthz`, `GET /v1/hosts`, `GET /v1/jobs`, `POST /v1/jobs`."""

    def __init__(self, context: Context) -> None:
        self.exit_status: int | None = None
        self.context = context
        self._sock = listen(context.settings.http)
        self._exchanges: set[_Exchange] = set()
        address = Address(*self._sock.getsockname()[:2])
        publish_port(context, address.port)
        context.loop.watch(self._sock.fileno(), selectors.EVENT_READ, self._accept)
        context.client.set_ready(True)
        context.client.set_status(f"serving http://{address}")
        context.journal.say(f"serving http://{address}")
        self._served = 0
        self._listening = True

    def tick(self, now_ns: int) -> int:
        """See Component."""
        for exchange in tuple(self._exchanges):
            exchange.tick(now_ns)
        if not self._listening and len(self._exchanges) < MAX_CLIENTS:
            self._listening = True
            self.context.loop.watch(self._sock.fileno(), selectors.EVENT_READ, self._accept)
        self.context.client.set_progress(self._served)
        return min((exchange.next_ns() for exchange in self._exchanges), default=now_ns + MAX_WAIT_NS)

    def terminate(self) -> None:
        """See Component."""
        self.context.client.set_stopping()
        self.exit_status = EXIT_OK

    def close(self) -> None:
        """See Component."""
        self.context.loop.unwatch(self._sock.fileno())
        self._sock.close()
        for exchange in tuple(self._exchanges):
            exchange.close()

    def done(self, exchange: "_Exchange") -> None:
        """An exchange has ended."""
        self._exchanges.discard(exchange)
        self._served += 1

    def _accept(self, _ready: int) -> None:
        try:
            sock, _peer = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptor is free: wait until an exchange has ended
            self._pause()
            return
        sock.setblocking(False)
        self._exchanges.add(_Exchange(self, sock))
        if len(self._exchanges) >= MAX_CLIENTS:
            self._pause()

    def _pause(self) -> None:
        """Others wait in the backlog; every exchange ends within CLIENT_NS."""
        self._listening = False
        self.context.loop.unwatch(self._sock.fileno())


class _Exchange:
    """One client: a request, a question to the controllers, a response."""

    def __init__(self, server: ApiServer, sock: socket.socket) -> None:
        self._server = server
        self._loop = server.context.loop
        self._sock = sock
        self._parser = RequestParser()
        self._output = b""
        self._deadline_ns = boottime_ns() + CLIENT_NS
        self._question: Message = {}
        self._left: list[Address] = []
        self._upstream: Connection | None = None
        self._upstream_ns: int | None = None
        self._last_error = "no controller answers"
        self._loop.watch(sock.fileno(), selectors.EVENT_READ, self._readable)

    def next_ns(self) -> int:
        return min(self._deadline_ns, self._upstream_ns or self._deadline_ns)

    def tick(self, now_ns: int) -> None:
        if now_ns >= self._deadline_ns:
            self.close()
        elif self._upstream_ns is not None and now_ns >= self._upstream_ns:
            self._answer(problem(502, f"cannot ask the controllers: {self._last_error}"))

    def close(self) -> None:
        self._drop_upstream()
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        self._server.done(self)

    def _readable(self, _ready: int) -> None:
        try:
            data = self._sock.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            request = self._parser.feed(data)
            if request is not None:
                self._loop.unwatch(self._sock.fileno())
                self._serve(request)
        except HttpError as error:
            self._answer(problem(error.status, str(error)))

    def _serve(self, request: Request) -> None:
        match request.method, request.path:
            case "GET", "/healthz":
                self._answer(render(200, {"ok": True}))
            case "GET", "/v1/hosts":
                self._ask({"op": "hosts"})
            case "GET", "/v1/jobs":
                self._ask({"op": "jobs"})
            case "POST", "/v1/jobs":
                self._ask(_submission(request.body))
            case _, "/healthz" | "/v1/hosts" | "/v1/jobs":
                raise HttpError(405, f"cannot {request.method[:16]} {request.path}")
            case _:
                raise HttpError(404, "cannot find that: there are /healthz, /v1/hosts and /v1/jobs")

    def _ask(self, question: Message) -> None:
        self._question = question
        self._left = list(self._server.context.settings.controllers)
        self._upstream_ns = boottime_ns() + UPSTREAM_NS
        self._ask_next()

    def _ask_next(self) -> None:
        """Ask the next controller; the primary is the one that answers."""
        while self._left:
            address = self._left.pop(0)
            try:
                self._upstream = Connection.connect(
                    self._loop, address, on_message=self._answered, on_close=self._upstream_closed
                )
            except OSError as error:
                self._last_error = f"{address}: {error}"
                continue
            self._upstream.send(self._question)
            return
        self._answer(problem(503, f"cannot reach the primary controller: {self._last_error}"))

    def _answered(self, connection: Connection, message: Message) -> None:
        if not is_ok(message) and code_of(message) in {"not-primary", "busy", "unavailable"}:
            connection.close(str(message.get("error", ""))[:200])
        elif is_ok(message):
            body: dict[str, Any] = {key: value for key, value in message.items() if key not in {"ok", "reply"}}
            self._answer(render(202 if self._question["op"] == "submit" else 200, body))
        else:
            status = STATUS_OF_CODE.get(code_of(message), 409)
            self._answer(problem(status, str(message.get("error", "refused"))))

    def _upstream_closed(self, connection: Connection, reason: str) -> None:
        if connection is self._upstream:
            self._upstream = None
            self._last_error = reason
            self._ask_next()

    def _drop_upstream(self) -> None:
        upstream, self._upstream = self._upstream, None
        self._upstream_ns = None
        if upstream is not None:
            upstream.close("answered")

    def _answer(self, response: bytes) -> None:
        self._drop_upstream()
        self._output = response
        self._loop.watch(self._sock.fileno(), selectors.EVENT_WRITE, self._writable)

    def _writable(self, _ready: int) -> None:
        try:
            sent = self._sock.send(self._output)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._output)
        self._output = self._output[sent:]
        if not self._output:
            self.close()


def _submission(body: bytes) -> Message:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise HttpError(400, "cannot read the body: it is not JSON") from None
    if not isinstance(value, dict) or not set(value) <= set(SUBMIT_KEYS):
        raise HttpError(400, f"cannot take the body: give an object with {', '.join(SUBMIT_KEYS)}")
    return {"op": "submit", **value}
