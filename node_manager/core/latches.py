"""Changes of the durable record, and what the record says about the host.

A change is a value: it is applied to the record in force, to the record being written, and again to whatever record
a write brings back. Restrictive changes are in force at once; permissive ones once they are durable.
"""

from typing import assert_never

from node_manager.core.changed import replace
from node_manager.core.durable import DurableFacts, Hold, Latch, Maintenance
from node_manager.core.events import HostState
from node_manager.core.values import dataclass

SEVERITY = {state: place for place, state in enumerate(HostState)}
_SEVERITY_OF_FACT = {f"host.{state.value}": place for state, place in SEVERITY.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldSet:
    """An operator stops a component."""

    hold: Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldReleased:
    """An operator starts it again."""

    component: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLatched:
    """An operator drains or decommissions this host."""

    latch: Latch


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDrainDone:
    """The drain that an operator asked for is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undrained:
    """An operator takes a drain back, whoever asked for it, up to the epoch seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommissioned:
    """An operator releases both latches up to the epoch seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerLatched:
    """The controller's word for this host under `latch.epoch`."""

    latch: Latch


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerReleased:
    """The controller says under a higher epoch that this host is active."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSet:
    """An operator begins maintenance."""

    maintenance: Maintenance


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceEnded:
    """An operator ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubted:
    """The record could not be read: what it could forbid is held."""

    why: str


Change = (
    HoldSet
    | HoldReleased
    | OperatorLatched
    | OperatorDrainDone
    | Undrained
    | Recommissioned
    | ControllerLatched
    | ControllerReleased
    | MaintenanceSet
    | MaintenanceEnded
    | Doubted
)
_PERMISSIVE = (HoldReleased, Undrained, Recommissioned, ControllerReleased, MaintenanceEnded)


def is_permissive(facts: DurableFacts, change: Change) -> bool:
    """Tell whether `change` allows something that `facts` forbids: then it must be durable before it acts."""
    if isinstance(change, ControllerLatched):
        return _is_milder(change.latch, facts.controller_latch)
    if isinstance(change, OperatorLatched):
        return _is_milder(change.latch, facts.operator_latch)
    return isinstance(change, _PERMISSIVE)


def apply(facts: DurableFacts, change: Change) -> DurableFacts:
    """Return the record after `change`. Applying a change twice is the same as once."""
    match change:
        case HoldSet() if change.hold in facts.holds:
            return facts
        case HoldSet():
            others = tuple(hold for hold in facts.holds if hold.component != change.hold.component)
            return replace(facts, holds=(*others, change.hold))
        case HoldReleased():
            return replace(facts, holds=tuple(hold for hold in facts.holds if hold.component != change.component))
        case OperatorLatched():
            doubt = None if _state(change.latch) is HostState.DECOMMISSIONED else facts.doubt
            return replace(facts, operator_latch=change.latch, doubt=doubt)
        case OperatorDrainDone():
            latch = facts.operator_latch
            if latch is None or _state(latch) is not HostState.DRAINING:
                return facts
            return replace(facts, operator_latch=replace(latch, state=HostState.DRAINED.value))
        case Undrained():
            return replace(
                facts,
                operator_latch=_unless_drain(facts.operator_latch),
                controller_latch=_unless_drain(facts.controller_latch),
                released_epoch=max(facts.released_epoch, facts.epoch_seen),
            )
        case Recommissioned():
            return replace(
                facts,
                operator_latch=None,
                controller_latch=None,
                doubt=None,
                released_epoch=max(facts.released_epoch, facts.epoch_seen),
            )
        case ControllerLatched():
            epoch = change.latch.epoch or 0
            # A drain may be reported over, or an exit may latch, under the epoch seen last: never under an older one.
            if epoch <= facts.released_epoch or epoch < facts.epoch_seen:
                return facts
            return replace(facts, controller_latch=change.latch, epoch_seen=max(facts.epoch_seen, epoch))
        case ControllerReleased():
            if change.epoch <= facts.epoch_seen:
                return facts
            return replace(facts, controller_latch=None, epoch_seen=change.epoch)
        case MaintenanceSet():
            return replace(facts, maintenance=change.maintenance)
        case MaintenanceEnded():
            return replace(facts, maintenance=None)
        case Doubted():
            return replace(facts, doubt=change.why)
        case _ as never:
            assert_never(never)


def controller_change(facts: DurableFacts, said: Latch | None, epoch: int) -> Change | None:
    """Return what the controller's word (None: active) under `epoch` changes, or None where it is nothing new.

    Only a higher epoch changes it. One thing may follow under the same epoch, because it completes that very
    decision: a drain that is done.
    """
    latch = facts.controller_latch
    if epoch == facts.epoch_seen and latch is not None and said is not None:
        completes = _state(latch) is HostState.DRAINING and _state(said) is HostState.DRAINED
        return ControllerLatched(latch=said) if completes else None
    if epoch <= facts.epoch_seen:
        return None
    return ControllerReleased(epoch=epoch) if said is None else ControllerLatched(latch=said)


def ruling_latch(facts: DurableFacts) -> Latch | None:
    """Return the more severe latch; the operator's where both are equal."""
    operator, controller = facts.operator_latch, facts.controller_latch
    if operator is None or controller is None:
        return operator or controller
    return controller if SEVERITY[_state(controller)] > SEVERITY[_state(operator)] else operator


def host_state(facts: DurableFacts) -> HostState:
    """Return where the host stands. A doubtful record counts as decommissioned: it could say so."""
    if facts.doubt is not None:
        return HostState.DECOMMISSIONED
    latch = ruling_latch(facts)
    return HostState.ACTIVE if latch is None else _state(latch)


def reached(facts: DurableFacts, fact: str) -> bool:
    """Tell whether `host.draining`, `host.drained` or `host.decommissioned` is true; a later one includes earlier."""
    return SEVERITY[host_state(facts)] >= _SEVERITY_OF_FACT[fact]


def hold_of(facts: DurableFacts, component: str) -> Hold | None:
    """Return the operator's hold of a component, if there is one."""
    for hold in facts.holds:
        if hold.component == component:
            return hold
    return None


def _state(latch: Latch) -> HostState:
    return HostState(latch.state)


def _is_milder(new: Latch, old: Latch | None) -> bool:
    return old is not None and SEVERITY[_state(new)] < SEVERITY[_state(old)]


def _unless_drain(latch: Latch | None) -> Latch | None:
    return latch if latch is not None and _state(latch) is HostState.DECOMMISSIONED else None
