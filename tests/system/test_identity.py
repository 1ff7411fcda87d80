"""Which host this is: by its instance, not by its name nor by what lies on its disk."""

import json
from typing import Any

import pytest
import yaml

from tests.system.conftest import Make
from tests.system.hosts import boot_configuration, configure, run_controller, serve, worker
from tests.system.machine import CONFIG, UNIT, Machine, wait_until

EVERYTHING = ("manager", "worker")
MEMORY = "/var/lib/xce/node-manager"


def hosts(machine: Machine) -> dict[str, str]:
    """The state of each instance in the cluster's register."""
    done = machine.run("xce-reference", "ctl", "hosts", ok=None)
    found = json.loads(done.stdout)["hosts"] if done.returncode == 0 else []
    return {host["instance_id"]: host["state"] for host in found}


def out(status: dict[str, Any]) -> bool:
    """Whether the host is decommissioned, and its worker down."""
    return (status["host"]["state"], worker(status).get("state")) == ("decommissioned", "stopped")


def test_a_decommissioned_host_does_not_rejoin(machine: Machine) -> None:
    """Out by the cluster's word; refused when it has forgotten that; let in under its name as another instance."""
    run_controller(machine)
    serve(machine, "worker")
    machine.shell("xce-reference ctl decommission m1")
    machine.wait_status(out, "the worker is stopped for good")
    wait_until(lambda: hosts(machine) == {"i-1": "decommissioned"}, "the cluster has it in its register")

    machine.run("systemctl", "stop", UNIT)
    machine.shell(f"rm {MEMORY}/*")
    machine.run("systemctl", "start", UNIT)
    machine.wait_status(out, "the cluster has refused it")
    machine.wait_journal("rejoin refused: this host is decommissioned", "-u", UNIT)

    machine.run("systemctl", "stop", UNIT)
    configure(machine, "worker", instance_id="i-2")
    machine.run("systemctl", "start", UNIT)
    machine.ready()
    wait_until(lambda: hosts(machine) == {"i-1": "decommissioned", "i-2": "active"}, "the new instance has joined")

    machine.run("systemctl", "stop", UNIT)
    configure(machine, "worker", instance_id="i-1")
    machine.run("systemctl", "start", UNIT)
    machine.wait_status(out, "the old instance stays out")


@pytest.mark.parametrize("by", ["instance id", "machine id"])
def test_a_clone_of_a_decommissioned_host(make_machine: Make, installed: tuple[Any, ...], by: str) -> None:
    """A copy of its disk, started as another instance, works; the old one stays out, and so does a mere copy."""
    old = make_machine()
    old.boot()
    serve(old, *EVERYTHING, **_configuration(by))
    old.ctl("decommission", "--reason", "broken fan")
    old.wait_status(out, "the worker is stopped for good")
    old.power_off()

    copy = make_machine("m2", lower=(old.upper, *installed))
    copy.boot()
    copy.wait_status(out, "a copy of the same identity stays out")
    copy.kill()

    clone = make_machine("m3", lower=(old.upper, *installed))
    clone.prepare(CONFIG, yaml.safe_dump(boot_configuration(*EVERYTHING, **_configuration(by, "i-2"))))
    if by == "machine id":  # machine-id(5): what an image has to have there
        clone.prepare("/etc/machine-id", "")
    clone.boot()
    found = clone.wait_status(lambda found: worker(found).get("state") == "running", "the new instance works")
    assert found["host"]["state"] == "active"
    clone.kill()

    old.boot()
    old.wait_status(out, "the old one stays out")


def _configuration(by: str, instance_id: str = "i-1") -> dict[str, Any]:
    # The worker tells the cluster which instance it is in either case.
    return {"instance_id": instance_id} | ({} if by == "instance id" else {"host": {"name": "m1"}})
