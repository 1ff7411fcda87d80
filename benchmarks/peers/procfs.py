"""What /proc says of a supervisor's processes: which they are, what they hold, what they use."""

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from node_manager.runtime.procfs import ProcFs

NS_PER_S = 1_000_000_000
KIB = 1024

_procfs = ProcFs()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Of all processes together, in KiB: PSS shares out what several processes have in common, USS leaves it out."""

    pss: int
    uss: int
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of all threads so far: time on a core, and how often one went to sleep and was woken."""

    cpu_ns: int
    sleeps: int


@dataclass(slots=True)
class Load:
    """How busy the whole machine was meanwhile; 100: all cores."""

    percent: float = 0.0


def program(pid: int) -> str:
    """The path of what a process executes; empty: it is gone."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""


def living(pid: int) -> bool:
    """Whether there is such a process, and not as a zombie."""
    found = _procfs.stat(pid)
    return found is not None and found.living


def start_ticks(pid: int) -> int | None:
    """When it was started: with the pid, the name of one process for ever."""
    found = _procfs.stat(pid)
    return found.start_ticks if found is not None and found.living else None


def family(roots: Iterable[int], *, without: str) -> dict[int, int]:
    """Return pid and start of the roots and of all that descends from them; not where `without` is executed."""
    table = _procfs.table()
    children: dict[int, list[int]] = defaultdict(list)
    for stat in table.values():
        children[stat.ppid].append(stat.pid)
    found: dict[int, int] = {}
    left = list(roots)
    while left:
        pid = left.pop()
        known = table.get(pid)
        if pid in found or known is None or not known.living or program(pid) == without:
            continue
        found[pid] = known.start_ticks
        left += children[pid]
    return found


def memory(pids: Iterable[int]) -> Memory:
    """Sum up what these processes hold."""
    pss = uss = processes = 0
    for pid in pids:
        text = _read(f"/proc/{pid}/smaps_rollup")
        if text:
            sizes = {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
            pss += sizes["Pss"]
            uss += sizes["Private_Clean"] + sizes["Private_Dirty"]
            processes += 1
    return Memory(pss=pss, uss=uss, processes=processes)


def usage(pids: Iterable[int]) -> Usage:
    """Sum up what these processes used so far."""
    cpu_ns = sleeps = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            times = _read(f"{thread}/schedstat").split()
            cpu_ns += int(times[0]) if times else 0
            switches = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", _read(f"{thread}/status"), re.MULTILINE)
            sleeps += int(switches[1]) if switches else 0
    return Usage(cpu_ns=cpu_ns, sleeps=sleeps)


@contextmanager
def load() -> Iterator[Load]:
    """Measure how busy the machine is while the context lasts."""
    found = Load()
    busy, total = _ticks()
    try:
        yield found
    finally:
        busy_after, total_after = _ticks()
        found.percent = round(100 * (busy_after - busy) / max(1, total_after - total), 1)


def pause(seconds: float) -> None:
    """Wait: what is measured needs time to pass."""
    time.sleep(seconds)


def _ticks() -> tuple[int, int]:
    user, nice, system, idle, iowait, *more = map(int, _read("/proc/stat").split("\n", 1)[0].split()[1:9])
    return user + nice + system + sum(more), user + nice + system + sum(more) + idle + iowait


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
