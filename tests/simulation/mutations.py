"""Planted faults: each is one small change that the simulator must find (`planted.py` lists them).

`python -m tests.simulation.mutations` applies each to a copy of the source, runs seeds on it until an invariant breaks,
and prints the table: fault, seed, invariant. A fault that survives means a missing invariant or a missing fault.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.simulation.planted import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
SEEDS = 500
"""Seeds tried for each fault; CI runs more than these without a fault."""
COPIED = ("node_manager", "tests/__init__.py", "tests/simulation")
"""What the simulator consists of."""
_FAILURE = re.compile(r"^seed (?P<seed>\d+): (?P<invariant>[^:]+): ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the simulator said of one planted fault: the first seed that found it, or None: it survived."""

    mutation: Mutation
    seed: int | None
    invariant: str = ""

    def __str__(self) -> str:
        found = "SURVIVED" if self.seed is None else f"seed {self.seed:<4}  {self.invariant}"
        return f"{self.mutation.name:64}  {found}"


def misplaced(mutation: Mutation, root: Path = ROOT) -> str | None:
    """Return why a fault cannot be planted, or None: its text must be there exactly once."""
    times = (root / mutation.file).read_text(encoding="utf-8").count(mutation.old)
    return None if times == 1 else f"{mutation.name}: its text is in {mutation.file} {times} times"


def plant(mutation: Mutation, tree: Path) -> None:
    """Make a copy of what the simulator runs, with the fault in it. ValueError where the text is not there once."""
    problem = misplaced(mutation)
    if problem is not None:
        raise ValueError(problem)
    for name in COPIED:
        source, target = ROOT / name, tree / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    path = tree / mutation.file
    path.write_text(path.read_text(encoding="utf-8").replace(mutation.old, mutation.new), encoding="utf-8")


def try_one(mutation: Mutation, seeds: int = SEEDS) -> Verdict:
    """Run seeds on a copy with the fault until one fails. RuntimeError where the copy does not run at all."""
    with tempfile.TemporaryDirectory(prefix="xce-mutation") as name:
        tree = Path(name)
        plant(mutation, tree)
        result = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seeds", f"0..{seeds - 1}", "--first"],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            check=False,
        )
    found = _FAILURE.search(result.stdout)
    if found is not None:
        return Verdict(mutation, int(found["seed"]), found["invariant"])
    if result.returncode != 0:
        raise RuntimeError(f"{mutation.name}: {result.stdout}{result.stderr}")
    return Verdict(mutation, None)


def main() -> int:
    """Print the table; the exit status says whether every fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="seeds tried for each fault")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="faults tried at the same time")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name contains this")
    parser.add_argument("--check", action="store_true", help="only see whether each fault can be planted")
    args = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if args.only in mutation.name]
    if args.check:
        problems = [problem for problem in map(misplaced, chosen) if problem is not None]
        print("\n".join(problems) or f"{len(chosen)} faults can be planted")
        return 1 if problems else 0
    survived = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for verdict in pool.map(partial(try_one, seeds=args.seeds), chosen):
            survived += verdict.seed is None
            print(verdict, flush=True)
    print(f"{len(chosen)} faults, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
