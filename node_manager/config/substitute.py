"""`${...}` in role files: four names and nothing else.

`${host.name}`, `${runtime_dir}`, `${state_dir}`, and `${config.KEY}`, where KEY is a dotted path into the boot
configuration; a list of plain values is joined by commas. A literal `${` is written `$${`. Substitution happens once:
what was put in is not looked at again. Runs in the validator alone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from node_manager.config.document import Located, Path_
from node_manager.config.errors import suggestion
from node_manager.config.problems import Problem

FIELDS = frozenset(
    {
        "command",
        "environment",
        "environment_file",
        "working_directory",
        "pre_start",
        "reload",
        "drain",
        "probes",
    }
)
"""Fields of a component whose strings may hold a substitution; keys never do."""
MAX_LISTED = 40
"""Keys of the boot configuration that a remedy lists."""

_REFERENCE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
CONFIG = "config."


@dataclass(frozen=True, slots=True)
class Scope:
    """What the names stand for on this host. `config` is the boot configuration as it is written."""

    names: Mapping[str, str]
    config: Located

    def look_up(self, name: str) -> str | None:
        """The value of a name; None where it has none."""
        if not name.startswith(CONFIG):
            return self.names.get(name)
        found = self.config.at(tuple(name.removeprefix(CONFIG).split(".")))
        if found is None:
            return None
        items = found.value if isinstance(found.value, list) else [found]
        if any(isinstance(item.value, dict | list) or item.value is None for item in items):
            return None
        return ",".join(item.text for item in items)

    def known(self) -> list[str]:
        """The names that have a value here."""
        return sorted([*self.names, *(f"{CONFIG}{key}" for key in _keys(self.config, ""))][:MAX_LISTED])


def _keys(tree: Located, prefix: str) -> list[str]:
    if isinstance(tree.value, dict):
        return [key for name, item in tree.value.items() for key in _keys(item, f"{prefix}.{name}" if prefix else name)]
    return [prefix]


def substitute(component: Located, scope: Scope, base: Path_, problems: list[Problem]) -> Located:
    """The component with its references replaced. What cannot be replaced is noted and left as it is."""
    if not isinstance(component.value, dict):
        return component
    replaced = {
        name: _in_value(item, scope, (*base, name), problems, allowed=name in FIELDS)
        for name, item in component.value.items()
    }
    return replace(component, value=replaced)


def _in_value(value: Located, scope: Scope, path: Path_, problems: list[Problem], *, allowed: bool) -> Located:
    if isinstance(value.value, dict):
        items = {
            key: _in_value(item, scope, (*path, key), problems, allowed=allowed) for key, item in value.value.items()
        }
        return replace(value, value=items)
    if isinstance(value.value, list):
        listed = [
            _in_value(item, scope, (*path, index), problems, allowed=allowed) for index, item in enumerate(value.value)
        ]
        return replace(value, value=listed)
    if isinstance(value.value, str) and "${" in value.value:
        return _in_text(value, value.value, scope, path, problems, allowed=allowed)
    return value


def _in_text(
    value: Located, text: str, scope: Scope, path: Path_, problems: list[Problem], *, allowed: bool
) -> Located:
    if not allowed:
        remedy = f"write the value itself; substitution works in {', '.join(sorted(FIELDS))}"
        problems.append(value.problem(path, "no substitution takes place in this field", remedy))
        return value

    def put(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name = match[1]
        if name is None:
            problems.append(value.problem(path, "`${` without its `}`", "close it, or write $${ for a literal ${"))
            return match[0]
        found = scope.look_up(name)
        if found is None:
            remedy = suggestion(name, scope.known(), what="known here")
            problems.append(value.problem(path, f"${{{name}}} has no value on this host", remedy))
            return match[0]
        if "${" in found:
            remedy = "refer to a value that is written out"
            problems.append(value.problem(path, f"${{{name}}} has a substitution in its own value", remedy))
        return found

    return replace(value, value=_REFERENCE.sub(put, text))
