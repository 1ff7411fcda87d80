"""What an earlier agent ran beside a component when it was killed: found once, at the start, and ended.

Nobody waits for a check, a probe or a command of an agent that is gone, and nobody bounds it. With a cgroup of its own
it is cleared with that (`beside`). Everywhere else its first process is known as a main process is: by all of our
markers, its own pid among them (XCE_HELPER_PID), and the session that it leads. What has the markers of a check or a
probe and is in the session that they name is what such a one left. Whatever has merely inherited them, a job that a
check submitted, is in another session and is left alone; so is what a reload or drain command left when it had ended,
because that may rightly stay.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from node_manager.runtime import environment
from node_manager.runtime.environment import Markers
from node_manager.runtime.kill import TreeKill
from node_manager.runtime.marks import marked
from node_manager.runtime.procfs import ProcFs, Stat
from node_manager.runtime.tree import Owner, Root, Trees

Marked = tuple[Stat, Mapping[str, str]]
"""A process, and the XCE_ variables that it was started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """One run that has lost its agent. `members` are in its session; their descendants are found when it is ended."""

    owner: Owner
    generation: int
    session: int
    members: tuple[tuple[int, int], ...]
    """Pid and start time of each."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that it was known by."""
        return tuple(pid for pid, _ in self.members)


def among(
    processes: Iterable[Marked], markers: Markers, expected_uid: Callable[[str], int | None], procfs: ProcFs
) -> tuple[Stranded, ...]:
    """Return the runs that these processes are of. Raises OSError when it cannot look."""
    sessions: dict[tuple[Owner, int, int], list[Stat]] = {}
    for stat, marks in processes:
        component, mark = marks.get(environment.COMPONENT, ""), marks.get(environment.HELPER, "")
        generation = environment.generation(marks)
        if (
            mark
            and generation > 0
            and marks.get(environment.NONCE) == markers.nonce
            and marks.get(markers.place[0]) == markers.place[1]
            and marks.get(environment.HELPER_PID) == str(stat.session)
            and procfs.runs_as(stat.pid, expected_uid(component))
        ):
            sessions.setdefault((Owner(component, mark), generation, stat.session), []).append(stat)
    return tuple(
        Stranded(
            owner=owner,
            generation=generation,
            session=session,
            members=tuple((stat.pid, stat.start_ticks) for stat in found),
        )
        for (owner, generation, session), found in sessions.items()
        if any(stat.pid == session for stat in found) or not owner.helper.startswith(environment.MAY_LEAVE)
    )


def search(
    markers: Markers, expected_uid: Callable[[str], int | None], procfs: ProcFs | None = None
) -> tuple[Stranded, ...]:
    """Search the host for them. Raises OSError when it cannot look."""
    procfs = procfs or ProcFs()
    beside = [(stat, marks) for stat, marks in marked(procfs) if environment.HELPER in marks]
    return among(beside, markers, expected_uid, procfs)


class Endings:
    """Ends them, each with its tree."""

    def __init__(self, loop: asyncio.AbstractEventLoop, trees: Trees) -> None:
        self._loop = loop
        self._trees = trees
        self._kills: dict[Owner, TreeKill] = {}

    def begin(self, runs: Iterable[Stranded]) -> None:
        """SIGKILL everything of these runs until nothing of it lives."""
        for run in runs:
            owner, members = run.owner, dict(run.members)
            self._trees.strand(Root(owner, run.generation, run.session, members.get(run.session, 0)), members)
            self._kills[owner] = TreeKill(
                self._loop, self._trees, owner, newest=run.generation, done=partial(self._ended, owner)
            )

    def close(self) -> None:
        """Look no further."""
        for kill in self._kills.values():
            kill.cancel()
        self._kills.clear()

    def _ended(self, owner: Owner) -> None:
        del self._kills[owner]
        self._trees.forget(owner)
