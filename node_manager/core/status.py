"""What the node looks like from outside: one view for the API, the commands and the heartbeats.

The shapes are JSON objects (status API, version 1); times are CLOCK_BOOTTIME in nanoseconds beside `now_ns`, and
`wall_offset_ns` turns them into wall-clock time.
"""

from typing import TypedDict

from node_manager.core import claims, latches, outlook
from node_manager.core import run as runs
from node_manager.core.budget import expected_back_ns, rejoin_budget_ns
from node_manager.core.durable import Latch
from node_manager.core.events import HostState
from node_manager.core.hostlife import drain_over, jobs_left_in
from node_manager.core.intent import Claim, Rule, by_precedence
from node_manager.core.nodestate import Member, NodePhase, NodeState, latch_deadline_ns
from node_manager.core.outlook import NextStatus
from node_manager.core.spec import NS_PER_MS
from node_manager.core.stated import FactStatus, listing
from node_manager.core.states import Aim, State, jobs_are_old, jobs_of, rule_of
from node_manager.core.words import because

SCHEMA = 1


class ComponentStatus(TypedDict):
    """One component."""

    name: str
    role: str
    state: str
    desired: str
    ready: bool | None
    verdict: str | None
    """What is said of its process; None: nothing judges it."""
    pid: int | None
    generation: int
    restarts: int
    crashes: int
    since_ns: int
    uptime_ns: int | None
    rule: str
    reason: str
    next: NextStatus | None
    expected_back_ms: int | None
    """By when it must have rejoined, while it restarts, waits for that or starts."""
    rejoin_budget_ms: int
    """The worst time from its last word to its having rejoined, over a restart."""
    last_exit: str | None
    status_text: str
    jobs: int | None
    jobs_last_known: bool
    """The number is the last one that an earlier run reported."""
    adopted: bool


class HostStatus(TypedDict):
    """Where the host stands on its way out of the cluster."""

    state: str
    epoch: int
    reason: str
    by: str
    at_wall_ns: int | None
    deadline_ns: int | None
    jobs_left: int | None
    jobs_left_last_known: bool
    """Part of it is what a component last reported that has not reported since."""


class NodeInfo(TypedDict):
    """The agent and its configuration."""

    name: str
    instance_id: str | None
    roles: list[str]
    state: str
    ready: bool
    config_error: str | None
    cgroup_mode: str
    maintenance: str | None


class NodeStatus(TypedDict):
    """The body of `GET /v1/status`."""

    schema: int
    now_ns: int
    wall_offset_ns: int
    node: NodeInfo
    host: HostStatus
    components: list[ComponentStatus]
    facts: list[FactStatus]
    warnings: list[str]


class ClaimStatus(TypedDict):
    """One rule that holds for a component."""

    rule: str
    reason: str
    since_ns: int | None
    by: str | None
    at_wall_ns: int | None


class ProbeStatus(TypedDict):
    """One armed probe."""

    probe: str
    state: str
    detail: str
    successes: int
    failures: int
    next_at_ns: int | None


class WhyStatus(TypedDict):
    """The body of `GET /v1/components/{name}/why`, but for its history."""

    component: str
    role: str
    state: str
    desired: str
    ready: bool | None
    verdict: str | None
    verdict_detail: str | None
    """What the verdict rests on, where it is not `ok`."""
    pid: int | None
    rule: str
    reason: str
    since_ns: int
    next: NextStatus | None
    claims: list[ClaimStatus]
    last_exit: str | None
    restarts: int
    crashes: int
    probes: list[ProbeStatus]
    now_ns: int
    wall_offset_ns: int


def node_status(node: NodeState, now: int, *, name: str, cgroup_mode: str) -> NodeStatus:
    """Return the whole view. `name` is the host's own, for as long as no configuration names it."""
    return complete(frame(node, now, name=name, cgroup_mode=cgroup_mode), node, now)


def complete(found: NodeStatus, node: NodeState, now: int) -> NodeStatus:
    """Put the components into a frame, and return it."""
    found["components"].extend(component_status(node, member, now) for member in in_order(node))
    return found


def frame(node: NodeState, now: int, *, name: str, cgroup_mode: str) -> NodeStatus:
    """Return the view without its components."""
    spec = node.spec
    return NodeStatus(
        schema=SCHEMA,
        now_ns=now,
        wall_offset_ns=node.wall_offset_ns,
        node=NodeInfo(
            name=name if spec is None else spec.host.name,
            instance_id=None if spec is None else spec.host.instance_id,
            roles=[] if spec is None else list(spec.roles),
            state=node.phase.value,
            ready=not not_ready(node),
            config_error=node.config_error,
            cgroup_mode=cgroup_mode,
            maintenance=_maintenance(node),
        ),
        host=_host(node),
        components=[],
        facts=listing(node, now),
        warnings=warnings(node, now),
    )


def not_ready(node: NodeState) -> list[str]:
    """Return why the node is not ready, one sentence each; empty: it is."""
    if node.phase is not NodePhase.RUNNING:
        return [f"the node is {node.phase.value}"]
    return [
        f"{member.spec.name} is {member.state.state.value}: {outlook.standing(node, member)}"
        for member in in_order(node)
        if member.state.want.up and member.state.ready is not True
    ]


def warnings(node: NodeState, now: int) -> list[str]:
    """Return what an operator must know beside the states, the most serious first."""
    found = []
    record = node.in_force
    if record.doubt is not None:
        found.append(f"it is not known whether this host is decommissioned: {record.doubt}")
    if node.writeback.error is not None and node.writeback.pending:
        count = len(node.writeback.pending)
        found.append(f"{count} changes are in force but not durable: {node.writeback.error}; trying again")
    if node.phase is not NodePhase.WAITING_CONFIG and node.config_error is not None:
        found.append("the configuration cannot be taken; the last good one is in force")
    if node.drain_expired:
        found.append(drain_over(node, now))
    draining = node.host_state is HostState.DRAINING
    found += [
        f"the drain waits for {name}, which is {member.state.state.value}{because(outlook.last_report(member))}"
        for name, member in node.members.items()
        if draining and member.state.state is not State.BACKOFF and outlook.keeps_draining(node, member)
    ]
    return found


def component_status(node: NodeState, member: Member, now: int) -> ComponentStatus:
    """Return the view of one component."""
    state, run = member.state, member.state.run
    back_ns = expected_back_ns(member.spec, state, now)
    return ComponentStatus(
        name=member.spec.name,
        role=member.spec.role,
        state=state.state.value,
        desired="up" if state.want.up else "down",
        ready=state.ready,
        verdict=None if state.verdict is None else state.verdict.value,
        pid=None if run is None else run.pid,
        generation=state.generation,
        restarts=state.restarts,
        crashes=state.crashes,
        since_ns=state.since_ns,
        uptime_ns=None if run is None or run.pid is None else now - run.started_ns,
        rule=rule_of(state).value,
        reason=outlook.reason(node, member, now),
        next=outlook.next_step(node, member, now),
        expected_back_ms=None if back_ns is None else back_ns // NS_PER_MS,
        rejoin_budget_ms=rejoin_budget_ns(member.spec) // NS_PER_MS,
        last_exit=state.last_exit,
        status_text="" if run is None else run.status,
        jobs=jobs_of(state),
        jobs_last_known=jobs_are_old(state),
        adopted=run is not None and run.adopted,
    )


def steady(member: Member, now: int) -> bool:
    """Tell whether all that `component_status` says from now on follows from `member` alone, apart from `uptime_ns`.

    It runs and is ready, and its age needs no explanation any more: then neither the node nor the time has a say.
    """
    state, run = member.state, member.state.run
    return (
        state.state is State.RUNNING
        and run is not None
        and run.pid is not None
        and not run.told_to_drain
        and state.ready is True
        and state.aim is Aim.NONE
        and (state.failures == 0 or now - run.started_ns >= member.spec.restart.reset_after_ns)
    )


def why(node: NodeState, member: Member, now: int) -> WhyStatus:
    """Return everything that decides about one component now."""
    state, run = member.state, member.state.run
    return WhyStatus(
        component=member.spec.name,
        role=member.spec.role,
        state=state.state.value,
        desired="up" if state.want.up else "down",
        ready=state.ready,
        verdict=None if state.verdict is None else state.verdict.value,
        verdict_detail=None if run is None or run.watch is None else run.watch.finding.detail,
        pid=None if run is None else run.pid,
        rule=rule_of(state).value,
        reason=outlook.reason(node, member, now),
        since_ns=state.since_ns,
        next=outlook.next_step(node, member, now),
        claims=[_claim(member, claim) for claim in by_precedence(claims.every(node, member, now))],
        last_exit=state.last_exit,
        restarts=state.restarts,
        crashes=state.crashes,
        probes=[] if run is None else _probes(member),
        now_ns=now,
        wall_offset_ns=node.wall_offset_ns,
    )


def levels(node: NodeState, name: str, now: int) -> list[tuple[str, str]]:
    """Return what the component `name` is told over its heartbeat connection, directives first.

    Levels, not events: everything is stated again whenever it is sent. A directive that does not hold is stated as 0.
    """
    member = node.members.get(name)
    if member is None:
        return []
    found = _directives(node)
    found.append(("NODE_STOPPING", _flag(node.phase is NodePhase.STOPPING)))
    found.append(("REJOIN_BUDGET_MS", str(rejoin_budget_ns(member.spec) // NS_PER_MS)))
    for fact in dict.fromkeys((*member.spec.run_while, *member.spec.stop_when)):
        leased = node.table.leased.get(fact)
        if leased is not None:
            found.append((f"FACT.{fact}", "true" if leased.value else "false"))
            found.append((f"FACT.{fact}.TERM", str(leased.term)))
            found.append((f"FACT.{fact}.VALID_UNTIL_NS", str(leased.valid_until_ns)))
    for other in node.members.values():
        found.append((f"COMPONENT.{other.spec.name}", other.state.state.value))
        found.append((f"COMPONENT.{other.spec.name}.RESTARTS", str(other.state.restarts)))
        back_ns = expected_back_ns(other.spec, other.state, now)
        if back_ns is not None:
            found.append((f"COMPONENT.{other.spec.name}.EXPECTED_BACK_MS", str(back_ns // NS_PER_MS)))
    return found


def _directives(node: NodeState) -> list[tuple[str, str]]:
    state, latch = node.host_state, latches.ruling_latch(node.in_force)
    draining = state is HostState.DRAINING
    deadline_ns = None if latch is None or not draining else latch_deadline_ns(latch, node)
    released = node.in_force.released_epoch
    return [
        ("DECOMMISSIONED", _flag(state is HostState.DECOMMISSIONED)),
        ("DRAIN", _flag(draining or state is HostState.DRAINED)),
        ("DRAIN_DEADLINE_NS", "0" if deadline_ns is None else str(deadline_ns)),
        ("UNDRAIN", _flag(state is HostState.ACTIVE and released > 0)),
        ("EPOCH", str(released)),
        # What a worker states on its own account (drained) may not hide a word of the controller that has not come in.
        ("SEEN_EPOCH", str(node.in_force.epoch_seen)),
    ]


def _flag(value: bool) -> str:
    return "1" if value else "0"


def in_order(node: NodeState) -> list[Member]:
    """Return the components in the order in which they start."""
    ordered = [node.members[name] for name in node.index.order if name in node.members]
    return ordered or list(node.members.values())


def _claim(member: Member, claim: Claim) -> ClaimStatus:
    since_ns = claim.since_ns
    if since_ns is None and claim.rule is member.state.want.rule and claim.rule is not Rule.CONFIGURED:
        since_ns = member.state.want_since_ns
    return ClaimStatus(
        rule=claim.rule.value, reason=claim.reason, since_ns=since_ns, by=claim.by, at_wall_ns=claim.at_wall_ns
    )


def _probes(member: Member) -> list[ProbeStatus]:
    assert member.state.run is not None
    words = {True: "passed", False: "failed", None: "unknown"}
    return [
        ProbeStatus(
            probe=kind.value,
            state=words[state.verdict],
            detail=state.detail,
            successes=state.successes,
            failures=state.failures,
            next_at_ns=state.next_ns,
        )
        for kind, _probe, state in runs.listing(member.spec, member.state.run)
    ]


def _maintenance(node: NodeState) -> str | None:
    maintenance = node.in_force.maintenance
    if maintenance is None:
        return None
    return f"{maintenance.by}: {maintenance.reason}" if maintenance.reason else maintenance.by


def _host(node: NodeState) -> HostStatus:
    record = node.in_force
    latch: Latch | None = latches.ruling_latch(record)
    if record.doubt is not None:
        reason, by = record.doubt, "node manager"
    else:
        reason, by = ("", "") if latch is None else (latch.reason, latch.by)
    return HostStatus(
        state=node.host_state.value,
        epoch=record.epoch_seen,
        reason=reason,
        by=by,
        at_wall_ns=None if latch is None else latch.at_wall_ns,
        deadline_ns=None if latch is None else latch_deadline_ns(latch, node),
        jobs_left=jobs_left_in(node.members),
        jobs_left_last_known=any(jobs_are_old(member.state) for member in node.members.values()),
    )
