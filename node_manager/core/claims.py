"""What every rule of the ledger says about one component, and the ruling that follows."""

from node_manager.core import facts, latches
from node_manager.core.durable import Latch
from node_manager.core.events import HostState
from node_manager.core.intent import STOPPING_RULES, Claim, Rule, Want, ruling
from node_manager.core.nodestate import Member, NodePhase, NodeState, drain_of
from node_manager.core.spec import ComponentSpec, OnDeadline
from node_manager.core.states import State
from node_manager.core.values import dataclass
from node_manager.core.words import because

_WAITING_RULES = frozenset({Rule.DEPENDENCY, Rule.MAINTENANCE})
"""Rules that keep a component from starting and are nothing to one that runs."""
_HOST_RULES = {"host.decommissioned": Rule.DECOMMISSIONED, "host.drained": Rule.DRAINED}
_WANTED = Claim(rule=Rule.CONFIGURED, reason="the configuration wants it")
_REMOVED = Claim(rule=Rule.CONFIGURED, reason="removed from the configuration")


@dataclass(frozen=True, slots=True)
class Unmet:
    """A condition that keeps a component from running: why it does, and what would end it, as "X is true"."""

    reason: str
    ends_when: str


def want(node: NodeState, member: Member, now: int) -> Want:
    """Return what the ledger asks of the component's machine now."""
    spec = member.spec
    claims = outer(node, member, now)
    waiting = [claim for claim in claims if claim.rule in _WAITING_RULES]
    claim = ruling([claim for claim in claims if claim not in waiting] if waiting else claims)
    up = claim.rule not in STOPPING_RULES and not member.removed
    # Its turn in the node's stop is something to wait for only where nothing else says down: a lease does not wait.
    held = (
        node.phase is NodePhase.STOPPING
        and not member.removed
        and _stopping_rules(claims) == {Rule.NODE_STOPPING}
        and _turn_not_come(node, spec)
    )
    return Want(
        up=up,
        rule=claim.rule,
        reason=claim.reason,
        waits=ruling(waiting) if waiting else None,
        held=held,
        kill=node.stop_bound_passed,
        clear_tree=not up and _drain_kills(node, spec),
        patient=node.in_force.maintenance is not None,
        lease=facts.lease_of(node.table, spec, now) if up or held else None,
    )


def _stopping_rules(claims: list[Claim]) -> set[Rule]:
    return {claim.rule for claim in claims if claim.rule in STOPPING_RULES}


def outer(node: NodeState, member: Member, now: int) -> list[Claim]:
    """Return the claims that come from outside the component: all but exit-hold, start-limit and backoff."""
    spec = member.spec
    claims = [_REMOVED if member.removed else _WANTED]
    _claim_host(node, spec, claims)
    if node.phase is NodePhase.STOPPING:
        claims.append(Claim(rule=Rule.NODE_STOPPING, reason=f"the node is stopping: {node.stop_reason}"))
    hold = latches.hold_of(node.in_force, spec.name)
    if hold is not None:
        claims.append(
            Claim(
                rule=Rule.OPERATOR_HOLD,
                reason=f"stopped by {hold.by}{because(hold.reason)}",
                by=hold.by,
                at_wall_ns=hold.at_wall_ns,
            )
        )
    claims += [Claim(rule=Rule.CONDITION, reason=one.reason) for one in unmet(node, spec, now)]
    waiting = unready(node, spec)
    if waiting:
        claims.append(Claim(rule=Rule.DEPENDENCY, reason=f"waits until {', '.join(waiting)} is ready"))
    maintenance = node.in_force.maintenance
    if maintenance is not None and not member.state.forced:
        claims.append(
            Claim(
                rule=Rule.MAINTENANCE,
                reason=f"maintenance by {maintenance.by}{because(maintenance.reason)}: nothing starts by itself",
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
    """Return when what the leased facts say about this component changes by itself, or None."""
    untils = [
        until
        for name in spec.run_while
        if facts.is_leased(name) and (until := facts.condition(node.table, name, spec, now).until_ns) is not None
    ]
    untils += [
        node.table.leased[name].valid_until_ns
        for name in spec.stop_when
        if facts.is_leased(name) and facts.value(node.table, name, now)
    ]
    return min(untils, default=None)


def _claim_host(node: NodeState, spec: ComponentSpec, claims: list[Claim]) -> None:
    record = node.in_force
    latch = latches.ruling_latch(record)
    if latch is None and record.doubt is None:
        return
    for fact in spec.stop_when:
        if not fact.startswith(facts.HOST_PREFIX) or not latches.reached(record, fact):
            continue
        rule = _HOST_RULES.get(fact, Rule.CONDITION)
        if record.doubt is not None:
            claims.append(
                Claim(rule=rule, reason=f"it is not known whether this host is decommissioned: {record.doubt}")
            )
        else:
            assert latch is not None, "what has been reached was latched"
            claims.append(_latch_claim(rule, latch))
    if drain_of(spec) is not None and not any(claim.rule is Rule.DRAINED for claim in claims):
        claims.extend(_drain_claims(node, spec, latch))


def _drain_claims(node: NodeState, spec: ComponentSpec, latch: Latch | None) -> list[Claim]:
    """Return what the host's drain says about a component that takes part in it."""
    record = node.in_force
    if record.doubt is not None:
        return [Claim(rule=Rule.DRAINED, reason=f"it is not known whether this host is drained: {record.doubt}")]
    assert latch is not None, "only a latch makes a host drain"
    if latches.reached(record, "host.drained"):
        return [_latch_claim(Rule.DRAINED, latch)]
    if spec.name in node.drain_done:
        return [Claim(rule=Rule.DRAINED, reason="its drain is complete")]
    if _drain_kills(node, spec):
        return [
            Claim(rule=Rule.DRAINED, reason="the time to drain is over, and its role file says to kill what is left")
        ]
    return []


def _latch_claim(rule: Rule, latch: Latch) -> Claim:
    under = "" if latch.epoch is None else f" under epoch {latch.epoch}"
    return Claim(
        rule=rule,
        reason=f"host {latch.state} by {latch.by}{under}{because(latch.reason)}",
        by=latch.by,
        at_wall_ns=latch.at_wall_ns,
    )


def unmet(node: NodeState, spec: ComponentSpec, now: int) -> list[Unmet]:
    """Return the conditions that keep the component from running, apart from the host's own latches."""
    found = []
    for name in spec.run_while:
        if facts.is_leased(name):
            condition = facts.condition(node.table, name, spec, now)
            if not condition.met:
                short = facts.value(node.table, name, now)
                found.append(Unmet(condition.reason, f"{name} {'holds for long enough' if short else 'is true'}"))
        elif not _unleased(node, name):
            found.append(Unmet(f"{name} is not true", f"{name} is true"))
    for name in spec.stop_when:
        if name.startswith(facts.HOST_PREFIX):
            continue
        met = facts.value(node.table, name, now) if facts.is_leased(name) else _unleased(node, name)
        if met:
            found.append(Unmet(f"{name} is true", f"{name} is not true"))
    return found


def unready(node: NodeState, spec: ComponentSpec) -> list[str]:
    """Return the components that this one waits for before it is started."""
    return [name for name in spec.after if not _is_ready(node, name)]


def _unleased(node: NodeState, name: str) -> bool:
    if name.startswith(facts.HOST_PREFIX):
        return latches.reached(node.in_force, name)
    return _is_ready(node, name.removeprefix("component.").removesuffix(".ready"))


def _is_ready(node: NodeState, name: str) -> bool:
    member = node.members.get(name)
    return member is not None and member.state.ready is True


def _turn_not_come(node: NodeState, spec: ComponentSpec) -> bool:
    if node.stop_bound_passed:
        return False
    waits_for = (node.members.get(name) for name in node.index.dependants.get(spec.name, ()))
    return any(member is not None and member.state.run is not None for member in waits_for)


def _drain_kills(node: NodeState, spec: ComponentSpec) -> bool:
    drain = drain_of(spec)
    if drain is None or drain.on_deadline is not OnDeadline.KILL or node.in_force.doubt is not None:
        # A doubt keeps things from starting; it is no reason to kill users' work.
        return False
    state = node.host_state
    return state is HostState.DECOMMISSIONED or (state is HostState.DRAINING and node.drain_expired)
