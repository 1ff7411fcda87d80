"""Request bodies and query strings, checked by hand and strictly: what is not understood is refused by name."""

import json
import re
from collections.abc import Collection
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from node_manager.api.limits import MAX_DEADLINE_S, MAX_JSON_DEPTH, MAX_REASON_LENGTH
from node_manager.api.messages import JSON, Problem, Request
from node_manager.api.text import claimed_name, printable

_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""A whole string (its end may be missing) or one bracket. Possessive, so that it takes linear time."""
_MAX_QUERY_FIELDS = 8
"""Parameters in one query string; no endpoint has more than three."""
_DIGITS = re.compile(r"[0-9]{1,18}")
"""A sequence number or a count that fits 64 bits."""


def read_object(request: Request, known: Collection[str]) -> dict[str, Any]:
    """Parse the body as one JSON object whose fields are all in `known`; an empty body is an empty object.

    Raises Problem 400 or 415.
    """
    if not request.body:
        return {}
    media_type = request.content_type.partition(";")[0].strip().lower()
    if media_type != JSON:
        raise Problem(415, f"cannot read the body: it must be JSON; send Content-Type: {JSON}")
    if _depth(request.body) > MAX_JSON_DEPTH:
        raise Problem(400, f"cannot read the body: it is nested deeper than {MAX_JSON_DEPTH} levels")
    try:
        value = json.loads(request.body.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except ValueError as error:
        raise Problem(400, f"cannot read the body: {error}") from error
    if not isinstance(value, dict):
        raise Problem(400, "cannot read the body: it must be a JSON object")
    unknown = sorted(printable(name)[:MAX_REASON_LENGTH] for name in value if name not in known)
    if unknown:
        allowed = ", ".join(sorted(known)) or "none"
        raise Problem(400, f"cannot read the body: unknown field {unknown[0]!r}; known fields: {allowed}")
    return value


def who(fields: dict[str, Any], uid: int) -> str:
    """Name the caller: the uid is the kernel's word, the name only its own claim (`by`)."""
    claim = claimed_name(_text(fields, "by"))
    return f"{claim} (uid {uid})" if claim else f"uid {uid}"


def reason(fields: dict[str, Any]) -> str:
    """Read the reason, made printable; too long a one is refused so that nobody's sentence loses its end."""
    text = printable(" ".join(_text(fields, "reason").split()))
    if len(text) > MAX_REASON_LENGTH:
        raise Problem(400, f"cannot use reason: it has {len(text)} characters, at most {MAX_REASON_LENGTH} are kept")
    return text


def deadline_s(fields: dict[str, Any]) -> float | None:
    """Read a drain deadline in seconds from now."""
    value = fields.get("deadline_s")
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= MAX_DEADLINE_S:
        raise Problem(
            400, f"cannot use deadline_s: it must be a number of seconds above 0, at most {MAX_DEADLINE_S} (30 days)"
        )
    return float(value)


def flag(fields: dict[str, Any], name: str) -> bool:
    """Read a boolean that must be there."""
    value = fields.get(name)
    if not isinstance(value, bool):
        raise Problem(400, f"cannot use {name}: it must be given, as true or false")
    return value


def read_query(query: str, known: Collection[str]) -> dict[str, int]:
    """Parse a query string whose parameters are all in `known` and are whole numbers, each given once at most.

    Raises Problem 400.
    """
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=_MAX_QUERY_FIELDS)
    except ValueError as error:
        raise Problem(400, f"cannot read the query string: {error}") from error
    found: dict[str, int] = {}
    for name, value in pairs:
        if name not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise Problem(400, f"unknown query parameter {printable(name)!r}; known parameters: {allowed}")
        if name in found:
            raise Problem(400, f"query parameter {name} is given twice")
        if not _DIGITS.fullmatch(value):
            raise Problem(400, f"query parameter {name} must be a whole number, not {printable(value)!r}")
        found[name] = int(value)
    return found


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise Problem(400, f"cannot use {name}: it must be a string")
    return value


def _depth(body: bytes) -> int:
    """Greatest nesting of brackets outside strings, found before anything recursive sees the body."""
    depth = deepest = 0
    for token in _NESTING.finditer(body):
        match token.group():
            case b"[" | b"{":
                depth += 1
                deepest = max(deepest, depth)
            case b"]" | b"}":
                depth -= 1
            case _:
                pass
    return deepest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field is given twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
