"""Named schedules: each kind of failure that hurt users elsewhere has its right outcome here."""

import pytest

from tests.simulation.scenarios import SCENARIOS, Scenario, play


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: f"{scenario.number}: {scenario.name}")
def test_the_outcome_is_right(scenario: Scenario) -> None:
    """Played in every variant, the scenario ends as it must, with every invariant on the way."""
    wrong = {str(variant): problem for variant in scenario.variants if (problem := play(scenario, variant))}
    assert wrong == {}
