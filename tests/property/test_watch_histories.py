"""Random histories of one watched component: looks and evidence come, hang or fail; it sleeps, runs, is stopped.

The process is modelled, and every look tells the truth about it. Whatever the order, a stopped process is not killed
for silence, a silent one that is not stopped is, in bounded time, and nothing keeps the agent awake.
"""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from node_manager.core.actions import Action, LookAt, Signal, TakeEvidence
from node_manager.core.events import Beat, EvidenceTaken, Looked, Outcome, ProbeDone, Stalled, Tick
from node_manager.core.spec import ComponentSpec, OnFailure, ProbeKind
from node_manager.core.states import State, wake_ns
from node_manager.core.watch import DEADLOCK_PATIENCE_NS, EVIDENCE_WAIT_NS, RELOOK_NS
from node_manager.core.wedge import LOOK_WAIT_NS, Sample
from tests.unit.core.build import HEARTBEAT, MS, TCP, Machine, S, spec, up

REPORT = OnFailure.REPORT
SPECS = (
    spec(liveness=HEARTBEAT),
    spec(startup=HEARTBEAT, liveness=HEARTBEAT),
    spec(startup=HEARTBEAT, liveness=TCP),
    spec(liveness=TCP),
)
KINDS = (
    "wait", "wait", "wait", "beat", "probe", "answer", "answer", "blind", "evidence", "stop", "go-on", "run", "stall",
    "maintenance",
)  # fmt: skip
TIMES = (1, 50 * MS, 100 * MS, 500 * MS, S, 3 * S, 12 * S)
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(TIMES)), max_size=60)
BOUND_NS = 12 * S + 2 * LOOK_WAIT_NS + EVIDENCE_WAIT_NS + RELOOK_NS + TCP.period_ns * 4
"""From the last beat to the end of a silent run, with everything that can hang on the way."""


class Host:
    """A machine with a modelled process."""

    def __init__(self, component_spec: ComponentSpec) -> None:
        self.machine = Machine(component_spec, examined=False).run()
        self.stopped = False
        self.ran_ns = 0
        self.looks = 0
        self.evidence = 0
        self.killed = False

    def take(self, event: Any, after_ns: int = 0) -> None:
        self.note(self.machine.take(event, at=self.machine.now + after_ns))

    def note(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case LookAt():
                    self.looks = 1  # another one, of a new episode, is served by the one that hangs
                case TakeEvidence():
                    self.evidence += 1
                case Signal():
                    self.killed = True
                case _:
                    pass

    def wait(self, duration_ns: int, *, kindly: bool = False) -> None:
        """Time passes; the agent wakes up whenever it asked for it, and comes to rest at each instant."""
        end = self.machine.now + duration_ns
        for _ in range(10_000):
            if kindly:
                self.answer()
                self.evidence_comes()
            at = wake_ns(self.machine.state)
            if at is None or at > end or self.killed:
                break
            self.take(Tick(), max(0, at - self.machine.now))
            again = wake_ns(self.machine.state)
            assert again is None or again > self.machine.now, "nothing overdue keeps it awake"
        else:
            raise AssertionError("it wakes up again and again")
        self.machine.now = max(end, self.machine.now)

    def answer(self, *, blind: bool = False) -> None:
        if self.looks:
            self.looks = 0
            sample = Sample(at_ns=self.machine.now, state="T" if self.stopped else "S", ran_ns=self.ran_ns)
            trouble = "no rights" if blind else ""
            self.take(Looked(component="web", generation=1, sample=None if blind else sample, trouble=trouble))

    def evidence_comes(self) -> None:
        if self.evidence:
            self.evidence -= 1
            self.take(EvidenceTaken(component="web", generation=1, path=None, trouble="full disk"))

    def step(self, what: str, duration_ns: int) -> None:
        match what:
            case "wait":
                self.wait(duration_ns)
            case "beat" if not self.stopped:
                self.take(Beat(component="web", generation=1, hello=True, interval_ns=S))
            case "probe":
                kind = ProbeKind.STARTUP if self.machine.state.state is State.STARTING else ProbeKind.LIVENESS
                self.take(ProbeDone(component="web", generation=1, probe=kind, outcome=Outcome.FAILED))
            case "answer" | "blind":
                self.answer(blind=what == "blind")
            case "evidence":
                self.evidence_comes()
            case "stop" | "go-on":
                self.stopped = what == "stop"
            case "run":
                self.ran_ns += duration_ns
            case "stall":
                self.take(Stalled(duration_ns=duration_ns), duration_ns)
            case _:
                self.note(self.machine.want(up(patient=duration_ns > S)))


@given(st.sampled_from(SPECS), STEPS)
def test_what_is_stopped_all_along_lives(component_spec: ComponentSpec, steps: list[tuple[str, int]]) -> None:
    """A process that is stopped from its first moment on, and can be looked at, is never ended for silence."""
    host = Host(component_spec)
    host.stopped = True
    for what, duration_ns in steps:
        if what not in {"go-on", "blind"}:
            host.step(what, duration_ns)
            host.answer()
            host.answer()
    assert not host.killed


@given(st.sampled_from(SPECS), STEPS)
def test_what_stays_silent_is_ended(component_spec: ComponentSpec, steps: list[tuple[str, int]]) -> None:
    """Whatever was before: a process that goes on, and is silent from now on, is ended within a bound."""
    host = Host(component_spec)
    host.take(Beat(component="web", generation=1, hello=True, interval_ns=S))
    for what, duration_ns in steps:
        if host.killed:
            return
        host.step(what, duration_ns)
    host.stopped = False
    host.note(host.machine.want())
    for _ in range(4):
        host.step("probe", 0)
    host.wait(BOUND_NS, kindly=True)
    assert host.killed


@given(st.sampled_from(SPECS), STEPS)
def test_a_report_is_ended_only_by_a_minute_of_nothing(
    component_spec: ComponentSpec, steps: list[tuple[str, int]]
) -> None:
    """What only reports is not ended by anything that takes less than a minute."""
    probes = {
        name: None if probe is None else replace(probe, on_failure=REPORT)
        for name, probe in (("startup", component_spec.startup), ("liveness", component_spec.liveness))
    }
    host = Host(replace(component_spec, **probes))  # type: ignore[arg-type]
    spent_ns = 0
    for what, duration_ns in steps:
        spent_ns += duration_ns
        if spent_ns >= DEADLOCK_PATIENCE_NS:
            break
        host.step(what, duration_ns)
    # It runs, is seen to, and then does nothing for less than the minute.
    host.stopped = False
    host.note(host.machine.want())
    for _ in range(4):
        host.step("probe", 0)
    host.answer()
    host.step("run", 1)
    host.wait(2 * RELOOK_NS, kindly=True)
    host.wait(DEADLOCK_PATIENCE_NS - 3 * RELOOK_NS, kindly=True)
    assert not host.killed
