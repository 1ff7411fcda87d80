"""Which processes belong to a component where no cgroup tells: sessions, descent, markers.

A component's main process leads a session of its own. Its members are its descendants; and orphans, which the kernel
gives to the agent as the nearest subreaper: they are known by their session, else by the markers in the environment
they were started with. For what an earlier agent left the orphans may be anybody's children: there the whole process
table is searched. A process that left the session, cleared its environment and lost its parent is not found: this is
no fence for descendants, and status says so.

Attribution is by (pid, start time) and never leads to the agent itself, to another component's processes or to a
stranger.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from node_manager.runtime import environment
from node_manager.runtime.procfs import ProcFs, Stat

MAX_MEMBERS = 4096
"""Members that one look returns at most: a fork bomb is killed in several passes, and one pass stays short."""
_MAX_PAST = 4096
"""Sessions remembered after their leader: above the components of any host."""
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


class Trees:
    """Knows the roots, and finds what grew from them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, nonce: str, subreaper: bool, procfs: ProcFs | None = None
    ) -> None:
        self.procfs = procfs or ProcFs()
        self._loop = loop
        self._nonce = nonce
        self._subreaper = subreaper
        self._self_pid = os.getpid()
        self._roots: dict[int, Root] = {}
        self._past: dict[int, Root] = {}
        """By session id: roots that are gone and may have left orphans."""
        self._helpers: set[Owner] = set()
        self._everywhere: set[str] = set()
        self._unmarked: set[tuple[int, int]] = set()
        """(pid, start) of processes seen without our markers: they are not read again."""
        self._table: dict[int, Stat] | None = None

    def plant(self, root: Root) -> None:
        """A new tree. Its root must not be reaped by anybody else before `fell`."""
        self._past.pop(root.pid, None)  # the pid was given anew: the old session is empty
        self._roots[root.pid] = root
        if root.owner.helper:
            self._helpers.add(root.owner)

    def fell(self, pid: int) -> None:
        """The root was reaped; what it left is still its owner's."""
        root = self._roots.pop(pid, None)
        if root is None:
            return
        if len(self._past) >= _MAX_PAST:
            self._past.pop(next(iter(self._past)))
        self._past[pid] = root

    def forget(self, owner: Owner) -> None:
        """A helper's run is over: what may still carry its mark belongs to the component from now on."""
        self._helpers.discard(owner)
        for pid in [pid for pid, root in self._past.items() if root.owner == owner]:
            del self._past[pid]

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
        """What lives of this owner's trees of generations up to `newest`; MAX_MEMBERS at most.

        One look is not a proof: a process may fork and exit behind its back. Raises OSError when it cannot look.
        """
        everywhere = not self._subreaper or owner.component in self._everywhere
        table = self._processes() if everywhere or not self.procfs.lists_children else None
        children = _children_of(table) if table is not None else None

        def below(pid: int) -> Iterable[int]:
            return children.get(pid, ()) if children is not None else self.procfs.children(pid)

        def stat(pid: int) -> Stat | None:
            return table.get(pid) if table is not None else self.procfs.stat(pid)

        heads = [root.pid for root in self._roots.values() if root.owner == owner and root.generation <= newest]
        candidates = self._strays(table, children) if table is not None and everywhere else below(self._self_pid)
        # An earlier agent may have counted further than this one: its leftovers are spared only beside a newer root.
        newer = any(root.owner == owner and root.generation > newest for root in self._roots.values())
        used_sessions: set[int] = set()
        for pid in candidates:
            found = stat(pid) if pid not in self._roots else None
            if found is None:
                continue
            root = self._attribute(found)
            if root is not None and root.owner == owner:
                used_sessions.add(found.session)
                if not newer or root.generation <= newest:
                    heads.append(pid)
        for session in [s for s, root in self._past.items() if root.owner == owner and s not in used_sessions]:
            del self._past[session]
        return self._grown(heads, below, stat)

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
        return attributed.owner if attributed is not None else None

    def _grown(
        self, heads: list[int], below: Callable[[int], Iterable[int]], stat: Callable[[int], Stat | None]
    ) -> list[Stat]:
        """The living among the heads and their descendants, other trees left out."""
        living: list[Stat] = []
        seen: set[int] = {self._self_pid}
        queue = list(heads)
        own_roots = set(heads)
        while queue and len(living) < MAX_MEMBERS:
            pid = queue.pop()
            if pid in seen or (pid in self._roots and pid not in own_roots):
                continue
            seen.add(pid)
            found = stat(pid)
            if found is None or (pid in self._roots and not self._roots[pid].is_(found)):
                continue
            if found.living:
                living.append(found)
                queue.extend(below(pid))
        return living

    def _strays(self, table: dict[int, Stat], children: dict[int, list[int]] | None) -> list[int]:
        """Processes that descend from no root and are not the agent: orphans may be among them."""
        below_roots: set[int] = set()
        queue = list(self._roots)
        while queue:
            pid = queue.pop()
            if pid not in below_roots:
                below_roots.add(pid)
                queue.extend((children or {}).get(pid, ()))
        self._unmarked = {key for key in self._unmarked if (seen := table.get(key[0])) and seen.start_ticks == key[1]}
        return [
            pid
            for pid, found in table.items()
            if pid not in below_roots
            and pid not in {1, self._self_pid}
            and (found.session in self._past or (pid, found.start_ticks) not in self._unmarked)
        ]

    def _attribute(self, found: Stat) -> Root | None:
        """Whose orphan this is: by its session, else by its markers."""
        if found.pid == self._self_pid:
            return None
        root = self._roots.get(found.session) or self._past.get(found.session)
        if root is not None and self._session_is_of(root, found):
            return root
        markers = self.procfs.markers(found.pid)
        component = markers.get(environment.COMPONENT)
        if not component or markers.get(environment.NONCE) != self._nonce:
            if self._table is not None:
                self._unmarked.add((found.pid, found.start_ticks))
            return None
        owner = Owner(component, markers.get(environment.HELPER, ""))
        if owner not in self._helpers:
            owner = Owner(component)
        generation = markers.get(environment.GENERATION, "")
        return Root(owner, int(generation) if generation.isdecimal() else 0, found.pid, found.start_ticks)

    def _session_is_of(self, root: Root, found: Stat) -> bool:
        """Whether the session's id still means this root: the number may be a later process's by now."""
        if found.start_ticks < root.start_ticks:
            return False
        leader = self.procfs.stat(root.pid)
        return leader is None or root.is_(leader)

    def _processes(self) -> dict[int, Stat]:
        """The process table, read once for everything that one turn of the loop asks."""
        if self._table is None:
            self._table = self.procfs.table()
            self._loop.call_soon(self._drop_table)
        return self._table

    def _drop_table(self) -> None:
        self._table = None


def _children_of(table: dict[int, Stat]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for found in table.values():
        children.setdefault(found.ppid, []).append(found.pid)
    return children
