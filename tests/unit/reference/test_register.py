"""The host register: who releases what, and that every change has a higher epoch."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_manager.reference.register import HostRecord, HostState, Refused, Register, host_from_json, host_to_json


def joined() -> tuple[Register, HostRecord]:
    register = Register()
    return register, register.join("h1", "i-1", slots=4, now_ns=1)


def order(register: Register, record: HostRecord, verb: str) -> HostRecord:
    return register.order(record, verb, reason="test", now_ns=2)


def report(register: Register, record: HostRecord, state: HostState) -> HostRecord:
    return register.report(record, state, reason="test", now_ns=2)


def test_a_new_host_is_active_and_a_rejoin_changes_nothing() -> None:
    """The first join makes an entry, another one of the same instance finds it."""
    register, first = joined()
    assert (first.state, first.epoch) == ("active", 1)
    again = register.join("h1", "i-1", slots=8, now_ns=5)
    assert (again.state, again.epoch, again.slots, again.seen_wall_ns) == ("active", 1, 8, 5)


def test_a_name_that_returns_with_another_instance_is_a_new_host() -> None:
    """Nothing is inherited, and the decommissioned instance stays out."""
    register, record = joined()
    order(register, record, "decommission")
    fresh = register.join("h1", "i-2", slots=4, now_ns=9)
    assert (fresh.state, fresh.epoch) == ("active", 1)
    assert register.find("h1") == fresh
    with pytest.raises(Refused, match="decommissioned"):
        register.join("h1", "i-1", slots=4, now_ns=10)


def test_what_the_administrator_decommissioned_the_host_cannot_release() -> None:
    """The rejoin is refused, under an epoch above the one that the host takes for released."""
    register, record = joined()
    record = order(register, record, "decommission")
    with pytest.raises(Refused) as refused:
        register.join("h1", "i-1", slots=4, released_epoch=record.epoch, now_ns=3)
    assert refused.value.code == "decommissioned"
    assert refused.value.record is not None
    assert refused.value.record.epoch > record.epoch
    assert register.get("h1", "i-1") == refused.value.record
    active = order(register, refused.value.record, "recommission")
    assert active.state == "active"
    assert active.epoch > refused.value.record.epoch
    assert register.join("h1", "i-1", slots=4, now_ns=4).state == "active"


def test_what_the_host_reported_the_host_releases() -> None:
    """A rejoin with the epoch of the report or a later one is accepted, under a higher epoch; an older one is not."""
    register, record = joined()
    record = order(register, order(register, record, "drain"), "undrain")
    out = report(register, record, "decommissioned")
    assert (out.by, out.report_epoch) == ("host", record.epoch)
    for released in (None, record.epoch - 1):
        with pytest.raises(Refused):
            register.join("h1", "i-1", slots=4, released_epoch=released, now_ns=3)
    back = register.join("h1", "i-1", slots=4, released_epoch=record.epoch, now_ns=4)
    assert back.state == "active"
    assert back.epoch > out.epoch
    later = report(register, back, "decommissioned")
    with pytest.raises(Refused):
        register.join("h1", "i-1", slots=4, released_epoch=record.epoch, now_ns=5)
    found = register.get("h1", "i-1")
    assert found is not None
    assert (found.state, found.epoch) == ("decommissioned", later.epoch)


def test_the_administrators_word_replaces_the_hosts() -> None:
    """Once the administrator decommissions as well, the host's release is not enough."""
    register, record = joined()
    mine = report(register, record, "decommissioned")
    theirs = order(register, mine, "decommission")
    assert theirs.epoch > mine.epoch
    assert report(register, theirs, "decommissioned") == theirs
    with pytest.raises(Refused):
        register.join("h1", "i-1", slots=4, released_epoch=mine.epoch, now_ns=3)


def test_a_drain_goes_its_way_and_whoever_ordered_it_takes_it_back() -> None:
    """active, draining, drained; the administrator cannot undrain what an operator on the host drains."""
    register, record = joined()
    draining = report(register, record, "draining")
    drained = report(register, draining, "drained")
    assert [draining.state, drained.state] == ["draining", "drained"]
    assert record.epoch < draining.epoch < drained.epoch
    with pytest.raises(Refused, match="xce-nodectl undrain"):
        order(register, drained, "undrain")
    active = register.release(drained, draining.epoch, now_ns=5)
    assert active.state == "active"
    ordered = order(register, active, "drain")
    kept = register.release(ordered, ordered.epoch, now_ns=6)
    assert (kept.state, kept.by) == ("draining", "administrator")
    assert kept.epoch > ordered.epoch
    assert order(register, kept, "undrain").state == "active"


def test_reports_that_add_nothing_change_nothing() -> None:
    """A late or repeated report is answered by what holds."""
    register, record = joined()
    assert report(register, record, "drained") == record
    out = order(register, record, "decommission")
    assert report(register, out, "draining") == out
    assert register.release(record, 0, now_ns=3).state == "active"
    with pytest.raises(Refused, match="recommission"):
        order(register, out, "drain")
    assert order(register, out, "decommission") == out


def test_a_lost_register_goes_on_above_what_the_host_knows() -> None:
    """A worker that knows a higher epoch gets one above it, or it would not believe the controller."""
    register = Register()
    assert register.join("h1", "i-1", slots=4, known_epoch=17, now_ns=1).epoch == 18
    register, _record = joined()
    assert register.join("h1", "i-1", slots=4, known_epoch=5, now_ns=1).epoch == 6
    assert register.join("h1", "i-1", slots=4, released_epoch=30, now_ns=1).epoch == 31


def test_unknown_hosts_and_orders_are_refused() -> None:
    """A refusal names what is wrong."""
    register, record = joined()
    with pytest.raises(Refused, match="no such host"):
        register.find("h9")
    with pytest.raises(Refused, match="no such order"):
        order(register, record, "explode")


def test_an_entry_survives_being_written() -> None:
    """What is written is what is read; a damaged entry is an error, not an empty one."""
    register, record = joined()
    record = order(register, record, "drain")
    assert host_from_json(host_to_json(record)) == record
    for key, value in [("state", "gone"), ("epoch", "1"), ("epoch", True), ("by", 3), ("host", None)]:
        with pytest.raises(ValueError, match="not valid"):
            host_from_json({**host_to_json(record), key: value})
    with pytest.raises(ValueError, match="fields"):
        host_from_json({"host": "h1"})


ORDERS = ("drain", "undrain", "decommission", "recommission")
REPORTS: tuple[HostState, ...] = ("draining", "drained", "decommissioned")
Step = Callable[[Register, HostRecord], object]


def _join(released_epoch: int | None) -> Step:
    return lambda register, _record: register.join("h1", "i-1", slots=4, released_epoch=released_epoch, now_ns=7)


def _release(released_epoch: int) -> Step:
    return lambda register, record: register.release(record, released_epoch, now_ns=7)


def _order(verb: str) -> Step:
    return lambda register, record: order(register, record, verb)


def _report(state: HostState) -> Step:
    return lambda register, record: report(register, record, state)


STEPS = st.one_of(
    st.sampled_from([verb for verb in ORDERS if verb != "recommission"]).map(_order),
    st.sampled_from(REPORTS).map(_report),
    st.integers(0, 30).map(_release),
    st.one_of(st.none(), st.integers(0, 30)).map(_join),
    st.none(),  # the one step that may bring it back
)


@given(st.lists(STEPS, max_size=25))
def test_every_change_of_state_has_a_higher_epoch(steps: list[Step | None]) -> None:
    """No epoch goes back or stands for two states, and no host releases what the administrator decommissioned."""
    register, record = joined()
    for step in steps:
        before = record
        with contextlib.suppress(Refused):
            (step or _order("recommission"))(register, before)
        found = register.get("h1", "i-1")
        assert found is not None
        record = found
        assert record.epoch >= before.epoch
        assert record.state == before.state or record.epoch > before.epoch
        if step is not None and (before.state, before.by) == ("decommissioned", "administrator"):
            assert (record.state, record.by) == ("decommissioned", "administrator")
