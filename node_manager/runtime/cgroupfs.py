"""The cgroup v2 file system: which part of it is ours, and the few files that are read and written (cgroups(7)).

A part is ours where whoever manages the tree has delegated it: systemd marks such a group (`Delegate=yes`) with an
extended attribute. To be able to write is not enough, because root can write everywhere.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from node_manager.runtime import kernel

AGENT = "agent"
"""The group below the delegated one where the agent is: a group with controllers must not have processes itself."""
_DELEGATED = ("user.delegate", "trusted.delegate")
"""systemd's marks (CGROUP_DELEGATION); the second can be seen by root alone."""
_MAX_BYTES = 64 * 1024
_MAX_DEPTH = 8
"""How far groups are followed that a component makes within its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an agent can hold its components in cgroups. `path` None: nowhere, and `reason` says why."""

    path: Path | None
    reason: str = ""


def find(proc: Path = Path("/proc/self")) -> Place:
    """The delegated group that this process is in, or in whose `agent` group it is."""
    try:
        own = _own_group(proc)
        mount = _mount(proc)
    except OSError as error:
        return Place(path=None, reason=f"cannot look for it: {kernel.explain(error)}")
    if mount is None or own is None:
        return Place(path=None, reason="there is no cgroup v2 tree")
    root, point = mount
    if own == "/" or not (own == root or own.startswith(root.rstrip("/") + "/")):
        return Place(path=None, reason="the agent is in the root group")
    group = Path(point, own[len(root) :].lstrip("/"))
    if group.name == AGENT and not _delegated(group):
        group = group.parent
    if not _delegated(group):
        return Place(path=None, reason=f"the agent's group {own} is not delegated to it (systemd: Delegate=yes)")
    needed = (group, group / "cgroup.procs", group / "cgroup.subtree_control")
    unwritable = next((path for path in needed if not os.access(path, os.W_OK)), None)
    if unwritable is not None:
        return Place(path=None, reason=f"the agent may not write to {unwritable}")
    return Place(path=group)


def name_of(group: Path) -> str | None:
    """What /proc/PID/cgroup says of a process in this group; None: it is in no tree that can be seen here."""
    mount = _mount(Path("/proc/self"))
    if mount is None or not group.is_relative_to(mount[1]):
        return None
    return str(Path(mount[0], group.relative_to(mount[1])))


def group_of(pid: int) -> str | None:
    """What /proc/PID/cgroup says; None: the process is gone."""
    try:
        return _own_group(Path("/proc", str(pid)))
    except OSError:
        return None


def directory_of(pid: int) -> Path | None:
    """Where the group of a process is; None: that cannot be seen."""
    try:
        name, mount = group_of(pid), _mount(Path("/proc/self"))
    except OSError:
        return None
    if name is None or mount is None or not Path(name).is_relative_to(mount[0]):
        return None
    return Path(mount[1], Path(name).relative_to(mount[0]))


THAW = "write 0 to cgroup.freeze there or above"
"""What to do about a group that is frozen."""


def frozen(group: Path) -> bool:
    """Whether what is in this group is frozen, by its own switch or by one above; False where it is not known.

    The kernel does not say so of an empty group with a switch of its own, nor before the last process stands still.
    """
    try:
        return counters(group, "cgroup.events").get("frozen", 0) != 0 or read(group, "cgroup.freeze").strip() == "1"
    except OSError:
        return False


def read(group: Path, name: str) -> str:
    """A file of a group, "" where the group or the file is not there. Raises OSError for any other trouble."""
    try:
        fd = os.open(group / name, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        parts = []
        while part := os.read(fd, _MAX_BYTES):
            parts.append(part)
        return b"".join(parts).decode("ascii", "replace")
    except OSError as error:
        if error.errno in kernel.GROUP_GONE:
            return ""
        raise
    finally:
        os.close(fd)


def write(group: Path, name: str, text: str) -> None:
    """Raises OSError."""
    fd = os.open(group / name, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def counters(group: Path, name: str) -> dict[str, int]:
    """A file of lines `key number`."""
    words = (line.split() for line in read(group, name).splitlines())
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdecimal()}  # noqa: PLR2004 - a pair


def populated(group: Path) -> bool:
    """Whether anything lives in a group or below it. Raises OSError when it cannot look."""
    return counters(group, "cgroup.events").get("populated", 0) != 0


def processes(group: Path) -> Iterator[int]:
    """Every process in a group or below it. Raises OSError when it cannot look."""
    for path in _with_descendants(group, _MAX_DEPTH):
        yield from map(int, read(path, "cgroup.procs").split())


def remove(group: Path) -> bool:
    """Remove a group and what is below it; False: something lives there, or it is not ours to remove."""
    try:
        for path in reversed(list(_with_descendants(group, _MAX_DEPTH))):
            path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _with_descendants(group: Path, depth: int) -> Iterator[Path]:
    yield group
    if depth == 0:
        return
    with suppress(FileNotFoundError), os.scandir(group) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _with_descendants(Path(entry.path), depth - 1)


def _own_group(proc: Path) -> str | None:
    for line in (proc / "cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        if line.startswith("0::"):
            return line[3:].removesuffix(" (deleted)")
    return None


def _mount(proc: Path) -> tuple[str, str] | None:
    """What of the tree is mounted, and where (proc_pid_mountinfo(5))."""
    for line in (proc / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.startswith("cgroup2 "):
            root, point = fields.split()[3:5]
            return _unescaped(root), _unescaped(point)
    return None


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _delegated(group: Path) -> bool:
    for name in _DELEGATED:
        with suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


class Watches:
    """Tells when something has changed in a group's `cgroup.events`: emptied, filled, frozen, thawed.

    `add_reader` as of an asyncio loop. Where there is no descriptor to watch with, nothing is told: whoever needs to
    know looks from time to time.
    """

    def __init__(
        self, add_reader: Callable[[int, Callable[[], None]], None], remove_reader: Callable[[int], object]
    ) -> None:
        self._remove_reader = remove_reader
        self._called: dict[int, Callable[[], None]] = {}
        try:
            self._fd = kernel.inotify_init()
        except OSError:
            self._fd = -1
            return
        add_reader(self._fd, self._readable)

    def add(self, group: Path, changed: Callable[[], None]) -> int:
        """Call this after every change; the number is for `drop`."""
        if self._fd < 0:
            return -1
        try:
            number = kernel.inotify_add_modify(self._fd, group / "cgroup.events")
        except OSError:
            return -1
        self._called[number] = changed
        return number

    def drop(self, number: int) -> None:
        """Tell it no more."""
        if self._called.pop(number, None) is not None:
            kernel.inotify_remove(self._fd, number)

    def close(self) -> None:
        """Tell nothing more."""
        if self._fd >= 0:
            self._remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        self._called.clear()

    def _readable(self) -> None:
        try:
            numbers = kernel.inotify_read(self._fd)
        except BlockingIOError:
            return
        for number in numbers:
            changed = self._called.get(number)
            if changed is not None:
                changed()
