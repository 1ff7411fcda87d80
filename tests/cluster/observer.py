"""Who lives: the schedulers of all hosts, by the process table alone and without a word from the agents."""

import os
import select
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from node_manager.reference.clock import NS_PER_S, boottime_ns

LOOK_S = 0.004
"""Between two looks for new processes. The end of a known one is seen at once, by its pidfd."""
SETTLED_NS = 2 * NS_PER_S
"""A process that is no scheduler by then is none: until its exec it has the environment of its agent."""
_KILLED = 9


@dataclass(slots=True, kw_only=True)
class Life:
    """One scheduler. Times are CLOCK_BOOTTIME."""

    host: str
    pid: int
    seen_ns: int
    fd: int
    died_ns: int | None = None
    killed: bool | None = None
    """By SIGKILL; None: nobody can tell any more."""


class Observer(threading.Thread):
    """Watches for schedulers below `base`, whose hosts' directories are named as the hosts are."""

    def __init__(self, base: Path) -> None:
        super().__init__(name="observer", daemon=True)
        self._marker = f"{base}/".encode()
        self._known: dict[str, int] = {}
        self._lock = threading.Lock()
        self._lives: list[Life] = []
        self._over = threading.Event()
        self.overlaps: list[str] = []
        """Two alive in the same instant: what must never be."""
        self.late_ns = 0
        """The longest time between two looks: what lived for less may have been missed."""

    def run(self) -> None:
        """See Thread."""
        poll = select.poll()
        last_ns = boottime_ns()
        while not self._over.is_set():
            until_s = time.monotonic() + LOOK_S
            while (left_s := until_s - time.monotonic()) > 0:
                for fd, _events in poll.poll(left_s * 1000):
                    poll.unregister(fd)
                    self._end(fd)
            now_ns = boottime_ns()
            self.late_ns, last_ns = max(self.late_ns, now_ns - last_ns), now_ns
            for life in self._newcomers(now_ns):
                poll.register(life.fd, select.POLLIN)
                self._begin(life)

    def stop(self) -> None:
        """End the watch."""
        self._over.set()
        self.join()
        for life in self._lives:
            os.close(life.fd)

    def lives(self) -> list[Life]:
        """Every scheduler so far."""
        with self._lock:
            return list(self._lives)

    def alive(self) -> list[Life]:
        """Those that live."""
        return [life for life in self.lives() if life.died_ns is None]

    def _begin(self, life: Life) -> None:
        with self._lock:
            for other in self._lives:
                if other.died_ns is None and not _ended(other.fd):
                    self.overlaps.append(f"{life.host}:{life.pid} began while {other.host}:{other.pid} lived")
            self._lives.append(life)

    def _end(self, fd: int) -> None:
        now_ns = boottime_ns()
        with self._lock:
            life = next(life for life in self._lives if life.fd == fd)
            life.died_ns = now_ns
            with suppress(OSError):  # reaped already
                stat = Path(f"/proc/{life.pid}/stat").read_text()
                life.killed = int(stat.rpartition(")")[2].split()[49]) & 0x7F == _KILLED

    def _newcomers(self, now_ns: int) -> list[Life]:
        pids = [name for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - names are all
        self._known = {pid: self._known.get(pid, now_ns) for pid in pids}
        found = []
        for pid, since_ns in self._known.items():
            if now_ns - since_ns > SETTLED_NS:
                continue
            life = self._look(pid, now_ns)
            if life is not None:
                found.append(life)
                self._known[pid] = 0
        return found

    def _look(self, pid: str, now_ns: int) -> Life | None:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if self._marker not in environment:
                return None
            marks = dict(part.partition(b"=")[::2] for part in environment.split(b"\0"))
            if marks.get(b"XCE_COMPONENT") != b"scheduler" or marks.get(b"XCE_MAIN_PID") != pid.encode():
                return None
            fd = os.pidfd_open(int(pid))
        except OSError:
            return None  # it has ended
        where = marks[b"XCE_HEARTBEAT_SOCKET"].split(self._marker)[1]
        return Life(host=where.split(b"/")[0].decode(), pid=int(pid), seen_ns=now_ns, fd=fd)


def _ended(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])
