"""One thread that writes to the disk, so that a disk that hangs stalls nothing but itself.

Of each kind of file only the newest content waits: three places are the whole queue. Results come back to the loop.

A runtime record or a configuration that cannot be written stays in its place and is tried again by the writer itself:
nobody else would, for they are written when something changes, and the change is past. Facts are not: their answer
goes to the core, which holds back what depends on it and asks again.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from node_manager.core.durable import DurableFacts
from node_manager.core.events import Event, FactsWriteFailed, FactsWritten
from node_manager.runtime import files, kernel
from node_manager.runtime.store import Store

RETRY_S = 1.0
"""How long a file that could not be written is left alone, whatever comes for it: no storm on a disk that is full, and
soon enough after it has room again. Monotonic time: it does not matter how long a suspended machine slept."""


@dataclass(slots=True)
class _Place:
    """A file, and its newest content that is not written yet."""

    path: Path
    waiting: bytes | None = None
    not_before_s: float = 0.0
    trouble: str | None = None
    """Why the last write failed."""


@dataclass(frozen=True, slots=True)
class _Work:
    facts: tuple[int, DurableFacts] | None
    places: tuple[tuple[_Place, bytes], ...]


class Writer:
    """Writes durable facts, the runtime record and the last good configuration.

    `post` gets FactsWritten and FactsWriteFailed. `trouble` gets a file and a sentence when it cannot be written or
    the reason is another, and None when it is written again; both are called from the loop. Facts go first: somebody
    waits for them.
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
        self._facts: tuple[int, DurableFacts] | None = None
        self._facts_failed = False
        self._record = _Place(record_path)
        self._config = _Place(config_path)
        self._closing = False
        self._working = False
        self._changed = threading.Condition()
        # A daemon: a thread that hangs in the disk must not keep the agent from ending.
        self._thread = threading.Thread(target=self._run, name="xce-writer", daemon=True)
        self._thread.start()

    def write_facts(self, seq: int, facts: DurableFacts) -> None:
        """Make these durable. An older record that still waits is covered by this one's FactsWritten."""
        with self._changed:
            self._facts = (seq, facts)
            self._changed.notify()

    def write_record(self, data: bytes) -> None:
        """Write the runtime record; only the newest is kept."""
        with self._changed:
            self._record.waiting = data
            self._changed.notify()

    def write_config(self, data: bytes) -> None:
        """Keep the last good configuration; only the newest is kept."""
        with self._changed:
            self._config.waiting = data
            self._changed.notify()

    @property
    def busy(self) -> bool:
        """Whether something is being written, or waits that is not just tried again after a failure."""
        with self._changed:
            waits = any(place.waiting is not None and place.trouble is None for place in (self._record, self._config))
            return self._working or waits or self._facts is not None

    def close(self, timeout_s: float) -> bool:
        """Write what waits, each once, and end; takes at most `timeout_s`. False: not everything is written."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        return not self._facts_failed and self._record.trouble is None and self._config.trouble is None

    def _run(self) -> None:
        while (work := self._next()) is not None:
            if work.facts is not None:
                self._write_facts(*work.facts)
            for place, data in work.places:
                self._write(place, data)

    def _next(self) -> _Work | None:
        """Wait for what is to be written now; None: nothing any more."""
        with self._changed:
            self._working = False
            while True:
                now_s = time.monotonic()
                due: list[tuple[_Place, bytes]] = []
                wait_s: float | None = None
                for place in (self._record, self._config):
                    if place.waiting is None:
                        continue
                    if self._closing or place.not_before_s <= now_s:
                        due.append((place, place.waiting))
                        place.waiting = None
                    else:
                        left_s = place.not_before_s - now_s
                        wait_s = left_s if wait_s is None else min(wait_s, left_s)
                if self._facts is not None or due:
                    facts, self._facts = self._facts, None
                    self._working = True
                    return _Work(facts, tuple(due))
                if self._closing:
                    return None
                self._changed.wait(wait_s)

    def _write_facts(self, seq: int, facts: DurableFacts) -> None:
        try:
            self._store.write(facts)
        except OSError as error:
            self._facts_failed = True
            self._tell(partial(self._post, FactsWriteFailed(seq=seq, error=kernel.explain(error))))
        else:
            self._facts_failed = False
            self._tell(partial(self._post, FactsWritten(seq=seq)))

    def _write(self, place: _Place, data: bytes) -> None:
        try:
            files.replace(place.path, data)
        except OSError as error:
            self._keep(place, data, f"cannot write {place.path}: {kernel.explain(error)}")
        else:
            if place.trouble is not None:
                place.trouble = None
                self._tell(partial(self._trouble, place.path, None))

    def _keep(self, place: _Place, data: bytes, trouble: str) -> None:
        """Have what could not be written tried again later, unless newer content came meanwhile or the end is near."""
        with self._changed:
            place.not_before_s = time.monotonic() + RETRY_S
            if place.waiting is None and not self._closing:
                place.waiting = data
        if trouble != place.trouble:
            place.trouble = trouble
            self._tell(partial(self._trouble, place.path, trouble))

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return  # the loop is closed: nobody waits for the answer
