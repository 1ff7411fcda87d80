import json
import os
import socket
from contextlib import ExitStack
from http.client import HTTPResponse

import pytest

from node_manager.api.backend import CommandResult
from node_manager.api.limits import RECEIVE_BYTES, Limits
from tests.unit.api.conftest import Serve
from tests.unit.api.fake import Service, event
from tests.unit.api.http import Reply, get, post, raw, request_bytes

LIVE = request_bytes("GET", "/v1/live")


def ended(sock: socket.socket) -> bool:
    """Read to the end of the connection; a reset is an end too."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def test_connection_is_kept_for_the_next_request(service: Service) -> None:
    """A client may ask again on the same connection."""
    with service.connect() as sock:
        for _ in range(3):
            sock.sendall(LIVE)
            assert Reply(sock).status == 200


def test_pipelined_requests_are_answered_in_order(service: Service) -> None:
    """Requests sent ahead are answered one after the other, also where they come in odd pieces."""
    data = b"".join(request_bytes("GET", target) for target in ("/v1/live", "/v1/ready", "/nowhere", "/metrics"))
    with service.connect() as sock:
        for start in range(0, len(data), 7):
            sock.sendall(data[start : start + 7])
        stream = sock.makefile("rb")
        statuses = []
        for _ in range(4):
            statuses.append(int(stream.readline().split()[1]))
            length = 0
            while (line := stream.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            stream.read(length)
        stream.close()
        assert statuses == [200, 200, 404, 200]


def test_many_pipelined_requests_do_not_lock_others_out(service: Service) -> None:
    """A client that sends thousands of requests and reads none is served no further than its socket takes."""
    with service.connect() as greedy:
        greedy.setblocking(False)
        sent = 0
        try:
            while sent < 50_000_000:
                sent += greedy.send(request_bytes("GET", "/v1/status") * 50)
        except BlockingIOError:
            pass
        assert get(service, "/v1/live").status == 200
        assert sent < 50_000_000


def test_half_closed_client_gets_its_answer(service: Service) -> None:
    """A client that ends its sending half, as `nc -N` does, is answered and then let go."""
    with service.connect() as sock:
        sock.sendall(LIVE)
        sock.shutdown(socket.SHUT_WR)
        assert Reply(sock).status == 200
        assert ended(sock)
    service.until(lambda: service.server.connections == 0)


def test_half_closed_client_gets_a_late_answer(service: Service) -> None:
    """The same holds for a command that is answered later."""
    service.backend.hold_answers = True
    with service.connect() as sock:
        sock.sendall(request_bytes("POST", "/v1/host/undrain"))
        sock.shutdown(socket.SHUT_WR)
        service.until(lambda: len(service.backend.held) == 1)
        service.on_loop(lambda: service.backend.held[0](CommandResult(ok=True, detail="done")))
        assert Reply(sock).json == {"ok": True, "detail": "done"}


def test_http_1_0(service: Service) -> None:
    """An HTTP/1.0 client is answered and the connection ends."""
    with service.connect() as sock:
        sock.sendall(b"GET /v1/live HTTP/1.0\r\n\r\n")
        assert Reply(sock).json == {"live": True}
        assert ended(sock)


def test_another_http_is_not_spoken(service: Service) -> None:
    """505 for a version that is none of HTTP/1."""
    reply = raw(service, b"GET /v1/live HTTP/2.0\r\nHost: x\r\n\r\n")
    assert reply.status == 505
    assert reply.headers["Connection"] == "close"
    assert "HTTP/1.1" in reply.detail


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"\x00\x01\x02\x03\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET  /v1/live HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/live\r\n\r\n",
        b"GET /v1/live HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /v1/live HTTP/1.1\r\n\r\n",
        b"GET /v1/live HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /v1/\xc3\xa4 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 4000 + b"\r\n\r\n",
        b"POST /v1/reload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /v1/reload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/reload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabXX",
    ],
)
def test_garbage_is_refused_and_only_that_connection_suffers(service: Service, data: bytes) -> None:
    """What is not HTTP gets a problem and the end; another connection does not notice."""
    with service.connect() as sock, service.connect() as neighbour:
        sock.sendall(data)
        reply = Reply(sock)
        assert reply.status in {400, 501, 505}
        assert reply.headers["Connection"] == "close"
        assert reply.detail
        assert ended(sock)
        neighbour.sendall(LIVE)
        assert Reply(neighbour).status == 200
    assert service.backend.reloads == []


@pytest.mark.parametrize("pieces", [1, 400])
def test_header_is_bounded(service: Service, pieces: int) -> None:
    """431 for a header above 16 KiB, whether it comes at once and complete or in pieces and without end."""
    filler = b"X-Filler: " + b"x" * 100 + b"\r\n"
    with service.connect() as sock:
        sock.sendall(b"GET /v1/live HTTP/1.1\r\nHost: x\r\n")
        if pieces == 1:
            sock.sendall(filler * 160 + b"\r\n")
        else:
            for _ in range(pieces):
                sock.sendall(filler)
        reply = Reply(sock)
        assert reply.status == 431
        assert reply.detail


def test_header_that_is_complete_in_one_read_is_bounded_too(serve: Serve) -> None:
    """431 does not depend on how the bytes were cut."""
    service = serve(Limits(header_bytes=1000))
    data = b"GET /v1/live HTTP/1.1\r\nHost: x\r\nX-Filler: " + b"x" * 1000 + b"\r\n\r\n"
    assert len(data) < RECEIVE_BYTES
    assert raw(service, data).status == 431


def test_declared_body_is_bounded_before_it_is_read(service: Service) -> None:
    """413 comes at the header, while the client still sends, and the client can read it."""
    with service.connect() as sock:
        sock.sendall(request_bytes("POST", "/v1/host/drain", b"{", Content_Length=str(64 * 1024 + 1)))
        reply = Reply(sock)
    assert reply.status == 413
    assert "65536" in reply.detail


def test_client_that_sends_on_can_still_read_the_refusal(service: Service) -> None:
    """The refusal is not lost to a connection reset while the client is busy sending the rest."""
    with service.connect() as sock:
        sock.sendall(request_bytes("POST", "/v1/host/drain", b"", Content_Length="500000"))
        sock.sendall(b"x" * 500_000)
        sock.shutdown(socket.SHUT_WR)
        assert Reply(sock).status == 413
        assert ended(sock)


def test_client_that_sends_without_end_is_cut_off(serve: Serve) -> None:
    """Reading a refused request's rest is bounded too."""
    service = serve(Limits(linger_bytes=100_000))
    with service.connect() as sock:
        sock.sendall(request_bytes("POST", "/v1/host/drain", b"", Content_Length="500000"))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            sock.sendall(b"x" * 5_000_000)


def test_chunked_body_is_taken_and_bounded(service: Service) -> None:
    """A body of undeclared length works, and 413 comes when it has grown too large."""
    head = b"POST /v1/host/drain HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    assert raw(service, head + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n").status == 200
    with service.connect() as sock:
        sock.sendall(head)
        for _ in range(65):
            sock.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")
        assert Reply(sock).status == 413
    assert len(service.backend.requests) == 1


def test_expect_100_continue(service: Service) -> None:
    """A client that asks first is told to go on, or is refused before it sends."""
    with service.connect() as sock:
        sock.sendall(request_bytes("POST", "/v1/reload", b"", Content_Length="2", Expect="100-continue"))
        assert sock.recv(4096).startswith(b"HTTP/1.1 100")
        sock.sendall(b"{}")
        assert Reply(sock).status == 200
    with service.connect() as sock:
        sock.sendall(request_bytes("POST", "/v1/reload", b"", Content_Length="70000", Expect="100-continue"))
        assert Reply(sock).status == 413


@pytest.mark.parametrize("data", [b"G", LIVE[:-2], request_bytes("POST", "/v1/reload", b"", Content_Length="9") + b"{"])
def test_slow_request_is_refused(serve: Serve, data: bytes) -> None:
    """408 when a request is not complete in time, counted from its first byte."""
    service = serve(Limits(request_s=0.1))
    with service.connect() as sock:
        sock.sendall(data)
        reply = Reply(sock)
        assert reply.status == 408
        assert "0.1 s" in reply.detail
        assert ended(sock)


def test_trickling_does_not_buy_time(serve: Serve) -> None:
    """A byte now and then does not extend the time for a request."""
    service = serve(Limits(request_s=0.3))
    with service.connect() as sock:
        sock.settimeout(0.02)
        received = b""
        for byte in LIVE[:-1] * 1000:
            try:
                sock.send(bytes([byte]))
                received = sock.recv(4096)
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                break
            if received:
                break
        assert received.startswith(b"HTTP/1.1 408")


def test_idle_connection_is_closed(serve: Serve) -> None:
    """A connection that asks for nothing does not stay for ever, before and between requests."""
    service = serve(Limits(idle_s=0.1))
    with service.connect() as sock:
        assert ended(sock)
    with service.connect() as sock:
        sock.sendall(LIVE)
        assert Reply(sock).status == 200
        assert ended(sock)
    service.until(lambda: service.server.connections == 0)


def test_hundred_idle_connections_lock_nobody_out(service: Service) -> None:
    """The oldest idle connections give way; a newcomer is served and the bound holds."""
    socks = [service.connect() for _ in range(100)]
    try:
        assert get(service, "/v1/status").status == 200
        assert service.server.connections <= Limits().connections
        for sock in socks[:30]:
            assert ended(sock)
        socks[-1].sendall(LIVE)
        assert Reply(socks[-1]).status == 200
    finally:
        for sock in socks:
            sock.close()


def test_half_sent_requests_lock_nobody_out(service: Service) -> None:
    """Neither do connections that began a request and do not end it."""
    socks = [service.connect() for _ in range(100)]
    try:
        for sock in socks:
            try:
                sock.sendall(b"GET /v1/")
            except BrokenPipeError:
                continue
        assert get(service, "/v1/status").status == 200
    finally:
        for sock in socks:
            sock.close()


def test_connection_that_waits_for_an_answer_does_not_give_way(serve: Serve) -> None:
    """What was asked for is answered; where everything waits for answers a newcomer is told so."""
    service = serve(Limits(connections=2))
    service.backend.hold_answers = True
    with service.connect() as first, service.connect() as second:
        for number, sock in enumerate((first, second)):
            sock.sendall(request_bytes("POST", "/v1/host/undrain"))
            service.until(lambda number=number: len(service.backend.held) == number + 1)  # type: ignore[misc]
        with service.connect() as third:
            reply = Reply(third)
        assert reply.status == 503
        assert "try again" in reply.detail
        service.on_loop(lambda: [done(CommandResult(ok=True, detail="done")) for done in service.backend.held])
        assert Reply(first).status == 200
        assert Reply(second).status == 200


def test_command_that_is_not_confirmed_in_time(serve: Serve) -> None:
    """504 says that it takes effect all the same; its late answer disturbs nobody."""
    service = serve(Limits(command_s=0.05))
    service.backend.hold_answers = True
    with service.connect() as sock:
        sock.sendall(request_bytes("POST", "/v1/host/decommission"))
        reply = Reply(sock)
        assert reply.status == 504
        assert reply.json["accepted"] is True
        assert "waits to be durable" in reply.detail
        service.on_loop(lambda: service.backend.held[0](CommandResult(ok=True, detail="late")))
        sock.sendall(LIVE)
        assert Reply(sock).json == {"live": True}


def test_unanswered_commands_are_bounded(serve: Serve) -> None:
    """Callers that do not wait cannot pile up commands without end; answered ones make room."""
    service = serve(Limits(commands=2, command_s=0.01))
    service.backend.hold_answers = True
    statuses = [post(service, "/v1/host/undrain").status for _ in range(3)]
    assert statuses == [504, 504, 503]
    service.on_loop(lambda: service.backend.held[0](CommandResult(ok=True, detail="done")))
    assert post(service, "/v1/host/undrain").status == 504


def test_client_that_goes_during_a_command(service: Service) -> None:
    """An answer for somebody who has gone is thrown away."""
    service.backend.hold_answers = True
    with service.connect() as sock:
        sock.sendall(request_bytes("POST", "/v1/host/undrain"))
        service.until(lambda: len(service.backend.held) == 1)
    service.on_loop(lambda: service.backend.held[0](CommandResult(ok=True, detail="done")))
    service.until(lambda: service.server.connections == 0)


def test_client_that_does_not_read_is_cut_off(serve: Serve) -> None:
    """A response that nobody takes does not stay in memory."""
    service = serve(Limits(write_stall_s=0.1))
    service.backend.body["warnings"] = ["x" * 5_000_000]
    with service.connect() as sock:
        sock.sendall(request_bytes("GET", "/v1/status"))
        service.until(lambda: service.backend.status_calls > 0 and service.server.connections == 0)
        assert ended(sock)


def test_large_response_to_a_slow_but_steady_reader(service: Service) -> None:
    """A response larger than the socket's buffer arrives whole."""
    service.backend.body["warnings"] = ["x" * 3_000_000]
    assert get(service, "/v1/status").json["warnings"] == ["x" * 3_000_000]


def test_garbage_after_a_request_does_not_spoil_its_answer(service: Service) -> None:
    """Each request is answered for itself; what follows it is refused for itself."""
    with service.connect() as sock:
        sock.sendall(LIVE + b"\x00garbage\r\n\r\n")
        response = HTTPResponse(sock)
        response.begin()
        assert response.status == 200
        assert json.loads(response.read()) == {"live": True}
        response.close()
        assert ended(sock)


def test_peer_credentials_are_the_kernels(service: Service) -> None:
    """A forged header changes nothing about who is asked for permission."""
    post(service, "/v1/reload", {}, X_Remote_User="root", Authorization="Basic cm9vdDo=")
    assert service.backend.asked[0][0] == os.getuid()


def test_no_connection_is_left_behind(service: Service) -> None:
    """Connections that are closed at any point are forgotten."""
    service.happen(event(1))
    for cut in range(0, len(LIVE), 5):
        with service.connect() as sock:
            sock.sendall(LIVE[:cut])
    with service.connect() as sock:
        sock.sendall(request_bytes("GET", "/v1/events?follow=1"))
    service.until(lambda: service.server.connections == 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_one_user_cannot_lock_out_another(serve: Serve) -> None:
    """Where connections or streams run out, the user with most of them gives way."""
    service = serve(Limits(connections=20, streams=4, streams_per_user=4))
    service.path.parent.chmod(0o755)
    follow = request_bytes("GET", "/v1/events?follow=1")
    with ExitStack() as stack:
        operator = stack.enter_context(service.connect())
        operator.sendall(LIVE)
        assert Reply(operator).status == 200
        greedy = [stack.enter_context(connect_as(service, 65534)) for _ in range(4)]
        for sock in greedy:
            sock.sendall(follow)
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        for _ in range(40):
            stack.enter_context(connect_as(service, 65534))
        # The operator's connection is the oldest idle one, and yet it is not the one that goes.
        operator.sendall(follow)
        assert operator.recv(4096).startswith(b"HTTP/1.1 200")
        assert ended(greedy[0])
        assert service.server.streams == 4
        greedy.append(stack.enter_context(connect_as(service, 65534)))
        greedy[-1].sendall(follow)
        assert Reply(greedy[-1]).status == 503


def connect_as(service: Service, uid: int) -> socket.socket:
    """Connect with the credentials of another user."""
    os.seteuid(uid)
    try:
        return service.connect()
    finally:
        os.seteuid(0)


def test_bug_of_ours_ends_one_connection_and_is_reported(service: Service) -> None:
    """An answer that cannot be made lets its client go and reaches the loop's exception handler; the rest goes on."""
    service.backend.body = {"schema": {1, 2}}
    with service.connect() as sock:
        sock.sendall(request_bytes("GET", "/v1/status"))
        assert ended(sock)
    service.until(lambda: len(service.errors) == 1)
    assert type(service.errors[0]["exception"]) is TypeError
    service.errors.clear()
    assert get(service, "/v1/live").status == 200
