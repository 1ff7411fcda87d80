"""The agent's word to systemd, as levels: what is due is sent at the end of a turn, and stays due until it was taken.

systemd's socket holds few datagrams (net.unix.max_dgram_qlen) and takes no more while systemd is busy. Without READY=1
systemd gives a start up; without FDSTORE=1 it keeps no socket on which components could wait for the next agent.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from node_manager.core.node import NODE_STOP_BOUND_NS, UNKILLABLE_GRACE_NS
from node_manager.runtime.notify import SystemdNotifier


class Reports:
    """See the module. `send` is called at the end of each turn of the loop; it never waits.

    `summary` is the line for `systemctl status`, `stopping` whether the node is being stopped, `descriptors` what
    systemd is to keep, by name; all are asked at the moment of sending.
    """

    def __init__(
        self,
        systemd: SystemdNotifier,
        *,
        summary: Callable[[], str],
        stopping: Callable[[], bool],
        descriptors: Callable[[], Mapping[str, int]],
    ) -> None:
        self._systemd = systemd
        self._summary = summary
        self._stopping = stopping
        self._descriptors = descriptors
        self._ready_due = False
        self._status_due = False
        self._store_due: deque[Callable[[], bool]] = deque()
        """In this order: what is forgotten under a name is not what is stored under it afterwards."""

    def in_charge(self) -> None:
        """READY=1 is due."""
        self._ready_due = True

    def changed(self) -> None:
        """Something has happened: the status is due, however much it was."""
        self._status_due = True

    def store(self, *, anew: bool = False) -> None:
        """Every descriptor is due; `anew`: in place of what systemd keeps under its name."""
        self._store_due.clear()
        for name in self._descriptors():
            if anew:
                self._store_due.append(partial(self._systemd.forget, name))
            self._store_due.append(partial(self._store, name))

    def send(self) -> None:
        """Send what is due, as far as systemd's socket takes it."""
        if not self._systemd.active:
            return
        while self._store_due and self._store_due[0]():
            self._store_due.popleft()
        if self._ready_due:
            self._ready_due = not self._systemd.ready(self._summary())
        if self._status_due:
            self._status_due = not self._report()

    def _store(self, name: str) -> bool:
        return self._systemd.store(name, self._descriptors()[name])

    def _report(self) -> bool:
        if not self._stopping():
            return self._systemd.status(self._summary())
        extend_ns = NODE_STOP_BOUND_NS + 2 * UNKILLABLE_GRACE_NS
        return self._systemd.stopping(self._summary()) and self._systemd.extend_timeout(extend_ns)
