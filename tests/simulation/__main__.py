"""`python -m tests.simulation --seeds A..B`: run seeds, print a summary; for a failure the shrunk schedule."""

from __future__ import annotations

import argparse
import sys
import time
from itertools import pairwise
from typing import Any

from tests.simulation.runner import Result, run_seed, shrink

DEFAULT_HOURS = 0.2


def main() -> int:
    """Run; the exit status says whether every seed passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0..99", metavar="A..B", help="both included")
    parser.add_argument("--managers", type=int, default=3, metavar="N")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--hours", type=float, default=DEFAULT_HOURS, metavar="H", help="with faults, for each seed")
    parser.add_argument("--first", action="store_true", help="stop at the first failure, and do not shrink it")
    parser.add_argument("--replay", type=int, metavar="SEED", help="print the run of one seed readably")
    args = parser.parse_args()
    options: dict[str, Any] = {"managers": args.managers, "workers": args.workers, "hours": args.hours}
    if args.replay is not None:
        result = run_seed(args.replay, keep_all=True, **options)
        for at_ns, text in result.log:
            print(f"{at_ns / 1e9:12.6f}  {text}")
        print(result.failure or "passed")
        return 1 if result.failure else 0
    first, _, last = args.seeds.partition("..")
    seeds = range(int(first), int(last or first) + 1)
    return _run_first(seeds, options) if args.first else _run_all(seeds, options)


def _run_first(seeds: range, options: dict[str, Any]) -> int:
    for seed in seeds:
        failure = run_seed(seed, **options).failure
        if failure:
            print(f"seed {seed}: {failure}")
            return 1
    return 0


def _run_all(seeds: range, options: dict[str, Any]) -> int:
    began = time.monotonic()
    events = steps = 0
    hours = 0.0
    pairs: set[tuple[str, str]] = set()
    fault_pairs: set[tuple[str, str]] = set()
    failed: list[Result] = []
    for seed in seeds:
        result = run_seed(seed, **options)
        events, steps, hours = events + result.events, steps + result.steps, hours + result.host_hours
        pairs |= set(result.state_events)
        kinds = [fault.kind for fault in result.plan]
        fault_pairs |= set(pairwise(kinds))
        if result.failure:
            failed.append(result)
            _report(result, options)
    took_s = time.monotonic() - began
    print(
        f"{len(seeds)} seeds, {len(failed)} failed; {events} events, {steps} steps of the core, {hours:.1f} host-hours"
    )
    print(f"{took_s:.1f} s: {len(seeds) / took_s:.2f} seeds/s, {events / took_s:.0f} events/s")
    print(f"{len(pairs)} pairs of state and event, {len(fault_pairs)} pairs of faults in a row")
    return 1 if failed else 0


def _report(result: Result, options: dict[str, Any]) -> None:
    print(f"seed {result.seed}: {result.failure}")
    plan = shrink(result, **options)
    print(f"  shrunk from {len(result.plan)} to {len(plan)} faults:")
    for fault in plan:
        print(f"    {fault}")
    print("  last events:")
    for at_ns, text in list(result.log)[-25:]:
        print(f"    {at_ns / 1e9:12.6f}  {text}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
