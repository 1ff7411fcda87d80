"""Probes: thresholds, cadence, and what heartbeats and sd_notify say."""

from dataclasses import replace
from typing import Any

import pytest

from node_manager.core import component, probes
from node_manager.core.actions import Log, RunProbe
from node_manager.core.events import (
    Beat,
    ExitStatus,
    Found,
    Notified,
    Outcome,
    PreStartDone,
    ProbeDone,
    Spawned,
    Stalled,
    Tick,
)
from node_manager.core.happenings import Adopted, Gone, Updated
from node_manager.core.probes import ProbeState
from node_manager.core.run import MAX_STATUS_CHARS, RECONNECT_NS
from node_manager.core.spec import ComponentSpec, KillScope, OnFailure, ProbeKind, ProbeSpec, StopSpec, TcpCheck
from node_manager.core.states import State, wake_ns
from node_manager.core.watch import RELOOK_NS
from node_manager.core.wedge import Verdict
from tests.unit.core.build import HEARTBEAT, MS, NOTIFY, PRE_START, T0, TCP, Machine, S, spec, told, up

THREE = ProbeSpec(check=TcpCheck(port=1), success_threshold=2, failure_threshold=3)


def answer(state: ProbeState, *outcomes: Outcome) -> ProbeState:
    for outcome in outcomes:
        state = probes.answer(THREE, state, outcome, "")
    return state


def beat(**fields: Any) -> Beat:
    return Beat(component="web", generation=1, **fields)


def notified(**fields: Any) -> Notified:
    return Notified(component="web", generation=1, **fields)


def answered(probe: ProbeKind, outcome: Outcome) -> ProbeDone:
    return ProbeDone(component="web", generation=1, probe=probe, outcome=outcome, detail="refused")


class TestThresholds:
    def test_failures_in_a_row(self) -> None:
        """It takes failures in a row to fail, and successes in a row to pass again."""
        two = answer(ProbeState(), Outcome.FAILED, Outcome.FAILED, Outcome.OK, Outcome.FAILED, Outcome.FAILED)
        assert two.verdict is None
        failed = answer(two, Outcome.FAILED)
        assert failed.verdict is False
        assert answer(failed, Outcome.OK).verdict is False
        assert answer(failed, Outcome.OK, Outcome.FAILED, Outcome.OK).verdict is False
        assert answer(failed, Outcome.OK, Outcome.OK).verdict is True

    def test_unknown_counts_as_nothing(self) -> None:
        """A probe that could not run breaks no row and begins none."""
        outcomes = [Outcome.FAILED, Outcome.UNKNOWN, Outcome.FAILED, Outcome.UNKNOWN, Outcome.FAILED]
        assert answer(ProbeState(), *outcomes).verdict is False
        assert answer(ProbeState(), *[Outcome.UNKNOWN] * 10).verdict is None

    def test_counts_are_bounded(self) -> None:
        """Counts stop at their thresholds."""
        state = answer(ProbeState(), *[Outcome.FAILED] * 100)
        assert state.failures == 3
        assert answer(state, *[Outcome.OK] * 100).successes == 2

    @pytest.mark.parametrize(("late_ns", "next_s"), [(0, 10), (1, 10), (10 * S, 20), (99 * S, 100)])
    def test_cadence(self, late_ns: int, next_s: int) -> None:
        """However late a probe runs, the next one is in step with the first; missed ones are not made up."""
        state = probes.schedule(ProbeSpec(check=TcpCheck(port=1)), ProbeState(next_ns=T0), T0 + late_ns)
        assert T0 + next_s * S == state.next_ns

    def test_the_first_one_of_all(self) -> None:
        """A probe that was not planned yet counts from now."""
        assert probes.schedule(ProbeSpec(check=TcpCheck(port=1)), ProbeState(), T0).next_ns == T0 + 10 * S


class TestActive:
    def test_initial_delay_counts_from_the_start(self) -> None:
        """The first probe waits for its initial delay, counted from the start of the process."""
        machine = Machine(spec(readiness=replace(TCP, initial_delay_ns=5 * S)))
        machine.want()
        machine.take(Spawned(component="web", generation=1, pid=7), at=T0 + 2 * S)
        assert wake_ns(machine.state) == T0 + 5 * S
        assert told(machine.take(Tick(), at=T0 + 5 * S)) == ["RunProbe"]

    def test_pre_start_is_no_part_of_the_start(self) -> None:
        """The time that the check before the start takes does not count for the process's grace."""
        machine = Machine(spec(pre_start=PRE_START, startup=HEARTBEAT))
        machine.want()
        machine.take(PreStartDone(component="web", generation=1, ok=True), at=T0 + 9 * S)
        machine.take(Spawned(component="web", generation=1, pid=7))
        assert wake_ns(machine.state) == T0 + 19 * S

    def test_startup_first(self) -> None:
        """Readiness and liveness wait for the startup probe; once passed it is never asked again."""
        machine = Machine(spec(startup=replace(TCP, period_ns=S), readiness=TCP, liveness=TCP))
        machine.want()
        actions = machine.take(Spawned(component="web", generation=1, pid=7))
        assert [action.probe for action in actions if isinstance(action, RunProbe)] == [ProbeKind.STARTUP]
        actions = machine.take(answered(ProbeKind.STARTUP, Outcome.OK))
        assert State.RUNNING is machine.state.state
        kinds = [action.probe for action in actions if isinstance(action, RunProbe)]
        assert kinds == [ProbeKind.READINESS, ProbeKind.LIVENESS]
        assert wake_ns(machine.state) == T0 + 2 * S
        assert machine.take(answered(ProbeKind.STARTUP, Outcome.FAILED)) == []

    def test_startup_fails(self) -> None:
        """A startup probe that fails often enough ends the run, as after a crash."""
        machine = Machine(spec(startup=TCP)).run()
        machine.take(answered(ProbeKind.STARTUP, Outcome.FAILED))
        assert machine.state.state.value == "starting"
        assert told(machine.take(answered(ProbeKind.STARTUP, Outcome.FAILED))) == ["Signal 15"]
        assert machine.state.reason == "startup probe failed: refused"

    def test_readiness_stops_nothing(self) -> None:
        """A component that is not ready is not restarted; it is ready only after its first success."""
        machine = Machine(spec(readiness=TCP)).run()
        assert machine.state.ready is False
        machine.take(answered(ProbeKind.READINESS, Outcome.OK))
        assert machine.state.ready is True
        for _ in range(10):
            machine.take(answered(ProbeKind.READINESS, Outcome.FAILED))
        assert (machine.state.state, machine.state.ready) == (State.RUNNING, False)

    def test_report_only(self) -> None:
        """`on_failure: report` says so once for each failure, and restarts nothing."""
        machine = Machine(spec(liveness=replace(TCP, failure_threshold=1, on_failure=OnFailure.REPORT))).run()
        logs = []
        for outcome in (Outcome.FAILED, Outcome.FAILED, Outcome.OK, Outcome.FAILED):
            machine.state, actions = component.step(
                machine.spec, machine.state, answered(ProbeKind.LIVENESS, outcome), machine.now
            )
            logs += [a.event for a in actions if isinstance(a, Log)]
        assert logs.count("component.probe_failed") == 2
        assert State.RUNNING is machine.state.state

    def test_maintenance_is_patient(self) -> None:
        """In maintenance no probe kills; afterwards the verdict counts."""
        machine = Machine(spec(liveness=replace(TCP, failure_threshold=1))).run()
        machine.want(up(patient=True))
        assert machine.take(answered(ProbeKind.LIVENESS, Outcome.FAILED)) == []
        assert told(machine.want()) == ["Signal 15"]


class TestHeartbeat:
    def test_startup_is_the_hello(self) -> None:
        """The startup probe passes at the hello and fails at its deadline."""
        machine = Machine(spec(startup=HEARTBEAT)).run()
        assert wake_ns(machine.state) == T0 + 10 * S
        machine.take(beat(hello=True, interval_ns=S))
        assert State.RUNNING is machine.state.state
        silent = Machine(spec(startup=HEARTBEAT)).run()
        assert told(silent.take(Tick(), at=T0 + 10 * S)) == ["Signal 15"]
        assert silent.state.reason == "startup probe failed: no hello within 10 s"

    def test_startup_reported(self) -> None:
        """A startup probe that only reports leaves the process alone, and passes late."""
        machine = Machine(spec(startup=replace(HEARTBEAT, on_failure=OnFailure.REPORT))).run()
        assert machine.take(Tick(), at=T0 + 10 * S) == []
        assert wake_ns(machine.state) == T0 + 10 * S + RELOOK_NS
        machine.take(beat(status="still busy"))
        assert machine.state.state.value == "starting"
        machine.take(beat(hello=True, interval_ns=S))
        assert State.RUNNING is machine.state.state

    def test_a_hello_faster_than_the_answer_to_the_spawn(self) -> None:
        """What a process says before its spawn was answered is not lost."""
        machine = Machine(spec(startup=HEARTBEAT, readiness=HEARTBEAT))
        machine.want()
        machine.take(beat(hello=True, interval_ns=S, ready=True))
        machine.take(notified(ready=True))
        machine.take(Spawned(component="web", generation=1, pid=7))
        assert (machine.state.state, machine.state.ready) == (State.RUNNING, True)

    def test_readiness_is_its_word(self) -> None:
        """Ready is what it says; silence makes it unknown, and STOPPING=1 takes it back."""
        machine = Machine(spec(readiness=HEARTBEAT)).run()
        assert machine.state.ready is False
        machine.take(beat(hello=True, interval_ns=S, ready=True))
        assert machine.state.ready is True
        machine.take(Tick(), at=T0 + 3 * S)
        assert machine.state.ready is None
        machine.take(beat())
        assert machine.state.ready is True
        machine.take(beat(stopping=True))
        assert machine.state.ready is False

    def test_liveness_by_its_own_promise(self) -> None:
        """Silent is who is late by three of the intervals that it promised; before its hello it is unknown."""
        machine = Machine(spec(liveness=HEARTBEAT)).run()
        assert machine.take(Tick(), at=T0 + 600 * S) == []
        machine.take(beat(hello=True, interval_ns=200 * MS))
        assert machine.now + 400 * MS == wake_ns(machine.state)
        assert machine.take(Tick(), at=machine.now + 400 * MS) == []
        assert machine.now + 200 * MS == wake_ns(machine.state)
        assert machine.take(beat(), at=machine.now + 199 * MS) == []
        assert told(machine.take(Tick(), at=machine.now + 600 * MS)) == ["Signal 15"]

    def test_what_it_says_is_kept(self) -> None:
        """Status text is bounded; jobs, progress and epoch are kept until they are stated anew."""
        machine = Machine(spec()).run()
        machine.take(beat(status="x" * 1_000, jobs=3, progress=4, epoch=5))
        machine.take(beat())
        run = machine.state.run
        assert run is not None
        assert (len(run.status), run.jobs, run.progress, run.epoch) == (MAX_STATUS_CHARS, 3, 4, 5)


class TestNotify:
    def test_startup_and_readiness(self) -> None:
        """READY=1 passes startup and readiness, STOPPING=1 takes readiness back."""
        machine = Machine(spec(startup=NOTIFY, readiness=NOTIFY)).run()
        machine.take(notified(status="loading"))
        assert machine.state.state.value == "starting"
        machine.take(notified(ready=True))
        assert (machine.state.state, machine.state.ready) == (State.RUNNING, True)
        machine.take(notified(stopping=True))
        assert machine.state.ready is False

    def test_watchdog(self) -> None:
        """WATCHDOG=1 within the interval asked for; who asks for none is not judged."""
        machine = Machine(spec(liveness=NOTIFY)).run()
        assert wake_ns(machine.state) is None
        machine.take(notified(watchdog_ns=5 * S))
        machine.take(notified(watchdog=True), at=T0 + 4 * S)
        assert machine.take(Tick(), at=T0 + 8 * S) == []
        assert told(machine.take(Tick(), at=T0 + 9 * S)) == ["Signal 15"]
        assert machine.state.reason == "liveness probe failed: no WATCHDOG=1 for 5 s"

    def test_watchdog_before_an_interval(self) -> None:
        """A WATCHDOG=1 of who has asked for no watchdog changes nothing."""
        machine = Machine(spec(liveness=NOTIFY)).run()
        assert machine.take(notified(watchdog=True)) == []

    def test_trigger(self) -> None:
        """WATCHDOG=trigger asks to be restarted."""
        machine = Machine(spec(liveness=NOTIFY)).run()
        assert told(machine.take(notified(watchdog_trigger=True))) == ["Signal 15"]

    def test_trigger_taken_back(self) -> None:
        """In maintenance a trigger waits, and a later WATCHDOG=1 takes it back."""
        machine = Machine(spec(liveness=NOTIFY)).run()
        machine.want(up(patient=True))
        machine.take(notified(watchdog_trigger=True))
        machine.take(notified(watchdog=True))
        assert machine.want() == []


class TestStall:
    def test_every_passive_deadline_is_put_off(self) -> None:
        """Time in which the agent did not listen counts against no passive deadline and no probe."""
        machine = Machine(spec(startup=HEARTBEAT)).run()
        machine.take(Stalled(duration_ns=90 * S), at=T0 + 90 * S)
        assert wake_ns(machine.state) == T0 + 100 * S

    def test_a_stop_is_put_off(self) -> None:
        """A stop that could not be seen to end gets its time back."""
        machine = Machine(spec()).run()
        machine.want(up(up=False))
        machine.take(Stalled(duration_ns=90 * S), at=T0 + 90 * S)
        assert wake_ns(machine.state) == T0 + 100 * S

    def test_silence_is_not_judged_at_the_very_end_of_a_stall(self) -> None:
        """The deadline itself was the agent's next wake: after the stall there is one interval to be heard in."""
        machine = Machine(spec(liveness=HEARTBEAT)).run()
        machine.take(beat(hello=True, interval_ns=S))
        silent_at = T0 + 3 * S
        machine.take(Stalled(duration_ns=87 * S), at=silent_at + 87 * S)
        assert State.RUNNING is machine.state.state
        assert wake_ns(machine.state) == silent_at + 88 * S

    def test_a_watchdog_is_not_judged_at_the_very_end_of_a_stall(self) -> None:
        """The same for sd_notify: half of the watchdog's time is left."""
        machine = Machine(spec(liveness=NOTIFY)).run()
        machine.take(notified(watchdog_ns=4 * S))
        machine.take(Stalled(duration_ns=60 * S), at=T0 + 64 * S)
        assert State.RUNNING is machine.state.state
        assert wake_ns(machine.state) == T0 + 65 * S
        machine.take(Tick(), at=T0 + 65 * S)
        assert wake_ns(machine.state) == T0 + 66 * S

    def test_a_stop_is_not_cut_off_at_the_very_end_of_a_stall(self) -> None:
        """What is being stopped may have stood still too: a second is left before SIGKILL."""
        machine = Machine(spec()).run()
        machine.want(up(up=False))
        machine.take(Stalled(duration_ns=5 * S), at=T0 + 15 * S)
        assert wake_ns(machine.state) == T0 + 16 * S


class TestChangedSpec:
    def changed(self, before: ComponentSpec, after: ComponentSpec, *events: Any) -> Machine:
        machine = Machine(before).run()
        for event in events:
            machine.take(event)
        machine.spec = after
        machine.take(Updated(old=before))
        return machine

    def test_a_startup_probe_that_went_away(self) -> None:
        """A component that starts without end is running once its startup probe is taken away."""
        machine = self.changed(spec(startup=HEARTBEAT), spec(readiness=TCP))
        assert State.RUNNING is machine.state.state

    def test_a_startup_probe_that_changed(self) -> None:
        """A startup probe that is another one now begins again."""
        machine = self.changed(spec(startup=HEARTBEAT), spec(startup=TCP))
        assert machine.state.state.value == "starting"
        machine.take(answered(ProbeKind.STARTUP, Outcome.OK))
        assert State.RUNNING is machine.state.state

    def test_a_startup_probe_that_stayed(self) -> None:
        """What did not change goes on."""
        machine = self.changed(spec(startup=HEARTBEAT), spec(startup=HEARTBEAT, readiness=TCP))
        assert wake_ns(machine.state) == T0 + 10 * S

    def test_readiness_keeps_its_verdict(self) -> None:
        """A changed readiness probe takes back nothing before it has answered."""
        ok = answered(ProbeKind.READINESS, Outcome.OK)
        for before in (spec(readiness=TCP), spec()):
            machine = self.changed(before, spec(readiness=replace(TCP, period_ns=7 * S)), ok)
            assert machine.state.ready is True
            machine.take(answered(ProbeKind.READINESS, Outcome.FAILED))
            machine.take(answered(ProbeKind.READINESS, Outcome.FAILED))
            assert machine.state.ready is False

    def test_probes_that_went_away(self) -> None:
        """Without a readiness probe what runs is ready; without a liveness probe nothing kills it."""
        machine = self.changed(spec(readiness=TCP, liveness=TCP), spec())
        assert machine.state.ready is True
        assert wake_ns(machine.state) is None

    def test_liveness_from_passive_to_active(self) -> None:
        """A liveness probe of another kind is asked from now on."""
        before, after = spec(liveness=HEARTBEAT), spec(liveness=TCP)
        machine = self.changed(before, after, beat(hello=True, interval_ns=S))
        assert wake_ns(machine.state) == T0 + 2 * S

    def test_same_probes(self) -> None:
        """Where no probe changed nothing begins again."""
        machine = self.changed(spec(liveness=TCP, readiness=TCP), spec(liveness=TCP, readiness=TCP, after=("db",)))
        assert wake_ns(machine.state) == T0 + 2 * S


class TestAdopted:
    def adopt(self, component_spec: ComponentSpec, **fields: Any) -> Machine:
        machine = Machine(component_spec)
        found = Found(component="web", pid=9, generation=4, started_ns=T0 - 600 * S, **fields)
        machine.take(Adopted(found=found))
        machine.want()
        return machine

    @pytest.mark.parametrize("probe", [HEARTBEAT, NOTIFY, TCP], ids=["heartbeat", "notify", "tcp"])
    def test_ready_until_it_is_heard_again(self, probe: ProbeSpec) -> None:
        """What was ready is ready until it says, or a probe finds, that it is not."""
        machine = self.adopt(spec(readiness=probe), started_before=True, ready=True)
        assert (machine.state.state, machine.state.ready) == (State.RUNNING, True)

    def test_not_ready(self) -> None:
        """What was not ready is not."""
        assert self.adopt(spec(readiness=HEARTBEAT), started_before=True, ready=False).state.ready is False

    def test_still_starting(self) -> None:
        """What had not passed its startup probe gets the whole time again: nobody listened."""
        machine = self.adopt(spec(startup=HEARTBEAT))
        assert machine.state.state.value == "starting"
        assert wake_ns(machine.state) == T0 + 10 * S
        assert told(
            Machine(spec(startup=TCP)).take(
                Adopted(found=Found(component="web", pid=9, generation=4, started_ns=T0 - 600 * S))
            )
        ) == ["RunProbe"]

    def test_hung_before_this_agent(self) -> None:
        """What is never heard again by a new agent is silent by what it promised to the old one."""
        machine = self.adopt(
            spec(liveness=HEARTBEAT, readiness=HEARTBEAT), started_before=True, ready=True, interval_ns=S
        )
        assert machine.state.verdict is None
        silent_ns = T0 + RECONNECT_NS + 3 * S
        machine.take(Tick(), at=silent_ns - 1)
        assert (machine.state.state, machine.state.ready) == (State.RUNNING, True)
        assert told(machine.take(Tick(), at=silent_ns)) == ["Signal 15"]
        machine = self.adopt(spec(liveness=NOTIFY), started_before=True, watchdog_ns=4 * S)
        assert told(machine.take(Tick(), at=T0 + 4 * S)) == ["Signal 15"]

    def test_heard_again(self) -> None:
        """Its first word to the new agent counts as from any other."""
        machine = self.adopt(spec(liveness=HEARTBEAT), started_before=True, ready=True, interval_ns=S)
        machine.take(replace(beat(hello=True, interval_ns=2 * S), generation=4), at=T0 + 9 * S)
        assert machine.state.verdict is Verdict.OK
        machine.take(Tick(), at=T0 + 15 * S - 1)
        assert State.RUNNING is machine.state.state
        assert told(machine.take(Tick(), at=T0 + 15 * S)) == ["Signal 15"]

    @pytest.mark.parametrize("scope", KillScope)
    def test_on_its_way_out(self, scope: KillScope) -> None:
        """What hangs on its way out is neither ready nor started over, whatever was said of it; gone, it is at once."""
        machine = self.adopt(
            spec(liveness=HEARTBEAT, readiness=HEARTBEAT, stop=StopSpec(kill_scope=scope)),
            started_before=True,
            ready=True,
            interval_ns=S,
            dying=True,
        )
        assert (machine.state.state, machine.state.ready) == (State.KILLING, False)
        assert machine.state.reason == "it was ending when the agent began and is still there"
        kill = "KillTree" if scope is KillScope.TREE else "Signal 9"
        assert told(machine.take(Tick(), at=T0 + 60 * S)) == [kill]
        assert machine.state.reason.startswith("unkillable")
        gone = Gone(generation=4, status=ExitStatus(signal=9), left=0)
        assert told(machine.take(gone, at=T0 + 90 * S)) == ["EndRun", "Spawn"]
        assert machine.state.last_exit == "it was ending when the agent began; killed by signal 9 (SIGKILL)"

    def test_twice(self) -> None:
        """A second process of the same component is not taken for the first."""
        machine = self.adopt(spec(), started_before=True)
        before = machine.state
        machine.take(Adopted(found=Found(component="web", pid=10, generation=5, started_ns=T0)))
        assert before == machine.state
