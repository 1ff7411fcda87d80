"""The state of a whole node, as one frozen value."""

from collections.abc import Mapping
from dataclasses import field

from node_manager.core import latches
from node_manager.core.durable import DurableFacts, Latch
from node_manager.core.events import HostState, KeptHold, Past
from node_manager.core.facts import HOST_PREFIX, FactTable
from node_manager.core.ordering import Index
from node_manager.core.spec import NS_PER_S, ComponentSpec, DrainSpec, NodeSpec
from node_manager.core.states import ComponentState
from node_manager.core.symbols import Symbol
from node_manager.core.values import dataclass
from node_manager.core.writeback import Writeback

DRAIN_RESERVE_NS = 5 * NS_PER_S
"""What is kept of a drain's time, at most, for stopping and for the last report (SCENARIOS 16)."""
DRAIN_RESERVE_SHARE = 4
"""But never more than one part in so many of the whole: a short drain is to drain, not to be killed at once."""
MAX_PAST = 1024
"""Bound on components remembered after they left the configuration: far above the components of any host."""


class NodePhase(Symbol):
    """What the agent as a whole is doing. Values are what status prints."""

    WAITING_CONFIG = "waiting-config"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One component with its spec. `removed`: it left the configuration and goes once it is down."""

    spec: ComponentSpec
    state: ComponentState
    removed: bool = False
    condition_until_ns: int | None = None
    """When the conditions that hold now stop holding by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """Everything that the agent knows and decides by. The initial value is what an agent is born with."""

    phase: NodePhase = NodePhase.WAITING_CONFIG
    boot_id: str = ""
    spec: NodeSpec | None = None
    index: Index = field(default_factory=Index)
    members: Mapping[str, Member] = field(default_factory=dict)
    table: FactTable = field(default_factory=FactTable)
    writeback: Writeback = field(default_factory=Writeback)
    kept_holds: tuple[KeptHold, ...] = ()
    past: Mapping[str, Past] = field(default_factory=dict)
    """What is known of components of this boot that are no members now: their generations go on if they return."""
    config_error: str | None = "no configuration yet"
    wall_offset_ns: int = 0
    drain_done: frozenset[str] = frozenset()
    """Components that have completed the drain under way."""
    drain_expired: bool = False
    """The deadline of the drain under way has passed."""
    stop_by_ns: int | None = None
    stop_bound_passed: bool = False
    stop_reason: str = ""
    finished: bool = False

    @property
    def in_force(self) -> DurableFacts:
        """Latches, holds and maintenance as they act now."""
        return self.writeback.in_force

    def spec_of(self, name: str) -> ComponentSpec:
        """Return the spec of a component that exists."""
        return self.members[name].spec

    @property
    def host_state(self) -> HostState:
        """Where the host stands now."""
        return latches.host_state(self.writeback.in_force)


def remember(past: Mapping[str, Past], *more: Past) -> dict[str, Past]:
    """Return what is known of components that are no members, the oldest forgotten beyond the bound."""
    found = {**past, **{one.component: one for one in more}}
    return dict(list(found.items())[-MAX_PAST:])


def drain_of(spec: ComponentSpec) -> DrainSpec | None:
    """Return how a component takes part in a drain, or None where it does not.

    What states this host's facts takes part in any case: it is told by a directive.
    """
    if spec.drain is None and states_host(spec):
        return DrainSpec()
    return spec.drain


def states_host(spec: ComponentSpec) -> bool:
    """Tell whether a component states this host's facts."""
    for fact in spec.states:  # noqa: SIM110 - asked at every heartbeat, and a generator costs more than the answer
        if fact.startswith(HOST_PREFIX):
            return True
    return False


def drain_deadline_ns(node: NodeState) -> int | None:
    """Return when the drain under way must be over, less the reserve, in CLOCK_BOOTTIME of this boot; or None."""
    latch = latches.ruling_latch(node.in_force)
    if latch is None or node.host_state is not HostState.DRAINING:
        return None
    at = latch_deadline_ns(latch, node)
    return None if at is None else at - drain_reserve_ns(latch)


def drain_reserve_ns(latch: Latch) -> int:
    """Return how long before its deadline the time to drain is over. Both ends in wall-clock time: any boot agrees."""
    if latch.deadline_wall_ns is None:
        return 0
    return max(0, min(DRAIN_RESERVE_NS, (latch.deadline_wall_ns - latch.at_wall_ns) // DRAIN_RESERVE_SHARE))


def latch_deadline_ns(latch: Latch, node: NodeState) -> int | None:
    """Return a latch's deadline in this boot's clock: over a reboot only the wall clock tells."""
    if latch.deadline_ns is not None and latch.boot_id == node.boot_id:
        return latch.deadline_ns
    return None if latch.deadline_wall_ns is None else latch.deadline_wall_ns - node.wall_offset_ns
