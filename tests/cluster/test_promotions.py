"""Whatever an authority says, and however it is lost or comes late, the last word counts; and it is never disturbed."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.promotions import Script
from tests.integration.host import Host


@pytest.fixture
def script(make_host: Callable[..., Host], place: Path) -> Iterator[Script]:
    """A host with a scripted authority."""
    made = Script(make_host, place, seed=1)
    yield made
    made.end()


def test_the_last_word_counts(script: Script) -> None:
    """Bursts of words at random instants end with each dependant running once under the newest term, or not at all."""
    for _ in range(12):
        script.burst()
    script.undisturbed()


def test_an_agent_that_stands_still_does_not_hold_the_authority_up(script: Script) -> None:
    """With the agent stopped and its queue full, the authority's sends return at once; its last word counts after."""
    for _ in range(3):
        script.burst(meanwhile=script.freeze)
    _longest_ms, full = script.undisturbed()
    assert full >= 3, "each time it was told that the queue is full, and did not wait"


def test_an_authority_that_does_not_read_is_heard_all_the_same(script: Script) -> None:
    """What it does not take costs the agent nothing: its words count."""
    script.deaf()
    for _ in range(6):
        script.burst()
    script.undisturbed()


def test_the_loss_of_the_agent_disturbs_nobody(script: Script) -> None:
    """Killed in the middle of a burst and replaced, the agent adopts what runs and follows the last word."""
    for _ in range(2):
        script.burst(meanwhile=script.lose_agent)
    script.undisturbed()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [2, 3])
def test_thousands_of_words(make_host: Callable[..., Host], place: Path, seed: int) -> None:
    """A thousand words for each seed, with stopped and killed agents and deaf authorities between them."""
    script = Script(make_host, place, seed)
    try:
        while sum(script.said.values()) < 1000:
            meanwhile = {7: script.freeze, 13: script.deaf, 31: script.lose_agent}.get(script.bursts % 40)
            script.burst(meanwhile=meanwhile)
        script.undisturbed()
    finally:
        script.end()
