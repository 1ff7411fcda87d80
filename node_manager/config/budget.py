"""How long a host may be away from its controller without anything being wrong with it.

The standard library alone: the agent publishes the figure.
"""

from node_manager.core.spec import NS_PER_S, ComponentSpec

REJOIN_NS = 5 * NS_PER_S
"""From the end of a start to the controller's knowing: connect, hello and the full state, with retries."""


def rejoin_budget_ns(component: ComponentSpec) -> int:
    """The worst time from the death of this component to its having rejoined.

    The longest delay before a restart, the time that its startup probe allows, and the rejoin. A controller that gives
    a host up sooner takes a restart for the loss of the host.
    """
    startup = component.startup
    starting_ns = 0 if startup is None else startup.initial_delay_ns + startup.period_ns * startup.failure_threshold
    return component.restart.cap_ns + starting_ns + REJOIN_NS
