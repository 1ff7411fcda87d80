"""Specs and states that the core's tests start from."""

from dataclasses import replace
from typing import Any

from node_manager.core import component
from node_manager.core.actions import Action, Log, LookAt, Signal, TakeEvidence
from node_manager.core.events import EvidenceTaken, Looked, Spawned
from node_manager.core.happenings import ComponentEvent, Wanted
from node_manager.core.intent import Lease, Rule, Want
from node_manager.core.invariants import check_component
from node_manager.core.spec import (
    NS_PER_MS,
    NS_PER_S,
    CommandSpec,
    ComponentSpec,
    HeartbeatCheck,
    HostSpec,
    NodeSpec,
    NotifyCheck,
    ProbeSpec,
    RestartSpec,
    StopSpec,
    TcpCheck,
)
from node_manager.core.states import ComponentState

S = NS_PER_S
MS = NS_PER_MS
T0 = 1_000 * S
"""When the tests begin: some time after boot."""

UP = Want(up=True, rule=Rule.CONFIGURED, reason="configured by role test")
DOWN = Want(up=False, rule=Rule.OPERATOR_HOLD, reason="stopped by ann")
TCP = ProbeSpec(check=TcpCheck(port=1), period_ns=2 * S, failure_threshold=2)
HEARTBEAT = ProbeSpec(check=HeartbeatCheck(), period_ns=1 * S, failure_threshold=10)
NOTIFY = ProbeSpec(check=NotifyCheck(), period_ns=1 * S, failure_threshold=10)
PRE_START = CommandSpec(command=("check",))


def spec(name: str = "web", **fields: Any) -> ComponentSpec:
    """A component of the role `test`; ten seconds to stop, one second to die."""
    return ComponentSpec(name=name, role="test", command=(name,), **fields)


def node_spec(*components: ComponentSpec, instance_id: str | None = "i-1") -> NodeSpec:
    """A host with these components."""
    return NodeSpec(host=HostSpec(name="h1", instance_id=instance_id), roles=("test",), components=components)


def lease(term: int, until_ns: int, fact: str = "controller.primary", budget_ns: int = 3 * S) -> Lease:
    """A leased fact that holds."""
    return Lease(terms=((fact, term),), valid_until_ns=until_ns, not_after_ns=until_ns - budget_ns)


def up(**fields: Any) -> Want:
    """Wanted, with these fields otherwise."""
    return replace(UP, **fields)


def blind(action: LookAt | TakeEvidence) -> Looked | EvidenceTaken:
    """The answer of a host on which nothing can be seen."""
    name, generation = action.component, action.generation
    if isinstance(action, LookAt):
        return Looked(component=name, generation=generation, sample=None, trouble="nothing can be seen")
    return EvidenceTaken(component=name, generation=generation, path=None, trouble="nothing can be seen")


class Machine:
    """One component's machine, driven event by event; every invariant is checked after each."""

    def __init__(
        self,
        component_spec: ComponentSpec,
        state: ComponentState | None = None,
        now: int = T0,
        *,
        examined: bool = True,
    ) -> None:
        """`examined`: each look at it, and each call for evidence, is answered at once: nothing can be seen."""
        self.examined = examined
        self.spec = component_spec
        self.state = ComponentState() if state is None else state
        self.now = now

    def take(self, event: ComponentEvent, *, at: int | None = None) -> list[Action]:
        """Take one event, and return what is to be done, without the log."""
        self.now = self.now if at is None else at
        before = self.state
        self.state, actions = component.step(self.spec, before, event, self.now)
        assert (self.state, actions) == component.step(self.spec, before, event, self.now), "same event, same result"
        check_component(self.spec, self.state)
        found: list[Action] = []
        for action in actions:
            if self.examined and isinstance(action, LookAt | TakeEvidence):
                found += self.take(blind(action))
            elif not isinstance(action, Log):
                found.append(action)
        return found

    def want(self, want: Want = UP) -> list[Action]:
        """The ledger's ruling."""
        return self.take(Wanted(want=want))

    def run(self, want: Want = UP) -> "Machine":
        """Bring it to a live main process with pid 7."""
        self.want(want)
        self.take(Spawned(component=self.spec.name, generation=self.state.generation, pid=7))
        return self


def told(actions: list[Action]) -> list[str]:
    """What is to be done, in short: signals with their number, the rest by name."""
    return [f"Signal {action.signal}" if isinstance(action, Signal) else type(action).__name__ for action in actions]


QUICK = StopSpec(timeout_ns=2 * S)
LIMITED = RestartSpec(limit=3)
