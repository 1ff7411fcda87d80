"""An agent under systemd that has no configuration: what it shows, and what becomes of what an earlier one left."""

import signal
from collections.abc import Callable
from pathlib import Path

from tests.integration.host import Host, wait_until
from tests.integration.test_generic import make_with
from tests.integration.test_handing_over import systemd

Make = Callable[..., Host]


def lose_configuration(host: Host) -> str:
    """Leave the host without a configuration, the last good copy included; return what it was."""
    text = host.config.read_text()
    host.config.unlink()
    (host.state_dir / "config.json").unlink()
    return text


def left_running(make_host: Make, place: Path) -> tuple[Host, str]:
    """Return a host whose components run on without an agent, and without a configuration for the next one."""
    said = place / "said"
    polite = f"trap 'echo TERM >> {said}; exit 0' TERM; echo up >> {said}; while :; do sleep 0.05; done"
    host = make_with(
        make_host,
        polite={"command": ["/bin/sh", "-c", polite]},
        plain={"command": ["/bin/sleep", "300"], "stop": {"signal": "INT"}},
    )
    host.start()
    host.wait_until_ready()
    wait_until(said.exists, "it has its trap")
    host.ctl("decommission", "--reason", "sold")
    host.kill_agent()
    return host, lose_configuration(host)


def test_what_is_not_in_charge_is_shown(make_host: Make, place: Path) -> None:
    """Processes and the latch are named while there is no configuration; with it they are taken into charge."""
    host, configuration = left_running(make_host, place)
    with systemd(place) as manager:
        host.start(NOTIFY_SOCKET=str(manager.path))
        status = host.status()
        assert status["node"]["state"] == "waiting-config"
        (latch,) = [one for one in status["warnings"] if "decommissioned" in one]
        assert latch.startswith("the host i-test is decommissioned, by ")
        assert latch.endswith(": sold; in force as soon as its configuration is")
        (left,) = [one for one in status["warnings"] if "left running" in one]
        assert "polite (pid " in left
        assert "plain (pid " in left
        host.write_config(configuration)
        wait_until(lambda: host.status()["node"]["state"] == "running", "it is taken up")
        assert host.status()["host"]["state"] == "decommissioned"
        assert not [one for one in host.status()["warnings"] if "left running" in one or "in force as soon" in one]
        assert all(host.component(name)["pid"] for name in ("polite", "plain"))


def test_a_stop_leaves_nothing_behind(make_host: Make, place: Path) -> None:
    """Without a configuration too the end of the node is the end of its components, each by its own signal."""
    host, _configuration = left_running(make_host, place)
    facts = (host.state_dir / "facts.json").read_bytes()
    with systemd(place) as manager:
        host.start(NOTIFY_SOCKET=str(manager.path))
        assert host.stop(signal.SIGINT) == 0
        assert (place / "said").read_text().split() == ["up", "TERM"]
        assert host.processes() == []
        assert "killed by signal 2 (SIGINT)" in host.tail()
        assert facts == (host.state_dir / "facts.json").read_bytes()


def test_a_restart_leaves_everything_running(make_host: Make, place: Path) -> None:
    """An agent that hands over has nothing to do with processes that were never in its charge."""
    host, configuration = left_running(make_host, place)
    before = {pid for pid in host.processes() if _main_pid(pid) == str(pid)}
    assert len(before) == 2
    with systemd(place) as manager:
        host.start(NOTIFY_SOCKET=str(manager.path))
        assert host.status()["node"]["state"] == "waiting-config"
        assert host.stop(signal.SIGTERM) == 0
        assert before <= set(host.processes())
        host.write_config(configuration)
        host.start(NOTIFY_SOCKET=str(manager.path))
        assert set(host.pids().values()) == before


def _main_pid(pid: int) -> str:
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""  # a short-lived child of a component
    return next((pair.partition(b"=")[2].decode() for pair in pairs if pair.startswith(b"XCE_MAIN_PID=")), "")


def test_nobody_is_told_that_there_is_no_configuration_while_it_is_read(host: Host, place: Path) -> None:
    """A query during the start waits for what the configuration is, instead of an answer that is about to be wrong."""
    with systemd(place) as manager:
        host.start(NOTIFY_SOCKET=str(manager.path))
        assert host.status()["node"]["state"] == "running"
        assert "waiting-config" not in host.tail()
        wait_until(lambda: "READY=1" in manager.said, "systemd is told")


def _waiting(host: Host) -> int:
    """Return how many connections to the heartbeat socket nobody has accepted yet."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    path = str(host.run_dir / "heartbeat.sock")
    return sum(line[-1] == path and line[5] == "02" for line in lines)


def test_components_that_connect_before_they_are_adopted_are_heard(host: Host, place: Path) -> None:
    """Nobody is refused as a stranger while the configuration is not there: who connects waits, and is heard then."""
    host.up()
    before = host.pids()
    host.kill_agent()
    configuration = lose_configuration(host)
    with systemd(place) as manager:
        host.start(NOTIFY_SOCKET=str(manager.path))
        wait_until(lambda: _waiting(host) or "stranger" in str(host.status()["warnings"]), "a component connects")
        assert host.status()["node"]["state"] == "waiting-config"
        host.write_config(configuration)
        host.wait_until_ready()
        assert not [text for text in host.status()["warnings"] if "stranger" in text]
        assert before == host.pids()
