"""Every endpoint of the status API: what it takes, whom it lets, what it answers. No sockets, no HTTP library."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from node_manager.api import body
from node_manager.api.backend import Backend, CommandRequest, CommandResult
from node_manager.api.limits import EVENTS_MAX
from node_manager.api.messages import (
    JSON,
    METRICS_TEXT,
    NDJSON,
    Answer,
    Deferred,
    Follow,
    Problem,
    Request,
    Response,
    encode,
    json_response,
)
from node_manager.api.text import printable
from node_manager.core.events import Verb

_OPENAPI = Path(__file__).with_name("openapi.json")
_MAX_SHOWN = 200
"""Characters of a path or name that a message repeats."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT")
"""Methods of RFC 9110 and 5789; others are not implemented, these are not allowed where no route has them."""
_WHO_MAY = (
    "root and members of group xce-admin may change this node, and outside systemd the user that its agent runs as"
)
_COMPONENT_VERBS = (Verb.START, Verb.STOP, Verb.RESTART, Verb.RELOAD_COMPONENT)
_HOST_VERBS = (Verb.DRAIN, Verb.UNDRAIN, Verb.DECOMMISSION, Verb.RECOMMISSION)
_NAME = "{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method on one path; `{name}` in the path stands for a component and is handed to the handler."""

    method: str
    path: str
    segments: tuple[str, ...]
    handler: Callable[[Request, str], Answer]


class Routes:
    """The endpoints over one backend.

    `soon` runs a callback in the loop's next turn: within one turn the status is rendered only once, however many
    clients ask.
    """

    def __init__(self, backend: Backend, soon: Callable[[Callable[[], None]], object]) -> None:
        self._backend = backend
        self._soon = soon
        self._rendered: Response | None = None
        self._openapi = Response(status=200, content_type=JSON, body=_OPENAPI.read_bytes())
        self.table = self._build()

    def answer(self, request: Request) -> Answer:
        """Answer one request. Every refusal is a problem response; nothing is raised for what a client sent."""
        try:
            route, name = self._find(request)
            return route.handler(request, name)
        except Problem as problem:
            return problem.response()

    def _build(self) -> tuple[Route, ...]:
        reads: dict[str, Callable[[Request, str], Answer]] = {
            "/v1/status": self._status,
            "/v1/components": self._components,
            "/v1/components/{name}": self._component,
            "/v1/components/{name}/why": self._why,
            "/v1/events": self._events,
            "/v1/live": self._live,
            "/v1/ready": self._ready,
            "/v1/openapi.json": self._description,
            "/metrics": self._metrics,
        }
        changes: dict[str, Callable[[Request, str], Answer]] = {
            **{f"/v1/components/{{name}}/{verb.value}": self._component_verb(verb) for verb in _COMPONENT_VERBS},
            **{f"/v1/host/{verb.value}": self._host_verb(verb) for verb in _HOST_VERBS},
            "/v1/maintenance": self._maintenance,
            "/v1/reload": self._reload,
            "/v1/reexec": self._reexec,
        }
        return tuple(
            Route(method=method, path=path, segments=tuple(path.split("/")[1:]), handler=handler)
            for method, handlers in (("GET", reads), ("POST", changes))
            for path, handler in handlers.items()
        )

    def _find(self, request: Request) -> tuple[Route, str]:
        if request.method not in _METHODS:
            raise Problem(501, f"method {printable(request.method)[:_MAX_SHOWN]} is not known here")
        segments = _segments(request.path)
        matches = [(route, name) for route in self.table if (name := _match(route, segments)) is not None]
        if not matches:
            known = ", ".join(sorted({route.path for route in self.table}))
            shown = printable(request.path)[:_MAX_SHOWN]
            raise Problem(404, f"there is nothing at {shown}; /v1/openapi.json describes: {known}")
        wanted = "GET" if request.method == "HEAD" else request.method
        for route, name in matches:
            if route.method == wanted:
                return route, name
        methods = [method for route, _ in matches for method in _with_head(route.method)]
        allowed = ", ".join(methods)
        raise Problem(405, f"{request.method} is not allowed here, {allowed} is", headers=(("Allow", allowed),))

    # --- reading ------------------------------------------------------------------------------------------------

    def _status(self, request: Request, _name: str) -> Answer:
        body.read_query(request.query, ())
        if self._rendered is None:
            self._rendered = Response(status=200, content_type=JSON, body=self._backend.status_text(encode))
            self._soon(self._forget)
        return self._rendered

    def _forget(self) -> None:
        self._rendered = None

    def _components(self, request: Request, _name: str) -> Answer:
        body.read_query(request.query, ())
        status = self._backend.status()
        return json_response({key: status[key] for key in ("schema", "components", "now_ns", "wall_offset_ns")})

    def _component(self, request: Request, name: str) -> Answer:
        body.read_query(request.query, ())
        for component in self._backend.status()["components"]:
            if component["name"] == name:
                return json_response(component)
        raise self._no_component(name)

    def _why(self, request: Request, name: str) -> Answer:
        body.read_query(request.query, ())
        explanation = self._backend.why(name)
        if explanation is None:
            raise self._no_component(name)
        return json_response(explanation)

    def _events(self, request: Request, _name: str) -> Answer:
        query = body.read_query(request.query, ("after", "limit", "follow"))
        after, limit, follow = query.get("after", 0), query.get("limit"), query.get("follow", 0)
        if follow not in {0, 1}:
            raise Problem(400, f"query parameter follow must be 0 or 1, not {follow}")
        if limit == 0 or (limit is not None and limit > EVENTS_MAX):
            raise Problem(400, f"query parameter limit must be from 1 to {EVENTS_MAX}, not {limit}")
        if follow:
            return Follow(after=after, limit=limit)
        lines = events_chunk(self._backend.events(after, limit or EVENTS_MAX))
        return Response(status=200, content_type=NDJSON, body=lines)

    def _live(self, request: Request, _name: str) -> Answer:
        body.read_query(request.query, ())
        return json_response({"live": True})

    def _ready(self, request: Request, _name: str) -> Answer:
        body.read_query(request.query, ())
        status = self._backend.status()
        if status["node"]["ready"]:
            return json_response({"ready": True, "reasons": []})
        reasons = _not_ready(status)
        raise Problem(503, f"not ready: {'; '.join(reasons)}", ready=False, reasons=reasons)

    def _description(self, request: Request, _name: str) -> Answer:
        body.read_query(request.query, ())
        return self._openapi

    def _metrics(self, request: Request, _name: str) -> Answer:
        body.read_query(request.query, ())
        text = self._backend.metrics().encode("utf-8", "replace")
        return Response(status=200, content_type=METRICS_TEXT, body=text)

    # --- changing -----------------------------------------------------------------------------------------------

    def _component_verb(self, verb: Verb) -> Callable[[Request, str], Answer]:
        def handle(request: Request, name: str) -> Answer:
            self._admit(request, f"{verb.value} {printable(name)[:_MAX_SHOWN]}")
            fields = body.read_object(request, ("by", "reason"))
            if all(component["name"] != name for component in self._backend.status()["components"]):
                raise self._no_component(name)
            return self._command(request, fields, verb, component=name)

        return handle

    def _host_verb(self, verb: Verb) -> Callable[[Request, str], Answer]:
        known = ("by", "reason", "deadline_s") if verb is Verb.DRAIN else ("by", "reason")

        def handle(request: Request, _name: str) -> Answer:
            self._admit(request, f"{verb.value} this host")
            fields = body.read_object(request, known)
            return self._command(request, fields, verb, deadline_s=body.deadline_s(fields))

        return handle

    def _maintenance(self, request: Request, _name: str) -> Answer:
        self._admit(request, "change maintenance")
        fields = body.read_object(request, ("by", "reason", "enable"))
        return self._command(request, fields, Verb.MAINTENANCE, enable=body.flag(fields, "enable"))

    def _reload(self, request: Request, _name: str) -> Answer:
        self._admit(request, "reload")
        fields = body.read_object(request, ("by",))
        by = body.who(fields, request.peer.uid)
        return _deferred(lambda done: self._backend.reload(by, done), "reload")

    def _reexec(self, request: Request, _name: str) -> Answer:
        self._admit(request, "reexec")
        fields = body.read_object(request, ("by",))
        by = body.who(fields, request.peer.uid)
        return _deferred(lambda done: self._backend.reexec(by, done), "reexec")

    def _command(self, request: Request, fields: dict[str, Any], verb: Verb, **more: Any) -> Answer:
        command = CommandRequest(verb=verb, by=body.who(fields, request.peer.uid), reason=body.reason(fields), **more)
        return _deferred(lambda done: self._backend.command(command, done), verb.value)

    def _admit(self, request: Request, what: str) -> None:
        body.read_query(request.query, ())
        peer = request.peer
        if not self._backend.may_change(peer.uid, peer.gid, peer.groups):
            raise Problem(403, f"cannot {what}: uid {peer.uid} may not; {_WHO_MAY}")

    def _no_component(self, name: str) -> Problem:
        names = [component["name"] for component in self._backend.status()["components"]]
        known = f"there are: {', '.join(names)}" if names else "this node has none"
        return Problem(404, f"no component is called {printable(name)[:_MAX_SHOWN]!r}; {known}", components=names)


def _deferred(start: Callable[[Callable[[CommandResult], None]], None], what: str) -> Deferred:
    def begin(respond: Callable[[Response], None]) -> None:
        start(lambda result: respond(_result_response(result, what)))

    late = Problem(
        504,
        f"{what} is accepted and takes effect, but is not confirmed yet: it waits to be durable; "
        "/v1/status has a warning while the state directory cannot be written",
        accepted=True,
    )
    return Deferred(start=begin, late=late.response())


def _result_response(result: CommandResult, what: str) -> Response:
    if result.ok:
        return json_response({"ok": True, "detail": result.detail})
    problem = Problem(409, result.detail or f"{what} is refused")
    if result.rule is not None:
        problem.members["rule"] = result.rule
    return problem.response()


def _segments(path: str) -> list[str]:
    """Split an origin-form or absolute-form target (RFC 9112, 3.2) into decoded segments."""
    try:
        plain = path if path.startswith("/") else urlsplit(path).path
        return [unquote(segment, errors="strict") for segment in plain.split("/")[1:]]
    except ValueError as error:
        raise Problem(400, "cannot read the path: it is not UTF-8 under its percent-encoding") from error


def _match(route: Route, segments: list[str]) -> str | None:
    """Tell what stands for `{name}`, "" where the route has none, None where the path is another."""
    if len(route.segments) != len(segments):
        return None
    name = ""
    for pattern, segment in zip(route.segments, segments, strict=True):
        if pattern == _NAME:
            name = segment
        elif pattern != segment:
            return None
    return name


def _with_head(method: str) -> tuple[str, ...]:
    return ("GET", "HEAD") if method == "GET" else (method,)


def _not_ready(status: dict[str, Any]) -> list[str]:
    """Say what stands between this node and readiness, a sentence each."""
    node = status["node"]
    reasons = [] if node["state"] == "running" else [f"node is {node['state']}"]
    if node["config_error"]:
        reasons.append(f"configuration: {node['config_error']}")
    for component in status["components"]:
        if component["desired"] == "up" and component["ready"] is not True:
            readiness = "not ready" if component["ready"] is False else "readiness unknown"
            reasons.append(f"{component['name']}: {component['state']}, {readiness}: {component['reason']}")
    return reasons or ["node does not say why"]


def events_chunk(events: list[dict[str, Any]]) -> bytes:
    """Render events as NDJSON."""
    return b"".join(encode(event) + b"\n" for event in events)
