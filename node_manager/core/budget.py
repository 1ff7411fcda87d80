"""How long a component may be away without anything being wrong with it, and when it is expected back."""

from node_manager.core.run import Phase
from node_manager.core.spec import NS_PER_S, ComponentSpec
from node_manager.core.states import Aim, ComponentState, State

REJOIN_NS = 5 * NS_PER_S
"""From the end of a start to the controller's knowing: connect, hello and the full state, with retries."""


def rejoin_budget_ns(component: ComponentSpec) -> int:
    """The worst time from the last word of this component to its having rejoined, over a restart.

    It is stopped, waits for the longest delay, is checked, starts, rejoins. A controller that gives a host up sooner
    takes a restart for the loss of the host.
    """
    stopping_ns = component.stop.timeout_ns + component.stop.kill_timeout_ns
    return stopping_ns + component.restart.cap_ns + _checking_ns(component) + _starting_ns(component)


def expected_back_ns(component: ComponentSpec, state: ComponentState, now: int) -> int | None:
    """How long until it must have rejoined, never below 0: while it restarts, waits for that, or starts; else None."""
    run = state.run
    if state.state is State.BACKOFF and state.deadline_ns is not None:
        begins_ns = state.deadline_ns + _checking_ns(component)
    elif state.state is State.STARTING and run is not None:
        begins_ns = run.started_ns + (_checking_ns(component) if run.phase is Phase.CHECK else 0)
    elif state.want.up and state.aim in {Aim.RESTART, Aim.RETRY}:
        # It is being stopped, to be started again.
        killed_ns = state.deadline_ns if state.state is State.STOPPING else state.since_ns
        assert killed_ns is not None, "a stop has its end"
        begins_ns = killed_ns + component.stop.kill_timeout_ns + component.restart.cap_ns + _checking_ns(component)
    else:
        return None
    return max(0, begins_ns + _starting_ns(component) - now)


def _checking_ns(component: ComponentSpec) -> int:
    return 0 if component.pre_start is None else component.pre_start.timeout_ns


def _starting_ns(component: ComponentSpec) -> int:
    startup = component.startup
    starting_ns = 0 if startup is None else startup.initial_delay_ns + startup.period_ns * startup.failure_threshold
    return starting_ns + REJOIN_NS
