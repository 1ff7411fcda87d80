"""Where the agent's own log goes: the journal with its fields under systemd, else standard error.

A log that is not read, is full, or is gone must not touch supervision. So entries go through a bounded queue to a
thread of their own; what does not fit, or cannot be written, is dropped and counted, and status says how much.
"""

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import structlog

from node_manager.cli import journal_entry

QUEUE_ENTRIES = 4096
"""Entries that wait for a log that hangs: minutes of an eventful host, about 1 MiB."""
CLOSE_TIMEOUT_S = 1.0
"""How long the end of the agent waits for its last entries to be written."""

Write = Callable[[], None]


class Sink:
    """The queue and the thread. `lost` counts what was dropped."""

    def __init__(self, *, descriptor: int = 2) -> None:
        self.lost = 0
        self._descriptor = descriptor
        # Not queue.Queue, whose `put` takes its time, and the loop puts; so the bound is kept here.
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        # A daemon: a thread that hangs in a pipe must not keep the agent from ending.
        self._thread = threading.Thread(target=self._run, name="xce-log", daemon=True)
        self._thread.start()

    def put(self, write: Write) -> None:
        """Have something written; never waits."""
        if self._queue.qsize() < QUEUE_ENTRIES:
            self._queue.put(write)
        else:
            self.lost += 1

    def line(self, text: str) -> None:
        """Have a line written to standard error."""
        self.put(lambda: self._write(f"{text}\n".encode(errors="replace")))

    def flush(self) -> None:
        """Wait until what waits now is written, within a bound."""
        written = threading.Event()
        self.put(written.set)
        written.wait(CLOSE_TIMEOUT_S)

    def close(self) -> None:
        """Write what waits, within a bound."""
        self._queue.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _run(self) -> None:
        while (write := self._queue.get()) is not None:
            try:
                write()
            except Exception:  # noqa: BLE001 - whatever a log does, the agent goes on; it is counted
                self.lost += 1


def configure(*, under_systemd: bool) -> Sink:
    """Set structlog up, once, for this process; return where the entries go."""
    sink = Sink()
    processors: list[Any] = [structlog.processors.add_log_level]
    if under_systemd and _stderr_is_the_journal():
        processors.append(JournalProcessor(journal_entry.sender(), sink))
    elif sys.stderr.isatty():
        processors.append(structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False))
        processors.append(structlog.dev.ConsoleRenderer(pad_event_to=0))
    else:
        if not under_systemd:
            processors.append(structlog.processors.TimeStamper(fmt="iso", utc=True))
        order = ["timestamp", "level", "event", "component"]
        processors.append(structlog.processors.LogfmtRenderer(key_order=order, drop_missing=True, bool_as_flag=False))
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_args: _Lines(sink),
        cache_logger_on_first_use=True,
    )
    return sink


class _Lines:
    """What structlog calls with a rendered line."""

    def __init__(self, sink: Sink) -> None:
        self.msg = self.info = self.warning = self.error = self.critical = self.debug = sink.line


class JournalProcessor:
    """Sends an entry with its fields to the journal and ends there."""

    def __init__(self, send: Callable[[Mapping[str, str]], None], sink: Sink) -> None:
        self._send = send
        self._sink = sink

    def __call__(self, _logger: object, _method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Send one entry; raises DropEvent, structlog's way to say that nothing is left to do."""
        event = str(entry.pop("event"))
        level = entry.pop("level", "info")
        fields = {f"XCE_{name.upper()}": str(value) for name, value in entry.items()}
        priority = {"warning": 4, "error": 3, "critical": 2}.get(level, 6)
        fields |= {
            "MESSAGE": " ".join([event, *(f"{name}={value}" for name, value in entry.items())]),
            "PRIORITY": str(priority),
            "SYSLOG_IDENTIFIER": "xce-node-manager",
            "XCE_EVENT": event,
        }
        self._sink.put(lambda: self._send(fields))
        raise structlog.DropEvent


def _stderr_is_the_journal() -> bool:
    """Compare JOURNAL_STREAM with standard error (systemd.exec(5)): a redirected one is what somebody wants to read."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))
