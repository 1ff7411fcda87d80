"""What a start costs the agent: `python -m benchmarks.spawn [RSS_MIB ...]`.

For each size of the agent's memory: the time that the loop is held (fork and what goes before it) and the time from
the call to the child's exec, in microseconds, median and 99th percentile of 300 starts of /bin/true; beside it
subprocess.Popen, which does less (no user, limits, deadline, own pid), and a bare os.fork with _exit.
"""

import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from node_manager.runtime.accounts import Accounts
from node_manager.runtime.spawn import LaunchPlan, begin

_ROUNDS = 300
_MIB = 1024 * 1024


def _resident_mib() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a benchmark's one line
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") // _MIB


def _begin(plan: LaunchPlan) -> tuple[int, int]:
    start = time.perf_counter_ns()
    attempt = begin(plan)
    held = time.perf_counter_ns()
    select.select([attempt.report_fd], [], [])
    executed = time.perf_counter_ns()
    assert attempt.settle()
    os.waitid(os.P_PIDFD, attempt.pidfd, os.WEXITED)
    attempt.forget()
    return held - start, executed - start


def _popen() -> tuple[int, int]:
    start = time.perf_counter_ns()
    child = subprocess.Popen(["/bin/true"], start_new_session=True)
    executed = time.perf_counter_ns()
    child.wait()
    return executed - start, executed - start


def _bare_fork() -> tuple[int, int]:
    start = time.perf_counter_ns()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    held = time.perf_counter_ns()
    os.waitpid(pid, 0)
    return held - start, held - start


def _measure(name: str, once: Callable[[], tuple[int, int]]) -> None:
    samples = [once() for _ in range(_ROUNDS)]
    columns = []
    for index in (0, 1):
        values = sorted(sample[index] / 1000 for sample in samples)
        columns.append(f"{statistics.median(values):8.0f} {values[int(len(values) * 0.99)]:8.0f}")
    print(f"{name:<22} {_resident_mib():5d} MiB   {columns[0]}   {columns[1]}")


def main() -> None:
    """Print one table."""
    sizes = [int(word) for word in sys.argv[1:]] or [0, 100]
    plan = LaunchPlan(
        command=("/bin/true",),
        environment=(("PATH", "/usr/bin:/bin"),),
        account=Accounts().find(None),
        own_pid_key="XCE_MAIN_PID",
    )
    print(f"{'':<22} {'agent':>9}   {'loop held, us':>17}   {'call to exec, us':>17}")
    print(f"{'':<22} {'':>9}   {'median':>8} {'p99':>8}   {'median':>8} {'p99':>8}")
    ballast: list[bytearray] = []
    for size in sizes:
        ballast.append(bytearray(b"x" * (size * _MIB)))
        _measure("node_manager begin", lambda: _begin(plan))
        _measure("subprocess.Popen", _popen)
        _measure("bare os.fork", _bare_fork)


if __name__ == "__main__":
    main()
