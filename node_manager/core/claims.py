"""What every rule of the ledger says about one component, and the ruling that follows."""

from node_manager.core import facts, latches
from node_manager.core.durable import Latch
from node_manager.core.events import HostState
from node_manager.core.intent import STOPPING_RULES, Claim, Rule, Want, ruling
from node_manager.core.nodestate import Member, NodePhase, NodeState
from node_manager.core.spec import ComponentSpec, OnDeadline
from node_manager.core.states import State

_WAITING_RULES = frozenset({Rule.DEPENDENCY, Rule.MAINTENANCE})
"""Rules that keep a component from starting and are nothing to one that runs."""


def want(node: NodeState, member: Member, now: int) -> Want:
    """Return what the ledger asks of the component's machine now."""
    spec = member.spec
    claims = outer(node, member, now)
    claim = ruling([claim for claim in claims if claim.rule not in _WAITING_RULES])
    waiting = [claim for claim in claims if claim.rule in _WAITING_RULES]
    up = claim.rule not in STOPPING_RULES and not member.removed
    return Want(
        up=up,
        rule=claim.rule,
        reason=claim.reason,
        waits=ruling(waiting) if waiting else None,
        held=claim.rule is Rule.NODE_STOPPING and _turn_not_come(node, spec),
        kill=claim.rule is Rule.NODE_STOPPING and node.stop_bound_passed,
        clear_tree=not up and _drain_kills(node, spec),
        patient=node.in_force.maintenance is not None,
        lease=facts.lease_of(node.table, spec, now) if up else None,
    )


def outer(node: NodeState, member: Member, now: int) -> list[Claim]:
    """Return the claims that come from outside the component: all but exit-hold, start-limit and backoff."""
    spec = member.spec
    claims = [_configured(member)]
    _claim_host(node, spec, claims)
    if node.phase is NodePhase.STOPPING:
        claims.append(Claim(rule=Rule.NODE_STOPPING, reason=f"the node is stopping: {node.stop_reason}"))
    hold = latches.hold_of(node.in_force, spec.name)
    if hold is not None:
        claims.append(
            Claim(
                rule=Rule.OPERATOR_HOLD,
                reason=f"stopped by {hold.by}{_because(hold.reason)}",
                by=hold.by,
                at_wall_ns=hold.at_wall_ns,
            )
        )
    _claim_conditions(node, spec, claims, now)
    waiting = [name for name in spec.after if not _is_ready(node, name)]
    if waiting:
        claims.append(Claim(rule=Rule.DEPENDENCY, reason=f"waits until {', '.join(waiting)} is ready"))
    maintenance = node.in_force.maintenance
    if maintenance is not None and not member.state.forced:
        claims.append(
            Claim(
                rule=Rule.MAINTENANCE,
                reason=f"maintenance by {maintenance.by}{_because(maintenance.reason)}: nothing starts by itself",
                by=maintenance.by,
                at_wall_ns=maintenance.at_wall_ns,
            )
        )
    return claims


def every(node: NodeState, member: Member, now: int) -> list[Claim]:
    """Return all claims, those of the component's own machine included, for `why` and status."""
    state = member.state
    claims = outer(node, member, now)
    if state.run is not None:
        claims = [claim for claim in claims if claim.rule not in _WAITING_RULES]
    if state.hold is not None:
        claims.append(Claim(rule=Rule.EXIT_HOLD, reason=state.hold, since_ns=state.hold_since_ns))
    if state.gave_up is not None:
        claims.append(Claim(rule=Rule.START_LIMIT, reason=state.gave_up, since_ns=state.since_ns))
    if state.state is State.BACKOFF:
        claims.append(Claim(rule=Rule.BACKOFF, reason=state.reason, since_ns=state.since_ns))
    return claims


def condition_until_ns(node: NodeState, spec: ComponentSpec, now: int) -> int | None:
    """Return when conditions that hold now stop holding by themselves, or None."""
    untils = [
        until
        for name in spec.run_while
        if facts.is_leased(name) and (until := facts.condition(node.table, name, spec, now).until_ns) is not None
    ]
    return min(untils, default=None)


def _configured(member: Member) -> Claim:
    if member.removed:
        return Claim(rule=Rule.CONFIGURED, reason="removed from the configuration")
    return Claim(rule=Rule.CONFIGURED, reason=f"configured by role {member.spec.role}")


def _claim_host(node: NodeState, spec: ComponentSpec, claims: list[Claim]) -> None:
    record = node.in_force
    latch = latches.ruling_latch(record)
    rules = {"host.decommissioned": Rule.DECOMMISSIONED, "host.drained": Rule.DRAINED}
    for fact in spec.stop_when:
        if not fact.startswith(facts.HOST_PREFIX) or not latches.reached(record, fact):
            continue
        rule = rules.get(fact, Rule.CONDITION)
        if record.doubt is not None:
            claims.append(
                Claim(rule=rule, reason=f"it is not known whether this host is decommissioned: {record.doubt}")
            )
        elif latch is not None:
            claims.append(_latch_claim(rule, latch))
    if spec.drain is None or Rule.DRAINED in {claim.rule for claim in claims}:
        return
    if node.host_state is HostState.DRAINED and latch is not None:
        claims.append(_latch_claim(Rule.DRAINED, latch))
    elif node.host_state is HostState.DRAINING and (spec.name in node.drain_done or _drain_kills(node, spec)):
        done = spec.name in node.drain_done
        reason = "its drain is complete" if done else "the drain's deadline has passed and its policy is to kill"
        claims.append(Claim(rule=Rule.DRAINED, reason=reason))


def _latch_claim(rule: Rule, latch: Latch) -> Claim:
    under = "" if latch.epoch is None else f" under epoch {latch.epoch}"
    return Claim(
        rule=rule,
        reason=f"host {latch.state} by {latch.by}{under}{_because(latch.reason)}",
        by=latch.by,
        at_wall_ns=latch.at_wall_ns,
    )


def _claim_conditions(node: NodeState, spec: ComponentSpec, claims: list[Claim], now: int) -> None:
    for name in spec.run_while:
        if facts.is_leased(name):
            found = facts.condition(node.table, name, spec, now)
            if not found.met:
                claims.append(Claim(rule=Rule.CONDITION, reason=found.reason))
        elif not _unleased(node, name):
            claims.append(Claim(rule=Rule.CONDITION, reason=f"{name} is not true"))
    for name in spec.stop_when:
        if name.startswith(facts.HOST_PREFIX):
            continue
        met = facts.value(node.table, name, now) if facts.is_leased(name) else _unleased(node, name)
        if met:
            claims.append(Claim(rule=Rule.CONDITION, reason=f"{name} is true"))


def _unleased(node: NodeState, name: str) -> bool:
    if name.startswith(facts.HOST_PREFIX):
        return latches.reached(node.in_force, name)
    return _is_ready(node, name.removeprefix("component.").removesuffix(".ready"))


def _is_ready(node: NodeState, name: str) -> bool:
    member = node.members.get(name)
    return member is not None and member.state.ready is True


def _has_run(member: Member) -> bool:
    return member.state.run is not None


def _turn_not_come(node: NodeState, spec: ComponentSpec) -> bool:
    if node.stop_bound_passed:
        return False
    waits_for = (node.members.get(name) for name in node.index.dependants.get(spec.name, ()))
    return any(member is not None and _has_run(member) for member in waits_for)


def _drain_kills(node: NodeState, spec: ComponentSpec) -> bool:
    if spec.drain is None or spec.drain.on_deadline is not OnDeadline.KILL:
        return False
    return node.host_state is HostState.DECOMMISSIONED or (node.host_state is HostState.DRAINING and node.drain_expired)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
