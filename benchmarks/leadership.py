"""How fast an agent follows its authority: `python -m benchmarks.leadership [ROUNDS]`.

A real agent, a real authority on its heartbeat socket, a real scheduler under a fuse. Each round says `primary` with a
new term and then `standby`. Taken are the times from just before the send until the first line of the scheduler (after
exec; it is a small static program), and until its SIGTERM handler runs. In microseconds: median, 99th
percentile and the worst. Once with the components in cgroups (as root, where there is a tree of version 2), once in
sessions. How late a fuse is: `python -m benchmarks.fuse`, and, in a cluster under faults, `python -m tests.cluster`.
"""

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from node_manager.reference.clock import NS_PER_S, boottime_ns
from tests.cluster.promotions import AUTHORITY
from tests.integration.host import Host
from tests.integration.leasing import entering
from tests.unit.runtime.cgroups import delegated, tree

_ROUNDS = 300
_PAUSE_S = 0.05
"""Between two words: an agent takes 50 records a second for ever, and is idle in between as in life."""
_LEASE_S = 50
_AIM_US = {"primary to exec": 2000, "standby to SIGTERM": 1000}
_SCHEDULER = r"""
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static int out;

static void note(char what)
{
    struct timespec now;
    char line[64];
    int n;

    clock_gettime(CLOCK_BOOTTIME, &now);
    n = snprintf(line, sizeof line, "%c %lld\n", what, (long long)now.tv_sec * 1000000000 + now.tv_nsec);
    if (write(out, line, (size_t)n) < 0)
        _exit(1);
}

static void on_term(int number)
{
    note('T');
    _exit(number - SIGTERM);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_term};

    out = open(argv[argc - 1], O_WRONLY);
    sigaction(SIGTERM, &action, NULL);
    note('E');
    for (;;)
        pause();
}
"""


class _Bench:
    """One host with the authority and the scheduler, which writes its times into a pipe of ours."""

    def __init__(self, base: Path, scheduler: Path, group: Path | None) -> None:
        fifo = base / "times"
        os.mkfifo(fifo)
        self._times = os.fdopen(os.open(fifo, os.O_RDWR), "rb", buffering=0)
        self._rest = b""
        role: dict[str, Any] = {
            "role": "r",
            "user": "inherit",
            "components": {
                "controller": {
                    "command": [sys.executable, "-I", "-S", str(AUTHORITY), str(base / "control.sock")],
                    "states": ["controller.primary"],
                },
                "scheduler": {
                    "command": [str(scheduler), str(fifo)],
                    "run_while": ["controller.primary"],
                    "restart_on_change": ["controller.primary.term"],
                    "stop": {"timeout_s": 3, "kill_timeout_s": 1},
                },
            },
        }
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(base / "control.sock"))
        listener.listen()
        self.host = Host(base / "h", roles=("r",), role_files={"r": role})
        if group is not None:
            entering(group, self.host.base / "bin" / "xce-node-manager")
        self.host.start()
        self._control, _address = listener.accept()
        self._answers = self._control.makefile("r")
        listener.close()
        self._order("connect")
        self._order("hello LEADERSHIP=standby TERM=0")

    def once(self, term: int) -> tuple[int, int]:
        """From `primary` to exec, and from `standby` to SIGTERM; microseconds."""
        until_ns = boottime_ns() + _LEASE_S * NS_PER_S
        said_ns = self._order(f"timed LEADERSHIP=primary TERM={term} VALID_UNTIL_NS={until_ns}")
        started_ns = self._time("E")
        time.sleep(_PAUSE_S)
        over_ns = self._order(f"timed LEADERSHIP=standby TERM={term}")
        told_ns = self._time("T")
        time.sleep(_PAUSE_S)
        return (started_ns - said_ns) // 1000, (told_ns - over_ns) // 1000

    def _order(self, text: str) -> int:
        self._control.sendall(f"{text}\n".encode())
        first = self._answers.readline().split()[0]
        return int(first) if first.isdecimal() else 0

    def _time(self, what: str) -> int:
        while b"\n" not in self._rest:
            self._rest += self._times.read(4096)
        line, _, self._rest = self._rest.partition(b"\n")
        word, at_ns = line.split()
        assert word == what.encode(), line
        return int(at_ns)

    def end(self) -> None:
        """End the host and everything on it."""
        self.host.end()
        self._answers.close()
        self._control.close()
        self._times.close()


def _build(directory: Path) -> Path:
    source, program = directory / "scheduler.c", directory / "scheduler"
    source.write_text(_SCHEDULER)
    subprocess.run(["cc", "-O2", "-static", "-o", str(program), str(source)], check=True)
    return program


def measure(rounds: int, *, grouped: bool) -> tuple[str, list[tuple[int, int]]]:
    """The agent's cgroup mode, and of each round the microseconds to exec and to SIGTERM."""
    base = Path(tempfile.mkdtemp(prefix="xce"))
    with ExitStack() as ends:
        ends.callback(shutil.rmtree, base, ignore_errors=True)
        group = ends.enter_context(delegated()) if grouped else None
        bench = _Bench(base, _build(base), group)
        ends.callback(bench.end)
        bench.once(1)
        samples = [bench.once(term) for term in range(2, rounds + 2)]
        return str(bench.host.status()["node"]["cgroup_mode"]), samples


def _show(mode: str, samples: list[tuple[int, int]]) -> None:
    for index, (what, aim) in enumerate(_AIM_US.items()):
        values = sorted(sample[index] for sample in samples)
        p99 = values[min(len(values) - 1, int(len(values) * 0.99))]
        print(f"{mode:<20} {what:<20} {statistics.median(values):8.0f} {p99:8d} {values[-1]:8d}   aim {aim}")


def main() -> None:
    """Print one table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else _ROUNDS
    print(f"{'us':<20} {'':<20} {'median':>8} {'p99':>8} {'worst':>8}   {rounds} rounds")
    if tree() is not None:
        _show(*measure(rounds, grouped=True))
    _show(*measure(rounds, grouped=False))


if __name__ == "__main__":
    main()
