"""The agent's one clock, CLOCK_BOOTTIME, its one timer on it, and which boot this is.

CLOCK_BOOTTIME runs on through a suspend and is not touched by anybody who sets the wall clock. asyncio's own timers
use CLOCK_MONOTONIC, which stands still in a suspend: deadlines of the core must not hang on them.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from node_manager.runtime import kernel

_FOREVER_NS = 2**62
"""Later than any boot lasts; bounds what is handed to the kernel."""


def boottime_ns() -> int:
    """Now, in nanoseconds of CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """The kernel's random name for this boot (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def machine_id() -> str | None:
    """The host's machine-id(5), or None where it has none (yet)."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text and text != "uninitialized":
            return text
    return None


class BootTimer:
    """One deadline on CLOCK_BOOTTIME; `expired` is called from the loop when it has passed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._armed_ns: int | None = None
        self._fd = kernel.timerfd_create()
        loop.add_reader(self._fd, self._readable)

    def arm(self, at_ns: int | None) -> None:
        """Expire at `at_ns`, at once if that is past; None: not at all. Replaces the earlier deadline."""
        if at_ns == self._armed_ns:
            return
        self._armed_ns = at_ns
        # 0 would disarm the timer, and a deadline in the past must still expire
        kernel.timerfd_settime(self._fd, 0 if at_ns is None else min(max(at_ns, 1), _FOREVER_NS))

    def close(self) -> None:
        """Stop for good. Harmless when repeated."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # re-armed since the loop saw it
        self._armed_ns = None
        self._expired()
