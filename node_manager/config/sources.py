"""Where the configuration comes from: which files count, in which order, and how to notice that they changed.

The boot configuration is one file and its drop-ins: `/etc/xce/node-manager.yaml`, then
`/etc/xce/node-manager.d/*.yaml` in name order. A role file is looked for in each directory of `roles_dirs`; the last
one that has it wins. The standard library alone: this module lives in the agent.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_FILES = 256
"""Files in one directory that count: far above any host's drop-ins; stops a directory that something fills."""
MAX_FILE_BYTES = 1024 * 1024
"""One file. The longest role file of any cluster is a hundredth of it."""
SUFFIX = ".yaml"
"""Only this suffix counts: editors' and package managers' leftovers (.swp, ~, .rpmnew, .dpkg-old) never do."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The four places that a configuration depends on. `roles_dirs`: a later one replaces files of an earlier one."""

    config: Path
    roles_dirs: tuple[Path, ...]
    runtime_dir: Path
    state_dir: Path

    @property
    def drop_in_dir(self) -> Path:
        """`node-manager.yaml` has its drop-ins in `node-manager.d`."""
        return self.config.with_suffix(".d")


def yaml_files(directory: Path) -> tuple[Path, ...]:
    """The files of `directory` that count, in name order. A directory that does not exist has none.

    OSError when it cannot be listed; ValueError when it holds more than MAX_FILES.
    """
    found: list[str] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                    found.append(entry.name)
                if len(found) > MAX_FILES:
                    raise ValueError(f"it holds more than {MAX_FILES} files named *{SUFFIX}")
    except FileNotFoundError:
        return ()
    return tuple(directory / name for name in sorted(found))


def signature(sources: Sources) -> object:
    """A value that differs when any file that counts was changed, added or removed.

    Compared with `==` and nothing else. Costs one stat per file; reads nothing. What cannot be looked at is part of
    the value, so that its becoming readable is a change too.
    """
    seen: list[Any] = [_look(sources.config)]
    for directory in (sources.drop_in_dir, *sources.roles_dirs):
        seen.append(_look(directory))
        try:
            seen.extend(_look(file) for file in yaml_files(directory))
        except (OSError, ValueError) as error:
            seen.append(str(error))
    return tuple(seen)


def _look(path: Path) -> tuple[str, ...] | tuple[str, int, int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        return (str(path), os.strerror(error.errno or 0))
    return (str(path), found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)
