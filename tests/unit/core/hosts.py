"""Small hosts that the scenarios play on."""

from dataclasses import replace
from typing import Any

from node_manager.core.spec import ComponentSpec, DrainSpec, ExitMeaning, KillScope, OnDeadline, OnFailure, StopSpec
from tests.unit.core.build import HEARTBEAT, TCP, S, node_spec, spec
from tests.unit.core.world import World

CONTROLLER = spec(
    "controller",
    states=("controller.primary",),
    liveness=replace(HEARTBEAT, on_failure=OnFailure.REPORT),
    stop=StopSpec(timeout_ns=30 * S),
)
SCHEDULER = spec(
    "scheduler",
    after=("controller",),
    run_while=("controller.primary",),
    restart_on_change=("controller.primary.term",),
    stop=StopSpec(timeout_ns=5 * S),
)
"""Its stop budget is 6.5 s: 5 s to stop, 1 s to die, half a second of margin."""
BUDGET = 6 * S + S // 2
WORKER = spec(
    "worker",
    states=("host.draining", "host.drained", "host.decommissioned"),
    stop_when=("host.decommissioned",),
    exit_status=((79, ExitMeaning.DECOMMISSIONED), (78, ExitMeaning.HOLD), (77, ExitMeaning.DRAINED)),
    stop=StopSpec(kill_scope=KillScope.PROCESS),
    drain=DrainSpec(),
)
KILLING_WORKER = replace(WORKER, drain=DrainSpec(on_deadline=OnDeadline.KILL))
WEB = spec("web", readiness=TCP)


def running(*components: ComponentSpec, **fields: Any) -> World:
    """A host on which all these components that may run do so."""
    world = World(node_spec(*components), **fields)
    for _ in range(3):
        world.sync()
        for name in tuple(world.spawns):
            world.spawned(name)
        while world.probes:
            world.probed(0)
    return world


def managing(term: int = 5, for_ns: int = 20 * S) -> World:
    """A manager host whose controller is primary and whose scheduler runs."""
    world = running(CONTROLLER, SCHEDULER)
    world.primary("controller", term, for_ns)
    world.spawned("scheduler")
    return world
