"""What a long run has covered and how fast it was."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from itertools import product
from typing import get_args

from node_manager.core.events import (
    Booted,
    Command,
    ConfigFailed,
    Event,
    HelperDone,
    Notified,
    PreStartDone,
    Stalled,
)
from node_manager.core.nodestate import NodePhase
from node_manager.core.states import State
from tests.simulation.faults import KINDS, Fault
from tests.simulation.runner import Result

NEVER_MADE: dict[object, str] = {
    Notified: "no modelled program speaks sd_notify",
    HelperDone: "no modelled component has a command to reload or to drain",
    PreStartDone: "no modelled component has a check before its start",
    State.FAILED: "no modelled component has a start limit",
    (NodePhase.RUNNING, Booted): "what an agent is born with comes once, and first",
    (NodePhase.STOPPING, Booted): "what an agent is born with comes once, and first",
    (NodePhase.WAITING_CONFIG, ConfigFailed): "a modelled agent is born with the last good configuration",
    (NodePhase.WAITING_CONFIG, Stalled): "before there is a configuration no time is waited for",
}
"""Events, states and pairs of them that the model does not make, and why; the tests of the core go through them."""


def possible_state_events() -> set[tuple[str, str]]:
    """Return every pair of a state and an event that the model can make: of a component, or of the whole node."""
    found = set()
    for event in get_args(Event):
        of_component = any(one.name == "component" for one in dataclasses.fields(event))
        states: list[State | NodePhase] = [*State] if of_component else []
        if not of_component or event is Command:
            states += NodePhase
        found |= {
            (state.value, event.__name__)
            for state in states
            if NEVER_MADE.keys().isdisjoint({event, state, (state, event)})
        }
    return found


def fault_pairs(plan: list[Fault]) -> set[tuple[str, str]]:
    """Return the kinds of two faults, the earlier first, that overlap or follow each other on one host."""
    found = set()
    earlier: dict[int, list[Fault]] = {}
    for fault in sorted(plan, key=lambda fault: fault.at_ns):
        before = earlier.setdefault(fault.host, [])
        still = [one for one in before if one.at_ns + one.lasts_ns >= fault.at_ns]
        found |= {(one.kind, fault.kind) for one in [*before[-1:], *still]}
        before.append(fault)
    return found


@dataclass(slots=True)
class Summary:
    """The sum of many seeds."""

    seeds: int = 0
    failed: int = 0
    events: int = 0
    steps: int = 0
    host_hours: float = 0.0
    state_events: set[tuple[str, str]] = field(default_factory=set)
    fault_pairs: set[tuple[str, str]] = field(default_factory=set)

    def add(self, result: Result) -> None:
        """Count one seed."""
        self.seeds += 1
        self.failed += result.failure is not None
        self.events += result.events
        self.steps += result.steps
        self.host_hours += result.host_hours
        self.state_events |= result.state_events.keys()
        self.fault_pairs |= fault_pairs(result.plan)

    def lines(self, took_s: float, *, verbose: bool) -> list[str]:
        """Return what is printed at the end; `verbose` names the pairs that were never seen."""
        states, pairs = possible_state_events(), set(product(KINDS, KINDS))
        found = [
            f"{self.seeds} seeds, {self.failed} failed",
            f"{self.events} events, {self.steps} steps of the core, {self.host_hours:.1f} host-hours in {took_s:.1f} s",
            (
                f"{self.seeds / took_s:.2f} seeds/s, {self.events / took_s:.0f} events/s, "
                f"{60 * self.host_hours / took_s:.0f} host-hours/min"
            ),
            f"{len(self.state_events & states)} of {len(states)} pairs of state and event that the model can make",
            f"{len(self.fault_pairs)} of {len(pairs)} pairs of faults that overlap or follow each other on a host",
        ]
        if verbose:
            found += [f"never seen: {event} in {state}" for state, event in sorted(states - self.state_events)]
            found += [f"never seen: {first}, then {then}" for first, then in sorted(pairs - self.fault_pairs)]
        return found
