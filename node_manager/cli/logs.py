"""Where the agent's own log goes: the journal with its fields under systemd, else standard error.

A log that is not read, is full, or is gone must not touch supervision. So entries go through a bounded queue to a
thread of their own; what does not fit, or cannot be written, is dropped and counted, and status says how much.

What the loop says while it works goes over to that thread at once for a whole turn, at its end: woken for each line,
the thread would take the interpreter from the loop at every system call that the loop makes.
"""

import asyncio
import logging
import os
import queue
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._held: list[bytes | Write] = []
        """What the loop has said since it last looked at its descriptors."""
        # Not queue.Queue, whose `put` takes its time, and the loop puts; so the bound is kept here.
        self._queue: queue.SimpleQueue[bytes | Write | None] = queue.SimpleQueue()
        # A daemon: a thread that hangs in a pipe must not keep the agent from ending.
        self._thread = threading.Thread(target=self._run, name="xce-log", daemon=True)
        self._thread.start()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have what this thread says from now on handed over by its loop: once, after all that is due now."""
        self._loop, self._loop_thread = loop, threading.get_ident()

    def put(self, entry: bytes | Write) -> None:
        """Have a line written, or what writes an entry called; never waits."""
        if self._queue.qsize() + len(self._held) >= QUEUE_ENTRIES:
            self.lost += 1
        elif self._loop is None or threading.get_ident() != self._loop_thread:
            self._queue.put(entry)
        elif self._loop.is_closed():
            self._hand_over()
            self._queue.put(entry)
        else:
            if not self._held:
                self._loop.call_soon(self._hand_over)
            self._held.append(entry)

    def line(self, text: str) -> None:
        """Have a line written to standard error."""
        self.put(f"{text}\n".encode(errors="replace"))

    def flush(self) -> None:
        """Wait until what waits now is written, within a bound."""
        written = threading.Event()
        self._hand_over()
        self._queue.put(written.set)
        written.wait(CLOSE_TIMEOUT_S)

    def close(self) -> None:
        """Write what waits, within a bound."""
        self._hand_over()
        self._queue.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _hand_over(self) -> None:
        held, self._held = self._held, []
        for entry in held:
            self._queue.put(entry)

    def _run(self) -> None:
        for entry in self._entries():
            try:
                if isinstance(entry, bytes):
                    self._write(entry)
                else:
                    entry()
            except Exception:  # noqa: BLE001 - whatever a log does, the agent goes on; it is counted
                self.lost += 1

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            self.lost += data.count(b"\n")

    def _entries(self) -> Iterator[bytes | Write]:
        """What is put, until the end; lines that wait together are one, as far as a pipe takes them in one piece."""
        lines = b""
        while True:
            entry = self._queue.get() if not lines or not self._queue.empty() else b""
            if lines and (not entry or not isinstance(entry, bytes) or len(lines) + len(entry) > select.PIPE_BUF):
                yield lines
                lines = b""
            if entry is None:
                return
            if isinstance(entry, bytes):
                lines += entry
            else:
                yield entry


def configure(*, under_systemd: bool) -> Sink:
    """Set structlog up, once, for this process; return where the entries go."""
    sink = Sink()
    processors: list[Any]
    if under_systemd and _stderr_is_the_journal():
        processors = [structlog.processors.add_log_level, JournalProcessor(journal_entry.sender(), sink)]
    elif sys.stderr.isatty():
        stamper = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        processors = [structlog.processors.add_log_level, stamper, structlog.dev.ConsoleRenderer(pad_event_to=0)]
    else:
        processors = [Logfmt(stamped=not under_systemd)]
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


class Logfmt:
    """Renders an entry as structlog's LogfmtRenderer does (level, event and component first), in a fifth of its time.

    A component's restart is six lines, and a hundred of them may end in the same instant.
    """

    def __init__(self, *, stamped: bool, clock: Callable[[], int] = time.time_ns) -> None:
        self._stamped = stamped
        self._clock = clock
        self._second = 0
        self._second_text = ""

    def __call__(self, _logger: object, method: str, entry: MutableMapping[str, Any]) -> str:
        """Render one entry."""
        texts = [f"level={method} event={_logfmt(entry.pop('event'))}"]
        if self._stamped:
            texts.insert(0, f"timestamp={self._now()}")
        component = entry.pop("component", None)
        if component is not None:
            texts.append(f"component={_logfmt(component)}")
        texts.extend([f"{name}={_logfmt(value)}" for name, value in entry.items()])
        return " ".join(texts)

    def _now(self) -> str:
        second, rest_ns = divmod(self._clock(), 1_000_000_000)
        if second != self._second:
            self._second, self._second_text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._second_text}.{rest_ns // 1000:06}Z"


_NOT_PLAIN = re.compile(r'[ ="\n]')


def _logfmt(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if not _NOT_PLAIN.search(text):
        return text
    quoted = " " in text or "=" in text or '"' in text
    if quoted:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    text = text.replace("\n", "\\n")
    return f'"{text}"' if quoted else text


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
