"""Reading the configuration beside supervision: one validator at a time, and a look at the files while it is wrong."""

import asyncio
import threading
from collections.abc import Callable

from node_manager.config.load import AGENT_TIMEOUT_S, ConfigInvalid, load_async, signature
from node_manager.core.spec import NodeSpec
from node_manager.runtime.settings import Settings

WATCH_S = 0.4
"""How often the files are looked at while the configuration is wrong: taken up within a second of becoming right."""
RETRY_S = 30.0
"""How often a wrong configuration is read again although no file changed: a user or a mount may have come."""

RELOAD_TIMEOUT_S = 25.0
"""How long any reading but the first may take: what is in force stays so. Less than a command is waited for."""
LEAST_S = 2.0
"""For commands that have waited for a reading before it takes what is left of that time, but no less than this."""

Loaded = Callable[[NodeSpec, tuple[int, ...]], None]
Failed = Callable[[str, tuple[int, ...]], None]


class Configuration:
    """Reads when asked, and by itself for as long as the last reading failed.

    `loaded` and `failed` get the result and the ids of the commands that asked for it. Only the event loop's own
    task runs here; the files are looked at from a thread, because a hanging file system hangs whoever looks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: Settings, *, loaded: Loaded, failed: Failed) -> None:
        self._loop = loop
        self._sources = settings.sources
        self._loaded = loaded
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[int] = []
        self._waiting_since_s = 0.0
        self._again = False
        self._timeout_s = AGENT_TIMEOUT_S
        self._seen: object = None
        self._watch: asyncio.TimerHandle | None = None
        self._look: threading.Thread | None = None
        self._retry_at_s = 0.0
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether the configuration is being read, or somebody waits for that."""
        return self._task is not None or bool(self._waiting)

    def request(self, command_id: int | None = None) -> None:
        """Read the configuration; a request during a reading leads to one more."""
        if command_id is not None:
            if not self._waiting:
                self._waiting_since_s = self._loop.time()
            self._waiting.append(command_id)
        if self._task is not None:
            self._again = True
            return
        self._stop_watching()
        ids, self._waiting = tuple(self._waiting), []
        waited_s = self._loop.time() - self._waiting_since_s if ids else 0.0
        timeout_s = round(max(self._timeout_s - waited_s, LEAST_S), 1)
        self._timeout_s = RELOAD_TIMEOUT_S
        self._task = self._loop.create_task(self._read(ids, timeout_s))

    def watch(self) -> None:
        """Look at the files from now on, and read when they have changed: the configuration in force is a stopgap."""
        self._retry_at_s = self._loop.time() + RETRY_S
        self._schedule()

    def close(self) -> None:
        """End a reading under way and look no more."""
        self._closed = True
        self._stop_watching()
        if self._task is not None:
            self._task.cancel()

    async def _read(self, ids: tuple[int, ...], timeout_s: float) -> None:
        try:
            spec = await load_async(self._sources, timeout_s)
        except ConfigInvalid as error:
            self._task = None
            self._failed("\n".join(str(problem) for problem in error.problems), ids)
            self.watch()
        else:
            self._task = None
            self._loaded(spec, ids)
        if self._again and not self._closed:
            self._again = False
            self.request()

    def _schedule(self) -> None:
        if not self._closed and self._task is None:
            self._watch = self._loop.call_later(WATCH_S, self._begin_look)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _begin_look(self) -> None:
        if self._look is not None and self._look.is_alive():
            self._schedule()
            return
        self._look = threading.Thread(target=self._look_at_files, name="config-look", daemon=True)
        self._look.start()

    def _look_at_files(self) -> None:
        seen = signature(self._sources)
        try:
            self._loop.call_soon_threadsafe(self._looked, seen)
        except RuntimeError:
            return  # the loop is closed: the agent has ended meanwhile

    def _looked(self, seen: object) -> None:
        if self._closed or self._task is not None:
            return
        changed, self._seen = seen != self._seen, seen
        if changed or self._loop.time() >= self._retry_at_s:
            self.request()
        else:
            self._schedule()
