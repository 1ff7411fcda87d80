"""What systemd is told while its socket is full, and how often."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from node_manager.cli.reporting import Reports
from node_manager.runtime.notify import SystemdNotifier
from tests.unit.api.fake import short_directory


@dataclass
class Node:
    """What the reports are about, and the socket that they go to."""

    systemd: socket.socket
    notifier: SystemdNotifier
    summary: str = "one"
    stopping: bool = False

    def reports(self) -> Reports:
        return Reports(
            self.notifier,
            summary=lambda: self.summary,
            stopping=lambda: self.stopping,
            descriptors=lambda: {"status": self.systemd.fileno()},
        )

    def fill(self) -> None:
        """Leave no room in the socket's queue."""
        while self.notifier.watchdog():
            pass

    def heard(self) -> list[str]:
        """Empty the queue and return what was in it, without what filled it."""
        said = []
        while True:
            try:
                said.append(self.systemd.recv(4096).decode())
            except BlockingIOError:
                return [text for text in said if text != "WATCHDOG=1"]


@pytest.fixture
def node() -> Iterator[Node]:
    with short_directory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        path = str(directory / "notify")
        sock.setblocking(False)
        sock.bind(path)
        yield Node(sock, SystemdNotifier({"NOTIFY_SOCKET": path}))


def test_what_a_full_socket_did_not_take_is_sent_until_it_does(node: Node) -> None:
    """Neither READY=1 nor a descriptor nor the status is lost, and none comes twice."""
    reports = node.reports()
    node.fill()
    reports.store()
    reports.in_charge()
    reports.changed()
    reports.send()
    assert node.heard() == []
    node.summary = "two"
    reports.send()
    reports.send()
    assert node.heard() == ["FDSTORE=1\nFDNAME=status", "READY=1\nSTATUS=two", "STATUS=two"]


def test_a_stop_is_said_until_it_is_heard(node: Node) -> None:
    """Without STOPPING=1 and its time-out systemd would cut the stop of the components short."""
    reports = node.reports()
    node.stopping = True
    node.fill()
    reports.changed()
    reports.send()
    assert node.heard() == []
    reports.send()
    stopping, extension = node.heard()
    assert stopping == "STOPPING=1\nSTATUS=one"
    assert extension.startswith("EXTEND_TIMEOUT_USEC=")


def test_many_events_of_one_turn_are_one_status(node: Node) -> None:
    """A storm of events leaves room for what matters."""
    reports = node.reports()
    for _ in range(100):
        reports.changed()
    reports.send()
    reports.send()
    assert node.heard() == ["STATUS=one"]


def test_a_socket_made_anew_takes_the_place_of_the_old_one(node: Node) -> None:
    """What systemd keeps under the name is forgotten before the new one is stored, also where its socket was full."""
    reports = node.reports()
    node.fill()
    reports.store(anew=True)
    reports.send()
    node.heard()
    reports.send()
    assert node.heard() == ["FDSTOREREMOVE=1\nFDNAME=status", "FDSTORE=1\nFDNAME=status"]


def test_without_systemd_nothing_is_said(tmp_path: Path) -> None:
    """In the foreground there is nobody to tell, and the turn goes on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.bind(str(tmp_path / "n"))
        reports = Node(sock, SystemdNotifier({})).reports()
        reports.in_charge()
        reports.send()
