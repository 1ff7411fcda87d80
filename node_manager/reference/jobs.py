"""A worker's jobs: child processes in sessions of their own that live on when the worker does not.

`worker-jobs.json` names each by pid, start time and boot, and keeps what has ended until the controller knows. An
entry is written before its process is made, so that a worker killed in between finds the process again by a marker
in its environment, and no job runs twice.
"""

import json
import os
import selectors
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node_manager.reference.clock import read_boot_id
from node_manager.reference.guarded import read_bounded, write_whole
from node_manager.reference.journal import Journal
from node_manager.reference.loop import Loop

SLEEP = "/bin/sleep"
MARKER = "REFERENCE_JOB"
"""Not XCE_*: a job must not be taken for a component."""
KEPT_VARIABLES = ("PATH", "LANG", "TZ")
MAX_UNREPORTED = 1024
"""Ended jobs kept for a controller that is away; the oldest are forgotten, and it calls them lost."""
START_TIME_FIELD = 22 - 3
"""`starttime` in /proc/PID/stat (proc(5)), counted from the state, which follows the name in parentheses."""


@dataclass(slots=True, kw_only=True)
class _Living:
    pid: int
    start_ticks: int
    pidfd: int
    child: "subprocess.Popen[bytes] | None"


class Jobs:
    """The jobs of one worker. `on_ended(job, outcome)` is called from the loop."""

    def __init__(self, loop: Loop, state_dir: Path, journal: Journal, *, on_ended: Callable[[str, str], None]) -> None:
        self._loop = loop
        self._path = state_dir / "worker-jobs.json"
        self._slot = f"{zlib.crc32(str(self._path.resolve()).encode()):08x}"
        self._journal = journal
        self._on_ended = on_ended
        self._boot_id = read_boot_id()
        self._living: dict[str, _Living] = {}
        self._starting: str | None = None
        self.ended: dict[str, str] = {}
        """What has ended and the controller has not acknowledged, with its outcome."""

    @property
    def living(self) -> tuple[str, ...]:
        """Ids of the jobs that run."""
        return tuple(self._living)

    def take_over(self) -> None:
        """Find the jobs that an earlier worker left. Raises OSError where their file cannot be read."""
        raw = read_bounded(self._path)
        if raw is None:
            return
        try:
            boot_id, entries, self.ended = _decode(raw)
        except ValueError as error:
            self._journal.say(f"cannot read {self._path}: {error}; looking for jobs by their marker")
            boot_id, entries = self._boot_id, {}
            marked = self._marked()
            entries.update(marked)
        else:
            marked = self._marked() if any(pid is None for pid, _ticks in entries.values()) else {}
        for job, (pid, ticks) in entries.items():
            if pid is None:
                pid, ticks = marked.get(job, (None, 0))  # noqa: PLW2901 -- the entry completed
            if boot_id != self._boot_id or pid is None or not self._watch(job, pid, ticks):
                self._end(job, "ended while no worker ran")
        if self._living:
            self._journal.say(f"took over {len(self._living)} jobs that an earlier worker left")
        self._save_or_say()

    def start(self, job: str, seconds: float) -> str:
        """Start a job; returns why that cannot be, or nothing. A job that runs or has run is not started again."""
        if job in self._living or job in self.ended:
            return ""
        self._starting = job
        try:
            self._save()
            child = subprocess.Popen(  # noqa: S603 -- a fixed program, and a number as its argument
                [SLEEP, f"{seconds:.3f}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={
                    MARKER: f"{self._slot}/{job}",
                    **{key: os.environ[key] for key in KEPT_VARIABLES if key in os.environ},
                },
            )
        except OSError as error:
            return f"cannot start {job}: {error}"
        finally:
            self._starting = None
        ticks = _start_ticks(child.pid) or 0  # our own child: it exists until we reap it
        if not self._watch(job, child.pid, ticks, child):  # only where our parent made us ignore SIGCHLD
            child.wait()
            self._end(job, "ended")
            self._on_ended(job, "ended")
        self._save_or_say()
        return ""

    def acknowledged(self, job: str) -> None:
        """The controller knows that this job has ended."""
        if self.ended.pop(job, None) is not None:
            self._save_or_say()

    def close(self) -> None:
        """Let go of the jobs; they run on."""
        for entry in self._living.values():
            self._loop.unwatch(entry.pidfd)
            os.close(entry.pidfd)
            if entry.child is not None:
                entry.child.returncode = 0  # ours no longer: whoever adopts it reaps it
        self._living.clear()

    def _watch(self, job: str, pid: int, ticks: int, child: "subprocess.Popen[bytes] | None" = None) -> bool:
        """Watch a process; False where it is gone or the pid is another's by now."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        if _start_ticks(pid) != ticks:  # asked after the descriptor holds the process
            os.close(pidfd)
            return False
        self._living[job] = _Living(pid=pid, start_ticks=ticks, pidfd=pidfd, child=child)
        self._loop.watch(pidfd, selectors.EVENT_READ, lambda _ready: self._exited(job))
        return True

    def _exited(self, job: str) -> None:
        entry = self._living.pop(job)
        self._loop.unwatch(entry.pidfd)
        os.close(entry.pidfd)
        status = entry.child.wait() if entry.child is not None else None  # it is a zombie: this does not wait
        outcome = "ended" if status is None else f"exit {status}" if status >= 0 else f"signal {-status}"
        self._end(job, outcome)
        self._save_or_say()
        self._on_ended(job, outcome)

    def _end(self, job: str, outcome: str) -> None:
        self.ended[job] = outcome
        while len(self.ended) > MAX_UNREPORTED:
            del self.ended[next(iter(self.ended))]

    def _save(self) -> None:
        jobs: list[dict[str, Any]] = [
            {"job": job, "pid": entry.pid, "start_ticks": entry.start_ticks} for job, entry in self._living.items()
        ]
        if self._starting is not None:
            jobs.append({"job": self._starting, "pid": None, "start_ticks": 0})
        value = {"boot_id": self._boot_id, "jobs": jobs, "ended": self.ended}
        write_whole(self._path, json.dumps(value, indent=1).encode() + b"\n")

    def _save_or_say(self) -> None:
        try:
            self._save()
        except OSError as error:
            self._journal.complain(f"cannot write {self._path}: {error}; a restarted worker may not know all jobs")

    def _marked(self) -> dict[str, tuple[int | None, int]]:
        """Processes that carry this worker's marker: job, pid and start time."""
        found: dict[str, tuple[int | None, int]] = {}
        prefix = f"{MARKER}={self._slot}/".encode()
        for directory in Path("/proc").iterdir():
            if not directory.name.isdigit():
                continue
            try:
                variables = (directory / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            ticks = _start_ticks(int(directory.name))
            for variable in variables:
                if variable.startswith(prefix) and ticks is not None:
                    found[variable.removeprefix(prefix).decode("ascii", "replace")] = (int(directory.name), ticks)
        return found


def _start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[START_TIME_FIELD])


def _decode(raw: bytes) -> tuple[str, dict[str, tuple[int | None, int]], dict[str, str]]:
    """Boot id, entries (job: pid or None, start time) and ended jobs. Raises ValueError."""
    try:
        value: Any = json.loads(raw)
        entries = {
            str(item["job"]): (None if item["pid"] is None else int(item["pid"]), int(item["start_ticks"]))
            for item in value["jobs"]
        }
        ended = {str(job): str(outcome) for job, outcome in value["ended"].items()}
        return str(value["boot_id"]), entries, ended
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not a list of jobs ({type(error).__name__})") from None
