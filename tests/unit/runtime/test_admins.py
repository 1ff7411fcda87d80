"""Members of a group change the node, and a directory of groups that hangs holds nobody up."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from node_manager.runtime.admins import AdminGroup
from tests.unit.runtime.rig import BOUND_S

GID = 40


class Directory:
    """One that answers when it is told to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.gid: int | None = GID
        self.asked: list[str] = []

    def ask(self, name: str) -> int | None:
        self.asked.append(name)
        assert self.answers.wait(BOUND_S)
        return self.gid

    def group(self, *, answer_s: float = BOUND_S, again_s: float = 0.0) -> AdminGroup:
        return AdminGroup("admins", ask=self.ask, answer_s=answer_s, again_s=again_s)


@pytest.fixture
def directory() -> Iterator[Directory]:
    made = Directory()
    yield made
    made.answers.set()


def wait_for(condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_members_are_known_from_the_start_and_asked_for_once(directory: Directory) -> None:
    """By the primary group and by any other; nobody is asked when a stranger comes."""
    directory.answers.set()
    group = directory.group()
    assert group.trouble() is None
    assert group.includes(GID, ())
    assert group.includes(1, (2, GID))
    assert not group.includes(1, (2, 3))
    assert directory.asked == ["admins"]


def test_an_agent_that_begins_waits_for_an_answer_that_takes_a_moment() -> None:
    """Members are not refused for being first."""

    def ask(_name: str) -> int:
        threading.Event().wait(0.05)
        return GID

    assert AdminGroup("admins", ask=ask, answer_s=BOUND_S).includes(GID, ())


def test_a_directory_that_hangs_holds_nobody_up_and_is_told(directory: Directory) -> None:
    """An agent begins without it, refuses at once, and lets members in when it has answered at last."""
    group = directory.group(answer_s=0.01)
    for _ in range(3):
        assert not group.includes(GID, ())
    assert "the group admins is not known" in (group.trouble() or "")
    directory.answers.set()
    wait_for(lambda: group.includes(GID, ()))
    assert group.trouble() is None
    assert directory.asked == ["admins"]


def test_a_group_that_is_made_later_counts_without_a_restart(directory: Directory) -> None:
    """Whoever is refused has it looked up once more; the next one is let in."""
    directory.answers.set()
    directory.gid = None
    group = directory.group()
    assert group.trouble() is None
    directory.gid = GID
    wait_for(lambda: group.includes(GID, ()))


def test_a_group_that_does_not_exist_is_not_asked_for_each_time(directory: Directory) -> None:
    """A thousand refusals are no storm of look-ups."""
    directory.answers.set()
    directory.gid = None
    group = directory.group(again_s=1000.0)
    assert not any(group.includes(GID, ()) for _ in range(1000))
    assert directory.asked == ["admins"]
