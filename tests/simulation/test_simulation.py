"""The cluster in virtual time, as part of the tests: some seeds, and the simulator's own promises."""

import os
import subprocess
import sys

import pytest

from tests.simulation.cluster import Assumptions
from tests.simulation.faults import Fault
from tests.simulation.mutations import ROOT, misplaced
from tests.simulation.planted import MUTATIONS
from tests.simulation.runner import run_seed
from tests.simulation.world import NS_PER_S


def test_seeds_break_no_invariant() -> None:
    """Random faults for some minutes, then none: every invariant holds after every event, and the cluster settles."""
    for seed in range(12):
        result = run_seed(seed, hours=0.05)
        assert result.failure is None, f"seed {seed}: {result.failure}"


def test_a_seed_replays_exactly() -> None:
    """The same seed gives the same run, line by line."""
    first, second = (run_seed(7, hours=0.03, keep_all=True) for _ in range(2))
    assert first.log == second.log
    assert first.events == second.events


def test_a_replay_does_not_depend_on_the_interpreter() -> None:
    """Another process with another order of its sets prints the same run, so that a seed can be handed on."""

    def replay(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tests.simulation", "--replay", "3", "--hours", "0.05"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    first = replay("1")
    assert first.endswith("passed\n")
    assert first == replay("2")


def test_the_fuse_is_needed() -> None:
    """Without it an agent that is stopped beyond the lease leaves two schedulers behind, and the observer sees it."""

    def broken(*, fuse: bool) -> set[str | None]:
        """Stop agent and controller of each host in turn: one of them leads."""
        results = []
        for host in range(3):
            plan = [
                Fault(60 * NS_PER_S, "agent stopped", host, 85 * NS_PER_S),
                Fault(61 * NS_PER_S, "controller killed", host, NS_PER_S),
            ]
            results.append(run_seed(1, hours=0.05, plan=plan, assumptions=Assumptions(fuse=fuse)))
        return {result.invariant for result in results}

    assert broken(fuse=True) == {None}
    assert "one scheduler" in broken(fuse=False)


@pytest.mark.skipif(not (ROOT / "node_manager").is_dir(), reason="faults are planted in the source tree")
def test_each_planted_fault_can_be_planted() -> None:
    """A line of the core that was rewritten does not silently take its planted fault with it."""
    assert [problem for problem in map(misplaced, MUTATIONS) if problem is not None] == []


def test_no_two_planted_faults_have_one_name() -> None:
    """The table names each fault, so that `--only` and a report mean one."""
    names = [mutation.name for mutation in MUTATIONS]
    assert sorted(set(names)) == sorted(names)
