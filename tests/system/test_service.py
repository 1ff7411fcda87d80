"""What systemd can do to the service, and what must become of the components."""

import json

import pytest

from tests.system.conftest import Make
from tests.system.hosts import configure, job, serve
from tests.system.machine import UNIT, Machine, wait_until

EVERYTHING = ("manager", "worker", "apiserver")
HOSTS = {"without root": ("manager",), "with root": EVERYTHING}


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest, machine: Machine) -> Machine:
    """A machine on which everything is ready: one agent runs as xce, the other as root."""
    serve(machine, *HOSTS[request.param])
    machine.running()
    return machine


def _adopted(machine: Machine, before: dict[str, int | None], agent: int) -> None:
    """Another agent than `agent` is in charge of exactly the processes of before."""
    wait_until(lambda: machine.agent_pid() not in {0, agent}, "there is another agent")
    machine.wait_status(lambda found: found["node"]["agent_pid"] != agent, "another agent answers")
    machine.keeps(before)
    machine.running()
    machine.wait_property("ActiveState", "active")


def test_a_restart_leaves_components_alone(host: Machine) -> None:
    """`systemctl restart`, as an upgrade of a library causes it: another agent, the same processes."""
    before, agent = host.pids(), host.agent_pid()
    host.run("systemctl", "restart", UNIT)
    _adopted(host, before, agent)


def test_mass_restarts_leave_components_alone(host: Machine) -> None:
    """What needrestart does after an upgrade of the C library, over and over: the same processes, nobody refused."""
    others = ("systemd-journald.service", "systemd-logind.service", "dbus.service")
    before = host.pids()
    for _ in range(6):
        agent = host.agent_pid()
        host.run("systemctl", "reset-failed", *others)  # their limit is five starts in ten seconds
        host.run("systemctl", "--no-block", "restart", *others, UNIT)
        _adopted(host, before, agent)
        # A logind that has spoken to the bus of before fails after ninety seconds, and is started again.
        for other in others:
            host.wait_property("ActiveState", "active", other)
        assert [warning for warning in host.status()["warnings"] if "refused" in warning] == []


def test_restarts_without_a_pause_leave_components_alone(host: Machine) -> None:
    """Each restart comes before the agent of the last one has heard of every component."""
    before, agent = host.pids(), host.agent_pid()
    host.shell(f"for n in 1 2 3 4 5 6; do systemctl restart {UNIT}; done")
    _adopted(host, before, agent)
    assert [warning for warning in host.status()["warnings"] if "refused" in warning] == []


def test_killing_the_agent_leaves_components_alone(host: Machine) -> None:
    """SIGKILL: systemd starts another agent, which takes the same processes over."""
    before, agent = host.pids(), host.agent_pid()
    host.run("kill", "-KILL", str(agent))
    _adopted(host, before, agent)


def test_a_signal_from_a_stranger_leaves_components_alone(host: Machine) -> None:
    """SIGTERM without a stop of the service hands over."""
    before, agent = host.pids(), host.agent_pid()
    host.run("kill", "-TERM", str(agent))
    _adopted(host, before, agent)


def test_a_frozen_agent_is_replaced(host: Machine) -> None:
    """An agent that does not turn its loop any more is ended by systemd's watchdog, and no component with it."""
    drop_in = "/run/systemd/system/xce-node-manager.service.d/watchdog.conf"
    host.write(drop_in, "[Service]\nWatchdogSec=10\nTimeoutAbortSec=1\n")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", UNIT)
    host.running()
    before, agent = host.pids(), host.agent_pid()
    host.run("kill", "-STOP", str(agent))
    _adopted(host, before, agent)
    host.wait_journal("Watchdog timeout", "-u", UNIT)


def test_a_reexec_of_systemd_leaves_agent_and_components_alone(host: Machine) -> None:
    """`systemctl daemon-reexec` (an upgrade of systemd): the same agent, and the next one takes over as ever."""
    before, agent = host.pids(), host.agent_pid()
    host.run("systemctl", "daemon-reexec")
    host.keeps(before)
    assert agent == host.agent_pid()
    host.run("systemctl", "restart", UNIT)
    _adopted(host, before, agent)


def test_a_query_during_a_restart_is_answered(host: Machine) -> None:
    """The status socket waits in systemd between two agents: whoever asks meanwhile waits, and is not refused."""
    agent = host.agent_pid()
    host.shell(f"systemctl restart --no-block {UNIT}")
    agents = set()
    for _ in range(20):
        found = host.run("xce-nodectl", "status", "--json", ok=None)
        assert found.returncode in {0, 1}, found.stderr
        agents.add(json.loads(found.stdout)["node"]["agent_pid"])
        if len(agents) > 1:
            break
    host.wait_status(lambda status: status["node"]["agent_pid"] == host.agent_pid() != agent, "the new agent answers")


def test_a_stop_stops_components_and_a_query_starts_nothing(host: Machine) -> None:
    """`systemctl stop` ends every component within its bound; asking afterwards changes nothing."""
    before = host.pids()
    host.run("systemctl", "stop", UNIT)
    assert not any(host.alive(pid) for pid in before.values())
    assert "cannot reach the agent" in host.ctl("status", ok=3)
    assert (host.property("ActiveState"), host.property("Result")) == ("inactive", "success")
    assert host.agent_pid() == 0
    host.run("systemctl", "start", UNIT)
    host.running()
    assert set(before) == set(host.pids())


def test_users_jobs_outlive_restart_and_stop(machine: Machine) -> None:
    """A job is nobody's to end but its user's: not by a restart, a kill, or a stop of the service."""
    serve(machine, *EVERYTHING)
    machine.shell("xce-reference ctl submit m1 --seconds 600")
    before = wait_until(lambda: job(machine), "the job runs")
    machine.run("systemctl", "restart", UNIT)
    machine.ready()
    machine.run("kill", "-KILL", str(machine.agent_pid()))
    machine.running()
    machine.run("systemctl", "stop", UNIT)
    assert before == job(machine)
    machine.run("systemctl", "start", UNIT)
    machine.wait_status(lambda found: _jobs(found) == 1, "the worker has found its job again")
    assert before == job(machine)


def _jobs(status: dict[str, list[dict[str, object]]]) -> object:
    return next(component["jobs"] for component in status["components"] if component["name"] == "worker")


def test_only_operators_may_direct(machine: Machine) -> None:
    """Everybody may ask; root and members of xce-admin may change something, and nobody else."""
    serve(machine, "apiserver")
    machine.shell("useradd --groups xce-admin alice; useradd bob")
    for user, status in (("alice", 0), ("bob", 4)):
        machine.ready()
        machine.run("runuser", "-u", user, "--", "xce-nodectl", "status")
        machine.run("runuser", "-u", user, "--", "xce-nodectl", "restart", "apiserver", ok=status)


def test_a_host_shuts_down_in_order(host: Machine) -> None:
    """At a shutdown components are stopped, and the machine is down well within systemd's patience."""
    host.run("mkdir", "-p", "/var/log/journal")
    host.run("systemctl", "restart", "systemd-journal-flush.service")
    host.power_off()
    host.boot()
    host.ready()
    text = host.journal("-u", UNIT)
    assert "SIGTERM for a systemd stop job" in text
    assert "agent.finished" in text


def test_a_boot_brings_everything_back(make_machine: Make) -> None:
    """After the plug was pulled, too: enabled once, everything runs after the next boot."""
    machine = make_machine()
    machine.boot()
    serve(machine, *EVERYTHING)
    machine.kill()
    machine.boot()
    machine.running()


def test_the_configuration_may_come_late(machine: Machine) -> None:
    """Without a configuration the unit is active, says what it waits for, and takes the file up when it is right."""
    machine.run("systemctl", "enable", "--now", "--quiet", UNIT)
    found = machine.wait_status(lambda status: status["node"]["state"] == "waiting-config", "it waits")
    assert "/etc/xce/node-manager.yaml" in found["node"]["config_error"]
    assert machine.property("ActiveState") == "active"
    assert machine.system_state() == "running"
    machine.write("/etc/xce/node-manager.yaml", "version: 1\nroles: [nonsense]\n")
    machine.wait_status(lambda status: "nonsense" in str(status["node"]["config_error"]), "it says what is wrong")
    configure(machine, "manager")
    machine.running()
