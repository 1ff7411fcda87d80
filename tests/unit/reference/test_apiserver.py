"""The apiserver, the faults, and what all programs have in common."""

import http.client
import json
import signal
import socket
from collections.abc import Mapping

import pytest

from node_manager.reference.httpwire import MAX_BODY, MAX_HEAD, HttpError, Request, RequestParser
from node_manager.reference.settings import Address
from tests.unit.reference.conftest import Bench


def api(bench: Bench, controllers: str) -> Address:
    process = bench.start("apiserver", XCE_REF_CONTROLLERS=controllers)
    port_file = bench.directory / "apiserver.port"
    bench.wait(lambda: port_file.exists() and port_file.read_text().endswith("\n"), process)
    return Address("127.0.0.1", int(port_file.read_text()))


def request(address: Address, method: str, path: str, body: str | None = None) -> tuple[int, Mapping[str, object]]:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=30)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_users_reach_the_primary_through_it(bench: Bench) -> None:
    """Hosts and jobs come from the primary, whichever of the controllers that is; a job can be submitted."""
    _controller, address = bench.leader()
    _standby, other = bench.controller(XCE_REF_HOLDER="c2")
    bench.ask(address, op="join", host="h7", instance_id="", slots=1)
    server = api(bench, f"127.0.0.1:1,{other},{address}")
    assert request(server, "GET", "/healthz") == (200, {"ok": True})
    status, hosts = request(server, "GET", "/v1/hosts?x=1")
    assert status == 200
    assert isinstance(hosts["hosts"], list)
    assert hosts["hosts"][0]["host"] == "h7"
    assert request(server, "POST", "/v1/jobs", '{"host": "h7", "seconds": 5}')[0] == 202
    jobs = request(server, "GET", "/v1/jobs")[1]["jobs"]
    assert isinstance(jobs, list)
    assert len(jobs) == 1
    status, body = request(server, "POST", "/v1/jobs", '{"host": "h9", "seconds": 5}')
    assert (status, body["title"]) == (404, "Not Found")
    assert request(server, "POST", "/v1/jobs", '{"host": "h7", "seconds": -5}')[0] == 400


def test_without_a_controller_it_answers_that(bench: Bench) -> None:
    """No controller: still healthy, and the question is answered by 503 with the reason."""
    server = api(bench, "127.0.0.1:1")
    assert request(server, "GET", "/healthz")[0] == 200
    status, body = request(server, "GET", "/v1/hosts")
    assert status == 503
    assert "cannot reach the primary controller" in str(body["detail"])


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("DELETE", "/v1/jobs", None, 405),
        ("POST", "/v1/jobs", "{", 400),
        ("POST", "/v1/jobs", '{"op": "standby"}', 400),
        ("POST", "/v1/jobs", "x" * (MAX_BODY + 1), 413),
    ],
)
def test_bad_requests_are_answered_by_problems(
    bench: Bench, method: str, path: str, body: str | None, status: int
) -> None:
    """Unknown path, method or body: a problem document, and nothing reaches the controller."""
    server = api(bench, "127.0.0.1:1")
    answered, problem = request(server, method, path, body)
    assert (answered, problem["status"]) == (status, status)


def test_idle_clients_do_not_keep_it_from_others(bench: Bench) -> None:
    """More silent connections than it takes: they are closed in time and the next request is served."""
    server = api(bench, "127.0.0.1:1")
    idle = [socket.create_connection(server, timeout=30) for _ in range(80)]
    try:
        assert request(server, "GET", "/healthz")[0] == 200
    finally:
        for sock in idle:
            sock.close()


def test_requests_are_parsed_in_pieces() -> None:
    """A request may come byte by byte."""
    parser = RequestParser()
    raw = b"POST /v1/jobs?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    results = [parser.feed(raw[index : index + 1]) for index in range(len(raw))]
    assert results[:-1] == [None] * (len(raw) - 1)
    assert results[-1] == Request(method="POST", path="/v1/jobs", body=b"{}")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /\r\n\r\n", 400),
        (b"GET x HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
        (b"x" * (MAX_HEAD + 1), 431),
    ],
)
def test_malformed_heads_are_refused(raw: bytes, status: int) -> None:
    """Whatever is wrong with a head, there is a status for it."""
    with pytest.raises(HttpError) as error:
        RequestParser().feed(raw)
    assert error.value.status == status


def test_usage(bench: Bench) -> None:
    """No or a wrong component: usage and status 2; --help: status 0."""
    assert bench.call().returncode == 2
    assert bench.call("controler").returncode == 2
    assert "lease-keeper NAME" in bench.call("--help").stdout


def test_an_address_in_use_is_named(bench: Bench) -> None:
    """A component that cannot listen ends with 71 and says where."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert bench.ended(bench.start("apiserver", XCE_REF_HTTP=address)) == 71
    assert address in bench.logs()


def test_the_fault_modes(bench: Bench) -> None:
    """Each fault does what its name says; tests of the agent rely on it."""
    muted, deaf, hung, slow = (bench.agent() for _ in range(4))
    crash = bench.start("apiserver", XCE_REF_FAULT="crash-after=0")
    assert bench.ended(crash) == 70
    silent = bench.start("apiserver", agent=muted, XCE_REF_FAULT="mute")
    ignoring = bench.start("apiserver", agent=deaf, XCE_REF_FAULT="ignore-term")
    hanging = bench.start("apiserver", agent=hung, XCE_REF_FAULT="hang-after=0.5")
    late = bench.start("apiserver", agent=slow, XCE_REF_FAULT="slow-start=600")
    bench.wait(lambda: deaf.said.get("READY") == "1" and hung.said.get("READY") == "1", ignoring, hanging)
    ignoring.terminate()
    bench.wait(lambda: len(deaf.history) > 3, ignoring, silent, hanging, late)
    assert "STOPPING" not in deaf.said
    late.terminate()
    assert bench.ended(late) == 0
    silent.terminate()
    assert bench.ended(silent) == 0
    assert not muted.history
    assert not slow.history
    hanging.terminate()
    heard = len(hung.history)
    bench.wait(lambda: len(deaf.history) > 6, ignoring, hanging)
    assert len(hung.history) <= heard + 1
    hanging.send_signal(signal.SIGKILL)
