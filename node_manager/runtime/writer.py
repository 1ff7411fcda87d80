"""One thread that writes to the disk, so that a disk that hangs stalls nothing but itself.

Of each kind of file only the newest content waits: three places are the whole queue. Results come back to the loop.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from node_manager.core.durable import DurableFacts
from node_manager.core.events import Event, FactsWriteFailed, FactsWritten
from node_manager.runtime import files, kernel
from node_manager.runtime.store import Store


@dataclass(slots=True)
class _Waiting:
    """The newest content of each kind that is not written yet."""

    facts: tuple[int, DurableFacts] | None = None
    record: bytes | None = None
    config: bytes | None = None

    def __bool__(self) -> bool:
        return self.facts is not None or self.record is not None or self.config is not None


class Writer:
    """Writes durable facts, the runtime record and the last good configuration.

    `post` gets FactsWritten and FactsWriteFailed. `trouble` gets a file and a sentence when it cannot be written, and
    None when it can be again; both are called from the loop. Facts go first: somebody waits for them.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        post: Callable[[Event], None],
        trouble: Callable[[Path, str | None], None],
        store: Store,
        record_path: Path,
        config_path: Path,
    ) -> None:
        self._loop = loop
        self._post = post
        self._trouble = trouble
        self._store = store
        self._record_path = record_path
        self._config_path = config_path
        self._troubled: set[Path] = set()
        self._waiting = _Waiting()
        self._closing = False
        self._changed = threading.Condition()
        # A daemon: a thread that hangs in the disk must not keep the agent from ending.
        self._thread = threading.Thread(target=self._run, name="xce-writer", daemon=True)
        self._thread.start()

    def write_facts(self, seq: int, facts: DurableFacts) -> None:
        """Make these durable. An older record that still waits is covered by this one's FactsWritten."""
        with self._changed:
            self._waiting.facts = (seq, facts)
            self._changed.notify()

    def write_record(self, data: bytes) -> None:
        """Write the runtime record; only the newest is kept."""
        with self._changed:
            self._waiting.record = data
            self._changed.notify()

    def write_config(self, data: bytes) -> None:
        """Keep the last good configuration; only the newest is kept."""
        with self._changed:
            self._waiting.config = data
            self._changed.notify()

    def close(self, timeout_s: float) -> bool:
        """Write what waits and end, at most `timeout_s`. False: the disk did not do it in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                work, self._waiting = self._waiting, _Waiting()
            if not work:
                return
            if work.facts is not None:
                self._write_facts(*work.facts)
            if work.record is not None:
                self._write(self._record_path, partial(files.replace, self._record_path, work.record))
            if work.config is not None:
                self._write(self._config_path, partial(files.replace, self._config_path, work.config))

    def _write_facts(self, seq: int, facts: DurableFacts) -> None:
        try:
            self._store.write(facts)
        except OSError as error:
            self._tell(partial(self._post, FactsWriteFailed(seq=seq, error=kernel.explain(error))))
        else:
            self._tell(partial(self._post, FactsWritten(seq=seq)))

    def _write(self, path: Path, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._troubled.add(path)
            self._tell(partial(self._trouble, path, f"cannot write {path}: {kernel.explain(error)}"))
        else:
            if path in self._troubled:
                self._troubled.discard(path)
                self._tell(partial(self._trouble, path, None))

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return  # the loop is closed: nobody waits for the answer
