"""From a configuration that was read to one in force: the first one, the last good one in its place, later ones."""

import asyncio
import os
from collections.abc import Callable

from node_manager.config.load import user_problem
from node_manager.core.events import ConfigFailed, ConfigLoaded, Event
from node_manager.core.spec import NodeSpec
from node_manager.runtime import lastgood, unconfigured
from node_manager.runtime.configuration import Configuration
from node_manager.runtime.settings import Settings
from node_manager.runtime.takeover import Takeover


class Uptake:
    """Reads the configuration when asked, and hands it to the core as events. `user` is the agent's own.

    `waiting` is called with True whenever there is none to be had, with False once there is; `settled` once, when the
    core knows the first answer.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        *,
        user: str | None,
        takeover: Takeover,
        post: Callable[[Event], None],
        write_last_good: Callable[[bytes], None],
        waiting: Callable[[bool], None],
        settled: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._waiting = waiting
        self._settled: Callable[[], None] | None = settled
        self.booted = False
        """The first configuration is in force, and everything that an earlier agent left is taken over."""
        self.reading = Configuration(loop, settings, loaded=self._loaded, failed=self._failed)
        self._settings = settings
        self._user = user
        self._takeover = takeover
        self._post = post
        self._write_last_good = write_last_good

    def take(self, spec: NodeSpec, ids: tuple[int, ...] = (), warning: str | None = None) -> None:
        """Hand a configuration to the core; the first one with everything that an earlier agent left."""
        if not self.booted:
            self.booted = True
            self._waiting(False)
            self._takeover.boot(spec, ids[0] if ids else None, warning)
            ids = ids[1:]
        elif not ids:
            self._post(ConfigLoaded(spec=spec, warning=warning))
        for command_id in ids:
            self._post(ConfigLoaded(spec=spec, command_id=command_id, warning=warning))
        if warning is None:
            self._write_last_good(lastgood.encode(spec))
        self._settle()

    def clear(self) -> None:
        """Take charge of what an earlier agent left without a configuration, to have it stopped.

        The durable facts stay whose they are. Raises OSError when it cannot look.
        """
        self.booted = True
        identity = unconfigured.kept_identity(self._settings.state_dir)
        self._takeover.boot(unconfigured.nothing(), None, None, identity=identity)

    def _settle(self) -> None:
        if self._settled is not None:
            self._loop.call_soon(self._settled)  # after the turn that these events lead to
            self._settled = None

    def _loaded(self, spec: NodeSpec, ids: tuple[int, ...]) -> None:
        problem = self._user_problem(spec)
        if problem is not None:
            self._failed(problem, ids)
            self.reading.watch()
            return
        self.take(spec, ids)

    def _failed(self, error: str, ids: tuple[int, ...]) -> None:
        last_good = None if self.booted else lastgood.read(self._settings.last_good_file)
        if last_good is not None and self._user_problem(last_good) is None:
            self.take(last_good, ids, error)
            return
        for command_id in ids or (None,):
            self._post(ConfigFailed(error=error, command_id=command_id))
        if not self.booted:
            self._waiting(True)
        self._settle()

    def _user_problem(self, spec: NodeSpec) -> str | None:
        return user_problem(spec, self._user, is_root=os.geteuid() == 0)
