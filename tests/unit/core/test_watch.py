"""A late component: when it is looked at, what is spared, and what comes before a kill for silence."""

from dataclasses import replace
from typing import Any

import pytest

from node_manager.core.actions import Action, LookAt, Signal, TakeEvidence
from node_manager.core.events import Beat, EvidenceTaken, Looked, Notified, Outcome, ProbeDone, Stalled, Tick
from node_manager.core.spec import ComponentSpec, KillScope, OnFailure, ProbeKind, StopSpec
from node_manager.core.states import State, wake_ns
from node_manager.core.watch import DEADLOCK_PATIENCE_NS, EVIDENCE_WAIT_NS, RELOOK_NS
from node_manager.core.wedge import LOOK_WAIT_NS, MIN_SPAN_NS, Sample, Verdict
from tests.unit.core.build import DOWN, HEARTBEAT, NOTIFY, T0, TCP, Machine, S, spec, told, up

SILENT = spec(liveness=HEARTBEAT)
REPORTED = spec(liveness=replace(HEARTBEAT, on_failure=OnFailure.REPORT))


class Watched(Machine):
    """A component that says hello at T0, beats each second for a while, and is looked at."""

    def __init__(self, component_spec: ComponentSpec = SILENT) -> None:
        super().__init__(component_spec, examined=False)
        self.run()
        self.beat(hello=True, interval_ns=S)

    def beat(self, **fields: Any) -> list[Action]:
        return self.take(Beat(component="web", generation=1, **fields))

    def at(self, after_ns: int) -> list[Action]:
        """Time comes: so long after T0."""
        return self.take(Tick(), at=T0 + after_ns)

    def seen(self, state: str = "S", **fields: Any) -> list[Action]:
        """The look under way comes back, as of now unless `at_ns` is among the fields."""
        given: dict[str, Any] = {"at_ns": self.now, "state": state} | fields
        return self.take(Looked(component="web", generation=1, sample=Sample(**given)))

    def unseen(self) -> list[Action]:
        return self.take(Looked(component="web", generation=1, sample=None, trouble="cannot look at it"))

    def evidence(self, path: str | None = "/e/web-1.txt") -> list[Action]:
        return self.take(EvidenceTaken(component="web", generation=1, path=path, trouble="" if path else "full disk"))

    def silent(self) -> "Watched":
        """Late, seen asleep, then silent: the look that decides is under way."""
        assert told(self.at(2 * S)) == ["LookAt"]
        assert self.seen() == []
        assert told(self.at(3 * S)) == ["LookAt"]
        return self

    @property
    def verdict(self) -> str | None:
        return None if self.state.verdict is None else self.state.verdict.value


def test_nobody_looks_at_what_is_in_time() -> None:
    """As long as beats come there is no look, and the verdict is ok."""
    machine = Watched()
    for second in range(1, 9):
        machine.now = T0 + second * S
        assert machine.beat() == []
    assert machine.verdict == "ok"
    assert wake_ns(machine.state) == machine.now + 2 * S


def test_a_late_beat_calls_for_a_look_and_no_more() -> None:
    """One missing beat: looked at, said to be slow; the next beat ends that, and its late look changes nothing."""
    machine = Watched()
    assert told(machine.at(2 * S)) == ["LookAt"]
    assert machine.verdict == "slow"
    assert machine.at(2 * S + 1) == [], "one look at a time"
    assert machine.beat() == []
    assert machine.verdict == "ok"
    assert machine.seen("T") == []
    assert machine.verdict == "ok"
    assert State.RUNNING is machine.state.state


def test_what_is_only_late_is_not_called_deadlocked() -> None:
    """A component that sleeps while it is late may have nothing to do: deadlocked is said once its probe has failed."""
    machine = Watched()
    machine.at(2 * S)
    machine.seen()
    machine.at(2 * S + MIN_SPAN_NS)
    machine.seen()
    assert machine.verdict == "slow"
    machine.at(3 * S)
    machine.seen()
    assert machine.verdict == "deadlocked"


def test_silence_ends_a_run_after_verdict_and_evidence() -> None:
    """Silent and asleep is deadlocked: evidence is taken, then the stop begins, and its reason says all of it."""
    machine = Watched().silent()
    asked = machine.seen()
    assert told(asked) == ["TakeEvidence"]
    assert machine.verdict == "deadlocked"
    assert isinstance(asked[0], TakeEvidence)
    text = "\n".join(asked[0].said)
    for part in ("silent for 3 intervals of 1000 ms", "deadlocked: nothing of it ran for 1 s", "3000 ms ago, promised"):
        assert part in text
    assert told(machine.evidence()) == ["Signal 15"]
    assert State.STOPPING is machine.state.state
    assert machine.state.reason == (
        "liveness probe failed: silent for 3 intervals of 1000 ms; deadlocked: nothing of it ran for 1 s: "
        "its one thread sleeps"
    )
    assert machine.verdict is None


def test_a_beat_in_the_last_moment_saves_it() -> None:
    """What speaks while its evidence is being taken is not killed, and new silence calls for new evidence."""
    machine = Watched().silent()
    assert told(machine.seen()) == ["TakeEvidence"]
    assert machine.beat() == []
    assert machine.evidence() == []
    assert (machine.verdict, machine.state.state) == ("ok", State.RUNNING)
    assert told(machine.at(5 * S)) == ["LookAt"]
    assert machine.seen() == []
    assert told(machine.at(6 * S)) == ["LookAt"]
    assert told(machine.seen()) == ["TakeEvidence"]


@pytest.mark.parametrize(
    ("state", "fields", "verdict"),
    [
        ("T", {}, "frozen"),
        ("S", {"frozen": True}, "frozen"),
        ("S", {"waited_ns": 3 * S}, "starved"),
        ("D", {"uninterruptible": True}, "starved"),
    ],
)
def test_what_a_restart_does_not_help_is_not_killed(state: str, fields: dict[str, Any], verdict: str) -> None:
    """Frozen and starved are reported, for hours, and looked at again every few seconds."""
    machine = Watched()
    first = fields | ({"waited_ns": 0} if "waited_ns" in fields else {})
    machine.at(2 * S)
    machine.seen(state, **first)
    assert told(machine.at(3 * S)) == ["LookAt"]
    waited_ns = 0
    for _ in range(700):
        waited_ns += RELOOK_NS
        assert machine.seen(state, **(fields | ({"waited_ns": waited_ns} if "waited_ns" in fields else {}))) == []
        assert (machine.verdict, machine.state.state, machine.state.ready) == (verdict, State.RUNNING, False)
        assert wake_ns(machine.state) == machine.now + RELOOK_NS
        assert told(machine.take(Tick(), at=machine.now + RELOOK_NS)) == ["LookAt"]


@pytest.mark.parametrize(
    ("probe", "grace_ns"),
    [(HEARTBEAT, 3 * S), (NOTIFY, 4 * S), (replace(TCP, failure_threshold=1), TCP.period_ns + TCP.timeout_ns)],
)
def test_what_goes_on_has_one_interval_to_be_heard(probe: object, grace_ns: int) -> None:
    """A thawed component is not taken for silent since before it was frozen, and is not spared for ever either."""
    machine = Watched(spec(liveness=probe))
    if probe is NOTIFY:
        machine.take(Notified(component="web", generation=1, watchdog_ns=grace_ns))
    elif probe is HEARTBEAT:
        machine.beat(interval_ns=grace_ns)
    else:
        machine.take(ProbeDone(component="web", generation=1, probe=ProbeKind.LIVENESS, outcome=Outcome.FAILED))
        machine.seen("T")
    machine.at(9 * S)
    machine.seen("T")
    assert machine.verdict == "frozen"
    machine.take(Tick(), at=machine.now + RELOOK_NS)
    thawed_ns = machine.now
    assert machine.seen("S") == []
    assert machine.verdict == "slow"
    looks = [a for a in machine.take(Tick(), at=thawed_ns + grace_ns - 1) if isinstance(a, LookAt)]
    assert looks == []
    assert "LookAt" in told(machine.take(Tick(), at=thawed_ns + grace_ns))
    assert told(machine.seen()) == ["TakeEvidence"]
    assert told(machine.evidence(None)) == ["Signal 15"]


def test_a_component_that_is_thawed_and_beats_is_well() -> None:
    """The first beat after a stop ends the episode."""
    machine = Watched().silent()
    machine.seen("T")
    assert machine.beat() == []
    assert machine.verdict == "ok"


def test_a_stop_seen_before_the_silence_does_not_decide() -> None:
    """Only a look from the failure on decides: one that was frozen when it was late may run by now."""
    machine = Watched()
    machine.at(2 * S)
    machine.seen("T")
    assert machine.verdict == "frozen"
    assert told(machine.at(3 * S)) == ["LookAt"]
    machine.seen("R", ran_ns=S, runnable=True)
    assert (machine.verdict, machine.state.state) == ("slow", State.RUNNING)


def test_a_look_that_was_under_way_at_the_failure_is_repeated() -> None:
    """A look from before the failure only gives the span."""
    machine = Watched()
    assert told(machine.at(2 * S)) == ["LookAt"]
    assert machine.at(3 * S) == [], "one look at a time"
    assert told(machine.seen(at_ns=T0 + 2 * S)) == ["LookAt"]
    assert told(machine.seen()) == ["TakeEvidence"]


def test_a_late_answer_does_not_decide() -> None:
    """A look that was taken before the failure and comes back after it does not say what the process does now."""
    machine = Watched(spec(liveness=NOTIFY))
    machine.take(Notified(component="web", generation=1, watchdog_ns=60 * S))
    machine.at(45 * S)
    machine.now = T0 + 51 * S
    machine.seen(at_ns=T0 + 45 * S)
    assert told(machine.at(56 * S)) == ["LookAt"]
    assert machine.at(60 * S) == []
    assert told(machine.seen(at_ns=T0 + 56 * S)) == ["LookAt"]
    assert told(machine.seen()) == ["TakeEvidence"]


def test_nothing_is_ended_that_waits_for_its_turn_to_stop() -> None:
    """While the node stops and its turn has not come, a silent component is left to that stop."""
    machine = Watched()
    machine.want(up(up=False, held=True))
    machine.silent()
    assert machine.seen() == []
    assert State.RUNNING is machine.state.state


def test_two_looks_are_never_too_near() -> None:
    """A probe that fails at its first answer is decided a moment later, from two looks."""
    machine = Machine(spec(liveness=replace(TCP, failure_threshold=1)), examined=False).run()
    failed = ProbeDone(component="web", generation=1, probe=ProbeKind.LIVENESS, outcome=Outcome.FAILED)
    assert told(machine.take(failed)) == ["LookAt"]
    sample = Sample(at_ns=machine.now, state="S")
    assert machine.take(Looked(component="web", generation=1, sample=sample)) == []
    assert wake_ns(machine.state) == machine.now + MIN_SPAN_NS
    assert told(machine.take(Tick(), at=machine.now + MIN_SPAN_NS)) == ["LookAt"]
    sample = Sample(at_ns=machine.now, state="S", ran_ns=5)
    assert told(machine.take(Looked(component="web", generation=1, sample=sample))) == ["TakeEvidence"]


def test_what_cannot_be_looked_at_is_not_spared() -> None:
    """Where nothing can be seen, silence counts."""
    machine = Watched()
    machine.at(2 * S)
    assert machine.unseen() == [], "late is not silent"
    assert told(machine.at(3 * S)) == ["LookAt"]
    assert told(machine.unseen()) == ["TakeEvidence"]
    assert told(machine.evidence()) == ["Signal 15"]
    assert machine.state.reason == "liveness probe failed: silent for 3 intervals of 1000 ms"


def test_a_look_that_hangs_does_not_hold_up_the_end() -> None:
    """After its bound a look counts as not possible; it is not repeated, and its late answer is taken."""
    machine = Watched().silent()
    assert wake_ns(machine.state) == machine.now + LOOK_WAIT_NS
    assert machine.take(Tick(), at=machine.now + LOOK_WAIT_NS - 1) == []
    assert told(machine.take(Tick(), at=machine.now + 1)) == ["TakeEvidence"]
    assert wake_ns(machine.state) == machine.now + EVIDENCE_WAIT_NS
    assert machine.seen("T") == [], "it is frozen after all"
    assert machine.evidence() == []
    assert (machine.verdict, machine.state.state) == ("frozen", State.RUNNING)
    machine.take(Tick(), at=machine.now + RELOOK_NS)
    machine.seen()
    machine.take(Tick(), at=machine.now + S)
    assert told(machine.seen()) == ["TakeEvidence"], "what it did before it was frozen is not what it does now"


def test_evidence_that_hangs_does_not_hold_up_the_end() -> None:
    """After its bound a kill waits for evidence no longer."""
    machine = Watched().silent()
    machine.seen()
    assert machine.take(Tick(), at=machine.now + EVIDENCE_WAIT_NS - 1) == []
    assert told(machine.take(Tick(), at=machine.now + 1)) == ["Signal 15"]
    assert machine.evidence() == []


def test_a_late_look_that_hangs_says_so_before_anything_has_failed() -> None:
    """A look that hangs while its component is only late ends nothing."""
    machine = Watched(spec(liveness=replace(NOTIFY)))
    machine.take(Notified(component="web", generation=1, watchdog_ns=60 * S))
    assert told(machine.at(45 * S)) == ["LookAt"]
    assert machine.at(50 * S) == []
    assert wake_ns(machine.state) == T0 + 60 * S
    assert machine.at(60 * S - 1) == []
    assert told(machine.at(60 * S)) == []
    assert State.RUNNING is machine.state.state


def test_maintenance_is_patient() -> None:
    """In maintenance it is looked at, and neither evidence is taken nor anything ended."""
    machine = Watched()
    machine.want(up(patient=True))
    machine.silent()
    assert machine.seen() == []
    assert machine.verdict == "deadlocked"
    assert told(machine.want()) == ["TakeEvidence"]
    machine.want(up(patient=True))
    assert machine.take(Tick(), at=machine.now + EVIDENCE_WAIT_NS) == []
    assert wake_ns(machine.state) == machine.now + RELOOK_NS - EVIDENCE_WAIT_NS, "nothing overdue keeps it awake"


def test_a_stop_needs_no_verdict() -> None:
    """An operator's stop is carried out at once, in whatever state the episode is."""
    for steps in range(3):
        machine = Watched().silent()
        for step in (machine.seen, machine.evidence)[:steps]:
            step()
        machine.want(DOWN)
        assert State.STOPPING is machine.state.state
        assert machine.seen() == []
        assert machine.evidence() == []


def test_what_is_reported_is_restarted_only_after_a_minute_of_deadlock() -> None:
    """A controller that reports its failures is ended when it was deadlocked for 60 s without a break, not before."""
    machine = Watched(REPORTED).silent()
    assert machine.seen() == []
    begun_ns = machine.now
    while machine.now + RELOOK_NS < begun_ns + DEADLOCK_PATIENCE_NS:
        assert told(machine.take(Tick(), at=machine.now + RELOOK_NS)) == ["LookAt"]
        assert machine.seen() == []
    assert told(machine.take(Tick(), at=machine.now + RELOOK_NS)) == ["LookAt", "TakeEvidence"]
    machine.seen()
    assert told(machine.evidence()) == ["Signal 15"]
    assert "deadlocked" in machine.state.reason


@pytest.mark.parametrize("breaks", ["slow", "frozen", "unseen", "stalled"])
def test_a_deadlock_with_a_break_begins_anew(breaks: str) -> None:
    """Anything else than deadlocked in between, and time in which nobody could look, starts the minute again."""
    machine = Watched(REPORTED).silent()
    machine.seen()
    for number in range(22):
        machine.take(Tick(), at=machine.now + RELOOK_NS)
        if number % 11 == 10:
            match breaks:
                case "slow":
                    actions = machine.seen(ran_ns=machine.now)
                case "frozen":
                    actions = machine.seen("T")
                case "unseen":
                    actions = machine.unseen()
                case _:
                    actions = machine.take(Stalled(duration_ns=5 * S))
        else:
            actions = machine.seen(ran_ns=0 if number < 10 else (T0 if breaks == "slow" else 0))
        assert not any(isinstance(action, TakeEvidence | Signal) for action in actions)
    assert State.RUNNING is machine.state.state


def test_a_deadlock_at_the_start_is_not_for_the_minute() -> None:
    """A startup probe that only reports never ends a run."""
    machine = Machine(spec(startup=replace(HEARTBEAT, on_failure=OnFailure.REPORT)), examined=False).run()
    machine.take(Tick(), at=T0 + 10 * S)
    for _ in range(40):
        sample = Sample(at_ns=machine.now, state="S")
        assert machine.take(Looked(component="web", generation=1, sample=sample)) == []
        machine.take(Tick(), at=machine.now + RELOOK_NS)
    assert (machine.state.verdict, machine.state.state) == (Verdict.DEADLOCKED, State.STARTING)


def test_a_hang_at_the_start_is_examined_too() -> None:
    """A component that hangs before its first word is ended after verdict and evidence; a frozen one is spared."""
    for state, ended in (("S", True), ("T", False)):
        machine = Machine(spec(startup=HEARTBEAT), examined=False).run()
        assert told(machine.take(Tick(), at=T0 + 10 * S)) == ["LookAt"]
        actions: list[Action] = []
        for _ in range(2):
            sample = Sample(at_ns=machine.now, state=state)
            actions += machine.take(Looked(component="web", generation=1, sample=sample))
            machine.take(Tick(), at=machine.now + MIN_SPAN_NS)
        assert ended is (told(actions) == ["TakeEvidence"])


def test_who_asks_for_its_restart_gets_it() -> None:
    """WATCHDOG=trigger needs no verdict, but leaves evidence."""
    machine = Machine(spec(liveness=NOTIFY), examined=False).run()
    actions = machine.take(Notified(component="web", generation=1, watchdog_trigger=True))
    assert told(actions) == ["LookAt", "TakeEvidence"]
    assert told(machine.take(EvidenceTaken(component="web", generation=1, path=None))) == ["Signal 15"]


def test_a_stall_of_the_agent_forgets_what_was_seen() -> None:
    """Time in which the agent stood still is no time in which the component did nothing."""
    machine = Watched()
    machine.at(2 * S)
    machine.seen()
    machine.take(Stalled(duration_ns=60 * S), at=T0 + 62 * S)
    assert machine.state.run is not None
    before = None if machine.state.run.watch is None else machine.state.run.watch.before
    assert before is None


def test_jobs_are_no_part_of_a_worker() -> None:
    """Under kill scope `process` what the component started does not speak for it."""
    for scope, tree in ((KillScope.PROCESS, False), (KillScope.TREE, True)):
        machine = Watched(replace(SILENT, stop=StopSpec(kill_scope=scope)))
        (look,) = machine.at(2 * S)
        assert isinstance(look, LookAt)
        assert tree is look.tree


def test_progress_tells_work_from_beats() -> None:
    """A component whose beats come while its probe fails is deadlocked only if its PROGRESS stands still."""
    failed = ProbeDone(component="web", generation=1, probe=ProbeKind.LIVENESS, outcome=Outcome.FAILED)
    for progress, verdict in ((7, "deadlocked"), (8, "slow")):
        machine = Watched(spec(liveness=replace(TCP, on_failure=OnFailure.REPORT)))
        machine.beat(progress=7)
        machine.take(failed)
        machine.seen(ran_ns=1)
        machine.now += 2 * S
        machine.beat(progress=progress)
        machine.take(Tick())
        machine.take(failed)
        machine.seen(ran_ns=2)
        assert verdict == machine.verdict


def test_a_core_may_come_first() -> None:
    """`abort_first` aborts what a probe condemns, kills it after the same time-out, and no other stop."""
    aborting = replace(SILENT, stop=StopSpec(abort_first=True, timeout_ns=4 * S, kill_scope=KillScope.PROCESS))
    machine = Watched(aborting).silent()
    machine.seen()
    assert told(machine.evidence()) == ["Signal 6"]
    assert told(machine.take(Tick(), at=machine.now + 4 * S)) == ["Signal 9"]
    assert told(Watched(aborting).want(DOWN)) == ["Signal 15"]


def test_an_answer_of_an_older_generation_changes_nothing() -> None:
    """Looks and evidence of a run that is over are not taken for the present one's."""
    machine = Watched().silent()
    before = machine.state
    sample = Sample(at_ns=machine.now, state="T")
    assert machine.take(Looked(component="web", generation=0, sample=sample)) == []
    assert machine.take(EvidenceTaken(component="web", generation=0, path="/x")) == []
    assert before == machine.state
