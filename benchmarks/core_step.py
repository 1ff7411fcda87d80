"""What a decision costs: `python -m benchmarks.core_step [SEEDS]`, on one core.

First the whole-node step alone, as the agent calls it: a simulated hour of a manager host (controller, scheduler and
provisioner) and of a worker host is recorded once, then each step of it is done again and again. The mix is stated
with the result: components beat once a second, the controller renews its lease every five seconds, an active probe
runs every ten, and every five minutes a process crashes and an operator restarts another.

Then the simulator with all its faults and invariants, for so many seeds (default 20). Seconds are seconds of
processor time, so that what else the machine does counts little.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from node_manager.core.actions import KillTree, RunProbe, Signal, Spawn, WriteFacts
from node_manager.core.durable import DurableFacts
from node_manager.core.events import (
    Beat,
    Booted,
    Command,
    ConfigLoaded,
    Event,
    Exited,
    ExitStatus,
    FactsWritten,
    HostState,
    Leadership,
    Outcome,
    ProbeDone,
    Spawned,
    Tick,
    TreeEmpty,
    Verb,
)
from node_manager.core.node import next_wake_ns, step
from node_manager.core.nodestate import NodeState
from node_manager.core.spec import (
    NS_PER_S,
    ComponentSpec,
    HeartbeatCheck,
    HostSpec,
    NodeSpec,
    OnFailure,
    ProbeSpec,
    StopSpec,
    TcpCheck,
)

_HOUR_S = 3600
_UPSET_EVERY_S = 300
_RENEW_EVERY_S = 5
_LEASE_NS = 30 * NS_PER_S
_MIN_RUN_S = 2.0
_BEATS = ProbeSpec(check=HeartbeatCheck())

_MANAGER = (
    ComponentSpec(
        name="controller",
        role="manager",
        command=("controller",),
        states=("controller.primary",),
        readiness=ProbeSpec(check=TcpCheck(port=7011)),
        liveness=ProbeSpec(check=HeartbeatCheck(), on_failure=OnFailure.REPORT),
    ),
    ComponentSpec(
        name="scheduler",
        role="manager",
        command=("scheduler",),
        after=("controller",),
        run_while=("controller.primary",),
        restart_on_change=("controller.primary.term",),
        liveness=_BEATS,
        stop=StopSpec(timeout_ns=5 * NS_PER_S),
    ),
    ComponentSpec(
        name="provisioner",
        role="manager",
        command=("provisioner",),
        after=("controller",),
        readiness=_BEATS,
        liveness=_BEATS,
    ),
)
_WORKER = (
    ComponentSpec(
        name="worker",
        role="worker",
        command=("worker",),
        states=("host.draining", "host.drained", "host.decommissioned"),
        stop_when=("host.decommissioned",),
        readiness=_BEATS,
        liveness=_BEATS,
    ),
)


@dataclass(slots=True)
class _Recording:
    """A host whose every step is kept; what the core asks for is done at once."""

    state: NodeState = field(default_factory=NodeState)
    now: int = 1000 * NS_PER_S
    steps: list[tuple[NodeState, Event, int]] = field(default_factory=list)
    hello: set[str] = field(default_factory=set)

    def take(self, event: Event) -> None:
        """Make one step, and answer what it asks for."""
        self.steps.append((self.state, event, self.now))
        self.state, actions = step(self.state, event, self.now)
        for action in actions:
            match action:
                case Spawn():
                    self.hello.add(action.component)
                    self.take(Spawned(component=action.component, generation=action.generation, pid=100))
                case Signal():
                    self.ended(action.component, ExitStatus(code=0))
                case KillTree():
                    self.take(TreeEmpty(component=action.component, generation=action.generation))
                case RunProbe():
                    name, generation = action.component, action.generation
                    self.take(ProbeDone(component=name, generation=generation, probe=action.probe, outcome=Outcome.OK))
                case WriteFacts():
                    self.take(FactsWritten(seq=action.seq))
                case _:
                    pass

    def ended(self, name: str, status: ExitStatus) -> None:
        """Let a main process end."""
        generation = self.state.members[name].state.generation
        self.take(Exited(component=name, generation=generation, status=status, left=0))

    def wait(self, until_ns: int) -> None:
        """Let time pass, with a tick wherever the core asked for one."""
        while (at := next_wake_ns(self.state)) is not None and at <= until_ns:
            self.now = max(self.now, at)
            self.take(Tick())
        self.now = until_ns

    def beat(self, name: str, second: int) -> None:
        """Let a component say what it says once a second."""
        member = self.state.members[name]
        if member.state.run is None:
            return
        hello = name in self.hello
        self.hello.discard(name)
        leads, worker = name == "controller", name == "worker"
        renewed_ns = self.now - second % _RENEW_EVERY_S * NS_PER_S
        self.take(
            Beat(
                component=name,
                generation=member.state.generation,
                hello=hello,
                interval_ns=NS_PER_S if hello else None,
                beat=second,
                ready=True,
                jobs=second % 7 if worker else None,
                leadership=Leadership.PRIMARY if leads else None,
                term=1 if leads else None,
                valid_until_ns=renewed_ns + _LEASE_NS if leads else None,
                host_state=HostState.ACTIVE if worker else None,
                epoch=1 if worker else None,
            )
        )


def _hour(components: tuple[ComponentSpec, ...]) -> list[tuple[NodeState, Event, int]]:
    """Return every step of an hour of a host with these components."""
    host = _Recording()
    host.take(Booted(boot_id="boot", facts=DurableFacts(identity="i-1")))
    spec = NodeSpec(host=HostSpec(name="host", instance_id="i-1"), roles=("role",), components=components)
    host.take(ConfigLoaded(spec=spec))
    names = [one.name for one in components]
    commands = count(1)
    for second in range(_HOUR_S):
        for place, name in enumerate(names):
            host.wait((1000 + second) * NS_PER_S + place * NS_PER_S // 10)
            host.beat(name, second)
        if second % _UPSET_EVERY_S == _UPSET_EVERY_S - 1:
            host.ended(names[second % len(names)], ExitStatus(signal=11))
            restarted = names[(second + 1) % len(names)]
            host.take(Command(id=next(commands), verb=Verb.RESTART, by="operator", component=restarted))
    return host.steps


def _mix(steps: list[tuple[NodeState, Event, int]]) -> str:
    kinds = Counter(type(event).__name__ for _, event, _ in steps)
    return ", ".join(f"{100 * number / len(steps):.1f} % {kind}" for kind, number in kinds.most_common(5))


def _rates(steps: list[tuple[NodeState, Event, int]]) -> Iterator[float]:
    """Yield events per second of whole rounds, until enough time has passed."""
    end = time.process_time() + _MIN_RUN_S
    while time.process_time() < end:
        start = time.process_time()
        for state, event, now in steps:
            step(state, event, now)
        yield len(steps) / (time.process_time() - start)


def main() -> None:
    """Print the table."""
    for title, components in (("manager, 3 components", _MANAGER), ("worker, 1 component", _WORKER)):
        steps = _hour(components)
        print(f"{title}: {max(_rates(steps)):8.0f} events/s  ({len(steps)} steps: {_mix(steps)})")
    from tests.simulation.runner import run_seed

    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    start = time.process_time()
    results = [run_seed(seed) for seed in range(seeds)]
    took_s = time.process_time() - start
    hours, made = sum(result.host_hours for result in results), sum(result.steps for result in results)
    print(
        f"simulator, 3 managers and 4 workers: {60 * hours / took_s:.0f} host-hours/min, {seeds / took_s:.1f} seeds/s, "
        f"{made / took_s:.0f} steps/s with every invariant"
    )


if __name__ == "__main__":
    main()
