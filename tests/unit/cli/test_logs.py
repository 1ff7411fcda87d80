"""The agent's own log never touches supervision."""

import os
import threading

import pytest
import structlog

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
    sent: list[tuple[str, dict[str, str]]] = []
    sink = Sink()
    processor = JournalProcessor(lambda text, **fields: sent.append((text, fields)), sink)
    entry = {"event": "component.exited", "level": "warning", "component": "worker", "generation": 3}
    with pytest.raises(structlog.DropEvent):
        processor(None, "warning", entry)
    sink.close()
    assert sent == [
        (
            "component.exited component=worker generation=3",
            {
                "PRIORITY": "4",
                "XCE_EVENT": "component.exited",
                "SYSLOG_IDENTIFIER": "xce-node-manager",
                "XCE_COMPONENT": "worker",
                "XCE_GENERATION": "3",
            },
        )
    ]
