"""Records to fields and back; no bytes of a peer may do anything but be refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_manager.core.events import Beat, HostState, Leadership, LeaseStatement
from node_manager.heartbeat.codec import (
    MAX_KEYS,
    MAX_LEASES,
    MAX_PARTS,
    MAX_RECORD_BYTES,
    MAX_STATUS_CHARS,
    MAX_VALUE_BYTES,
    MalformedRecord,
    beat_from,
    decode,
    encode,
    part_of,
    split_attribute,
)

KEYS = st.text("ABCXYZabcxyz019_.-", min_size=1, max_size=40).filter(lambda key: key != "PART")
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
HELLO = {"XCE_HEARTBEAT": "1", "COMPONENT": "worker", "INTERVAL_MS": "1000"}


def beat(**fields: str) -> Beat:
    return beat_from(fields, "worker", 3)


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=300))
def test_what_is_encoded_comes_back(fields: dict[str, str]) -> None:
    """Every pair arrives, in one record or in parts that are each a valid record, with control bytes as spaces."""
    records = encode(list(fields.items()))
    seen: dict[str, str] = {}
    for number, record in enumerate(records, 1):
        part = decode(record)
        assert (number, len(records)) == part_of(part)
        part.pop("PART", None)
        seen |= part
    expected = {key: "".join(max(c, " ") for c in value) for key, value in fields.items()}
    assert expected == seen


@given(st.binary(max_size=9000) | st.lists(st.binary(max_size=30), max_size=20).map(b"=".join))
def test_any_bytes_are_fields_or_malformed(record: bytes) -> None:
    """No bytes make the codec raise anything but MalformedRecord."""
    with contextlib.suppress(MalformedRecord):
        beat_from(decode(record), "worker", 1)


KNOWN = (
    *("XCE_HEARTBEAT", "COMPONENT", "INTERVAL_MS", "BEAT", "READY", "LEADERSHIP", "TERM", "VALID_UNTIL_NS", "EPOCH"),
    *("HOST_STATE", "LEASE.p", "LEASE.p.TOKEN", "LEASE.", "LEASE..", "LEASE", "PART", "JOBS"),
)
TEXTS = ("1", "0", "", "held", "primary", "active", "-1", "٣", "1_0", "9" * 19, "9" * 5000, "1/2", "3/2")
LINES = st.tuples(st.sampled_from(KNOWN), st.sampled_from(TEXTS) | st.text(max_size=5))


@given(st.lists(LINES, max_size=12))
def test_known_keys_with_any_values_are_a_beat_or_malformed(lines: list[tuple[str, str]]) -> None:
    """No value of a known key makes the codec raise anything but MalformedRecord, and every number is an int64."""
    try:
        event = beat_from(decode("".join(f"{k}={v}\n" for k, v in lines).encode("utf-8", "replace")), "worker", 1)
    except MalformedRecord:
        return
    for number in (event.beat, event.term, event.valid_until_ns, event.epoch, event.jobs):
        assert number is None or 0 <= number < 2**63


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", "empty record"),
        (b"A=1\n" * 2049, "longer than 8192 bytes"),
        (b"A=\xff\n", "not UTF-8"),
        (b"A\n", "without '='"),
        (b"A=1\n\nB=2\n", "without '='"),
        (b"=1\n", "empty key"),
        (b"A B=1\n", "not a key"),
        ("Ä=1\n".encode(), "not a key"),
        (b"A" * 129 + b"=1\n", "not a key"),
        (b"A=1\nA=1\n", "occurs twice"),
        (b"A=\x00\n", "control byte 0x00"),
        (b"A=1\r\n", "control byte 0x0d"),
        (b"A=\x1b[31m\n", "control byte 0x1b"),
        ("".join(f"K{n}=\n" for n in range(MAX_KEYS + 1)).encode(), "more than 512 keys"),
    ],
)
def test_malformed_records_are_refused_with_their_reason(record: bytes, reason: str) -> None:
    """Each way to break the grammar is told apart."""
    with pytest.raises(MalformedRecord, match=reason):
        decode(record)


@pytest.mark.parametrize("record", [b"A=1\nB=x=y\n", b"A=1\nB=x=y"])
def test_the_last_newline_may_be_missing(record: bytes) -> None:
    """As in sd_notify(3); and a value may hold an equals sign."""
    assert decode(record) == {"A": "1", "B": "x=y"}


def test_a_key_and_its_attributes_stay_in_one_part() -> None:
    """A reader of parts never sees a fact with the term of another time."""
    pairs = []
    for number in range(200):
        pairs += [(f"FACT.f{number}", "true"), (f"FACT.f{number}.TERM", "1"), (f"FACT.f{number}.VALID_UNTIL_NS", "2")]
    records = encode(pairs)
    assert len(records) > 1
    for record in records:
        assert len(record) <= MAX_RECORD_BYTES
        fields = decode(record)
        facts = {key for key in fields if split_attribute(key)[1] is None and key != "PART"}
        assert all(f"{fact}.TERM" in fields and f"{fact}.VALID_UNTIL_NS" in fields for fact in facts)


def test_attributes_that_change_together_stay_in_one_part() -> None:
    """A renewal under a new term never arrives as the new validity with the old term, though the fact is not named."""
    pairs = []
    for number in range(300):
        pairs += [(f"FACT.f{number}.TERM", "1"), (f"FACT.f{number}.VALID_UNTIL_NS", "2")]
    records = encode(pairs)
    assert len(records) > 1
    for record in records:
        fields = decode(record)
        terms = {key.removesuffix(".TERM") for key in fields if key.endswith(".TERM")}
        assert {key.removesuffix(".VALID_UNTIL_NS") for key in fields if key.endswith("_NS")} == terms


@pytest.mark.parametrize("room", range(8100, 8200, 7))
def test_a_statement_is_never_divided(room: int) -> None:
    """Wherever a part ends, a leadership goes with its term and validity, a host's state with its epoch."""
    pairs = [("STATUS", "x" * 2000), *((f"A{n}", "x" * 2000) for n in range(3)), ("B", "x" * (room - 8040))]
    pairs += [("LEADERSHIP", "primary"), ("TERM", "1"), ("VALID_UNTIL_NS", "2")]
    pairs += [("HOST_STATE", "draining"), ("EPOCH", "1"), ("DRAIN_DEADLINE_NS", "2")]
    for record in encode([*pairs, ("C", "x" * 2000)]):
        fields = decode(record)
        assert ("LEADERSHIP" in fields) == ("TERM" in fields) == ("VALID_UNTIL_NS" in fields)
        assert ("HOST_STATE" in fields) == ("EPOCH" in fields) == ("DRAIN_DEADLINE_NS" in fields)


def test_a_state_has_at_most_eight_parts_and_keeps_what_comes_first() -> None:
    """A sender's state is bounded; what was put first gets through."""
    records = encode([(f"K{number}", "x" * 1000) for number in range(200)])
    assert len(records) == MAX_PARTS
    assert part_of(decode(records[0])) == (1, MAX_PARTS)
    assert "K0" in decode(records[0])


def test_a_group_larger_than_a_part_is_cut_between_lines() -> None:
    """Nothing is lost for having too many attributes."""
    pairs = [("A", "x"), *((f"A.{number}", "x" * 1000) for number in range(20))]
    seen = {key for record in encode(pairs) for key in decode(record)}
    assert {key for key, _ in pairs} | {"PART"} == seen


def test_a_long_value_is_cut_at_a_character() -> None:
    """A text for people never makes a record invalid."""
    (record,) = encode([("STATUS", "x" + "é" * 5000)])
    assert decode(record)["STATUS"] == "x" + "é" * (MAX_VALUE_BYTES // 2 - 1)


def test_a_lone_surrogate_is_replaced() -> None:
    """Text from file names (surrogateescape) never makes a sender fail."""
    assert encode([("STATUS", "a\udc80b")]) == [b"STATUS=a?b\n"]


@pytest.mark.parametrize(
    "pairs", [[("", "1")], [("A B", "1")], [("A=", "1")], [("PART", "1/2")], [("A", ""), ("A", "")]]
)
def test_a_wrong_key_is_the_callers_error(pairs: list[tuple[str, str]]) -> None:
    """A sender of ours cannot make a record that the other side refuses."""
    with pytest.raises(ValueError, match="cannot encode"):
        encode(pairs)


def test_a_hello_becomes_a_beat_that_says_so() -> None:
    """The promise and the template of a hello reach the core, in its units."""
    event = beat(**HELLO, TEMPLATE="spot", BEAT="1")
    expected = Beat(component="worker", generation=3, hello=True, interval_ns=1_000_000_000, beat=1, template="spot")
    assert expected == event


def test_every_statement_reaches_the_core() -> None:
    """Each key of version 1 has its place in the event; unknown keys change nothing."""
    event = beat(
        BEAT="7", READY="1", STOPPING="0", STATUS="busy", PROGRESS="4", JOBS="2", LEADERSHIP="primary", TERM="9",
        VALID_UNTIL_NS="11", HOST_STATE="draining", EPOCH="5", DRAIN_DEADLINE_NS="12", FUTURE="x",
        **{"LEASE.p": "held", "LEASE.p.TOKEN": "3", "LEASE.p.VALID_UNTIL_NS": "4", "LEASE.q": "lost",
           "LEASE.q.NEW": "x"},
    )  # fmt: skip
    expected = Beat(
        component="worker", generation=3, beat=7, ready=True, stopping=False, status="busy", progress=4, jobs=2,
        leadership=Leadership.PRIMARY, term=9, valid_until_ns=11, host_state=HostState.DRAINING, epoch=5,
        drain_deadline_ns=12,
        leases=(
            LeaseStatement(name="p", held=True, token=3, valid_until_ns=4),
            LeaseStatement(name="q", held=False),
        ),
    )  # fmt: skip
    assert expected == event


def test_what_is_not_mentioned_is_none() -> None:
    """Silence about a level is not a statement."""
    assert Beat(component="worker", generation=3, beat=1) == beat(BEAT="1")


def test_a_status_is_kept_to_one_lines_length() -> None:
    """A component cannot fill the agent's memory by its status."""
    assert beat(STATUS="x" * 4000).status == "x" * MAX_STATUS_CHARS


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("INTERVAL_MS", text) for text in ("99", "60001", "", "1s", "1_000", "٣00", " 1000", "+1000")),
        *(("BEAT", text) for text in ("-1", "9223372036854775808", "9" * 4000, "1.0", "٣", "")),
        *((key, "x") for key in ("PROGRESS", "JOBS", "TERM", "VALID_UNTIL_NS", "EPOCH", "DRAIN_DEADLINE_NS")),
        *((key, text) for key in ("READY", "STOPPING") for text in ("2", "true", "")),
        ("LEADERSHIP", "leader"),
        ("HOST_STATE", "DRAINED"),
        ("LEASE.p", "yes"),
        ("LEASE.", "held"),
        ("LEASE.p.TOKEN", "1"),
        ("LEASE.p.VALID_UNTIL_NS", "1"),
        ("TEMPLATE", "x" * 257),
        *(("PART", text) for text in ("1", "0/2", "3/2", "1/9", "a/b", "1/2/3")),
    ],
)
def test_values_out_of_range_are_malformed(key: str, value: str) -> None:
    """A value that the protocol does not allow is refused, by its key."""
    with pytest.raises(MalformedRecord, match=key.partition(".")[0]):
        beat(**{key: value})


@pytest.mark.parametrize("missing", ["COMPONENT", "INTERVAL_MS"])
def test_a_hello_must_say_who_and_how_often(missing: str) -> None:
    """A hello without its name or promise is refused."""
    with pytest.raises(MalformedRecord, match=f"a hello needs {missing}"):
        beat(**{key: value for key, value in HELLO.items() if key != missing})


def test_an_unknown_version_is_told() -> None:
    """A component of a later protocol learns from the log which version this agent speaks."""
    with pytest.raises(MalformedRecord, match="unknown protocol version '2': this agent speaks XCE_HEARTBEAT=1"):
        beat(**(HELLO | {"XCE_HEARTBEAT": "2"}))


def test_too_many_leases_are_refused() -> None:
    """One record cannot make an event without bound."""
    with pytest.raises(MalformedRecord, match="leases"):
        beat(**{f"LEASE.l{number}": "held" for number in range(MAX_LEASES + 1)})


def test_an_error_repeats_little_of_what_a_peer_said() -> None:
    """A peer cannot fill the log through error messages."""
    with pytest.raises(MalformedRecord) as caught:
        beat(LEADERSHIP="x" * 8000)
    assert len(caught.value.reason) < 120
