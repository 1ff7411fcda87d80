"""The base of the core's enumerations."""

from enum import Enum


class Symbol(Enum):
    """An enumeration whose members are compared by what they are: one object each, whatever its value.

    Enum hashes a member's name in a Python function, which is most of what a look-up in a set or table of members
    costs, and every step makes dozens. Equal members are the same object, so the object's own hash serves as well.
    Like that of a name it differs between runs: nothing may depend on the order of a set.
    """

    __hash__ = object.__hash__
