"""Frozen classes of the core: the same as the standard library's, in everything that is done with them."""

import copy
import dataclasses
import importlib
import pickle
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import Any

import pytest

import node_manager.core
from node_manager.core import values


@values.dataclass(frozen=True, slots=True)
class Ours:
    a: int
    b: tuple[int, ...] = (1, 2)
    c: dict[str, int] = field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    a: int
    b: tuple[int, ...] = (1, 2)
    c: dict[str, int] = field(default_factory=dict)


@values.dataclass(frozen=True, slots=True, kw_only=True)
class OurNamed:
    a: int
    b: str = "x"


@values.dataclass(frozen=True, slots=True, kw_only=True)
class OurSingle:
    a: object


@values.dataclass(frozen=True, slots=True)
class OurEmpty:
    pass


def of_core() -> Iterator[type[Any]]:
    for path in sorted(Path(node_manager.core.__file__).parent.glob("*.py")):
        module = importlib.import_module(f"node_manager.core.{path.stem}")
        for found in vars(module).values():
            if isinstance(found, type) and dataclasses.is_dataclass(found) and found.__module__ == module.__name__:
                yield found


def test_it_is_made_as_the_standard_librarys() -> None:
    """Fields by position and by name, defaults, a new object of each factory; wrong arguments are refused."""
    for cls in (Ours, Theirs):
        made = cls(1)
        assert (made.a, made.b, made.c) == (1, (1, 2), {})
        assert cls(1).c is not made.c
        assert (cls(1, (3,), c={"k": 4}).b, cls(1, (3,), c={"k": 4}).c) == ((3,), {"k": 4})
        wrongs: tuple[dict[str, Any], ...] = ({}, {"a": 1, "d": 2})
        for wrong in wrongs:
            with pytest.raises(TypeError):
                cls(**wrong)
    with pytest.raises(TypeError):
        OurNamed(1)  # type: ignore[call-arg]  # by name alone
    assert OurNamed(a=1).b == "x"
    assert OurEmpty() == OurEmpty()


def test_it_compares_and_hashes_by_its_fields() -> None:
    """Equal fields of the same class are equal and hash alike; of another class they are not."""
    assert OurNamed(a=1) == OurNamed(a=1, b="x") != OurNamed(a=1, b="y")
    assert hash(OurNamed(a=1)) == hash(OurNamed(a=1, b="x"))
    assert {OurSingle(a=(1,)), OurSingle(a=(1,)), OurSingle(a=1)} == {OurSingle(a=1), OurSingle(a=(1,))}
    different: tuple[object, ...] = (Theirs(1), OurNamed(a=1), None)
    assert [other for other in different if Ours(1) == other] == []
    with pytest.raises(TypeError, match="unhashable"):
        hash(Ours(1))


def test_it_cannot_be_changed() -> None:
    """Neither a field nor anything else can be set or deleted, and there is no room for more."""
    made = OurNamed(a=1)
    for name in ("a", "new"):
        with pytest.raises(FrozenInstanceError):
            setattr(made, name, 2)
    with pytest.raises(FrozenInstanceError):
        del made.a
    assert not hasattr(made, "__dict__")
    assert made == OurNamed(a=1)


def test_the_tools_of_the_standard_library_take_it() -> None:
    """Fields, replace, asdict, match, copies, pickles and its text: as of the standard library's class."""
    ours, theirs = Ours(1, c={"k": 2}), Theirs(1, c={"k": 2})
    assert [one.name for one in dataclasses.fields(ours)] == [one.name for one in dataclasses.fields(theirs)]
    assert dataclasses.replace(ours, a=5) == Ours(5, c={"k": 2})
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert Ours.__match_args__ == Theirs.__match_args__
    assert repr(ours).replace("Ours", "Theirs") == repr(theirs)
    for made in (ours, OurSingle(a=1), OurEmpty()):
        assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == copy.copy(made) == made  # noqa: S301 - our own
    match OurNamed(a=3):
        case OurNamed(a=found):
            assert found == 3


def test_every_class_of_the_core_is_frozen_with_slots() -> None:
    """All that a step works on: nobody can change it in place."""
    classes = list(of_core())
    assert len(classes) > 80
    for cls in classes:
        assert not hasattr(cls, "__dict__") or "__slots__" in vars(cls)
        with pytest.raises(FrozenInstanceError):
            setattr(object.__new__(cls), next((one.name for one in dataclasses.fields(cls)), "x"), 1)


def test_what_it_is_not_for_is_refused() -> None:
    """A class that can change, or that checks itself, would lose that here without a word."""
    with pytest.raises(AssertionError):
        values.dataclass(frozen=False, slots=True)
    with pytest.raises(AssertionError):
        values.dataclass(frozen=True, slots=False)

    class Checks:
        a: int

        def __post_init__(self) -> None:
            """Would be forgotten."""

    with pytest.raises(AssertionError):
        values.dataclass(frozen=True, slots=True)(Checks)
