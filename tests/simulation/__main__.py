"""`python -m tests.simulation --seeds A..B`: run seeds, print a summary; for a failure the shrunk schedule."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pool
from typing import Any

from tests.simulation.runner import Result, run_seed, shrink
from tests.simulation.summary import Summary

DEFAULT_HOURS = 0.2
PROGRESS_S = 10
MAX_SHRUNK = 5
"""Failures whose schedule is shrunk: it takes a hundred runs and more, and the rest is often the same fault."""


def main() -> int:
    """Run; the exit status says whether every seed passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0..99", metavar="A..B", help="both included")
    parser.add_argument("--managers", type=int, default=3, metavar="N")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--hours", type=float, default=DEFAULT_HOURS, metavar="H", help="with faults, for each seed")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="seeds run at the same time")
    parser.add_argument("--first", action="store_true", help="stop at the first failure, and do not shrink it")
    parser.add_argument("--verbose", action="store_true", help="name the pairs that were never seen")
    parser.add_argument("--replay", type=int, metavar="SEED", help="print the run of one seed readably")
    args = parser.parse_args()
    options: dict[str, Any] = {"managers": args.managers, "workers": args.workers, "hours": args.hours}
    if args.replay is not None:
        return _replay(run_seed(args.replay, keep_all=True, **options))
    first, _, last = args.seeds.partition("..")
    seeds = range(int(first), int(last or first) + 1)
    began, told = time.monotonic(), time.monotonic()
    summary = Summary()
    for result in results(seeds, args.jobs, options):
        summary.add(result)
        if result.failure is not None:
            print(f"seed {result.seed}: {result.failure}")
            if args.first:
                return 1
            report(result, options, shrunk=summary.failed <= MAX_SHRUNK)
        if time.monotonic() - told >= PROGRESS_S:
            told = time.monotonic()
            left_s = (told - began) * (len(seeds) - summary.seeds) / summary.seeds
            text = f"{summary.seeds} of {len(seeds)} seeds, {summary.failed} failed, {left_s / 60:.0f} min left"
            print(text, file=sys.stderr, flush=True)
    print(*summary.lines(time.monotonic() - began, verbose=args.verbose), sep="\n")
    return 1 if summary.failed else 0


def results(seeds: range, jobs: int, options: dict[str, Any]) -> Iterator[Result]:
    """Yield what came of each seed, in their order, however many run at the same time."""
    run = partial(run_seed, **options)
    if jobs == 1:
        yield from map(run, seeds)
        return
    with Pool(jobs) as pool:
        yield from pool.imap(run, seeds)


def _replay(result: Result) -> int:
    for at_ns, text in result.log:
        print(f"{at_ns / 1e9:12.6f}  {text}")
    print(result.failure or "passed")
    return 1 if result.failure else 0


def report(result: Result, options: dict[str, Any], *, shrunk: bool) -> None:
    """Print the schedule of a seed that failed, shrunk where that is asked for, and its last events."""
    if shrunk:
        faults = len(result.plan)
        # What is shown is the run of the schedule that is shown, and not of the one that was longer.
        result = run_seed(result.seed, plan=shrink(result, **options), **options)
        print(f"  shrunk from {faults} to {len(result.plan)} faults: {result.failure}")
        for fault in result.plan:
            print(f"    {fault}")
    print("  last events:")
    for at_ns, text in result.log[-25:]:
        print(f"    {at_ns / 1e9:12.6f}  {text}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
