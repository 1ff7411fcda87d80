"""The page that says which failure is shown by which test."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "explanation" / "failures.md"
REFERENCE = re.compile(r"`((?:faults|integration|unit)/[\w/]+\.py)(?:::(\w+))?`")


@pytest.mark.parametrize(("file", "test"), sorted(set(REFERENCE.findall(PAGE.read_text()))))
def test_every_test_that_it_names_exists(file: str, test: str) -> None:
    """A test that was renamed or removed shows here, not to a reader who looks for it."""
    source = (TESTS / file).read_text()
    assert not test or re.search(rf"^\s*def {test}\(", source, re.MULTILINE)


def test_every_scenario_has_a_row() -> None:
    """1 to 24, in order."""
    rows = re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert list(range(1, 25)) == [int(row) for row in rows]
