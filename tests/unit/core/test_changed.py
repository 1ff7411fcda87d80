"""Changed copies of frozen dataclasses: the same as `dataclasses.replace` makes."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

from node_manager import core
from node_manager.core.changed import replace
from node_manager.core.run import Phase, Run

RUN = Run(phase=Phase.SPAWN, started_ns=7, terms=(("controller.primary", 3),))


def dataclasses_of_core() -> Iterator[type[Any]]:
    for module in pkgutil.iter_modules(core.__path__):
        for found in vars(importlib.import_module(f"node_manager.core.{module.name}")).values():
            if dataclasses.is_dataclass(found) and isinstance(found, type) and len(dataclasses.fields(found)) > 1:
                yield found


def test_a_changed_copy_is_of_the_same_class_and_equal_to_the_standard_one() -> None:
    """What the core gets is what `dataclasses.replace` would have given it, and the original is untouched."""
    changed = replace(RUN, phase=Phase.LIVE, pid=12)
    assert dataclasses.replace(RUN, phase=Phase.LIVE, pid=12) == changed
    assert hash(dataclasses.replace(RUN, phase=Phase.LIVE, pid=12)) == hash(changed)
    assert Run is type(changed)
    assert Run(phase=Phase.SPAWN, started_ns=7, terms=(("controller.primary", 3),)) == RUN


def test_a_changed_copy_is_frozen() -> None:
    """A copy can be changed as little as what it was made from."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        replace(RUN, pid=12).pid = 13  # type: ignore[misc]


def test_an_unknown_field_is_refused() -> None:
    """A field that does not exist is our own bug, and is not dropped without a word."""
    with pytest.raises(AttributeError):
        replace(RUN, pids=12)  # type: ignore[call-arg]


@pytest.mark.parametrize("cls", sorted(set(dataclasses_of_core()), key=str))
def test_every_dataclass_of_the_core_can_be_copied(cls: type[Any]) -> None:
    """No class of the core has slots or a check of its own that the short way would miss."""
    names = [field.name for field in dataclasses.fields(cls)]
    blank = object.__new__(cls)
    for name in names:
        object.__setattr__(blank, name, name)
    copy = replace(blank)
    assert cls is type(copy)
    assert names == [getattr(copy, name) for name in names]
