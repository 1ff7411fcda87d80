"""Every change of state that the table names, each brought about by a short story that ends with it."""

from dataclasses import replace

import pytest

from node_manager.core import component
from node_manager.core.actions import Log, LookAt, TakeEvidence
from node_manager.core.events import ExitStatus, Found, Outcome, PreStartDone, ProbeDone, Spawned, Tick, TreeEmpty
from node_manager.core.happenings import Adopted, ComponentEvent, Gone, RestartAsked, StartAsked, Updated, Wanted
from node_manager.core.intent import Claim, Rule
from node_manager.core.invariants import check_component
from node_manager.core.spec import ComponentSpec, KillScope, ProbeKind, RestartSpec, StopSpec
from node_manager.core.states import TRANSITIONS, ComponentState, State
from tests.unit.core.build import DOWN, HEARTBEAT, PRE_START, T0, TCP, UP, S, blind, spec, up

ONE_START = RestartSpec(limit=1)
PLAIN = spec(liveness=replace(TCP, failure_threshold=1))
SLOW = spec(startup=HEARTBEAT)
SLOW_ONCE = replace(SLOW, restart=ONE_START)
CHECKED = replace(PLAIN, pre_start=PRE_START)
ONCE = replace(PLAIN, restart=ONE_START)
JOBS = replace(PLAIN, stop=StopSpec(kill_scope=KillScope.PROCESS))
JOBS_ONCE = replace(JOBS, restart=ONE_START)

WANTED = Wanted(want=UP)
UNWANTED = Wanted(want=DOWN)
WAITS = Wanted(want=up(waits=Claim(rule=Rule.MAINTENANCE, reason="maintenance by ann")))
WITH_ALL_IT_LEFT = Wanted(want=replace(DOWN, clear_tree=True))
SPAWNED = Spawned(component="web", generation=1, pid=7)
CHECK_PASSED = PreStartDone(component="web", generation=1, ok=True)
NOT_ALIVE = ProbeDone(component="web", generation=1, probe=ProbeKind.LIVENESS, outcome=Outcome.FAILED)
GONE = Gone(generation=1, status=ExitStatus(code=1), left=0)
GONE_TREE_LEFT = replace(GONE, left=2)
GONE_FINAL = replace(GONE, hold="exit status 78")
GONE_FINAL_TREE_LEFT = replace(GONE_FINAL, left=2)
GONE_DECOMMISSIONED = replace(GONE, want=DOWN)
TREE_EMPTY = TreeEmpty(component="web", generation=1)
ADOPTED = Adopted(found=Found(component="web", pid=9, generation=3, started_ns=T0, started_before=True))
RESTART = RestartAsked(reason="restart asked for by ann", manual=True)
LIMIT_RAISED = Updated(old=spec())
STOP_TIME = 10 * S

Story = tuple[ComponentSpec, ComponentState, tuple[ComponentEvent | int, ...]]


def story(component_spec: ComponentSpec, *steps: ComponentEvent | int, before: ComponentState | None = None) -> Story:
    """Events in order; a number is time that passes, in nanoseconds."""
    return component_spec, ComponentState() if before is None else before, steps


GAVE_UP = ComponentState(gave_up="1 starts within 60 s: the configured limit")
HELD = ComponentState(hold="exit status 78", hold_since_ns=T0)
LATER = ComponentState(not_before_ns=T0 + 5 * S)
LITTER = ComponentState(generation=1, litter=True)
NO_PATIENCE = ComponentState(state=State.FAILED, gave_up="limit", not_before_ns=T0 + 5 * S, want=UP)

STORIES: dict[tuple[State, State], Story] = {
    (State.STOPPED, State.STARTING): story(PLAIN, WANTED),
    (State.STOPPED, State.RUNNING): story(PLAIN, ADOPTED),
    (State.STOPPED, State.BACKOFF): story(PLAIN, WANTED, before=LATER),
    (State.STOPPED, State.EXITED): story(PLAIN, WANTED, before=HELD),
    (State.STOPPED, State.FAILED): story(PLAIN, WANTED, before=GAVE_UP),
    (State.STOPPED, State.KILLING): story(PLAIN, WANTED, before=LITTER),
    (State.STARTING, State.RUNNING): story(PLAIN, WANTED, SPAWNED),
    (State.STARTING, State.STOPPING): story(SLOW, WANTED, SPAWNED, UNWANTED),
    (State.STARTING, State.KILLING): story(SLOW, WANTED, SPAWNED, GONE_TREE_LEFT),
    (State.STARTING, State.STOPPED): story(CHECKED, WANTED, UNWANTED, CHECK_PASSED),
    (State.STARTING, State.BACKOFF): story(SLOW, WANTED, SPAWNED, GONE),
    (State.STARTING, State.STARTING): story(SLOW, WANTED, SPAWNED, S, GONE),
    (State.STARTING, State.EXITED): story(SLOW, WANTED, SPAWNED, GONE_FINAL),
    (State.STARTING, State.FAILED): story(SLOW_ONCE, WANTED, SPAWNED, S, GONE),
    (State.RUNNING, State.STOPPING): story(PLAIN, WANTED, SPAWNED, NOT_ALIVE),
    (State.RUNNING, State.KILLING): story(PLAIN, WANTED, SPAWNED, GONE_TREE_LEFT),
    (State.RUNNING, State.STOPPED): story(PLAIN, WANTED, SPAWNED, GONE_DECOMMISSIONED),
    (State.RUNNING, State.STARTING): story(PLAIN, WANTED, SPAWNED, S, GONE),
    (State.RUNNING, State.BACKOFF): story(PLAIN, WANTED, SPAWNED, GONE),
    (State.RUNNING, State.EXITED): story(PLAIN, WANTED, SPAWNED, GONE_FINAL),
    (State.RUNNING, State.FAILED): story(ONCE, WANTED, SPAWNED, S, GONE),
    (State.STOPPING, State.KILLING): story(PLAIN, WANTED, SPAWNED, UNWANTED, STOP_TIME, Tick()),
    (State.STOPPING, State.STOPPED): story(PLAIN, WANTED, SPAWNED, UNWANTED, GONE),
    (State.STOPPING, State.STARTING): story(PLAIN, WANTED, SPAWNED, RESTART, GONE),
    (State.STOPPING, State.BACKOFF): story(PLAIN, WANTED, SPAWNED, NOT_ALIVE, GONE),
    (State.STOPPING, State.EXITED): story(PLAIN, WANTED, SPAWNED, NOT_ALIVE, GONE_FINAL),
    (State.STOPPING, State.FAILED): story(ONCE, WANTED, SPAWNED, NOT_ALIVE, S, GONE),
    (State.KILLING, State.STOPPED): story(PLAIN, WANTED, SPAWNED, UNWANTED, STOP_TIME, Tick(), GONE),
    (State.KILLING, State.STARTING): story(PLAIN, WANTED, SPAWNED, RESTART, STOP_TIME, Tick(), GONE),
    (State.KILLING, State.BACKOFF): story(PLAIN, WANTED, SPAWNED, GONE_TREE_LEFT, TREE_EMPTY),
    (State.KILLING, State.EXITED): story(PLAIN, WANTED, SPAWNED, GONE_FINAL_TREE_LEFT, TREE_EMPTY),
    (State.KILLING, State.FAILED): story(ONCE, WANTED, SPAWNED, GONE_TREE_LEFT, S, TREE_EMPTY),
    (State.BACKOFF, State.STARTING): story(PLAIN, WANTED, SPAWNED, GONE, S, Tick()),
    (State.BACKOFF, State.STOPPED): story(PLAIN, WANTED, SPAWNED, GONE, WAITS),
    (State.BACKOFF, State.FAILED): story(ONCE, WANTED, SPAWNED, GONE, S, Tick()),
    (State.BACKOFF, State.KILLING): story(JOBS, WANTED, SPAWNED, GONE_TREE_LEFT, WITH_ALL_IT_LEFT),
    (State.EXITED, State.STARTING): story(PLAIN, WANTED, SPAWNED, GONE_FINAL, StartAsked()),
    (State.EXITED, State.STOPPED): story(PLAIN, WANTED, SPAWNED, GONE_FINAL, UNWANTED),
    (State.EXITED, State.KILLING): story(JOBS, WANTED, SPAWNED, GONE_FINAL_TREE_LEFT, WITH_ALL_IT_LEFT),
    (State.FAILED, State.STARTING): story(ONCE, WANTED, SPAWNED, S, GONE, StartAsked()),
    (State.FAILED, State.STOPPED): story(ONCE, WANTED, SPAWNED, S, GONE, UNWANTED),
    (State.FAILED, State.BACKOFF): story(ONCE, LIMIT_RAISED, before=NO_PATIENCE),
    (State.FAILED, State.KILLING): story(JOBS_ONCE, WANTED, SPAWNED, S, GONE_TREE_LEFT, WITH_ALL_IT_LEFT),
}


def test_every_change_has_its_story() -> None:
    """The table of changes has nothing that cannot happen, and nothing happens that it does not have."""
    assert set(TRANSITIONS) == set(STORIES)


@pytest.mark.parametrize(("old", "new"), STORIES, ids=lambda state: state.value)
def test_change(old: State, new: State) -> None:
    """The last event of the story brings the component from the old state to the new one, and says so."""
    component_spec, state, steps = STORIES[old, new]
    now = T0
    changes: list[tuple[str, str]] = []
    waiting = list(steps)
    while waiting:
        step = waiting.pop(0)
        if isinstance(step, int):
            now += step
            continue
        state, actions = component.step(component_spec, state, step, now)
        check_component(component_spec, state)
        waiting[:0] = [blind(action) for action in actions if isinstance(action, LookAt | TakeEvidence)]
        logs = [action for action in actions if isinstance(action, Log) and action.event == "component.state_changed"]
        changes = [(str(dict(log.fields)["old"]), str(dict(log.fields)["new"])) for log in logs]
    assert (old.value, new.value) == changes[-1]
    assert new is state.state
