"""A cgroup for each check and each exec probe: what it starts dies with it, whatever that does to hide.

    beside/NAME.NUMBER    one run of one command beside the component NAME

A group is new for every run, because newer kernels kill whatever is born in one that was killed before. It costs
some 0.2 ms of processor time, half of what the command's start does. Where none can be made, or it would be frozen,
the command runs in the agent's own group, and is held by session, descent and markers.
"""

import os
from contextlib import suppress
from pathlib import Path

from node_manager.runtime import cgroupfs
from node_manager.runtime.clock import boottime_ns

BESIDE = "beside"
_MAX_STALE = 256
"""Groups in which something still dies; beyond it the oldest are left to the next agent."""


class Beside:
    """The groups of commands below `root`, the group that was delegated to the agent. A run is (component, mark)."""

    def __init__(self, root: Path) -> None:
        self._path = root / BESIDE
        self._runs: dict[tuple[str, str], tuple[Path, int]] = {}
        self._stale: list[Path] = []

    def begin(self, component: str, mark: str) -> int | None:
        """Make the group of a run; the descriptor of the directory that it is born in, None: there can be none."""
        self._sweep()
        path = self._path / f"{component}.{boottime_ns()}"
        try:
            path.mkdir(parents=True)
            if cgroupfs.frozen(path):  # by a group above: what is born there would keep the agent's lock after it
                raise OSError("it is frozen")  # noqa: TRY301 - one way out
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            with suppress(OSError):
                path.rmdir()
            return None
        self._runs[component, mark] = path, fd
        return fd

    def paths(self, component: str, mark: str) -> list[Path]:
        """The group of a run, if it has one."""
        found = self._runs.get((component, mark))
        return [] if found is None else [found[0]]

    def end(self, component: str, mark: str) -> None:
        """A run is over, or given up: whatever still lives in its group is killed."""
        found = self._runs.pop((component, mark), None)
        if found is None:
            return
        path, fd = found
        os.close(fd)
        _kill(path)
        self._stale.append(path)
        self._sweep()

    def clear(self) -> None:
        """Kill what an earlier agent's commands left: it is nobody's business any more."""
        with suppress(OSError):
            self._stale.extend(path for path in self._path.iterdir() if path.is_dir())
        for path in self._stale:
            _kill(path)
        self._sweep()

    def close(self) -> None:
        """Let go of everything, and remove what is empty."""
        for component, mark in list(self._runs):
            self.end(component, mark)
        self._sweep()
        with suppress(OSError):
            self._path.rmdir()

    def component_of(self, relative: str) -> str | None:
        """Beside which component a process is, by its group below the root."""
        top, _, rest = relative.partition("/")
        return rest.partition(".")[0] or None if top == BESIDE else None

    def _sweep(self) -> None:
        """Remove what has become empty."""
        self._stale = [path for path in self._stale if not cgroupfs.remove(path)][-_MAX_STALE:]


def _kill(path: Path) -> None:
    """SIGKILL what is there. A kernel that cannot (before 5.14) has it killed one by one, before this."""
    with suppress(OSError):
        if cgroupfs.populated(path):
            cgroupfs.write(path, "cgroup.kill", "1")
