import json
import socket
from collections.abc import Iterator

import pytest

from node_manager.api.limits import Limits
from tests.unit.api.conftest import Serve
from tests.unit.api.fake import Service, event
from tests.unit.api.http import Reply, get, request_bytes


class Follower:
    """Reads an event stream line by line, with the standard library's chunk decoder."""

    def __init__(self, service: Service, query: str = "follow=1") -> None:
        from http.client import HTTPResponse

        self.sock = service.connect()
        self.sock.sendall(request_bytes("GET", f"/v1/events?{query}"))
        self.response = HTTPResponse(self.sock)
        self.response.begin()
        self.status = self.response.status

    def next_seq(self) -> int:
        return int(json.loads(self.response.readline())["seq"])

    def at_end(self) -> bool:
        return self.response.readline() == b""

    def close(self) -> None:
        self.response.close()
        self.sock.close()


@pytest.fixture
def followers() -> Iterator[list[Follower]]:
    """Collects followers and closes them."""
    opened: list[Follower] = []
    yield opened
    for follower in opened:
        follower.close()


def test_follow_sends_history_and_then_each_event(service: Service, followers: list[Follower]) -> None:
    """A follower sees what it missed, then what happens, in order and once."""
    service.happen(event(1), event(2), event(3))
    followers.append(Follower(service, "after=1&follow=1"))
    assert [followers[0].next_seq() for _ in range(2)] == [2, 3]
    service.happen(event(4))
    assert followers[0].next_seq() == 4
    service.happen(event(5, count=2), event(6))
    assert [followers[0].next_seq() for _ in range(2)] == [5, 6]


def test_long_history_arrives_whole(service: Service, followers: list[Follower]) -> None:
    """More events than one turn renders and than the socket holds arrive in order."""
    service.happen(*(event(seq, detail="x" * 500) for seq in range(1, 2001)))
    followers.append(Follower(service))
    assert [followers[0].next_seq() for _ in range(2000)] == list(range(1, 2001))


def test_follow_ends_at_its_limit(service: Service, followers: list[Follower]) -> None:
    """With a limit the stream ends as HTTP wants it."""
    service.happen(event(1))
    followers.append(Follower(service, "follow=1&limit=2"))
    assert followers[0].next_seq() == 1
    service.happen(event(2), event(3))
    assert followers[0].next_seq() == 2
    assert followers[0].at_end()


def test_follower_that_goes_is_forgotten(service: Service) -> None:
    """A client that leaves in the middle of a stream leaves nothing, and the agent is asked no more."""
    follower = Follower(service)
    service.until(lambda: len(service.backend.wakes) == 1)
    follower.close()
    service.until(lambda: service.server.connections == 0 and not service.backend.wakes)
    service.happen(event(1))


def test_half_closed_follower_stays_until_it_goes(serve: Serve) -> None:
    """Ending the sending half does not end the stream; closing does, though nothing is written meanwhile."""
    service = serve(Limits(stream_check_s=0.05))
    follower = Follower(service)
    follower.sock.shutdown(socket.SHUT_WR)
    service.happen(event(1))
    assert follower.next_seq() == 1
    follower.close()
    service.until(lambda: service.server.connections == 0)


def test_slow_follower_is_dropped(serve: Serve) -> None:
    """One that does not read holds a bounded buffer, and is cut off once it has stood still for long."""
    service = serve(Limits(stream_stall_s=0.2, stream_buffer_bytes=1000))
    service.happen(*(event(seq, detail="x" * 1000) for seq in range(1, 1001)))
    with service.connect() as sock:
        sock.sendall(request_bytes("GET", "/v1/events?follow=1"))
        service.until(lambda: service.server.streams == 1)
        service.until(lambda: service.server.connections == 0)
        received = 0
        while data := sock.recv(65536):
            received += len(data)
    assert 0 < received < 1000 * 1000
    assert service.backend.events_after < 1000


def test_slow_follower_delays_nobody(serve: Serve, followers: list[Follower]) -> None:
    """While one stands still, another gets every event."""
    service = serve(Limits())
    with service.connect() as stuck:
        stuck.sendall(request_bytes("GET", "/v1/events?follow=1"))
        service.until(lambda: service.server.streams == 1)
        followers.append(Follower(service))
        for seq in range(1, 1001):
            service.happen(event(seq, detail="x" * 1000))
            assert followers[0].next_seq() == seq
        assert get(service, "/v1/live").status == 200


def test_what_a_follower_sends_is_ignored(service: Service, followers: list[Follower]) -> None:
    """Bytes after the request neither end the stream nor fill memory."""
    followers.append(Follower(service))
    for _ in range(100):
        followers[0].sock.sendall(b"x" * 10_000)
    service.happen(event(1))
    assert followers[0].next_seq() == 1


def test_streams_of_one_user_are_bounded(serve: Serve, followers: list[Follower]) -> None:
    """503 says how many the user has already; one that ends makes room."""
    service = serve(Limits(streams_per_user=2))
    followers.extend(Follower(service) for _ in range(2))
    reply = get(service, "/v1/events?follow=1")
    assert reply.status == 503
    assert "2 times already" in reply.detail
    followers.pop().close()
    service.until(lambda: service.server.streams == 1)
    followers.append(Follower(service))
    assert followers[-1].status == 200


def test_streams_of_all_users_are_bounded(serve: Serve, followers: list[Follower]) -> None:
    """503 where all places are taken and nobody holds clearly more than the newcomer."""
    service = serve(Limits(streams=1))
    followers.append(Follower(service))
    with service.connect() as sock:
        sock.sendall(request_bytes("GET", "/v1/events?follow=1"))
        assert Reply(sock).status == 503


def test_followers_do_not_give_way_to_idle_connections(serve: Serve, followers: list[Follower]) -> None:
    """A flood of connections does not end a stream."""
    service = serve(Limits(connections=4))
    followers.append(Follower(service))
    socks = [service.connect() for _ in range(20)]
    assert get(service, "/v1/live").status == 200
    service.happen(event(1))
    assert followers[0].next_seq() == 1
    for sock in socks:
        sock.close()


def test_streams_end_properly_when_the_agent_goes(service: Service, followers: list[Follower]) -> None:
    """A follower can tell the agent's end from a broken connection."""
    service.happen(event(1))
    followers.append(Follower(service))
    assert followers[0].next_seq() == 1
    service.on_loop(service.server.close)
    assert followers[0].at_end()


def test_http_1_0_follower(service: Service) -> None:
    """Without chunks the end of the connection ends the stream."""
    service.happen(event(1), event(2))
    with service.connect() as sock:
        sock.sendall(b"GET /v1/events?follow=1&limit=2 HTTP/1.0\r\n\r\n")
        reply = Reply(sock)
    assert [json.loads(line)["seq"] for line in reply.body.splitlines()] == [1, 2]
