"""The scenes of a scheduler, or of whatever runs under a lease: it fences itself."""

import signal

from node_manager.conformance.agent import Agent, now_ns
from node_manager.conformance.kit import TERM, Kit
from node_manager.conformance.program import Program
from node_manager.core.spec import NS_PER_S

LEASE_S = 6.0
"""Time for an interpreter to start on a busy machine, and to be seen at work."""
RENEWED_S = 4.0
AT_ONCE_S = 3.0
"""How long a program may take to end after it was told something that ends it."""
FACT = "FACT.controller.primary"


def _stands(agent: Agent, program: Program) -> bool:
    """Whether it may be at work: it runs, and has not said that it is not ready since it was."""
    ready = [one.beat.ready for one in agent.heard if one.beat.ready is not None]
    stopping = any(one.beat.stopping for one in agent.heard)
    return program.running and not stopping and (not ready or ready[-1] is not False or True not in ready)


def _begin(kit: Kit, agent: Agent) -> tuple[Program, int]:
    """Start the program under a short lease; returns when that ends."""
    program = kit.start(agent, kit.environment(agent, lease_s=LEASE_S))
    kit.greeted(agent)
    return program, int(agent.levels[f"{FACT}.VALID_UNTIL_NS"])


def _forget_fact(agent: Agent) -> None:
    """As an agent does that nobody has stated the fact to."""
    for key in [key for key in agent.levels if key.startswith(FACT)]:
        del agent.levels[key]


def _left_s(until_ns: int) -> float:
    return max(0.0, (until_ns - now_ns()) / NS_PER_S)


def lease(kit: Kit) -> None:
    """A lease that is renewed once, and then is not."""
    with kit.scene() as stage:
        agent = kit.agent(stage)
        program, until_ns = _begin(kit, agent)
        renewed_ns = until_ns + int(RENEWED_S * NS_PER_S)
        agent.tell({f"{FACT}.VALID_UNTIL_NS": str(renewed_ns)})
        stage.play(_left_s(until_ns) + RENEWED_S / 2)
        detail = f"it did not outlive a lease that had been renewed; {program.why_ended()}"
        if not kit.verdicts.judge("heeds-renewal", detail, holds=_stands(agent, program)):
            return
        ended = stage.until(lambda: not _stands(agent, program), _left_s(renewed_ns) + AT_ONCE_S)
        kit.verdicts.judge("ends-with-lease", f"it was at work {AT_ONCE_S:g} s after its lease", holds=ended)


def agent_away(kit: Kit) -> None:
    """An agent that is gone soon after the start, and had not stated the fact."""
    with kit.scene() as stage:
        agent = kit.agent(stage)
        variables = kit.environment(agent, lease_s=LEASE_S)
        until_ns = int(agent.levels[f"{FACT}.VALID_UNTIL_NS"])
        _forget_fact(agent)
        program = kit.start(agent, variables)
        kit.greeted(agent)
        agent.leave()
        stage.play(_left_s(until_ns - NS_PER_S))
        detail = f"it did not go on to the end of its lease; {program.why_ended()}"
        kit.verdicts.judge("outlives-the-agent", detail, holds=_stands(agent, program))
        ended = stage.until(lambda: not program.running, _left_s(until_ns) + AT_ONCE_S)
        detail = f"without an agent it ran {AT_ONCE_S:g} s after its lease"
        kit.verdicts.judge("ends-with-lease", detail, holds=ended)


def told(kit: Kit) -> None:
    """A new term, and a fact that is false."""
    for point, changes in (
        ("heeds-term", {f"{FACT}.TERM": str(TERM + 1), f"{FACT}.VALID_UNTIL_NS": str(now_ns() + 50 * NS_PER_S)}),
        ("heeds-false", {FACT: "false"}),
    ):
        if not kit.verdicts.wants(point):
            continue
        with kit.scene() as stage:
            agent, program = kit.begin(stage)
            stage.play(agent.interval_s)
            agent.tell(changes)
            ended = stage.until(lambda a=agent, p=program: not _stands(a, p), AT_ONCE_S)  # type: ignore[misc]
            kit.verdicts.judge(point, f"it was at work {AT_ONCE_S:g} s after it was told", holds=ended)


def pause(kit: Kit) -> None:
    """A program that stood still beyond its lease."""
    with kit.scene() as stage:
        agent = kit.agent(stage)
        program, until_ns = _begin(kit, agent)
        stage.play(1.0)
        program.signal(signal.SIGSTOP)
        _forget_fact(agent)
        stage.play(_left_s(until_ns) + 0.5)
        count = len(agent.heard)
        agent.forgive()
        program.signal(signal.SIGCONT)
        ended = stage.until(lambda: not _stands(agent, program), AT_ONCE_S)
        ready = any(one.beat.ready for one in agent.since(count))
        kit.verdicts.judge("after-a-pause", "it went on with its work", holds=ended and not ready)


def no_lease(kit: Kit) -> None:
    """A start without a lease."""
    with kit.scene() as stage:
        agent = kit.agent(stage)
        variables = kit.environment(agent)
        del variables["XCE_TERM"], variables["XCE_LEASE_VALID_UNTIL_NS"]
        _forget_fact(agent)
        program = kit.start(agent, variables)
        ended = stage.until(lambda: not program.running, LEASE_S)
        refused = ended and program.status != 0
        kit.verdicts.judge("refuses-without-lease", "it runs without XCE_TERM", holds=refused)
