"""A host on its way out of the cluster: drained, decommissioned, and taken back."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.host import Host, wait_until


def test_a_decommissioned_worker_stays_down_until_it_is_taken_back(host: Host) -> None:
    """Decommission stops the worker, leaves its jobs, outlives kill -9 of the agent, and `recommission` ends it."""
    host.up()
    host.reference("submit", host.name, "--seconds", "300", "--count", "2")
    host.wait_for("worker", jobs=2)
    jobs = _jobs(host)
    assert "stops worker" in host.ctl("decommission", "--reason", "broken fan")
    host.wait_for("worker", state="stopped", desired="down", rule="decommissioned", pid=None)
    assert _jobs(host) == jobs
    host.kill_agent()
    host.start()
    found = host.wait_for("worker", state="stopped", rule="decommissioned")
    assert "broken fan" in found["reason"]
    why = host.ctl("why", "worker")
    assert "broken fan" in why
    assert f"uid {os.geteuid()}" in why
    refused = host.ctl("start", "worker", ok=1)
    assert "decommissioned" in refused
    host.ctl("recommission")
    host.wait_for("worker", state="running", ready=True)
    assert host.reference("hosts")["hosts"][0]["state"] == "active"


def test_the_controller_refuses_the_rejoin_of_a_decommissioned_host(host: Host) -> None:
    """A worker that somebody starts by hand on a decommissioned host is refused and exits 79."""
    host.up()
    host.ctl("decommission", "--reason", "gone")
    host.wait_for("worker", state="stopped")
    wait_until(lambda: host.reference("hosts")["hosts"][0]["state"] == "decommissioned", "the controller knows")
    result = host.run(
        "xce-reference",
        "worker",
        ok=79,
        XCE_REF_CONTROLLERS=host.controller,
        XCE_REF_HOST=host.name,
        XCE_REF_INSTANCE_ID="i-test",
        XCE_REF_STATE=str(host.base / "by-hand"),
    )
    assert "decommissioned" in result.stderr


def test_the_controllers_decommission_latches_on_the_host(host: Host) -> None:
    """What the controller decided reaches the host through its worker, and holds without the controller."""
    host.up()
    host.reference("decommission", host.name)
    host.wait_for("worker", state="stopped", rule="decommissioned")
    assert host.status()["host"]["state"] == "decommissioned"
    assert host.status()["host"]["epoch"] >= 2
    host.kill_agent()
    host.start()
    host.wait_for("worker", state="stopped", rule="decommissioned")


def test_a_drain_ends_when_the_last_job_has_ended(host: Host) -> None:
    """Draining takes no new job and waits for the old ones; drained, the worker stops; undrain brings it back."""
    host.up()
    host.reference("submit", host.name, "--seconds", "300", "--count", "2")
    host.wait_for("worker", jobs=2)
    host.ctl("drain", "--reason", "kernel update")
    wait_until(lambda: host.status()["host"]["state"] == "draining", "draining")
    wait_until(lambda: host.reference("hosts")["hosts"][0]["state"] == "draining", "the controller knows")
    assert host.status()["host"]["jobs_left"] == 2
    for pid in _jobs(host):
        os.kill(pid, 15)
    wait_until(lambda: host.status()["host"]["state"] == "drained", "drained")
    host.wait_for("worker", state="stopped", rule="drained")
    assert "drained" in host.ctl("start", "worker", ok=1)
    host.ctl("undrain")
    host.wait_for("worker", state="running", ready=True)
    wait_until(lambda: host.reference("hosts")["hosts"][0]["state"] == "active", "the controller knows")


def test_a_worker_that_crashes_in_a_drain_comes_back_and_goes_on_draining(host: Host) -> None:
    """Its jobs need it: a crash during a drain restarts the worker, and it is told to drain again."""
    host.up()
    host.reference("submit", host.name, "--seconds", "300", "--count", "1")
    host.wait_for("worker", jobs=1)
    host.ctl("drain")
    wait_until(lambda: host.status()["host"]["state"] == "draining", "draining")
    pid = host.pids()["worker"]
    assert pid is not None
    os.kill(pid, 9)
    wait_until(lambda: host.pids()["worker"] not in {pid, None}, "a new worker")
    host.wait_for("worker", jobs=1)
    for job in _jobs(host):
        os.kill(job, 15)
    wait_until(lambda: host.status()["host"]["state"] == "drained", "drained")


def test_a_drained_host_can_be_decommissioned(host: Host) -> None:
    """After a drain, decommission is the last step, and it alone needs `recommission`."""
    host.up()
    host.ctl("drain")
    wait_until(lambda: host.status()["host"]["state"] == "drained", "drained")
    host.ctl("decommission")
    host.wait_for("worker", state="stopped", rule="decommissioned")
    assert "recommission" in host.ctl("undrain", ok=1)
    host.ctl("recommission")
    host.wait_for("worker", state="running", ready=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_does_not_lose_a_decommission(make_host: Callable[..., Host]) -> None:
    """With a full state directory the worker stops at once and stays down over kill -9 of the agent."""
    host = make_host()
    with _small_disk(host.state_dir):
        host.up()
        with contextlib.suppress(OSError), (host.state_dir / "ballast").open("wb") as ballast:
            while True:
                ballast.write(b"x" * 4096)
                ballast.flush()
        assert os.statvfs(host.state_dir).f_bavail == 0
        host.ctl("decommission", "--reason", "full")
        host.wait_for("worker", state="stopped", rule="decommissioned")
        host.kill_agent()
        host.start()
        found = host.wait_for("worker", state="stopped", rule="decommissioned")
        assert "full" in found["reason"]
        host.end()


def test_an_operators_stop_holds_over_the_agents_death(host: Host) -> None:
    """A stop is durable; maintenance too; a manual start lifts the hold."""
    host.up()
    host.ctl("stop", "apiserver", "--reason", "upgrade")
    host.wait_for("apiserver", state="stopped", rule="operator-hold")
    host.kill_agent()
    host.start()
    found = host.wait_for("apiserver", state="stopped", rule="operator-hold")
    assert "upgrade" in found["reason"]
    host.ctl("start", "apiserver")
    host.wait_for("apiserver", state="running", ready=True)


def test_in_maintenance_nothing_starts_by_itself(host: Host) -> None:
    """Maintenance leaves what is dead dead, an operator's start works, and its end brings the rest back."""
    host.up()
    host.ctl("maintenance", "on", "--reason", "recabling")
    for name in ("apiserver", "worker"):
        pid = host.pids()[name]
        assert pid is not None
        os.kill(pid, 9)
        host.wait_for(name, state="stopped", rule="maintenance")
    host.ctl("start", "worker")
    host.wait_for("worker", state="running")
    assert host.component("apiserver")["state"] == "stopped"
    host.ctl("maintenance", "off")
    host.wait_for("apiserver", state="running", ready=True)


@contextlib.contextmanager
def _small_disk(path: Path) -> Iterator[None]:
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "xce-test", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def _jobs(host: Host) -> list[int]:
    return sorted(pid for pid in host.processes() if Path(f"/proc/{pid}/comm").read_text().strip() == "sleep")
