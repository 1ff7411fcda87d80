"""How long a component may be away without anything being wrong with it, and when it is expected back."""

from node_manager.core.spec import NS_PER_S, ComponentSpec
from node_manager.core.states import ComponentState, State

REJOIN_NS = 5 * NS_PER_S
"""From the end of a start to the controller's knowing: connect, hello and the full state, with retries."""


def rejoin_budget_ns(component: ComponentSpec) -> int:
    """The worst time from the death of this component to its having rejoined.

    The longest delay before a restart, the time that its startup probe allows, and the rejoin. A controller that gives
    a host up sooner takes a restart for the loss of the host.
    """
    return component.restart.cap_ns + _starting_ns(component)


def expected_back_ns(component: ComponentSpec, state: ComponentState, now: int) -> int | None:
    """How long until it must have rejoined, never below 0: while it waits for a restart or starts; else None."""
    if state.state is State.BACKOFF and state.deadline_ns is not None:
        begins_ns = state.deadline_ns
    elif state.state is State.STARTING and state.run is not None:
        begins_ns = state.run.started_ns
    else:
        return None
    return max(0, begins_ns + _starting_ns(component) - now)


def _starting_ns(component: ComponentSpec) -> int:
    startup = component.startup
    starting_ns = 0 if startup is None else startup.initial_delay_ns + startup.period_ns * startup.failure_threshold
    return starting_ns + REJOIN_NS
