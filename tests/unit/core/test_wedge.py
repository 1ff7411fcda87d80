"""The verdict on a silent process, as a table of what was seen."""

from dataclasses import replace
from itertools import product

import pytest

from node_manager.core.spec import NS_PER_MS, NS_PER_S
from node_manager.core.wedge import MIN_SPAN_NS, SPARED, Sample, Verdict, judge

S, MS = NS_PER_S, NS_PER_MS

FIRST = Sample(at_ns=100 * S, state="S", threads=4, ran_ns=7 * S, tree_ran_ns=3 * S, waited_ns=2 * S, memory_stall_ns=S)
"""The earlier look of every case."""


def later(before: Sample = FIRST, *, span_ns: int = S, ran_ns: int = 0, tree_ns: int = 0, waited_ns: int = 0,
          short_ns: int = 0, **fields: object) -> Sample:  # fmt: skip
    """The second look: what has grown since the first, and what is otherwise."""
    tree_ran_ns = None if before.tree_ran_ns is None else before.tree_ran_ns + tree_ns
    grown = replace(
        before,
        at_ns=before.at_ns + span_ns,
        ran_ns=before.ran_ns + ran_ns,
        tree_ran_ns=tree_ran_ns,
        waited_ns=None if before.waited_ns is None else before.waited_ns + waited_ns,
        memory_stall_ns=None if before.memory_stall_ns is None else before.memory_stall_ns + short_ns,
    )
    return replace(grown, **fields)  # type: ignore[arg-type]


ALONE = replace(FIRST, tree_ran_ns=None)
RUNNABLE = replace(FIRST, state="R", runnable=True)
WAITING = replace(FIRST, state="D", uninterruptible=True)
BARE = replace(FIRST, waited_ns=None, memory_stall_ns=None)

CASES: list[tuple[str, Sample | None, Sample, str, str]] = [
    ("gone", FIRST, later(state=""), "dead", "gone"),
    ("gone at the first look", None, later(state=""), "dead", "gone"),
    ("a zombie", FIRST, later(state="Z", threads=1), "dead", "zombie"),
    ("being released", FIRST, later(state="X", threads=1), "dead", "zombie"),
    ("a zombie in a frozen cgroup", FIRST, later(state="Z", threads=1, frozen=True), "dead", "zombie"),
    ("a main thread that ended, others run", FIRST, later(state="Z", ran_ns=S), "slow", "main thread has ended"),
    ("a main thread that ended, others sleep", FIRST, later(state="Z"), "deadlocked", "main thread has ended"),
    ("a frozen cgroup", FIRST, later(frozen=True), "frozen", "cgroup"),
    ("a frozen cgroup at the first look", None, later(frozen=True), "frozen", "cgroup"),
    ("SIGSTOP", FIRST, later(state="T"), "frozen", "signal"),
    ("SIGSTOP at the first look", None, later(state="T"), "frozen", "signal"),
    ("a debugger", FIRST, later(state="t"), "frozen", "debugger"),
    ("stopped, though it ran before", FIRST, later(state="T", ran_ns=S), "frozen", "signal"),
    ("runnable at both looks, got 9 %", RUNNABLE, later(RUNNABLE, ran_ns=90 * MS), "starved", "waits for a CPU"),
    ("runnable at both looks, got 10 %", RUNNABLE, later(RUNNABLE, ran_ns=100 * MS), "slow", "it ran 0.1 s of 1 s"),
    ("runnable at the second look alone", FIRST, later(state="R", runnable=True), "slow", "less than 1 ms"),
    ("runnable at the first look alone", RUNNABLE, later(RUNNABLE, state="S", runnable=False), "deadlocked", "nothing"),
    ("waited half the time for a CPU", FIRST, later(waited_ns=S // 2), "starved", "waits for a CPU"),
    ("waited less than half", FIRST, later(waited_ns=S // 2 - 1, ran_ns=1), "slow", "less than 1 ms"),
    ("waited half the time and ran as well", FIRST, later(waited_ns=S // 2, ran_ns=S // 4), "slow", "0.25 s"),
    ("a kernel that counts no waits", BARE, later(BARE, waited_ns=S), "deadlocked", "nothing"),
    ("memory short half the time", FIRST, later(short_ns=S // 2), "starved", "memory is short"),
    ("memory short less than half", FIRST, later(short_ns=S // 2 - 1), "deadlocked", "nothing"),
    ("memory short, and it runs all the same", FIRST, later(short_ns=S, ran_ns=S // 2), "slow", "0.5 s"),
    ("D at both looks", WAITING, later(WAITING), "starved", "uninterruptible"),
    ("D at both looks, and runs between", WAITING, later(WAITING, ran_ns=S // 2), "slow", "0.5 s"),
    ("D at the second look alone", FIRST, later(state="D", uninterruptible=True), "deadlocked", "nothing"),
    ("D at the first look alone", WAITING, later(WAITING, state="S", uninterruptible=False), "deadlocked", "nothing"),
    ("nothing ran", FIRST, later(), "deadlocked", "its 4 threads sleep"),
    ("nothing ran, one thread", FIRST, later(threads=1), "deadlocked", "its one thread sleeps"),
    ("one nanosecond ran", FIRST, later(ran_ns=1), "slow", "less than 1 ms"),
    ("a thread that ran has ended", FIRST, later(ran_ns=-5 * S), "slow", "it ran"),
    ("a busy loop", FIRST, later(state="R", runnable=True, ran_ns=S), "slow", "it ran 1 s of 1 s"),
    ("what it started runs", FIRST, later(tree_ns=12 * MS), "slow", "what it started ran 12 ms"),
    ("what is not part of it runs", ALONE, later(ALONE, tree_ran_ns=9 * S), "deadlocked", "nothing"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "verdict", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_each_look_has_its_verdict(before: Sample | None, after: Sample, verdict: str, words: str) -> None:
    """What was seen at two looks gives exactly one verdict, with a sentence that says what it rests on."""
    found = judge(before, after)
    assert found is not None
    assert verdict == found.verdict.value
    assert words in found.detail


def test_two_looks_that_are_too_near_say_nothing() -> None:
    """A verdict that needs a span of time waits until there is one."""
    assert judge(None, FIRST) is None
    assert judge(FIRST, later(span_ns=MIN_SPAN_NS - 1)) is None
    assert judge(FIRST, later(span_ns=MIN_SPAN_NS)) is not None


@pytest.mark.parametrize(
    ("progressed", "ran_ns", "verdict"),
    [
        (None, 0, Verdict.SLOW),
        (True, 0, Verdict.SLOW),
        (False, 9 * MS, Verdict.DEADLOCKED),
        (False, 10 * MS, Verdict.SLOW),
    ],
)
def test_a_component_that_speaks_is_deadlocked_only_if_its_work_stands_still(
    progressed: bool | None, ran_ns: int, verdict: Verdict
) -> None:
    """A thread that goes on beating does not hide that the work is stuck, and work without a counter counts as slow."""
    found = judge(FIRST, later(ran_ns=ran_ns), heard=True, progressed=progressed)
    assert found is not None
    assert verdict is found.verdict


@pytest.mark.parametrize("stopped", [replace(FIRST, state="T"), replace(FIRST, frozen=True)])
def test_time_in_which_it_was_stopped_is_no_time_in_which_it_did_nothing(stopped: Sample) -> None:
    """A process that goes on after a stop is looked at anew, and not taken for deadlocked since."""
    assert judge(stopped, later(FIRST, span_ns=9 * S)) is None


def test_a_component_that_speaks_is_not_starved() -> None:
    """Whoever was heard of meanwhile got what it needed for that."""
    found = judge(RUNNABLE, later(RUNNABLE), heard=True)
    assert found is not None
    assert Verdict.SLOW is found.verdict


def test_a_process_in_which_anything_ran_is_never_deadlocked_by_silence() -> None:
    """Deadlocked, for which even a controller is restarted, is said only where nothing at all ran between the looks."""
    for state, ran_ns, tree_ns, waited_ns, short_ns, flag in product(
        "RSDZIW", (0, 1, 9 * MS, S // 2), (0, 1), (0, S), (0, S), (False, True)
    ):
        before = replace(FIRST, runnable=flag, uninterruptible=not flag)
        after = later(before, state=state, ran_ns=ran_ns, tree_ns=tree_ns, waited_ns=waited_ns, short_ns=short_ns)
        found = judge(before, after)
        assert found is not None
        assert found.verdict is not Verdict.OK, "a late component is not ok"
        if found.verdict is Verdict.DEADLOCKED:
            assert (ran_ns, tree_ns, after.runnable) == (0, 0, False), (state, found)


def test_what_a_restart_does_not_help_is_spared() -> None:
    """Frozen and starved are reported and not killed for silence, and nothing else is."""
    assert {Verdict.FROZEN, Verdict.STARVED} == SPARED
