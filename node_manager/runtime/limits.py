"""Which limits of a configuration this host cannot enforce, whoever runs the agent there."""

from collections.abc import Iterator
from pathlib import Path

from node_manager.core.spec import NodeSpec
from node_manager.runtime.cgroup import LIMITS


def refused(spec: NodeSpec, proc: Path = Path("/proc")) -> Iterator[tuple[str, str, str]]:
    """Component, limit and controller of each limit whose controller is bound to cgroup v1 beside a v2 tree.

    On such a hybrid host the v2 tree groups, kills and freezes, and limits nothing (cgroups(7)).
    """
    bound = _bound_to_v1(proc)
    for component in spec.components:
        for name, (controller, _file) in LIMITS.items():
            if getattr(component.limits, name) is not None and controller in bound:
                yield component.name, name, controller


def _bound_to_v1(proc: Path) -> set[str]:
    """Controllers that are in a v1 hierarchy; none where there is no v2 tree, or nothing can be read."""
    try:
        mounts = (proc / "self" / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        table = (proc / "cgroups").read_text(encoding="ascii")
    except OSError:
        return set()
    if " - cgroup2 " not in mounts:
        return set()
    rows = (line.split() for line in table.splitlines() if not line.startswith("#"))
    return {row[0] for row in rows if len(row) > 1 and row[1] != "0"}
