"""What a wedged process was doing: one bounded text file, written before it is killed.

Reading /proc of a process that hangs can hang as well (memory locks, a dead file system). So this runs beside the
loop, the file is written section by section, and a heading stands in it before its content is read: what a file ends
with is what did not answer. Neither environment nor command line is read: they may hold secrets.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from node_manager.runtime import kernel
from node_manager.runtime.samples import Looks

DIRECTORY = "evidence"
"""Below the state directory: it survives the reboot that an operator may try first."""
MAX_FILES = 32
MAX_FILES_EACH = 4
"""Files kept in all, and of one component; the oldest goes first. One component's loop leaves room for the others."""
MAX_FILE_BYTES = 256 * 1024
MAX_SECTION_BYTES = 32 * 1024
MAX_THREADS = 64
MAX_DESCRIPTORS = 256
LOG_TAIL_BYTES = 8 * 1024
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
_NAME = re.compile(r"(?P<component>.+)-[0-9]+-[0-9]{8}T[0-9]{6}Z\.txt")
_PER_THREAD = ("comm", "wchan", "syscall", "stack")
_CGROUP_FILES = (
    "cgroup.events", "cpu.stat", "memory.current", "memory.max", "memory.events", "pids.current", "pids.max",
)  # fmt: skip
_PRESSURES = ("cpu", "memory", "io")
_STEERING = {code: "?" for code in (*range(32), 127) if chr(code) not in "\n\t"}
"""What could steer the terminal of whoever reads the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A process, and what is known of it already. `said` are lines; `log` is the file that its output goes to."""

    component: str
    generation: int
    pid: int
    start_ticks: int
    said: tuple[str, ...]
    log: Path | None


def capture(state_dir: Path, case: Case, looks: Looks, wall_s: float, root: Path = Path("/proc")) -> Path:
    """Write the file and return its path. `wall_s` names and dates it. Raises OSError; blocks."""
    at = datetime.fromtimestamp(wall_s, UTC)
    name = f"{case.component}-{case.generation}-{at:%Y%m%dT%H%M%SZ}.txt"
    directory_fd = _open_directory(state_dir / DIRECTORY)
    try:
        _make_room(directory_fd, case.component)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory_fd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, _FILE_MODE, dir_fd=directory_fd)
        try:
            _write(fd, case, looks, root, at)
        except OSError:
            os.unlink(name, dir_fd=directory_fd)  # a full disk: half a file helps nobody and takes room
            raise
        finally:
            os.close(fd)
    finally:
        os.close(directory_fd)
    return state_dir / DIRECTORY / name


def _open_directory(path: Path) -> int:
    with suppress(FileExistsError):
        path.mkdir(mode=_DIRECTORY_MODE)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _make_room(directory_fd: int, component: str) -> None:
    """Remove the oldest files of ours beyond the bounds, so that one more is within them."""
    mine: list[tuple[int, str]] = []
    every: list[tuple[int, str]] = []
    for name in os.listdir(directory_fd):
        match = _NAME.fullmatch(name)
        if match is None:
            continue  # not ours
        entry = (os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mtime_ns, name)
        every.append(entry)
        if match["component"] == component:
            mine.append(entry)
    gone = set(_beyond(mine, MAX_FILES_EACH - 1))
    gone |= set(_beyond([entry for entry in every if entry[1] not in gone], MAX_FILES - 1))
    for name in gone:
        os.unlink(name, dir_fd=directory_fd)


def _beyond(entries: list[tuple[int, str]], kept: int) -> list[str]:
    return [name for _, name in sorted(entries)[: max(0, len(entries) - kept)]]


def _write(fd: int, case: Case, looks: Looks, root: Path, at: datetime) -> None:
    room = MAX_FILE_BYTES

    def put(text: str) -> None:
        nonlocal room
        data = text.translate(_STEERING).encode("utf-8", "replace")[:room]
        room -= len(data)
        while data:
            data = data[os.write(fd, data) :]

    put(f"component {case.component}, generation {case.generation}, pid {case.pid}, at {at:%Y-%m-%dT%H:%M:%SZ}\n")
    put("".join(f"{line}\n" for line in case.said))
    for title, content in _sections(case, looks, root):
        put(f"\n== {title}\n")
        try:
            text = content()
        except OSError as error:
            text = f"(cannot read it: {kernel.explain(error)})"
        put(text[:MAX_SECTION_BYTES].rstrip("\n") + "\n")


def _sections(case: Case, looks: Looks, root: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """What the file says, the most telling first. Each is read when its heading is written."""
    try:
        # Through its directory only the process itself is read, never one that has its pid by now.
        process_fd = os.open(root / str(case.pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        yield "process", lambda error=error: f"(cannot look at it: {kernel.explain(error)})"  # type: ignore[misc]
        return
    try:
        stat = ""
        with suppress(ProcessLookupError):
            stat = _read(process_fd, "stat")
        if stat[stat.rfind(")") + 2 :].split()[19:20] != [str(case.start_ticks)]:
            yield "process", lambda: "(it is gone)"
            return
        for name in ("status", "wchan", "syscall", "stack", "schedstat", "cgroup", "limits"):
            yield name, lambda name=name: _read(process_fd, name)  # type: ignore[misc]
        yield "threads", lambda: _threads(process_fd)
        group = looks.cgroup(case.pid)
        for name in () if group is None else _CGROUP_FILES:
            yield name, lambda name=name: _first_bytes(f"{group}/{name}")  # type: ignore[misc]
        for name in _PRESSURES:
            yield f"pressure of {name}", lambda name=name: looks.pressure(group, name)  # type: ignore[misc]
        yield "descriptors", lambda: _descriptors(process_fd)
        log = case.log
        if log is not None:
            yield f"the end of {log}", lambda: _tail(log)
    finally:
        os.close(process_fd)


def _read(directory_fd: int, name: str) -> str:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        return _all(fd)
    finally:
        os.close(fd)


def _first_bytes(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _all(fd)
    finally:
        os.close(fd)


def _all(fd: int) -> str:
    parts, left = [], MAX_SECTION_BYTES
    while left > 0 and (part := os.read(fd, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts).decode("utf-8", "replace")


def _threads(process_fd: int) -> str:
    """Name, state, wait channel, system call and kernel stack of each thread, as far as permitted."""
    task_fd = os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process_fd)
    try:
        names = os.listdir(task_fd)  # noqa: PTH208 - a descriptor
        lines = []
        for name in names[:MAX_THREADS]:
            try:
                stat = _read(task_fd, f"{name}/stat")
            except OSError:
                continue  # it ended
            told = [f"thread {name}, state {stat[stat.rfind(')') + 2 :][:1]}"]
            for file in _PER_THREAD:
                with suppress(OSError):  # not permitted, or not built into this kernel
                    text = _read(task_fd, f"{name}/{file}").strip()
                    told.append(f"{file} {text}" if "\n" not in text else f"{file}:\n{text}")
            lines.append("\n  ".join(told))
        return "\n".join([*lines, *_more(len(names), MAX_THREADS)])
    finally:
        os.close(task_fd)


def _descriptors(process_fd: int) -> str:
    fds = os.open("fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process_fd)
    try:
        names = sorted(os.listdir(fds), key=int)  # noqa: PTH208 - a descriptor
        lines = []
        for name in names[:MAX_DESCRIPTORS]:
            with suppress(FileNotFoundError):
                lines.append(f"{name} -> {os.readlink(name, dir_fd=fds)}")
        return "\n".join([*lines, *_more(len(names), MAX_DESCRIPTORS)])
    finally:
        os.close(fds)


def _more(count: int, bound: int) -> list[str]:
    return [f"and {count - bound} more"] if count > bound else []


def _tail(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        return os.pread(fd, LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES)).decode("utf-8", "replace")
    finally:
        os.close(fd)
