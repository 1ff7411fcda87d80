"""What a child is given: here, how willing the kernel is to kill it for want of memory."""

from pathlib import Path

import pytest

from node_manager.core.actions import Spawn
from node_manager.core.spec import ComponentSpec
from node_manager.runtime.environment import Markers
from node_manager.runtime.plans import Planner


@pytest.mark.parametrize(
    ("own", "role", "expected"),
    [
        ("-900\n", None, 0),  # the agent's protection is its own
        ("-900\n", -500, -500),
        ("0\n", None, None),  # as it is
        ("300\n", None, None),
        ("300\n", 100, 100),
        ("", None, None),  # it cannot be read
    ],
)
def test_no_child_inherits_the_protection_of_the_agent(
    tmp_path: Path, own: str, role: int | None, expected: int | None
) -> None:
    """A component and the commands beside it have what the role says, else what the agent has, but for protection."""
    score = tmp_path / "oom_score_adj"
    score.write_text(own, encoding="ascii")
    planner = Planner(Markers(nonce="n", runtime_dir=None, sockets=False), own_oom_score_adj=score)
    spec = ComponentSpec(name="web", role="test", command=("/bin/true",), oom_score_adj=role)
    main = planner.main(Spawn(component="web", generation=1, spec=spec), None)
    helper = planner.helper(spec, generation=1, command=("/bin/true",), mark="probe", main_pid=None, output_fd=1)
    assert (expected, expected) == (main.oom_score_adj, helper.oom_score_adj)
