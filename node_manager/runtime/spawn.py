"""How a child is made: the one seam between the agent and fork(2).

`begin` makes a child and returns at once; `Launch.settle` tells, without blocking, whether the command was executed or
why not; `launch` is both with a bound. The child reports its errno and its stage over a pipe that exec closes: end of
file without a report means executed. A child that dies before that without a word (a signal) counts as launched: its
exit says the rest.

Two ways lead there, with the same steps: native/spawn.c, which copies nothing of the agent, where a compiler was there
when the package was built; else `forked`. docs/decisions/0003-spawning.md has reasons and costs.
"""

import errno
import fcntl
import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from node_manager.runtime import cgroupfs, forked, kernel
from node_manager.runtime.accounts import Account
from node_manager.runtime.forked import FIRST_AFTER_STDIO, REPORT, STAGES, Orders

try:
    from node_manager.runtime import _native
except ImportError:
    NATIVE = False
else:
    NATIVE = _native.STAGES == STAGES
"""Whether the C half is there, and of this version."""

LAUNCH_TIMEOUT_S = 5.0
"""How long fork to exec may take before the child is killed: a working directory on a dead server hangs there."""
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where commands are looked for when the plan's environment has no PATH (systemd.exec(5))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Everything about a child, computed before it is made.

    `environment` is complete: nothing is inherited. `output_fd` receives standard output and error (None: the
    agent's standard error); the caller closes its own copy. `own_pid_key` names the variable that gets the child's
    own pid. `cgroup_fd` is the directory of the cgroup that it is in from its first instant; `goes_there`: it is not
    born there, but goes there as its first act. `fuse_fd` leads to the fuse that has to know it before it may execute
    its command. Both stay the caller's.
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
    cgroup_fd: int | None = None
    goes_there: bool = False
    fuse_fd: int | None = None


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

    def settle(self, unwatch: Callable[[int], object] = lambda _fd: None) -> bool:
        """True: the command runs; False: not known yet. Raises LaunchError once everything is cleaned up.

        `unwatch` is called with each descriptor before it is closed. Afterwards is too late: a child between fork and
        exec has a copy, and epoll(7) would go on telling of it under a number that is another's by then.
        """
        if self.report_fd < 0:
            return True
        try:
            report = os.read(self.report_fd, REPORT.size)
        except BlockingIOError:
            return False
        unwatch(self.report_fd)
        os.close(self.report_fd)
        self.report_fd = -1
        if not report:
            return True
        number, stage, tried = REPORT.unpack(report)
        os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)  # it exits as its very next act
        unwatch(self.pidfd)
        os.close(self.pidfd)
        raise LaunchError(number, STAGES[stage], _explain(self._plan, self._candidates, STAGES[stage], number, tried))

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
        """What to say about a child that did not reach its command in time. To be asked before it is killed."""
        group = cgroupfs.directory_of(self.pid)
        if group is not None and cgroupfs.frozen(group):
            why = f"its cgroup {group} is frozen"
        else:
            why = f"a file system hangs (working directory {self._plan.directory})"
        return LaunchError(
            errno.ETIMEDOUT,
            "timeout",
            f"cannot execute {self._plan.command[0]}: not begun within {LAUNCH_TIMEOUT_S:g} s, {why}",
        )


def begin(plan: LaunchPlan, *, native: bool = NATIVE) -> Launch:
    """Make the child of this plan. Raises LaunchError when there cannot be one.

    `native` False: as where the C half is missing.
    """
    orders = _orders(plan)
    descriptors: list[int] = []
    try:
        descriptors.extend(os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
        report_fd, child_fd = descriptors[0], _above_stdio(descriptors[1], descriptors)
        pid, pidfd = _start(orders, child_fd) if native and not plan.goes_there else forked.start(orders, child_fd)
    except OSError as error:
        _close_all(descriptors)
        hint = {errno.EAGAIN: ", the host or the user has too many processes", errno.ENOMEM: ", no memory"}
        detail = f"cannot start {plan.command[0]}{hint.get(error.errno or 0, '')}"
        raise LaunchError(error.errno or errno.EIO, "fork", detail) from error
    _close_all([fd for fd in descriptors if fd != report_fd])
    return Launch(plan, tuple(os.fsdecode(candidate) for candidate in orders.candidates), pid, pidfd, report_fd)


def launch(plan: LaunchPlan, *, native: bool = NATIVE) -> Launched:
    """Start the child and wait until it executes its command, at most LAUNCH_TIMEOUT_S. Raises LaunchError."""
    attempt = begin(plan, native=native)
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


def _start(orders: Orders, report_fd: int) -> tuple[int, int]:
    account = orders.account
    return _native.start(
        orders.command,
        orders.environment,
        orders.candidates,
        orders.directory,
        orders.own_pid_index,
        orders.output_fd,
        report_fd,
        _or_none(orders.cgroup_fd),
        _or_none(orders.fuse_fd),
        _or_none(orders.nofile),
        b"" if orders.oom_score_adj is None else b"%d" % orders.oom_score_adj,
        None if account.groups is None else (account.uid, account.gid, account.groups),
        _or_none(orders.not_after_ns),
    )


def _or_none(value: int | None) -> int:
    """What the C half takes for nothing."""
    return -1 if value is None else value


def _orders(plan: LaunchPlan) -> Orders:
    """The plan as the kernel takes it. Raises LaunchError for what exec could not take."""
    name = plan.command[0] if plan.command else ""
    if not name:
        raise LaunchError(errno.EINVAL, "plan", "cannot execute an empty command; give `command` a program")
    variables = dict(plan.environment)
    if plan.own_pid_key is not None:
        variables[plan.own_pid_key] = ""
    try:
        command = tuple(os.fsencode(part) for part in plan.command)
        environment = tuple(os.fsencode(f"{key}={value}") for key, value in variables.items())
    except UnicodeEncodeError as error:
        raise LaunchError(errno.EILSEQ, "plan", f"cannot execute {name}: {error}") from error
    directory = os.fsencode(plan.directory)
    if any(b"\0" in part for part in (*command, *environment, directory)):
        raise LaunchError(errno.EINVAL, "plan", f"cannot execute {name!r}: command or environment has a zero byte")
    if any(not key or "=" in key for key in variables):
        raise LaunchError(errno.EINVAL, "plan", f"cannot execute {name}: the name of a variable is empty or has a `=`")
    return Orders(
        command=command,
        environment=environment,
        candidates=_candidates(command[0], variables),
        directory=directory,
        account=plan.account,
        own_pid_index=-1 if plan.own_pid_key is None else list(variables).index(plan.own_pid_key),
        output_fd=2 if plan.output_fd is None else plan.output_fd,
        cgroup_fd=plan.cgroup_fd,
        fuse_fd=plan.fuse_fd,
        nofile=plan.nofile,
        oom_score_adj=plan.oom_score_adj,
        not_after_ns=plan.not_after_ns,
    )


def _candidates(program: bytes, variables: dict[str, str]) -> tuple[bytes, ...]:
    """The paths to try."""
    if b"/" in program:
        return (program,)
    path = os.fsencode(variables.get("PATH") or DEFAULT_PATH)
    # An empty element would mean the working directory (execvp(3)): not for a supervisor.
    return tuple(b"%s/%s" % (part, program) for part in path.split(b":") if part.startswith(b"/"))


def _above_stdio(fd: int, owned: list[int]) -> int:
    """A descriptor like `fd` that the child's own 0, 1 and 2 cannot overwrite, should the agent's be closed."""
    if fd >= FIRST_AFTER_STDIO:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_AFTER_STDIO)
    owned.append(moved)
    return moved


def _close_all(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)


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
        case "cgroup":
            return f"cannot put {name} into its cgroup"
        case "fuse":
            return f"cannot execute {name}: its fuse, which guards the end of its lease, does not take it"
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
