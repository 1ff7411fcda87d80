r"""Records of the heartbeat protocol, version 1: text to fields and fields to text. No I/O.

A record is one SOCK_SEQPACKET message of at most `MAX_RECORD_BYTES`: lines `KEY=VALUE\n` in UTF-8. The newline of the
last line may be missing, as sd_notify(3) allows it. Keys are ASCII letters, digits, `_`, `.` and `-`, each at most once
in a record. No byte below 0x20 stands in a value: `encode` replaces it by a space, `decode` refuses it.

What does not fit in one record goes out in parts, each a complete record that begins with `PART=i/n`. A key and the
attributes that follow it (`FACT.x`, `FACT.x.TERM`) stay in the same part. The full specification is
docs/reference/heartbeat-protocol.md.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from node_manager.core.events import Beat, HostState, Leadership, LeaseStatement
from node_manager.core.spec import NS_PER_MS

VERSION = "1"

MAX_RECORD_BYTES = 8192
"""One page pair: room for a hundred components, and small enough to be read whole from any peer."""
MAX_PARTS = 8
"""Parts of one state. A Unix socket's default send buffer (208 KiB, counted with its overhead) takes all of them."""
MAX_KEY_BYTES = 128
"""Above the longest key, `FACT.component.NAME.ready.VALID_UNTIL_NS` with a NAME of 64."""
MAX_VALUE_BYTES = 2048
"""A sender cuts longer values off; only texts for people (STATUS) come near it."""
MAX_KEYS = 512
"""Keys of one record: more than 8 KiB of real keys hold, fewer than 2730 lines of `A=`."""
MAX_LEASES = 32
"""Leases that one record may speak of."""
MAX_INTEGER = 2**63 - 1
"""Numbers are what an int64_t holds, never negative."""
MIN_INTERVAL_MS = 100
MAX_INTERVAL_MS = 60_000
MAX_STATUS_CHARS = 512
"""What is kept of a STATUS text: it is one line of a table, and there is one for each component."""
MAX_NAME_CHARS = 256
"""Longest TEMPLATE taken."""

Pairs = Sequence[tuple[str, str]]
"""Keys and values in the order in which they are to be sent."""

_KEY = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_KEY_BYTES}}}")
_CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f]")
_BLANKS = dict.fromkeys(range(0x20), " ")
_ATTRIBUTE = re.compile(r"[A-Z][A-Z0-9_]*")
_NUMBER = re.compile(r"[0-9]{1,19}")
_PART_HEADER_BYTES = len(f"PART={MAX_PARTS}/{MAX_PARTS}\n")
_FOLLOWING = frozenset({"TERM", "VALID_UNTIL_NS", "EPOCH", "DRAIN_DEADLINE_NS"})
"""Keys that belong to the one before them: a statement is never divided."""
_SHOWN_CHARS = 40
"""How much of a peer's text an error message repeats."""

_E = TypeVar("_E", bound=Enum)


class MalformedRecord(ValueError):  # noqa: N818  the word of the protocol's text
    """A record that breaks the protocol. `reason` is a sentence for the log and the status."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Part:
    """One record ready to be sent, and the pairs that it carries."""

    record: bytes
    pairs: tuple[tuple[str, str], ...]


def encode(pairs: Pairs) -> list[bytes]:
    """Turn pairs into records: none for no pairs, one where it fits, else up to `MAX_PARTS` parts in order.

    Whatever does not fit in `MAX_PARTS` is left out, so put first what matters most. A value longer than
    `MAX_VALUE_BYTES` is cut off. ValueError for a key that is not allowed, that occurs twice, or is `PART`.
    """
    return [part.record for part in encode_parts(pairs)]


def encode_parts(pairs: Pairs) -> list[Part]:
    """Like `encode`, but tell which pairs each record carries."""
    lines = _lines(pairs)
    if not lines:
        return []
    whole = b"".join(lines)
    if len(whole) <= MAX_RECORD_BYTES and len(lines) <= MAX_KEYS:
        return [Part(whole, tuple(pairs))]
    ranges = list(_ranges(pairs, lines))[:MAX_PARTS]
    return [
        Part(f"PART={number}/{len(ranges)}\n".encode() + b"".join(lines[start:end]), tuple(pairs[start:end]))
        for number, (start, end) in enumerate(ranges, 1)
    ]


def decode(record: bytes) -> dict[str, str]:
    """Take a record apart. Raises `MalformedRecord`, and nothing else, for any bytes."""
    if not record:
        raise MalformedRecord("empty record")
    if len(record) > MAX_RECORD_BYTES:
        raise MalformedRecord(f"longer than {MAX_RECORD_BYTES} bytes")
    if control := _CONTROL.search(record):
        raise MalformedRecord(f"control byte 0x{record[control.start()]:02x}")
    try:
        text = record.decode()
    except UnicodeDecodeError as error:
        raise MalformedRecord(f"not UTF-8 at byte {error.start}") from None
    lines = text.removesuffix("\n").split("\n")
    if len(lines) > MAX_KEYS:
        raise MalformedRecord(f"more than {MAX_KEYS} keys")
    fields: dict[str, str] = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if not equals:
            raise MalformedRecord(f"line without '=': {_shown(line)}")
        if not _KEY.fullmatch(key):
            raise MalformedRecord(f"not a key: {_shown(key)}" if key else "empty key")
        if key in fields:
            raise MalformedRecord(f"{_shown(key)} occurs twice")
        fields[key] = value
    return fields


def part_of(fields: Mapping[str, str]) -> tuple[int, int]:
    """Return (i, n) of `PART=i/n`; (1, 1) for a record that is not one of several. Raises `MalformedRecord`."""
    text = fields.get("PART")
    if text is None:
        return 1, 1
    number, _, count = text.partition("/")
    if not (_NUMBER.fullmatch(number) and _NUMBER.fullmatch(count) and 1 <= int(number) <= int(count) <= MAX_PARTS):
        raise MalformedRecord(f"PART must be i/n with 1 <= i <= n <= {MAX_PARTS}, not {_shown(text)}")
    return int(number), int(count)


def split_attribute(rest: str) -> tuple[str, str | None]:
    """Split what follows `FACT.`, `COMPONENT.` or `LEASE.` into a name and its attribute.

    The attribute is the last of several dotted segments, where it is in upper case: `controller.primary.TERM` is
    ("controller.primary", "TERM"), `controller.primary` is a name alone.
    """
    name, dot, last = rest.rpartition(".")
    if dot and _ATTRIBUTE.fullmatch(last):
        return name, last
    return rest, None


def read_integer(text: str | None) -> int | None:
    """Read a number as the protocol writes it; None where there is none or it is not one."""
    if text is None or not _NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if number <= MAX_INTEGER else None


def beat_from(fields: Mapping[str, str], component: str, generation: int) -> Beat:
    """Make an event of a component's record, every value checked. Unknown keys are ignored.

    `component` and `generation` are what the kernel's credentials say, not what the record claims. Raises
    `MalformedRecord` for a value out of its range, an unknown version, or a hello that lacks what it must have.
    """
    version = fields.get("XCE_HEARTBEAT")
    if version is not None:
        if version != VERSION:
            raise MalformedRecord(
                f"unknown protocol version {_shown(version)}: this agent speaks XCE_HEARTBEAT={VERSION}"
            )
        for key in ("COMPONENT", "INTERVAL_MS"):
            if not fields.get(key):
                raise MalformedRecord(f"a hello needs {key}")
    part_of(fields)
    interval_ms = _integer(fields, "INTERVAL_MS", MIN_INTERVAL_MS, MAX_INTERVAL_MS)
    template = fields.get("TEMPLATE")
    if template is not None and len(template) > MAX_NAME_CHARS:
        raise MalformedRecord(f"TEMPLATE is longer than {MAX_NAME_CHARS} characters")
    status = fields.get("STATUS")
    return Beat(
        component=component,
        generation=generation,
        hello=version is not None,
        interval_ns=None if interval_ms is None else interval_ms * NS_PER_MS,
        beat=_integer(fields, "BEAT"),
        template=template,
        ready=_flag(fields, "READY"),
        stopping=_flag(fields, "STOPPING"),
        status=None if status is None else status[:MAX_STATUS_CHARS],
        progress=_integer(fields, "PROGRESS"),
        jobs=_integer(fields, "JOBS"),
        leadership=_choice(fields, "LEADERSHIP", Leadership),
        term=_integer(fields, "TERM"),
        valid_until_ns=_integer(fields, "VALID_UNTIL_NS"),
        host_state=_choice(fields, "HOST_STATE", HostState),
        epoch=_integer(fields, "EPOCH"),
        drain_deadline_ns=_integer(fields, "DRAIN_DEADLINE_NS"),
        leases=_leases(fields),
    )


def _lines(pairs: Pairs) -> list[bytes]:
    seen = set()
    lines = []
    for key, value in pairs:
        if not _KEY.fullmatch(key) or key == "PART":
            raise ValueError(f"cannot encode {_shown(key)}: not a key that a record may carry")
        if key in seen:
            raise ValueError(f"cannot encode {_shown(key)}: it occurs twice")
        seen.add(key)
        text = value.translate(_BLANKS).encode("utf-8", "replace")
        if len(text) > MAX_VALUE_BYTES:
            text = text[:MAX_VALUE_BYTES].decode("utf-8", "ignore").encode()
        lines.append(key.encode() + b"=" + text + b"\n")
    return lines


def _ranges(pairs: Pairs, lines: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Cut the lines into ranges that each fit in a part, between groups where possible."""
    room = MAX_RECORD_BYTES - _PART_HEADER_BYTES
    begin = size = 0
    for start, end in _chunks(pairs, lines, room):
        chunk = sum(map(len, lines[start:end]))
        if start > begin and (size + chunk > room or end - begin >= MAX_KEYS):
            yield begin, start
            begin, size = start, 0
        size += chunk
    yield begin, len(lines)


def _chunks(pairs: Pairs, lines: Sequence[bytes], room: int) -> Iterator[tuple[int, int]]:
    """Ranges that must not be cut: a statement, a key's attributes with or without it; of what is too large, a line."""
    start = 0
    while start < len(pairs):
        named = split_attribute(pairs[start][0])[0]
        end = start + 1
        while end < len(pairs) and (split_attribute(pairs[end][0])[0] == named or pairs[end][0] in _FOLLOWING):
            end += 1
        if sum(map(len, lines[start:end])) > room or end - start >= MAX_KEYS:
            yield from ((line, line + 1) for line in range(start, end))
        else:
            yield start, end
        start = end


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…")


def _integer(fields: Mapping[str, str], key: str, low: int = 0, high: int = MAX_INTEGER) -> int | None:
    text = fields.get(key)
    if text is None:
        return None
    number = read_integer(text)
    if number is None or not low <= number <= high:
        raise MalformedRecord(f"{key} must be a number from {low} to {high}, not {_shown(text)}")
    return number


def _flag(fields: Mapping[str, str], key: str) -> bool | None:
    text = fields.get(key)
    if text is None:
        return None
    if text not in {"0", "1"}:
        raise MalformedRecord(f"{key} must be 0 or 1, not {_shown(text)}")
    return text == "1"


def _choice(fields: Mapping[str, str], key: str, values: type[_E]) -> _E | None:
    text = fields.get(key)
    if text is None:
        return None
    try:
        return values(text)
    except ValueError:
        raise MalformedRecord(f"{key} must be {_one_of(m.value for m in values)}, not {_shown(text)}") from None


def _one_of(words: Iterable[str]) -> str:
    return " or ".join(words)


def _leases(fields: Mapping[str, str]) -> tuple[LeaseStatement, ...]:
    statements = []
    for key, value in fields.items():
        if not key.startswith("LEASE."):
            continue
        name, attribute = split_attribute(key.removeprefix("LEASE."))
        if attribute is not None:
            if attribute in {"TOKEN", "VALID_UNTIL_NS"} and f"LEASE.{name}" not in fields:
                raise MalformedRecord(f"{_shown(key)} without LEASE.{_shown(name)}")
            continue
        if not name or value not in {"held", "lost"}:
            raise MalformedRecord(f"{_shown(key)} must be held or lost, not {_shown(value)}")
        statements.append(
            LeaseStatement(
                name=name,
                held=value == "held",
                token=_integer(fields, f"{key}.TOKEN"),
                valid_until_ns=_integer(fields, f"{key}.VALID_UNTIL_NS"),
            )
        )
    if len(statements) > MAX_LEASES:
        raise MalformedRecord(f"more than {MAX_LEASES} leases")
    return tuple(statements)
