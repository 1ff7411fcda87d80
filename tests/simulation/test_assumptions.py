"""Every assumption of the design is needed, and enough: its run passes with it and breaks without it."""

import pytest

from tests.simulation.assumptions import ASSUMPTIONS, SEEDS, Assumption, broken_invariant, refused_writes


@pytest.mark.parametrize("assumption", ASSUMPTIONS, ids=lambda assumption: assumption.name)
def test_each_assumption_is_needed(assumption: Assumption) -> None:
    """The same run breaks no invariant with the assumption, and the named one without it, whatever the seed."""
    for seed in SEEDS:
        assert broken_invariant(assumption, seed, kept=True) is None
        assert broken_invariant(assumption, seed, kept=False) == assumption.breaks


@pytest.mark.parametrize("assumption", ASSUMPTIONS, ids=lambda assumption: assumption.name)
def test_the_term_is_the_second_line(assumption: Assumption) -> None:
    """Where an assumption fails and two schedulers write, the receiver refuses the older one by its term."""
    assert (refused_writes(assumption, SEEDS[0]) > 0) is assumption.writes_are_refused
