"""One YAML file as values that know where they stand.

YAML 1.1 is read more strictly than `yaml.safe_load` does: no duplicate keys, no numbers in a notation that means
something else than it looks (`010`, `1:30`, `1_000`), no dates, no tags of other languages. What remains is text,
decimal numbers, true and false, null, lists and mappings, each with its line. Runs in the validator alone.
"""

import os
import re
import stat
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import yaml
import yaml.composer
import yaml.constructor
import yaml.reader

from node_manager.config.problems import Problem
from node_manager.config.sources import MAX_FILE_BYTES

MAX_DEPTH = 32
"""Nesting: a role file needs eight levels. Bounds the recursion of the parser and of this module."""
MAX_VALUES = 50_000
"""Values of one file after aliases were followed: stops the "billion laughs"."""
MAX_PROBLEMS = 100
"""Problems that are reported: whoever sees more has the wrong file."""
SHOWN_CHARS = 60
"""Of a value in a problem's sentence."""

_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FRACTION = re.compile(r"[-+]?[0-9]{1,17}\.[0-9]{0,17}([eE][-+][0-9]{1,3})?")
_TAG = "tag:yaml.org,2002:"

Path_ = tuple[str | int, ...]
"""Keys and indices from the root of a file to a value."""


@dataclass(frozen=True, slots=True)
class Located:
    """A value and where it stands: the line of its key, of its list item, or of the document's beginning.

    `text` is a scalar as it is written; `plain` tells that it is written without quotes, so that YAML chose its type.
    """

    value: "dict[str, Located] | list[Located] | str | int | float | bool | None"
    file: str
    line: int
    text: str = ""
    plain: bool = False

    def child(self, step: str | int) -> "Located | None":
        """What stands under a key or at an index, if anything does."""
        if isinstance(self.value, dict):
            return self.value.get(str(step))
        if isinstance(self.value, list) and isinstance(step, int) and 0 <= step < len(self.value):
            return self.value[step]
        return None

    def at(self, path: Path_) -> "Located | None":
        """What stands at the end of a path, if anything does."""
        found: Located | None = self
        for step in path:
            if found is None:
                return None
            found = found.child(step)
        return found

    def unlocated(self) -> Any:
        """The bare value, for pydantic."""
        if isinstance(self.value, dict):
            return {key: item.unlocated() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.unlocated() for item in self.value]
        return self.value

    def problem(self, path: Path_, problem: str, remedy: str) -> Problem:
        """A problem of the field `path`, at this value's line."""
        return Problem(file=self.file, line=self.line, field=dotted(path), problem=problem, remedy=remedy)


def dotted(path: Path_) -> str:
    """`("controllers", 1)` is `controllers[1]`; keys are joined by dots."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def shown(value: object, *, quoted: bool = True) -> str:
    """A value for a sentence: bounded, on one line."""
    text = str(value) if isinstance(value, str) and not quoted else repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def read(path: Path, problems: list[Problem], *, empty: str = "write the configuration into it") -> Located | None:
    """The mapping that a file holds. None, and at least one more problem, when it holds none that can be used.

    `empty` is the remedy for a file in which nothing stands.
    """
    raw = _read_bytes(path, problems)
    if raw is None:
        return None
    file = str(path)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        problems.append(Problem(file, line, "", what, "save the file in the encoding UTF-8"))
        return None
    return _Reader(file, problems, empty).document(text)


def _read_bytes(path: Path, problems: list[Problem]) -> bytes | None:
    """What a regular file holds. Opening never waits: a FIFO or a device is refused, not read."""
    file = str(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        problems.append(_unreadable(file, error))
        return None
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "no regular file"
            problems.append(Problem(file, 0, "", f"cannot read it: it is {what}", "put a YAML file in its place"))
            return None
        raw = b""
        while len(raw) <= MAX_FILE_BYTES and (chunk := os.read(handle, MAX_FILE_BYTES + 1 - len(raw))):
            raw += chunk
    except OSError as error:
        problems.append(_unreadable(file, error))
        return None
    finally:
        os.close(handle)
    if len(raw) > MAX_FILE_BYTES:
        what = f"it is longer than {MAX_FILE_BYTES} bytes"
        problems.append(Problem(file, 0, "", what, "this is not a configuration file; put the right one in its place"))
        return None
    return raw


def _unreadable(file: str, error: OSError | ValueError) -> Problem:
    if isinstance(error, FileNotFoundError):
        return Problem(file, 0, "", "the file does not exist", "write it, or give another path with --config")
    if isinstance(error, PermissionError):
        remedy = f"let the node manager's user read it: chmod a+r {file}, and a+x on the directories above it"
        return Problem(file, 0, "", "cannot read it: Permission denied", remedy)
    why = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
    return Problem(file, 0, "", f"cannot read it: {why}", "make the file readable")


class _LimitError(yaml.MarkedYAMLError):
    """Nesting beyond MAX_DEPTH or more than MAX_VALUES values."""


class _Loader(yaml.SafeLoader):
    """Composes nodes: no deeper than MAX_DEPTH, as Python's stack would end first, and not too many.

    A key and a value are a node each. No constructor is ever called.
    """

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """One node with everything below it."""
        self.depth += 1
        self.nodes += 1
        try:
            if self.depth > MAX_DEPTH:
                raise _LimitError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=self.get_mark())
            if self.nodes > 2 * MAX_VALUES:
                raise _LimitError(problem=f"more than {MAX_VALUES} keys or values", problem_mark=self.get_mark())
            node: yaml.Node | None = super().compose_node(parent, index)
            return node
        finally:
            self.depth -= 1


@dataclass(slots=True)
class _Reader:
    """Turns the nodes of one file into values, noting every problem.

    What is unusable is noted and stands as text in its place, so that the rest of the file can be judged too: whoever
    judges it says nothing more about a line that was noted here.
    """

    file: str
    problems: list[Problem]
    empty: str
    values: int = 0
    _open: list[yaml.Node] = field(default_factory=list)

    def document(self, text: str) -> Located | None:
        """The file's one document."""
        try:
            loader = _Loader(text)
            try:
                root = loader.get_single_node()
            finally:
                loader.dispose()
            if root is None:
                self.problems.append(Problem(self.file, 0, "", "the file is empty", self.empty))
                return None
            if not isinstance(root, yaml.MappingNode):
                what = "a mapping is expected, such as `version: 1`"
                self._note(root, (), what, "write lines of the form `key: value`")
                return None
            return self._value(root, (), root.start_mark.line + 1)
        except yaml.MarkedYAMLError as error:
            self.problems.append(self._syntax(error))
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            what = f"the character U+{error.character:04X} may not stand in YAML"
            self.problems.append(Problem(self.file, line, "", what, "remove it, or write it as an escape in quotes"))
        return None

    def _syntax(self, error: yaml.MarkedYAMLError) -> Problem:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        what = error.problem or error.context or "it is not YAML"
        remedy = "put the YAML right; the line given is where the reader gave up, the cause may stand just above"
        if "\\t" in what:
            what, remedy = "a tab stands where YAML expects spaces", "indent with spaces"
        elif isinstance(error, _LimitError):
            remedy = "no configuration needs that; put the right file in its place"
        elif isinstance(error, yaml.composer.ComposerError) and "single document" in (error.context or ""):
            what, remedy = "a second document begins", "remove the line `---` or `...` and what follows it"
        return Problem(self.file, line, "", f"cannot read the YAML: {what}", remedy)

    def _note(self, node: yaml.Node, path: Path_, problem: str, remedy: str) -> None:
        self.problems.append(Problem(self.file, node.start_mark.line + 1, dotted(path), problem, remedy))

    def _value(self, node: yaml.Node, path: Path_, line: int) -> Located:
        self.values += 1
        if self.values > MAX_VALUES:
            # Without a line: that of the anchor would not be that of the alias.
            raise _LimitError(problem=f"more than {MAX_VALUES} values, aliases included")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, line)
        if any(node is outer for outer in self._open):
            self._note(node, path, "an alias stands inside of what it refers to", "write the value itself")
            return Located({}, self.file, line)
        if node.tag not in {_TAG + "map", _TAG + "seq"}:
            self._note(node, path, f"the tag {shown(node.tag)} has no meaning here", "remove the tag")
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path, line)
            items = [self._value(item, (*path, index), _line(item)) for index, item in enumerate(node.value)]
            return Located(items, self.file, line)
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.MappingNode, path: Path_, line: int) -> Located:
        own: dict[str, Located] = {}
        merged: dict[str, Located] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                self._merge(value_node, path, merged)
                continue
            key = self._key(key_node, path)
            if key in own:
                what = f"the key is given twice, first in line {own[key].line}"
                self._note(key_node, (*path, key), what, "keep one of the two")
                continue
            own[key] = self._value(value_node, (*path, key), _line(key_node))
        return Located(merged | own, self.file, line)

    def _merge(self, node: yaml.Node, path: Path_, merged: dict[str, Located]) -> None:
        """`<<: *anchor` or a list of them: what is merged first wins, the mapping's own keys win over all."""
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            value = self._value(source, (*path, "<<"), _line(source))
            if not isinstance(value.value, dict):
                self._note(node, (*path, "<<"), "only mappings can be merged", "refer to a mapping")
                return
            for key, item in value.value.items():
                merged.setdefault(key, item)

    def _key(self, node: yaml.Node, path: Path_) -> str:
        """A key as text. Whole numbers may be keys (exit statuses); everything else that is no text is refused."""
        if not isinstance(node, yaml.ScalarNode):
            self._note(node, path, "a key must be text", "write the key as one word")
            return ""
        located = self._scalar(node, (*path, node.value), _line(node))
        if not isinstance(located.value, str) and type(located.value) is not int:
            what = f"YAML reads the key {node.value or '(nothing)'} as {_read_as(located)}"
            self._note(node, (*path, node.value), what, f'write "{node.value}" in quotes')
        return str(node.value)

    def _scalar(self, node: yaml.ScalarNode, path: Path_, line: int) -> Located:
        text = str(node.value)
        located = Located(text, self.file, line, text=text, plain=node.style is None)
        match node.tag.removeprefix(_TAG):
            case "str" | "value":
                # Arguments, paths and variables reach the kernel in UTF-8 (no surrogates), which takes no NUL.
                if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
                    self._note(node, path, "the text holds a NUL or half of a surrogate pair", "remove that escape")
            case "null":
                return replace(located, value=None)
            case "bool" if text.lower() in _BOOLEANS:
                return replace(located, value=_BOOLEANS[text.lower()])
            case "int" if _DECIMAL.fullmatch(text):
                return replace(located, value=int(text))
            case "float" if _FRACTION.fullmatch(text) and isfinite(float(text)):
                return replace(located, value=float(text))
            case "int" | "float":
                self._note(node, path, f"YAML reads {shown(text, quoted=False)} as {_number(node)}", _quote(text))
            case "timestamp":
                self._note(node, path, f"YAML reads {shown(text, quoted=False)} as a date", _quote(text))
            case _:
                self._note(node, path, f"the tag {shown(node.tag)} has no meaning here", "remove the tag")
        return located


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _quote(text: str) -> str:
    return f'for text write "{text[:SHOWN_CHARS]}" in quotes; for a number write it in plain decimal digits'


def _number(node: yaml.ScalarNode) -> str:
    """What YAML 1.1 makes of `010`, `1:30`, `0x1f`, `1_000`, `.inf` and the like."""
    if len(node.value) > SHOWN_CHARS:
        return "a number"
    constructor = yaml.constructor.SafeConstructor()
    is_int = node.tag == _TAG + "int"
    try:
        return str(constructor.construct_yaml_int(node) if is_int else constructor.construct_yaml_float(node))
    except (ValueError, OverflowError):
        return "a number"


_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _read_as(located: Located) -> str:
    return "null" if located.value is None else str(located.value).lower()


def trap(located: Located | None) -> str | None:
    """What YAML made of a word without quotes that was meant as text; None when it made nothing of it."""
    if located is None or not located.plain or isinstance(located.value, str | dict | list):
        return None
    if isinstance(located.value, int | float) and not isinstance(located.value, bool):
        return f"YAML reads {located.text} as a number"
    return f"YAML reads {located.text or 'nothing'} as {_read_as(located)}"
