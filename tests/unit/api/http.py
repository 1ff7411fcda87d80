"""A client for tests that is not ours: the standard library's parser over a raw socket."""

import json
import socket
from http.client import HTTPResponse
from typing import Any

from tests.unit.api.fake import Service


class Reply:
    """A response that was read to its end."""

    def __init__(self, sock: socket.socket, method: str = "GET") -> None:
        response = HTTPResponse(sock, method=method)
        response.begin()
        self.status = response.status
        self.phrase = response.reason
        self.headers = response.headers
        self.body = response.read()
        response.close()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        """The sentence of a problem, after checking that it is one."""
        assert self.headers["Content-Type"] == "application/problem+json"
        assert self.json["status"] == self.status
        assert {"type", "title", "detail"} <= self.json.keys()
        return str(self.json["detail"])


def raw(service: Service, data: bytes, method: str = "GET") -> Reply:
    """Send bytes, read one response."""
    with service.connect() as sock:
        sock.sendall(data)
        return Reply(sock, method)


def request_bytes(method: str, target: str, body: Any = None, **headers: str) -> bytes:
    """Render a request; `body` is bytes or JSON, `headers` have `_` for `-`."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Host": "localhost"} | {key.replace("_", "-"): value for key, value in headers.items()}
    if body is not None:
        fields = {"Content-Type": "application/json", "Content-Length": str(len(content))} | fields
    lines = [f"{method} {target} HTTP/1.1", *(f"{key}: {value}" for key, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode() + content


def get(service: Service, target: str) -> Reply:
    """GET on a connection of its own."""
    return raw(service, request_bytes("GET", target))


def post(service: Service, target: str, body: Any = None, **headers: str) -> Reply:
    """POST on a connection of its own."""
    return raw(service, request_bytes("POST", target, body, **headers))
