"""Taking up a configuration: the first one with whatever an earlier agent left running, later ones as a change."""

from node_manager.core import facts
from node_manager.core.changed import replace
from node_manager.core.events import ConfigFailed, ConfigLoaded, Found
from node_manager.core.happenings import Adopted, RestartAsked, Updated
from node_manager.core.nodestate import Member, NodePhase, remember
from node_manager.core.ordering import Plan, digest_differs, index, plan_change, process_digest
from node_manager.core.spec import ComponentSpec, KillScope, NodeSpec, StopSpec
from node_manager.core.states import ComponentState
from node_manager.core.turn import Turn


def loaded(turn: Turn, event: ConfigLoaded) -> None:
    """Take up a valid configuration."""
    if turn.node.phase is NodePhase.STOPPING:
        turn.refuse_reload(event.command_id, "the node is stopping")
        return
    problem = _identity_changed(turn, event.spec)
    if problem is not None:
        turn.node = replace(turn.node, config_error=problem)
        turn.log("config.refused", why=problem)
        turn.refuse_reload(event.command_id, problem)
        return
    first = turn.node.spec is None
    plan = plan_change({name: member.spec for name, member in turn.members.items()}, event.spec)
    turn.node = replace(turn.node, spec=event.spec, phase=NodePhase.RUNNING, config_error=event.warning)
    turn.node = replace(turn.node, past=remember(turn.node.past, *event.past))
    _apply(turn, plan, event.spec)
    for found in event.found:
        _adopt(turn, found)
    _reindex(turn)
    for name in plan.restarted:
        # A run that began a moment ago began under this very configuration.
        if not turn.began(name):
            turn.feed(name, RestartAsked(reason="its configuration changed"))
    for found in event.found:
        member = turn.members.get(found.component)
        if member is not None and digest_differs(found.spec_digest, process_digest(member.spec)) and not member.removed:
            turn.feed(found.component, RestartAsked(reason="its configuration changed while no agent was running"))
    turn.log("config.loaded", roles=", ".join(event.spec.roles), components=len(event.spec.components), first=first)
    turn.reply(event.command_id, _summary(plan))


def failed(turn: Turn, event: ConfigFailed) -> None:
    """Note a wrong or absent configuration; what runs goes on under the last good one."""
    if turn.node.config_error != event.error:
        turn.node = replace(turn.node, config_error=event.error)
        turn.log("config.failed", error=event.error)
    turn.refuse_reload(event.command_id, event.error)


def _identity_changed(turn: Turn, spec: NodeSpec) -> str | None:
    """Return why this is another host's configuration: the identity is fixed for the boot."""
    old = turn.node.spec
    if old is None or old.host.instance_id == spec.host.instance_id:
        return None
    return (
        f"host.instance_id changed from {old.host.instance_id} to {spec.host.instance_id}; "
        "the identity is fixed until the next boot"
    )


def _apply(turn: Turn, plan: Plan, spec: NodeSpec) -> None:
    for wanted in spec.components:
        old = turn.members.get(wanted.name)
        if old is None:
            turn.members[wanted.name] = Member(spec=wanted, state=_newcomer(turn, wanted.name))
            continue
        turn.members[wanted.name] = replace(old, spec=wanted, removed=False)
        if wanted != old.spec:
            turn.feed(wanted.name, Updated(old=old.spec))
    for name in plan.removed:
        turn.members[name] = replace(turn.members[name], removed=True)
    turn.node = replace(turn.node, kept_holds=())


def _newcomer(turn: Turn, name: str) -> ComponentState:
    """Return the state of a component that this agent has not seen yet: its generations and a hold go on."""
    state = ComponentState(since_ns=turn.now, want_since_ns=turn.now)
    past = turn.node.past.get(name)
    if past is not None:
        # Something left has a generation above 0, whatever was recorded.
        generation = max(past.generation, 1) if past.left else past.generation
        state = replace(
            state,
            generation=generation,
            restarts=past.restarts,
            litter=past.left,
            crashes=past.crashes,
            last_exit=past.last_exit,
            last_jobs=past.last_jobs,
        )
    kept = next((kept for kept in turn.node.kept_holds if kept.component == name), None)
    if kept is not None:
        state = replace(
            state,
            hold=kept.reason,
            hold_since_ns=kept.since_ns,
            generation=max(kept.generation, state.generation),
            last_exit=state.last_exit or kept.reason,
        )
    return state


def _adopt(turn: Turn, found: Found) -> None:
    member = turn.members.get(found.component)
    if member is None:
        # It was removed from the configuration while no agent ran: take it into charge to stop it properly.
        scope = KillScope.TREE if found.stop_tree else KillScope.PROCESS
        stop = StopSpec(signal=found.stop_signal, timeout_ns=found.stop_timeout_ns, kill_scope=scope)
        stub = ComponentSpec(name=found.component, role="(removed)", command=("(unknown)",), stop=stop)
        turn.members[found.component] = Member(spec=stub, state=_newcomer(turn, found.component), removed=True)
    else:
        # The process runs: whatever an exit had meant before is history.
        turn.members[found.component] = replace(member, state=replace(member.state, hold=None))
    turn.feed(found.component, Adopted(found=found))


def _reindex(turn: Turn) -> None:
    found = index(member.spec for member in turn.members.values())
    turn.node = replace(turn.node, index=found, table=facts.only_of(turn.node.table, found.authorities))
    turn.mark_all()
    turn.settle()
    turn.tell_host_state()


def _summary(plan: Plan) -> str:
    parts = [
        f"{label}: {', '.join(names)}"
        for label, names in (
            ("added", plan.added),
            ("removed", plan.removed),
            ("restarted", plan.restarted),
            ("updated", plan.updated),
        )
        if names
    ]
    return "; ".join(parts) or "nothing changed"
