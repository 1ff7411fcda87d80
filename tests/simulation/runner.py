"""Running one seed, and shrinking the schedule of one that failed."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.cluster import Assumptions, Cluster
from tests.simulation.faults import Fault, schedule
from tests.simulation.invariants import Violation
from tests.simulation.world import NS_PER_S

FAULT_EVERY_NS = 12 * NS_PER_S
HOUR_NS = 3600 * NS_PER_S
MAX_SHRINKS = 200
"""Bound on the runs that shrinking takes."""


@dataclass(slots=True)
class Result:
    """What came of one seed. `log` is kept where it failed, or all of it where that was asked for."""

    seed: int
    plan: list[Fault]
    failure: str | None = None
    invariant: str | None = None
    events: int = 0
    steps: int = 0
    host_hours: float = 0.0
    state_events: dict[tuple[str, str], int] = field(default_factory=dict)
    log: list[tuple[int, str]] = field(default_factory=list)


def run_seed(
    seed: int,
    *,
    managers: int = 3,
    workers: int = 4,
    hours: float = 0.2,
    plan: list[Fault] | None = None,
    assumptions: Assumptions | None = None,
    keep_all: bool = False,
) -> Result:
    """Run one seed with its own schedule, or with `plan`."""
    until_ns = int(hours * HOUR_NS)
    if plan is None:
        plan = schedule(seed, managers + workers, until_ns, FAULT_EVERY_NS)
    cluster = Cluster(seed, managers=managers, workers=workers, assumptions=assumptions, keep_all=keep_all)
    result = Result(seed=seed, plan=plan)
    try:
        cluster.run(plan, until_ns)
    except Violation as violation:
        result.failure, result.invariant = str(violation), violation.name
    except Exception as error:  # noqa: BLE001 - a crash is what came of this seed, and the other seeds are to be run
        cluster.world.note(traceback.format_exc())
        result.failure, result.invariant = f"{type(error).__name__}: {error}", type(error).__name__
    result.events, result.steps = cluster.world.events, cluster.invariants.steps
    result.host_hours = (managers + workers) * cluster.world.now / HOUR_NS
    result.state_events = dict(cluster.invariants.state_events)
    if keep_all or result.failure is not None:
        result.log = list(cluster.world.log)
    return result


def shrink(failed: Result, **options: Any) -> list[Fault]:
    """Return a schedule with as few faults as can be found that still breaks the same invariant."""
    plan = list(failed.plan)
    runs = 0
    size = max(1, len(plan) // 2)
    while runs < MAX_SHRINKS:
        index = 0
        while index < len(plan) and runs < MAX_SHRINKS:
            fewer = plan[:index] + plan[index + size :]
            runs += 1
            if run_seed(failed.seed, plan=fewer, **options).invariant == failed.invariant:
                plan = fewer
            else:
                index += size
        if size == 1:
            break
        size //= 2
    return plan
