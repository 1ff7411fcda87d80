"""A host's configuration files below one directory, for the tests of this package."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from node_manager.config.assemble import assemble
from node_manager.config.problems import ConfigInvalid, Problem
from node_manager.config.sources import Sources
from node_manager.core.spec import ComponentSpec, NodeSpec

BOOT = "node-manager.yaml"
SHIPPED_ROLES = Path(__file__).parents[3] / "roles"
EXAMPLES = Path(__file__).parents[3] / "packaging" / "examples"

PLAIN_BOOT = """\
version: 1
roles: [web]
host: {name: h1, instance_id: i-1}
"""
PLAIN_ROLE = """\
role: web
user: www
components:
  server:
    command: [server, --foreground]
"""


class Seen(NamedTuple):
    """What a test compares of a problem; `file` is relative to the site."""

    file: str
    line: int
    field: str
    problem: str


@dataclass(frozen=True)
class Site:
    """Files below `root`: `node-manager.yaml`, `node-manager.d/` and `roles/`."""

    root: Path

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    @property
    def sources(self) -> Sources:
        return Sources(
            config=self.root / BOOT,
            roles_dirs=(self.root / "vendor", self.root / "roles"),
            runtime_dir=Path("/run/x"),
            state_dir=Path("/state/x"),
        )

    def spec(self) -> NodeSpec:
        return assemble(self.sources)

    def component(self, name: str = "server") -> ComponentSpec:
        return next(item for item in self.spec().components if item.name == name)

    def problems(self) -> tuple[Problem, ...]:
        try:
            assemble(self.sources)
        except ConfigInvalid as invalid:
            return invalid.problems
        return ()

    def seen(self) -> list[Seen]:
        return [
            Seen(problem.file.removeprefix(f"{self.root}/"), problem.line, problem.field, problem.problem)
            for problem in self.problems()
        ]
