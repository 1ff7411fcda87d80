"""How a child is made where the C half of `spawn` was not built: os.fork, and Python until its exec.

What the child does runs in a process that may have had threads: system calls alone, nothing that takes a lock,
everything computed before the fork. The steps, their order and their names are those of native/spawn.c.
"""

import errno
import fcntl
import gc
import os
import resource
import signal
import socket
import struct
import time
import warnings
from dataclasses import dataclass
from typing import NoReturn

from node_manager.runtime import kernel
from node_manager.runtime.accounts import Account

REPORT = struct.Struct("=iBh")
"""errno, index in STAGES, index of the executable tried (-1: none): what a child says that cannot be its command."""
STAGES = (
    "session",
    "output",
    "limits",
    "oom_score_adj",
    "user",
    "directory",
    "deadline",
    "exec",
    "internal",
    "cgroup",
    "fuse",
)
FIRST_AFTER_STDIO = 3
_UMASK = 0o022
_ALL_SIGNALS = signal.valid_signals()
_LOST = 127
"""Exit status of a child that did not execute its command; nobody reads it."""
_ANSWER = struct.Struct("=i")
"""The fuse's: an errno, or 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a child does, as the kernel takes it.

    `environment` has entries NAME=VALUE; the one at `own_pid_index` gets the child's pid behind it (-1: none).
    """

    command: tuple[bytes, ...]
    environment: tuple[bytes, ...]
    candidates: tuple[bytes, ...]
    directory: bytes
    account: Account
    own_pid_index: int
    output_fd: int
    cgroup_fd: int | None
    fuse_fd: int | None
    nofile: int | None
    oom_score_adj: int | None
    not_after_ns: int | None


def start(orders: Orders, report_fd: int) -> tuple[int, int]:
    """Fork the child; its pid and a pidfd on it. Raises OSError."""
    # A free slot for the pidfd: once the child runs it is too late to find that the table is full.
    reserve_fd = os.dup(report_fd)
    parent_pid = os.getpid()
    # A handler of the agent must not run in the child, whose wake-up descriptor is the agent's own.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
    try:
        pid = _fork()
        if pid == 0:
            _child(orders, report_fd, parent_pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(reserve_fd)
    try:
        return pid, os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)  # our unreaped child: the pid is its own
        os.waitpid(pid, 0)
        raise


def _fork() -> int:
    """os.fork without the warning of Python 3.12 about threads: the child here keeps to system calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _child(orders: Orders, report_fd: int, parent_pid: int) -> NoReturn:
    """Become the command. Never returns: reports and exits where that fails.

    Until its last act before exec it dies with its parent: an agent's successor cannot see a child that has no
    markers yet, would start another one, and this one would execute its command all the same.
    """
    stage, number, tried = "session", 0, -1
    try:
        gc.disable()
        _die_with(parent_pid)
        os.setsid()
        stage = "cgroup"
        if orders.cgroup_fd is not None:
            _join_cgroup(orders.cgroup_fd)
        stage = "output"
        _wire_stdio(orders.output_fd)
        # Before the limit: these need a descriptor, and the parent may have more open than the child may have.
        stage = "internal"
        # And at once: not even SIGKILL may end a child that hangs further on, and it must keep nothing of the agent's.
        kernel.close_from(FIRST_AFTER_STDIO, _kept(orders, report_fd))
        stage = "oom_score_adj"
        if orders.oom_score_adj is not None:
            _set_oom_score_adj(orders.oom_score_adj)
        stage = "fuse"
        if orders.fuse_fd is not None:
            _enlist(orders.fuse_fd)
        stage = "limits"
        os.umask(_UMASK)
        if orders.nofile is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (orders.nofile, orders.nofile))
        stage = "user"
        _change_user(orders.account, parent_pid)
        stage = "directory"
        os.chdir(orders.directory)
        stage = "internal"
        _reset_signals()
        environment = _environment(orders)
        stage = "deadline"
        if orders.not_after_ns is not None and time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= orders.not_after_ns:
            raise TimeoutError(errno.ETIME, "")  # noqa: TRY301 - one way out of the child, for every stage
        stage = "exec"
        kernel.set_parent_death_signal(0)
        number, tried = _execute(orders.candidates, orders.command, environment)
    except OSError as error:
        number = error.errno or errno.EIO
    except ValueError:  # setrlimit above the hard limit without the right to raise it
        number = errno.EPERM
    except BaseException:  # noqa: BLE001 - nothing may run on as a second agent
        stage, number = "internal", errno.EIO
    try:
        os.write(report_fd, REPORT.pack(number, STAGES.index(stage), tried))
    finally:
        os._exit(_LOST)


def _kept(orders: Orders, report_fd: int) -> frozenset[int]:
    """What the child needs until its exec, which closes it."""
    return frozenset({report_fd} if orders.fuse_fd is None else {report_fd, orders.fuse_fd})


def _die_with(parent_pid: int) -> None:
    """Be killed when the parent dies, and now if it has died already."""
    kernel.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(_LOST)


def _join_cgroup(cgroup_fd: int) -> None:
    """Go there before anything else; costs ten times what being made there costs."""
    fd = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup_fd)
    try:
        os.write(fd, b"0")
    finally:
        os.close(fd)


def _wire_stdio(output_fd: int) -> None:
    """Standard input from nowhere; output and error to `output_fd`, or nowhere when that is closed."""
    null_fd = fcntl.fcntl(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), fcntl.F_DUPFD_CLOEXEC, FIRST_AFTER_STDIO)
    try:
        os.dup2(output_fd, 1)
    except OSError:
        os.dup2(null_fd, 1)
    os.dup2(1, 2)
    os.dup2(null_fd, 0)
    os.set_inheritable(1, True)  # dup2 onto itself keeps close-on-exec


def _set_oom_score_adj(value: int) -> None:
    fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(fd, b"%d" % value)
    os.close(fd)


def _change_user(account: Account, parent_pid: int) -> None:
    if account.groups is not None:
        os.setgroups(account.groups)
        os.setgid(account.gid)
        os.setuid(account.uid)
        _die_with(parent_pid)  # the change of the user took it back


def _reset_signals() -> None:
    """Default dispositions and an empty mask: exec would keep what the agent ignores or blocks."""
    for number in _ALL_SIGNALS:
        if number not in {signal.SIGKILL, signal.SIGSTOP} and signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _environment(orders: Orders) -> dict[bytes, bytes]:
    """The environment with the child's own pid in its place."""
    variables: dict[bytes, bytes] = {}
    for index, entry in enumerate(orders.environment):
        key, _, value = entry.partition(b"=")
        variables[key] = b"%d" % os.getpid() if index == orders.own_pid_index else value
    return variables


def _enlist(fuse_fd: int) -> None:
    """Have the fuse know this process before it becomes the command. Raises OSError with the fuse's answer."""
    own_fd = os.pidfd_open(os.getpid())
    rights = struct.pack("i", own_fd)
    with socket.socket(fileno=fuse_fd) as link:
        link.sendmsg([b"E"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], socket.MSG_NOSIGNAL)
        answer = link.recv(_ANSWER.size)
        link.detach()
    number = _ANSWER.unpack(answer)[0] if len(answer) == _ANSWER.size else errno.EPIPE
    if number != 0:
        raise OSError(number, "")


def _execute(
    candidates: tuple[bytes, ...], command: tuple[bytes, ...], environment: dict[bytes, bytes]
) -> tuple[int, int]:
    """Try each path as execvp(3) does; returns the errno that tells most and whose it is."""
    number, tried = errno.ENOENT, -1
    for index, candidate in enumerate(candidates):
        try:
            os.execve(candidate, command, environment)  # noqa: S606 - no shell is what is wanted
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                number, tried = error.errno or errno.EIO, index
                if number != errno.EACCES:
                    break
    return number, tried
