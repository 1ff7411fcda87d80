"""The agent's own log never touches supervision."""

import os
import socket
import struct
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from node_manager.cli import journal_entry
from node_manager.cli.journal_entry import MAX_VALUE_BYTES
from node_manager.cli.logs import QUEUE_ENTRIES, JournalProcessor, Sink


def test_lines_are_written_in_order_and_flushed_at_the_end() -> None:
    """Closing waits for what was put before."""
    reading, writing = os.pipe()
    sink = Sink(descriptor=writing)
    for n in range(100):
        sink.line(f"line {n} é\udc80")
    sink.close()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().decode().splitlines()
    assert lines == [f"line {n} é?" for n in range(100)]
    assert sink.lost == 0


def test_a_log_that_is_not_read_blocks_nobody() -> None:
    """A full pipe holds the thread alone: lines beyond the queue are dropped and counted."""
    reading, writing = os.pipe()
    sink = Sink(descriptor=writing)
    for _ in range(3 * QUEUE_ENTRIES):
        sink.line("x" * 100)
    assert sink.lost > 0
    os.close(reading)
    sink.close()
    os.close(writing)


def test_a_log_that_is_gone_is_survived() -> None:
    """A closed pipe, a full disk, an exception of the journal's library: counted, and the next line is tried."""
    sink = Sink(descriptor=os.open("/dev/full", os.O_WRONLY))
    called = threading.Event()
    sink.line("lost")
    sink.put(lambda: 1 // 0)  # type: ignore[arg-type]
    sink.put(called.set)
    assert called.wait(20)
    sink.close()
    assert sink.lost == 2


def test_the_journal_gets_the_fields() -> None:
    """An entry becomes one message for people and one field for each value; nothing is printed beside it."""
    sent: list[Mapping[str, str]] = []
    sink = Sink()
    processor = JournalProcessor(sent.append, sink)
    entry = {"event": "component.exited", "level": "warning", "component": "worker", "generation": 3}
    with pytest.raises(structlog.DropEvent):
        processor(None, "warning", entry)
    sink.close()
    assert sent == [
        {
            "MESSAGE": "component.exited component=worker generation=3",
            "PRIORITY": "4",
            "SYSLOG_IDENTIFIER": "xce-node-manager",
            "XCE_EVENT": "component.exited",
            "XCE_COMPONENT": "worker",
            "XCE_GENERATION": "3",
        }
    ]


def test_an_entry_is_one_datagram_of_the_native_protocol(tmp_path: Path) -> None:
    """A value with line ends stands after its length, so that it cannot forge a field; a long one is cut."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "socket"))
        fields = {"MESSAGE": "two\nPRIORITY=0", "XCE_EVENT": "é\udc80", "XCE_DETAIL": "x" * (MAX_VALUE_BYTES + 1)}
        journal_entry.send(fields, tmp_path / "socket")
        received = journal.recv(1 << 16)
    length = struct.pack("<Q", len("two\nPRIORITY=0"))
    expected = b"MESSAGE\n" + length + b"two\nPRIORITY=0\n" + "XCE_EVENT=é?\n".encode()
    assert received == expected + b"XCE_DETAIL=" + b"x" * MAX_VALUE_BYTES + b"\n"


def test_a_journal_that_is_gone_is_counted(tmp_path: Path) -> None:
    """An entry that nobody takes is lost, and status says so; nothing else happens."""
    sink = Sink()
    processor = JournalProcessor(partial(journal_entry.send, path=tmp_path / "socket"), sink)
    with pytest.raises(structlog.DropEvent):
        processor(None, "info", {"event": "agent.started"})
    sink.close()
    assert sink.lost == 1


def test_the_systemd_library_sends_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `send` takes the message by place and the fields by name; without it the agent speaks to journald itself."""
    monkeypatch.setitem(sys.modules, "systemd", None)
    assert journal_entry.sender() is journal_entry.send
    sent: list[tuple[str, dict[str, str]]] = []
    journal = SimpleNamespace(send=lambda message, **fields: sent.append((message, fields)))
    monkeypatch.setitem(sys.modules, "systemd", SimpleNamespace(journal=journal))
    journal_entry.sender()({"MESSAGE": "component.exited", "PRIORITY": "4", "XCE_COMPONENT": "worker"})
    assert sent == [("component.exited", {"PRIORITY": "4", "XCE_COMPONENT": "worker"})]
