"""What is true after every step, whatever happened. Tests and the simulator call this; a failure is our own bug."""

from node_manager.core import claims, latches
from node_manager.core import run as runs
from node_manager.core import writeback as wb
from node_manager.core.events import HostState
from node_manager.core.intent import Rule
from node_manager.core.nodestate import Member, NodePhase, NodeState
from node_manager.core.run import Phase
from node_manager.core.spec import ComponentSpec, KillScope
from node_manager.core.states import IDLE, Aim, ComponentState, State
from node_manager.core.writeback import MAX_PENDING, Writeback

_TIMED = frozenset({State.BACKOFF, State.STOPPING, State.KILLING})


def check_invariants(state: NodeState, now: int) -> None:
    """Raise AssertionError with the name of the first invariant that does not hold at `now`."""
    for name, member in state.members.items():
        assert name == member.spec.name, "a member is kept under its own name"
        check_component(member.spec, member.state)
        assert member.state.want == claims.want(state, member, now), f"{name}: the machine follows the ledger's ruling"
        _check_latches(state, member)
        assert not (member.removed and member.state.run is None), f"{name}: what was removed and is down is gone"
    check_writeback(state.writeback)
    if state.finished:
        assert state.phase is NodePhase.STOPPING, "only a node that was told to stop finishes"
    if state.phase is NodePhase.WAITING_CONFIG:
        assert state.spec is None, "without a configuration the node waits for one"
        assert state.config_error, "a node that waits says what for"


def check_component(spec: ComponentSpec, state: ComponentState) -> None:
    """Raise AssertionError with the name of the first invariant of one component that does not hold."""
    run, want = state.run, state.want
    assert (run is None) == (state.state in IDLE), "a run exists exactly in the states that have one"
    assert (state.deadline_ns is not None) == (state.state in _TIMED), "nothing is stuck: timed states have a deadline"
    assert state.ready is not True or state.state is State.RUNNING, "only what runs is ready"
    assert state.ready is not True or run is None or runs.failed(spec, run) is None, "what is not alive is not ready"
    assert not (want.up and (want.held or want.clear_tree)), "what is wanted up is not wanted gone"
    assert not (state.forced and not want.up), "what is unwanted is not to be started"
    assert state.generation > 0 or not state.litter, "what was left was left by a run"
    assert len(state.starts) <= (spec.restart.limit or 0), "the history of starts is bounded"
    if run is None:
        assert state.aim is Aim.NONE, "nothing is being stopped where nothing runs"
        _check_idle(spec, state)
        return
    assert state.generation > 0, "a run has a generation"
    assert state.gave_up is None or run.phase is Phase.TREE, "what was given up does not run"
    assert (run.pid is not None) == (run.phase is Phase.LIVE), "a pid is known exactly while the main process exists"
    if run.phase is Phase.LIVE:
        stopping = state.state in {State.STOPPING, State.KILLING}
        assert stopping == (state.aim is not Aim.NONE), "a stop under way has an aim, and nothing else has"
    if run.phase is Phase.TREE:
        assert state.state is State.KILLING, "a tree without its main process is being cleared"
    if run.phase in {Phase.CHECK, Phase.SPAWN}:
        assert state.state is State.STARTING, "before the main process exists the component is starting"
    if not want.up and not want.held and run.phase is not Phase.TREE:
        assert state.aim is Aim.DOWN, "what is unwanted is being stopped"


def check_writeback(state: Writeback) -> None:
    """Raise AssertionError where what is in force is not what the records say."""
    facts = state.durable
    for item in state.pending:
        if not latches.is_permissive(facts, item.change):
            facts = latches.apply(facts, item.change)
    assert facts == state.in_force, "in force is the durable record with the restrictive changes after it"
    # Changes that no operator asked for (the controller's word, a drain that completes) are never refused.
    assert len(state.pending) <= 2 * MAX_PENDING, "what waits for the disk is bounded"
    seqs = [item.seq for item in state.pending]
    assert seqs == sorted(set(seqs)), "changes are written in the order they were made"
    assert wb.target(state).epoch_seen >= state.durable.epoch_seen, "an epoch never goes back"


def _check_idle(spec: ComponentSpec, state: ComponentState) -> None:
    want = state.want
    clears = spec.stop.kill_scope is KillScope.TREE or want.clear_tree
    assert not (state.litter and clears), "what may not be left behind is being killed"
    match state.state:
        case State.EXITED:
            assert want.up, "what is unwanted is stopped, whatever it ended with"
            assert state.hold is not None, "a final exit says why it is final"
        case State.FAILED:
            assert want.up, "what is unwanted is stopped, however often it failed"
            assert state.gave_up is not None, "a component that was given up says why"
        case State.BACKOFF:
            assert want.up, "what is unwanted waits for no restart"
            assert want.waits is None, "what may not start waits for no delay"
        case _:
            assert not want.up or want.waits is not None, "nothing that is wanted and may start lies dead"


def _check_latches(state: NodeState, member: Member) -> None:
    want = member.state.want
    if state.host_state is HostState.DECOMMISSIONED and "host.decommissioned" in member.spec.stop_when:
        assert want.rule is Rule.DECOMMISSIONED, "a decommissioned host's component is not wanted"
        assert not want.up, "a decommissioned host's component is not wanted"
    if latches.hold_of(state.in_force, member.spec.name) is not None:
        assert not want.up, "an operator's stop holds"
    if want.up and any(name.startswith(("controller.", "lease.")) for name in member.spec.run_while):
        assert want.lease is not None, "what runs under a leased fact knows its lease"
