"""The whole way from files to a NodeSpec: read, merge, substitute, validate, cross-check; every problem at once.

Runs in the validator alone.
"""

import os
import re
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from node_manager.config.boot import BootModel
from node_manager.config.crosscheck import Candidate, cross_check
from node_manager.config.document import MAX_PROBLEMS, Located, read
from node_manager.config.errors import problems_of, suggestion
from node_manager.config.fields import HOST_PATTERN, NAME_PATTERN, nanoseconds
from node_manager.config.merge import component_over, merge
from node_manager.config.mistyped import keys_as_meant, names_as_meant
from node_manager.config.problems import ConfigInvalid, Problem
from node_manager.config.role import ComponentModel, RoleHead
from node_manager.config.sources import SUFFIX, Sources, yaml_files
from node_manager.config.substitute import Scope, substitute
from node_manager.core.spec import HostSpec, NodeSpec

_EMPTY_BOOT = "write the configuration into it: `version: 1` and `roles: [...]` at least"
MAX_SENTENCE_CHARS = 1000
"""Of a field's path, a problem and a remedy each: a key may be as long as a file."""

Model = TypeVar("Model", bound=BaseModel)


def assemble(sources: Sources) -> NodeSpec:
    """The configuration of this host; ConfigInvalid with everything that is wrong with it."""
    try:
        sources.config.stat()
    except FileNotFoundError as error:
        remedy = "write it, or give the path of another one with --config"
        problem = Problem(str(sources.config), 0, "", "the boot configuration does not exist", remedy)
        raise ConfigInvalid((problem,), absent=True) from error
    except OSError:
        pass  # reading it says why
    assembly = _Assembly(sources)
    spec = assembly.run()
    if spec is None or assembly.problems:
        raise ConfigInvalid(_tidy(assembly.problems))
    return spec


def _tidy(problems: list[Problem]) -> tuple[Problem, ...]:
    """In the order of files and lines, one for each field, and a bounded number of them.

    What the reader of a file says of a value comes before what validation says of the same value, and causes it.
    """
    first: dict[tuple[str, int, str], Problem] = {}
    for problem in problems:
        first.setdefault((problem.file, problem.line, problem.field), problem)
    found = sorted(_bounded(problem) for problem in first.values())
    if len(found) <= MAX_PROBLEMS:
        return tuple(found)
    what = f"{len(found) - MAX_PROBLEMS} more problems are not shown"
    return (*found[:MAX_PROBLEMS], Problem(found[-1].file, 0, "", what, "solve those above first"))


def _bounded(problem: Problem) -> Problem:
    return replace(
        problem,
        field=problem.field[:MAX_SENTENCE_CHARS],
        problem=problem.problem[:MAX_SENTENCE_CHARS],
        remedy=problem.remedy[:MAX_SENTENCE_CHARS],
    )


@dataclass(slots=True)
class _Assembly:
    """One assembly, with what was found wrong so far."""

    sources: Sources
    problems: list[Problem] = field(default_factory=list)
    complete: bool = True
    """Every role of the host could be read: what no component is called does not exist."""

    def run(self) -> NodeSpec | None:
        """The specification as far as there is one; what is wrong is in `problems`."""
        tree = self._boot_tree()
        if tree is None:
            return None
        boot = self._validated(BootModel, tree)
        host = self._host(boot, tree)
        roles = self._roles(tree)
        names = {name for role in roles.values() for name in _component_names(role)}
        self._unknown_overrides(tree, names)
        # What is mistyped is a problem by now: whatever depends on it is judged as if it were right.
        meant = names_as_meant(tree, names) if self.complete else tree
        candidates = self._candidates(roles, meant, self._scope(keys_as_meant(meant), host.name))
        grace = tree.at(("controller", "host_loss_grace_s"))
        self.problems += cross_check(candidates, grace, complete=self.complete)
        if boot is None:
            return None
        grace_s = boot.controller.host_loss_grace_s
        return NodeSpec(
            host=host,
            roles=tuple(boot.roles),
            components=tuple(candidate.spec for candidate in candidates if candidate.spec is not None),
            controllers=tuple(boot.controllers),
            host_loss_grace_ns=None if grace_s is None else nanoseconds(grace_s),
        )

    def _validated(self, model: type[Model], tree: Located, *base: str) -> Model | None:
        try:
            return model.model_validate(tree.unlocated())
        except ValidationError as error:
            self.problems += problems_of(error, tree, model, base)
            return None

    def _files(self, directory: Path) -> tuple[Path, ...]:
        try:
            return yaml_files(directory)
        except (OSError, ValueError) as error:
            why = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
            remedy = "make it a directory that the node manager's user can list"
            self.problems.append(Problem(str(directory), 0, "", f"cannot read the directory: {why}", remedy))
            return ()

    def _boot_tree(self) -> Located | None:
        """The boot configuration with its drop-ins; None when there is nothing to judge."""
        tree = read(self.sources.config, self.problems, empty=_EMPTY_BOOT)
        for file in self._files(self.sources.drop_in_dir):
            drop_in = read(file, self.problems, empty="write into it what it is to change, or remove it")
            if drop_in is not None and tree is not None:
                tree = replace(merge(tree, drop_in), file=tree.file, line=tree.line)
        return tree

    def _host(self, boot: BootModel | None, tree: Located) -> HostSpec:
        """Who this host is; its own name where the configuration gives none."""
        if boot is not None and boot.host.name is not None:
            name = boot.host.name
        else:
            name = socket.gethostname()
            if not re.fullmatch(HOST_PATTERN, name):
                what = f"the host's own name {name!r} cannot be used"
                self.problems.append(tree.problem(("host", "name"), what, "give the host a name, or set host.name"))
        if boot is None:
            return HostSpec(name=name)
        return HostSpec(name=name, instance_id=boot.host.instance_id, template=boot.host.template)

    def _scope(self, tree: Located, host_name: str) -> Scope:
        names = {
            "host.name": host_name,
            "runtime_dir": str(self.sources.runtime_dir.absolute()),
            "state_dir": str(self.sources.state_dir.absolute()),
        }
        return Scope(names, tree)

    def _roles(self, boot: Located) -> dict[str, Located]:
        """What the files of this host's roles hold; wrong fields elsewhere in the boot configuration hide nothing."""
        listed = boot.child("roles")
        if listed is None or not isinstance(listed.value, list):
            self.complete = False
            return {}
        roles: dict[str, Located] = {}
        for index, role in enumerate(listed.value):
            name = role.value
            tree = None
            if isinstance(name, str) and re.fullmatch(NAME_PATTERN, name):
                tree = roles.get(name) or self._role(name, role, index)
            if tree is None or _component_names(tree) != _keys(tree.child("components")):
                self.complete = False
            if tree is not None:
                roles[str(name)] = tree
        return roles

    def _role(self, name: str, written: Located, index: int) -> Located | None:
        path = self._role_file(name)
        if path is not None:
            return read(path, self.problems, empty=f"write the role into it: `role: {name}`, `user` and `components`")
        directories = ", ".join(
            str(directory) if directory.is_dir() else f"{directory} (there is no such directory)"
            for directory in self.sources.roles_dirs
        )
        remedy = f"{suggestion(name, self._known_roles(), what='known roles')}; looked in {directories}"
        self.problems.append(written.problem(("roles", index), f"there is no role {name}", remedy))
        return None

    def _candidates(self, roles: dict[str, Located], boot: Located, scope: Scope) -> list[Candidate]:
        """The components of all roles."""
        candidates: dict[str, Candidate] = {}
        for name, tree in roles.items():
            for candidate in self._of_role(name, tree, boot, scope):
                other = candidates.setdefault(candidate.name, candidate)
                if other is not candidate:
                    what = f"the role {other.role} has a component of that name too"
                    remedy = "give one of the two another name: it must be unique on a host"
                    self.problems.append(candidate.problem((), what, remedy))
        return list(candidates.values())

    def _role_file(self, role: str) -> Path | None:
        """The role's file: the last directory that has it wins, also where it cannot be read."""
        for directory in reversed(self.sources.roles_dirs):
            path = directory / f"{role}{SUFFIX}"
            if os.path.lexists(path):
                return path
        return None

    def _known_roles(self) -> set[str]:
        return {file.stem for directory in self.sources.roles_dirs for file in self._files(directory)}

    def _of_role(self, role: str, tree: Located, boot: Located, scope: Scope) -> list[Candidate]:
        """The components of one role file, each with its override, substituted and validated."""
        head = self._validated(RoleHead, tree)
        if head is not None and head.role != role:
            what, remedy = f"the file is that of the role {role}", f"write `role: {role}`, or rename the file"
            self.problems.append((tree.child("role") or tree).problem(("role",), what, remedy))
        candidates = []
        for name in _component_names(tree):
            written = tree.at(("components", name))
            if written is None:
                raise AssertionError("the tree has its own names")
            override = boot.at(("components", name))
            component = written if override is None else component_over(written, override)
            if not isinstance(component.value, dict):
                continue  # an override that is no mapping: the boot configuration's validation has said so
            user = tree.child("user")
            if user is not None and head is not None and component.child("user") is None:
                component = replace(component, value={**component.value, "user": user})
            component = substitute(component, scope, ("components", name), self.problems)
            model = self._validated(ComponentModel, component, "components", name)
            spec = None if model is None else model.spec(name, role)
            candidates.append(Candidate(name=name, role=role, tree=component, spec=spec))
        return candidates

    def _unknown_overrides(self, boot: Located, known: set[str]) -> None:
        overrides = boot.child("components")
        if not self.complete or overrides is None or not isinstance(overrides.value, dict):
            return
        for name, override in overrides.value.items():
            if name not in known:
                remedy = suggestion(name, known, what="components of this host's roles")
                what = f"no role of this host has a component {name}"
                self.problems.append(override.problem(("components", name), what, remedy))


def _keys(mapping: Located | None) -> list[str] | None:
    return None if mapping is None or not isinstance(mapping.value, dict) else list(mapping.value)


def _component_names(role: Located) -> list[str]:
    """The components of a role file that can be judged."""
    components = role.child("components")
    if components is None or not isinstance(components.value, dict):
        return []
    return [
        name
        for name, written in components.value.items()
        if isinstance(written.value, dict) and re.fullmatch(NAME_PATTERN, name)
    ]
