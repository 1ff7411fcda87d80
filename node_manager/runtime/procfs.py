"""What /proc says about processes: who is whose child, since when, in which session, with which markers.

A process that is gone is None. Any other trouble (no descriptors left) is an OSError: "cannot look" must never be
read as "is gone".
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_ENVIRON_BYTES = 64 * 1024
"""How much of an environment is looked at: our markers stand at its front."""
_MAX_STAT_BYTES = 4096
_MAX_CHILDREN_BYTES = 1024 * 1024
_EXIT_CODE = 50
"""Fields from `state` (3) to `exit_code` (52)."""
_PF_KTHREAD = 0x0020_0000
"""linux/sched.h; taken from a thread that executes a program."""
_PF_EXITING = 0x0000_0004
_SIGKILL = 1 << signal.SIGKILL - 1
_CAP_SYS_PTRACE = 1 << 19
"""linux/capability.h"""
_MARKER_PREFIX = b"XCE_"
_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Stat:
    """One process as /proc/PID/stat tells it. `start_ticks` is since boot: pid and start name one process."""

    pid: int
    ppid: int
    session: int
    state: str
    start_ticks: int
    threads: int
    kernel: bool = False
    """A thread of the kernel's own: it was never started with anything, and belongs to nobody."""
    exiting: bool = False
    """Its first thread is on its way out."""

    @property
    def living(self) -> bool:
        """False for a zombie; a leader that ended before its threads (state Z too) still lives."""
        return self.state not in "ZXx" or self.threads > 1


class ProcFs:
    """Reads a proc file system."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = str(root)
        self.lists_children = any(Path(root, "self", "task").glob("*/children"))
        """Whether the kernel has CONFIG_PROC_CHILDREN; without it only a walk over all processes finds children."""

    def stat(self, pid: int) -> Stat | None:
        """One process, or None: gone."""
        data = self._read(f"{self._root}/{pid}/stat", _MAX_STAT_BYTES, at_once=True)
        if not data:
            return None
        fields = data[data.rindex(b")") + 2 :].split()  # the name before it may hold spaces and parentheses
        flags = int(fields[6])
        return Stat(
            pid=pid,
            ppid=int(fields[1]),
            session=int(fields[3]),
            state=fields[0].decode("ascii"),
            start_ticks=int(fields[19]),
            threads=int(fields[17]),
            kernel=bool(flags & _PF_KTHREAD),
            exiting=bool(flags & _PF_EXITING),
        )

    def zombie_status(self, pid: int, start_ticks: int) -> int | None:
        """How a process ended that nobody has reaped yet, as wait(2) encodes it; None: not a zombie, or not told.

        The kernel writes 0 for those who may not know (proc_pid_stat(5), exit_code): 0 counts only where we may.
        """
        data = self._read(f"{self._root}/{pid}/stat", _MAX_STAT_BYTES)
        fields = data[data.rfind(b")") + 2 :].split()
        if len(fields) < _EXIT_CODE or fields[0] != b"Z" or int(fields[17]) > 1 or int(fields[19]) != start_ticks:
            return None
        status = int(fields[_EXIT_CODE - 1])
        return status if status != 0 or self._may_inspect(pid) else None

    def dying(self, found: Stat) -> bool:
        """Whether a process is as good as dead: nothing that it still does can keep it from its end.

        It hangs in the kernel, then, with SIGKILL sent to it, or on its way out by itself. What writes a core ends
        too, but is in no need of help: SIGKILL would cut the core short.
        """
        lines = self._status_lines(str(found.pid))
        if int(lines.get(b"CoreDumping", b"0")):
            return False
        pending = int(lines.get(b"SigPnd", b"0"), 16) | int(lines.get(b"ShdPnd", b"0"), 16)
        return bool(pending & _SIGKILL) or (found.exiting and found.threads == 1)

    def _may_inspect(self, pid: int) -> bool:
        """Whether ptrace_may_access holds for a process without memory: the same ids, or CAP_SYS_PTRACE."""
        own, other = (self._status_lines(name) for name in ("self", str(pid)))
        if int(own.get(b"CapEff", b"0"), 16) & _CAP_SYS_PTRACE:
            return True
        return all(set(other.get(key, b"").split()) == {own.get(key, b"").split()[-1]} for key in (b"Uid", b"Gid"))

    def _status_lines(self, name: str) -> dict[bytes, bytes]:
        lines = self._read(f"{self._root}/{name}/status", _MAX_STAT_BYTES).splitlines()
        return {key: value for key, _, value in (line.partition(b":") for line in lines)}

    def children(self, pid: int) -> list[int]:
        """Children of all threads of a process, as far as the kernel lists them."""
        found: list[int] = []
        try:
            threads = os.listdir(f"{self._root}/{pid}/task")  # noqa: PTH208 - a hot path
        except _GONE:
            return found
        for thread in threads:
            data = self._read(f"{self._root}/{pid}/task/{thread}/children", _MAX_CHILDREN_BYTES)
            found.extend(map(int, data.split()))
        return found

    def scan(self) -> Iterator[Stat]:
        """Every process of the host, one by one.

        The kernel lists them by rising pid and is asked on the way: what forks and exits meanwhile, again and again,
        is met all the same, because its newest pid is the highest.
        """
        with os.scandir(self._root) as entries:
            for entry in entries:
                if entry.name.isdigit() and (found := self.stat(int(entry.name))) is not None:
                    yield found

    def table(self) -> dict[int, Stat]:
        """Every process of the host."""
        return {found.pid: found for found in self.scan()}

    def markers(self, pid: int) -> dict[str, str] | None:
        """The XCE_ variables it was started with; none where it may not be looked at.

        None while it is just executing its command: its new memory has no arguments yet either. So too where it is
        gone, or on its way out. A process that was given no environment has arguments.
        """
        try:
            data = self._read(f"{self._root}/{pid}/environ", MAX_ENVIRON_BYTES)
        except PermissionError:
            return {}
        found: dict[str, str] = {}
        for entry in data.split(b"\0"):
            if entry.startswith(_MARKER_PREFIX):
                key, _, value = entry.decode("utf-8", "replace").partition("=")
                found.setdefault(key, value)
        if data or self._read(f"{self._root}/{pid}/cmdline", 1):
            return found
        return None

    def uid(self, pid: int) -> int | None:
        """Its real user, or None: gone."""
        uids = self._status_lines(str(pid)).get(b"Uid")
        return int(uids.split()[0]) if uids else None

    def runs_as(self, pid: int, uid: int | None) -> bool:
        """Whether a process is there and this is its real user; None: any is."""
        actual = self.uid(pid)
        return actual is not None and (uid is None or uid == actual)

    @staticmethod
    def _read(path: str, limit: int, *, at_once: bool = False) -> bytes:
        """A small file of /proc, empty where the process is gone; the whole of it, or what one read gives."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except _GONE:
            return b""
        try:
            parts: list[bytes] = []
            while limit > 0:
                part = os.read(fd, limit)
                if not part:
                    break
                parts.append(part)
                limit -= len(part)
                if at_once:
                    break
            return b"".join(parts)
        except ProcessLookupError:
            return b""
        finally:
            os.close(fd)


def children_of(table: dict[int, Stat]) -> dict[int, list[int]]:
    """Who is whose parent in a table of processes."""
    children: dict[int, list[int]] = {}
    for found in table.values():
        children.setdefault(found.ppid, []).append(found.pid)
    return children
