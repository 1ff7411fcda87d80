"""pydantic's errors as problems: with the line where the value stands and a sentence that says what would be right.

Runs in the validator alone.
"""

import difflib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from node_manager.config.document import SHOWN_CHARS, Located, Path_, shown, trap
from node_manager.config.problems import Problem

KEY = "[key]"
"""pydantic's last step of the path to a key of a mapping."""
MAX_REMEDY_CHARS = 200
"""Of a text that a remedy repeats as a list."""
NEAR = 0.6
"""difflib's own cut-off for a near miss."""


def problems_of(error: ValidationError, tree: Located, model: type[BaseModel], base: Path_ = ()) -> list[Problem]:
    """Every error of a validation as a problem. `tree` is what was validated, `base` its path in the whole."""
    return [_problem(details, tree, model, base) for details in error.errors(include_url=False)]


def suggestion(word: str, known: Iterable[str], *, what: str) -> str:
    """The remedy for an unknown word: the near miss, and all that are known."""
    names = sorted(known)
    near = near_miss(word, names)
    listed = f"{what}: {', '.join(names)}" if names else f"there are no {what}"
    return f"did you mean {near}? {listed}" if near else listed


def near_miss(word: str, known: Iterable[str]) -> str | None:
    """The known word that was meant, where there is one."""
    near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=NEAR)
    return near[0] if near else None


def _problem(details: ErrorDetails, tree: Located, model: type[BaseModel], base: Path_) -> Problem:
    kind = details["type"]
    location = tuple(step for step in details["loc"] if step != KEY)
    path, found = _walk(tree, location, keep_last=kind == "missing")
    what, remedy = _sentences(details, location, found, model)
    return found.problem((*base, *path), what, remedy)


def _walk(tree: Located, location: Path_, *, keep_last: bool) -> tuple[Path_, Located]:
    """The part of a location that exists in the file, and what stands there.

    Steps that pydantic adds for the members of a union stand in no file; the last step of a missing field does not
    either, but it is the field's name.
    """
    path: list[str | int] = []
    found = tree
    for step in location:
        below = found.child(step)
        if below is not None:
            path.append(step if isinstance(found.value, list) else str(step))
            found = below
    if keep_last:
        path.append(location[-1])
    return tuple(path), found


def _sentences(details: ErrorDetails, location: Path_, found: Located, model: type[BaseModel]) -> tuple[str, str]:
    """What is wrong, and what would be right."""
    kind = details["type"]
    context: Mapping[str, Any] = details.get("ctx", {})
    if kind == "refused":
        return str(context["problem"]), str(context["remedy"])
    if kind == "missing":
        return "it is missing", f"add it: {_description(model, location)}"
    if kind == "extra_forbidden":
        return "unknown field", suggestion(str(location[-1]), _known_fields(model, location), what="known fields")
    if kind in _EXPECTED:
        return _wrong_type(kind, location, found)
    if kind in {"enum", "literal_error"}:
        return _wrong_word(str(context["expected"]), found)
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        given = str(location[-1]) if KEY in details["loc"] else _given(found)
        return f"{given} is {words} {context[name]:g}", "give a value within the bound"
    if kind == "too_short":
        return "it is empty", "give at least one item"
    if kind in {"too_long", "string_too_long"}:
        bound = context["max_length"]
        return f"it is longer than {bound}", "no configuration needs that many; shorten it"
    return str(details["msg"]).lower(), "see the reference of this field in docs/reference"


_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {
    "greater_than_equal": ("below the least that is allowed,", "ge"),
    "less_than_equal": ("above the most that is allowed,", "le"),
}


def _wrong_type(kind: str, location: Path_, found: Located) -> tuple[str, str]:
    expected = _EXPECTED[kind]
    value = found.value
    if kind == "string_type" and (read := trap(found)):
        return f"{expected} is expected; {read}", f'for text write "{found.text}" in quotes'
    problem = f"{expected} is expected, not {_given(found)}"
    if expected == "a list" and isinstance(value, str):
        return problem, _list_remedy(location, value)
    if expected.endswith("number") and isinstance(value, str):
        if re.fullmatch(r"[0-9.]+", value):
            return problem, f"write {value} without quotes"
        if (seconds := _seconds(value)) is not None and str(location[-1]).endswith("_s"):
            return problem, f"write {seconds:g}: a name that ends in _s counts seconds"
        if number := re.fullmatch(r"([0-9.]+) ?[A-Za-z]+", value):
            return problem, f"write the number alone, such as {number[1]}"
        return problem, "write decimal digits without quotes"
    if expected == "a mapping":
        return problem, "write `{}` for one without settings, or lines of the form `key: value` below it"
    return problem, f"give {expected}, or remove the line for the default"


def _wrong_word(expected: str, found: Located) -> tuple[str, str]:
    words = [word for pair in re.findall(r"'([^']*)'|(\w+)", expected) for word in pair if word and word != "or"]
    read = trap(found) if found.value is None or isinstance(found.value, bool) else None
    given = f"{_given(found)}{f' ({read})' if read else ''}"
    return f"{given} is not allowed here", suggestion(str(found.value), words, what="allowed")


def _given(found: Located) -> str:
    value = found.value
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "null" if found.text else "nothing"
    return shown(value) if isinstance(value, str) else found.text


def _seconds(text: str) -> float | None:
    """`2m`, `1h30m`, `0.5 h` in seconds; None for what is no duration with units."""
    if not re.fullmatch(f"(?:{_DURATION.pattern})+", text[:SHOWN_CHARS].strip()):
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in _DURATION.findall(text))


_UNIT_S = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|sec|s|min|m|h|d) ?")
_COMMANDS = frozenset({"command", "pre_start"})
"""Fields whose list is a program with its arguments."""
_PLAIN = re.compile(r"-{0,2}[A-Za-z/][A-Za-z0-9_./=-]*")
_NO_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
"""Words of which YAML makes something else than text."""


def _list_remedy(location: Path_, text: str) -> str:
    """The list that one text was meant as: the words of a command, else what stands between commas or spaces."""
    command = not _COMMANDS.isdisjoint(location[-2:])
    shortened = len(text) > MAX_REMEDY_CHARS
    text = text[:MAX_REMEDY_CHARS]
    try:
        words = shlex.split(text) if command else re.split(r"[\s,]+", text.strip(" \t\n,"))
    except ValueError:  # a quote without its end
        words = text.split()
    listed = f"write [{', '.join(_item(word) for word in words)}{', ...' if shortened else ''}]"
    return f"{listed}; there is no shell" if command else listed


def _item(word: str) -> str:
    """A text as an item of a YAML list in brackets."""
    if _PLAIN.fullmatch(word) and word.lower() not in _NO_TEXT:
        return word
    return json.dumps(word, ensure_ascii=False)


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that may judge a field with this annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in models_in(argument)]


def _models_at(model: type[BaseModel], location: Path_) -> list[type[BaseModel]]:
    """The models that could judge what stands at a location; union tags, keys and indices on the way are skipped."""
    models = [model]
    for step in location:
        below = [
            found
            for candidate in models
            if step in candidate.model_fields
            for found in models_in(candidate.model_fields[str(step)].annotation)
        ]
        models = below or models
    return models


def _known_fields(model: type[BaseModel], location: Path_) -> set[str]:
    return {name for candidate in _models_at(model, location[:-1]) for name in candidate.model_fields}


def _description(model: type[BaseModel], location: Path_) -> str:
    for candidate in _models_at(model, location[:-1]):
        field = candidate.model_fields.get(str(location[-1]))
        if field is not None and field.description:
            return field.description
    return f"`{location[-1]}: ...`"
