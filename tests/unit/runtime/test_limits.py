from pathlib import Path

import pytest

from node_manager.core.spec import ComponentSpec, HostSpec, LimitsSpec, NodeSpec
from node_manager.runtime.limits import refused

V2 = "30 1 0:1 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
V1 = "31 1 0:2 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
TABLE = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t0\t1\t1\nmemory\t4\t12\t1\npids\t8\t3\t1\n"


@pytest.mark.parametrize(
    ("mounts", "table", "expected"),
    [
        (V1 + V2, TABLE, [("web", "memory_max", "memory"), ("web", "pids_max", "pids")]),
        (V2, TABLE.replace("4\t12", "0\t12").replace("8\t3", "0\t3"), []),
        (V1, TABLE, []),
        (V1 + V2, None, []),
    ],
    ids=["hybrid", "unified", "v1 alone", "unknown"],
)
def test_limits_of_controllers_that_are_bound_to_v1(
    tmp_path: Path, mounts: str, table: str | None, expected: list[tuple[str, str, str]]
) -> None:
    """Only what is set, and only where the v2 tree is there and lacks the controller for good."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(mounts)
    if table is not None:
        (tmp_path / "cgroups").write_text(table)
    limits = LimitsSpec(memory_max=1 << 30, cpu_weight=50, pids_max=9, nofile=99)
    made = ComponentSpec(name="web", role="test", command=("/bin/true",), limits=limits)
    bare = ComponentSpec(name="bare", role="test", command=("/bin/true",))
    spec = NodeSpec(host=HostSpec(name="h"), roles=(), components=(bare, made))
    assert expected == list(refused(spec, tmp_path))
