"""`python -m tests.simulation.scenarios`: failures that hurt users of comparable programs, each as a fixed schedule.

Each has a number (a kind of failure), a name, variants, and a right outcome that its function checks on top of all
invariants. What the core does not decide (probes' processes, sockets, files) is tested where it is decided.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation import scenarios_clusters as clusters
from tests.simulation import scenarios_hosts as hosts
from tests.simulation import scenarios_leaving as leaving
from tests.simulation.effects import CHILD_POINTS
from tests.simulation.invariants import Violation
from tests.simulation.scenarios_stage import Stage, WrongError

MANAGER, WORKER, BOTH, CLUSTER = (1, 0), (0, 1), (1, 1), (3, 2)
"""Managers and workers on the stage."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of failure. `play` gets a quiet stage and one of the variants; its docstring says the outcome."""

    number: int
    name: str
    size: tuple[int, int]
    play: Callable[[Stage, object], None]
    variants: tuple[object, ...] = (None,)


SCENARIOS = (
    Scenario(1, "a stranger has the pid", WORKER, hosts.pid_of_a_stranger),
    Scenario(2, "the agent ends", CLUSTER, hosts.adopted, ("killed", "killed, its record lost", "replaced")),
    Scenario(2, "the agent is killed in a start", BOTH, hosts.killed_in_a_start, ("scheduler", "worker")),
    Scenario(
        4,
        "decommissioned, then killed or rebooted",
        WORKER,
        leaving.decommissioned_for_good,
        tuple((ms, reboot) for ms in (0, 1, 2, 3, 5, 8, 15, 50, 200, 500, 6000) for reboot in (False, True)),
    ),
    Scenario(4, "the controller decommissions", WORKER, leaving.decommissioned_by_the_controller, (False, True)),
    Scenario(4, "taken back", WORKER, leaving.taken_back),
    Scenario(4, "finished work", WORKER, hosts.finished_work),
    Scenario(
        5,
        "the leader stands still",
        CLUSTER,
        clusters.paused_leader,
        ("controller", "agent", "agent and controller", "agent, and the controller killed", "host"),
    ),
    Scenario(5, "the leader is cut off", CLUSTER, clusters.leader_cut_off, (0.0, 5.0, 3.0)),
    Scenario(5, "a child that was decided in time", CLUSTER, clusters.late_child, CHILD_POINTS),
    Scenario(5, "the wall clock is set", CLUSTER, clusters.wall_clock_set, (3600, -3600)),
    Scenario(
        6,
        "the authority makes no sense",
        MANAGER,
        clusters.unknown,
        ("silence", "close", "no term", "no end", "a lower term", "beyond any lease", "nothing about it"),
    ),
    Scenario(6, "the authority comes back", MANAGER, clusters.authority_comes_back),
    Scenario(
        7,
        "an operator's last word",
        WORKER,
        hosts.last_word_holds,
        tuple((ms, dies) for ms in (0, 1, 20, 60, 100, 150, 300, 1000, 3000) for dies in (False, True)),
    ),
    Scenario(7, "a stop in a delay", WORKER, hosts.stop_in_a_delay),
    Scenario(7, "a stop in a slow start", WORKER, hosts.stop_in_a_slow_start),
    Scenario(8, "the delay is forgotten", WORKER, hosts.backoff_forgets),
    Scenario(8, "a start in a delay", WORKER, hosts.manual_start),
    Scenario(10, "a grandchild stays", BOTH, hosts.grandchild, ("scheduler", "controller", "worker")),
    Scenario(11, "SIGTERM is ignored", WORKER, hosts.sigterm_ignored),
    Scenario(11, "SIGKILL does not help", MANAGER, hosts.uninterruptible),
    Scenario(11, "a stop that asks for more time", WORKER, hosts.stop_extended),
    Scenario(13, "everything stands still", BOTH, clusters.everything_stands_still, ("suspended", "stopped")),
    Scenario(15, "a wrong configuration", BOTH, hosts.wrong_configuration, (False, True)),
    Scenario(16, "drained when it is done", WORKER, leaving.drained_when_done),
    Scenario(16, "a drain's deadline", WORKER, leaving.drain_deadline),
    Scenario(16, "a crash in a drain", WORKER, leaving.crash_in_a_drain, leaving.CRASHES),
    Scenario(17, "no controller for an hour", CLUSTER, clusters.no_controller_for_an_hour, ("cut off", "gone")),
    Scenario(
        18,
        "one bad observation",
        WORKER,
        hosts.one_bad_observation,
        ("no epoch", "an older epoch", "an older run"),
    ),
    Scenario(18, "one failed probe", WORKER, hosts.one_failed_probe),
    Scenario(19, "a hot restart loop", WORKER, hosts.hot_restart_loop),
    Scenario(20, "an idle scheduler", MANAGER, clusters.idle_scheduler),
    Scenario(
        21,
        "promoted in a stop",
        MANAGER,
        clusters.promoted_in_a_stop,
        (0.0, 0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 4.99, 5.01, 5.05, 5.5, 8.0),
    ),
    Scenario(21, "a new term while primary", MANAGER, clusters.new_term_while_primary),
    Scenario(21, "one leader after the other", CLUSTER, clusters.takeovers),
    Scenario(23, "an unreadable latch file", BOTH, leaving.unreadable),
    Scenario(23, "a full disk", WORKER, leaving.disk_full),
    Scenario(23, "no latch file", WORKER, leaving.absent),
    Scenario(24, "out of memory", WORKER, hosts.out_of_memory),
)


def play(scenario: Scenario, variant: object) -> str | None:
    """Play one variant; return what was wrong, or None."""
    managers, workers = scenario.size
    try:
        stage = Stage(managers=managers, workers=workers)
        scenario.play(stage, variant)
        stage.settle()
    except (Violation, WrongError) as error:
        return str(error)
    return None


def main() -> int:
    """Play all; one line each. The exit status says whether every one had its right outcome."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.scenarios", description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="only scenarios whose name contains this")
    args = parser.parse_args()
    failed = 0
    for scenario in SCENARIOS:
        if args.name not in scenario.name:
            continue
        wrong = {variant: problem for variant in scenario.variants if (problem := play(scenario, variant))}
        count = len(scenario.variants)
        verdict = f"WRONG in {len(wrong)} of {count}" if wrong else f"right in {count} of {count}"
        print(f"{scenario.number:3} {scenario.name:42} {verdict}", flush=True)
        for variant, problem in wrong.items():
            print(f"      {variant}: {problem}")
        failed += bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
