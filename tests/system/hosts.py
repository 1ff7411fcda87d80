"""Boot configurations of the tests' hosts, one for each shipped role file."""

from typing import Any

import yaml

from tests.system.machine import CONFIG, Machine

ROOT_ROLES = ("worker", "reverse-proxy")
"""Roles whose shipped file names root."""
COMPONENTS = {
    "manager": ("controller", "scheduler"),
    "worker": ("worker",),
    "apiserver": ("apiserver",),
    "reverse-proxy": ("reverse-proxy",),
    "provisioner": ("provisioner-lease", "provisioner"),
}
_DROP_IN = "/etc/systemd/system/xce-node-manager.service.d"


def boot_configuration(*roles: str, instance_id: str = "i-1", **changes: Any) -> dict[str, Any]:
    """The content of a boot configuration; a worker is told which instance it is."""
    found: dict[str, Any] = {
        "version": 1,
        "roles": list(roles),
        "host": {"name": "m1", "instance_id": instance_id},
        "controllers": ["127.0.0.1:7011"],
    }
    if "worker" in roles:
        environment = {"XCE_REF_INSTANCE_ID": instance_id, "XCE_REF_HOST": "m1"}
        found["components"] = {"worker": {"environment": environment}}
    if "reverse-proxy" in roles:
        # Where tests run, nobody may raise a hard limit to the role file's.
        found["components"] = {"reverse-proxy": {"limits": {"nofile": 4096}}}
    return found | changes


def configure(machine: Machine, *roles: str, **changes: Any) -> None:
    """Write a boot configuration, and the drop-in for root where a role needs it; start nothing."""
    if any(role in ROOT_ROLES for role in roles):
        machine.shell(f"mkdir -p {_DROP_IN}; ln -sf /usr/share/xce/units/root.conf {_DROP_IN}/50-root.conf")
        machine.run("systemctl", "daemon-reload")
    machine.write(CONFIG, yaml.safe_dump(boot_configuration(*roles, **changes)))


def serve(machine: Machine, *roles: str, **changes: Any) -> dict[str, Any]:
    """Configure, enable and start; return the status once everything is ready."""
    configure(machine, *roles, **changes)
    machine.run("systemctl", "enable", "--now", "--quiet", "xce-node-manager")
    return machine.ready()


def run_controller(machine: Machine) -> None:
    """Start a controller that the node manager knows nothing of: one of another host, as it were."""
    machine.run(
        *("systemd-run", "--quiet", "--unit=elsewhere", "--setenv=XCE_REF_STATE=/var/lib/elsewhere"),
        *("--property=StateDirectory=elsewhere", "xce-reference", "controller"),
    )


def job(machine: Machine) -> str:
    """The pid of the users' job that runs, "" where there is none; of several, a line each."""
    return machine.run("pgrep", "-x", "sleep", ok=None).stdout.strip()


def component(status: dict[str, Any], name: str) -> dict[str, Any]:
    """A component in a status, {} where there is none of this name."""
    return next((one for one in status.get("components", []) if one["name"] == name), {})


def worker(status: dict[str, Any]) -> dict[str, Any]:
    """The worker in a status."""
    return component(status, "worker")
