"""The scenes of a worker: its host is drained, and decommissioned."""

from node_manager.conformance.agent import Agent
from node_manager.conformance.common import RECONNECT_WITHIN_S
from node_manager.conformance.kit import Kit
from node_manager.conformance.program import Program
from node_manager.core.events import HostState

OBEYS_WITHIN_S = 15.0
DECOMMISSIONED_STATUS = 79
_DRAINS = (HostState.DRAINING, HostState.DRAINED)


def _states(agent: Agent, since: int = 0) -> list[HostState]:
    return [one.beat.host_state for one in agent.since(since) if one.beat.host_state is not None]


def _left(program: Program) -> bool:
    """Whether it ended of its own accord, in order."""
    return program.status in {0, DECOMMISSIONED_STATUS}


def drain(kit: Kit) -> None:
    """An order to drain, which holds while the agent is away."""
    with kit.scene() as stage:
        agent, program = kit.begin(stage)
        stage.play(agent.interval_s)
        agent.tell({"DRAIN": "1"})
        stage.until(lambda: _states(agent)[-1:] in ([one] for one in _DRAINS) or not program.running, OBEYS_WITHIN_S)
        drains = _states(agent)[-1:] in [[one] for one in _DRAINS] or program.status == 0
        detail = f"it stated no drain within {OBEYS_WITHIN_S:g} s; {program.why_ended()}"
        if not kit.verdicts.judge("obeys-drain", detail, holds=drains):
            return
        if not program.running:
            kit.verdicts.hold("keeps-directives")
            return
        agent.answering = False
        count = len(agent.heard)
        agent.hang_up()
        stage.until(lambda: bool(_states(agent, count)) or not program.running, RECONNECT_WITHIN_S)
        stage.play(2 * agent.interval_s)
        held = _left(program) or _states(agent, count)[-1:] in [[one] for one in _DRAINS]
        kit.verdicts.judge("keeps-directives", "it did not state the drain to an agent that said nothing", holds=held)


def decommission(kit: Kit) -> None:
    """An order to leave the cluster."""
    with kit.scene() as stage:
        agent, program = kit.begin(stage)
        stage.play(agent.interval_s)
        agent.tell({"DECOMMISSIONED": "1"})

        def obeys() -> bool:
            return not program.running or HostState.DECOMMISSIONED in _states(agent)

        stage.until(obeys, OBEYS_WITHIN_S)
        obeyed = _left(program) or HostState.DECOMMISSIONED in _states(agent)
        detail = f"it neither stated it nor ended in order within {OBEYS_WITHIN_S:g} s; {program.why_ended()}"
        kit.verdicts.judge("obeys-decommission", detail, holds=obeyed)
