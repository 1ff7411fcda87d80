"""A cluster of machines: two managers, two workers, an API server behind nginx, each with a systemd of its own."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.conftest import Make
from tests.system.hosts import component, job
from tests.system.machine import BOUND_S, CONFIG, Machine, wait_until

ADDRESSES = {"mgr1": "10.77.0.1", "mgr2": "10.77.0.2", "w1": "10.77.0.3", "w2": "10.77.0.4", "api": "10.77.0.5"}
CONTROLLERS = "10.77.0.1:7011,10.77.0.2:7011"
LEASE_S = 12
"""Longer than the scheduler's stop budget, short enough for a test to wait for."""
SITE = "server { listen 80; location / { proxy_pass http://127.0.0.1:7080; } }\n"


class Switch:
    """A network that machines are plugged into; it ends with its holder."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        wait_until(self._own_namespace, "the switch is a namespace of its own")
        self._ip("link add br0 type bridge")
        self._ip("link set br0 up")

    def plug(self, machine: Machine) -> None:
        """Give a machine its address."""
        # What it had before it was booted anew goes with its old network, which the kernel removes in its own time.
        self._ip(f"link delete {machine.name}", ok=False)
        self._ip(f"link add {machine.name} type veth peer name eth0 netns {machine.pid}")
        self._ip(f"link set {machine.name} master br0 up")
        machine.run("ip", "address", "add", f"{ADDRESSES[machine.name]}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")

    def close(self) -> None:
        """Pull everything out."""
        self._holder.kill()
        self._holder.wait()

    def _own_namespace(self) -> bool:
        return Path(f"/proc/{self._holder.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()

    def _ip(self, arguments: str, *, ok: bool = True) -> None:
        command = ["nsenter", f"--target={self._holder.pid}", "--net", "ip", *arguments.split()]
        subprocess.run(command, check=ok, timeout=BOUND_S, stderr=None if ok else subprocess.DEVNULL)


class Cluster:
    """The machines by name."""

    def __init__(self, make: Make, switch: Switch, shared: Path) -> None:
        self.switch = switch
        self.machines = {name: make(name, shared=shared) for name in ADDRESSES}
        self["api"].prepare("/etc/nginx/sites-enabled/default", SITE)
        for machine in self.machines.values():
            machine.boot(wait=False)
            switch.plug(machine)
        for name, machine in self.machines.items():
            machine.wait_booted()
            machine.run("xce-node-manager", "bootstrap", "--stdin", stdin=yaml.safe_dump(_configuration(name)))

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def scheduling(self) -> list[str]:
        """The managers whose scheduler runs."""
        managers = [self[name] for name in ("mgr1", "mgr2") if self[name].pid]
        return [one.name for one in managers if component(one.asked(), "scheduler").get("state") == "running"]

    def hosts(self) -> dict[str, dict[str, Any]]:
        """The host register, as a user is told through nginx and the API server."""
        done = self["api"].run("curl", "--silent", "--fail", "http://10.77.0.5/v1/hosts", ok=None)
        body = json.loads(done.stdout) if done.returncode == 0 else {}
        return {host["host"]: host for host in body.get("hosts", [])}

    def state(self, name: str) -> str | None:
        """A host's state in the register, None while nobody tells."""
        return self.hosts().get(name, {}).get("state")


def _configuration(name: str) -> dict[str, Any]:
    common = {"XCE_REF_CONTROLLERS": CONTROLLERS, "XCE_REF_HOST": name, "XCE_REF_LEASE_S": str(LEASE_S)}
    controller = common | {
        "XCE_REF_LISTEN": f"{ADDRESSES.get(name, '')}:7011",
        "XCE_REF_STATE": "/srv/shared",
        "XCE_REF_LEASE": "/srv/shared/controller.lease",
    }
    scheduler = common | {"XCE_REF_CONTROLLERS": f"{ADDRESSES[name]}:7011"}
    here = {"tcp": {"host": ADDRESSES[name], "port": 7011}}
    components: dict[str, Any] = {
        "mgr": {
            "controller": {"environment": controller, "probes": {"readiness": here}},
            "scheduler": {"environment": scheduler},
        },
        "w": {"worker": {"environment": common | {"XCE_REF_INSTANCE_ID": f"i-{name}"}}},
        "api": {"apiserver": {"environment": common}, "reverse-proxy": {"limits": {"nofile": 4096}}},
    }
    kind = name.rstrip("12")
    return {
        "version": 1,
        "roles": {"mgr": ["manager"], "w": ["worker"], "api": ["apiserver", "reverse-proxy"]}[kind],
        "host": {"name": name, "instance_id": f"i-{name}"},
        "controllers": CONTROLLERS.split(","),
        "components": components[kind],
    }


@pytest.fixture
def cluster(make_machine: Make, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster in which everything is ready."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    switch = Switch()
    try:
        made = Cluster(make_machine, switch, shared)
        for machine in made.machines.values():
            machine.ready()
        yield made
    finally:
        switch.close()


def test_a_cluster_lives_through_the_loss_of_a_manager_and_of_a_worker(cluster: Cluster) -> None:
    """One scheduler at a time, on the other manager after the plug was pulled; a decommissioned worker stays out."""
    # A primary that could not renew its lease in time, as on a busy host, steps down, and another one is elected.
    (first,) = wait_until(lambda: found if len(found := cluster.scheduling()) == 1 else [], "one scheduler runs")
    wait_until(lambda: set(cluster.hosts()) == {"w1", "w2"}, "both workers have joined, seen through nginx")

    submitted = ("xce-reference", "ctl", "--controller", CONTROLLERS, "submit", "w1", "--seconds", "600")
    wait_until(lambda: cluster["api"].run(*submitted, ok=None).returncode == 0, "a job is submitted")
    jobs = wait_until(lambda: _jobs(cluster["w1"]), "the job runs")

    cluster[first].kill()
    other = next(name for name in ("mgr1", "mgr2") if name != first)
    wait_until(lambda: cluster.scheduling() == [other], "the other manager's scheduler has taken over")
    wait_until(lambda: set(cluster.hosts()) == {"w1", "w2"}, "both workers have joined the other controller")
    assert jobs <= _jobs(cluster["w1"])

    cluster["w1"].run("pkill", "-KILL", "-x", "sleep")
    cluster["w1"].ctl("drain", "--reason", "disk")
    cluster["w1"].ctl("wait", "--for", "drained", "--timeout", f"{BOUND_S - 10:g}s")
    # With the last job the worker has ended too: whatever is said to the host from now on stays on the host.
    wait_until(lambda: cluster.state("w1") == "drained", "the cluster knows")
    cluster["w1"].ctl("decommission", "--reason", "disk")
    cluster["w1"].reboot()
    cluster.switch.plug(cluster["w1"])
    found = cluster["w1"].wait_status(lambda status: component(status, "worker"), "its agent is in charge")
    assert (component(found, "worker")["state"], found["host"]["state"]) == ("stopped", "decommissioned")
    wait_until(lambda: cluster.state("w2") == "active", "the other worker goes on")
    assert cluster["w1"].run("test", "-e", CONFIG).returncode == 0


def _jobs(machine: Machine) -> set[str]:
    return set(job(machine).split())
