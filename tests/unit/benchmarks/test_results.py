"""The figures that a comparison of supervisors states: medians, percentiles, ratios."""

from pathlib import Path

import pytest

from benchmarks.peers import results
from benchmarks.peers.results import Results, Sample
from benchmarks.peers.startlog import Note, StartLog, restarts_ms


def sample(peer: str, *values: float, number: int = 0, metric: str = "restart_ms", count: int = 1) -> Sample:
    return Sample(round=number, peer=peer, count=count, metric=metric, values=values)


@pytest.mark.parametrize(
    ("expected", "percent", "values"),
    [(1, 0, (3, 1, 2)), (2, 50, (3, 1, 2)), (3, 99, (3, 1, 2)), (99, 99, range(1, 101)), (7, 50, (7,))],
)
def test_a_percentile_is_a_value_that_was_measured(expected: float, percent: float, values: tuple[float, ...]) -> None:
    """Nearest rank: no value is invented between two, and the 99th of a few is the greatest."""
    assert expected == results.percentile(list(values), percent)


def test_a_spread_covers_all_rounds() -> None:
    """Values of several rounds are summarised together, those of other cells apart."""
    found = Results(
        [
            sample("a", 1, 2),
            sample("a", 9, number=1),
            sample("a", 50, count=100),
            sample("a", 60, metric="stop_ms"),
            sample("b", 70),
        ]
    )
    spread = found.spread("restart_ms", 1, "a")
    assert spread is not None
    assert (spread.median, spread.low, spread.high, spread.p99, spread.values) == (2, 1, 9, 9, 3)
    assert found.rounds() == 2
    assert found.peers() == ["a", "b"]


def test_a_ratio_is_of_medians_and_of_nothing_where_one_is_missing() -> None:
    """No ratio is stated to a peer that was not measured, nor to zero."""
    found = Results([sample("xce", 3, 5, 4), sample("a", 2), sample("idle", 0)])
    assert found.ratio("restart_ms", 1, "xce", "a") == 2
    assert found.ratio("restart_ms", 1, "xce", "gone") is None
    assert found.ratio("restart_ms", 1, "gone", "a") is None
    assert found.ratio("restart_ms", 1, "xce", "idle") is None


def test_raw_data_is_kept_as_it_was(tmp_path: Path) -> None:
    """What is written is read again, line by line, with its notes."""
    written = [
        sample("a", 1.5, 2),
        Sample(round=1, peer="b", count=3, metric="error", values=(), load_percent=7.5, notes={"error": "x"}),
    ]
    for one in written:
        results.write(one, tmp_path / "raw")
    assert written == results.read(tmp_path / "raw")


def test_an_error_makes_no_cell() -> None:
    """What failed is no figure of anything."""
    failed = Sample(round=0, peer="b", count=1, metric="error", values=(), notes={"error": "x", "metric": "stop"})
    assert Results([sample("a", 1), failed]).cells() == [("restart_ms", 1)]


def test_a_restart_is_from_an_end_to_the_next_start_of_the_same_component() -> None:
    """Ends outside the time, and those without a start after them, count not; components are not mixed up."""
    notes = [
        Note(1_000_000, 1, 0, "a", "start"),
        Note(2_000_000, 1, 0, "a", "end"),
        Note(2_500_000, 2, 0, "b", "end"),
        Note(5_000_000, 3, 0, "a", "start"),
        Note(9_000_000, 3, 0, "a", "end"),
        Note(3_500_000, 4, 0, "b", "start"),
        Note(9_900_000, 5, 0, "a", "start"),
        Note(8_000_000, 4, 0, "b", "end"),
    ]
    assert restarts_ms(notes, 2_000_000, 9_000_000) == [1.0, 3.0]


def test_half_a_line_of_the_log_waits_for_its_other_half(tmp_path: Path) -> None:
    """A line that is being written is read once it is whole."""
    log = StartLog(tmp_path / "starts")
    with log.path.open("a") as file:
        file.write("10 7 1 svc0000 start\n20 8 1 svc0")
        file.flush()
        log.poll()
        assert [note.pid for note in log.notes] == [7]
        assert log.all_started(["svc0000"])
        assert not log.all_started(["svc0000"], after_ns=10)
        assert not log.all_started(["svc0000", "svc0001"])
        file.write("001 start\n")
        file.flush()
        log.poll()
    assert [Note(10, 7, 1, "svc0000", "start"), Note(20, 8, 1, "svc0001", "start")] == log.notes
    log.close()
    assert not log.path.exists()
