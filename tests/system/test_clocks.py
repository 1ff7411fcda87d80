"""Clocks that jump, and clocks that begin anew with a boot: no decision may move with them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.hosts import configure, serve, worker
from tests.system.machine import BOUND_S, UNIT, Machine

NS_PER_S = 1_000_000_000
DAY_S = 86_400
HOUR_S = 3_600
EVERYTHING = ("manager", "worker")
SLACK_S = 900
"""Between two looks at a clock, on a machine that is very busy."""
STUBBORN = {
    "role": "worker",
    "user": "root",
    "components": {
        "worker": {
            "command": ["/bin/sh", "-c", "trap : USR1; while :; do sleep 1; done"],
            "states": ["host.draining", "host.drained", "host.decommissioned"],
            "stop_when": ["host.decommissioned"],
            "drain": {"signal": "USR1", "on_deadline": "leave"},
        }
    },
}
"""A worker that is told to drain, and never has done it."""


@pytest.fixture
def steered(machine: Machine, tmp_path: Path) -> Machine:
    """A machine on which all of XCE has a wall clock that the test can set."""
    library, inside = tmp_path / "wall-clock.so", "/usr/local/lib/wall-clock.so"
    source = Path(__file__).with_name("wall-clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O", "-o", library, source], check=True, timeout=BOUND_S)
    machine.path(inside).write_bytes(library.read_bytes())
    preload = {"LD_PRELOAD": inside}
    machine.write(f"/etc/systemd/system/{UNIT}.d/clock.conf", f"[Service]\nEnvironment=LD_PRELOAD={inside}\n")
    worker = preload | {"XCE_REF_INSTANCE_ID": "i-1", "XCE_REF_HOST": "m1"}
    serve(
        machine,
        *EVERYTHING,
        components={
            "controller": {"environment": preload},
            "scheduler": {"environment": preload},
            "worker": {"environment": worker},
        },
    )
    machine.running()
    return machine


def test_a_wall_clock_that_jumps_moves_nothing(steered: Machine) -> None:
    """A month ahead, a month back, and right again: leases are renewed, a drain keeps its deadline, all runs on.

    Then the agent is restarted under the wrong time, and knows its components and the deadline all the same.
    """
    steered.shell("xce-reference ctl submit m1 --seconds 600")
    steered.wait_status(lambda found: found["host"]["jobs_left"] == 1, "the job runs")
    steered.ctl("drain", "--deadline", "1h", "--reason", "new kernel")
    deadline_ns = steered.status()["host"]["deadline_ns"]
    before = steered.pids()
    ahead_s = 0
    for set_to_s in (30 * DAY_S, -30 * DAY_S, 0, 30 * DAY_S):
        seen = steered.status()
        steered.write("/run/wall-clock", f"{set_to_s}\n")
        found = _renewed(steered, _lease_ns(seen))
        jump_s = (_wall_ns(found) - _wall_ns(seen)) / NS_PER_S
        assert jump_s == pytest.approx(set_to_s - ahead_s, abs=SLACK_S), "the agent's wall clock has jumped"
        ahead_s = set_to_s
        assert (deadline_ns, "draining") == (found["host"]["deadline_ns"], found["host"]["state"])
        assert before == {one["name"]: one["pid"] for one in found["components"]}
    agent = steered.agent_pid()
    steered.run("systemctl", "restart", UNIT)
    found = steered.wait_status(lambda found: found["node"]["agent_pid"] != agent, "another agent is in charge")
    assert (deadline_ns, "draining") == (found["host"]["deadline_ns"], found["host"]["state"])
    steered.keeps(before)
    assert [one["restarts"] for one in steered.status()["components"]] == [0, 0, 0]


def test_a_deadline_outlives_a_boot(machine: Machine) -> None:
    """CLOCK_BOOTTIME begins anew with a boot, the boot id is another: the deadline is where the wall clock says."""
    machine.write("/etc/xce/roles/worker.yaml", yaml.safe_dump(STUBBORN))
    configure(machine, "worker")
    machine.run("systemctl", "enable", "--now", "--quiet", UNIT)
    _working(machine)
    machine.ctl("drain", "--deadline", "1h", "--reason", "new kernel")
    before = machine.status()
    boot_id = machine.shell("cat /proc/sys/kernel/random/boot_id")
    machine.reboot()
    assert boot_id != machine.shell("cat /proc/sys/kernel/random/boot_id")
    after = _working(machine)
    assert after["host"]["state"] == "draining"
    assert _left_s(after) == pytest.approx(HOUR_S, abs=SLACK_S)
    assert _deadline_wall_s(after) == pytest.approx(_deadline_wall_s(before), abs=2)


def _working(machine: Machine) -> dict[str, Any]:
    return machine.wait_status(lambda found: worker(found).get("pid"), "the worker runs")


def _renewed(machine: Machine, lease_ns: int) -> dict[str, Any]:
    return machine.wait_status(lambda found: _lease_ns(found) > lease_ns, "the lease was renewed")


def _left_s(status: dict[str, Any]) -> float:
    return float(status["host"]["deadline_ns"] - status["now_ns"]) / NS_PER_S


def _deadline_wall_s(status: dict[str, Any]) -> float:
    return float(status["host"]["deadline_ns"] + status["wall_offset_ns"]) / NS_PER_S


def _wall_ns(status: dict[str, Any]) -> int:
    return int(status["now_ns"] + status["wall_offset_ns"])


def _lease_ns(status: dict[str, Any]) -> int:
    return int(next(one["valid_until_ns"] for one in status["facts"] if one["name"] == "controller.primary") or 0)
