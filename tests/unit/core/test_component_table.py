"""Every state of a component against every event, with the outcome that each pair has to have.

Read a line as: in this state, this event leads to this place (state, phase of the run, aim of the stop), and after the
colon is what is to be done. `~` is the same place with something remembered. **What is not listed changes nothing.**
The states stand in `cases.STATES`, the events in `cases.EVENTS`.
"""

import pytest

from node_manager.core.states import State
from tests.unit.core.cases import EVENTS, STATES, moment
from tests.unit.core.outcome import outcome

TABLE: dict[str, dict[str, str]] = {
    "wanted": {
        "stopped": "starting spawn: Spawn",
        "waiting": "starting spawn: Spawn",
        "stopping": "~",
        "killing": "~",
    },
    "unwanted": {
        "waiting": "~",
        "checking": "starting check for down: CancelPreStart",
        "spawning": "starting spawn for down: CancelSpawn",
        "starting": "stopping live for down: Signal 15",
        "running": "stopping live for down: Signal 15",
        "retrying": "stopping live for down",
        "clearing": "killing tree for down",
        "backoff": "stopped",
        "exited": "stopped",
        "failed": "stopped",
    },
    "unwanted, to be killed": {
        "stopped": "~",
        "waiting": "~",
        "checking": "starting check for down: CancelPreStart",
        "spawning": "starting spawn for down: CancelSpawn",
        "starting": "killing live for down: Signal 15, KillTree",
        "running": "killing live for down: Signal 15, KillTree",
        "stopping": "killing live for down: KillTree",
        "retrying": "killing live for down: KillTree",
        "killing": "~",
        "clearing": "killing tree for down",
        "backoff": "stopped",
        "exited": "stopped",
        "failed": "stopped",
    },
    "unwanted, its turn not come": {
        "stopped": "~",
        "waiting": "~",
        "checking": "~",
        "spawning": "~",
        "starting": "~",
        "running": "~",
        "stopping": "~",
        "retrying": "~",
        "killing": "~",
        "clearing": "~",
        "backoff": "stopped",
        "exited": "stopped",
        "failed": "stopped",
    },
    "wanted, dependency not ready": {
        "stopped": "~",
        "checking": "~",
        "spawning": "~",
        "starting": "~",
        "running": "~",
        "stopping": "~",
        "retrying": "~",
        "killing": "~",
        "clearing": "~",
        "backoff": "stopped",
        "exited": "~",
        "failed": "~",
    },
    "start": {
        "stopped": "~",
        "waiting": "~",
        "checking": "~",
        "spawning": "~",
        "starting": "~",
        "running": "~",
        "stopping": "~",
        "retrying": "~",
        "killing": "~",
        "clearing": "~",
        "backoff": "starting spawn: Spawn",
        "exited": "starting spawn: Spawn",
        "failed": "starting spawn: Spawn",
    },
    "restart": {
        "stopped": "~",
        "waiting": "~",
        "checking": "starting check for restart: CancelPreStart",
        "spawning": "starting spawn for restart: CancelSpawn",
        "starting": "stopping live for restart: Signal 15",
        "running": "stopping live for restart: Signal 15",
        "stopping": "~",
        "retrying": "~",
        "killing": "~",
        "clearing": "~",
        "backoff": "starting spawn: Spawn",
        "exited": "starting spawn: Spawn",
        "failed": "starting spawn: Spawn",
    },
    "configuration changed": {
        "stopped": "~",
        "waiting": "~",
        "checking": "starting check for restart: CancelPreStart",
        "spawning": "starting spawn for restart: CancelSpawn",
        "starting": "stopping live for restart: Signal 15",
        "running": "stopping live for restart: Signal 15",
        "clearing": "killing tree for restart",
        "backoff": "starting spawn: Spawn",
        "exited": "~",
        "failed": "starting spawn: Spawn",
    },
    "adopted": {
        "stopped": "stopping live for down: RunProbe, RunProbe, Signal 15",
        "waiting": "running live: RunProbe, RunProbe",
    },
    "adopted, dying": {
        "stopped": "killing live for down: KillTree",
        "waiting": "killing live for restart: KillTree",
    },
    "spec updated": {
        "running": "~: RunProbe, RunProbe",
        "stopping": "~",
        "retrying": "~",
        "killing": "~",
    },
    "spawned": {
        "spawning": "running live: RunProbe, RunProbe",
    },
    "spawned, stale": {},
    "spawn failed": {
        "spawning": "backoff",
    },
    "spawn failed, stale": {},
    "check passed": {
        "checking": "starting spawn: Spawn",
    },
    "check failed": {
        "checking": "backoff",
    },
    "check passed, stale": {},
    "exited": {
        "spawning": "backoff: EndRun",
        "starting": "backoff: EndRun",
        "running": "backoff: EndRun",
        "stopping": "stopped: EndRun",
        "retrying": "backoff: EndRun",
        "killing": "stopped: EndRun",
    },
    "exited, tree left": {
        "spawning": "killing tree: EndRun, KillTree",
        "starting": "killing tree: EndRun, KillTree",
        "running": "killing tree: EndRun, KillTree",
        "stopping": "killing tree for down: EndRun, KillTree",
        "retrying": "killing tree for retry: EndRun, KillTree",
        "killing": "killing tree for down: EndRun, KillTree",
    },
    "exited, tree unknown": {
        "spawning": "killing tree: EndRun, KillTree",
        "starting": "killing tree: EndRun, KillTree",
        "running": "killing tree: EndRun, KillTree",
        "stopping": "killing tree for down: EndRun, KillTree",
        "retrying": "killing tree for retry: EndRun, KillTree",
        "killing": "killing tree for down: EndRun, KillTree",
    },
    "exited, final": {
        "spawning": "exited: EndRun",
        "starting": "exited: EndRun",
        "running": "exited: EndRun",
        "stopping": "stopped: EndRun",
        "retrying": "exited: EndRun",
        "killing": "stopped: EndRun",
    },
    "exited, unwanted by it": {
        "spawning": "stopped: EndRun",
        "starting": "stopped: EndRun",
        "running": "stopped: EndRun",
        "stopping": "stopped: EndRun",
        "retrying": "stopped: EndRun",
        "killing": "stopped: EndRun",
    },
    "exited, stale": {},
    "tree empty": {
        "clearing": "backoff",
    },
    "tree empty, stale": {},
    "fuse lost": {
        "spawning": "starting spawn for retry: CancelSpawn",
        "starting": "stopping live for retry: Signal 15",
        "running": "stopping live for retry: Signal 15",
    },
    "fuse lost, stale": {},
    "ready": {
        "running": "~",
        "stopping": "~",
        "retrying": "~",
        "killing": "~",
    },
    "probe unknown": {
        "running": "~",
        "stopping": "~",
        "retrying": "~",
        "killing": "~",
    },
    "not alive": {
        "running": "stopping live for retry: Signal 15",
        "stopping": "~",
        "killing": "~",
    },
    "not alive, stale": {},
    "hello": {
        "spawning": "~: SendLevels",
        "starting": "running live: SendLevels, RunProbe, RunProbe",
        "running": "~: SendLevels",
        "stopping": "~: SendLevels",
        "retrying": "~: SendLevels",
        "killing": "~: SendLevels",
    },
    "hello, stale": {},
    "connection closed": {},
    "notified": {
        "spawning": "~",
        "starting": "~",
        "running": "~",
        "stopping": "~",
        "retrying": "~",
        "killing": "~",
    },
    "asks for more time": {
        "stopping": "~",
        "retrying": "~",
    },
    "notified, stale": {},
    "stalled": {
        "starting": "~",
        "running": "~",
        "stopping": "~",
        "retrying": "~",
        "killing": "~",
        "clearing": "~",
    },
    "time passes": {},
    "its time comes": {
        "starting": "stopping live for retry: Signal 15",
        "running": "~: RunProbe, RunProbe",
        "stopping": "killing live for down: KillTree",
        "retrying": "killing live for retry: KillTree",
        "killing": "~: KillTree",
        "clearing": "~: KillTree",
        "backoff": "starting spawn: Spawn",
    },
}


def test_the_table_is_complete() -> None:
    """The table speaks of every event, and its cases cover every state."""
    assert set(EVENTS) == set(TABLE)
    assert {case for row in TABLE.values() for case in row} <= set(STATES)
    assert set(State) == {make().state.state for make in STATES.values()}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("case", STATES)
def test_pair(case: str, event: str) -> None:
    """Each pair of state and event has exactly the outcome of the table, and every invariant holds after it."""
    machine = STATES[case]()
    before = machine.state
    actions = machine.take(EVENTS[event], at=moment(event, machine))
    assert TABLE[event].get(case, "=") == outcome(before, machine.state, actions)


@pytest.mark.parametrize("event", [name for name in EVENTS if name.endswith("stale")])
def test_an_older_generation_changes_nothing(event: str) -> None:
    """An event of an older generation changes nothing in any state."""
    assert TABLE[event] == {}
