"""Reads tests/vectors/heartbeat.txt, whose own comment says what the lines mean."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PATH = Path(__file__).parents[1] / "vectors" / "heartbeat.txt"
_ESCAPE = re.compile(rb"\\(n|\\|x[0-9a-f]{2})")


@dataclass
class Vector:
    name: str
    source: str = ""
    records: list[bytes] = field(default_factory=list)
    malformed: bool = False
    sends: bool = False
    set_status: str | None = None
    known: list[tuple[str, str]] = field(default_factory=list)


def vectors() -> Iterator[Vector]:
    """Every case of the file, in its order."""
    vector: Vector | None = None
    for line in PATH.read_bytes().split(b"\n"):
        if not line or line.startswith(b"#"):
            continue
        word, _, rest = line.partition(b" ")
        if word == b"case":
            if vector is not None:
                yield vector
            vector = Vector(rest.decode())
            continue
        assert vector is not None, "a case begins with its name"
        _take(vector, word.decode(), rest)
    if vector is not None:
        yield vector


def _take(vector: Vector, word: str, rest: bytes) -> None:
    match word:
        case "from":
            vector.source = rest.decode()
        case "record":
            vector.records.append(_bytes(rest))
        case "more":
            vector.records[-1] += _bytes(rest)
        case "times":
            count, _, text = rest.partition(b" ")
            vector.records[-1] += int(count) * _bytes(text)
        case "keys":
            vector.records[-1] += b"".join(b"K%d=\n" % number for number in range(int(rest)))
        case "leases":
            vector.records[-1] += b"".join(b"LEASE.l%d=lost\n" % number for number in range(int(rest)))
        case "malformed":
            vector.malformed = True
        case "sends":
            vector.sends = True
        case "set":
            vector.set_status = _bytes(rest).decode().removeprefix("status ")
        case "is":
            key, _, value = rest.partition(b" ")
            vector.known.append((key.decode(), _bytes(value).decode()))
        case _:
            raise AssertionError(f"{word!r} is no word of the vectors")


def _bytes(text: bytes) -> bytes:
    def one(match: re.Match[bytes]) -> bytes:
        what = match[1]
        return b"\n" if what == b"n" else b"\\" if what == b"\\" else bytes.fromhex(what[1:].decode())

    return _ESCAPE.sub(one, text)
