"""SIGTERM under systemd: the agent goes, its components stay, the next one has them."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.host import BOUND_S, Host, wait_until
from tests.integration.test_generic import make_with

Make = Callable[..., Host]


class Systemd:
    """A notify socket that reads what the agent says."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "systemd"
        self.said: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while data := self._socket.recv(4096):
            self.said.extend(data.decode().splitlines())

    def close(self) -> None:
        self._socket.sendto(b"", str(self.path))
        self._thread.join(BOUND_S)
        self._socket.close()


@contextmanager
def systemd(directory: Path) -> Iterator[Systemd]:
    found = Systemd(directory)
    try:
        yield found
    finally:
        found.close()


def test_without_a_stop_job_the_components_stay(host: Host, place: Path) -> None:
    """The agent ends with 0 and says why; the very same processes are the next agent's."""
    with systemd(place) as manager:
        host.start(NOTIFY_SOCKET=str(manager.path))
        host.ctl("wait", "--for", "ready", "--timeout", f"{BOUND_S:g}s")
        before = host.pids()
        assert host.stop(signal.SIGTERM) == 0
        assert "agent.handing_over" in host.tail()
        host.start(NOTIFY_SOCKET=str(manager.path))
        host.ctl("wait", "--for", "ready", "--timeout", f"{BOUND_S:g}s")
        assert host.pids() == before
        assert not [event for event in host.events() if event["event"] == "component.spawned"]


def test_sigint_stops_everything_under_systemd_too(host: Host, place: Path) -> None:
    """What an operator sends on purpose is not mistaken for a restart."""
    with systemd(place) as manager:
        host.start(NOTIFY_SOCKET=str(manager.path))
        host.ctl("wait", "--for", "ready", "--timeout", f"{BOUND_S:g}s")
        assert host.stop(signal.SIGINT) == 0
        assert host.processes() == []


def test_the_sockets_are_stored_and_their_paths_stay(host: Host, place: Path) -> None:
    """Whoever connects between two agents is to wait for the second: systemd keeps both listening sockets."""
    with systemd(place) as manager:
        host.start(NOTIFY_SOCKET=str(manager.path))
        wait_until(lambda: manager.said.count("FDSTORE=1") == 2, "both are stored")
        assert {"FDNAME=status", "FDNAME=heartbeat"} <= set(manager.said)
        assert host.stop(signal.SIGTERM) == 0
        assert [host.socket.is_socket(), (host.run_dir / "heartbeat.sock").is_socket()] == [True, True]


def test_the_watchdog_is_fed_by_turns(host: Host, place: Path) -> None:
    """WATCHDOG=1 comes in time while the loop turns; not once while the agent is stopped, and again afterwards."""
    with systemd(place) as manager:
        host.start(NOTIFY_SOCKET=str(manager.path), WATCHDOG_USEC="4000000")
        assert host.agent is not None
        wait_until(lambda: manager.said.count("WATCHDOG=1") >= 3, "it is fed")
        host.agent.send_signal(signal.SIGSTOP)
        wait_until(lambda: _stopped(host), "it is stopped")
        fed = manager.said.count("WATCHDOG=1")
        host.agent.send_signal(signal.SIGCONT)
        wait_until(lambda: manager.said.count("WATCHDOG=1") > fed, "it is fed again")


def _stopped(host: Host) -> bool:
    assert host.agent is not None
    return Path(f"/proc/{host.agent.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_an_agent_on_its_way_out_is_not_replaced(make_host: Make, place: Path) -> None:
    """A successor would not know that it has to go: it is refused, and the agent ends."""
    gate = place / "gate"
    os.mkfifo(gate)
    host = make_with(
        make_host,
        one={
            "command": ["/bin/sleep", "300"],
            "reload": {"command": ["/bin/sh", "-c", f"cat {gate}"], "timeout_s": 60},
        },
    )
    with systemd(place) as manager:
        host.start(NOTIFY_SOCKET=str(manager.path))
        host.wait_for("one", state="running")
        host.ctl("reload", "one")  # keeps the agent from a quiet moment
        assert host.agent is not None
        host.agent.send_signal(signal.SIGTERM)
        wait_until(lambda: "agent.handing_over" in host.tail(), "it is about to go")
        assert "on its way out" in host.ctl("reexec", ok=1)
        with gate.open("w"):
            pass
        assert host.agent.wait(BOUND_S) == 0
