"""One line on standard error for each thing worth knowing, with the time."""

import sys
import time

from node_manager.reference.clock import NS_PER_S, boottime_ns

MAX_TEXT = 1000
"""Hostile input that a line quotes cannot make it longer."""


class Journal:
    """Writes `2026-01-31T12:00:00+0000 COMPONENT: text`. Control characters are escaped."""

    def __init__(self, component: str) -> None:
        self._component = component
        self._quiet_until_ns = 0
        self._suppressed = 0

    def say(self, text: str) -> None:
        """Write one line."""
        clean = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:MAX_TEXT])
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        sys.stderr.write(f"{stamp} {self._component}: {clean}\n")
        sys.stderr.flush()

    def complain(self, text: str) -> None:
        """Write one line about someone else's mistake: at most one in a second, the others are counted."""
        now_ns = boottime_ns()
        if now_ns < self._quiet_until_ns:
            self._suppressed += 1
            return
        more = f" (and {self._suppressed} more like it)" if self._suppressed else ""
        self._suppressed = 0
        self._quiet_until_ns = now_ns + NS_PER_S
        self.say(text + more)
