"""Which processes belong to a component: its cgroup tells; where it has none, sessions, descent and markers do.

A component's main process leads a session of its own. Its members are its descendants; and orphans, which the kernel
gives to the agent as the nearest subreaper: they are known by their session, else by the markers in the environment
they were started with. For what an earlier agent left the orphans may be anybody's children: there the whole process
table is searched. A process that left the session, cleared its environment and lost its parent is not found: this is
no fence for descendants, and status says so.

The number of a session says nothing by itself: once its leader is reaped and its last process gone, the kernel gives
the number to somebody else, a user's job perhaps. It counts while the leader is not reaped; and after that while a
process lives that was seen in this session when the number still counted: as long as anything is in a session, its
number is not given away. Where neither holds the process is left alone: a missed orphan is the lesser evil.

Attribution is by (pid, start time) and never leads to the agent itself, to another component's processes or to a
stranger.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from node_manager.runtime.cgroup import Groups
from node_manager.runtime.cgroupfs import Watches
from node_manager.runtime.marks import Marks
from node_manager.runtime.procfs import ProcFs, Stat, children_of
from node_manager.runtime.slices import Slices

MAX_MEMBERS = 4096
"""Members that one look returns at most: a fork bomb is killed in several passes, and one pass stays short."""
_MAX_PAST = 4096
"""Sessions remembered after their leader: above the components of any host."""
_MAX_WITNESSES = 64
"""Members remembered of one session: one that lives is enough."""
_MAX_LEFT = 256
_MAX_STEPS_AT_ONCE = 512
"""What one look at once takes at most of members and of processes: some 20 ms."""
_MAX_ANCESTORS = 64
"""How far up a process's ancestors are followed."""


@dataclass(frozen=True, slots=True)
class Owner:
    """To whom a process belongs: a component, or one run of a helper of it (pre_start, reload, drain, probe)."""

    component: str
    helper: str = ""


@dataclass(frozen=True, slots=True)
class Root:
    """The process that a tree began with; its pid is also its session's id."""

    owner: Owner
    generation: int
    pid: int
    start_ticks: int
    """0: could not be read at the fork. Then the pid alone tells, which an unreaped child of ours keeps."""

    def is_(self, found: Stat) -> bool:
        """Whether this process, which has the root's pid, is the root."""
        return self.start_ticks in {0, found.start_ticks}


@dataclass(slots=True)
class _Session:
    """The session that a root leads or led, and by pid the start times of processes that were proven to be in it."""

    root: Root
    witnesses: dict[int, int] = field(default_factory=dict)


class _Scan:
    """The process table, read step by step, for everybody who waits for it."""

    def __init__(self, procfs: ProcFs) -> None:
        self.table: dict[int, Stat] = {}
        self.readers = 0
        self._source = procfs.scan()
        self._error: OSError | None = None

    def advance(self) -> bool:
        """Read on. False: it is complete. Raises OSError, for every reader."""
        if self._error is not None:
            raise self._error
        try:
            found = next(self._source, None)
        except OSError as error:
            self._error = error
            raise
        if found is not None:
            self.table[found.pid] = found
        return found is not None


class Trees:
    """Knows the roots, and finds what grew from them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        nonce: str,
        subreaper: bool,
        procfs: ProcFs | None = None,
        groups: Groups | None = None,
    ) -> None:
        self.procfs = procfs or ProcFs()
        self.slices = Slices(loop)
        """Where long looks are done."""
        self._loop = loop
        self._groups = groups
        self._watches = None if groups is None else Watches(loop.add_reader, loop.remove_reader)
        self._marks = Marks(self.procfs, nonce)
        self._subreaper = subreaper
        self._self_pid = os.getpid()
        self._roots: dict[int, Root] = {}
        self._sessions: dict[int, _Session] = {}
        """By session id: those of the roots, and of roots that are gone and left somebody."""
        self._helpers: set[Owner] = set()
        self._everywhere: set[str] = set()
        self._stranded: dict[Owner, int] = {}
        """Runs of helpers that an earlier agent began, and the session of each."""
        self._table: dict[int, Stat] | None = None
        self._children: dict[int, list[int]] | None = None
        """Of the table: who is whose parent."""
        self._scan: _Scan | None = None

    def close(self) -> None:
        """Watch nothing more."""
        if self._watches is not None:
            self._watches.close()

    def enclose(self, owner: Owner) -> int | None:
        """A group for a helper to be born in, where there are groups; `forget` kills what is left in it."""
        return None if self._groups is None else self._groups.beside.begin(owner.component, owner.helper)

    def plant(self, root: Root) -> None:
        """A new tree. Its root must not be reaped by anybody else before `fell`."""
        self._roots[root.pid] = root
        self._sessions[root.pid] = _Session(root)  # the pid was given anew: an older session is empty
        if root.owner.helper:
            self._helpers.add(root.owner)

    def fell(self, pid: int) -> None:
        """The root is reaped, or about to be. What was seen in its session stays its owner's.

        A look (`members`) while its zombie still keeps the number proves who that is; a root that never executed its
        command had none, and leaves nothing behind.
        """
        if self._roots.pop(pid, None) is None:
            return
        if not self._sessions[pid].witnesses:
            del self._sessions[pid]
        elif len(self._sessions) - len(self._roots) > _MAX_PAST:
            del self._sessions[next(session for session in self._sessions if session not in self._roots)]

    def strand(self, root: Root, members: dict[int, int]) -> None:
        """A tree of a helper that an earlier agent began: its session, with members by pid and start time.

        Nothing tells of the root's end. A number that a root of this agent has by now is not that session's any more.
        """
        if root.pid not in self._roots:
            self._sessions[root.pid] = _Session(root, dict(islice(members.items(), _MAX_WITNESSES)))
            self._stranded[root.owner] = root.pid

    def forget(self, owner: Owner) -> None:
        """A helper's run is over: what may still carry its mark belongs to the component from now on."""
        self._helpers.discard(owner)
        self._stranded.pop(owner, None)
        if self._groups is not None:
            self._groups.beside.end(owner.component, owner.helper)
        for session in [number for number in self._past() if self._sessions[number].root.owner == owner]:
            del self._sessions[session]

    def look_everywhere(self, component: str) -> None:
        """Orphans of this component may be anybody's children: an earlier agent started it."""
        self._everywhere.add(component)

    def all_gone(self, component: str) -> None:
        """A search everywhere found nothing of the component: its next processes are this agent's own."""
        if all(root.owner.component != component for root in self._roots.values()):
            self._everywhere.discard(component)

    def planted(self, owner: Owner, newest: int) -> bool:
        """Whether a root of this owner, of a generation up to `newest`, was not reaped yet."""
        return any(root.owner == owner and root.generation <= newest for root in self._roots.values())

    def root(self, pid: int) -> Root | None:
        """The root with this pid, if it is one."""
        return self._roots.get(pid)

    def start_ticks(self, pid: int) -> int:
        """The start time of a child that was just made, 0 where it cannot be read."""
        try:
            found = self.procfs.stat(pid)
        except OSError:
            return 0
        return found.start_ticks if found is not None else 0

    def members(self, owner: Owner, newest: int) -> list[Stat]:
        """What lives of this owner's trees of generations up to `newest`, seen at once; MAX_MEMBERS at most.

        One look is not a proof: a process may fork and exit behind its back. Raises OSError when it cannot look.
        """
        table = self._processes() if self._needs_table(owner) else None
        found = self._walk(owner, newest, table)
        return list(islice((stat for stat in found if stat is not None), MAX_MEMBERS))

    def left(self, owner: Owner, newest: int, root_pid: int) -> int | None:
        """How many outlive a root that has ended and is not reaped yet, as far as a short look tells.

        The zombie keeps the number of its session: who is seen in it now is proven to be. None: cannot tell whether
        there is anybody.
        """
        try:
            count = self._count(owner, newest, root_pid)
            if count == 0 and self.populated(owner, newest):
                # Somebody forks behind the look's back; or the kernel has not done with the root itself: look again.
                count = self._count(owner, newest, root_pid) or (None if self.populated(owner, newest) else 0)
        except OSError:  # no descriptors left
            return None
        return count

    def _count(self, owner: Owner, newest: int, root_pid: int) -> int | None:
        """How many one short look meets beside the root; None: it met nobody, and was not complete. Raises OSError."""
        count = 0
        table = self._processes() if self._needs_table(owner) else None
        for step, found in enumerate(self._walk(owner, newest, table)):
            count += found is not None and found.pid != root_pid  # the table of this turn may show it alive
            if step >= _MAX_STEPS_AT_ONCE or count >= _MAX_LEFT:
                return count or None
        return count

    def look(self, owner: Owner, newest: int) -> Iterator[Stat | None]:
        """The same step by step, in between None: everything else may have its turn. MAX_MEMBERS at most."""
        table: dict[int, Stat] | None = None
        if self._needs_table(owner):
            scan = self._scan = self._scan or _Scan(self.procfs)
            scan.readers += 1
            try:
                while scan.advance():
                    yield None
                self._end_scan(scan)
            finally:
                scan.readers -= 1
                if scan.readers == 0:
                    self._end_scan(scan)
            table = scan.table
        left = MAX_MEMBERS
        for found in self._walk(owner, newest, table):
            left -= found is not None
            yield found
            if left == 0:
                return

    def owner_of(self, pid: int) -> Owner | None:
        """To whom a living process belongs, or None: to nobody here. Raises OSError when it cannot look."""
        current = self.procfs.stat(pid)
        top = current
        for _ in range(_MAX_ANCESTORS):
            if current is None:
                break
            top = current
            root = self._roots.get(current.pid)
            if root is not None and root.is_(current):
                return root.owner
            if current.ppid in {0, 1, self._self_pid}:
                break
            current = self.procfs.stat(current.ppid)
        if top is None or top.pid == self._self_pid:
            return None
        attributed = self._attribute(top) or (self._attribute(own) if (own := self.procfs.stat(pid)) else None)
        if attributed is not None:
            return attributed.owner
        component = None if self._groups is None else self._groups.component_of(pid)
        return None if component is None else Owner(component)

    def watch(self, owner: Owner, newest: int, changed: Callable[[], None]) -> list[int]:
        """Have it told when the owner's groups change: they may be empty."""
        if self._groups is None or self._watches is None:
            return []
        return self._groups.watch(self._watches, owner.component, newest, changed, owner.helper)

    def unwatch(self, numbers: list[int]) -> None:
        """Have that told no more."""
        if self._watches is not None:
            for number in numbers:
                self._watches.drop(number)

    def kill_groups(self, owner: Owner, newest: int) -> None:
        """SIGKILL what is in the owner's groups, where the kernel can; else it is found one by one."""
        if self._groups is not None:
            with suppress(OSError):
                self._groups.kill(owner.component, newest, owner.helper)

    @property
    def untold(self) -> int:
        """How often a look met somebody of whom it cannot be told yet whose he is: then it was no complete one."""
        return self._marks.untold

    def populated(self, owner: Owner, newest: int) -> bool:
        """Whether anything lives in the owner's groups. Raises OSError when it cannot look."""
        return self._groups is not None and self._groups.populated(owner.component, newest, owner.helper)

    def _needs_table(self, owner: Owner) -> bool:
        return self._searches(owner) or not self.procfs.lists_children

    def _searches(self, owner: Owner) -> bool:
        """Whether orphans of this owner may be anybody's children."""
        return not self._subreaper or owner.component in self._everywhere or owner in self._stranded

    def _end_scan(self, scan: _Scan) -> None:
        """Whoever looks from now on begins a new one."""
        if self._scan is scan:
            self._scan = None

    def _walk(self, owner: Owner, newest: int, table: dict[int, Stat] | None) -> Iterator[Stat | None]:
        """The living members one by one; None after every step that found none."""
        children = None if table is None else self._children_in(table)

        def below(pid: int) -> Iterable[int]:
            return children.get(pid, ()) if children is not None else self.procfs.children(pid)

        def stat(pid: int) -> Stat | None:
            return table.get(pid) if table is not None else self.procfs.stat(pid)

        seen = {self._self_pid}
        for root in [root for root in self._roots.values() if root.owner == owner and root.generation <= newest]:
            found = stat(root.pid)
            if found is not None and root.is_(found):
                yield from self._grown(found, below, stat, seen)
        searches = table is not None and self._searches(owner)
        candidates = self._strays(table or {}, children or {}) if searches else below(self._self_pid)
        # Nearly all of the agent's children are roots: of these there are as many as components.
        strangers = [pid for pid in candidates if pid not in self._roots]
        for pid in reversed(strangers):  # the newest orphans come last
            found = stat(pid) if pid not in self._roots and pid not in seen else None
            # What is dead has no children and no markers any more; a thread of the kernel's never had any.
            origin = self._attribute(found) if found is not None and found.living and not found.kernel else None
            if found is None or origin is None or origin.owner != owner:
                yield None
                continue
            # An earlier agent may have counted further than this one: its leftovers are spared only beside a newer root
            newer = any(root.owner == owner and root.generation > newest for root in self._roots.values())
            if not newer or origin.generation <= newest:
                yield from self._grown(found, below, stat, seen)
        if self._groups is not None:
            for pid in self._groups.members(owner.component, newest, owner.helper):
                found = stat(pid) if pid not in seen else None
                yield found if found is not None and found.living else None
        for session in [number for number in self._past() if self._sessions[number].root.owner == owner]:
            self._led_by(session)

    def _grown(
        self,
        head: Stat,
        below: Callable[[int], Iterable[int]],
        stat: Callable[[int], Stat | None],
        seen: set[int],
    ) -> Iterator[Stat | None]:
        """A process and its descendants, other trees left out. `seen` gets them."""
        queue: list[tuple[int, Stat | None]] = [(head.pid, None)]
        while queue:
            pid, parent = queue.pop()
            if pid in seen or (pid in self._roots and parent is not None):
                continue
            found = stat(pid)
            # Since its pid was listed it may have ended, and the pid been given to a stranger.
            expected = found is not None and (
                found.ppid == parent.pid if parent is not None else found.start_ticks == head.start_ticks
            )
            if found is None or not expected:
                yield None
                continue
            seen.add(pid)
            queue.extend((child, found) for child in below(pid))
            if found.living:
                self._witness(found)
            yield found if found.living else None

    def _witness(self, found: Stat) -> None:
        """Remember a member of a session, so that the session's number counts after its leader too."""
        session = self._sessions.get(found.session)
        if (
            session is not None
            and len(session.witnesses) < _MAX_WITNESSES
            and found.pid != found.session
            and self._is_led(found)
        ):
            session.witnesses[found.pid] = found.start_ticks

    def _strays(self, table: dict[int, Stat], children: dict[int, list[int]]) -> list[int]:
        """Processes that descend from no root and are not the agent: orphans may be among them."""
        below_roots: set[int] = set()
        queue = list(self._roots)
        while queue:
            pid = queue.pop()
            if pid not in below_roots:
                below_roots.add(pid)
                queue.extend(children.get(pid, ()))
        return [pid for pid in table if pid not in below_roots and pid not in {1, self._self_pid}]

    def _attribute(self, found: Stat) -> Root | None:
        """Whose orphan this is: by its session, else by its markers."""
        if found.pid == self._self_pid:
            return None
        if self._is_led(found):
            return self._sessions[found.session].root
        mark = self._marks.of(found)
        if mark is None:
            return None
        owner = Owner(mark.component, mark.helper)
        if owner not in self._helpers and self._stranded.get(owner) != found.session:
            owner = Owner(mark.component)
        return Root(owner, mark.generation, found.pid, found.start_ticks)

    def _past(self) -> list[int]:
        """The sessions whose leader is gone."""
        return [session for session in self._sessions if session not in self._roots]

    def _is_led(self, found: Stat) -> bool:
        """Whether the number of its session is proven to mean the session of a root of ours."""
        root = self._led_by(found.session)
        return root is not None and found.start_ticks >= root.start_ticks

    def _led_by(self, number: int) -> Root | None:
        """The root whose session has this number: now, and so when a process was seen in it before."""
        session = self._sessions.get(number)
        if session is None:
            return None
        if number in self._roots:
            leader = self.procfs.stat(number)
            if leader is not None and session.root.is_(leader):
                return session.root
        for pid, start_ticks in list(session.witnesses.items()):
            found = self.procfs.stat(pid)
            if found is not None and (found.start_ticks, found.session) == (start_ticks, number):
                return session.root
            del session.witnesses[pid]
        if number not in self._roots:
            del self._sessions[number]
        return None

    def _processes(self) -> dict[int, Stat]:
        """The process table, read once for everything that one turn of the loop asks."""
        if self._table is None:
            self._table = self.procfs.table()
            self._loop.call_soon(self._drop_table)
        return self._table

    def _drop_table(self) -> None:
        self._table = self._children = None

    def _children_in(self, table: dict[int, Stat]) -> dict[int, list[int]]:
        """Who is whose parent; of the table of this turn worked out once, however many components end in it."""
        if table is not self._table:
            return children_of(table)
        if self._children is None:
            self._children = children_of(table)
        return self._children
