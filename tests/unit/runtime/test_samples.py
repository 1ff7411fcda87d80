"""Looks at real processes, and the verdicts that come of them."""

import os
import platform
import signal

import pytest

from node_manager.core.wedge import Verdict
from node_manager.runtime.procfs import ProcFs
from node_manager.runtime.samples import Looks
from tests.unit.runtime.specimens import BUSY, FORK_BUSY, FUTEX, HALF_DEAD, UNINTERRUPTIBLE, frozen_group, running


def test_a_process_that_waits_for_itself_is_deadlocked() -> None:
    """A process whose one thread waits for a lock for ever is told from one that works."""
    with running(FUTEX) as specimen:
        found = specimen.verdict(until=lambda found: found.verdict is Verdict.DEADLOCKED)
    assert found.detail.endswith("its one thread sleeps")


def test_a_busy_loop_is_slow() -> None:
    """A process that uses CPU time and does not answer may be working: it is slow."""
    with running(BUSY) as specimen:
        found = specimen.verdict(until=lambda found: found.verdict is Verdict.SLOW)
    assert "does not answer" in found.detail


def test_what_it_started_counts_where_it_is_part_of_it() -> None:
    """A process that waits for a working child is slow; without the child it would be deadlocked."""
    with running(FORK_BUSY) as specimen:
        alone = specimen.verdict(until=lambda found: found.verdict is Verdict.DEADLOCKED)
        found = specimen.verdict(tree=True, until=lambda found: found.verdict is Verdict.SLOW)
    assert "nothing of it ran" in alone.detail
    assert "what it started ran" in found.detail


def test_a_stopped_process_is_frozen() -> None:
    """SIGSTOP is seen at the first look, and no longer after SIGCONT."""
    with running(FUTEX) as specimen:
        os.kill(specimen.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, specimen.pid, os.WSTOPPED)
        assert Verdict.FROZEN is specimen.verdict().verdict
        os.kill(specimen.pid, signal.SIGCONT)
        os.waitid(os.P_PID, specimen.pid, os.WCONTINUED)
        found = specimen.verdict(until=lambda found: found.verdict is not Verdict.FROZEN)
    assert found.verdict in {Verdict.DEADLOCKED, Verdict.SLOW, Verdict.STARVED}


def test_a_process_in_a_frozen_cgroup_is_frozen() -> None:
    """A frozen cgroup is seen, though the process looks as if it slept."""
    with running(BUSY) as specimen, frozen_group(specimen.pid):
        found = specimen.verdict()
    assert Verdict.FROZEN is found.verdict
    assert "cgroup" in found.detail


def test_uninterruptible_sleep_is_starved() -> None:
    """A process in state D waits for what a restart does not bring, and could not be killed for certain."""
    with running(UNINTERRUPTIBLE) as specimen:
        found = specimen.verdict(until=lambda found: found.verdict is not Verdict.SLOW)
    assert Verdict.STARVED is found.verdict
    assert "uninterruptible" in found.detail


@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="the number of exit(2) is not known here")
def test_a_process_whose_main_thread_has_ended_is_no_zombie() -> None:
    """State Z with living threads is judged by what those threads do."""
    with running(HALF_DEAD) as specimen:
        found = specimen.verdict(until=lambda found: "main thread has ended" in found.detail)
    assert found.verdict in {Verdict.DEADLOCKED, Verdict.SLOW}


def test_a_zombie_and_nobody_are_dead() -> None:
    """An ended process is dead, and so is one whose number is another's by now."""
    looks = Looks()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    stat = ProcFs().stat(pid)
    assert stat is not None
    assert looks.look(pid, stat.start_ticks, tree=True).state == "Z"
    assert looks.look(os.getpid(), stat.start_ticks + 1, tree=True).state == ""
    os.waitpid(pid, 0)
    assert looks.look(pid, stat.start_ticks, tree=True).state == ""
