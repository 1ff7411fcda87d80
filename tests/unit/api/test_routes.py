import os
from typing import Any

import pytest

from node_manager.api.backend import CommandRequest, CommandResult
from node_manager.core.events import Verb
from tests.unit.api.fake import Service, component, event, status_body
from tests.unit.api.http import get, post, raw, request_bytes

ME = f"uid {os.getuid()}"


def test_status_is_the_backends_body(service: Service) -> None:
    """/v1/status answers what the agent says, as JSON that is not cached."""
    reply = get(service, "/v1/status")
    assert (reply.status, reply.phrase) == (200, "OK")
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.headers["Cache-Control"] == "no-store"
    assert reply.json == service.backend.body


def test_text_that_could_drive_a_terminal_is_escaped(service: Service) -> None:
    """A component's words reach curl as ASCII, even lone surrogates and escape sequences."""
    service.backend.body = status_body(component("worker", reason="\x1b]0;gotcha\x07\udcff"))
    reply = get(service, "/v1/status")
    assert reply.body.isascii()
    assert b"\x1b" not in reply.body
    assert reply.json["components"][0]["reason"] == "\x1b]0;gotcha\x07\udcff"


def test_components_and_one_of_them(service: Service) -> None:
    """The list and the single component are the same objects as in the status."""
    assert get(service, "/v1/components").json["components"] == service.backend.body["components"]
    assert get(service, "/v1/components/worker").json == service.backend.body["components"][1]
    assert get(service, "/v1/components/w%6Frker").json == service.backend.body["components"][1]


def test_why(service: Service) -> None:
    """/why answers the backend's explanation."""
    reply = get(service, "/v1/components/worker/why")
    assert reply.json == service.backend.why("worker")


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/components/nginx"),
        ("GET", "/v1/components/nginx/why"),
        ("POST", "/v1/components/nginx/start"),
        ("POST", "/v1/components/nginx/stop"),
        ("POST", "/v1/components/nginx/restart"),
    ],
)
def test_unknown_component_lists_those_that_exist(service: Service, method: str, target: str) -> None:
    """404 of a component says which there are, in the sentence and for programs."""
    reply = raw(service, request_bytes(method, target))
    assert reply.status == 404
    assert reply.json["components"] == ["controller", "worker"]
    assert "no component is called 'nginx'; there are: controller, worker" in reply.detail


def test_unknown_path_lists_what_there_is(service: Service) -> None:
    """404 of a path names the endpoints."""
    for target in ("/", "/v1", "/v1/status/", "/v2/status", "//v1/status", "/v1/components/a/b/c", "*"):
        reply = get(service, target)
        assert reply.status == 404
        assert "/v1/components/{name}/why" in reply.detail


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("POST", "/v1/status", "GET, HEAD"),
        ("GET", "/v1/reload", "POST"),
        ("DELETE", "/v1/components/worker", "GET, HEAD"),
        ("PUT", "/v1/components/worker/start", "POST"),
        ("OPTIONS", "/metrics", "GET, HEAD"),
        ("CONNECT", "/v1/live", "GET, HEAD"),
    ],
)
def test_wrong_method_says_which_is_right(service: Service, method: str, target: str, allow: str) -> None:
    """405 carries Allow."""
    reply = raw(service, request_bytes(method, target))
    assert reply.status == 405
    assert reply.headers["Allow"] == allow
    assert allow in reply.detail


def test_unknown_method(service: Service) -> None:
    """A method that HTTP does not define is not implemented, whatever the path."""
    reply = raw(service, request_bytes("BREW", "/v1/status"))
    assert reply.status == 501
    assert "BREW" in reply.detail


def test_absolute_form_of_the_target(service: Service) -> None:
    """A client that speaks as to a proxy is answered (RFC 9112 wants it)."""
    assert get(service, "http://localhost/v1/live").json == {"live": True}


def test_path_that_is_not_utf8(service: Service) -> None:
    """A path with broken percent-encoding is the client's fault."""
    assert get(service, "/v1/components/%ff").status == 400


def test_head_answers_like_get_without_a_body(service: Service) -> None:
    """HEAD has GET's header fields and no body."""
    reply = raw(service, request_bytes("HEAD", "/v1/status"), "HEAD")
    full = get(service, "/v1/status")
    assert (reply.status, reply.headers["Content-Length"]) == (200, str(len(full.body)))
    assert reply.body == b""
    assert raw(service, request_bytes("HEAD", "/v1/events?follow=1"), "HEAD").status == 200


def test_ready_when_ready(service: Service) -> None:
    """200 with no reasons."""
    reply = get(service, "/v1/ready")
    assert (reply.status, reply.json) == (200, {"ready": True, "reasons": []})


def test_not_ready_says_what_is_missing(service: Service) -> None:
    """503 names each component that should be ready and is not, and what is wrong with the configuration."""
    service.backend.body = status_body(
        component("controller", ready=False, reason="its port is closed"),
        component("scheduler", ready=None, state="backoff", reason="exited with status 1"),
        component("worker", desired="down", ready=False, state="stopped"),
        node={"ready": False, "state": "waiting-config", "config_error": "roles: unknown role 'x'"},
    )
    reply = get(service, "/v1/ready")
    assert reply.status == 503
    assert reply.json["ready"] is False
    assert reply.json["reasons"] == [
        "node is waiting-config",
        "configuration: roles: unknown role 'x'",
        "controller: running, not ready: its port is closed",
        "scheduler: backoff, readiness unknown: exited with status 1",
    ]
    assert "its port is closed" in reply.detail


def test_metrics(service: Service) -> None:
    """Prometheus gets its text format."""
    reply = get(service, "/metrics")
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert reply.body.endswith(b"xce_node_ready 1\n")


def test_events_are_lines_from_after_up_to_limit(service: Service) -> None:
    """A finite query pages through the history, oldest first."""
    service.happen(*(event(seq) for seq in range(1, 8)))
    reply = get(service, "/v1/events?after=2&limit=3")
    assert reply.headers["Content-Type"] == "application/x-ndjson"
    assert [line.split(b",")[0] for line in reply.body.splitlines()] == [b'{"seq":3', b'{"seq":4', b'{"seq":5']
    assert get(service, "/v1/events?after=7").body == b""


@pytest.mark.parametrize(
    "query",
    ["after=-1", "after=x", "after=", "after=1&after=2", "limit=0", "limit=1001", "follow=2", "afer=1", "after", "&&"],
)
def test_wrong_query_is_refused(service: Service, query: str) -> None:
    """A query that is not understood is never silently something else."""
    reply = get(service, f"/v1/events?{query}")
    assert reply.status == 400
    assert reply.detail
    assert get(service, f"/v1/status?{query}").status == 400


@pytest.mark.parametrize(
    ("target", "body", "expected"),
    [
        (
            "/v1/components/worker/start",
            {"by": "alice", "reason": "try again"},
            CommandRequest(verb=Verb.START, component="worker", by=f"alice ({ME})", reason="try again"),
        ),
        ("/v1/components/worker/stop", None, CommandRequest(verb=Verb.STOP, component="worker", by=ME)),
        ("/v1/components/worker/restart", {}, CommandRequest(verb=Verb.RESTART, component="worker", by=ME)),
        ("/v1/host/drain", {"deadline_s": 90}, CommandRequest(verb=Verb.DRAIN, by=ME, deadline_s=90.0)),
        ("/v1/host/drain", {"deadline_s": None}, CommandRequest(verb=Verb.DRAIN, by=ME)),
        ("/v1/host/undrain", None, CommandRequest(verb=Verb.UNDRAIN, by=ME)),
        ("/v1/host/decommission", None, CommandRequest(verb=Verb.DECOMMISSION, by=ME)),
        ("/v1/host/recommission", None, CommandRequest(verb=Verb.RECOMMISSION, by=ME)),
        ("/v1/maintenance", {"enable": False}, CommandRequest(verb=Verb.MAINTENANCE, by=ME, enable=False)),
        ("/v1/maintenance", {"enable": True}, CommandRequest(verb=Verb.MAINTENANCE, by=ME, enable=True)),
    ],
)
def test_commands_reach_the_backend(service: Service, target: str, body: Any, expected: CommandRequest) -> None:
    """Each change arrives as what was asked, with the kernel's uid beside the claimed name."""
    reply = post(service, target, body)
    assert (reply.status, reply.json) == (200, {"ok": True, "detail": "done"})
    assert service.backend.requests == [expected]


def test_reload(service: Service) -> None:
    """A reload names who asked."""
    assert post(service, "/v1/reload", {"by": "alice"}).status == 200
    assert service.backend.reloads == [f"alice ({ME})"]


def test_reexec(service: Service) -> None:
    """A re-exec names who asked."""
    assert post(service, "/v1/reexec", {"by": "alice"}).status == 200
    assert service.backend.reexecs == [f"alice ({ME})"]


def test_refused_by_a_rule(service: Service) -> None:
    """409 carries the rule and its sentence."""
    service.backend.result = CommandResult(ok=False, detail="this host is decommissioned", rule="decommissioned")
    reply = post(service, "/v1/components/worker/start")
    assert reply.status == 409
    assert reply.json["rule"] == "decommissioned"
    assert reply.detail == "this host is decommissioned"


def test_refused_without_a_rule(service: Service) -> None:
    """A refusal that no rule made has no rule."""
    service.backend.result = CommandResult(ok=False, detail="the configuration is wrong")
    reply = post(service, "/v1/reload")
    assert reply.status == 409
    assert "rule" not in reply.json


def test_only_who_may_change_changes(service: Service) -> None:
    """403 says who may, the kernel's credentials decide, and nothing reaches the backend."""
    service.backend.allowed = False
    for target in (
        "/v1/components/worker/stop",
        "/v1/host/decommission",
        "/v1/maintenance",
        "/v1/reload",
        "/v1/reexec",
    ):
        reply = post(service, target, b"not even JSON")
        assert reply.status == 403
        assert f"uid {os.getuid()} may not" in reply.detail
        assert "xce-admin" in reply.detail
    assert (service.backend.requests, service.backend.reloads, service.backend.reexecs) == ([], [], [])
    uid, gid, groups = service.backend.asked[0]
    assert (uid, gid) == (os.getuid(), os.getgid())
    assert set(os.getgroups()) == set(groups)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can join groups")
def test_supplementary_groups_are_the_kernels(service: Service) -> None:
    """Membership of xce-admin counts where it is not the primary group."""
    before = os.getgroups()
    os.setgroups([54321, 54322])
    try:
        post(service, "/v1/reload")
    finally:
        os.setgroups(before)
    assert service.backend.asked == [(0, os.getgid(), (54321, 54322))]


def test_status_stays_open_to_everyone(service: Service) -> None:
    """Who may not change may read."""
    service.backend.allowed = False
    assert get(service, "/v1/status").status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'\xef\xbb\xbf{"by":"x"}',
        b'{"by":"a","by":"b"}',
        b'{"bye":"a"}',
        b'{"by":1}',
        b'{"reason":["a"]}',
        b'{"deadline_s":"90"}',
        b'{"deadline_s":true}',
        b'{"deadline_s":0}',
        b'{"deadline_s":-1}',
        b'{"deadline_s":1e999}',
        b'{"deadline_s":NaN}',
        b'{"deadline_s":Infinity}',
        b'{"deadline_s":' + b"9" * 5000 + b"}",
        b'{"deadline_s":' + b"9" * 400 + b"}",
        b'{"reason":' + b"[" * 30000 + b"}",
        b'{"by":"' + b'\\"' * 30000,
        b'{"reason":"' + b"x" * 513 + b'"}',
    ],
)
def test_wrong_body_is_refused(service: Service, body: bytes) -> None:
    """A body that is not exactly understood changes nothing."""
    reply = post(service, "/v1/host/drain", body)
    assert reply.status == 400
    assert reply.detail.startswith("cannot ")
    assert service.backend.requests == []


def test_maintenance_must_say_which(service: Service) -> None:
    """A toggle without a direction is refused."""
    for body in (None, {}, {"enable": "on"}, {"enable": 1}):
        assert post(service, "/v1/maintenance", body).status == 400


def test_body_must_be_declared_as_json(service: Service) -> None:
    """415 tells curl's users what to add."""
    reply = post(service, "/v1/host/drain", b"{}", Content_Type="application/x-www-form-urlencoded")
    assert reply.status == 415
    assert "Content-Type: application/json" in reply.detail
    assert post(service, "/v1/host/drain", b"{}", Content_Type="application/JSON; charset=utf-8").status == 200


def test_claims_cannot_imitate_the_kernel_or_drive_a_terminal(service: Service) -> None:
    """Names and reasons are kept printable, on one line, and the uid stays the last word."""
    post(service, "/v1/host/drain", {"by": "root (uid 0)\x1b[31m" + "x" * 99, "reason": "a\nb \x1b[2J\u202e\ud800"})
    request = service.backend.requests[0]
    name, _, uid = request.by.partition(" ")
    assert uid == f"({ME})"
    assert name.startswith("root__uid_0__")
    assert len(name) == 64
    assert request.reason == "a b \ufffd[2J\ufffd\ufffd"


def test_status_is_rendered_once_for_everyone_in_a_turn(service: Service) -> None:
    """Many clients at once cost one rendering, and the next turn of the loop sees fresh data."""
    socks = [service.connect() for _ in range(10)]
    try:
        for sock in socks:
            sock.sendall(request_bytes("GET", "/v1/live"))
            assert sock.recv(4096)
        before = service.backend.status_calls

        def send_all() -> None:
            for sock in socks:
                sock.sendall(request_bytes("GET", "/v1/status"))

        service.on_loop(send_all)
        for sock in socks:
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        # All requests were there before the loop looked: one turn takes them all.
        assert service.backend.status_calls - before == 1
    finally:
        for sock in socks:
            sock.close()
    service.backend.body = status_body()
    assert get(service, "/v1/status").json["components"] == []
