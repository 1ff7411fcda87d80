"""The runtime directory: its owner, its nonce of this boot, and the lock that keeps a second agent out."""

import errno
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from node_manager.runtime import files, kernel, record

_DIRECTORY_MODE = 0o755
_PRIVATE_MODE = 0o600
_SHARED_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NONCE_BYTES = 16
_NONCE = re.compile(r"[0-9a-f]{32}")
_MAX_SMALL_FILE_BYTES = 256
_RECORD = "runtime.json"
_NONCE_FILE = "nonce"
_LOCK = "lock"


class RuntimeDirError(Exception):
    """The agent cannot use its runtime directory; the text begins with "cannot" and says what to do."""


def prepare(path: Path) -> None:
    """Make the directory where it is absent (its parent must exist), and refuse one that others could change."""
    try:
        with suppress(FileExistsError):
            path.mkdir(mode=_DIRECTORY_MODE)
            path.chmod(_DIRECTORY_MODE)  # whatever the umask says
        found = path.lstat()
    except OSError as error:
        raise RuntimeDirError(
            f"cannot make the runtime directory {path}: {kernel.explain(error)}; make it for the agent's user, "
            "or choose another with --runtime-dir"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise RuntimeDirError(f"cannot use the runtime directory {path}: it is not a directory; remove it")
    if found.st_uid != os.geteuid():
        raise RuntimeDirError(
            f"cannot use the runtime directory {path}: it belongs to uid {found.st_uid}, the agent runs as uid "
            f"{os.geteuid()}; run the agent as its owner, or choose another with --runtime-dir"
        )
    if found.st_mode & _SHARED_WRITE:
        raise RuntimeDirError(
            f"cannot use the runtime directory {path}: others may write to it "
            f"(mode {stat.S_IMODE(found.st_mode):04o}); run `chmod go-w {path}`"
        )


def nonce(path: Path, boot_id: str) -> str:
    """The random name of this host for this boot, made once and read back by every later agent of the boot.

    Where its file is lost or cannot be trusted, the one of the runtime record of this boot is taken back: with another
    one nothing that runs would be known again, and all of it started twice. Raises RuntimeDirError. A nonce of another
    boot (a runtime directory on a disk) is replaced.
    """
    name = path / _NONCE_FILE
    try:
        kept = _read_own(name, _MAX_SMALL_FILE_BYTES)
        if kept is not None:
            value, _, boot = kept.decode("ascii", "replace").strip().partition(" ")
            if _NONCE.fullmatch(value) and boot == boot_id:
                return value
        value = _recorded_nonce(path / _RECORD, boot_id) or os.urandom(_NONCE_BYTES).hex()
    except OSError as error:
        raise RuntimeDirError(f"cannot keep the nonce {name}: {kernel.explain(error)}") from error
    keep_nonce(path, boot_id, value)
    return value


def keep_nonce(path: Path, boot_id: str, value: str) -> None:
    """Write this nonce. Raises RuntimeDirError."""
    name = path / _NONCE_FILE
    try:
        _write_private(name, f"{value} {boot_id}\n")
    except IsADirectoryError as error:
        raise RuntimeDirError(
            f"cannot keep the nonce {name}: it, or {name.name}.new beside it, is a directory; remove that"
        ) from error
    except OSError as error:
        raise RuntimeDirError(f"cannot keep the nonce {name}: {kernel.explain(error)}") from error


def lost(path: Path, lock: int) -> tuple[str, ...]:
    """Return what somebody has removed, or replaced, of what a living agent keeps here. `lock` is its own lock."""
    found: list[str] = []
    try:
        there = (path / _LOCK).lstat()
        held = os.fstat(lock)
        if (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            found.append(_LOCK)
    except OSError:
        found.append(_LOCK)
    return (*found, *(name for name in (_NONCE_FILE, _RECORD) if not (path / name).exists()))


def lock(path: Path) -> int:
    """Take the directory for this agent; the descriptor holds it until it is closed or the process ends.

    Raises RuntimeDirError, which names the agent that has it. Children must not inherit the descriptor; it is
    close-on-exec.
    """
    name = path / _LOCK
    try:
        return files.lock(name)
    except files.LockHeldError as error:
        raise RuntimeDirError(
            f"cannot run in {path}: another node manager (pid {error.holder}) supervises there; stop it first, "
            "or choose another directory with --runtime-dir"
        ) from error
    except OSError as error:
        raise RuntimeDirError(f"cannot take the lock {name}: {kernel.explain(error)}") from error


def _recorded_nonce(name: Path, boot_id: str) -> str | None:
    """The nonce that the runtime record of this boot names, where only we can have written it."""
    try:
        data = _read_own(name, record.MAX_RECORD_BYTES + 1)
        kept = record.decode(data) if data is not None else None
    except (OSError, ValueError):
        return None  # `record.read` says why
    if kept is None or kept.boot_id != boot_id or not _NONCE.fullmatch(kept.nonce):
        return None
    return kept.nonce


def _read_own(name: Path, limit: int) -> bytes | None:
    """The first bytes of a file that only we can have written, or None: there is none worth reading."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            return None  # a link, or a socket: none of ours
        raise
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _SHARED_WRITE:
        os.close(fd)
        return None
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor, opened without following links
        return file.read(limit)


def _write_private(name: Path, text: str) -> None:
    temporary = name.with_name(f"{name.name}.new")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_MODE)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
    temporary.rename(name)
