"""One look at a process for the verdict of `core.wedge`: states and CPU time of its threads, freezer, memory pressure.

Every read is of /proc or of the cgroup file system and may hang with the process it concerns: not for the loop.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from node_manager.core.wedge import Sample
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.procfs import ProcFs, Stat

MAX_THREADS = 512
"""Threads looked at in one look, those of its tree included: some milliseconds of reading. What is beyond is counted
by the kernel's ticks of the whole process."""
MAX_PROCESSES = 64
"""Processes of its tree that are looked at."""
_MAX_BYTES = 64 * 1024
_NS_PER_US = 1000
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)
_UTIME, _STIME = 11, 12
"""Fields of proc_pid_stat(5) after the name, counted from the state as 0."""


def read_text(path: str, limit: int = _MAX_BYTES) -> str:
    """The first `limit` bytes of a small file of the kernel's; empty where there is none any more. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except _GONE:
        return ""
    try:
        parts = []
        while limit > 0 and (part := os.read(fd, limit)):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts).decode("utf-8", "replace")
    except ProcessLookupError:
        return ""
    finally:
        os.close(fd)


class Looks:
    """Looks at processes through a proc file system. Nothing is kept from look to look but where the cgroups are."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = str(root)
        self._procfs = ProcFs(root)
        self._cgroups = _cgroup2(read_text(f"{self._root}/self/mountinfo"))

    def look(self, pid: int, start_ticks: int, *, tree: bool) -> Sample:
        """One look. `tree`: what it started is part of it. Raises OSError: cannot look."""
        at_ns = boottime_ns()
        stat = self._procfs.stat(pid)
        if stat is None or stat.start_ticks != start_ticks:
            return Sample(at_ns=at_ns, state="")
        threads = list(self._threads(pid, MAX_THREADS))
        group = self.cgroup(pid)
        return Sample(
            at_ns=at_ns,
            state=stat.state,
            threads=stat.threads,
            runnable=any(state == "R" for state, _, _ in threads),
            uninterruptible=any(state == "D" for state, _, _ in threads),
            frozen=group is not None and "frozen 1" in read_text(f"{group}/cgroup.events").splitlines(),
            ran_ns=self._ran_ns(stat, threads),
            tree_ran_ns=self._tree_ran_ns(pid, MAX_THREADS - len(threads)) if tree else None,
            waited_ns=None if any(waited < 0 for _, _, waited in threads) else sum(waited for _, _, waited in threads),
            memory_stall_ns=_stall_ns(self.pressure(group, "memory")),
        )

    def cgroup(self, pid: int) -> str | None:
        """The directory of its cgroup in the v2 hierarchy, or None where there is none to be seen."""
        if self._cgroups is None:
            return None
        for line in read_text(f"{self._root}/{pid}/cgroup").splitlines():
            if line.startswith("0::/"):
                return f"{self._cgroups}{line[3:]}".rstrip("/")
        return None

    def pressure(self, group: str | None, resource: str) -> str:
        """The PSI text of its cgroup, or of the host where that has none; empty where the kernel has none at all."""
        own = "" if group is None else read_text(f"{group}/{resource}.pressure")
        return own or read_text(f"{self._root}/pressure/{resource}")

    def _threads(self, pid: int, limit: int) -> Iterator[tuple[str, int, int]]:
        """State, time run and time waited of each thread; a time that the kernel does not tell is -1."""
        try:
            names = os.listdir(f"{self._root}/{pid}/task")  # noqa: PTH208 - names are all that is needed
        except _GONE:
            return
        for name in names[:limit]:
            text = read_text(f"{self._root}/{pid}/task/{name}/stat")
            if not text:
                continue
            state = text[text.rindex(")") + 2]
            times = read_text(f"{self._root}/{pid}/task/{name}/schedstat").split()
            ran, waited = (int(times[0]), int(times[1])) if len(times) > 1 else (-1, -1)
            yield state, ran, waited

    def _ran_ns(self, stat: Stat, threads: list[tuple[str, int, int]]) -> int:
        """CPU time of one process: to the nanosecond where the kernel tells and there are few enough threads."""
        if len(threads) < stat.threads or any(ran < 0 for _, ran, _ in threads):
            return self._ticks_ns(stat.pid)
        return sum(ran for _, ran, _ in threads)

    def _ticks_ns(self, pid: int) -> int:
        text = read_text(f"{self._root}/{pid}/stat")
        fields = text[text.rfind(")") + 2 :].split()
        return (int(fields[_UTIME]) + int(fields[_STIME])) * _NS_PER_TICK if len(fields) > _STIME else 0

    def _tree_ran_ns(self, pid: int, budget: int) -> int:
        """CPU time of its descendants, by who is whose child."""
        total, seen, waiting = 0, {pid}, self._procfs.children(pid)
        while waiting and len(seen) <= MAX_PROCESSES:
            child = waiting.pop()
            stat = None if child in seen else self._procfs.stat(child)
            seen.add(child)
            if stat is not None:
                threads = list(self._threads(child, max(0, budget)))
                budget -= len(threads)
                total += self._ran_ns(stat, threads)
                waiting += self._procfs.children(child)
        return total


def _cgroup2(mountinfo: str) -> str | None:
    """Where the v2 hierarchy is mounted (proc_pid_mountinfo(5))."""
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.startswith("cgroup2 "):
            return fields.split()[4]
    return None


def _stall_ns(pressure: str) -> int | None:
    """The total of the line `some` of a PSI file, in nanoseconds."""
    for line in pressure.splitlines():
        kind, _, rest = line.partition(" ")
        total = rest.rpartition("total=")[2]
        if kind == "some" and total.isdigit():
            return int(total) * _NS_PER_US
    return None
