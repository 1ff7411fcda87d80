"""Frozen values as JSON and back: the configuration, the durable facts, and what an event journal holds.

The type hints of `core.spec`, `core.durable`, `core.events` and `core.actions` are the schema. A dataclass becomes an
object with every one of its fields, an enum its value, a tuple a list. Where a union holds dataclasses next to other
things than None, the object carries its class's name under `kind`. Decoding is strict: an unknown or missing field, a
bool for an int, an unknown enum value, anything that encoding would not have written is a ValueError whose sentence
says where.

The standard library alone: this module lives in the agent.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from node_manager.core.actions import Action
from node_manager.core.durable import DurableFacts
from node_manager.core.events import Event
from node_manager.core.spec import ComponentSpec, NodeSpec

KIND = "kind"
"""Key that tells the dataclasses of a union apart."""


def encode_spec(spec: NodeSpec) -> dict[str, Any]:
    """The configuration as JSON values."""
    return _encode_object(spec)


def decode_spec(data: object) -> NodeSpec:
    """The configuration that `encode_spec` wrote; ValueError for anything else."""
    spec: NodeSpec = _decoded(NodeSpec, data, "spec")
    return spec


def encode_facts(facts: DurableFacts) -> dict[str, Any]:
    """The durable facts as JSON values."""
    return _encode_object(facts)


def decode_facts(data: object) -> DurableFacts:
    """The durable facts that `encode_facts` wrote; ValueError for anything else."""
    facts: DurableFacts = _decoded(DurableFacts, data, "facts")
    return facts


def encode_component(spec: ComponentSpec) -> dict[str, Any]:
    """One component's configuration as JSON values."""
    return _encode_object(spec)


def encode_event(event: Event) -> dict[str, Any]:
    """An event as JSON values, with its class under `kind`."""
    return _encode_object(event, tagged=True)


def decode_event(data: object) -> Event:
    """The event that `encode_event` wrote; ValueError for anything else."""
    event: Event = _decoded(Event, data, "event")
    return event


def encode_action(action: Action) -> dict[str, Any]:
    """An action as JSON values, with its class under `kind`."""
    return _encode_object(action, tagged=True)


@cache
def _hints(cls: type[object]) -> dict[str, Any]:
    return get_type_hints(cls)


def _members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; a hint that is none is its own only member."""
    return get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)


# --- to JSON ------------------------------------------------------------------------------------------------------

_PLAIN = frozenset({str, int, bool, float, NoneType})
"""Classes whose values stand in JSON as they are."""


@cache
def _tagged(hint: Any) -> bool:
    """Whether an object under this hint needs its class's name: something else than None is possible."""
    return len([member for member in _members(hint) if member is not NoneType]) > 1


@cache
def _items_of(hint: Any) -> tuple[Any, ...]:
    """What stands between the brackets of a tuple's hint, which may be a member of a union."""
    return get_args(next(member for member in _members(hint) if get_origin(member) is tuple))


def _encode_object(value: Any, *, tagged: bool = False) -> dict[str, Any]:
    cls: Any = type(value)
    encoded: dict[str, Any] = {KIND: cls.__name__} if tagged else {}
    for name, hint in _hints(cls).items():
        item = getattr(value, name)
        encoded[name] = item if type(item) in _PLAIN else _encode(hint, item)
    return encoded


def _encode(hint: Any, value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, tuple):
        items = _items_of(hint)
        hints = (items[0],) * len(value) if items[-1] is Ellipsis else items
        return [_encode(item_hint, item) for item_hint, item in zip(hints, value, strict=True)]
    if isinstance(value, Enum):
        return value.value
    return _encode_object(value, tagged=_tagged(hint)) if is_dataclass(value) else value


# --- and back -----------------------------------------------------------------------------------------------------
# What decodes is made once for each hint: a configuration of hundreds of components is many values of few kinds.

Decoder = Callable[[object], Any]


class _Unfit(Exception):  # noqa: N818 - it never leaves this module
    """Why a value does not fit; `at` leads to it, from the inside out."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.at: list[str] = []


def _decoded(hint: Any, data: object, name: str) -> Any:
    """`data` as a value of the type `hint`; `name` begins the path in the error's sentence."""
    try:
        return _decoder(hint)(data)
    except _Unfit as unfit:
        path = "".join((name, *reversed(unfit.at)))
        raise ValueError(f"cannot decode {path}: {unfit}") from None


@cache
def _decoder(hint: Any) -> Decoder:
    """What makes a value of this type of JSON values; it raises _Unfit."""
    members = tuple(member for member in _members(hint) if member is not NoneType)
    decode = _member_decoder(members[0]) if len(members) == 1 else _union_decoder(members)
    if NoneType not in _members(hint):
        return decode
    return lambda data: None if data is None else decode(data)


def _member_decoder(hint: Any) -> Decoder:
    if is_dataclass(hint):
        return _object_decoder(hint)
    if get_origin(hint) is tuple:
        arguments = get_args(hint)
        return _list_decoder(arguments[0]) if arguments[-1] is Ellipsis else _tuple_decoder(arguments)
    if issubclass(hint, Enum):
        return _enum_decoder(hint)

    def exactly(data: object) -> Any:
        if type(data) is not hint:  # a bool is no int here
            raise _Unfit(f"{hint.__name__} expected, {type(data).__name__} found")
        return data

    return exactly


def _union_decoder(members: tuple[Any, ...]) -> Decoder:
    objects: list[Any] = [member for member in members if is_dataclass(member)]
    kinds = {member.__name__: _object_decoder(member) for member in objects}
    others = frozenset(member for member in members if isinstance(member, type) and not is_dataclass(member))

    def decode(data: object) -> Any:
        if isinstance(data, dict):
            kind = data.get(KIND)
            found = kinds.get(kind) if isinstance(kind, str) else None
            if found is None:
                raise _Unfit(f"{kind!r} is not a kind that may stand there")
            return found({key: data[key] for key in data if key != KIND})
        if type(data) in others:
            return data
        raise _Unfit(f"{type(data).__name__} may not stand there")

    return decode


def _enum_decoder(hint: Any) -> Decoder:
    def decode(data: object) -> Any:
        try:
            return hint(data)
        except ValueError:
            raise _Unfit(f"{data!r} is not one of {[member.value for member in hint]}") from None

    return decode


def _list_decoder(item_hint: Any) -> Decoder:
    decode_item = _decoder(item_hint)

    def decode(data: object) -> tuple[Any, ...]:
        items = _list(data)
        found: list[Any] = []
        try:
            for item in items:
                found.append(decode_item(item))  # noqa: PERF401 - how far it came is where an error is
        except _Unfit as unfit:
            unfit.at.append(f"[{len(found)}]")
            raise
        return tuple(found)

    return decode


def _tuple_decoder(hints: tuple[Any, ...]) -> Decoder:
    decoders = tuple(_decoder(hint) for hint in hints)

    def decode(data: object) -> tuple[Any, ...]:
        items = _list(data)
        if len(items) != len(decoders):
            raise _Unfit(f"{len(decoders)} items expected, {len(items)} found")
        found: list[Any] = []
        try:
            for decode_item, item in zip(decoders, items, strict=True):
                found.append(decode_item(item))
        except _Unfit as unfit:
            unfit.at.append(f"[{len(found)}]")
            raise
        return tuple(found)

    return decode


def _list(data: object) -> list[Any]:
    if not isinstance(data, list):
        raise _Unfit(f"list expected, {type(data).__name__} found")
    return data


def _object_decoder(cls: Any) -> Decoder:
    decoders = {field.name: _decoder(_hints(cls)[field.name]) for field in fields(cls)}

    def decode(data: object) -> Any:
        if not isinstance(data, dict):
            raise _Unfit(f"object expected, {type(data).__name__} found")
        if data.keys() != decoders.keys():
            unexpected = sorted(str(key) for key in data.keys() - decoders.keys())
            missing = sorted(decoders.keys() - data.keys())
            raise _Unfit(f"unexpected {', '.join(unexpected)}" if unexpected else f"{', '.join(missing)} missing")
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, decode_field in decoders.items():
                values[name] = decode_field(data[name])
        except _Unfit as unfit:
            unfit.at.append(f".{name}")
            raise
        return cls(**values)

    return decode
