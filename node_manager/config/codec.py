"""Frozen values as JSON and back: the configuration, the durable facts, and what an event journal holds.

The type hints of `core.spec`, `core.durable`, `core.events` and `core.actions` are the schema. A dataclass becomes an
object with every one of its fields, an enum its value, a tuple a list. Where a union holds dataclasses next to other
things than None, the object carries its class's name under `kind`. Decoding is strict: an unknown or missing field, a
bool for an int, an unknown enum value, anything that encoding would not have written is a ValueError whose sentence
says where.

The standard library alone: this module lives in the agent.
"""

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
    spec: NodeSpec = _decode(NodeSpec, data, "spec")
    return spec


def encode_facts(facts: DurableFacts) -> dict[str, Any]:
    """The durable facts as JSON values."""
    return _encode_object(facts)


def decode_facts(data: object) -> DurableFacts:
    """The durable facts that `encode_facts` wrote; ValueError for anything else."""
    facts: DurableFacts = _decode(DurableFacts, data, "facts")
    return facts


def encode_component(spec: ComponentSpec) -> dict[str, Any]:
    """One component's configuration as JSON values."""
    return _encode_object(spec)


def encode_event(event: Event) -> dict[str, Any]:
    """An event as JSON values, with its class under `kind`."""
    return _encode_object(event, tagged=True)


def decode_event(data: object) -> Event:
    """The event that `encode_event` wrote; ValueError for anything else."""
    event: Event = _decode(Event, data, "event")
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


def _tagged(hint: Any) -> bool:
    """Whether an object under this hint needs its class's name: something else than None is possible."""
    return len([member for member in _members(hint) if member is not NoneType]) > 1


def _encode_object(value: Any, *, tagged: bool = False) -> dict[str, Any]:
    cls: Any = type(value)
    encoded = {name: _encode(hint, getattr(value, name)) for name, hint in _hints(cls).items()}
    return {KIND: cls.__name__} | encoded if tagged else encoded


def _encode(hint: Any, value: Any) -> Any:
    if is_dataclass(value):
        return _encode_object(value, tagged=_tagged(hint))
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        arguments = get_args(next(member for member in _members(hint) if get_origin(member) is tuple))
        return [_encode(item_hint, item) for item_hint, item in zip(_item_hints(arguments, value), value, strict=True)]
    return value


def _item_hints(arguments: tuple[Any, ...], items: list[Any] | tuple[Any, ...]) -> tuple[Any, ...]:
    """The hint of each item of a tuple, whether it is `tuple[X, ...]` or `tuple[X, Y]`."""
    return (arguments[0],) * len(items) if arguments[-1] is Ellipsis else arguments


def _decode(hint: Any, data: object, at: str) -> Any:
    """`data` as a value of the type `hint`. `at` is the path for the error's sentence."""
    members = _members(hint)
    if data is None and NoneType in members:
        return None
    members = tuple(member for member in members if member is not NoneType)
    if len(members) == 1:
        return _decode_member(members[0], data, at)
    if isinstance(data, dict):
        kind = data.get(KIND)
        for member in members:
            if is_dataclass(member) and kind == member.__name__:  # type: ignore[union-attr]  # a class, not a value
                return _decode_object(member, {key: data[key] for key in data if key != KIND}, at)
        raise ValueError(f"cannot decode {at}: {kind!r} is not a kind that may stand there")
    for member in members:
        if isinstance(member, type) and type(data) is member:
            return data
    raise ValueError(f"cannot decode {at}: {type(data).__name__} may not stand there")


def _decode_member(hint: Any, data: object, at: str) -> Any:
    if is_dataclass(hint):
        return _decode_object(hint, data, at)
    if get_origin(hint) is tuple:
        return _decode_tuple(get_args(hint), data, at)
    if issubclass(hint, Enum):
        try:
            return hint(data)
        except ValueError:
            raise ValueError(f"cannot decode {at}: {data!r} is not one of {[m.value for m in hint]}") from None
    if type(data) is not hint:  # a bool is no int here
        raise ValueError(f"cannot decode {at}: {hint.__name__} expected, {type(data).__name__} found")
    return data


def _decode_tuple(arguments: tuple[Any, ...], data: object, at: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ValueError(f"cannot decode {at}: list expected, {type(data).__name__} found")  # noqa: TRY004 one kind of error
    hints = _item_hints(arguments, data)
    if len(hints) != len(data):
        raise ValueError(f"cannot decode {at}: {len(hints)} items expected, {len(data)} found")
    return tuple(
        _decode(item_hint, item, f"{at}[{index}]")
        for index, (item_hint, item) in enumerate(zip(hints, data, strict=True))
    )


def _decode_object(cls: Any, data: object, at: str) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"cannot decode {at}: object expected, {type(data).__name__} found")  # noqa: TRY004 one kind of error
    hints = _hints(cls)
    names = {field.name for field in fields(cls)}
    if unexpected := sorted(str(key) for key in data.keys() - names):
        raise ValueError(f"cannot decode {at}: unexpected {', '.join(unexpected)}")
    if missing := sorted(names - data.keys()):
        raise ValueError(f"cannot decode {at}: {', '.join(missing)} missing")
    return cls(**{name: _decode(hints[name], data[name], f"{at}.{name}") for name in hints})
