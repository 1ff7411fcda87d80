"""Where the agent's own log goes: the journal with its fields where systemd-python is present, else standard error."""

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog


def configure(*, under_systemd: bool) -> None:
    """Set structlog up, once, for this process."""
    processors: list[Any] = [structlog.processors.add_log_level]
    send = _journal_send() if under_systemd and _stderr_is_the_journal() else None
    if send is not None:
        processors.append(_Journal(send))
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
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


class _Journal:
    """Sends an entry with its fields to the journal and ends there."""

    def __init__(self, send: Any) -> None:
        self._send = send

    def __call__(self, _logger: object, _method: str, entry: MutableMapping[str, Any]) -> Mapping[str, Any]:
        event = str(entry.pop("event"))
        level = entry.pop("level", "info")
        text = " ".join([event, *(f"{name}={value}" for name, value in entry.items())])
        fields = {f"XCE_{name.upper()}": str(value) for name, value in entry.items()}
        priority = {"warning": 4, "error": 3, "critical": 2}.get(level, 6)
        self._send(text, PRIORITY=priority, XCE_EVENT=event, SYSLOG_IDENTIFIER="xce-node-manager", **fields)
        raise structlog.DropEvent


def _journal_send() -> Any:
    try:
        from systemd import journal  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return None
    return journal.send


def _stderr_is_the_journal() -> bool:
    """Compare JOURNAL_STREAM with standard error (systemd.exec(5)): a redirected one is what somebody wants to read."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))
