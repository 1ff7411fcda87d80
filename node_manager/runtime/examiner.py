"""Carries out the core's looks at late components, and the taking of evidence, in threads beside the loop.

Reading /proc, or writing to a disk, can hang for as long as the process or the disk does. The core waits with a bound
of its own, so an answer may come late, or never.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from node_manager.core.actions import LookAt, TakeEvidence
from node_manager.core.events import Event, EvidenceTaken, Looked
from node_manager.runtime import evidence, kernel
from node_manager.runtime.crew import Crew
from node_manager.runtime.output import log_file
from node_manager.runtime.process import ProcessRecord
from node_manager.runtime.samples import Looks

MAX_THREADS = 4
"""Of each kind: looks are short, and evidence that hangs must not keep others from being looked at."""
MAX_WAITING = 1024
"""Bound on what waits for a thread: four times the components that a host may have."""
_BUSY = "too many looks at others hang"
_UNKNOWN = "it is not known to run"


class Examiner:
    """See the module. `snapshot` gives the main processes; `log_dir` is where the files of `log: file` are."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        post: Callable[[Event], None],
        snapshot: Callable[[], tuple[ProcessRecord, ...]],
        state_dir: Path,
        log_dir: Path | None,
        *,
        root: Path = Path("/proc"),
    ) -> None:
        self._post = post
        self._snapshot = snapshot
        self._state_dir = state_dir
        self._log_dir = log_dir
        self._root = root
        self._looks: Looks | None = None
        self._looking = Crew(loop, "xce-look", size=MAX_THREADS, max_waiting=MAX_WAITING)
        self._taking = Crew(loop, "xce-evidence", size=MAX_THREADS, max_waiting=MAX_WAITING)
        self._under_way: set[tuple[type, str, int]] = set()

    def carry_out(self, action: LookAt | TakeEvidence) -> None:
        """Look at the process, or write down what it does. The answer follows unless that hangs; never raises."""
        key = (type(action), action.component, action.generation)
        if key in self._under_way:
            return  # its answer serves both: one process that hangs must not take every thread
        found = self._find(action.component, action.generation)
        if isinstance(action, LookAt):
            crew, work, refusal = self._looking, partial(self._look, action, found), _not_looked(action, _BUSY)
        else:
            crew, work, refusal = self._taking, partial(self._take, action, found), _not_taken(action, _BUSY)
        if crew.do(work, partial(self._answered, key)):
            self._under_way.add(key)
        else:
            self._post(refusal)

    def close(self) -> None:
        """Let go. What hangs is left to itself."""
        self._looking.close()
        self._taking.close()

    def _answered(self, key: tuple[type, str, int], event: Event) -> None:
        self._under_way.discard(key)
        self._post(event)

    def _look(self, action: LookAt, found: tuple[int, int] | None) -> Event:
        """Look, in a thread."""
        if found is None:
            return _not_looked(action, _UNKNOWN)
        try:
            sample = self._at().look(*found, tree=action.tree)
        except OSError as error:
            return _not_looked(action, f"cannot look at it: {kernel.explain(error)}")
        except (ValueError, IndexError) as error:
            return _not_looked(action, f"cannot look at it: its files in /proc are not understood: {error}")
        return Looked(component=action.component, generation=action.generation, sample=sample)

    def _take(self, action: TakeEvidence, found: tuple[int, int] | None) -> Event:
        """Write, in a thread."""
        if found is None:
            return _not_taken(action, _UNKNOWN)
        case = evidence.Case(
            component=action.component,
            generation=action.generation,
            pid=found[0],
            start_ticks=found[1],
            said=action.said,
            log=log_file(action.spec.log, action.component, self._log_dir),
        )
        try:
            path = evidence.capture(self._state_dir, case, self._at(), time.time(), self._root)
        except (OSError, ValueError) as error:
            text = kernel.explain(error) if isinstance(error, OSError) else str(error)
            return _not_taken(action, f"cannot write it: {text}")
        return EvidenceTaken(component=action.component, generation=action.generation, path=str(path))

    def _find(self, component: str, generation: int) -> tuple[int, int] | None:
        """Return pid and start ticks of the main process."""
        for one in self._snapshot():
            if (one.component, one.generation) == (component, generation):
                return one.pid, one.start_ticks
        return None

    def _at(self) -> Looks:
        """How to look: found out at the first look, as most hosts never need one."""
        if self._looks is None:
            self._looks = Looks(self._root)
        return self._looks


def _not_looked(action: LookAt, trouble: str) -> Event:
    return Looked(component=action.component, generation=action.generation, sample=None, trouble=trouble)


def _not_taken(action: TakeEvidence, trouble: str) -> Event:
    return EvidenceTaken(component=action.component, generation=action.generation, path=None, trouble=trouble)
