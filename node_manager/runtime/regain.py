"""What components had set in cgroups of their own, set again after systemd has started this agent.

Between two agents `units/release-controllers` disables every controller below the unit's group, those too that a worker
had enabled for its jobs' groups, and each limit there is gone with its controller. It writes them down before; here
they are set again. What a group had been charged with before stays with its parent: it counts anew from here.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from node_manager.runtime import cgroupfs, kernel

RECORD = "controllers"
"""In the runtime directory: lines of group, file and value, separated by tabs; a group before what is below it."""
_MAX_BYTES = 16 * 1024 * 1024
"""Some 100,000 jobs with two limits each."""
_FILE = re.compile(r"cgroup\.subtree_control|(memory|cpu|cpuset|io|pids|hugetlb|rdma|misc)\.[\w.]+")


def set_again(root: Path, record: Path) -> Iterator[str]:
    """Set everything that is written there, and forget it. Yields a sentence for each group that refuses.

    Groups that are gone or empty meanwhile are passed over.
    """
    try:
        with record.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MAX_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        yield f"cannot set limits of jobs again, {record} cannot be read: {kernel.explain(error)}"
        return
    found = [entry for entry in map(_entry, text.splitlines()) if entry is not None]
    below = [entry for entry in found if entry[0] != "." and _lives(root / entry[0])]
    # The unit's own group needs its controllers for what lives below it; else its limits are the agent's affair.
    for group, name, value in [*(entry for entry in found if entry[0] == "." and below), *below]:
        path = root / group
        try:
            cgroupfs.write(path, name, value)
        except OSError as error:
            if path.is_dir():
                yield f"cannot set {name} of {path} to {value} again: {kernel.explain(error)}"
    with suppress(OSError):  # to do it once more harms nobody
        record.unlink(missing_ok=True)


def _entry(line: str) -> tuple[str, str, str] | None:
    """Group, file and value; None: nothing that was written by the script."""
    group, name, value = [*line.split("\t"), "", "", ""][:3]
    strange = ".." in group.split("/") or "\0" in line or not _FILE.fullmatch(name)
    return None if strange else (group, name, value)


def _lives(group: Path) -> bool:
    try:
        return cgroupfs.populated(group)
    except OSError:
        return True
