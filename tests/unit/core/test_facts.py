"""Leased facts, latches and the way of a change to the disk, as values."""

from dataclasses import replace

import pytest

from node_manager.core import facts, latches
from node_manager.core import writeback as wb
from node_manager.core.durable import DurableFacts, Hold, Latch, Maintenance
from node_manager.core.events import HostState, KeptLease
from node_manager.core.facts import FactTable, Statement
from node_manager.core.latches import (
    Change,
    ControllerLatched,
    ControllerReleased,
    Doubted,
    HoldReleased,
    HoldSet,
    MaintenanceEnded,
    MaintenanceSet,
    OperatorDrainDone,
    OperatorLatched,
    Recommissioned,
    Undrained,
)
from node_manager.core.writeback import RETRY_NS, Pending, Writeback
from tests.unit.core.build import T0, S, spec
from tests.unit.core.hosts import BUDGET, SCHEDULER

FACT = "controller.primary"
MAX = 60 * S


def said(term: int | None = 5, until_ns: int | None = T0 + 20 * S, *, value: bool = True) -> Statement:
    return Statement(fact=FACT, authority="controller", value=value, term=term, valid_until_ns=until_ns)


def table(*statements: Statement) -> FactTable:
    found = FactTable()
    for statement in statements:
        assert facts.refusal(found, statement, MAX, T0) is None
        found = facts.state(found, statement, T0)
    return found


class TestStatements:
    @pytest.mark.parametrize(
        ("statement", "why"),
        [
            (said(None), "no term"),
            (said(4), "term 4 is older than 5"),
            (said(4, value=False), "term 4 is older than 5"),
            (said(5, None), "no validity"),
            (said(5, T0 + MAX + 1), "valid for longer than the 60 s that the role file allows"),
            (said(5, T0), "its validity has passed already"),
            (said(5, T0 + MAX), None),
            (said(6), None),
            (said(5, None, value=False), None),
        ],
    )
    def test_refusal(self, statement: Statement, why: str | None) -> None:
        """A statement is refused for what is wrong with it, in words."""
        assert why == facts.refusal(table(said()), statement, MAX, T0)

    def test_the_longest_validity_of_a_term_counts(self) -> None:
        """Under its term a validity never shrinks; a new term begins with its own."""
        assert table(said(), said(5, T0 + 9 * S)).leased[FACT].valid_until_ns == T0 + 20 * S
        assert table(said(), said(6, T0 + 9 * S)).leased[FACT].valid_until_ns == T0 + 9 * S

    def test_standby_ends_it_at_once(self) -> None:
        """Standby makes the fact false now, and it stays known as false."""
        found = table(said(), said(6, value=False))
        assert facts.value(found, FACT, T0 + 99 * S) is False
        assert found.highest == {FACT: 6}
        assert "controller gave it up (term 6)" in facts.condition(found, FACT, SCHEDULER, T0).reason

    def test_unknown_after_its_end(self) -> None:
        """After its end, and before anything was stated, a fact is unknown."""
        assert facts.value(FactTable(), FACT, T0) is None
        assert facts.value(table(said()), FACT, T0 + 20 * S - 1) is True
        assert facts.value(table(said()), FACT, T0 + 20 * S) is None


class TestConditions:
    def test_never_stated(self) -> None:
        """What nobody has stated is unknown, and says so."""
        assert "nobody has stated it" in facts.condition(FactTable(), FACT, SCHEDULER, T0).reason

    def test_ends_early_enough_to_stop(self) -> None:
        """A condition ends a stop budget before the lease."""
        found = facts.condition(table(said()), FACT, SCHEDULER, T0)
        assert (found.met, found.until_ns) == (True, T0 + 20 * S - BUDGET)
        late = facts.condition(table(said()), FACT, SCHEDULER, T0 + 20 * S - BUDGET)
        assert "was not renewed in time" in late.reason
        assert not late.met

    def test_too_short(self) -> None:
        """A lease as long as the budget is too short, and says so; a restored one may have been longer."""
        short = table(said(5, T0 + BUDGET))
        assert "too short" in facts.condition(short, FACT, SCHEDULER, T0).reason
        kept = KeptLease(fact=FACT, authority="controller", value=True, term=5, valid_until_ns=T0 + S)
        restored = facts.restore((kept,), (), T0)
        assert "not renewed in time" in facts.condition(restored, FACT, SCHEDULER, T0).reason

    @pytest.mark.parametrize(
        ("before", "after", "now", "news"),
        [
            (None, said(), T0, True),
            (said(), said(), T0, False),
            (said(), said(), T0 + 20 * S - BUDGET - 1, False),
            (said(), said(), T0 + 20 * S - BUDGET, True),
            (said(), said(until_ns=T0 + 21 * S), T0, True),
            (said(), said(6), T0, True),
            (said(), said(value=False), T0, True),
            (said(value=False), said(value=False), T0, False),
            (said(value=False), said(6, value=False), T0, True),
        ],
    )
    def test_what_is_news(self, before: Statement | None, after: Statement, now: int, news: bool) -> None:
        """What is said again has dependants decided about anew only where the reason could change: near the end."""
        old = FactTable() if before is None else table(before)
        new = facts.state(old, after, now)
        assert news is facts.is_news(old.leased.get(FACT), new.leased[FACT], SCHEDULER, now)

    def test_what_was_restored_is_news_when_it_is_said(self) -> None:
        """Of a restored lease it is not known when it was stated; now it is."""
        kept = KeptLease(fact=FACT, authority="controller", value=True, term=5, valid_until_ns=T0 + 20 * S)
        old = facts.restore((kept,), (), T0)
        assert facts.is_news(old.leased[FACT], facts.state(old, said(), T0).leased[FACT], SCHEDULER, T0)

    def test_several(self) -> None:
        """Under several leases the one that ends first binds; without a leased condition nothing does."""
        both = replace(SCHEDULER, run_while=(FACT, "lease.p"))
        found = facts.state(table(said()), replace(said(3, T0 + 9 * S), fact="lease.p"), T0)
        lease = facts.lease_of(found, both, T0)
        assert lease is not None
        assert (
            lease.terms,
            lease.valid_until_ns,
            lease.not_after_ns,
        ) == (((FACT, 5), ("lease.p", 3)), T0 + 9 * S, T0 + 9 * S - BUDGET)
        assert facts.lease_of(found, spec(), T0) is None


class TestRestored:
    def test_terms_never_go_back(self) -> None:
        """The highest term of this boot outlives the agent, and the fact that carried it."""
        kept = KeptLease(fact=FACT, authority="controller", value=True, term=5, valid_until_ns=T0 + 9 * S)
        found = facts.restore((kept,), ((FACT, 4), ("lease.p", 7)), T0)
        assert found.highest == {FACT: 5, "lease.p": 7}
        found = facts.only_of(found, {FACT: "another"})
        assert not found.leased
        assert facts.refusal(found, said(4), MAX, T0) is not None

    def test_of_the_same_authority(self) -> None:
        """What the configured authority stated is kept."""
        found = table(said())
        assert found is facts.only_of(found, {FACT: "controller"})


DRAINING = Latch(state="draining", by="ann", reason="", at_wall_ns=1)
DECOMMISSIONED = replace(DRAINING, state="decommissioned")
BY_WORKER = replace(DRAINING, by="worker", epoch=4)
HOLD = Hold(component="web", by="ann", reason="", at_wall_ns=1)
EVERYTHING = DurableFacts(
    epoch_seen=4,
    released_epoch=2,
    controller_latch=BY_WORKER,
    operator_latch=DRAINING,
    holds=(HOLD, replace(HOLD, component="db")),
    maintenance=Maintenance(by="ann", reason="", at_wall_ns=1),
    doubt="torn",
)
CHANGES: tuple[Change, ...] = (
    HoldSet(hold=replace(HOLD, by="bob")),
    HoldReleased(component="web"),
    OperatorLatched(latch=DECOMMISSIONED),
    OperatorLatched(latch=DRAINING),
    OperatorDrainDone(),
    Undrained(),
    Recommissioned(),
    ControllerLatched(latch=replace(BY_WORKER, epoch=5)),
    ControllerLatched(latch=replace(BY_WORKER, epoch=2)),
    ControllerReleased(epoch=5),
    ControllerReleased(epoch=4),
    ControllerLatched(latch=replace(BY_WORKER, epoch=3, state="drained")),
    MaintenanceSet(maintenance=Maintenance(by="bob", reason="", at_wall_ns=2)),
    MaintenanceEnded(),
    Doubted(why="unreadable"),
)


class TestLatches:
    @pytest.mark.parametrize("change", CHANGES, ids=repr)
    @pytest.mark.parametrize("record", [DurableFacts(), EVERYTHING], ids=["empty", "full"])
    def test_twice_is_once(self, record: DurableFacts, change: Change) -> None:
        """A change that is applied twice, as after a write that was repeated, is the same as once."""
        once = latches.apply(record, change)
        assert once == latches.apply(once, change)

    def test_what_each_change_leaves(self) -> None:
        """Each change does what it says, and nothing else."""
        left = {change: latches.apply(EVERYTHING, change) for change in CHANGES}
        db = replace(HOLD, component="db")
        assert (db, replace(HOLD, by="bob")) == left[CHANGES[0]].holds
        assert replace(EVERYTHING, holds=(db,)) == left[CHANGES[1]]
        assert replace(EVERYTHING, operator_latch=DECOMMISSIONED, doubt=None) == left[CHANGES[2]]
        assert replace(EVERYTHING, operator_latch=DRAINING) == left[CHANGES[3]]
        assert replace(EVERYTHING, operator_latch=replace(DRAINING, state="drained")) == left[CHANGES[4]]
        released = replace(EVERYTHING, operator_latch=None, controller_latch=None, released_epoch=4)
        assert released == left[CHANGES[5]]
        assert replace(released, doubt=None) == left[CHANGES[6]]
        newer = replace(BY_WORKER, epoch=5)
        assert replace(EVERYTHING, controller_latch=newer, epoch_seen=5) == left[CHANGES[7]]
        assert left[CHANGES[8]] == EVERYTHING
        assert replace(EVERYTHING, controller_latch=None, epoch_seen=5) == left[CHANGES[9]]
        assert left[CHANGES[10]] == EVERYTHING
        assert left[CHANGES[11]] == EVERYTHING, "a word that a newer one has overtaken"
        assert left[CHANGES[13]].maintenance is None
        assert left[CHANGES[14]].doubt == "unreadable"

    def test_undrain_releases_no_decommission(self) -> None:
        """An undrain leaves a decommission where it is."""
        record = DurableFacts(operator_latch=DECOMMISSIONED, controller_latch=BY_WORKER, epoch_seen=4)
        assert latches.apply(record, Undrained()).operator_latch == DECOMMISSIONED

    def test_drain_done_of_nothing(self) -> None:
        """The end of a drain ends no other state."""
        for record in (DurableFacts(), DurableFacts(operator_latch=DECOMMISSIONED)):
            assert record == latches.apply(record, OperatorDrainDone())

    @pytest.mark.parametrize(
        ("operator", "controller", "ruling"),
        [
            (None, None, None),
            (DRAINING, None, DRAINING),
            (None, BY_WORKER, BY_WORKER),
            (DRAINING, BY_WORKER, DRAINING),
            (DRAINING, replace(BY_WORKER, state="drained"), replace(BY_WORKER, state="drained")),
        ],
    )
    def test_ruling(self, operator: Latch | None, controller: Latch | None, ruling: Latch | None) -> None:
        """The more severe latch rules, the operator's where both are equal."""
        assert ruling == latches.ruling_latch(DurableFacts(operator_latch=operator, controller_latch=controller))

    def test_a_later_state_includes_earlier_ones(self) -> None:
        """A decommissioned host is drained and draining too; a doubtful one could be."""
        record = DurableFacts(operator_latch=DECOMMISSIONED)
        for fact in ("host.draining", "host.drained", "host.decommissioned"):
            assert latches.reached(record, fact)
            assert latches.reached(DurableFacts(doubt="torn"), fact)
            assert not latches.reached(DurableFacts(), fact)

    def test_permissive(self) -> None:
        """What allows more than before is permissive, also a milder latch; nothing else is."""
        severe = DurableFacts(operator_latch=DECOMMISSIONED, controller_latch=replace(BY_WORKER, state="drained"))
        assert latches.is_permissive(severe, OperatorLatched(latch=DRAINING))
        assert latches.is_permissive(severe, ControllerLatched(latch=BY_WORKER))
        assert not latches.is_permissive(DurableFacts(), OperatorLatched(latch=DRAINING))
        assert not latches.is_permissive(DurableFacts(), ControllerLatched(latch=BY_WORKER))
        assert not latches.is_permissive(severe, OperatorLatched(latch=DECOMMISSIONED))
        assert latches.is_permissive(severe, Recommissioned())
        assert not latches.is_permissive(severe, HoldSet(hold=HOLD))


class TestWriteback:
    def pending(self, *changes: Change, durable: DurableFacts | None = None) -> Writeback:
        record = DurableFacts() if durable is None else durable
        state = Writeback(durable=record, in_force=record)
        for change in changes:
            state = wb.add(state, Pending(seq=state.next_seq, change=change))
        return state

    def test_restrictive_at_once_permissive_when_durable(self) -> None:
        """In force is the durable record with the restrictive changes after it."""
        state = self.pending(HoldSet(hold=HOLD), HoldReleased(component="web"))
        assert state.in_force.holds == (HOLD,)
        assert wb.target(state).holds == ()
        state, done = wb.written(state, 1)
        assert ([item.seq for item in done], state.in_force.holds, len(state.pending)) == ([1], (HOLD,), 1)
        state, done = wb.written(state, 2)
        assert ([item.seq for item in done], state.in_force.holds, state.pending) == ([2], (), ())

    def test_a_later_write_carries_the_earlier(self) -> None:
        """A write that succeeds brings everything before it to the disk."""
        state, done = wb.written(self.pending(HoldSet(hold=HOLD), Recommissioned()), 2)
        assert [item.seq for item in done] == [1, 2]
        assert not state.pending

    def test_retry(self) -> None:
        """A failed write is tried again after a while, until one succeeds."""
        state = wb.failed(self.pending(HoldSet(hold=HOLD)), "disk full", T0)
        assert (state.error, state.retry_at_ns) == ("disk full", T0 + RETRY_NS)
        state, _done = wb.written(state, 1)
        assert (state.error, state.retry_at_ns) == (None, None)

    def test_a_repeated_write_that_fails(self) -> None:
        """A repeated write that fails after everything is on the disk is nothing."""
        state, _done = wb.written(self.pending(HoldSet(hold=HOLD)), 1)
        assert state == wb.failed(state, "disk full", T0)

    def test_the_strictest_of_what_may_be_on_the_disk(self) -> None:
        """A milder word that waits for the disk does not soften what rules until then."""
        state = self.pending(OperatorLatched(latch=DRAINING), durable=DurableFacts(operator_latch=DECOMMISSIONED))
        assert HostState.DECOMMISSIONED is latches.host_state(state.in_force)
        assert HostState.DRAINING is latches.host_state(wb.target(state))
