"""Carries out the core's looks at late components, and the taking of evidence, in threads beside the loop.

Reading /proc, or writing to a disk, can hang for as long as the process or the disk does. The core waits with a bound
of its own, so an answer may come late, or never.
"""

import asyncio
import time
from collections.abc import Callable
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

    def carry_out(self, action: LookAt | TakeEvidence) -> None:
        """Look at the process, or write down what it does. The answer follows unless that hangs; never raises."""
        if isinstance(action, LookAt):
            self._look(action)
        else:
            self._take_evidence(action)

    def close(self) -> None:
        """Let go. What hangs is left to itself."""
        self._looking.close()
        self._taking.close()

    def _look(self, action: LookAt) -> None:
        found = self._find(action.component, action.generation)

        def work() -> Looked:
            try:
                sample = None if found is None else self._at().look(*found, tree=action.tree)
                trouble = "it is not known to run" if found is None else ""
            except OSError as error:
                sample, trouble = None, f"cannot look at it: {kernel.explain(error)}"
            return Looked(component=action.component, generation=action.generation, sample=sample, trouble=trouble)

        if not self._looking.do(work, self._post):
            self._post(
                Looked(
                    component=action.component,
                    generation=action.generation,
                    sample=None,
                    trouble="cannot look at it: earlier looks hang",
                )
            )

    def _take_evidence(self, action: TakeEvidence) -> None:
        found = self._find(action.component, action.generation)

        def answer(path: Path | None, trouble: str = "") -> EvidenceTaken:
            return EvidenceTaken(
                component=action.component,
                generation=action.generation,
                path=None if path is None else str(path),
                trouble=trouble,
            )

        def work() -> EvidenceTaken:
            if found is None:
                return answer(None, "it is not known to run")
            case = evidence.Case(
                component=action.component,
                generation=action.generation,
                pid=found[0],
                start_ticks=found[1],
                said=action.said,
                log=log_file(action.spec.log, action.component, self._log_dir),
            )
            try:
                return answer(evidence.capture(self._state_dir, case, self._at(), time.time(), self._root))
            except OSError as error:
                return answer(None, f"cannot write it: {kernel.explain(error)}")

        if not self._taking.do(work, self._post):
            self._post(answer(None, "cannot write it: earlier evidence hangs"))

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
