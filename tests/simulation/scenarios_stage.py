"""A stage for one scenario: a quiet cluster on which everything that happens is asked for by name.

A scenario is straight-line code: it lets time pass, does something, and says what must be true then. All invariants of
`invariants.py` are checked after every event meanwhile, and at the end everything must have settled.
"""

from __future__ import annotations

from collections.abc import Callable

from node_manager.core.actions import Signal
from node_manager.core.events import Beat, Command, Event, Verb
from node_manager.core.intent import Rule
from node_manager.core.states import ComponentState, State, rule_of
from tests.simulation.agent import Agent
from tests.simulation.cluster import SETTLE_NS, Assumptions, Cluster
from tests.simulation.host import Host
from tests.simulation.invariants import Invariants
from tests.simulation.processes import SIGKILL, Process
from tests.simulation.programs import Controller
from tests.simulation.world import NS_PER_S

LOOK_S = 0.02
"""How often a condition is looked at: virtual time, and shorter than what is waited for."""
WARM_UP_S = 60.0
"""From the first agent's start until everything has run for a while."""


MakeHost = Callable[[Host], Host]
"""Makes another kind of host in place of one."""


class WrongError(AssertionError):
    """A scenario did not have its right outcome."""


class Watching(Invariants):
    """Checks what is always checked, and remembers who was signalled by an agent."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.signals: list[tuple[str, int]] = []

    def signalled(self, agent: Agent, action: Signal, process: Process) -> None:
        """The agent sends a signal to one process."""
        self.signals.append((action.component, action.signal))
        super().signalled(agent, action, process)


class Stage:
    """See the module."""

    def __init__(
        self,
        *,
        managers: int,
        workers: int,
        seed: int = 1,
        assumptions: Assumptions | None = None,
        make_host: MakeHost | None = None,
    ) -> None:
        self.cluster = Cluster(seed, managers=managers, workers=workers, assumptions=assumptions)
        if make_host is not None:
            self.cluster.hosts = [make_host(host) for host in self.cluster.hosts]
        self.cluster.faults.cease()
        self.watching = Watching(self.cluster)
        self.cluster.invariants = self.watching
        self.cluster.world.after_event = self.watching.check
        for host in self.cluster.hosts:
            self.cluster.world.later(0, host.start_agent)
        self.run(WARM_UP_S)

    # --- time -----------------------------------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        """The world's time."""
        return self.cluster.world.now

    def run(self, duration_s: float) -> None:
        """Let time pass."""
        self.cluster.world.run_until(self.now_ns + int(duration_s * NS_PER_S))

    def until(self, what: str, holds: Callable[[], object], bound_s: float) -> float:
        """Let time pass until something holds; return how long it took, in seconds."""
        began_ns = self.now_ns
        while not holds():
            if self.now_ns - began_ns > bound_s * NS_PER_S:
                raise WrongError(f"not within {bound_s:g} s: {what}")
            self.run(LOOK_S)
        return (self.now_ns - began_ns) / NS_PER_S

    def expect(self, what: str, holds: object) -> None:
        """Something must be true now."""
        if not holds:
            raise WrongError(f"at {self.now_ns / NS_PER_S:.3f} s: not so: {what}")

    def settle(self) -> None:
        """End all faults, and check that every host comes to show what its facts call for."""
        self.cluster.mend()
        self.cluster.world.run_until(self.now_ns + SETTLE_NS)
        self.watching.settled()

    # --- what is there --------------------------------------------------------------------------------------------

    @property
    def host(self) -> Host:
        """The first host."""
        return self.cluster.hosts[0]

    def leader(self) -> Host:
        """Return the host whose scheduler runs; there must be one."""
        found = [host for host in self.cluster.hosts if host.mains("scheduler") and not host.suspended]
        self.expect("one host has a scheduler", len(found) == 1)
        return found[0]

    def main(self, host: Host, component: str) -> Process:
        """Return the one main process of a component."""
        found = host.mains(component)
        self.expect(f"{component} on {host.name} has one main process, not {len(found)}", len(found) == 1)
        return found[0]

    def pids(self) -> dict[tuple[str, str], list[int]]:
        """Return the main processes of every component of every host."""
        return {
            (host.name, spec.name): [process.pid for process in host.mains(spec.name)]
            for host in self.cluster.hosts
            for spec in host.spec.components
        }

    def agent(self, host: Host) -> Agent:
        """Return a host's agent, which must be there."""
        agent = host.agent
        if agent is None:
            raise WrongError(f"{host.name} has no agent")
        return agent

    def state(self, host: Host, component: str) -> ComponentState:
        """Return what the agent knows of a component."""
        return self.agent(host).state.members[component].state

    def is_down(self, host: Host, component: str, rule: Rule) -> bool:
        """Tell whether a component is down for this rule, and nothing of it runs."""
        state = self.state(host, component)
        return state.run is None and rule_of(state) is rule and not host.mains(component)

    def is_up(self, host: Host, component: str) -> bool:
        """Tell whether a component runs, once, and its agent knows it."""
        mains = host.mains(component)
        if host.agent is None or component not in host.agent.state.members:
            return False
        state = self.state(host, component)
        return (
            len(mains) == 1
            and state.state is State.RUNNING
            and state.run is not None
            and state.run.pid == mains[0].pid
            and mains[0].running
        )

    def valid_until_ns(self, host: Host) -> int:
        """Return the end of the lease as the agent knows it, in its host's clock."""
        found = self.agent(host).state.table.leased["controller.primary"].valid_until_ns
        assert found is not None
        return found

    # --- what is done ---------------------------------------------------------------------------------------------

    def say(self, host: Host, verb: Verb, component: str | None = None, *, deadline_s: float | None = None) -> Answer:
        """Give an operator's command; the answer comes when it comes."""
        answer = Answer()
        deadline_ns = None if deadline_s is None else host.clock() + int(deadline_s * NS_PER_S)
        command = Command(id=0, verb=verb, by="operator", component=component, deadline_ns=deadline_ns)

        def done(ok: bool) -> None:
            answer.ok = ok

        self.agent(host).command(command, done)
        return answer

    def tell(self, host: Host, event: Event) -> None:
        """Let the agent hear something that no component of the model says by itself."""
        self.agent(host).post(event)

    def beat(self, host: Host, component: str, **said: object) -> None:
        """Let the main process of a component say something."""
        process = self.main(host, component)
        self.tell(host, Beat(component=component, generation=process.generation, **said))  # type: ignore[arg-type]

    def kill(self, host: Host, component: str) -> Process:
        """Kill the main process of a component; return it."""
        process = self.main(host, component)
        process.signal(SIGKILL)
        return process

    def freeze(self, process: Process, *, frozen: bool) -> None:
        """SIGSTOP or SIGCONT of one process."""
        process.frozen = frozen
        if frozen:
            process.stood_still_ns = self.now_ns
        else:
            process.resume()

    def controller(self, host: Host) -> Controller:
        """Return the program of a host's controller."""
        program = self.main(host, "controller").program
        assert isinstance(program, Controller)
        return program

    def jobs(self, host: Host, count: int, *, endless: bool = False) -> list[Process]:
        """Wait for jobs of users, or have some that do not end by themselves."""
        if endless:
            worker = self.main(host, "worker")
            return [host.spawn_job(worker) for _ in range(count)]
        self.until(f"{count} jobs run", lambda: len(host.jobs()) >= count, 600)
        return host.jobs()


class Answer:
    """The answer to a command: None until it came."""

    ok: bool | None = None
