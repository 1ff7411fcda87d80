"""As much of HTTP/1.1 as the apiserver needs, without I/O: one request in, one response out, then close."""

import json
from dataclasses import dataclass
from typing import Any

MAX_HEAD = 16 * 1024
MAX_BODY = 64 * 1024
"""What the controller takes in a line."""
REASONS = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
}


class HttpError(Exception):
    """The request cannot be served; `status` is what to answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One complete request."""

    method: str
    path: str
    body: bytes


class RequestParser:
    """Bytes in, one request out."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: tuple[str, str, int] | None = None

    def feed(self, data: bytes) -> Request | None:
        """The request once it is complete. Raises HttpError."""
        self._data += data
        if self._head is None:
            end = self._data.find(b"\r\n\r\n")
            if (end if end >= 0 else len(self._data)) > MAX_HEAD:
                raise HttpError(431, f"cannot read the request: its head is longer than {MAX_HEAD} bytes")
            if end < 0:
                return None
            self._head = _parse_head(bytes(self._data[:end]))
            del self._data[: end + 4]
        method, path, length = self._head
        if len(self._data) < length:
            return None
        return Request(method=method, path=path, body=bytes(self._data[:length]))


def _parse_head(head: bytes) -> tuple[str, str, int]:
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):  # noqa: PLR2004 -- RFC 9112
        raise HttpError(400, "cannot read the request line")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name == "content-length" and name in headers):
            raise HttpError(400, "cannot read a header line")
        headers[name] = value.strip()
    if "transfer-encoding" in headers:
        raise HttpError(501, "cannot take Transfer-Encoding: send Content-Length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise HttpError(400, "cannot read Content-Length")
    if int(length) > MAX_BODY:
        raise HttpError(413, f"cannot take a body of more than {MAX_BODY} bytes")
    return words[0], words[1].partition("?")[0], int(length)


def render(status: int, body: dict[str, Any]) -> bytes:
    """A whole JSON response; errors are problem documents (RFC 9457)."""
    kind = "application/json" if status < 400 else "application/problem+json"  # noqa: PLR2004 -- where errors begin
    data = json.dumps(body).encode() + b"\n"
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + data


def problem(status: int, sentence: str) -> bytes:
    """A problem document."""
    return render(status, {"type": "about:blank", "title": REASONS[status], "status": status, "detail": sentence})
