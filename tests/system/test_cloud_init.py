"""Machines that get their configuration from cloud-init, in every order in which that can happen."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.conftest import TIMES, Make
from tests.system.hosts import COMPONENTS, boot_configuration, run_controller
from tests.system.machine import CONFIG, UNIT, Machine, wait_until

SAMPLES = Path(__file__).parent.parent.parent / "packaging" / "cloud-init"
INSTANCE = "i-0123456789abcdef0"
BOOTSTRAP = ["xce-node-manager", "bootstrap"]
ENABLED = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
SEED = "/var/lib/cloud/seed/nocloud"


def cloud(
    make_machine: Make,
    user_data: dict[str, Any],
    *,
    enabled: bool = False,
    metadata: dict[str, Any] | None = None,
) -> Machine:
    """Boot a machine with these user data to the end of cloud-init; `enabled`: the unit is in its image."""
    machine = make_machine()
    machine.prepare_without("/etc/cloud/cloud-init.disabled")
    machine.prepare("/etc/cloud/cloud.cfg.d/99-test.cfg", "datasource_list: [NoCloud, None]\n")
    machine.prepare(
        f"{SEED}/meta-data", yaml.safe_dump({"instance-id": INSTANCE, "local-hostname": "m1"} | (metadata or {}))
    )
    # No packages can be fetched here, and no locales made: both are there.
    data = {key: value for key, value in user_data.items() if key != "packages"} | {"locale": "C.UTF-8"}
    machine.prepare(f"{SEED}/user-data", f"#cloud-config\n{yaml.safe_dump(data)}")
    if enabled:
        link = machine.upper / ENABLED.lstrip("/")
        link.parent.mkdir(parents=True)
        link.symlink_to(f"/lib/systemd/system/{UNIT}")
    machine.boot(wait=False)
    wait_until(lambda: "running" not in (state := cloud_state(machine)) and state, "cloud-init has ended")
    assert cloud_state(machine) == "status: done"
    return machine


def cloud_state(machine: Machine) -> str:
    """What cloud-init says of itself; "" before it can be asked."""
    found = machine.run("cloud-init", "status", ok=None).stdout.strip()
    return "" if "not run" in found or "not started" in found else found


def in_order(machine: Machine) -> dict[str, Any]:
    """The node manager is in charge and everything is ready, with no other step; return the status."""
    status = machine.ready()
    machine.wait_booted()
    assert machine.system_state() == "running"
    assert "ordering cycle" not in machine.journal()
    return status


def times(machine: Machine, *components: str) -> str:
    """When the service and each component was ready for the first time, in seconds after systemd had begun."""
    begun_us = int(machine.shell("systemctl show --value --property UserspaceTimestampMonotonic"))

    def ready(component: str) -> int:
        matches = ("XCE_EVENT=component.readiness_changed", f"XCE_COMPONENT={component}")
        first = wait_until(lambda: machine.entries(*matches), f"the journal knows that {component} was ready")[0]
        return int(first["__MONOTONIC_TIMESTAMP"])

    points = {"READY=1": int(machine.property("ActiveEnterTimestampMonotonic"))}
    points |= {f"{component} ready": ready(component) for component in components}
    return ", ".join(f"{what} {(at_us - begun_us) / 1e6:.1f} s" for what, at_us in points.items())


def write_files(*roles: str, **how: Any) -> list[dict[str, Any]]:
    """The part of user data that writes the configuration."""
    return [{"path": CONFIG, "content": yaml.safe_dump(boot_configuration(*roles)), **how}]


@pytest.mark.parametrize("role", COMPONENTS)
def test_the_sample_of_a_role(make_machine: Make, role: str, record_property: Callable[[str, object], None]) -> None:
    """The package in an image, the shipped user data, a boot: the host is ready, and knows which instance it is.

    How long that took is printed at the end of the run.
    """
    user_data = yaml.safe_load((SAMPLES / f"{role}.yaml").read_text(encoding="utf-8"))
    if role == "reverse-proxy":
        content = yaml.safe_load(user_data["write_files"][1]["content"])
        content["components"] = {"reverse-proxy": {"limits": {"nofile": 4096}}}
        user_data["write_files"][1]["content"] = yaml.safe_dump(content)
        user_data["write_files"][0]["content"] = user_data["write_files"][0]["content"].replace("api1", "127.0.0.1")
        user_data["write_files"][0]["content"] = user_data["write_files"][0]["content"].replace("api2", "127.0.0.2")
    machine = cloud(make_machine, user_data)
    if role == "worker":
        run_controller(machine)
    status = in_order(machine)
    assert (status["node"]["instance_id"], status["node"]["name"]) == (INSTANCE, "m1")
    command = "curl --silent --fail --unix-socket /run/xce/node-manager/status.sock http://localhost/v1/ready"
    assert json.loads(machine.shell(command)) == {"ready": True, "reasons": []}
    record_property(TIMES, times(machine, *COMPONENTS[role]))


def test_write_files_and_an_enabled_unit(make_machine: Make) -> None:
    """An image in which the unit is enabled needs nothing but the file."""
    in_order(cloud(make_machine, {"write_files": write_files("manager")}, enabled=True))


def test_a_deferred_file_and_an_enabled_unit(make_machine: Make) -> None:
    """A file that comes at the very end of the boot is waited for, and taken up."""
    in_order(cloud(make_machine, {"write_files": write_files("manager", defer=True)}, enabled=True))


def test_a_deferred_file_and_bootstrap(make_machine: Make) -> None:
    """Deferred files come before what `runcmd` runs."""
    data = {"write_files": write_files("manager", defer=True), "runcmd": [BOOTSTRAP]}
    in_order(cloud(make_machine, data))


def test_bootstrap_from_metadata_in_the_earliest_stage(make_machine: Make) -> None:
    """`bootcmd` runs within the stage that the unit is ordered after: nobody waits for himself."""
    data = {"bootcmd": [[*BOOTSTRAP, "--metadata"]]}
    configuration = {"version": 1, "roles": ["apiserver"]}
    status = in_order(cloud(make_machine, data, metadata={"xce-node-manager": configuration}))
    assert status["node"]["instance_id"] == INSTANCE


def test_a_configuration_that_never_comes(make_machine: Make) -> None:
    """Nothing has failed, nothing hangs, and the status says what is waited for."""
    machine = cloud(make_machine, {}, enabled=True)
    machine.wait_status(lambda status: status["node"]["state"] == "waiting-config", "it waits")
    machine.wait_booted()
    assert machine.system_state() == "running"


def test_another_instance_of_the_same_image(make_machine: Make) -> None:
    """An image of a decommissioned host, started as another instance: bootstrap tells it who it is, and it works."""
    user_data: dict[str, Any] = {"write_files": write_files("manager"), "runcmd": [BOOTSTRAP]}
    content = yaml.safe_load(user_data["write_files"][0]["content"])
    del content["host"]
    user_data["write_files"][0]["content"] = yaml.safe_dump(content)
    machine = cloud(make_machine, user_data)
    in_order(machine)
    machine.ctl("decommission", "--reason", "broken fan")
    machine.wait_status(lambda status: status["host"]["state"] == "decommissioned", "it is decommissioned")
    machine.write(f"{SEED}/meta-data", yaml.safe_dump({"instance-id": "i-another", "local-hostname": "m1"}))
    machine.reboot()
    status = machine.wait_status(
        lambda found: found["node"].get("instance_id") == "i-another", "the other instance knows who it is"
    )
    assert status["host"]["state"] == "active"
