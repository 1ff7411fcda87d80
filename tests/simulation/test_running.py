"""Running many seeds: what is reported of each, whatever happens in it, and what is counted."""

from itertools import chain
from typing import Any

import pytest

from tests.simulation.__main__ import report, results
from tests.simulation.faults import Fault
from tests.simulation.runner import run_seed
from tests.simulation.summary import Summary, fault_pairs, possible_state_events
from tests.simulation.world import NS_PER_S

SMALL: dict[str, Any] = {"managers": 0, "workers": 2, "hours": 0.02}


def fault(at_s: int, kind: str, host: int, lasts_s: int) -> Fault:
    return Fault(at_s * NS_PER_S, kind, host, lasts_s * NS_PER_S)


def test_seeds_that_run_at_the_same_time_give_what_they_give_alone() -> None:
    """However many processes share the work, each seed gives the same run, and they are reported in their order."""
    alone, together = (list(results(range(1, 5), jobs, SMALL)) for jobs in (1, 2))
    assert [result.seed for result in together] == [1, 2, 3, 4]
    assert alone == together


def test_a_crash_is_a_failure_of_its_seed() -> None:
    """What no invariant foresaw is reported with its seed and where it happened, and the other seeds are run."""
    result = run_seed(1, plan=[fault(20, "no such fault", 0, 1)], **SMALL)
    assert result.failure == "KeyError: 'no such fault'"
    assert "Traceback" in result.log[-1][1]


def test_what_is_shown_of_a_failure_is_the_run_of_the_shrunk_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    """The last events are those that the printed faults lead to: a reader finds in them what has to do with it."""
    plan = [fault(19, "worker killed", 0, 1), fault(20, "no such fault", 0, 1)]
    report(run_seed(1, plan=plan, **SMALL), SMALL, shrunk=True)
    shown = capsys.readouterr().out
    assert "shrunk from 2 to 1 faults: KeyError: 'no such fault'" in shown
    assert "--- no such fault" in shown
    assert "worker killed" not in shown


def test_a_seed_that_passes_keeps_no_log() -> None:
    """Fifty thousand seeds fit into memory."""
    assert run_seed(1, **SMALL).log == []


def test_faults_are_paired_where_they_overlap_or_follow_each_other_on_one_host() -> None:
    """Only pairs that can have met on a host count as covered."""
    plan = [fault(10, "a", 0, 100), fault(20, "b", 0, 1), fault(30, "c", 1, 1), fault(40, "d", 0, 1)]
    assert fault_pairs(plan) == {("a", "b"), ("a", "d"), ("b", "d")}


def test_what_is_seen_is_possible() -> None:
    """The share of pairs that a run covers is of all that exist."""
    found = (run_seed(seed, managers=0, workers=2, hours=0.05) for seed in range(1, 4))
    seen = set(chain.from_iterable(result.state_events for result in found))
    assert seen <= possible_state_events()
    assert ("running", "Beat") in seen


def test_the_summary_names_what_was_never_seen() -> None:
    """Whoever reads it learns which pairs the faults have not reached."""
    summary = Summary()
    summary.add(run_seed(1, **SMALL))
    lines = summary.lines(1.0, verbose=True)
    assert "1 seeds, 0 failed" in lines
    assert "never seen: StopNode in waiting-config" in lines
    assert len(lines) > len(summary.lines(1.0, verbose=False))
