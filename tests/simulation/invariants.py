"""What must hold after every event, each with its name and its reason.

A violation raises `Violation` with the invariant's name. Cheap ones are checked after every event of the world, those
about one step of one agent after that step, those about a settled cluster once the faults have ceased.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from node_manager.core import latches
from node_manager.core import node as core
from node_manager.core import writeback as wb
from node_manager.core.actions import Action, KillTree, Reply, Signal, Spawn, WriteFacts
from node_manager.core.events import Command, Event, HostState, Tick, Verb
from node_manager.core.invariants import check_invariants
from node_manager.core.nodestate import NodePhase, NodeState
from node_manager.core.spec import NS_PER_S, KillScope
from node_manager.core.states import State, rule_of

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.cluster import Cluster
    from tests.simulation.faults import Fault
    from tests.simulation.host import Host
    from tests.simulation.processes import Process

MAX_QUEUE = 2000
MAX_RESTARTS_PER_MINUTE = 25
"""A component that dies at birth doubles its delay: ten starts in a minute, and some that operators ask for."""
REPLAYED_STEPS = 50
"""Each so manieth step is done twice, to see that identical histories give identical actions."""

REASONS = {
    "one scheduler": "two schedulers at once corrupt the schedule",
    "one main process": "two copies of a component fight over its port and its state",
    "latch holds": "a durably acknowledged decommission is never followed by a start of the worker",
    "no start over a tree": "a component is not started while its former tree lives (kill scope tree)",
    "terms": "nothing is started under a term older than one that was known here: its writes would be refused",
    "agent before fuse": "the fuse is for an agent that cannot act: one that runs stops what it leases in time",
    "older generations": "an event of an older generation changes nothing",
    "patience": "nobody is killed for a silence that the agent could not hear",
    "needless write": "a write of durable facts changes something",
    "only ours": "no signal goes to a process that is not of that component and generation",
    "jobs untouched": "a worker's restart signals no user's job",
    "stops end": "a stop comes to SIGKILL within its bound",
    "machine consistent": "the core's own invariants",
    "ledger explains": "the rule that status shows is the one that decided",
    "identical": "identical histories give identical actions",
    "bounded": "queues, histories and restarts per minute have a bound",
    "timer": "after a turn the next wake lies in the future, or something is due that will be done",
    "last word": "an operator's last acknowledged word holds",
    "settled": "when the faults have ceased, every host shows what its facts call for",
    "scheduler runs": "when the faults have ceased, exactly one scheduler runs",
}


class Violation(AssertionError):  # noqa: N818 - it is what the whole program is about
    """An invariant does not hold. `name` is one of REASONS."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail} ({REASONS[name]})")
        self.name = name


class Invariants:
    """The observer of one run, and what the run has covered."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.steps = 0
        self.state_events: Counter[tuple[str, str]] = Counter()
        self.faults: list[Fault] = []
        self.schedulers: list[Process] = []
        self.words: dict[tuple[str, str | None], Verb] = {}
        """Last acknowledged word about a component of a host; about host and maintenance with None."""
        self.released: dict[str, int] = {}
        """Host -> the epoch up to which an operator released it."""
        self._starts: dict[tuple[str, str], list[int]] = {}

    # --- after every event of the world -----------------------------------------------------------------------

    def check(self) -> None:
        """Look at what is looked at always."""
        if len(self.schedulers) > 1:
            alive = [process for process in self.schedulers if process.alive]
            self.schedulers = alive
            if len(alive) > 1:
                where = ", ".join(f"{process.host.name} pid {process.pid}" for process in alive)
                raise Violation("one scheduler", where)

    # --- processes --------------------------------------------------------------------------------------------

    def executed(self, agent: Agent, action: Spawn) -> None:
        """A child is about to execute its command."""
        host, name = agent.host, action.component
        if host.mains(name):
            raise Violation("one main process", f"{name} on {host.name}")
        if action.spec.stop.kill_scope is KillScope.TREE and host.tree(name):
            raise Violation("no start over a tree", f"{name} on {host.name}")
        highest = agent.state.table.highest.get("controller.primary", 0)
        if action.term is not None and action.term < highest:
            raise Violation("terms", f"{name} on {host.name} under term {action.term}, {highest} is known")
        facts = host.disk.facts
        if name == "worker" and facts is not None and facts.identity == f"{host.name}/{host.instance}":
            released = self.words.get((host.name, "host")) is Verb.RECOMMISSION
            if latches.host_state(facts) is HostState.DECOMMISSIONED and not released:
                raise Violation("latch holds", f"worker started on {host.name}")
        if name == "worker" and self.words.get((host.name, "host")) is Verb.DECOMMISSION:
            raise Violation("latch holds", f"worker started on {host.name} after an acknowledged decommission")
        starts = self._starts.setdefault((host.name, name), [])
        starts.append(self.cluster.world.now)
        while starts and starts[0] < self.cluster.world.now - 60 * NS_PER_S:
            starts.pop(0)
        if len(starts) > MAX_RESTARTS_PER_MINUTE:
            raise Violation("bounded", f"{name} on {host.name} started {len(starts)} times in a minute")

    def born(self, process: Process) -> None:
        """A main process runs its program now."""
        if process.component == "scheduler":
            self.schedulers = [*(item for item in self.schedulers if item.alive), process]

    def fuse_killed(self, host: Host, process: Process) -> None:
        """A fuse had to kill."""
        agent = host.agent
        if process.killed or agent is None or agent.frozen:
            return
        if self.cluster.world.now - max(agent.thawed_ns, agent.born_ns) > 2 * NS_PER_S:
            raise Violation("agent before fuse", f"{process.component} on {host.name}")

    def signalled(self, agent: Agent, action: Signal, process: Process) -> None:
        """The agent sends a signal to one process."""
        if process.host is not agent.host or process.component != action.component or process.job:
            raise Violation("only ours", f"{action.component} on {agent.host.name}: pid {process.pid}")
        reason = agent.state.members[action.component].state.reason
        heard_ns = self.cluster.world.now - agent.thawed_ns
        if "silent for" in reason and agent.thawed_ns >= 0 and heard_ns < NS_PER_S and process.stood_still_ns < 0:
            raise Violation("patience", f"{action.component} on {agent.host.name}: {reason}")

    def tree_killed(self, agent: Agent, action: KillTree, process: Process) -> None:
        """The agent kills one process of a tree."""
        member = agent.state.members.get(action.component)
        if process.job and (member is None or member.spec.stop.kill_scope is KillScope.PROCESS):
            raise Violation("jobs untouched", f"job {process.pid} on {agent.host.name}")

    # --- steps ------------------------------------------------------------------------------------------------

    def queue(self, agent: Agent) -> None:
        """An event was added."""
        if len(agent.queue) > MAX_QUEUE:
            raise Violation("bounded", f"{len(agent.queue)} events wait on {agent.host.name}")

    def stepped(
        self, agent: Agent, before: NodeState, event: Event, after: NodeState, actions: tuple[Action, ...], now: int
    ) -> None:
        """The core made a step."""
        self.steps += 1
        try:
            check_invariants(after, now)
        except AssertionError as error:
            raise Violation("machine consistent", f"{agent.host.name}: {error}") from error
        name = getattr(event, "component", None)
        member = None if name is None else before.members.get(name)
        kind = type(event).__name__
        self.state_events[(member.state.state.value if member is not None else before.phase.value, kind)] += 1
        if self.steps % REPLAYED_STEPS == 0 and core.step(before, event, now) != (after, actions):
            raise Violation("identical", f"{agent.host.name}: {kind}")
        self._check_generation(agent, before, event, after, now)
        self._check_writes(agent, before, event, actions)
        latch = after.in_force.controller_latch
        if latch is not None and (latch.epoch or 0) <= self.released.get(agent.host.name, -1):
            raise Violation("last word", f"{agent.host.name}: epoch {latch.epoch} was released and latches again")
        wake_ns = core.next_wake_ns(after)
        if kind == "Tick" and wake_ns is not None and wake_ns <= now:
            raise Violation("timer", f"{agent.host.name}: wakes {now - wake_ns} ns ago")
        for item in after.members.values():
            machine = item.state
            if machine.state in {State.STOPPING, State.KILLING} and machine.deadline_ns is not None:
                bound_ns = item.spec.stop.timeout_ns + 600 * NS_PER_S
                if machine.deadline_ns > now + bound_ns:
                    raise Violation("stops end", f"{item.spec.name} on {agent.host.name}")
            if machine.run is not None and machine.want.up and rule_of(machine) is not machine.want.rule:
                raise Violation("ledger explains", f"{item.spec.name} on {agent.host.name}")

    def _check_generation(self, agent: Agent, before: NodeState, event: Event, after: NodeState, now: int) -> None:
        name, generation = getattr(event, "component", None), getattr(event, "generation", None)
        old = before.members.get(name) if name is not None else None
        if old is None or generation is None or generation == old.state.generation or name not in after.members:
            return
        due = old.condition_until_ns is not None and old.condition_until_ns <= now
        assert name is not None
        if not due and after.members[name].state != old.state:
            raise Violation("older generations", f"{name} on {agent.host.name}: {type(event).__name__}")

    def _check_writes(self, agent: Agent, before: NodeState, event: Event, actions: tuple[Action, ...]) -> None:
        known = wb.target(before.writeback)
        for action in actions:
            if isinstance(action, WriteFacts) and not isinstance(event, Tick | Command) and action.facts == known:
                raise Violation("needless write", f"{agent.host.name}: {type(event).__name__}")

    def replied(self, agent: Agent, action: Reply) -> None:
        """A command was answered; exactly once."""
        if action.id not in agent.answers:
            raise Violation("last word", f"{agent.host.name}: command {action.id} answered twice, or never asked")

    # --- operators --------------------------------------------------------------------------------------------

    def acknowledged(self, host: Host, verb: Verb, component: str | None, *, ok: bool) -> None:
        """An operator's word was answered."""
        if not ok:
            return
        subject = component
        if component is None:
            subject = "maintenance" if verb is Verb.MAINTENANCE else "host"
        if verb is not Verb.MAINTENANCE:
            self.words[(host.name, subject)] = verb
        if verb is Verb.RECOMMISSION and host.agent is not None:
            self.released[host.name] = host.agent.state.in_force.released_epoch

    def fault(self, fault: Fault) -> None:
        """A fault was injected."""
        self.faults.append(fault)

    # --- at the end -------------------------------------------------------------------------------------------

    def settled(self) -> None:
        """The faults have ceased for long: everything is as it should be."""
        for host in self.cluster.hosts:
            agent = host.agent
            if agent is None or agent.state.phase is not NodePhase.RUNNING:
                raise Violation("settled", f"{host.name} has no agent in charge")
            for name in agent.state.members:
                self._settled_component(host, name, agent.state)
            self._settled_host(host, agent.state)
        alive = [process for process in self.schedulers if process.alive]
        leader = next((host for host in self.cluster.hosts if host.name == self.cluster.store.holder), None)
        if leader is not None and self._may_lead(leader) and len(alive) != 1:
            raise Violation("scheduler runs", f"{len(alive)} schedulers run, the lease is with {leader.name}")

    def _settled_component(self, host: Host, name: str, state: NodeState) -> None:
        machine = state.members[name].state
        mains = host.mains(name)
        where = f"{name} on {host.name} is {machine.state.value}, {len(mains)} processes ({machine.reason})"
        if machine.want.up and machine.want.waits is None and machine.hold is None:
            if machine.state is not State.RUNNING or len(mains) != 1:
                raise Violation("settled", where)
        elif not machine.want.up and (mains or machine.state is not State.STOPPED):
            raise Violation("settled", where)
        if mains and machine.run is not None and mains[0].pid != machine.run.pid:
            raise Violation("settled", f"{where}; the agent knows pid {machine.run.pid}")
        word = self.words.get((host.name, name))
        if word is Verb.STOP and machine.want.up:
            raise Violation("last word", f"{name} on {host.name} was stopped by an operator and is wanted")
        if word in {Verb.START, Verb.RESTART} and latches.hold_of(state.in_force, name) is not None:
            raise Violation("last word", f"{name} on {host.name} was started by an operator and is held")

    def _settled_host(self, host: Host, state: NodeState) -> None:
        if state.writeback.pending:
            raise Violation("settled", f"{host.name}: {len(state.writeback.pending)} changes are not durable")
        if self.words.get((host.name, "host")) is Verb.DRAIN and state.host_state is HostState.ACTIVE:
            raise Violation("last word", f"{host.name} was drained by an operator and is active")
        for process in host.mains("scheduler"):
            if process.term != self.cluster.store.term:
                raise Violation("settled", f"scheduler on {host.name} under term {process.term}")

    def _may_lead(self, host: Host) -> bool:
        """Tell whether nothing that an operator said keeps this host from running a scheduler."""
        agent = host.agent
        if agent is None or "scheduler" not in agent.state.members:
            return False
        record = agent.state.in_force
        held = {hold.component for hold in record.holds}
        return not held & {"controller", "scheduler"} and record.maintenance is None
