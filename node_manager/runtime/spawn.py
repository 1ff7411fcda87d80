"""How a child is made: the one seam between the agent and fork(2).

`begin` forks and returns at once; `Launch.settle` tells, without blocking, whether the command was executed or why
not; `launch` is both with a bound. The child reports its errno and its stage over a pipe that exec closes: end of
file without a report means executed. A child that dies before that without a word (a signal) counts as launched: its
exit says the rest.

What the child does runs between fork and exec in a process that may have threads: system calls alone, nothing that
takes a lock, everything computed before the fork. docs/decisions/0003-spawning.md has the costs.
"""

import errno
import fcntl
import gc
import os
import resource
import select
import signal
import struct
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from node_manager.runtime import kernel
from node_manager.runtime.accounts import Account

LAUNCH_TIMEOUT_S = 5.0
"""How long fork to exec may take before the child is killed: a working directory on a dead server hangs there."""
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where commands are looked for when the plan's environment has no PATH (systemd.exec(5))."""

_REPORT = struct.Struct("=iBh")
"""errno, index in _STAGES, index of the executable tried (-1: none)."""
_STAGES = ("session", "output", "limits", "oom_score_adj", "user", "directory", "deadline", "exec", "internal")
_FIRST_AFTER_STDIO = 3
_UMASK = 0o022
_ALL_SIGNALS = signal.valid_signals()
_LOST = 127
"""Exit status of a child that did not execute its command; nobody reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Everything about a child, computed before the fork.

    `environment` is complete: nothing is inherited. `output_fd` receives standard output and error (None: the
    agent's standard error); the caller closes its own copy. `own_pid_key` names the variable that gets the child's
    own pid.
    """

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    account: Account
    directory: str = "/"
    output_fd: int | None = None
    nofile: int | None = None
    oom_score_adj: int | None = None
    own_pid_key: str | None = None
    not_after_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A child that has executed its command. The pidfd belongs to the caller."""

    pid: int
    pidfd: int


class LaunchError(Exception):
    """No command was executed and no process is left of the attempt. The text begins with "cannot"."""

    def __init__(self, number: int, stage: str, detail: str) -> None:
        super().__init__(f"{detail}: {kernel.describe(number)}" if number else detail)
        self.errno = number
        self.stage = stage
        self.detail = detail


class Launch:
    """A child on its way to its command.

    `report_fd` becomes readable when `settle` has an answer. `pid` and `pidfd` are the child's from the start.
    """

    def __init__(self, plan: LaunchPlan, candidates: tuple[str, ...], pid: int, pidfd: int, report_fd: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.report_fd = report_fd
        self._plan = plan
        self._candidates = candidates

    def settle(self) -> bool:
        """True: the command runs; False: not known yet. Raises LaunchError once everything is cleaned up."""
        if self.report_fd < 0:
            return True
        try:
            report = os.read(self.report_fd, _REPORT.size)
        except BlockingIOError:
            return False
        os.close(self.report_fd)
        self.report_fd = -1
        if not report:
            return True
        number, stage, tried = _REPORT.unpack(report)
        os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)  # it exits as its very next act
        os.close(self.pidfd)
        raise LaunchError(number, _STAGES[stage], _explain(self._plan, self._candidates, _STAGES[stage], number, tried))

    def kill(self) -> None:
        """SIGKILL a child that takes too long. It never reaches its command: the signal comes before user code."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> bool:
        """Clean up after `kill`: True when the child is gone, False while it hangs in the kernel."""
        if os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG) is None:
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Close both descriptors."""
        if self.report_fd >= 0:
            os.close(self.report_fd)
            self.report_fd = -1
        os.close(self.pidfd)

    def timeout_error(self) -> LaunchError:
        """What to say about a child that did not reach its command in time."""
        command, directory = self._plan.command[0], self._plan.directory
        return LaunchError(
            errno.ETIMEDOUT,
            "timeout",
            f"cannot execute {command}: not begun within {LAUNCH_TIMEOUT_S:g} s, "
            f"a file system hangs (working directory {directory})",
        )


def begin(plan: LaunchPlan) -> Launch:
    """Fork the child of this plan. Raises LaunchError when there cannot be one."""
    command, environment, candidates = _encoded(plan)
    directory = os.fsencode(plan.directory)
    output_fd = 2 if plan.output_fd is None else plan.output_fd
    descriptors: list[int] = []
    try:
        descriptors.extend(os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
        report_fd, child_fd = descriptors[0], _above_stdio(descriptors[1], descriptors)
        # A free slot for the pidfd: once the child runs it is too late to find that the table is full.
        reserve_fd = os.dup(report_fd)
    except OSError as error:
        _close_all(descriptors)
        raise LaunchError(error.errno or errno.EIO, "fork", f"cannot start {plan.command[0]}") from error
    parent_pid = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
    try:
        pid = _fork()
        if pid == 0:
            _child(plan, command, environment, candidates, directory, output_fd, child_fd, parent_pid)
    except OSError as error:
        _close_all([*descriptors, reserve_fd])
        hint = "the host or the user has too many processes" if error.errno == errno.EAGAIN else "no memory"
        raise LaunchError(error.errno or errno.EIO, "fork", f"cannot start {plan.command[0]}, {hint}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _close_all([fd for fd in descriptors if fd != report_fd] + [reserve_fd])
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        os.kill(pid, signal.SIGKILL)  # our unreaped child: the pid is its own
        os.waitpid(pid, 0)
        os.close(report_fd)
        raise LaunchError(error.errno or errno.EIO, "pidfd", f"cannot watch {plan.command[0]}") from error
    return Launch(plan, tuple(os.fsdecode(candidate) for candidate in candidates), pid, pidfd, report_fd)


def launch(plan: LaunchPlan) -> Launched:
    """Start the child and wait until it executes its command, at most LAUNCH_TIMEOUT_S. Raises LaunchError."""
    attempt = begin(plan)
    poller = select.poll()
    poller.register(attempt.report_fd, select.POLLIN)
    poller.poll(LAUNCH_TIMEOUT_S * 1000)
    if attempt.settle():
        return Launched(pid=attempt.pid, pidfd=attempt.pidfd)
    error = attempt.timeout_error()
    attempt.kill()
    poller.poll(LAUNCH_TIMEOUT_S * 1000)  # its death closes the pipe
    if not attempt.reap():
        attempt.forget()  # it hangs in the kernel with SIGKILL pending; whoever reaps orphans gets it
    raise error


def _fork() -> int:
    """os.fork without the warning of Python 3.12 about threads: the child here keeps to system calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _encoded(plan: LaunchPlan) -> tuple[list[bytes], dict[bytes, bytes], list[bytes]]:
    """Command, environment and the paths to try, as bytes. Raises LaunchError for what exec could not take."""
    name = plan.command[0] if plan.command else ""
    if not name:
        raise LaunchError(errno.EINVAL, "plan", "cannot execute an empty command; give `command` a program")
    try:
        command = [os.fsencode(part) for part in plan.command]
        environment = {os.fsencode(key): os.fsencode(value) for key, value in plan.environment}
    except UnicodeEncodeError as error:
        raise LaunchError(errno.EILSEQ, "plan", f"cannot execute {name}: {error}") from error
    if any(b"\0" in part for part in (*command, *environment, *environment.values(), os.fsencode(plan.directory))):
        raise LaunchError(errno.EINVAL, "plan", f"cannot execute {name!r}: command or environment has a zero byte")
    if any(not key or b"=" in key for key in environment):
        raise LaunchError(errno.EINVAL, "plan", f"cannot execute {name}: the name of a variable is empty or has a `=`")
    if "/" in name:
        return command, environment, [command[0]]
    path = environment.get(b"PATH") or os.fsencode(DEFAULT_PATH)
    # An empty element would mean the working directory (execvp(3)): not for a supervisor.
    return command, environment, [b"%s/%s" % (part, command[0]) for part in path.split(b":") if part.startswith(b"/")]


def _above_stdio(fd: int, owned: list[int]) -> int:
    """A descriptor like `fd` that the child's own 0, 1 and 2 cannot overwrite, should the agent's be closed."""
    if fd >= _FIRST_AFTER_STDIO:
        return fd
    moved = _duplicate(fd)
    owned.append(moved)
    return moved


def _duplicate(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_AFTER_STDIO)


def _close_all(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def _child(
    plan: LaunchPlan,
    command: list[bytes],
    environment: dict[bytes, bytes],
    candidates: list[bytes],
    directory: bytes,
    output_fd: int,
    report_fd: int,
    parent_pid: int,
) -> NoReturn:
    """Become the command. Never returns: reports and exits where that fails.

    Until its last act before exec it dies with its parent: an agent's successor cannot see a child that has no
    markers yet, would start another one, and this one would execute its command all the same.
    """
    stage, number, tried = "session", 0, -1
    try:
        gc.disable()
        _die_with(parent_pid)
        os.setsid()
        stage = "output"
        _wire_stdio(output_fd)
        stage = "limits"
        os.umask(_UMASK)
        if plan.nofile is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (plan.nofile, plan.nofile))
        stage = "oom_score_adj"
        if plan.oom_score_adj is not None:
            _set_oom_score_adj(plan.oom_score_adj)
        stage = "user"
        if plan.account.groups is not None:
            os.setgroups(plan.account.groups)
            os.setgid(plan.account.gid)
            os.setuid(plan.account.uid)
            _die_with(parent_pid)  # the change of the user took it back
        stage = "directory"
        os.chdir(directory)
        kernel.close_on_exec_from(_FIRST_AFTER_STDIO)
        _reset_signals()
        if plan.own_pid_key is not None:
            environment[os.fsencode(plan.own_pid_key)] = b"%d" % os.getpid()
        stage = "deadline"
        if plan.not_after_ns is not None and time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= plan.not_after_ns:
            raise TimeoutError(errno.ETIME, "")  # noqa: TRY301 - one way out of the child, for every stage
        stage = "exec"
        kernel.set_parent_death_signal(0)
        number, tried = _execute(candidates, command, environment)
    except OSError as error:
        number = error.errno or errno.EIO
    except ValueError:  # setrlimit above the hard limit without the right to raise it
        number = errno.EPERM
    except BaseException:  # noqa: BLE001 - nothing may run on as a second agent
        stage, number = "internal", errno.EIO
    try:
        os.write(report_fd, _REPORT.pack(number, _STAGES.index(stage), tried))
    finally:
        os._exit(_LOST)


def _die_with(parent_pid: int) -> None:
    """Be killed when the parent dies, and now if it has died already."""
    kernel.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(_LOST)


def _wire_stdio(output_fd: int) -> None:
    """Standard input from nowhere; output and error to `output_fd`, or nowhere when that is closed."""
    null_fd = _duplicate(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
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


def _reset_signals() -> None:
    """Default dispositions and an empty mask: exec would keep what the agent ignores or blocks."""
    for number in _ALL_SIGNALS:
        if number not in {signal.SIGKILL, signal.SIGSTOP} and signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _execute(candidates: list[bytes], command: list[bytes], environment: dict[bytes, bytes]) -> tuple[int, int]:
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


def _explain(plan: LaunchPlan, candidates: tuple[str, ...], stage: str, number: int, tried: int) -> str:
    """The sentence for a failed stage, without the errno's own meaning."""
    name = plan.command[0]
    match stage:
        case "exec":
            return _explain_exec(name, candidates, number, tried)
        case "directory":
            return f"cannot enter the working directory {plan.directory} as {plan.account.name}"
        case "user":
            return f"cannot run {name} as {plan.account.name}"
        case "limits":
            return f"cannot set nofile of {name} to {plan.nofile}"
        case "oom_score_adj":
            return f"cannot set oom_score_adj of {name} to {plan.oom_score_adj}"
        case "deadline":
            return f"cannot execute {name}: the lease it needs would end before it is ready to run"
        case _:
            return f"cannot prepare {name} (stage {stage})"


def _explain_exec(name: str, candidates: tuple[str, ...], number: int, tried: int) -> str:
    if number == errno.ENOENT:
        present = next((path for path in candidates if os.access(path, os.F_OK)), None)
        if present is not None:
            return f"cannot execute {present}: the file exists but the interpreter that it names does not"
        if "/" not in name:
            folders = ":".join(str(Path(path).parent) for path in candidates) or "an empty PATH"
            return f"cannot execute {name}, looked for in {folders}"
    path = candidates[tried] if tried >= 0 else name
    match number:
        case errno.ENOEXEC:
            return f"cannot execute {path}, it is neither a program of this machine nor a script with a #! line"
        case errno.E2BIG:
            return f"cannot execute {path}, its arguments and environment are too large"
        case _:
            return f"cannot execute {path}"
