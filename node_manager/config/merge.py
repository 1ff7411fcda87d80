"""How a later file changes an earlier one: mappings merge, lists and single values replace.

In a component, what excludes each other replaces each other too: an override that makes a probe an `http` one removes
the role file's `tcp`. Every value keeps the file and line that it came from. Runs in the validator alone.
"""

from dataclasses import replace

from node_manager.config.document import Located, Path_
from node_manager.config.role import PROBE_KINDS

_NONE: frozenset[str] = frozenset()
_KINDS = frozenset(PROBE_KINDS)
_WHERE = frozenset({"port", "socket"})
_HOW = frozenset({"directive", "signal", "command"})


def merge(base: Located, over: Located) -> Located:
    """`base` changed by `over`, as drop-ins change the boot configuration."""
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    merged = dict(base.value)
    for key, item in over.value.items():
        merged[key] = merge(merged[key], item) if key in merged else item
    return replace(over, value=merged)


def component_over(base: Located, over: Located, path: Path_ = ()) -> Located:
    """The role file's component changed by the boot configuration's override. `path` leads to it from the component."""
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    group = _exclusive(path)
    chosen = {key for key, item in over.value.items() if key in group and item.value is not None}
    dropped = group - chosen if chosen else _NONE
    merged = {key: item for key, item in base.value.items() if key not in dropped}
    for key, item in over.value.items():
        merged[key] = component_over(merged[key], item, (*path, key)) if key in merged else item
    # A problem of the component as a whole, such as a missing command, is one of the role file.
    return replace(over if path else base, value=merged)


def _exclusive(path: Path_) -> frozenset[str]:
    """The keys of the mapping at this path of which exactly one may be given."""
    match path:
        case ("probes", _):
            return _KINDS
        case ("probes", _, "http"):
            return _WHERE
        case ("reload",) | ("drain",):
            return _HOW
        case _:
            return _NONE
