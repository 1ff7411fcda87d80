"""The environment that a component gets, from scratch, and the markers by which it is known again.

Nothing of the agent's own environment goes on but PATH, LANG and TZ. The markers come first, so that a bounded read
of /proc/PID/environ always has them.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from node_manager.core.spec import ComponentSpec
from node_manager.runtime import kernel
from node_manager.runtime.accounts import Account
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.spawn import DEFAULT_PATH, LaunchError

HEARTBEAT_SOCKET = "XCE_HEARTBEAT_SOCKET"
NOTIFY_SOCKET = "NOTIFY_SOCKET"
COMPONENT = "XCE_COMPONENT"
GENERATION = "XCE_GENERATION"
MAIN_PID = "XCE_MAIN_PID"
NONCE = "XCE_NODE_NONCE"
TERM = "XCE_TERM"
LEASE_VALID_UNTIL = "XCE_LEASE_VALID_UNTIL_NS"
SUPERVISOR = "XCE_SUPERVISOR"
"""Where there are no sockets: the runtime directory of the supervisor, or nothing where it has none."""
HELPER = "XCE_HELPER"
"""Set for pre_start, reload, drain and probe commands alone: which run of a helper a process belongs to."""

HELPER_PID = "XCE_HELPER_PID"
"""Set for these too: the command's own pid, which is also the number of its session."""
MAY_LEAVE = "leaves."
"""What the mark of a helper begins with that may rightly leave something running: a reload or drain command."""

_MAX_GENERATION_DIGITS = 9
"""A restart a second for thirty years; a process may have written anything there."""
_PASSED_ON = ("PATH", "LANG", "TZ")
_MAX_FILE_BYTES = 64 * 1024
"""Bound on an environment_file; the kernel takes 128 KiB for one variable at most, and such files have a few lines."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FRESH_NS = 5_000_000_000
"""How long what was read in a thread is used: each start has it read anew, and follows at once."""
_MAX_KEPT = 256
"""As many components as a host may have."""
_QUOTES = "\"'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """What marks the processes of one agent's components. `nonce` is this host's for this boot."""

    nonce: str
    runtime_dir: Path | None
    sockets: bool = True
    """False: a supervisor within another program, which has none. None has to have a directory either."""

    @property
    def heartbeat_socket(self) -> str:
        """Where components beat."""
        return str(self._directory / "heartbeat.sock")

    @property
    def place(self) -> tuple[str, str]:
        """The variable, and its value, that tells this agent's processes from those of another runtime directory."""
        if self.sockets:
            return HEARTBEAT_SOCKET, self.heartbeat_socket
        return SUPERVISOR, "" if self.runtime_dir is None else str(self.runtime_dir)

    def notify_socket(self, component: str) -> str:
        """Where one component sends its sd_notify(3) datagrams."""
        return str(self._directory / "notify" / f"{component}.sock")

    def of(self, component: str, generation: int) -> Iterator[tuple[str, str]]:
        """The variables that name the node, the component and the run."""
        yield NONCE, self.nonce
        yield COMPONENT, component
        yield GENERATION, str(generation)
        yield self.place

    @property
    def _directory(self) -> Path:
        assert self.runtime_dir is not None, "sockets are in a directory"
        return self.runtime_dir


def generation(marks: Mapping[str, str]) -> int:
    """Return the generation that markers name; 0 where that is no number that an agent would have written."""
    text = marks.get(GENERATION, "")
    return int(text) if text.isdecimal() and len(text) <= _MAX_GENERATION_DIGITS else 0


class EnvironmentFiles:
    """Environment files that were read in a thread, for the start that comes of it."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, dict[str, str] | LaunchError]] = {}

    def look(self, path: str) -> None:
        """Read a file. In a thread, because it may hang."""
        found: dict[str, str] | LaunchError
        try:
            found = read_environment_file(path)
        except LaunchError as error:
            found = error
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        self._kept[path] = boottime_ns(), found

    def read(self, path: str) -> Mapping[str, str]:
        """Return what it held a moment ago; where nobody has looked, what it holds now. Raises LaunchError."""
        read_ns, found = self._kept.get(path, (0, None))
        if found is None or boottime_ns() - read_ns > _FRESH_NS:
            return read_environment_file(path)
        if isinstance(found, LaunchError):
            raise LaunchError(found.errno, found.stage, found.detail)
        return found


def component_environment(
    spec: ComponentSpec, account: Account, read: Callable[[str], Mapping[str, str]]
) -> dict[str, str]:
    """What the component's own command and its helpers have in common, without markers. Raises LaunchError."""
    variables = {key: os.environ[key] for key in _PASSED_ON if os.environ.get(key)}
    variables.setdefault("PATH", DEFAULT_PATH)
    variables |= {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.login_shell}
    variables |= dict(spec.environment)
    if spec.environment_file is not None:
        variables |= read(spec.environment_file)
    return variables


def read_environment_file(path: str) -> dict[str, str]:
    """The variables of a file in the simple form of systemd.exec(5), EnvironmentFile=.

    Lines KEY=VALUE; empty lines and lines that begin with `#` or `;` are skipped; white space around the value and
    one pair of quotes around it go. A leading `-` of the path means that the file may be absent. Raises LaunchError.
    """
    optional = path.startswith("-")
    name = path.removeprefix("-")
    try:
        text = _read_bounded(name)
    except FileNotFoundError as error:
        if optional:
            return {}
        raise _file_error(error, name) from error
    except OSError as error:
        raise _file_error(error, name) from error
    variables: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        key, equals, value = stripped.partition("=")
        key = key.rstrip()
        if not equals or not _NAME.fullmatch(key):
            raise LaunchError(
                0, "environment_file", f"cannot read {name}, line {number}: expected NAME=VALUE, got {stripped[:40]!r}"
            )
        variables[key] = _unquoted(value.strip())
    return variables


def _read_bounded(name: str) -> str:
    """The text of a regular file; a FIFO or a device would stall the agent."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        data = os.read(fd, _MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > _MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    if b"\0" in data:
        raise OSError(errno.EILSEQ, os.strerror(errno.EILSEQ))
    return data.decode("utf-8", "surrogateescape")


def _file_error(error: OSError, name: str) -> LaunchError:
    if error.errno is None:
        return LaunchError(0, "environment_file", f"cannot read the environment_file {name}: {kernel.explain(error)}")
    return LaunchError(error.errno, "environment_file", f"cannot read the environment_file {name}")


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in _QUOTES:
        return value[1:-1]
    return value
