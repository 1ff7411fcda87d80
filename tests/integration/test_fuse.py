"""A leased component is dead before its lease ends, whatever becomes of the agent; with real agents and real fuses."""

import os
import signal
from collections.abc import Callable

import pytest

from node_manager.core.spec import LEASE_MARGIN_NS
from node_manager.runtime.clock import boottime_ns
from tests.integration.host import Host, wait_until
from tests.integration.leasing import LEASE_S, LONG_LEASE_S, ROLE, Leased

NS = 1_000_000_000


@pytest.fixture
def leased(make_host: Callable[..., Host]) -> Leased:
    return Leased(make_host(roles=("manager",), role_files={"manager": ROLE}))


def pause(leased: Leased) -> int:
    """Stop the agent with SIGSTOP; its pid."""
    assert leased.host.agent is not None
    os.kill(leased.host.agent.pid, signal.SIGSTOP)
    return leased.host.agent.pid


def assert_dead_in_time(leased: Leased, until_ns: int) -> None:
    """Everything of it is dead, and its last sign of life is before the end of the lease, but not much."""
    wait_until(lambda: not leased.living(), "everything of the leased component is dead")
    assert until_ns - LEASE_MARGIN_NS - NS < leased.last_sign_ns() < until_ns


def test_an_agent_stopped_before_the_lease_ends(leased: Leased) -> None:
    """The agent hears and does nothing: the fuse kills the whole tree at the margin before the lease's end."""
    leased.up()
    leased.switch.unlink()
    wait_until(lambda: leased.valid_until_ns() < boottime_ns() + int((LEASE_S - 0.3) * NS), "no renewal")
    until_ns = leased.valid_until_ns()
    pid = pause(leased)
    try:
        assert_dead_in_time(leased, until_ns)
    finally:
        os.kill(pid, signal.SIGCONT)
    leased.host.wait_for("leased", state="stopped", rule="condition")


def test_an_agent_killed_before_the_lease_ends(leased: Leased) -> None:
    """Nobody is there: the fuse kills, and goes when it is needed no more; the next agent starts nothing."""
    leased.up()
    leased.switch.unlink()
    wait_until(lambda: leased.valid_until_ns() < boottime_ns() + int((LEASE_S - 0.3) * NS), "no renewal")
    until_ns = leased.valid_until_ns()
    leased.host.kill_agent()
    assert_dead_in_time(leased, until_ns)
    wait_until(lambda: not leased.fuses(), "the fuse has ended")
    leased.host.start()
    leased.host.wait_for("leased", state="stopped", rule="condition")


def test_a_lease_that_is_renewed_is_left_alone(leased: Leased) -> None:
    """Beyond the first deadline the same process runs, guarded until the last one."""
    pid = leased.up()
    first_ns = leased.valid_until_ns()
    wait_until(lambda: boottime_ns() > first_ns + NS // 2, "the first deadline")
    assert pid == leased.host.pids()["leased"]
    assert len(leased.fuses()) == 1


def test_a_successor_takes_the_fuse_over(leased: Leased) -> None:
    """After kill -9 the next agent adopts component and fuse, and renews: nothing is killed, nothing started anew."""
    pid = leased.up(LONG_LEASE_S)
    fuses = leased.fuses()
    leased.host.kill_agent()
    leased.host.start()
    assert pid == leased.running()
    until_ns = leased.valid_until_ns()
    wait_until(lambda: boottime_ns() > until_ns, "the deadline that the first agent had told")
    assert pid == leased.running()
    assert fuses == leased.fuses()
    pause(leased)
    until_ns = boottime_ns() + int(LONG_LEASE_S * NS)
    leased.switch.unlink()
    wait_until(lambda: not leased.living(), "everything of the leased component is dead")
    assert leased.last_sign_ns() < until_ns


def test_a_fuse_that_dies_takes_the_component_along(leased: Leased) -> None:
    """What nothing guards is stopped, says why, and is started again under another fuse."""
    pid = leased.up()
    (fuse,) = leased.fuses()
    os.kill(fuse, signal.SIGKILL)
    wait_until(lambda: leased.host.pids()["leased"] not in {pid, None}, "another leased process")
    assert leased.running() != pid
    assert len(leased.fuses()) == 1
    reasons = [event.get("reason") or "" for event in leased.host.events()]
    assert any("its fuse, which guards the end of its lease, was lost" in reason for reason in reasons)


def test_a_fuse_that_died_with_the_agent(leased: Leased) -> None:
    """An agent that finds a leased component without a fuse ends it, and starts it under one."""
    pid = leased.up()
    leased.host.kill_agent()
    for fuse in leased.fuses():
        os.kill(fuse, signal.SIGKILL)
    leased.host.start()
    wait_until(lambda: leased.host.pids()["leased"] not in {pid, None}, "another leased process")
    leased.running()
    assert len(leased.fuses()) == 1


def test_an_agent_stopped_between_its_decision_and_the_start(leased: Leased) -> None:
    """Decided under a lease, continued after it: what was decided is never executed."""
    leased.host.start()
    leased.host.wait_for("authority", state="running")
    (fuse,) = wait_until(leased.fuses, "its fuse is ready")
    os.kill(fuse, signal.SIGSTOP)  # the start waits for its word
    leased.renew()
    leased.host.wait_for("leased", state="starting")
    pid = pause(leased)
    leased.switch.unlink()
    until_ns = boottime_ns() + int(LEASE_S * NS)
    wait_until(lambda: boottime_ns() > until_ns, "the lease is over")
    os.kill(fuse, signal.SIGCONT)
    os.kill(pid, signal.SIGCONT)
    leased.host.wait_for("leased", state="stopped", rule="condition")
    assert not leased.signs_file.exists()


def test_a_stop_of_the_node_takes_the_fuses_along(leased: Leased) -> None:
    """After a clean stop nothing of the agent is left."""
    leased.up()
    assert leased.host.stop() == 0
    wait_until(lambda: not leased.fuses(), "the fuse has ended")
    assert not leased.living()
