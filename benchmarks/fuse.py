"""How late a fuse is, and what it costs: `python -m benchmarks.fuse [ROUNDS [BUSY]]`.

Each round arms a fuse a moment ahead for a child that computes, and takes the time from the deadline until the child
is seen dead, by a process that has to be woken for that too: an upper bound. BUSY processes compute meanwhile.
Without a cgroup; a group's kill is one write.
"""

import asyncio
import os
import select
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from node_manager.core.spec import ComponentSpec
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.fuse import Fuses, default_program
from node_manager.runtime.spawn import LaunchPlan, begin

_AHEAD_NS = 300_000_000
_SPEC = ComponentSpec(name="bench", role="bench", command=("/bin/true",), run_while=("controller.primary",))
_CHILD = ("/bin/sh", "-c", "while :; do :; done")


def _late_ns(loop: asyncio.AbstractEventLoop, fuses: Fuses, generation: int) -> int:
    armed: list[tuple[str | None, int]] = []
    deadline_ns = boottime_ns() + _AHEAD_NS
    fuses.arm(_SPEC, generation, deadline_ns, None, lambda *answer: armed.append(answer))
    while not armed:
        loop.run_until_complete(asyncio.sleep(0))
    problem, link_fd = armed[0]
    assert problem is None, problem
    launch = begin(
        LaunchPlan(
            command=_CHILD,
            environment=(),
            account=Accounts().find(None),
            fuse_fd=link_fd,
        )
    )
    os.close(link_fd)
    select.select([launch.pidfd], [], [])
    dead_ns = boottime_ns()
    assert launch.settle()
    os.waitid(os.P_PIDFD, launch.pidfd, os.WEXITED)
    launch.forget()
    return dead_ns - deadline_ns


def _pss_kib(name: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if name in (entry / "cmdline").read_text():
                    rollup = (entry / "smaps_rollup").read_text()
                    found.append(int(rollup.partition("\nPss:")[2].split()[0]))
            except (OSError, IndexError):
                continue
    return found


def main() -> None:
    """Print one table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    busy = int(sys.argv[2]) if len(sys.argv) > 2 else 0  # noqa: PLR2004 - the second argument
    loop = asyncio.new_event_loop()
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    with tempfile.TemporaryDirectory(prefix="xce") as directory:
        fuses = Fuses(loop, Path(directory, "fuse"), nonce="benchmark", groups=None, lost=print)
        try:
            late = [_late_ns(loop, fuses, generation) / 1000 for generation in range(1, rounds + 1)]
            pss = _pss_kib("bench\0benchmark")
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
            fuses.close()
    late.sort()
    print(f"{default_program()[-1]}: {pss} KiB PSS, {rounds} rounds, {busy} busy processes")
    print(
        f"seen dead after the deadline, us: median {statistics.median(late):.0f}, "
        f"p99 {late[int(len(late) * 0.99)]:.0f}, most {late[-1]:.0f}"
    )


if __name__ == "__main__":
    main()
