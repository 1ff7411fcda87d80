"""Every shipped role on a machine of its own, from the package to ready."""

from typing import Any

import pytest

from tests.system.hosts import COMPONENTS, ROOT_ROLES, run_controller, serve
from tests.system.machine import Machine


@pytest.mark.parametrize("role", COMPONENTS)
def test_a_role_becomes_ready_and_runs_as_its_users(machine: Machine, role: str) -> None:
    """With the role file as shipped, each component runs as its user, in its own cgroup below the unit's."""
    if role == "worker":
        run_controller(machine)
    serve(machine, role)
    status = machine.wait_status(
        lambda found: [one["name"] for one in found["components"] if one["ready"]] == list(COMPONENTS[role]),
        "each component of the role is ready",
    )
    assert (status["node"]["cgroup_mode"], status["node"]["state"]) == ("delegated", "running")
    user = "root" if role in ROOT_ROLES else "xce"
    assert user == _user(machine, machine.agent_pid())
    for component in status["components"]:
        assert user == _user(machine, component["pid"]), component["name"]
        place = machine.shell(f"cat /proc/{component['pid']}/cgroup").strip()
        assert f"0::/xce.slice/xce-node-manager.service/{component['name']}" in place
    machine.wait_property("StatusText", "all wanted components are ready")
    assert machine.system_state() == "running"


def _user(machine: Machine, pid: Any) -> str:
    return machine.shell(f"stat -c %U /proc/{pid}").strip()
