"""The runtime directory under a living agent: looked at now and then, made anew where somebody has cleared it away.

A cleaner of temporary files, a second package or a hand takes a socket or the lock away, and nobody notices: the agent
supervises on, but cannot be asked, hears no new connection, and would let a second agent in.
"""

from collections.abc import Callable

import structlog

from node_manager.api.listener import ListenError
from node_manager.api.server import ApiServer
from node_manager.core.spec import NS_PER_S
from node_manager.runtime.agent import Agent
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.rundir import RuntimeDirError

LOOK_NS = 2 * NS_PER_S
"""It is not looked at more often; less often in a calm loop, which turns every CALM_PULSE_NS."""

log = structlog.get_logger("xce-node-manager")


class Premises:
    """See the module. `look` is called at the end of each turn of the loop; `restored` whenever something was."""

    def __init__(self, agent: Agent, api: ApiServer, *, restored: Callable[[], None]) -> None:
        self._restored = restored
        self._agent = agent
        self._api = api
        self._next_ns = 0
        self._path = agent.settings.runtime_dir

    def look(self) -> None:
        """Look, when it is time; say what was made anew, and what could not be."""
        now = boottime_ns()
        if now < self._next_ns:
            return
        self._next_ns = now + LOOK_NS
        try:
            restored = self._agent.restore()
            if self._api.restore():
                restored = (*restored, "status.sock")
        except (OSError, RuntimeDirError, ListenError) as error:
            trouble = f"the runtime directory was changed under the agent, and cannot be restored: {error}"
            if self._agent.troubles.get(self._path) != trouble:
                self._agent.troubles[self._path] = trouble
                self._agent.note("agent.runtime_dir_lost", why=trouble)
            return
        self._agent.troubles.pop(self._path, None)
        if restored:
            what = ", ".join(restored)
            log.warning("agent.warning", detail=f"somebody removed {what} from {self._path}; made anew")
            self._agent.note("agent.runtime_dir_restored", what=what)
            self._restored()
