"""Delays between restarts, and the start limit."""

from hypothesis import given
from hypothesis import strategies as st

from node_manager.core import backoff
from node_manager.core.events import JITTER_STEPS
from node_manager.core.spec import RestartSpec
from tests.unit.core.build import T0, S

DEFAULT = RestartSpec()
SPECS = st.builds(
    RestartSpec,
    initial_ns=st.integers(1, 10 * S),
    factor=st.integers(1, 10),
    cap_ns=st.integers(1, 100 * S),
    limit=st.none() | st.integers(1, 5),
)


def test_defaults() -> None:
    """0.1 s, doubled with each failure, at most 30 s."""
    delays = [backoff.delay_ns(DEFAULT, failures, 0) for failures in range(11)]
    assert [S // 10 * 2**n for n in range(9)] + [30 * S, 30 * S] == delays


def test_constant_delay() -> None:
    """A factor of 1 is a constant delay, however many failures there were."""
    assert backoff.delay_ns(RestartSpec(initial_ns=S, factor=1), 10**9, 0) == S


@given(SPECS, st.integers(0, 10_000), st.integers(0, JITTER_STEPS - 1))
def test_delay_is_bounded(spec: RestartSpec, failures: int, jitter: int) -> None:
    """A delay never exceeds its cap, jitter takes at most a fifth off, and more failures never shorten it."""
    full = backoff.delay_ns(spec, failures, 0)
    assert full <= spec.cap_ns
    assert full - full // 5 <= backoff.delay_ns(spec, failures, jitter) <= full
    assert full <= backoff.delay_ns(spec, failures + 1, 0)


def test_counted_from_the_start_of_the_run() -> None:
    """The delay counts from the start of the run that failed: one that lived longer is followed by the next at once."""
    assert backoff.after_run(DEFAULT, failures=3, started_ns=T0, ended_ns=T0 + S // 2, jitter=0) == (
        4,
        T0 + 8 * S // 10,
    )
    assert backoff.after_run(DEFAULT, failures=3, started_ns=T0, ended_ns=T0 + 2 * S, jitter=0) == (4, T0 + 2 * S)


def test_forgotten_after_a_stable_run() -> None:
    """A run as long as the reset makes the next failure the first one."""
    just_before = backoff.remembered(DEFAULT, failures=5, started_ns=T0, ended_ns=T0 + 60 * S - 1)
    after = backoff.remembered(DEFAULT, failures=5, started_ns=T0, ended_ns=T0 + 60 * S)
    assert (just_before, after) == (5, 0)


def test_no_limit_by_default() -> None:
    """An agent does not give up, and remembers no starts it does not need."""
    assert not backoff.limit_reached(DEFAULT, (T0,) * 1000, T0)
    assert backoff.recent(DEFAULT, (T0,) * 1000, T0) == ()


def test_limit_within_its_window() -> None:
    """Starts count for the limit as long as the window says, and no more of them are kept than the limit."""
    spec = RestartSpec(limit=2, limit_window_ns=10 * S)
    starts = (T0, T0 + 5 * S)
    assert backoff.limit_reached(spec, starts, T0 + 9 * S)
    assert not backoff.limit_reached(spec, starts, T0 + 10 * S)
    assert starts == backoff.recent(spec, (T0 - S, *starts), T0 + 5 * S)
