"""What each record is judged by."""

from pathlib import Path

import pytest

from node_manager.conformance.judge import Judge
from node_manager.conformance.points import POINTS, Role, Verdicts, points_of
from node_manager.conformance.session import ALWAYS, report, scenes_of
from node_manager.core.spec import NS_PER_S as S
from node_manager.heartbeat.codec import beat_from

NOW = 1000 * S
PRIMARY = {"LEADERSHIP": "primary", "TERM": "5", "VALID_UNTIL_NS": str(NOW + S)}
STANDBY = {"LEADERSHIP": "standby", "TERM": "5"}


class Heard:
    """A judge of a controller, and what it says after some records."""

    def __init__(self, lease_ns: int | None = None) -> None:
        self.verdicts = Verdicts(points_of(Role.CONTROLLER))
        self.judge = Judge(self.verdicts, max_lease_ns=60 * S, lease_ns=lease_ns)

    def record(self, fields: dict[str, str], *, prompt: bool = True) -> "Heard":
        self.judge.record(beat_from(fields, "controller", 1), fields, NOW, prompt=prompt)
        return self

    def holds(self, point: str) -> bool | None:
        return self.verdicts.of(point)[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"LEADERSHIP": "primary", "TERM": "1"},
        {"LEADERSHIP": "standby"},
        {"TERM": "1"},
        {"VALID_UNTIL_NS": "1"},
        {"HOST_STATE": "active"},
        {"EPOCH": "1"},
        {"HOST_STATE": "drained", "EPOCH": "1", "DRAIN_DEADLINE_NS": "1"},
        {"LEASE.p": "held", "LEASE.p.TOKEN": "1"},
        {"LEASE.p": "lost"},
    ],
)
def test_a_statement_that_lacks_a_key_is_broken(fields: dict[str, str]) -> None:
    """The keys of a statement come together, and none without the one that it belongs to."""
    assert Heard().record(fields).holds("statements") is False


@pytest.mark.parametrize(
    "fields",
    [
        {"READY": "1"},
        PRIMARY,
        {"LEADERSHIP": "standby", "TERM": "1"},
        {"HOST_STATE": "draining", "EPOCH": "1"},
        {"HOST_STATE": "draining", "EPOCH": "1", "DRAIN_DEADLINE_NS": "1"},
        {"LEASE.p": "held", "LEASE.p.TOKEN": "1", "LEASE.p.VALID_UNTIL_NS": "1"},
        {"LEASE.p": "lost", "LEASE.p.TOKEN": "1"},
    ],
)
def test_a_whole_statement_is_kept(fields: dict[str, str]) -> None:
    """What may be absent is not missed."""
    assert Heard().record(fields).holds("statements") is True


def test_a_term_that_goes_down_is_broken() -> None:
    """Also where it goes down with standby."""
    assert Heard().record(PRIMARY).record(STANDBY | {"TERM": "4"}).holds("terms") is False


def test_a_new_leadership_needs_a_new_term() -> None:
    """After standby the old term is used up; a renewal and a higher term are right."""
    assert Heard().record(PRIMARY).record(PRIMARY).holds("terms") is True
    again = Heard().record(PRIMARY).record(STANDBY)
    assert again.record(PRIMARY | {"TERM": "6"}).holds("terms") is True
    again = Heard().record(PRIMARY).record(STANDBY)
    assert again.record(PRIMARY).holds("terms") is False


@pytest.mark.parametrize(
    ("left_ns", "lease_ns", "holds"),
    [
        (60 * S, None, True),
        (60 * S + 1, None, False),
        (2 * S - 2 * S // 1000, 2 * S, True),
        (2 * S - 2 * S // 1000 + 1, 2 * S, False),
        (-3 * S, None, False),
    ],
)
def test_a_validity_has_bounds(left_ns: int, lease_ns: int | None, holds: bool) -> None:
    """It is within what an agent believes, within the lease less the difference of clock rates, and not long over."""
    heard = Heard(lease_ns).record(PRIMARY | {"VALID_UNTIL_NS": str(NOW + left_ns)})
    assert holds is heard.holds("validity")


def test_what_the_kit_read_late_is_not_too_old() -> None:
    """A record that waited for the kit is not judged by the time at which it was read."""
    late = Heard().record(PRIMARY | {"VALID_UNTIL_NS": str(NOW - 5 * S)}, prompt=False)
    assert late.holds("validity") is True


def test_an_interval_may_be_late_once_but_not_missed() -> None:
    """Less than two intervals, or two seconds for a busy machine, is no verdict; more is."""
    heard = Heard()
    heard.judge.interval(3 * S, S)
    assert heard.holds("promise") is True
    heard.judge.interval(3 * S + 1, S)
    assert heard.holds("promise") is False


def test_silence_is_found_before_it_ends() -> None:
    """A program that never speaks again is not judged by its next record."""
    heard = Heard()
    heard.judge.silence(5 * S, S)
    assert heard.holds("promise") is None
    heard.judge.silence(5 * S + 1, S)
    assert heard.holds("promise") is False


def test_a_hello_names_the_component_and_comes_in_time() -> None:
    """Another name, another first record, or none within five seconds."""
    right = {"XCE_HEARTBEAT": "1", "COMPONENT": "c", "INTERVAL_MS": "1000"}
    for fields, holds in ((right, True), (right | {"COMPONENT": "d"}, False), ({"BEAT": "1"}, False)):
        heard = Heard()
        heard.judge.first_record(fields, "c", late_ns=S)
        assert holds is heard.holds("hello")
    heard = Heard()
    heard.judge.no_hello_yet(5 * S + 1)
    assert heard.holds("hello") is False


def test_a_point_that_was_not_seen_keeps_a_program_from_conforming() -> None:
    """Only what was seen kept counts; what is recommended may be broken."""
    verdicts = Verdicts(points_of(Role.WORKER))
    for point in verdicts.points.values():
        verdicts.judge(point.name, "", holds=point.mandatory)
    assert verdicts.conforms
    assert list(report(verdicts))[-1] == f"the program conforms: {len(verdicts.points)} points"
    verdicts = Verdicts(points_of(Role.WORKER))
    assert not verdicts.conforms
    verdicts.hold("hello")
    verdicts.fail("hello", "later")
    assert (verdicts.of("hello"), verdicts.conforms) == ((False, "later"), False)


def test_every_point_of_a_role_is_judged_by_a_scene() -> None:
    """No point is listed that nothing can judge, and no scene judges one that does not exist."""
    for role in Role:
        judged = ALWAYS | {name for scene in scenes_of(role) for name in scene.points}
        assert {point.name for point in points_of(role)} <= judged
        assert judged <= {point.name for point in POINTS}


def test_every_point_is_documented() -> None:
    """The reference page lists each point with what it says, and no other."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "conformance.md").read_text()
    listed = [line.split("|") for line in page.splitlines() if line.startswith("| `") and "--" not in line]
    said = {row[1].strip(" `"): row[3].strip().removesuffix(" (recommended)") for row in listed}
    assert {point.name: point.says for point in POINTS} == said
