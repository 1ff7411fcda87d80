"""How a main process ended, where it is our child and where it is not."""

import os

from node_manager.core.events import ExitStatus
from node_manager.runtime import kernel
from node_manager.runtime.procfs import ProcFs


def of_child(pidfd: int) -> ExitStatus | None:
    """How our child ended; it stays a zombie, its pid its own. None: it has not ended after all."""
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # SIGCHLD was ignored when it ended
        return ExitStatus()
    return kernel.wait_result(result) if result is not None else None


def of_stranger(procfs: ProcFs, pid: int, start_ticks: int, pidfd: int) -> ExitStatus | None:
    """How a process ended that somebody else reaps. None: not yet reaped, and not told before."""
    wait_status = procfs.zombie_status(pid, start_ticks)
    if wait_status is not None:
        return kernel.exit_status(wait_status)
    status = kernel.foreign_exit_status(pidfd)
    if status is not None:
        return status
    found = procfs.stat(pid)
    if found is None or found.start_ticks != start_ticks:
        return kernel.foreign_exit_status(pidfd) or ExitStatus()  # reaped; it was perhaps not a moment ago
    return None
