"""Children that were killed before they executed their command and are not reaped yet.

Most are a moment later. Where a file system does not answer they hang in the kernel, for as long as that lasts; until
then their component must not be started again.
"""

import asyncio
import os
import select
import time
from collections.abc import Iterable
from contextlib import suppress

from node_manager.runtime.spawn import Launch, LaunchError


class Stuck:
    """At most one for each component."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._launches: dict[str, Launch] = {}

    @property
    def pids(self) -> tuple[int, ...]:
        """Their process ids."""
        return tuple(launch.pid for launch in self._launches.values())

    def bury(self, component: str, launch: Launch) -> None:
        """Reap a child that was sent SIGKILL, now or when it ends."""
        if not launch.reap():
            self._launches[component] = launch
            self._loop.add_reader(launch.pidfd, self.hanging, component)

    def hanging(self, component: str) -> int | None:
        """Return the pid of this component's child that hangs, or None: there is none any more."""
        launch = self._launches.get(component)
        if launch is None:
            return None
        self._loop.remove_reader(launch.pidfd)  # reaping closes it
        if launch.reap():
            del self._launches[component]
            return None
        self._loop.add_reader(launch.pidfd, self.hanging, component)
        return launch.pid

    def refuse(self, component: str) -> None:
        """Raises LaunchError where a child of this component hangs."""
        pid = self.hanging(component)
        if pid is not None:
            raise LaunchError(
                0,
                "stuck",
                f"cannot start {component}: an earlier attempt (pid {pid}) hangs in the kernel "
                "before its command; a file system does not answer",
            )

    def reap(self, pid: int) -> bool:
        """Reap this zombie if it is one of them."""
        for component, launch in list(self._launches.items()):
            if launch.pid == pid and self.hanging(component) is None:
                return True
        return False

    def close(self) -> None:
        """Watch them no longer."""
        for launch in self._launches.values():
            self._loop.remove_reader(launch.pidfd)
            launch.forget()
        self._launches.clear()


def reap_within(pids: Iterable[int], bound_s: float) -> None:
    """Reap these children of ours, which nobody else does, as far as they end within the bound for all."""
    until_s = time.monotonic() + bound_s
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            poller.poll(max(0.0, until_s - time.monotonic()) * 1000)
            with suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        finally:
            os.close(pidfd)
