"""A representative of every state, and one of every event that a component's machine can take."""

from dataclasses import replace

from node_manager.core.events import (
    Beat,
    ExitStatus,
    Found,
    FuseLost,
    HeartbeatClosed,
    Notified,
    Outcome,
    PreStartDone,
    ProbeDone,
    Spawned,
    SpawnFailed,
    Stalled,
    Tick,
    TreeEmpty,
)
from node_manager.core.happenings import Adopted, ComponentEvent, Gone, RestartAsked, StartAsked, Updated, Wanted
from node_manager.core.intent import Claim, Rule
from node_manager.core.spec import ComponentSpec, ProbeKind, RestartSpec
from node_manager.core.states import ComponentState
from tests.unit.core.build import DOWN, HEARTBEAT, PRE_START, TCP, UP, Machine, S, spec, up

NAME = "web"
WAITS = up(waits=Claim(rule=Rule.DEPENDENCY, reason="waits until db is ready"))
HELD = replace(DOWN, rule=Rule.NODE_STOPPING, reason="the node is stopping", held=True)

PLAIN = spec(readiness=TCP, liveness=replace(TCP, failure_threshold=1))
CHECKED = replace(PLAIN, pre_start=PRE_START)
SLOW = replace(PLAIN, startup=HEARTBEAT)
LIMITED = replace(PLAIN, restart=RestartSpec(limit=1))


def _stopped() -> Machine:
    """Held by an operator."""
    machine = Machine(PLAIN)
    machine.want(DOWN)
    return machine


def _waiting() -> Machine:
    """Wanted, but what it depends on is not ready."""
    machine = Machine(PLAIN)
    machine.want(WAITS)
    return machine


def _checking() -> Machine:
    machine = Machine(CHECKED)
    machine.want()
    return machine


def _spawning() -> Machine:
    machine = Machine(PLAIN)
    machine.want()
    return machine


def _starting() -> Machine:
    """The process lives; its startup probe was not passed yet."""
    return Machine(SLOW).run()


def _running() -> Machine:
    return Machine(PLAIN).run()


def _stopping() -> Machine:
    machine = _running()
    machine.want(DOWN)
    return machine


def _retrying() -> Machine:
    """Being stopped for a failed liveness probe."""
    machine = _running()
    machine.take(_probe(Outcome.FAILED, ProbeKind.LIVENESS))
    return machine


def _killing() -> Machine:
    machine = _stopping()
    machine.take(Tick(), at=machine.now + 10 * S)
    return machine


def _clearing() -> Machine:
    """The main process has died and left something of its tree."""
    machine = _running()
    machine.take(_gone(left=2))
    return machine


def _backoff() -> Machine:
    machine = _running()
    machine.take(_gone())
    return machine


def _exited() -> Machine:
    machine = _running()
    machine.take(_gone(hold="exit status 78: final"))
    return machine


def _failed() -> Machine:
    machine = Machine(LIMITED).run()
    machine.take(_gone(), at=machine.now + 1 * S)
    return machine


STATES = {
    "stopped": _stopped,
    "waiting": _waiting,
    "checking": _checking,
    "spawning": _spawning,
    "starting": _starting,
    "running": _running,
    "stopping": _stopping,
    "retrying": _retrying,
    "killing": _killing,
    "clearing": _clearing,
    "backoff": _backoff,
    "exited": _exited,
    "failed": _failed,
}
"""STARTING stands here three times (check, spawn, live), STOPPING and KILLING twice, STOPPED twice."""


def _probe(outcome: Outcome, probe: ProbeKind, generation: int = 1) -> ProbeDone:
    return ProbeDone(component=NAME, generation=generation, probe=probe, outcome=outcome, detail="said so")


def _gone(left: int | None = 0, *, hold: str | None = None, generation: int = 1) -> Gone:
    return Gone(generation=generation, status=ExitStatus(code=1), left=left, hold=hold)


def _late(state: ComponentState) -> int:
    """When this state acts by itself, or a minute from now."""
    return state.deadline_ns if state.deadline_ns is not None else 2_000 * S


STALE = 0
EVENTS: dict[str, ComponentEvent] = {
    "wanted": Wanted(want=UP),
    "unwanted": Wanted(want=DOWN),
    "unwanted, to be killed": Wanted(want=replace(DOWN, kill=True)),
    "unwanted, its turn not come": Wanted(want=HELD),
    "wanted, dependency not ready": Wanted(want=WAITS),
    "start": StartAsked(),
    "restart": RestartAsked(reason="restart asked for by ann", manual=True),
    "configuration changed": RestartAsked(reason="its configuration changed"),
    "adopted": Adopted(found=Found(component=NAME, pid=99, generation=8, started_ns=900 * S, started_before=True)),
    "adopted, dying": Adopted(found=Found(component=NAME, pid=99, generation=8, started_ns=900 * S, dying=True)),
    "spec updated": Updated(old=spec()),
    "spawned": Spawned(component=NAME, generation=1, pid=7),
    "spawned, stale": Spawned(component=NAME, generation=STALE, pid=7),
    "spawn failed": SpawnFailed(component=NAME, generation=1, reason="no such file"),
    "spawn failed, stale": SpawnFailed(component=NAME, generation=STALE, reason="no such file"),
    "check passed": PreStartDone(component=NAME, generation=1, ok=True),
    "check failed": PreStartDone(component=NAME, generation=1, ok=False, detail="bad file"),
    "check passed, stale": PreStartDone(component=NAME, generation=STALE, ok=True),
    "exited": _gone(),
    "exited, tree left": _gone(left=2),
    "exited, tree unknown": _gone(left=None),
    "exited, final": _gone(hold="exit status 78: final"),
    "exited, unwanted by it": replace(_gone(), want=DOWN),
    "exited, stale": _gone(generation=STALE),
    "tree empty": TreeEmpty(component=NAME, generation=1),
    "tree empty, stale": TreeEmpty(component=NAME, generation=STALE),
    "fuse lost": FuseLost(component=NAME, generation=1, reason="it is gone"),
    "fuse lost, stale": FuseLost(component=NAME, generation=STALE, reason="it is gone"),
    "ready": _probe(Outcome.OK, ProbeKind.READINESS),
    "probe unknown": _probe(Outcome.UNKNOWN, ProbeKind.LIVENESS),
    "not alive": _probe(Outcome.FAILED, ProbeKind.LIVENESS),
    "not alive, stale": _probe(Outcome.FAILED, ProbeKind.LIVENESS, STALE),
    "hello": Beat(component=NAME, generation=1, hello=True, interval_ns=1 * S),
    "hello, stale": Beat(component=NAME, generation=STALE, hello=True, interval_ns=1 * S),
    "connection closed": HeartbeatClosed(component=NAME, generation=1),
    "notified": Notified(component=NAME, generation=1, ready=True),
    "asks for more time": Notified(component=NAME, generation=1, extend_ns=30 * S),
    "notified, stale": Notified(component=NAME, generation=STALE, ready=True, extend_ns=30 * S),
    "stalled": Stalled(duration_ns=5 * S),
    "time passes": Tick(),
    "its time comes": Tick(),
}


def moment(event: str, machine: Machine) -> int:
    """When the event comes: at once, but where it is the time itself."""
    return _late(machine.state) if event == "its time comes" else machine.now


def specs() -> tuple[ComponentSpec, ...]:
    """The specs in use here."""
    return PLAIN, CHECKED, SLOW, LIMITED
