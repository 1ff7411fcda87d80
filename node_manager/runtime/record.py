"""The runtime record `runtime.json`: what runs now, for the next agent of this boot.

It holds what the core could not know again: which process is whose, leased facts, exit-holds. It is written at every
change, so each component's part is kept as text and only what changed is made anew. It need not survive a reboot;
a record of another boot, torn or unreadable, is an empty one with a reason, and the markers find the processes.
"""

import json
import os
import types
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from node_manager.core.events import Found, KeptHold, KeptLease, Past
from node_manager.runtime import kernel

MAX_RECORD_BYTES = 8 * 1024 * 1024
"""Bound on what is read: a record of MAX_PARTS components has about 2 MiB."""
MAX_PARTS = 4096
"""Processes, leases, holds or terms in one record; far above the components of any host."""
_MAX_TEXT = 4096
_VERSION = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A main process as the record keeps it: what the core knows, and the start time that proves the pid."""

    found: Found
    start_ticks: int
    cgroup: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeRecord:
    """The whole record. `nonce` is the one its processes were started with."""

    boot_id: str
    nonce: str
    agent_pid: int = 0
    processes: tuple[Kept, ...] = ()
    past: tuple[Past, ...] = ()
    """Every component, with or without a process: its generations go on from there."""
    leases: tuple[KeptLease, ...] = ()
    holds: tuple[KeptHold, ...] = ()
    highest_terms: tuple[tuple[str, int], ...] = ()


class Encoder:
    """Makes the record's text; remembers each component's parts."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[Kept, str]] = {}
        self._past: dict[str, tuple[Past, str]] = {}

    def encode(self, record: RuntimeRecord) -> bytes:
        """One JSON object, a line for each component's past and for each process."""
        self._parts = {
            kept.found.component: _remembered(self._parts.get(kept.found.component), kept, _encode_process)
            for kept in record.processes
        }
        self._past = {
            past.component: _remembered(self._past.get(past.component), past, _encode_past) for past in record.past
        }
        head = json.dumps(
            {
                "version": _VERSION,
                "boot_id": record.boot_id,
                "nonce": record.nonce,
                "agent_pid": record.agent_pid,
                "leases": [_flat(lease) for lease in record.leases],
                "holds": [_flat(hold) for hold in record.holds],
                "highest_terms": record.highest_terms,
            }
        )
        past = ",\n".join(text for _past, text in self._past.values())
        processes = ",\n".join(text for _kept, text in self._parts.values())
        return f'{head[:-1]}, "past": [\n{past}\n], "processes": [\n{processes}\n]}}\n'.encode()


def decode(data: bytes) -> RuntimeRecord:
    """The record that `Encoder` wrote. ValueError with a clause for anything else.

    A field that is missing takes its default and an unknown one is ignored, so that an agent of another version
    adopts; a field of the wrong kind is refused.
    """
    if len(data) > MAX_RECORD_BYTES:
        raise ValueError(f"it is larger than {MAX_RECORD_BYTES} bytes")
    try:
        body = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"it is not complete JSON ({error})") from error
    if not isinstance(body, dict) or body.get("version") != _VERSION:
        raise ValueError("it has another format")
    return RuntimeRecord(
        boot_id=_checked(str, body.get("boot_id"), "boot_id"),
        nonce=_checked(str, body.get("nonce"), "nonce"),
        agent_pid=_checked(int, body.get("agent_pid"), "agent_pid"),
        processes=tuple(_kept(entry) for entry in _list(body, "processes")),
        leases=tuple(_object(KeptLease, entry, "leases") for entry in _list(body, "leases")),
        holds=tuple(_object(KeptHold, entry, "holds") for entry in _list(body, "holds")),
        past=tuple(_object(Past, entry, "past") for entry in _list(body, "past")),
        highest_terms=_checked(tuple[tuple[str, int], ...], body.get("highest_terms"), "highest_terms"),
    )


def read(path: Path, *, boot_id: str, nonce: str) -> tuple[RuntimeRecord, str | None]:
    """The record of this boot; else an empty one, and why (None: this is the boot's first agent).

    A record with another nonce (its file was lost in between) is good all the same: pid and start time prove its
    processes.
    """
    empty = RuntimeRecord(boot_id=boot_id, nonce=nonce)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor, opened without following links
            record = decode(file.read(MAX_RECORD_BYTES + 1))
    except FileNotFoundError:
        return empty, None
    except OSError as error:
        return empty, f"cannot read {path}: {kernel.explain(error)}"
    except ValueError as error:
        return empty, f"cannot use {path}: {error}"
    if record.boot_id != boot_id:
        return empty, f"{path} is of another boot"
    return record, None


def _flat(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _remembered(known: tuple[T, str] | None, value: T, encode: Callable[[T], str]) -> tuple[T, str]:
    """The value with its text: what is known, where that is of the same value; most often it is the same object."""
    if known is not None and (known[0] is value or known[0] == value):
        return known
    return value, encode(value)


def _encode_past(past: Past) -> str:
    return json.dumps(_flat(past))


def _encode_process(kept: Kept) -> str:
    return json.dumps(_flat(kept.found) | {"start_ticks": kept.start_ticks, "cgroup": kept.cgroup})


def _kept(entry: dict[str, Any]) -> Kept:
    start_ticks = _checked(int, entry.get("start_ticks"), "processes.start_ticks")
    cgroup = _checked(str, entry.get("cgroup", ""), "processes.cgroup")
    return Kept(found=_object(Found, entry, "processes"), start_ticks=start_ticks, cgroup=cgroup)


def _list(body: dict[str, Any], key: str) -> list[Any]:
    value = body.get(key)
    if not isinstance(value, list) or len(value) > MAX_PARTS or not all(isinstance(one, dict) for one in value):
        raise ValueError(f"{key} is not a list of objects")
    return value


@cache
def _hints(name: str) -> dict[str, Any]:
    """The fields' types, worked out once; by name, because a type variable is no key for mypy."""
    return get_type_hints({cls.__name__: cls for cls in (Found, KeptLease, KeptHold, Past)}[name])


def _object(cls: type[T], data: dict[str, Any], at: str) -> T:
    """A flat frozen value from a JSON object."""
    values: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]  # T is one of four dataclasses
        if field.name in data:
            values[field.name] = _checked(_hints(cls.__name__)[field.name], data[field.name], f"{at}.{field.name}")
        elif field.default is MISSING:
            raise ValueError(f"{at} has no {field.name}")
    return cls(**values)


def _checked(hint: Any, value: Any, at: str) -> Any:
    """The value where it has the type that the hint says, lists as tuples; else ValueError."""
    if isinstance(hint, types.UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is tuple:
        item, *rest = get_args(hint)
        if isinstance(value, list) and len(value) <= MAX_PARTS:
            if rest == [Ellipsis]:
                return tuple(_checked(item, one, at) for one in value)
            if len(value) == len(rest) + 1:
                return tuple(_checked(part, one, at) for part, one in zip(get_args(hint), value, strict=True))
    elif type(value) is hint and not (isinstance(value, str) and len(value) > _MAX_TEXT):
        return value
    raise ValueError(f"{at} has a value of the wrong kind")
