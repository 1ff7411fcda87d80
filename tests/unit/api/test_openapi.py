import json
import re
from pathlib import Path
from typing import Any

import pytest

import node_manager.api
from node_manager.api.backend import CommandResult
from node_manager.api.routes import Routes
from tests.unit.api.fake import NOW_NS, FakeBackend, S, Service, component, event, status_body, why_body
from tests.unit.api.http import Reply, get, post, raw, request_bytes
from tests.unit.api.schema import errors, resolve

DOCUMENT: dict[str, Any] = json.loads((Path(node_manager.api.__path__[0]) / "openapi.json").read_text("utf-8"))
STATUS = status_body(
    component("controller", status_text="primary", jobs=None),
    component(
        "worker",
        state="backoff",
        ready=None,
        pid=None,
        rule="backoff",
        uptime_ns=None,
        last_exit="exited with status 1",
        jobs=2,
        jobs_last_known=True,
        crashes=3,
        expected_back_ms=25_000,
        rejoin_budget_ms=55_000,
        next={"what": "start", "at_ns": NOW_NS + S},
    ),
    node={
        "ready": False,
        "instance_id": None,
        "config_error": "wrong",
        "agent_pid": 7,
        "agent_version": "1",
        "cgroup_detail": "fenced",
        "spawner": "fork",
        "maintenance": "x: y",
    },
    host={"state": "draining", "epoch": 7, "reason": "kernel", "by": "x", "deadline_ns": NOW_NS, "jobs_left": 2},
    facts=[
        {
            "name": "controller.primary",
            "value": None,
            "authority": "controller",
            "term": 3,
            "valid_until_ns": NOW_NS,
            "age_ms": 12,
        }
    ],
    warnings=["the state directory is full"],
)
WHY = why_body(
    "worker",
    next={"what": "start", "at_ns": NOW_NS + S},
    claims=[{"rule": "operator-hold", "reason": "stopped", "since_ns": 1, "by": "alice", "at": "2025-10-09T08:53:20Z"}],
    probes=[
        {"probe": "liveness", "state": "ok", "detail": None, "successes": 3, "failures": 0, "next_at_ns": NOW_NS + S}
    ],
    history=[event(1, old="running", new="backoff"), event(2, count=4, first_at="2025-10-09T08:53:01.000Z")],
    log="/var/log/xce/worker.log",
    log_tail=["Traceback", "  line 1"],
    journal=["SYSLOG_IDENTIFIER=worker", "_UID=0"],
)


def described() -> set[tuple[str, str]]:
    """Method and path of every operation in the description."""
    return {(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item}


def answer_schema(method: str, path: str, reply: Reply) -> dict[str, Any]:
    """The schema that the description gives for this answer; fails where it names no such status."""
    responses = DOCUMENT["paths"][path][method.lower()]["responses"]
    assert str(reply.status) in responses, f"{method} {path} may answer {reply.status}, which is not described"
    response = responses[str(reply.status)]
    if "$ref" in response:
        response = resolve(response["$ref"], DOCUMENT)
    media_type = reply.headers["Content-Type"].split(";")[0]
    schema = response["content"][media_type]["schema"]
    assert isinstance(schema, dict)
    return schema


def test_description_and_routes_name_the_same() -> None:
    """No endpoint is missing from the description, and none is described that does not exist."""
    table = Routes(FakeBackend(), lambda _callback: None).table
    assert {(route.method, route.path) for route in table} == described()


def test_description_is_served(service: Service) -> None:
    """A program can fetch what it programs against."""
    assert get(service, "/v1/openapi.json").json == DOCUMENT


def test_references_resolve_and_nothing_is_left_over() -> None:
    """Every reference has a target, and every schema, response and parameter is used."""
    references = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(DOCUMENT)))
    for reference in references:
        assert resolve(reference, DOCUMENT)
    defined = {f"#/components/{kind}/{name}" for kind, items in DOCUMENT["components"].items() for name in items}
    assert references == defined


def test_operations_have_ids_of_their_own() -> None:
    """Generators of clients need unique operation ids."""
    ids = [operation["operationId"] for item in DOCUMENT["paths"].values() for operation in item.values()]
    assert len(ids) == len(set(ids))


def test_path_parameters_are_declared() -> None:
    """A path with `{name}` declares its parameter."""
    for path, item in DOCUMENT["paths"].items():
        for operation in item.values():
            declared = {"$ref": "#/components/parameters/name"} in operation.get("parameters", [])
            assert declared == ("{name}" in path)


@pytest.mark.parametrize(("method", "path"), sorted(described()))
def test_answers_are_as_described(service: Service, method: str, path: str) -> None:
    """Success of every endpoint fits its schema, in a status where every field is at its most unusual."""
    service.backend.body = STATUS
    service.backend.reasons["worker"] = WHY
    service.happen(event(1, old="running", new="backoff"))
    target = path.replace("{name}", "worker")
    body = {"enable": True} if path == "/v1/maintenance" else None
    reply = raw(service, request_bytes(method, target, body))
    schema = answer_schema(method, path, reply)
    if path == "/metrics":
        value: Any = reply.body.decode()
    elif path == "/v1/events":
        value = json.loads(reply.body.splitlines()[0])
    else:
        value = reply.json
    assert errors(schema, value, DOCUMENT) == []


@pytest.mark.parametrize(("method", "path"), sorted(described()))
def test_refusals_are_as_described(service: Service, method: str, path: str) -> None:
    """Whatever a request is refused with, the description says so and the body is a problem."""
    service.backend.result = CommandResult(ok=False, detail="no", rule="drained")
    target = path.replace("{name}", "nginx")
    replies = [
        raw(service, request_bytes(method, f"{target}?x=1")),
        raw(service, request_bytes(method, target, b"x" * 70000)),
        raw(service, request_bytes(method, target).replace(b"HTTP/1.1", b"HTTP/3.0")),
        raw(service, request_bytes(method, target, None, X_Filler="x" * 17000)),
    ]
    if method == "POST":
        replies.append(post(service, target.replace("nginx", "worker"), {"enable": True} if "maint" in path else None))
        replies.append(post(service, target, b"{}", Content_Type="text/plain"))
        service.backend.allowed = False
        replies.append(post(service, target))
    if "{name}" in path:
        service.backend.allowed = True
        replies.append(raw(service, request_bytes(method, target)))
    for reply in replies:
        assert reply.status >= 400
        assert errors(answer_schema(method, path, reply), reply.json, DOCUMENT) == []


def test_validator_can_fail() -> None:
    """The validator of these tests is not blind."""
    schema = DOCUMENT["components"]["schemas"]["Status"]
    assert errors(schema, STATUS, DOCUMENT) == []
    for spoilt in (
        STATUS | {"schema": 2},
        STATUS | {"now_ns": "soon"},
        STATUS | {"now_ns": True},
        STATUS | {"node": STATUS["node"] | {"state": "asleep"}},
        STATUS | {"components": [component("x") | {"next": {"what": "start"}}]},
        {key: value for key, value in STATUS.items() if key != "host"},
    ):
        assert errors(schema, spoilt, DOCUMENT) != []
