"""What may import what, and what the core may not do. Read from the source, and from what is really loaded."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import node_manager

ROOT = Path(node_manager.__file__).parent
PACKAGE = "node_manager"

CORE_MAY_IMPORT = frozenset(
    {"collections.abc", "dataclasses", "enum", "functools", "hashlib", "itertools", "operator", "typing"}
)
"""Modules that hold data and compute: no clock, no file, no process, no randomness, no log."""
CORE_MAY_NOT_NAME = frozenset(
    {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint", "id", "hash", "globals", "vars"}
)
"""Built-ins that reach the world, or whose value differs between runs."""
CORE_MAY_NAME_IN = {"core/values.py": frozenset({"exec", "hash"})}
"""Where it is needed all the same: constructors and `__hash__` are made there, as the standard library makes them."""

MAY_IMPORT: dict[str, frozenset[str]] = {
    "core": frozenset(),
    "heartbeat": frozenset({"core"}),
    "config": frozenset({"core"}),
    "api": frozenset({"core"}),
    "runtime": frozenset({"core", "config", "heartbeat", "api.backend"}),
    "reference": frozenset({"heartbeat"}),
    "conformance": frozenset({"core", "heartbeat"}),
    "cli": frozenset({"core", "config", "heartbeat", "api", "runtime", "conformance"}),
}
"""Imports point one way. `runtime` knows of `api` only the interface that it implements."""

VALIDATOR_ONLY = frozenset({"pydantic", "pydantic_core", "yaml"})
"""Loaded in the validator child alone: the agent and the operator's command must not carry their memory."""
LIGHT = (
    "node_manager.cli.nodectl",
    "node_manager.cli.daemon",
    "node_manager.config.codec",
    "node_manager.config.load",
    "node_manager.heartbeat.client",
    "node_manager.core.node",
    "node_manager.supervision",
)
MAX_LINES = 480
"""About 400, with room for what is one subject all the same."""


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its path below it."""
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.rglob("*.py"))
    }


def imported(tree: ast.Module) -> Iterator[str]:
    """Every module that is imported, at its top or within a function; of `from a import b` also `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if (ROOT.parent / full.replace(".", "/")).with_suffix(".py").exists() else node.module


def of_core() -> dict[str, ast.Module]:
    return {name: tree for name, tree in modules().items() if name.startswith("core/")}


@pytest.mark.parametrize("name", of_core())
def test_core_imports_nothing_impure(name: str) -> None:
    """The core imports stdlib data modules and itself, nothing else."""
    foreign = {
        module
        for module in imported(of_core()[name])
        if module not in CORE_MAY_IMPORT and not module.startswith(f"{PACKAGE}.core.") and module != f"{PACKAGE}.core"
    }
    assert set() == foreign


@pytest.mark.parametrize("name", of_core())
def test_core_reaches_for_nothing_outside(name: str) -> None:
    """The core uses no built-in that touches the world or differs from run to run."""
    names = (node for node in ast.walk(of_core()[name]) if isinstance(node, ast.Name))
    named = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    assert set() == named & (CORE_MAY_NOT_NAME - CORE_MAY_NAME_IN.get(name, frozenset()))


def test_imports_point_one_way() -> None:
    """cli, api, runtime -> heartbeat, config -> core; the reference components know the heartbeat client alone."""
    wrong = []
    for name, tree in modules().items():
        part = name.partition("/")[0]
        if part not in MAY_IMPORT:
            continue
        allowed = {f"{PACKAGE}.{one}" for one in {part, *MAY_IMPORT[part]}} | {PACKAGE}
        for module in imported(tree):
            if module.partition(".")[0] != PACKAGE or module in allowed:
                continue
            if not any(module.startswith(f"{one}.") for one in allowed - {PACKAGE}):
                wrong.append(f"{name} imports {module}")
    assert wrong == []


def test_every_part_is_known() -> None:
    """A new part of the package gets its place in the order of imports."""
    parts = {name.partition("/")[0] for name in modules() if "/" in name}
    assert parts <= set(MAY_IMPORT)


def test_the_validators_libraries_are_named_in_config_alone() -> None:
    """Pydantic and YAML are imported nowhere outside `config`."""
    wrong = [
        f"{name} imports {module}"
        for name, tree in modules().items()
        for module in imported(tree)
        if module.partition(".")[0] in VALIDATOR_ONLY and not name.startswith("config/")
    ]
    assert wrong == []


def test_the_validators_libraries_are_not_loaded() -> None:
    """Importing the agent, the operator's command or the configuration's loader loads neither pydantic nor YAML."""
    names = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in modules()]
    runtime = [f"{PACKAGE}.{name}" for name in names if name.startswith(("runtime.", "api.", "heartbeat."))]
    existing = [name for name in LIGHT if (ROOT.parent / f"{name.replace('.', '/')}.py").exists()]
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *existing, *runtime],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert set() == VALIDATOR_ONLY & set(done.stdout.split())


@pytest.mark.parametrize("name", modules())
def test_modules_stay_readable(name: str) -> None:
    """A module has one subject; when it grows beyond the bound, it has two."""
    lines = len((ROOT / name).read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES
