"""The few system calls that Python does not wrap, each with the fallback that an older kernel needs.

Nothing here decides anything. Numbers come from the kernel's uapi headers, named beside each.
"""

import ctypes
import errno
import fcntl
import os
import struct

from node_manager.core.events import ExitStatus

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""
_SYS_CLOSE_RANGE = 436
"""The same on every architecture (asm-generic/unistd.h); glibc has a wrapper only since 2.34."""
_MAX_FD = 0xFFFF_FFFF
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
"""linux/fs.h"""
_PIDFD_GET_INFO = 0xC040_FF0B
"""_IOWR(0xFF, 11, struct pidfd_info), first version, 64 bytes (linux/pidfd.h)."""
_PIDFD_INFO_EXIT = 1 << 3
"""Kernel 6.15: the exit status, once the process was reaped by whoever is its parent."""
_PIDFD_INFO = struct.Struct("=QQ11Ii")
"""mask, cgroupid, eleven ids, exit_code as wait(2) encodes it."""
_CLOCK_BOOTTIME = 7
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_NS_PER_S = 1_000_000_000
GROUP_GONE = frozenset({errno.ENODEV, errno.ENOENT})
"""What the files of a cgroup answer that was removed while they were open, or before."""
_IN_MODIFY = 2
_IN_NONBLOCK = os.O_NONBLOCK
_IN_CLOEXEC = os.O_CLOEXEC
_INOTIFY_EVENT = struct.Struct("=iIII")
"""wd, mask, cookie, length of the name behind it (inotify(7))."""
_INOTIFY_BYTES = 4096


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


def describe(number: int) -> str:
    """An errno for people: "No such file or directory (ENOENT)"."""
    return f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"


def explain(error: OSError) -> str:
    """The same for an OSError, which may come without a number."""
    return describe(error.errno) if error.errno else str(error)


def become_subreaper(*, on: bool = True) -> None:
    """Orphans among this process's descendants become its children from now on (prctl(2)). Raises OSError."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(int(on)), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def set_parent_death_signal(number: int) -> None:
    """Have the kernel send this process a signal when its parent dies; 0: none (prctl(2)). Raises OSError.

    A change of the user takes it back, and exec keeps it.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def close_from(lowest: int, kept: frozenset[int]) -> None:
    """Close every descriptor from `lowest` up but the few that are kept; without a look where a system call does it."""
    first = lowest
    for stop in (*sorted(fd for fd in kept if fd >= lowest), _MAX_FD + 1):
        if first < stop and _libc.syscall(_SYS_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(stop - 1), 0) != 0:
            close_listed(lowest, kept)
            return
        first = stop + 1


def close_listed(lowest: int, kept: frozenset[int]) -> None:
    """The same, one descriptor at a time, for a kernel or a container that refuses close_range(2)."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - runs between fork and exec
        number = int(name)
        if number >= lowest and number not in kept:
            try:
                os.close(number)
            except OSError:
                continue  # the descriptor of the listing itself, closed by now


def exchange(first: str, second: str) -> None:
    """Swap two directory entries in one step (renameat2(2), RENAME_EXCHANGE).

    Raises OSError: EINVAL or ENOSYS where the file system or the C library does not know it.
    """
    renameat2 = getattr(_libc, "renameat2", None)
    if renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), ctypes.c_uint(_RENAME_EXCHANGE)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), first, None, second)


def exit_status(wait_status: int) -> ExitStatus:
    """A status as wait(2) encodes it, as the core wants it."""
    if os.WIFSIGNALED(wait_status):
        return ExitStatus(signal=os.WTERMSIG(wait_status), core_dumped=os.WCOREDUMP(wait_status))
    return ExitStatus(code=os.WEXITSTATUS(wait_status))


def wait_result(result: os.waitid_result) -> ExitStatus:
    """The answer of waitid(2) as the core wants it."""
    if result.si_code == os.CLD_EXITED:
        return ExitStatus(code=result.si_status)
    return ExitStatus(signal=result.si_status, core_dumped=result.si_code == os.CLD_DUMPED)


def foreign_exit_status(pidfd: int) -> ExitStatus | None:
    """How a process that is not our child ended; None: not reaped yet, or the kernel (before 6.15) does not tell."""
    buffer = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, 0, *([0] * 11), 0))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    mask, _cgroup, *_ids, wait_status = _PIDFD_INFO.unpack(buffer)
    return exit_status(wait_status) if mask & _PIDFD_INFO_EXIT else None


def timerfd_create() -> int:
    """A non-blocking timer descriptor on CLOCK_BOOTTIME. Raises OSError."""
    fd: int = _libc.timerfd_create(_CLOCK_BOOTTIME, _TFD_NONBLOCK | _TFD_CLOEXEC)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd


def timerfd_settime(fd: int, at_ns: int) -> None:
    """Let the timer expire at `at_ns` of its clock, at once if that is past; 0 disarms it. Raises OSError."""
    value = _Timespec(at_ns // _NS_PER_S, at_ns % _NS_PER_S)
    spec = _Itimerspec(_Timespec(0, 0), value)
    if _libc.timerfd_settime(fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def inotify_init() -> int:
    """A non-blocking descriptor that tells about changes of files. Raises OSError."""
    return _checked(_libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))


def inotify_add_modify(fd: int, path: os.PathLike[str]) -> int:
    """Have modifications of a file told; the number that names it. Raises OSError."""
    return _checked(_libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(_IN_MODIFY)))


def inotify_remove(fd: int, number: int) -> None:
    """Have them told no more; nothing where the file is gone."""
    _libc.inotify_rm_watch(fd, number)


def inotify_read(fd: int) -> list[int]:
    """The numbers of what was told. Raises BlockingIOError where that is nothing."""
    data = os.read(fd, _INOTIFY_BYTES)
    numbers: list[int] = []
    at = 0
    while at < len(data):
        number, _mask, _cookie, length = _INOTIFY_EVENT.unpack_from(data, at)
        numbers.append(number)
        at += _INOTIFY_EVENT.size + length
    return numbers


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
