"""Fixtures of the fault suite, its markers, and its summary."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.ledger import HARM, INJECTED, Ledger, render
from tests.integration.conftest import leftovers, make_host, place
from tests.integration.host import Host
from tests.integration.leasing import entering
from tests.unit.runtime.cgroups import delegated, needs_cgroups

__all__ = ["leftovers", "make_host", "place"]

_HERE = Path(__file__).parent
_TESTS = "tests"
_LIMIT_S = 600
"""Of one test: it waits within bounds of its own, and its many agents start slowly on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the whole suite: `-m faults` runs it alone, `-m "not slow"` leaves it out."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker("faults")
            item.add_marker("slow")
            item.add_marker(pytest.mark.timeout(_LIMIT_S))


@pytest.fixture
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    """The account of this test; the summary adds all of them up, whichever process ran them."""
    made = Ledger()
    yield made
    request.node.user_properties.extend((f"faults/{name}", count) for name, count in made.counts.items())


@pytest.fixture(params=["session", pytest.param("cgroup", marks=needs_cgroups)])
def fenced(request: pytest.FixtureRequest) -> Iterator[Callable[[Host], str]]:
    """Have the agents of a host fence by sessions, or by cgroups in a delegated one; returns which."""
    if request.param == "session":
        yield lambda _host: "session"
        return

    def arrange(host: Host) -> str:
        entering(groups.enter_context(delegated()), host.base / "bin" / "xce-node-manager")
        return "cgroup"

    with ExitStack() as groups:
        yield arrange


@pytest.fixture
def dice() -> random.Random:
    """The random choices of a test, and their seed, which a failure shows."""
    seed = int(os.environ.get("XCE_FAULTS_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"XCE_FAULTS_SEED={seed}")  # noqa: T201 - a failure shows it
    return random.Random(seed)  # noqa: S311 - chance, no secret


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was injected and what came of it."""
    totals: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) != "teardown":
                continue
            ours = [(key, value) for key, value in report.user_properties if key.startswith("faults/")]
            totals[_TESTS] += bool(ours)
            for key, value in ours:
                totals[key.removeprefix("faults/")] += value
    if totals[_TESTS]:
        terminalreporter.section("fault suite")
        for line in render(totals, totals[_TESTS]):
            terminalreporter.line(line)
        assert set(totals) <= {INJECTED, *HARM, _TESTS}
