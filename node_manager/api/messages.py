"""What goes between a connection and the routes: requests, responses, problems. No sockets, no HTTP library."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from node_manager.api.peer import Peer

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"
NDJSON = "application/x-ndjson"
METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One complete request. `path` and `query` are as sent, still percent-encoded."""

    method: str
    path: str
    query: str
    content_type: str
    body: bytes
    peer: Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One complete response."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """Answer with a stream: the events newer than `after`, then those to come; it ends after `limit` (None: never)."""

    after: int
    limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """Answer later: `start` takes the callback, and `late` is sent where that takes too long."""

    start: Callable[[Callable[[Response], None]], None]
    late: Response


Answer = Response | Follow | Deferred


class Problem(Exception):  # noqa: N818  RFC 9457 calls it a problem
    """An answer other than success, as RFC 9457 describes it; `members` are extension members."""

    def __init__(self, status: int, detail: str, *, headers: tuple[tuple[str, str], ...] = (), **members: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.members = members

    def response(self) -> Response:
        """Render it."""
        body = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.members,
        }
        return Response(status=self.status, content_type=PROBLEM_JSON, body=encode(body), headers=self.headers)


def encode(value: Any) -> bytes:
    r"""Render compact JSON in ASCII: whatever a string holds arrives as `\uXXXX` and cannot drive a terminal."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def json_response(value: Any, status: int = 200) -> Response:
    """Render a JSON body."""
    return Response(status=status, content_type=JSON, body=encode(value))
