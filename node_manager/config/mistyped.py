"""Mistyped keys of the boot configuration, taken for what was meant: one typing error is one problem.

Substitution in role files refers to the boot configuration by its keys. Where one of them is mistyped, every reference
to it would be a problem too, and would be advised to repeat the mistake. Runs in the validator alone.
"""

from collections.abc import Collection
from dataclasses import replace

from pydantic import BaseModel

from node_manager.config.boot import BootModel
from node_manager.config.document import Located
from node_manager.config.errors import models_in, near_miss
from node_manager.config.role import ComponentModel

_COMPONENTS = "components"


def names_as_meant(boot: Located, components: Collection[str]) -> Located:
    """The boot configuration with overrides of unknown components given to those that were meant, or left out.

    `components` are the names of this host's components.
    """
    overrides = boot.child(_COMPONENTS)
    if overrides is None or not isinstance(overrides.value, dict) or not isinstance(boot.value, dict):
        return boot
    return _with_overrides(boot, overrides, _renamed(overrides.value, components))


def keys_as_meant(boot: Located) -> Located:
    """The boot configuration with unknown keys replaced by the known ones that they nearly are, or left out.

    For look-ups alone: validation judges what is written.
    """
    tree = _of_model(boot, [BootModel])
    overrides = tree.child(_COMPONENTS)
    if overrides is None or not isinstance(overrides.value, dict):
        return tree
    judged = {name: _of_model(override, [ComponentModel]) for name, override in overrides.value.items()}
    return _with_overrides(tree, overrides, judged)


def _with_overrides(boot: Located, overrides: Located, items: dict[str, Located]) -> Located:
    assert isinstance(boot.value, dict)
    return replace(boot, value={**boot.value, _COMPONENTS: replace(overrides, value=items)})


def _of_model(tree: Located, models: list[type[BaseModel]]) -> Located:
    """The tree with the keys of these models, and those of their own models below."""
    fields = {name: field for model in models for name, field in model.model_fields.items()}
    if not fields or not isinstance(tree.value, dict):
        return tree
    renamed = _renamed(tree.value, fields)
    below = {name: _of_model(item, models_in(fields[name].annotation)) for name, item in renamed.items()}
    return replace(tree, value=below)


def _renamed(items: dict[str, Located], known: Collection[str]) -> dict[str, Located]:
    kept = {name: item for name, item in items.items() if name in known}
    for name, item in items.items():
        meant = None if name in known else near_miss(name, set(known) - items.keys())
        if meant is not None:
            kept.setdefault(meant, item)
    return kept
