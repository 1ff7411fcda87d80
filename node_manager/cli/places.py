"""The directories that an agent lives in: made where they are absent, and refused in words of the options."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from node_manager.api.listener import MAX_PATH_BYTES
from node_manager.runtime import kernel
from node_manager.runtime.settings import Settings

_PRIVATE_MODE = 0o700
_MODE = 0o755
_NOT_PERMITTED = frozenset({errno.EACCES, errno.EPERM})


class PlaceError(Exception):
    """A directory cannot be used; the text begins with "cannot" and names the option that chooses another."""


def prepare(settings: Settings, components: Iterable[str]) -> None:
    """Make state, log and runtime directory where they are absent; of the runtime directory its parents alone.

    The agent makes that one itself, with an eye on its owner. `components` are the names that get a socket there.
    Raises PlaceError.
    """
    _check_length(settings, components)
    _make(settings.state_dir, settings.state_dir, "state directory", "--state-dir", _PRIVATE_MODE)
    if settings.log_dir is not None:
        _make(settings.log_dir, settings.log_dir, "log directory", "--log-dir", _MODE)
    _make(settings.runtime_dir.parent, settings.runtime_dir, "runtime directory", "--runtime-dir", _MODE)


def _make(path: Path, meant: Path, name: str, option: str, mode: int) -> None:
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in _NOT_PERMITTED:
            root = "" if os.geteuid() == 0 else ", or run as root"
            raise PlaceError(
                f"cannot make the {name} {meant}: permission denied; choose another with {option}{root}"
            ) from error
        raise PlaceError(
            f"cannot make the {name} {meant}: {kernel.explain(error)}; choose another with {option}"
        ) from error


def _check_length(settings: Settings, components: Iterable[str]) -> None:
    """Refuse a runtime directory in which a socket would have too long a path, before anything is started."""
    sockets = [settings.status_socket, settings.heartbeat_socket]
    sockets += [settings.notify_dir / f"{name}.sock" for name in components]
    longest = max(sockets, key=lambda path: len(os.fsencode(path)))
    excess = len(os.fsencode(longest)) - MAX_PATH_BYTES
    if excess > 0:
        raise PlaceError(
            f"cannot use the runtime directory {settings.runtime_dir}: the path of a socket in it, {longest}, would be "
            f"{excess} bytes longer than the {MAX_PATH_BYTES} that the kernel takes; choose a shorter one with "
            "--runtime-dir"
        )
