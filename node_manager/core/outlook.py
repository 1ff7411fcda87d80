"""What is said of one component in words: why it is as it is, and what comes next."""

from typing import TypedDict

from node_manager.core import claims, latches
from node_manager.core import run as runs
from node_manager.core.events import HostState
from node_manager.core.facts import HOST_PREFIX
from node_manager.core.intent import Rule
from node_manager.core.nodestate import Member, NodeState, drain_of
from node_manager.core.states import IDLE, WATCHED, State, jobs_of, rule_of, wake_ns
from node_manager.core.words import because, jobs, span


class NextStatus(TypedDict):
    """What the agent will do next, and when; `at_ns` None: once what it waits for has happened."""

    what: str
    at_ns: int | None


def reason(node: NodeState, member: Member, now: int) -> str:
    """Return why the component is as it is; of a young run that follows failures also why the last one ended."""
    text, state, run = standing(node, member), member.state, member.state.run
    if run is None or state.state not in WATCHED or state.failures == 0:
        return text
    age_ns = now - run.started_ns
    if age_ns >= member.spec.restart.reset_after_ns:
        return text
    history = f"restarted {span(age_ns)} ago: {state.last_exit or f'{state.failures} runs before it failed'}"
    return history if text == state.want.reason else f"{text}; {history}"


def standing(node: NodeState, member: Member) -> str:
    """Return why the component is as it is, apart from what was before."""
    state, run = member.state, member.state.run
    if run is None:
        waits = state.want.waits if state.want.up and state.hold is None else None
        text = state.reason if waits is None else waits.reason
        return f"{text}; the drain waits for it{because(last_report(member))}" if keeps_draining(node, member) else text
    if state.state not in WATCHED:
        return state.reason
    failed = runs.failed(member.spec, run)
    if failed is not None:
        return runs.why_failed(run, failed)
    if run.told_to_drain and state.state is State.RUNNING:
        return _told_to_drain(node, member)
    if state.state is State.RUNNING and state.ready is not True:
        if run.readiness is None:
            return "not heard from since this agent began; it was not ready before"
        return f"not ready: {run.readiness.detail or 'no answer yet'}"
    return state.want.reason if state.state is State.RUNNING and state.want.up else state.reason


def keeps_draining(node: NodeState, member: Member) -> bool:
    """Tell whether a drain goes on because of a component that is down: it has not said that it is drained."""
    draining = node.host_state is HostState.DRAINING and drain_of(member.spec) is not None
    return draining and member.state.state in IDLE and member.spec.name not in node.drain_done


def last_report(member: Member) -> str:
    """Return what a component that is down last reported of its jobs; nothing where it had none."""
    count = jobs_of(member.state)
    return f"it last reported {jobs(count)}" if count else ""


def next_step(node: NodeState, member: Member, now: int) -> NextStatus | None:
    """Return what comes next for the component, or None where nothing does."""
    state = member.state
    if state.deadline_ns is not None:
        what = {State.BACKOFF: "start", State.STOPPING: "SIGKILL", State.KILLING: "SIGKILL again"}[state.state]
        return NextStatus(what=what, at_ns=state.deadline_ns)
    if state.run is None:
        when = _start_when(node, member, now)
        return None if when is None else NextStatus(what=f"start {when}", at_ns=None)
    if member.condition_until_ns is not None and state.want.up:
        return NextStatus(what="stop, unless the lease is renewed", at_ns=member.condition_until_ns)
    at = wake_ns(state)
    what = "probe" if state.run.watch is None else "a look at its process, or a probe"
    return None if at is None else NextStatus(what=what, at_ns=at)


def _start_when(node: NodeState, member: Member, now: int) -> str | None:
    """Return what a component that is down waits for: what ends the rule that decides now."""
    if member.removed:
        return None
    match rule_of(member.state):
        case Rule.DECOMMISSIONED:
            return "after `xce-nodectl recommission`"
        case Rule.DRAINED:
            return "after `xce-nodectl recommission`" if node.in_force.doubt else "after `xce-nodectl undrain`"
        case Rule.OPERATOR_HOLD | Rule.EXIT_HOLD | Rule.START_LIMIT:
            return f"when an operator says `xce-nodectl start {member.spec.name}`"
        case Rule.CONDITION:
            return f"when {' and '.join(_conditions(node, member, now))}"
        case Rule.DEPENDENCY:
            waits_for = claims.unready(node, member.spec)
            return f"when {' and '.join(waits_for)} {'is' if len(waits_for) == 1 else 'are'} ready"
        case Rule.MAINTENANCE:
            return "when maintenance ends"
        case _:
            return None  # the node is stopping


def _conditions(node: NodeState, member: Member, now: int) -> list[str]:
    """Return what has to become so before the component may run."""
    spec = member.spec
    found = [one.ends_when for one in claims.unmet(node, spec, now)]
    return found + [
        f"{fact} is false"
        for fact in spec.stop_when
        if fact.startswith(HOST_PREFIX) and latches.reached(node.in_force, fact)
    ]


def _told_to_drain(node: NodeState, member: Member) -> str:
    latch, count = latches.ruling_latch(node.in_force), jobs_of(member.state)
    assert latch is not None, "nobody is told to drain without a latch"
    who = f"{latch.by}{because(latch.reason)}" if latch.epoch is None else f"the controller under epoch {latch.epoch}"
    return f"told to drain by {who}" if count is None else f"told to drain by {who}; {jobs(count)} left"
