"""A cluster: hosts, the lease store, the controllers' register of hosts, the network between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from node_manager.core.events import Command, HostState, Verb
from node_manager.core.spec import (
    ComponentSpec,
    DrainSpec,
    ExitMeaning,
    HeartbeatCheck,
    HostSpec,
    KillScope,
    NodeSpec,
    OnFailure,
    ProbeSpec,
    StopSpec,
    TcpCheck,
)
from tests.simulation import faults as fault_kinds
from tests.simulation.faults import Fault, Rates
from tests.simulation.host import Host
from tests.simulation.invariants import Invariants, Violation
from tests.simulation.leasestore import Grant, LeaseStore
from tests.simulation.programs import CLOCK_RATE_BOUND
from tests.simulation.world import NS_PER_MS, NS_PER_S, World

STORE = "store"
LEASE_TTL_NS = 30 * NS_PER_S
MAX_DELAY_NS = 2 * NS_PER_S
"""Longest delay of a message that is not lost."""
RELEASED_AT_THE_END = 0.7
"""Share of the hosts on which operators end what they began, once the faults have ceased."""
SETTLE_NS = 300 * NS_PER_S
"""How long after the last fault everything must be as its facts call for: two delays at their cap, a lease, a start-up
probe of 60 s, and a stop."""
LOOK_NS = 5 * NS_PER_S
STEADY_NS = 2 * LEASE_TTL_NS
"""How long everything must have been settled, at a look each `LOOK_NS`, for a run to end before that bound: longer
than any delay, and two leases, so that whatever is not renewed has ended."""
LONG_RUN_EVERY = 10


@dataclass(slots=True)
class Assumptions:
    """Assumptions that can be broken, to show that they are needed."""

    fuse: bool = True
    clock_rates: bool = True
    """Clock rates differ by at most rho."""
    store_keeps_leases: bool = True


def manager_components() -> tuple[ComponentSpec, ...]:
    """Return the components of a manager host, as its role file describes them."""
    controller = ComponentSpec(
        name="controller",
        role="manager",
        command=("controller",),
        states=("controller.primary",),
        readiness=ProbeSpec(check=TcpCheck(port=7011), period_ns=30 * NS_PER_S),
        liveness=ProbeSpec(check=HeartbeatCheck(), on_failure=OnFailure.REPORT),
        stop=StopSpec(timeout_ns=10 * NS_PER_S),
    )
    scheduler = ComponentSpec(
        name="scheduler",
        role="manager",
        command=("scheduler",),
        after=("controller",),
        run_while=("controller.primary",),
        restart_on_change=("controller.primary.term",),
        startup=ProbeSpec(check=HeartbeatCheck(), period_ns=NS_PER_S, failure_threshold=60),
        liveness=ProbeSpec(check=HeartbeatCheck()),
        stop=StopSpec(timeout_ns=5 * NS_PER_S),
    )
    return controller, scheduler


def worker_components() -> tuple[ComponentSpec, ...]:
    """Return the component of a worker host."""
    worker = ComponentSpec(
        name="worker",
        role="worker",
        command=("worker",),
        states=("host.draining", "host.drained", "host.decommissioned"),
        stop_when=("host.decommissioned",),
        exit_status=((78, ExitMeaning.HOLD), (79, ExitMeaning.DECOMMISSIONED)),
        drain=DrainSpec(),
        startup=ProbeSpec(check=HeartbeatCheck(), period_ns=NS_PER_S, failure_threshold=60),
        readiness=ProbeSpec(check=HeartbeatCheck()),
        liveness=ProbeSpec(check=HeartbeatCheck()),
        stop=StopSpec(timeout_ns=5 * NS_PER_S, kill_scope=KillScope.PROCESS),
    )
    return (worker,)


class Cluster:
    """See the module."""

    def __init__(
        self,
        seed: int,
        *,
        managers: int = 3,
        workers: int = 4,
        assumptions: Assumptions | None = None,
        keep_all: bool = False,
    ) -> None:
        self.world = World(seed, keep_all=keep_all)
        self.assumptions = assumptions or Assumptions()
        self.faults = Rates()
        self.store = LeaseStore(self.world, LEASE_TTL_NS)
        self.store.trusts_time = self.assumptions.store_keeps_leases
        self.cut: set[str] = set()
        """Hosts that nothing reaches, and that reach nothing."""
        self.cut_ways: set[tuple[str, str]] = set()
        """Ways on which nothing gets through: from, to."""
        self.register_of: dict[tuple[str, int], tuple[HostState, int]] = {}
        self.decided: dict[tuple[str, int], HostState] = {}
        """Identity and epoch -> what the controllers decided under it."""
        self.invariants = Invariants(self)
        self.world.after_event = self.invariants.check
        rates = self.world.rng("rates")
        bound = CLOCK_RATE_BOUND if self.assumptions.clock_rates else 0.3
        self.hosts: list[Host] = []
        for number in range(managers + workers):
            manager = number < managers
            components = manager_components() if manager else worker_components()
            name = f"m{number}" if manager else f"w{number - managers}"
            spec = NodeSpec(
                host=HostSpec(name=name, instance_id=f"i-{name}"),
                roles=("manager" if manager else "worker",),
                components=components,
            )
            self.hosts.append(Host(self, name, spec, rate=1.0 + rates.uniform(-bound, bound)))

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self, plan: list[Fault], until_ns: int) -> None:
        """Run with faults until `until_ns`, then without until everything must have settled; check that it has."""
        rng = self.world.rng("boot")
        for host in self.hosts:
            self.world.later(rng.randrange(5 * NS_PER_S), host.start_agent)
        for fault in plan:
            self.world.later(fault.at_ns, partial(fault_kinds.apply, self, fault))
        self.world.run_until(until_ns)
        self.mend()
        self._think_better()
        self._settle(until_ns + SETTLE_NS + fault_kinds.MAX_FREEZE_S * NS_PER_S)

    def _settle(self, latest_ns: int) -> None:
        """Let time pass until everything is settled and has stayed so; at `latest_ns` it must be.

        One seed in so many runs on to `latest_ns` all the same: what goes wrong later than that is seen there.
        """
        steady_ns = STEADY_NS if self.world.seed % LONG_RUN_EVERY else latest_ns
        since_ns = self.world.now
        while self.world.now < latest_ns and self.world.now - since_ns < steady_ns:
            self.world.run_until(min(self.world.now + LOOK_NS, latest_ns))
            try:
                self.invariants.settled()
            except Violation:
                since_ns = self.world.now
        self.invariants.settled()

    def mend(self) -> None:
        """End all faults; what operators and controllers decided stays decided."""
        self.world.note("--- faults cease")
        self.faults.cease()
        self.cut.clear()
        self.cut_ways.clear()
        self.store.down = False
        self.store.pause(False)
        for host in self.hosts:
            host.mend()

    def _think_better(self) -> None:
        """Let operators take back on some hosts what they had forbidden, so that these must work again."""
        rng = self.world.rng("mend")
        for host in self.hosts:
            if rng.random() < RELEASED_AT_THE_END:
                self.world.later(rng.randrange(NS_PER_S, 20 * NS_PER_S), partial(self._release, host))

    def _release(self, host: Host) -> None:
        """Let operators take back what they had forbidden."""
        self.operator(host, Verb.MAINTENANCE, None, enable=False)
        self.operator(host, Verb.RECOMMISSION, None)
        for spec in host.spec.components:
            self.operator(host, Verb.START, spec.name)

    # --- network ------------------------------------------------------------------------------------------------------

    def network(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Carry a message between a host and the store, unless it is lost or the way is cut."""
        rng = self.world.rng(f"net/{target if source == STORE else source}")
        if not self.cut.isdisjoint((source, target)) or (source, target) in self.cut_ways:
            return
        if rng.random() < self.faults.lose_message:
            return
        slow = rng.random() < self.faults.lose_message
        self.world.later(rng.randrange(1, MAX_DELAY_NS if slow else 20 * NS_PER_MS), deliver)

    def ask_store(self, holder: str, answer: Callable[[Grant], None]) -> None:
        """A request has reached the store: its answer goes back."""
        self.store.ask(holder, lambda grant: self.network(STORE, holder, lambda: answer(grant)))

    # --- the controllers' register ----------------------------------------------------------------------------------

    def register(self, name: str, instance: int) -> tuple[HostState, int]:
        """Return what the controllers know of a host: its state and epoch."""
        return self.register_of.setdefault((name, instance), (HostState.ACTIVE, 1))

    def decide(self, host: Host, state: str) -> None:
        """Let an administrator decide about a host at the controller: a new epoch."""
        _, epoch = self.register(host.name, host.instance)
        self.register_of[(host.name, host.instance)] = (HostState(state), epoch + 1)
        self.decided[(host.identity, epoch + 1)] = HostState(state)

    # --- operators ----------------------------------------------------------------------------------------------------

    def operator(self, host: Host, verb: Verb, component: str | None, *, enable: bool = True) -> None:
        """Let an operator speak, where an agent is there to hear it."""
        host.command(Command(id=0, verb=verb, by="operator", component=component, enable=enable))
