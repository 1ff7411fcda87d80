"""Which processes count as runs beside a component that have lost their agent."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from node_manager.runtime import environment
from node_manager.runtime.environment import Markers
from node_manager.runtime.procfs import ProcFs, Stat
from node_manager.runtime.stranded import Stranded, among
from node_manager.runtime.tree import Owner, Root, Trees
from tests.unit.runtime.rig import Rig, shell

MARKERS = Markers(nonce="n", runtime_dir=Path("/run/x"))
UID = 10
LEADER, CHILD = 50, 51


class OneUser(ProcFs):
    """Every process runs as one user."""

    def uid(self, pid: int) -> int | None:  # noqa: ARG002 - a host of one user
        return UID


def stat(pid: int, session: int = LEADER) -> Stat:
    return Stat(pid=pid, ppid=1, session=session, state="S", start_ticks=1000 + pid, threads=1)


def marks(mark: str = "7.1", others: Mapping[str, str | None] = MappingProxyType({})) -> dict[str, str]:
    """The markers of a check's run, with some of them another value or none."""
    own = dict(MARKERS.of("web", 3)) | {"XCE_HELPER": mark, "XCE_HELPER_PID": str(LEADER)}
    return {key: value for key, value in (own | dict(others)).items() if value is not None}


def search(*marked: tuple[Stat, dict[str, str]], uid: int | None = UID) -> tuple[Stranded, ...]:
    return among(marked, MARKERS, lambda _component: uid, OneUser())


def stranded(*pids: int, mark: str = "7.1") -> Stranded:
    members = tuple((pid, 1000 + pid) for pid in pids)
    return Stranded(owner=Owner("web", mark), generation=3, session=LEADER, members=members)


@pytest.mark.parametrize("uid", [UID, None])
def test_a_run_is_its_first_process_and_whatever_is_in_its_session(uid: int | None) -> None:
    """One run is found, with each process of the session; a component that is not configured may have any user."""
    assert (stranded(LEADER, CHILD),) == search((stat(LEADER), marks()), (stat(CHILD), marks()), uid=uid)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("XCE_NODE_NONCE", "another"),
        ("XCE_HEARTBEAT_SOCKET", "/run/y/heartbeat.sock"),
        ("XCE_GENERATION", "0"),
        ("XCE_GENERATION", "x"),
        ("XCE_HELPER", ""),
        ("XCE_HELPER_PID", None),
        ("XCE_HELPER_PID", str(CHILD)),
    ],
)
def test_every_marker_counts(key: str, value: str | None) -> None:
    """A process with one marker less, or another value of it, is no run's."""
    assert search((stat(LEADER), marks(others={key: value}))) == ()


def test_another_users_process_is_no_run() -> None:
    """A job of a user that carries all markers of a check is not the role's user."""
    assert search((stat(LEADER), marks()), uid=UID + 1) == ()


def test_who_inherits_the_markers_in_another_session_is_left_alone() -> None:
    """A job that a check submitted has its whole environment, and a session of its own."""
    assert (stranded(LEADER),) == search((stat(LEADER), marks()), (stat(CHILD, session=CHILD), marks()))


@pytest.mark.parametrize(("mark", "found"), [("7.1", True), (f"{environment.MAY_LEAVE}7.1", False)])
def test_what_is_left_of_a_run_that_has_ended(mark: str, *, found: bool) -> None:
    """It is the run's where nothing of that may stay; what a reload or drain command leaves may."""
    assert ((stranded(CHILD, mark=mark),) if found else ()) == search((stat(CHILD), marks(mark)))


def test_a_command_that_may_leave_something_is_ended_whole_while_it_runs() -> None:
    """A reload command whose first process lives has not ended: what it has started by now is part of it."""
    mark = f"{environment.MAY_LEAVE}7.1"
    assert (stranded(LEADER, CHILD, mark=mark),) == search((stat(LEADER), marks(mark)), (stat(CHILD), marks(mark)))


def test_the_session_of_a_main_process_is_not_taken_for_a_runs(rig: Rig) -> None:
    """Markers of a run that name the session of a main process change nothing about whose an orphan in that is."""
    pid = rig.start(shell("(sleep 1000 & echo $!); exec sleep 1000"))
    orphan = int(rig.lines(1)[0])
    trees = Trees(rig.loop, nonce=rig.nonce, subreaper=True)
    main = Root(Owner("comp"), 1, pid, trees.start_ticks(pid))
    trees.plant(main)
    trees.strand(Root(Owner("comp", "7.1"), 1, pid, main.start_ticks), {orphan: trees.start_ticks(orphan)})
    assert Owner("comp") == trees.owner_of(orphan)
    assert trees.members(Owner("comp", "7.1"), 1) == []
    assert {pid, orphan} == {member.pid for member in trees.members(Owner("comp"), 1)}
