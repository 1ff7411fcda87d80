"""When a run of the simulator ends: once everything has stayed as it should be, and at a bound at the latest."""

import pytest

from tests.simulation.cluster import LONG_RUN_EVERY, STEADY_NS, Cluster
from tests.simulation.invariants import Violation
from tests.simulation.world import NS_PER_S

FAULTS_NS = 60 * NS_PER_S
SEED = LONG_RUN_EVERY + 1


def upset(*, lasts_ns: int) -> Cluster:
    """A worker host on which nothing stays up, from the moment when all faults should have ceased."""
    cluster = Cluster(SEED, managers=0, workers=1)
    (host,) = cluster.hosts

    def set_loop(looping: bool) -> None:
        host.crash_loop = looping
        for process in host.mains("worker"):
            process.signal(9)

    cluster.world.later(FAULTS_NS + 1, lambda: set_loop(True))
    cluster.world.later(FAULTS_NS + lasts_ns, lambda: set_loop(False))
    return cluster


def test_a_run_ends_once_it_has_stayed_settled() -> None:
    """What is in order two leases after the last fault is not simulated for minutes more."""
    cluster = Cluster(SEED, managers=0, workers=1)
    cluster.run([], FAULTS_NS)
    assert cluster.world.now == FAULTS_NS + STEADY_NS


def test_a_run_goes_on_until_it_is_settled() -> None:
    """Trouble that ends is waited for, and the time for which everything must stay in order counts from its end."""
    cluster = upset(lasts_ns=100 * NS_PER_S)
    cluster.run([], FAULTS_NS)
    assert cluster.world.now >= FAULTS_NS + 100 * NS_PER_S + STEADY_NS


def test_what_never_settles_is_found_at_the_bound() -> None:
    """A host that is not as its facts call for at the bound breaks an invariant: the run does not wait for ever."""
    cluster = upset(lasts_ns=10_000 * NS_PER_S)
    with pytest.raises(Violation, match="settled: worker on w0"):
        cluster.run([], FAULTS_NS)


def test_some_runs_last_to_the_bound() -> None:
    """One seed in so many is simulated to the bound, to see that what has settled stays so."""
    cluster = Cluster(LONG_RUN_EVERY, managers=0, workers=1)
    cluster.run([], FAULTS_NS)
    assert cluster.world.now > FAULTS_NS + 5 * STEADY_NS


def test_a_controller_that_hangs_at_its_start_is_shown_as_not_ready() -> None:
    """It is reported and never ended, so its cluster may stay without a scheduler: but no status says it is well."""
    cluster = Cluster(SEED, managers=1, workers=0)
    cluster.faults.crash_at_start, cluster.faults.hang_at_start = 0.0, 1.0
    cluster.run([], FAULTS_NS)
    (host,) = cluster.hosts
    (controller,) = host.mains("controller")
    assert controller.hangs
    assert host.agent is not None
    assert host.agent.state.members["controller"].state.ready is False


def test_what_hangs_is_not_settled() -> None:
    """A worker that does nothing any more is not in order, though it has a process and its host shows it as running."""
    cluster = Cluster(SEED, managers=0, workers=1)
    cluster.run([], FAULTS_NS)
    (worker,) = cluster.hosts[0].mains("worker")
    assert worker.program is not None
    worker.program.hang()
    with pytest.raises(Violation, match=r"settled: worker on w0 .* it hangs"):
        cluster.invariants.settled()
