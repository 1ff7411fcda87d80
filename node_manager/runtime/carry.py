"""The core's whole state as JSON and back, between two versions of this program (re-exec).

The type hints of `core` are the schema. What `config.codec` reads comes from a disk and is refused for the least
difference; here both ends are agents, perhaps of two versions: a field that is missing takes its default, and an
unknown one is left out. What cannot be understood (an enum's value, a kind of object, a value of another type) is a
ValueError that says where: a state half understood must not be acted on.

A value whose field or position leaves a choice between several dataclasses carries its class's name under `kind`.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

KIND = "kind"

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Return a value of the core as JSON values."""
    if is_dataclass(value):
        return {KIND: type(value).__name__} | {one.name: encode(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return value


def decode(cls: type[T], data: object, at: str) -> T:
    """Return the value of type `cls` that `encode` was given. Raises ValueError."""
    value: T = _decode(cls, data, at)
    return value


@cache
def _schema(cls: type[object]) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field, and whether it may be missing."""
    hints = get_type_hints(cls)
    return {
        one.name: (hints[one.name], one.default is not MISSING or one.default_factory is not MISSING)
        for one in fields(cls)  # type: ignore[arg-type]  # only dataclasses come here
    }


def _decode(hint: Any, data: object, at: str) -> Any:
    members = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    if data is None and NoneType in members:
        return None
    members = tuple(member for member in members if member is not NoneType)
    if isinstance(data, dict) and any(is_dataclass(member) for member in members):
        kind = data.get(KIND)
        for member in members:
            if isinstance(member, type) and member.__name__ == kind:
                return _object(member, data, at)
        raise ValueError(f"{at}: {kind!r} may not stand there")
    if len(members) == 1:
        return _single(members[0], data, at)
    for member in members:
        if type(data) is member:
            return data
    raise ValueError(f"{at}: {type(data).__name__} may not stand there")


def _single(hint: Any, data: object, at: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple and isinstance(data, list):
        return _tuple(arguments, data, at)
    if origin is frozenset and isinstance(data, list):
        return frozenset(_decode(arguments[0], item, f"{at}[]") for item in data)
    if origin is not None and issubclass(origin, Mapping) and isinstance(data, dict):
        return {key: _decode(arguments[1], item, f"{at}.{key}") for key, item in data.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(data)
        except ValueError:
            raise ValueError(f"{at}: {data!r} is not known") from None
    if type(data) is hint:  # a bool is no int here
        return data
    raise ValueError(f"{at}: {type(data).__name__} may not stand there")


def _tuple(arguments: tuple[Any, ...], data: list[object], at: str) -> tuple[Any, ...]:
    hints = arguments[:1] * len(data) if arguments[-1] is Ellipsis else arguments
    if len(hints) != len(data):
        raise ValueError(f"{at}: {len(hints)} items expected, {len(data)} found")
    return tuple(
        _decode(hint, item, f"{at}[{index}]") for index, (hint, item) in enumerate(zip(hints, data, strict=True))
    )


def _object(cls: Any, data: dict[str, object], at: str) -> Any:
    values: dict[str, Any] = {}
    for name, (hint, optional) in _schema(cls).items():
        if name in data:
            values[name] = _decode(hint, data[name], f"{at}.{name}")
        elif not optional:
            raise ValueError(f"{at} has no {name}")
    return cls(**values)
