"""SIGTERM: the end of the node's components, or of this agent alone.

Outside systemd it means: stop everything. Under systemd it depends on why it was sent (`systemd_job`): for a stop or
a shutdown everything is stopped; else the agent hands over. It ends at a quiet moment, components run on, and the next
agent adopts them.
"""

import asyncio
from collections.abc import Callable

import structlog

from node_manager.cli import systemd_job
from node_manager.cli.child import Child
from node_manager.runtime.agent import Agent

QUIET_S = 8.0
"""How long a quiet moment is waited for; longer than a launch may take, far below systemd's own patience."""
_LOOK_S = 0.02
_STOP = "stop"

log = structlog.get_logger("xce-node-manager")


class Leaving:
    """Decides what a SIGTERM means, once. `finish` ends the agent; `handed_over`: it leaves its components running."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        agent: Agent,
        *,
        under_systemd: bool,
        finish: Callable[[], None],
    ) -> None:
        self.handed_over = False
        self.asked = False
        """A SIGTERM has come under systemd, whatever it turns out to mean."""
        self._loop = loop
        self._agent = agent
        self._under_systemd = under_systemd
        self._finish = finish
        self._query: Child | None = None
        self._until_s = 0.0

    def terminate(self) -> None:
        """Take a SIGTERM. Another one while the first is carried out changes nothing."""
        if not self._under_systemd:
            self._agent.stop("SIGTERM")
        elif not self.asked:
            self.asked = True
            self._query = systemd_job.ask(self._loop, systemd_job.own_unit(), self._told)

    def close(self) -> None:
        """Ask no more."""
        if self._query is not None:
            self._query.close()
            self._query = None

    def _told(self, job: str, unknown: str) -> None:
        self._query = None
        if job == _STOP:
            self._agent.stop("SIGTERM for a systemd stop job")
            return
        why = f"a systemd {job} job" if job else "SIGTERM without a systemd job"
        if unknown:
            why = f"SIGTERM, and why systemd sent it is not known: {unknown}"
            log.warning("agent.warning", detail=f"{why}; components run on")
        self._agent.note("agent.handing_over", why=why)
        self._until_s = self._loop.time() + QUIET_S
        self._leave()

    def _leave(self) -> None:
        under_way = self._agent.under_way()
        if under_way and self._loop.time() < self._until_s:
            self._loop.call_later(_LOOK_S, self._leave)
            return
        if under_way:
            log.warning("agent.warning", detail=f"ends in the middle of: {', '.join(sorted(set(under_way)))}")
        self.handed_over = True
        self._finish()
