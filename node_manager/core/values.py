"""`dataclass`, as the standard library's for frozen classes with slots, in a third of the time that it takes to import.

The standard library writes and compiles six functions for each class: for some hundred classes that is a third of the
agent's whole start, and an agent that comes back has components to look after. Here the constructor alone is written
for each class; what compares, hashes, prints and forbids changes is shared. What is made is the same to everybody who
uses it: `fields`, `replace`, `match`, pickling, FrozenInstanceError.
"""

import dataclasses
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    # Type checkers know this one by name, and check what constructors are given.
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - to them it is a name that this module exports
else:

    def dataclass(*, frozen: bool, slots: bool, kw_only: bool = False) -> Any:
        """Make a frozen class with slots; there is no other kind here."""
        assert frozen, "a class that can change is the standard library's"
        assert slots, "likewise"
        return lambda cls: _finished(
            dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
        )


_TO_MAKE = object()
"""The default of a field that has a factory."""


def _finished(cls: type[Any]) -> type[Any]:
    assert not hasattr(cls, "__post_init__"), "a class that checks itself is the standard library's"
    fields = dataclasses.fields(cls)
    values_of = _reader([field.name for field in fields])

    def equal(self: object, other: object) -> bool:
        return values_of(self) == values_of(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: object) -> int:
        return hash(values_of(self))

    def state_of(self: object) -> tuple[Any, ...]:
        return values_of(self)

    def fill(self: object, state: tuple[Any, ...]) -> None:
        for field, value in zip(fields, state, strict=True):
            object.__setattr__(self, field.name, value)

    made: Any = cls  # to type checkers these are not to be assigned
    made.__init__ = _constructor(fields)
    made.__eq__, made.__hash__, made.__repr__ = equal, hashed, _repr
    made.__setattr__, made.__delattr__ = _refuse_set, _refuse_delete
    made.__getstate__, made.__setstate__ = state_of, fill
    return cls


def _reader(names: list[str]) -> "Callable[[object], tuple[Any, ...]]":
    """Return what reads all fields as one tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _constructor(fields: tuple["Field[Any]", ...]) -> "Callable[..., None]":
    """Write the one function that differs from class to class: its parameters are the fields."""
    scope: dict[str, Any] = {"_set": object.__setattr__, "_TO_MAKE": _TO_MAKE}
    positional: list[str] = ["self"]
    keywords: list[str] = []
    body: list[str] = []
    for field in fields:
        name, value = field.name, field.name
        parameter = name
        if field.default_factory is not MISSING:
            scope[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_TO_MAKE"
            value = f"_make_{name}() if {name} is _TO_MAKE else {name}"
        elif field.default is not MISSING:
            scope[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        (keywords if field.kw_only else positional).append(parameter)
        body.append(f"    _set(self, {name!r}, {value})")
    parameters = ", ".join((*positional, *(("*", *keywords) if keywords else ())))
    exec(f"def __init__({parameters}):\n" + ("\n".join(body) or "    pass"), scope)  # noqa: S102 - names of our fields
    made: Callable[..., None] = scope["__init__"]
    return made


def _repr(self: Any) -> str:
    texts = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self))
    return f"{self.__class__.__qualname__}({', '.join(texts)})"


def _refuse_set(_self: object, name: str, _value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(_self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
