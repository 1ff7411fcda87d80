"""Killing a whole tree, again and again, until nothing of it lives.

Each pass looks for all members, then opens a pidfd on each, makes sure by its start time that it is still the process
that was seen, and sends SIGKILL through it; in short pieces, so that the loop has time for everything else. The next
pass comes when all of them are dead, or after a while. The tree counts as empty when two looks in a row found nothing:
a process may fork and exit behind a single one. There is no end but empty: what survives SIGKILL (uninterruptible
sleep) is looked at once a second, and the core reports it.

What forks faster than it is killed would outrun that: each death makes room for the next child. So a pass that meets
members which were not there at the one before stops them all first (SIGSTOP), look by look, until none runs that
could fork, and only then kills. The first pass never does: a tree that does not grow is killed at once, and a main
process, which a later agent could adopt, is never left stopped.

Where the component has a cgroup, that is killed first, at once and with whatever it is just making; and the kernel
tells when it is empty. The rest is for what is in none, and for a kernel that cannot kill a group.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from functools import partial

from node_manager.runtime.procfs import ProcFs, Stat
from node_manager.runtime.slices import Work
from node_manager.runtime.tree import Owner, Trees

_FIRST_LOOK_S = 0.02
_LAST_LOOK_S = 1.0
_MAX_WATCHED = 256
"""Deaths waited for at once, by descriptor; a larger tree is looked at by time."""
_LOOKS_NEEDED = 2
_MAX_STOPS = 16
"""Looks at which what is new is stopped; a tree within any limit of processes is at rest after two or three."""

_Key = tuple[int, int]
"""Pid and start time."""


def kill_exactly(procfs: ProcFs, member: Stat) -> int | None:
    """SIGKILL the very process that was seen, and return its pidfd; see `_send_exactly`."""
    return _send_exactly(procfs, member, signal.SIGKILL)


def _send_exactly(procfs: ProcFs, member: Stat, number: signal.Signals) -> int | None:
    """Signal the very process that was seen, and return its pidfd.

    None: it is gone, its pid is another process's by now, or it is beyond our rights (then it goes on being a member,
    and the core reports it). Raises OSError when no descriptor can be had.
    """
    try:
        fd = os.pidfd_open(member.pid)
    except ProcessLookupError:
        return None
    try:
        now = procfs.stat(member.pid)
        if now is not None and now.start_ticks == member.start_ticks:
            signal.pidfd_send_signal(fd, number)
            return fd
    except (ProcessLookupError, PermissionError):
        pass
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _key(member: Stat) -> _Key:
    return member.pid, member.start_ticks


class TreeKill:
    """One tree's end. `done` is called once, from the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        trees: Trees,
        owner: Owner,
        *,
        newest: int,
        done: Callable[[], None],
    ) -> None:
        self.newest = newest
        """Generations above this one are spared. May be raised while the kill is under way."""
        self._loop = loop
        self._trees = trees
        self._owner = owner
        self._done = done
        self._watched: dict[_Key, int] = {}
        self._before: tuple[int, set[_Key]] | None = None
        """What the last pass was about and met: the newest generation, and the members."""
        self._looks = 0
        self._delay_s = _FIRST_LOOK_S
        self._timer: asyncio.Handle | None = None
        self._work: Work | None = None
        self._watches = trees.watch(owner, newest, self._look)
        self._look()

    def cancel(self) -> None:
        """Look no further; what was killed stays killed. `done` is not called."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._work is not None:
            self._trees.slices.drop(self._work)
            self._work = None
        self._trees.unwatch(self._watches)
        self._watches = []
        for fd in self._watched.values():
            self._loop.remove_reader(fd)
            os.close(fd)
        self._watched.clear()

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._work is None:
            self._work = self._trees.slices.begin(self._pass(), self._looked)

    def _pass(self) -> Generator[None, None, bool]:
        """Find the members, then kill them; answers whether nothing lives.

        Only then, because a parent's death takes away what shows whose child a process is.
        """
        newest, untold = self.newest, self._trees.untold
        try:
            self._trees.kill_groups(self._owner, newest)
            members = yield from self._members(newest)
            if self._grows(members, newest):
                members = yield from self._stop(members, newest)
            self._before = newest, set(map(_key, members))
            for member in members:
                self._kill(member)
                yield
            populated = self._trees.populated(self._owner, newest)
        except OSError:  # no descriptors left: cannot look is not empty
            return False
        gone = not members and not populated and self._trees.untold == untold
        return gone and newest == self.newest and not self._trees.planted(self._owner, newest)

    def _members(self, newest: int) -> Generator[None, None, list[Stat]]:
        """Look for all that live. Raises OSError."""
        members: list[Stat] = []
        for found in self._trees.look(self._owner, newest):
            if found is not None:
                members.append(found)
            yield
        return members

    def _grows(self, members: list[Stat], newest: int) -> bool:
        """Whether the last pass was about the same generations, and did not meet all of these."""
        if self._before is None:
            return False
        before, known = self._before
        return before == newest and not known.issuperset(map(_key, members))

    def _stop(self, members: list[Stat], newest: int) -> Generator[None, None, list[Stat]]:
        """Stop the members of a tree that grows, until a look meets none that is new; returns those. Raises OSError."""
        stopped: set[_Key] = set()
        for _ in range(_MAX_STOPS):
            running = [member for member in members if _key(member) not in stopped]
            if not running:
                break
            for member in running:
                fd = _send_exactly(self._trees.procfs, member, signal.SIGSTOP)
                if fd is not None:
                    os.close(fd)
                yield
            stopped = set(map(_key, members))
            members = yield from self._members(newest)
        return members

    def _looked(self, empty: bool) -> None:
        self._work = None
        if not empty:
            self._looks = 0
            self._timer = self._loop.call_later(self._delay_s, self._look)
            self._delay_s = min(self._delay_s * 2, _LAST_LOOK_S)
            return
        self._looks += 1
        if self._looks < _LOOKS_NEEDED:
            self._look()
            return
        self.cancel()
        self._done()

    def _kill(self, member: Stat) -> None:
        key = _key(member)
        if key in self._watched:
            return
        fd = kill_exactly(self._trees.procfs, member)
        if fd is None:
            return
        if len(self._watched) >= _MAX_WATCHED:
            os.close(fd)
            return
        self._watched[key] = fd
        self._loop.add_reader(fd, partial(self._died, key))

    def _died(self, key: _Key) -> None:
        fd = self._watched.pop(key)
        self._loop.remove_reader(fd)
        os.close(fd)
        if not self._watched:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_soon(self._look)  # after everyone else who waits for this death


class Kills:
    """The kills of whole trees under way. `emptied` gets a component and the newest generation that was meant."""

    def __init__(self, loop: asyncio.AbstractEventLoop, trees: Trees, *, emptied: Callable[[str, int], None]) -> None:
        self._loop = loop
        self._trees = trees
        self._emptied = emptied
        self._kills: dict[str, TreeKill] = {}

    def begin(self, component: str, generation: int) -> None:
        """Kill everything of the component up to this generation; one that is under way is told."""
        running = self._kills.get(component)
        if running is not None:
            running.newest = max(running.newest, generation)
            return
        self._kills[component] = TreeKill(
            self._loop, self._trees, Owner(component), newest=generation, done=partial(self._done, component)
        )

    def cancel(self) -> None:
        """Look no further."""
        for kill in self._kills.values():
            kill.cancel()
        self._kills.clear()

    def _done(self, component: str) -> None:
        self._emptied(component, self._kills.pop(component).newest)
