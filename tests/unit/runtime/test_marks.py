"""Whoever starts anew what it does not see must see also those processes that are just executing their command."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from node_manager.runtime import marks
from node_manager.runtime.marks import marked
from node_manager.runtime.procfs import ProcFs, Stat

FOR_EVER = 1_000_000_000
COMMAND = ("/bin/sleep", "1000")


class Executing(ProcFs):
    """One process shows no markers for a number of looks; `seen` is how it is then."""

    def __init__(self, pid: int, looks: int, seen: Callable[[Stat], Stat | None] = lambda found: found) -> None:
        super().__init__()
        self.pid = pid
        self.looks_left = looks
        self._looked = False
        self._seen = seen

    def markers(self, pid: int) -> dict[str, str] | None:
        if pid != self.pid:
            return super().markers(pid)
        self._looked = True
        self.looks_left -= 1
        return None if self.looks_left >= 0 else super().markers(pid)

    def stat(self, pid: int) -> Stat | None:
        found = super().stat(pid)
        return self._seen(found) if found is not None and pid == self.pid and self._looked else found


@pytest.fixture
def pid() -> Iterator[int]:
    """A process that was started with a marker."""
    made = os.spawnve(os.P_NOWAIT, COMMAND[0], list(COMMAND), {"XCE_COMPONENT": "comp", "HOME": "/"})  # noqa: S606
    yield made
    os.kill(made, signal.SIGKILL)
    os.waitpid(made, 0)


def shown(procfs: ProcFs) -> dict[int, dict[str, str]]:
    return {found.pid: markers for found, markers in marked(procfs)}


def test_what_is_just_executing_is_waited_for(pid: int) -> None:
    """Its markers are there a moment later, and nobody else's are missing."""
    found = shown(Executing(pid, 3))
    assert found[pid] == {"XCE_COMPONENT": "comp"}
    assert os.getpid() in found


@pytest.mark.parametrize(
    "seen",
    [
        lambda _found: None,
        lambda found: replace(found, start_ticks=found.start_ticks + 1),
        lambda found: replace(found, exiting=True),
        lambda found: replace(found, state="Z"),
    ],
    ids=["gone", "another", "on its way out", "dead"],
)
def test_what_will_not_show_anything_is_not_waited_for(
    pid: int, seen: Callable[[Stat], Stat | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without memory has no markers: it executes nothing, it ends."""
    monkeypatch.setattr(marks, "_EXECUTES_S", FOR_EVER)
    assert pid not in shown(Executing(pid, FOR_EVER, seen))


def test_who_shows_nothing_for_long_is_nobodys(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may hide its environment and its arguments for good: the search ends all the same."""
    monkeypatch.setattr(marks, "_EXECUTES_S", 0.05)
    procfs = Executing(pid, FOR_EVER)
    assert pid not in shown(procfs)
    assert FOR_EVER - procfs.looks_left > 1


def test_who_is_known_is_not_looked_at(pid: int) -> None:
    """What is proven otherwise needs no markers, and nobody waits for them."""
    procfs = Executing(pid, FOR_EVER)
    assert pid not in {found.pid for found, _markers in marked(procfs, but={pid})}
    assert procfs.looks_left == FOR_EVER
