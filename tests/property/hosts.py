"""Configurations that the random histories of the core run under."""

from dataclasses import replace

from node_manager.core.spec import (
    CommandSpec,
    ComponentSpec,
    DrainSpec,
    ExecCheck,
    ExitMeaning,
    HttpCheck,
    KillScope,
    NodeSpec,
    OnDeadline,
    OnFailure,
    ProbeSpec,
    RestartSpec,
    StopSpec,
)
from tests.unit.core.build import HEARTBEAT, NOTIFY, PRE_START, TCP, S, node_spec, spec

CONTROLLER = spec(
    "controller",
    states=("controller.primary",),
    readiness=TCP,
    liveness=replace(HEARTBEAT, on_failure=OnFailure.REPORT),
    stop=StopSpec(timeout_ns=30 * S),
)
SCHEDULER = spec(
    "scheduler",
    after=("controller",),
    run_while=("controller.primary",),
    restart_on_change=("controller.primary.term",),
    startup=HEARTBEAT,
    liveness=HEARTBEAT,
    stop=StopSpec(timeout_ns=5 * S),
)
WORKER = spec(
    "worker",
    states=("host.draining", "host.drained", "host.decommissioned"),
    stop_when=("host.decommissioned",),
    exit_status=((79, ExitMeaning.DECOMMISSIONED), (78, ExitMeaning.HOLD), (77, ExitMeaning.DRAINED)),
    startup=HEARTBEAT,
    readiness=HEARTBEAT,
    liveness=HEARTBEAT,
    stop=StopSpec(timeout_ns=10 * S, kill_scope=KillScope.PROCESS),
    drain=DrainSpec(on_deadline=OnDeadline.KILL),
)
API = spec(
    "api",
    after=("scheduler",),
    pre_start=PRE_START,
    startup=ProbeSpec(check=HttpCheck(port=80), period_ns=1 * S, failure_threshold=5),
    readiness=ProbeSpec(check=ExecCheck(command=("ok",)), period_ns=3 * S),
    restart=RestartSpec(limit=3),
    reload=1,
    drain=DrainSpec(how=10),
)
PROXY = spec(
    "proxy",
    run_while=("component.api.ready",),
    stop_when=("host.draining",),
    readiness=NOTIFY,
    liveness=NOTIFY,
    reload=CommandSpec(command=("reload",)),
    drain=DrainSpec(how=CommandSpec(command=("drain",))),
)
KEEPER = spec("keeper", states=("lease.p",), stop=StopSpec(timeout_ns=2 * S))
PROVISIONER = spec("provisioner", run_while=("lease.p",), startup=NOTIFY, stop=StopSpec(timeout_ns=3 * S))
ONLY_ONE = spec("only-one", stop_when=("lease.p",), liveness=replace(TCP, initial_delay_ns=5 * S))

ALL = (CONTROLLER, SCHEDULER, WORKER, API, PROXY, KEEPER, PROVISIONER, ONLY_ONE)


def _with(*changed: ComponentSpec) -> NodeSpec:
    names = {one.name: one for one in changed}
    return node_spec(*(names.get(one.name, one) for one in ALL))


HOSTS = (
    node_spec(*ALL),
    node_spec(*(one for one in ALL if one.name not in {"proxy", "only-one"})),
    _with(
        replace(WORKER, command=("worker", "-v"), drain=DrainSpec(on_deadline=OnDeadline.LEAVE)),
        replace(API, restart=RestartSpec(), startup=None, stop=StopSpec(kill_scope=KillScope.PROCESS)),
        replace(CONTROLLER, readiness=HEARTBEAT),
    ),
    _with(
        replace(WORKER, stop=StopSpec(timeout_ns=1 * S), startup=None, drain=None),
        replace(SCHEDULER, environment=(("A", "1"),), readiness=TCP, run_while=("controller.primary", "lease.p")),
        replace(PROXY, readiness=None, liveness=TCP),
    ),
)
"""The host as it is, and what a reload may make of it: components gone, commands, probes, conditions changed."""
