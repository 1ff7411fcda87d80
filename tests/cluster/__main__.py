"""`python -m tests.cluster`: three manager hosts under faults, and a summary. Needs root, iproute2 and etcd-server.

Everything lives in namespaces of the command's own (network, processes, mounts): whatever becomes of it, nothing stays.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

from node_manager.runtime import cgroupfs
from tests.cluster import missing
from tests.cluster.faults import FAULTS, KINDS, Fault
from tests.cluster.hosts import STOP_BUDGET_S
from tests.cluster.network import make_bridge
from tests.cluster.rounds import Trial
from tests.cluster.summary import render

ROUNDS = 16
LEASE_S = 4.0
REACTION_S = 5.0
MIN_LEASE_S = 3.0
"""etcd counts whole seconds; of 2 s the stop budget and the time between renewals would leave nothing."""
LIBXCE = Path(__file__).parents[2] / "libxce"
INSIDE, GROUP = "XCE_CLUSTER_BASE", "XCE_CLUSTER_GROUP"
"""Set in the namespaces: where everything lies, and the cgroup that the hosts' are made in."""
CLEAN_S = 20.0


def plan(rounds: int) -> list[Fault]:
    """So many rounds of each kind, each kind's targets in turn, the kinds mixed."""
    found = [list(islice(cycle([fault for fault in FAULTS if fault.kind == kind]), rounds)) for kind in KINDS]
    return [fault for together in zip(*found, strict=True) for fault in together]


def say(text: str) -> None:
    """Print at once: a round takes seconds."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """0: never two, always one again in time; 1: not so; 2: it cannot be tried here."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each kind of fault ({ROUNDS})")
    parser.add_argument("--lease", type=float, default=LEASE_S, help=f"seconds ({LEASE_S:g}), from {MIN_LEASE_S:g} on")
    parser.add_argument(
        "--reaction",
        type=float,
        default=REACTION_S,
        help=f"seconds beyond lease and stop budget until there is one again ({REACTION_S:g}); more on a busy host",
    )
    parser.add_argument(
        "--components",
        choices=("python", "mixed", "c"),
        default="python",
        help="python: the reference; mixed: the schedulers of libxce instead, and its controller on the second host; "
        "c: controllers and schedulers of libxce",
    )
    parser.add_argument("--keep", action="store_true", help="leave the hosts' logs where they are")
    options = parser.parse_args()
    if options.lease < MIN_LEASE_S or options.rounds < 1:
        parser.error(f"the lease must be at least {MIN_LEASE_S:g} s, and the rounds at least 1")
    why = missing(c=options.components != "python")
    if why:
        sys.stderr.write(f"cannot try it here: {why}\n")
        return 2
    return _outside(options.keep) if INSIDE not in os.environ else _inside(options)


def _inside(options: argparse.Namespace) -> int:
    """In namespaces of our own: make the cluster, hurt it, say what came of it."""
    base, group = Path(os.environ[INSIDE]), os.environ.get(GROUP)
    programs = _build(base) if options.components != "python" else None
    make_bridge()
    faults = plan(options.rounds)
    began = time.monotonic()
    trial = Trial(
        base,
        group=None if group is None else Path(group),
        lease_s=options.lease,
        reaction_s=options.reaction,
        components=options.components,
        programs=programs,
        say=say,
    )
    outcome = trial.run(faults)
    title = f"components {options.components}, lease {options.lease:g} s, stop budget {STOP_BUDGET_S:g} s"
    say("\n".join(render(outcome, title=title, seconds=time.monotonic() - began)))
    return 1 if outcome.failures or len(outcome.rounds) < len(faults) else 0


def _outside(keep: bool) -> int:
    """Start again in namespaces of our own, and take away what outlives them: a directory and a cgroup.

    The shell is their first process, and takes the orphans' exit statuses. Their end is the end of all in them.
    """
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    base = Path(tempfile.mkdtemp(prefix="xcl"))
    group = _make_group()
    environment = {**os.environ, INSIDE: str(base), **({} if group is None else {GROUP: str(group)})}
    again = [sys.executable, "-m", "tests.cluster", *sys.argv[1:]]
    namespaces = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = ["setpriv", "--pdeathsig", "KILL", "--", *namespaces, "sh", "-c", '"$@"; exit $?', "sh", *again]
    inside = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    try:
        return inside.wait()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        inside.kill()
        inside.wait()
        if group is not None:
            _remove_group(group)
        if keep:
            say(f"logs in {base}")
        else:
            shutil.rmtree(base, ignore_errors=True)


def _make_group() -> Path | None:
    """A cgroup for the hosts; None where there is no tree of version 2."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            group = Path(line.split()[4], f"xce-cluster-{os.getpid()}-{time.time_ns()}")
            group.mkdir()
            return group
    return None


def _remove_group(group: Path) -> None:
    until = time.monotonic() + CLEAN_S
    while not cgroupfs.remove(group) and time.monotonic() < until:
        with contextlib.suppress(OSError):
            cgroupfs.write(group, "cgroup.kill", "1")
        time.sleep(0.01)


def _build(base: Path) -> Path:
    build = base / "libxce"
    subprocess.run(["make", "--quiet", f"BUILD={build}", "all"], cwd=LIBXCE, check=True)
    return build


if __name__ == "__main__":
    sys.exit(main())
