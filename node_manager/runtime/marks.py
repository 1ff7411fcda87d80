"""What the markers in processes' environments say, also of those that are just executing their command."""

import time
from collections.abc import Container, Iterator
from dataclasses import dataclass

from node_manager.runtime import environment
from node_manager.runtime.procfs import ProcFs, Stat

_MAX_KNOWN = 32_768
"""Processes whose markers are remembered, so that thousands of orphans are not read again at every look."""
_EXECUTES_S = 2.0
"""How long a process may take to execute its command. One that shows nothing for longer will not: it is not ours."""

_PAUSE_S = 0.005
"""Between two looks at those that do so, where the caller waits."""

_Key = tuple[int, int]
"""Pid and start time."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What our markers name; `helper` is empty for the component itself."""

    component: str
    helper: str
    generation: int


class Marks:
    """Reads them, once for each process.

    `untold` counts how often they could not be told, because the process was just executing its command. It has its
    new memory by then, and no environment in it yet. It may be one of ours, and must not be taken for nobody's: who
    looked has not seen everything.
    """

    def __init__(self, procfs: ProcFs, nonce: str) -> None:
        self.untold = 0
        self._procfs = procfs
        self._nonce = nonce
        self._known: dict[_Key, Mark | None] = {}
        self._executes: dict[_Key, float] = {}
        """Since when."""

    def of(self, found: Stat) -> Mark | None:
        """What its markers name, where they are ours."""
        key = (found.pid, found.start_ticks)
        if key in self._known:
            return self._known[key]
        markers = self._procfs.markers(found.pid)
        if markers is None and self._is_executing(key):
            self.untold += 1
            return None
        self._executes.pop(key, None)
        mark = None if markers is None else self._ours(markers)
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[key] = mark
        return mark

    def _is_executing(self, key: _Key) -> bool:
        now = time.monotonic()
        if len(self._executes) >= _MAX_KNOWN:
            self._executes.clear()
        return now - self._executes.setdefault(key, now) < _EXECUTES_S

    def _ours(self, markers: dict[str, str]) -> Mark | None:
        component = markers.get(environment.COMPONENT)
        if not component or markers.get(environment.NONCE) != self._nonce:
            return None
        return Mark(component, markers.get(environment.HELPER, ""), environment.generation(markers))


def marked(procfs: ProcFs, *, but: Container[int] = ()) -> Iterator[tuple[Stat, dict[str, str]]]:
    """Every living process of the host, except for the pids of `but`, with its markers.

    For those who start anew what they do not see: what is just executing its command comes last, and is waited for.
    Raises OSError when it cannot look.
    """
    executing: list[Stat] = []
    for found in procfs.scan():
        if found.pid in but or found.kernel or not found.living:
            continue
        markers = procfs.markers(found.pid)
        if markers is None:
            executing.append(found)
        else:
            yield found, markers
    until_s = time.monotonic() + _EXECUTES_S
    while executing := [now for found in executing if (now := _still(procfs, found)) is not None]:
        for found in tuple(executing):
            markers = procfs.markers(found.pid)
            if markers is not None:
                executing.remove(found)
                yield found, markers
        if time.monotonic() > until_s:
            return
        time.sleep(_PAUSE_S)


def _still(procfs: ProcFs, found: Stat) -> Stat | None:
    """The same process as it is now; None where it is gone or on its way out."""
    now = procfs.stat(found.pid)
    same = now is not None and now.start_ticks == found.start_ticks and now.living and not now.exiting
    return now if same else None
