"""The agent's own log never touches supervision."""

import asyncio
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from node_manager.cli import journal_entry
from node_manager.cli.journal_entry import MAX_VALUE_BYTES
from node_manager.cli.logs import QUEUE_ENTRIES, JournalProcessor, Logfmt, Sink


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


def test_what_the_loop_says_in_one_turn_goes_over_at_once() -> None:
    """The thread is not woken within a turn. What other threads say, and what is left at the end, comes too."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    sink = Sink(descriptor=writing)
    loop = asyncio.new_event_loop()
    sink.attach(loop)
    within: list[str] = []

    def turn() -> None:
        sink.line("one")
        other = threading.Thread(target=sink.line, args=("of another thread",))
        other.start()
        other.join()
        assert select.select([reading], [], [], 20)[0], "nothing of another thread"
        within.append(os.read(reading, 100).decode())
        sink.line("two")
        loop.call_soon(later)

    def later() -> None:
        assert select.select([reading], [], [], 20)[0], "nothing after the turn"
        within.append(os.read(reading, 100).decode())
        loop.stop()

    loop.call_soon(turn)
    loop.run_forever()
    sink.line("left")
    loop.close()
    sink.line("at the end")
    sink.close()
    os.close(writing)
    os.set_blocking(reading, True)
    with os.fdopen(reading, "rb") as pipe:
        rest = pipe.read().decode()
    assert within == ["of another thread\n", "one\ntwo\n"]
    assert rest == "left\nat the end\n"


def test_what_the_loop_says_is_bounded_before_it_goes_over() -> None:
    """A turn that says more than the queue holds loses the rest, counted."""
    reading, writing = os.pipe()
    sink = Sink(descriptor=writing)
    loop = asyncio.new_event_loop()
    sink.attach(loop)
    for _ in range(QUEUE_ENTRIES + 3):
        sink.line("x")
    assert sink.lost == 3
    loop.close()
    os.close(reading)
    sink.close()
    os.close(writing)


@pytest.mark.parametrize(
    "value", ["a", 'a"b', "a b", "a=b", "a\\b", "a \\b", "a\nb", 'q"\\\n', "", None, True, False, 3, "é"]
)
@pytest.mark.parametrize("component", [None, "worker", "two words"])
def test_lines_are_what_structlog_makes_of_them(value: object, component: str | None) -> None:
    """Whoever reads the log with logfmt's rules reads the same: quotes, escapes, booleans, nothing for None."""
    reference = structlog.processors.LogfmtRenderer(
        key_order=["timestamp", "level", "event", "component"], drop_missing=True, bool_as_flag=False
    )
    entry = {"event": "component.exited", "component": component, "detail": value, "generation": 1}
    assert reference(None, "info", {"level": "info"} | entry) == Logfmt(stamped=False)(None, "info", dict(entry))


def test_a_line_begins_with_its_time() -> None:
    """In UTC, with microseconds, also across the end of a second."""
    moment = int(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1_000_000_000
    times = iter((moment + 7_999, moment + 999_999_999, moment + 1_000_000_000))
    render = Logfmt(stamped=True, clock=lambda: next(times))
    lines = [render(None, "warning", {"event": "x"}) for _ in range(3)]
    assert [
        f"timestamp={stamp} level=warning event=x"
        for stamp in (
            "2026-12-31T23:59:59.000007Z",
            "2026-12-31T23:59:59.999999Z",
            "2027-01-01T00:00:00.000000Z",
        )
    ] == lines


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
