"""What the pages of a comparison say about its figures."""

import xml.etree.ElementTree as ET

from benchmarks.peers import picture, report
from benchmarks.peers.metrics import AIMS, METRICS
from benchmarks.peers.results import Results, Sample
from benchmarks.peers.rounds import SHORT_STAGES, STAGES


def sample(peer: str, metric: str, *values: float, count: int = 1) -> Sample:
    return Sample(round=0, peer=peer, count=count, metric=metric, values=values)


def test_the_best_comes_first_with_our_ratio_to_each() -> None:
    """Less is better, and `ours by it` says how many times a peer's median ours is."""
    found = Results([sample("xce", "stop_ms", 30, 31, 32), sample("a", "stop_ms", 62), sample("b", "stop_ms", 15.5)])
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in report.cell(found, "stop_ms", 1).splitlines()]
    assert rows[2:] == [
        ["b", "15.5", "15.5 to 15.5", "15.5", "1", "2.00"],
        ["**xce**", "31.0", "30.0 to 32.0", "32.0", "3", ""],
        ["a", "62.0", "62.0 to 62.0", "62.0", "1", "0.500"],
    ]


def test_more_is_better_of_a_rate() -> None:
    """Queries answered in a second: the greatest comes first."""
    rates = [sample("a", "storm_queries_per_s", 10), sample("b", "storm_queries_per_s", 1000)]
    text = report.cell(Results(rates), "storm_queries_per_s", 1)
    assert text.index("| b |") < text.index("| a |")


def test_an_aim_is_judged_by_its_own_figure_and_peer() -> None:
    """The same samples meet an aim on the median and miss the one on the 99th percentile."""
    ours = sample("xce", "restart_ms", *([1.2] * 98), 9, 9)
    text = report.markdown(Results([ours, sample("floor-asyncio-popen", "restart_ms", 1.0)]), {})
    aims = [line.split("|")[3:-1] for line in text.splitlines() if line.startswith("| crash to restart, ms | 1 |")]
    assert [[cell.strip() for cell in line] for line in aims] == [
        ["median", "1.20", "1.30 (1.3 times floor-asyncio-popen)", "yes"],
        ["p99", "9.00", "2.00 (2 times floor-asyncio-popen)", "no"],
    ]


def test_what_failed_is_named() -> None:
    """A peer that could not be measured is on the page, and not left out in silence."""
    notes = {"metric": "stop", "error": "NotStartedError('3 of 5 started')"}
    failed = Sample(round=0, peer="pm2", count=5, metric="error", values=(), notes=notes)
    text = report.markdown(Results([sample("xce", "stop_ms", 1), failed]), {"xce": "1"})
    assert "| pm2 | 5 | stop | NotStartedError('3 of 5 started') |" in text


def test_a_figure_has_three_digits_that_mean_something() -> None:
    """No exponents, no digits that were not measured."""
    expected = ["0", "0.001", "0.123", "1.23", "12.3", "123", "12,346"]
    assert expected == [report.figure(value) for value in (0, 0.00123, 0.1234, 1.234, 12.34, 123.4, 12345.6)]


def test_pictures_show_every_peer_of_a_metric_and_are_xml() -> None:
    """A bar and a label each; a longer time has a longer bar, on both kinds of scale."""
    for values in ((1, 2, 3), (1, 10, 10_000)):
        peers = ("xce", "floor-c", "s<6")
        found = Results([sample(peer, "restart_ms", value) for peer, value in zip(peers, values, strict=True)])
        root = ET.fromstring(picture.pictures(found))  # noqa: S314 - our own text
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert {"xce", "floor-c", "s<6"} <= set(texts)
        widths = [
            float(bar.attrib["width"]) for bar in root.iter("{http://www.w3.org/2000/svg}rect") if "y" in bar.attrib
        ]
        assert sorted(widths) == widths
        assert len(set(widths)) == 3


def test_every_aim_is_of_a_metric_and_a_size_that_are_measured() -> None:
    """An aim that nothing measures would never be missed."""
    counts = {stage.count for stage in STAGES} | {2}
    assert [aim for aim in AIMS if aim.metric not in METRICS or aim.count not in counts] == []
    assert {metric for stage in STAGES for metric in stage.metrics} == {
        metric for stage in SHORT_STAGES for metric in stage.metrics
    }
