"""One client of the status socket: bytes in, HTTP by h11, bytes out, a bound on each wait.

    idle ──first byte──> reading ──complete──> answering ──┬─response──> writing ──sent──> idle
                            │                              └─follow────> streaming ──end──> closed
                            └──not understood──> writing ──sent──> lingering ──> closed

Reading pauses from the end of a request until its response was handed to the kernel, so a client that pipelines or
does not read holds at most one request and one response. The next pipelined request waits for the loop's next turn.
"""

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable
from enum import Enum
from http import HTTPStatus
from typing import Protocol, assert_never

import h11

from node_manager.api.fields import field, head_bytes, http_date
from node_manager.api.limits import EVENTS_BATCH, RECEIVE_BYTES, Limits
from node_manager.api.messages import NDJSON, Answer, Deferred, Follow, Problem, Request, Response
from node_manager.api.peer import Peer
from node_manager.api.routes import events_chunk

_VERSIONS = (b"1.0", b"1.1")


class Phase(Enum):
    """What a connection waits for."""

    IDLE = "idle"
    READING = "reading"
    ANSWERING = "answering"
    WRITING = "writing"
    STREAMING = "streaming"
    LINGERING = "lingering"
    CLOSED = "closed"


class Owner(Protocol):
    """What a connection needs of the server."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    software: str
    """Value of the Server header field."""

    def answer(self, request: Request) -> Answer:
        """Route one request."""
        ...

    def events(self, after: int, limit: int) -> list[dict[str, object]]:
        """Read the history, as `Backend.events` does."""
        ...

    def admit_stream(self, connection: "Connection") -> None:
        """Count one more follower, or raise Problem 503."""
        ...

    def admit_command(self) -> Callable[[], None]:
        """Count one more command that waits, or raise Problem 503; the result counts it off."""
        ...

    def closed(self, connection: "Connection") -> None:
        """Forget this connection."""
        ...


class Connection:
    """Serves `sock`, which is connected and non-blocking, until either side ends it. Owns it from the start."""

    def __init__(self, owner: Owner, sock: socket.socket, peer: Peer) -> None:
        self.peer = peer
        self.phase = Phase.IDLE
        self.since = owner.loop.time()
        """When the phase began, on the loop's clock."""
        self._owner = owner
        self._loop = owner.loop
        self._limits = owner.limits
        self._sock = sock
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=owner.limits.header_bytes)
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._out = bytearray()
        self._writing = False
        self._reading = False
        self._eof = False
        self._turn = 0
        """Counts requests, so that a late answer to one is not taken for the answer to the next."""
        self._after = 0
        self._left: int | None = None
        self._pumping = False
        self._drained = 0
        self._timer = self._loop.call_later(owner.limits.idle_s, self._expired)
        self._listen()

    @property
    def evictable(self) -> bool:
        """It waits for its client, so nothing that anybody asked for is lost when it is closed."""
        return self.phase in {Phase.IDLE, Phase.READING, Phase.WRITING, Phase.LINGERING}

    def close(self) -> None:
        """End at once. What is in the kernel's buffer still reaches the client."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        self._timer.cancel()
        self._deafen()
        if self._writing:
            self._loop.remove_writer(self._sock)
        self._sock.close()
        self._owner.closed(self)

    def finish(self) -> None:
        """End because the agent goes: a stream is ended as HTTP wants it, as far as the client has read."""
        if self.phase is Phase.STREAMING and not self._out:
            self._end_stream()
        self.close()

    def wake(self) -> None:
        """There are new events: render them for a follower in the loop's next turn."""
        if self.phase is Phase.STREAMING and not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    # --- phases and their bounds --------------------------------------------------------------------------------

    def _enter(self, phase: Phase) -> None:
        if self.phase is not Phase.CLOSED:
            self.phase = phase
            self.since = self._loop.time()
            self._rearm()

    def _rearm(self) -> None:
        limits = self._limits
        match self.phase:
            case Phase.IDLE:
                bound_s = limits.idle_s
            case Phase.READING:
                bound_s = limits.request_s
            case Phase.ANSWERING:
                bound_s = limits.command_s
            case Phase.WRITING:
                bound_s = limits.write_stall_s
            case Phase.STREAMING:
                bound_s = limits.stream_stall_s if self._out else limits.stream_check_s
            case Phase.LINGERING:
                bound_s = limits.linger_s
            case Phase.CLOSED:
                return
            case _:
                assert_never(self.phase)
        self._timer.cancel()
        self._timer = self._loop.call_later(bound_s, self._expired)

    def _expired(self) -> None:
        match self.phase:
            case Phase.READING:
                self._refuse(Problem(408, f"the request was not complete within {self._limits.request_s:g} s"))
            case Phase.STREAMING if not self._out and not self._gone():
                self._rearm()
            case _:
                self.close()

    def _gone(self) -> bool:
        """Tell a peer that has closed its socket from one that has only ended its sending half."""
        poll = select.poll()
        poll.register(self._sock, 0)
        return any(flags & (select.POLLHUP | select.POLLERR) for _, flags in poll.poll(0))

    def _listen(self) -> None:
        if not self._reading and not self._eof and self.phase is not Phase.CLOSED:
            self._reading = True
            self._loop.add_reader(self._sock, self._readable)

    def _deafen(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)

    # --- bytes in -----------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not data:
            self._eof = True
            self._deafen()
        match self.phase:
            case Phase.STREAMING:
                # Nothing that comes after the request is ever answered; it is read to notice the end.
                if self._eof and self._gone():
                    self.close()
            case Phase.LINGERING:
                self._drained += len(data)
                if self._eof or self._drained > self._limits.linger_bytes:
                    self.close()
            case _:
                self._http.receive_data(data)
                if self.phase is Phase.IDLE:
                    if self._eof:
                        self.close()
                        return
                    self._enter(Phase.READING)
                self._advance()

    def _advance(self) -> None:
        """Take what is complete out of the input, up to the end of one request."""
        try:
            while self.phase is Phase.READING:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._listen()
                    return
                if isinstance(event, h11.Request):
                    self._begin(event)
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    self._check_body(len(self._body))
                elif isinstance(event, h11.EndOfMessage):
                    self._complete()
                else:
                    self.close()
        except h11.RemoteProtocolError as error:
            self._refuse(Problem(error.error_status_hint, f"cannot understand the request: {error}"))
        except Problem as problem:
            self._refuse(problem)

    def _begin(self, head: h11.Request) -> None:
        if head_bytes(head) > self._limits.header_bytes:
            raise Problem(431, f"request line and header fields exceed {self._limits.header_bytes} bytes")
        if head.http_version not in _VERSIONS:
            raise Problem(505, f"HTTP/{head.http_version.decode('ascii')} is not spoken here, HTTP/1.1 is")
        self._head = head
        self._check_body(int(field(head, b"content-length") or 0))
        if self._http.they_are_waiting_for_100_continue:
            self._send(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))

    def _check_body(self, size: int) -> None:
        if size > self._limits.body_bytes:
            raise Problem(413, f"the body exceeds {self._limits.body_bytes} bytes")

    def _complete(self) -> None:
        """Hand a complete request over and carry out what it leads to."""
        head = self._head
        assert head is not None, "h11 ends no message that it has not begun"
        path, _, query = head.target.decode("ascii").partition("?")
        request = Request(
            method=head.method.decode("ascii"),
            path=path,
            query=query,
            content_type=field(head, b"content-type").decode("latin-1"),
            body=bytes(self._body),
            peer=self.peer,
        )
        self._body.clear()
        self._deafen()
        self._turn += 1
        self._enter(Phase.ANSWERING)
        try:
            answer = self._owner.answer(request)
            match answer:
                case Response():
                    self._respond(answer)
                case Deferred():
                    self._await(answer)
                case Follow():
                    self._follow(answer)
                case _:
                    assert_never(answer)
        except Problem as problem:
            self._respond(problem.response())
        except BaseException:
            # A bug of ours: this client is let go, what becomes of the agent is decided at the top.
            self.close()
            raise

    # --- answers ------------------------------------------------------------------------------------------------

    def _await(self, answer: Deferred) -> None:
        turn = self._turn
        count_off = self._owner.admit_command()

        self._timer.cancel()
        self._timer = self._loop.call_later(self._limits.command_s, self._respond, answer.late)

        def done(response: Response) -> None:
            count_off()
            if self._turn == turn and self.phase is Phase.ANSWERING:
                self._respond(response)

        answer.start(done)

    def _refuse(self, problem: Problem) -> None:
        """Answer a request that was not read to its end; the connection cannot be used again."""
        self._deafen()
        if self._http.our_state is h11.IDLE or self._http.our_state is h11.SEND_RESPONSE:
            self._respond(problem.response(), last=True)
        else:
            self.close()

    def _respond(self, response: Response, *, last: bool = False) -> None:
        self._enter(Phase.WRITING)
        headers = [
            *self._headers(response.content_type),
            *response.headers,
            ("Content-Length", str(len(response.body))),
        ]
        if last:
            headers.append(("Connection", "close"))
        data = self._http.send(
            h11.Response(status_code=response.status, reason=HTTPStatus(response.status).phrase, headers=headers)
        )
        if self._head is None or self._head.method != b"HEAD":
            data += self._http.send(h11.Data(data=response.body))
        data += self._http.send(h11.EndOfMessage())
        self._send(data)

    def _headers(self, content_type: str) -> list[tuple[str, str]]:
        return [
            ("Date", http_date()),
            ("Server", self._owner.software),
            ("Content-Type", content_type),
            ("Cache-Control", "no-store"),
        ]

    def _follow(self, answer: Follow) -> None:
        headers = [*self._headers(NDJSON), ("Connection", "close")]
        if self._head is not None and self._head.method == b"HEAD":
            self._respond(Response(status=200, content_type=NDJSON, body=b""), last=True)
            return
        self._owner.admit_stream(self)
        self._after, self._left = answer.after, answer.limit
        self._enter(Phase.STREAMING)
        self._listen()
        self._send(self._http.send(h11.Response(status_code=200, reason=HTTPStatus.OK.phrase, headers=headers)))
        self.wake()

    def _pump(self) -> None:
        """Render one batch for a follower, unless it has not read the last ones."""
        self._pumping = False
        if self.phase is not Phase.STREAMING or len(self._out) >= self._limits.stream_buffer_bytes:
            return
        limit = EVENTS_BATCH if self._left is None else min(EVENTS_BATCH, self._left)
        events = self._owner.events(self._after, limit)
        if not events:
            return
        seq = events[-1]["seq"]
        assert isinstance(seq, int)
        self._after = seq
        self._send(self._http.send(h11.Data(data=events_chunk(events))))
        if self._left is not None:
            self._left -= len(events)
            if self._left <= 0:
                self._end_stream()
                return
        self.wake()

    def _end_stream(self) -> None:
        self._enter(Phase.WRITING)
        self._send(self._http.send(h11.EndOfMessage()))

    # --- bytes out ----------------------------------------------------------------------------------------------

    def _send(self, data: bytes | None) -> None:
        if self.phase is not Phase.CLOSED:
            self._out += data or b""
            if not self._writing:
                self._flush()

    def _flush(self) -> None:
        """Give the kernel what it takes. Progress restarts the bound on standing still."""
        while self._out:
            try:
                sent = self._sock.send(self._out)
            except (BlockingIOError, InterruptedError):
                if not self._writing:
                    self._writing = True
                    self._loop.add_writer(self._sock, self._flush)
                    self._rearm()
                return
            except OSError:
                self.close()
                return
            del self._out[:sent]
            if self._writing:
                self._rearm()
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock)
            self._rearm()
        if self.phase is Phase.STREAMING:
            self.wake()
        elif self.phase is Phase.WRITING:
            self._sent()

    def _sent(self) -> None:
        """The response is on its way: wait for the next request, or end."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._head = None
            if self._http.trailing_data[0]:
                self._enter(Phase.READING)
                self._loop.call_soon(self._advance)
            elif self._eof:
                self.close()
            else:
                self._enter(Phase.IDLE)
                self._listen()
            return
        if self._eof:
            self.close()
            return
        # Closing with unread input would make the kernel reset the connection over the response.
        self._enter(Phase.LINGERING)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        self._listen()
