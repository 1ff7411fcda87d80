"""A host that leaves: reclaimed by its provider, shut down, stopped for good."""

import json
from typing import Any

import pytest
import yaml

from tests.system.hosts import boot_configuration, job, serve, worker
from tests.system.machine import CONFIG, UNIT, Machine, wait_until

EVERYTHING = ("manager", "worker")
NOTICE_S = 300
"""More than the 120 s that providers give, as the machine may be very busy."""
JOB_S = 20
"""Long enough to be seen while it runs."""
SHORT_S = 24
"""For what happens at the deadline itself."""


def submit(machine: Machine, seconds: int) -> None:
    """Have a job run."""
    machine.shell(f"xce-reference ctl submit m1 --seconds {seconds}")
    machine.wait_status(lambda found: found["host"]["jobs_left"] == 1, "the worker has the job")


def asked(machine: Machine, what: str) -> list[dict[str, Any]]:
    """What the controller answers."""
    done = machine.run("xce-reference", "ctl", what, ok=None)
    found: list[dict[str, Any]] = json.loads(done.stdout)[what] if done.returncode == 0 else []
    return found


def registered(machine: Machine) -> str | None:
    """What the cluster knows of the host."""
    return next((host["state"] for host in asked(machine, "hosts")), None)


def test_a_spot_reclaim_is_one_command(machine: Machine) -> None:
    """Drained, stopped and reported well within the provider's notice, with the job run to its end."""
    serve(machine, *EVERYTHING)
    submit(machine, JOB_S)
    machine.ctl("drain", f"--deadline={NOTICE_S}s", "--reason", "spot reclaim")
    told = machine.status()["host"]
    assert told["reason"] == "spot reclaim"
    machine.run("xce-nodectl", "wait", "--for", "drained", f"--timeout={NOTICE_S}s", bound_s=NOTICE_S + 60)
    wait_until(lambda: registered(machine) == "drained", "the cluster has the last report")
    found = machine.wait_status(lambda found: worker(found)["state"] == "stopped", "the worker has stopped")
    assert found["now_ns"] < told["deadline_ns"]
    assert worker(found)["rule"] == "drained"
    (last,) = wait_until(lambda: asked(machine, "jobs"), "the controller says what became of the job")
    assert (last["state"], last["outcome"]) == ("ended", "exit 0")


@pytest.mark.parametrize("policy", ["kill", "leave"])
def test_a_job_that_outlasts_the_notice(machine: Machine, policy: str) -> None:
    """With `kill` what is left ends before the deadline, so that the report is in time; by default it is left alone."""
    configuration = boot_configuration(*EVERYTHING)
    drain = {"directive": True, "on_deadline": policy}
    configuration["components"]["worker"]["drain"] = drain
    serve(machine, *EVERYTHING, components=configuration["components"])
    submit(machine, 600)
    before = worker(machine.status())["pid"]
    machine.ctl("drain", f"--deadline={SHORT_S}s", "--reason", "spot reclaim")
    if policy == "kill":
        machine.wait_status(lambda found: worker(found)["state"] == "stopped", "the worker has stopped")
        assert "5 s are kept for the last report" in machine.ctl("events")
        assert job(machine) == ""
        machine.wait_status(lambda found: found["host"]["state"] == "drained", "the host is drained")
    else:
        found = machine.wait_status(lambda found: "deadline has passed" in str(found), "status says so")
        assert (worker(found)["pid"], found["host"]["state"]) == (before, "draining")
        assert job(machine)


def test_a_shutdown_tells_the_worker_and_stops_dependants_first(machine: Machine) -> None:
    """The worker hears of it before its signal, the scheduler goes before its controller; then the agent has finished.

    The host is no less a member of the cluster after the boot.
    """
    machine.run("mkdir", "-p", "/var/log/journal")
    machine.run("systemctl", "restart", "systemd-journal-flush.service")
    serve(machine, *EVERYTHING)
    machine.running()
    boot_id = machine.shell("cat /proc/sys/kernel/random/boot_id").strip().replace("-", "")
    machine.reboot()
    machine.ready()
    lines = machine.journal("-u", UNIT, "-b", boot_id).splitlines()
    order = [
        _line(lines, "agent.stopping", "SIGTERM for a systemd stop job"),
        _line(lines, "component.state_changed component=scheduler", "new=stopped"),
        _line(lines, "component.state_changed component=controller", "new=stopped"),
        _line(lines, "agent.finished"),
    ]
    assert order == sorted(order)
    assert _line(lines, "worker: the node is being stopped") < _line(lines, "worker: told to stop")
    assert machine.status()["host"]["state"] == "active"
    wait_until(lambda: registered(machine) == "active", "the worker has joined again")


def _line(lines: list[str], *words: str) -> int:
    """The last line with all these words."""
    return max(number for number, line in enumerate(lines) if all(word in line for word in words))


def test_a_user_that_cannot_run_the_role(machine: Machine) -> None:
    """The agent of a worker host that is not root starts nothing, says why in one sentence, and takes root at once."""
    machine.write(CONFIG, yaml.safe_dump(boot_configuration("worker")))
    sentence = "cannot run worker as root: the agent runs as xce"
    assert sentence in machine.run("runuser", "-u", "xce", "--", "xce-node-manager", "check").stderr
    machine.run("systemctl", "enable", "--now", "--quiet", UNIT)
    found = machine.wait_status(lambda found: found["node"]["config_error"], "it says what is wrong")
    assert sentence in found["node"]["config_error"]
    assert "run the agent as root" in found["node"]["config_error"]
    assert (found["node"]["state"], found["components"]) == ("waiting-config", [])
    assert machine.property("ActiveState") == "active"
    machine.run("xce-node-manager", "bootstrap")
    machine.wait_status(lambda found: found["components"] and worker(found)["pid"], "the worker runs")
