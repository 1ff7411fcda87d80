"""`replace`, as `dataclasses.replace` for the core's frozen dataclasses, in a fifth of its time.

Nearly all that a step does is to make changed copies of its frozen state, so their price is the price of the core: a
manager's agent spends it thousands of times in a storm of heartbeats, the simulator billions of times in a night.
`dataclasses.replace` looks at every field and then sets each through `object.__setattr__`, because the class is
frozen. Here a twin of the class, with the same slots but not frozen, is filled and then declared to be of the class.
"""

from collections.abc import Callable
from dataclasses import fields, make_dataclass
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Type checkers know this one by name, and check the names and types of what is changed.
    from dataclasses import replace as replace  # noqa: PLC0414 - to them it is a name that this module exports
else:

    def replace(old: Any, /, **changes: Any) -> Any:
        """Return a copy of a frozen, slotted dataclass with these fields changed."""
        cls = old.__class__
        twin, values_of = _twin(cls)
        new = twin(*values_of(old))
        for name, value in changes.items():
            setattr(new, name, value)  # the twin has no other slots: an unknown name is an AttributeError
        new.__class__ = cls
        return new


@cache
def _twin(cls: type[Any]) -> tuple[type[Any], Callable[[object], tuple[Any, ...]]]:
    """Return a class with the slots of `cls` that can be changed, and what reads all fields in its order.

    A class that checks itself when it is made would go unchecked here; one field alone is no tuple to `attrgetter`.
    """
    names = [field.name for field in fields(cls)]
    assert len(names) > 1, "a dataclass with one field is made anew"
    assert not hasattr(cls, "__post_init__"), "a dataclass that checks itself is made anew"
    return make_dataclass(cls.__name__, names, slots=True), attrgetter(*names)
