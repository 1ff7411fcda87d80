"""The observer of one run: what must hold after every event. Names and reasons are in `reasons.py`.

A violation raises `Violation` with the invariant's name. Cheap ones are checked after every event of the world, those
about one step of one agent after that step (`steps.py`), those about a settled cluster once the faults have ceased
(`settled.py`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from node_manager.core import latches
from node_manager.core.actions import Action, KillTree, Reply, Signal
from node_manager.core.events import Event, HostState, Verb
from node_manager.core.nodestate import NodeState
from node_manager.core.run import Phase
from node_manager.core.spec import NS_PER_MS, NS_PER_S, ComponentSpec, KillScope, OnFailure, stop_budget_ns
from node_manager.core.states import Aim
from node_manager.runtime.timekeeper import STALL_NS
from tests.simulation import settled, steps
from tests.simulation.reasons import REASONS, Violation
from tests.simulation.words import HOST, Words

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.cluster import Cluster
    from tests.simulation.effects import Starting
    from tests.simulation.faults import Fault
    from tests.simulation.host import Host
    from tests.simulation.processes import Process

__all__ = ["REASONS", "Invariants", "Violation"]

SIGKILL = 9
MAX_QUEUE = 2000
MAX_RESTARTS_PER_MINUTE = 40
"""A component that dies at birth doubles its delay: ten starts in a minute; the rest is what operators ask for."""
UNGUARDED_NS = 9 * NS_PER_S
"""How long something may run on without its fuse: the longest time to stop that is configured here, and a second."""
HANGS_ON_NS = 30 * NS_PER_S
HANGS_ON_LOOKS = 4
"""So many looks in a row, with so much time in between, at something that hangs and that nothing spares: longer than
any start-up probe, the time to find a new agent, a look and the evidence together."""
PROMPT_NS = 100 * NS_PER_MS
"""How long an agent may take to act once it runs again."""


class Invariants:
    """See the module; also counts what the run has covered."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.steps = 0
        self.state_events: Counter[tuple[str, str]] = Counter()
        self.faults: list[Fault] = []
        self.schedulers: list[Process] = []
        self.words = Words()
        self.released: dict[str, int] = {}
        """Identity -> the epoch up to which an operator released it."""
        self.handed_over: dict[str, dict[str, tuple[int, ComponentSpec]]] = {}
        """Host -> component -> generation and spec, of what was to go on when the agent replaced its program."""
        self.final: dict[str, set[str]] = {}
        """Host -> components that had ended for good when the agent replaced its program."""
        self.failed: dict[tuple[str, str], int] = {}
        """Host and component -> runs that failed since the last one that went well, or more."""
        self._starts: dict[tuple[str, str], list[int]] = {}

    # --- after every event of the world -----------------------------------------------------------------------

    def check(self) -> None:
        """Look at what is looked at always."""
        if len(self.schedulers) > 1:
            self.schedulers = [process for process in self.schedulers if process.alive]
            acting = [process for process in self.schedulers if not process.host.suspended and not _is_lost(process)]
            if len(acting) > 1:
                where = ", ".join(f"{process.host.name} pid {process.pid}" for process in acting)
                raise Violation("one scheduler", where)

    # --- starts -----------------------------------------------------------------------------------------------

    def executed(self, agent: Agent, starting: Starting) -> None:
        """A child is about to execute its command."""
        host, action = agent.host, starting.action
        name = action.component
        if host.mains(name):
            raise Violation("one main process", f"{name} on {host.name}")
        if action.spec.stop.kill_scope is KillScope.TREE and host.tree(name):
            raise Violation("no start over a tree", f"{name} on {host.name}")
        if action.spec.run_while:
            self._leased(agent, starting)
        member = agent.state.members.get(name)
        wanted = member is not None and (member.state.want.up or member.state.want.held)
        acted = not agent.frozen and not agent.to_do
        if acted and (member is None or not wanted or member.state.generation != action.generation):
            raise Violation("unwanted start", f"{name} on {host.name}, generation {action.generation}")
        if name in agent.seen.final:
            raise Violation("final exit", f"{name} on {host.name}, generation {action.generation}")
        if self.words.last(host.identity, name) is Verb.STOP:
            raise Violation("last word", f"{name} started on {host.name} after an acknowledged stop")
        if name == "worker":
            self._may_work(host)
        starts = self._starts.setdefault((host.name, name), [])
        starts.append(self.cluster.world.now)
        while starts and starts[0] < self.cluster.world.now - 60 * NS_PER_S:
            starts.pop(0)
        if len(starts) > MAX_RESTARTS_PER_MINUTE:
            raise Violation("bounded", f"{name} on {host.name} started {len(starts)} times in a minute")

    def _leased(self, agent: Agent, starting: Starting) -> None:
        host, action = agent.host, starting.action
        where = f"{action.component} on {host.name}"
        highest = agent.state.table.highest.get("controller.primary", 0)
        if action.term is None or action.term < highest:
            raise Violation("terms", f"{where} under term {action.term}, {highest} is known")
        if action.not_after_ns is None or action.lease_valid_until_ns is None:
            raise Violation("last look", f"{where} is started without an end of its lease")
        if action.not_after_ns > action.lease_valid_until_ns - stop_budget_ns(action.spec):
            raise Violation("last look", f"{where} may start with too little time to stop it")
        if starting.looked_ns >= action.not_after_ns:
            raise Violation("last look", f"{where}: looked {starting.looked_ns - action.not_after_ns} ns too late")
        fuse = host.fuses.get(action.component)
        if not self.cluster.assumptions.fuse:
            return
        if fuse is None or fuse[0] != action.generation or host.clock() >= fuse[1]:
            raise Violation("fuse first", f"{where}, generation {action.generation}: {fuse}")

    def _may_work(self, host: Host) -> None:
        """See that nothing durable forbids the worker."""
        facts = host.disk.facts
        known = facts is not None and facts.identity == host.identity
        if facts is not None and known and latches.host_state(facts) is HostState.DECOMMISSIONED:
            raise Violation("latch holds", f"worker started on {host.name}, whose record says decommissioned")
        if self.words.last(host.identity, HOST) is Verb.DECOMMISSION:
            raise Violation("latch holds", f"worker started on {host.name} after an acknowledged decommission")
        if host.disk.unreadable:
            raise Violation("latch holds", f"worker started on {host.name}, whose record cannot be read")

    def born(self, process: Process) -> None:
        """A main process runs its program now."""
        if process.component == "scheduler":
            self.schedulers = [*(item for item in self.schedulers if item.alive), process]

    # --- ends -------------------------------------------------------------------------------------------------

    def fuse_killed(self, host: Host, process: Process) -> None:
        """A fuse had to kill."""
        agent = host.agent
        if process.killed or agent is None or agent.frozen or agent.state.spec is None:
            return
        if self.cluster.world.now - max(agent.thawed_ns, agent.born_ns) > PROMPT_NS:
            raise Violation("agent before fuse", f"{process.component} on {host.name}")

    def fuse_lost(self, agent: Agent, process: Process) -> None:
        """A fuse was lost: an agent that goes on running ends what nothing guards any more."""

        def look() -> None:
            stands_still = agent.dead or agent.frozen or agent.stood_still_ns != stood_still_ns
            if process.alive and not process.killed and not stands_still:
                raise Violation("fuse first", f"{process.component} on {process.host.name} goes on without a fuse")

        stood_still_ns = agent.stood_still_ns
        self.cluster.world.later(UNGUARDED_NS, look)

    def hangs(self, process: Process, looks: int = 0) -> None:
        """Something hangs: an agent that goes on running ends it, unless something speaks against that."""

        def look() -> None:
            if not process.alive or process.killed:
                return
            if _is_spared(process):
                self.hangs(process)
            elif looks + 1 < HANGS_ON_LOOKS or _undisturbed_ns(process) < HANGS_ON_LOOKS * HANGS_ON_NS:
                self.hangs(process, looks + 1)
            else:
                raise Violation("nothing hangs on", f"{process.component} {process.pid} on {process.host.name}")

        self.cluster.world.later(HANGS_ON_NS, look)

    def signalled(self, agent: Agent, action: Signal, process: Process) -> None:
        """The agent sends a signal to one process."""
        where = f"{action.component} on {agent.host.name}"
        if process.component != action.component or process.generation != action.generation:
            raise Violation("only ours", f"{where}: pid {process.pid}")
        if action.signal == SIGKILL:
            return
        reason = agent.state.members[action.component].state.reason
        if "probe failed" in reason:
            self._failed(agent, action, process)
        if reason.startswith("the node is stopping") and not agent.state.stop_bound_passed:
            after = agent.state.index.dependants.get(action.component, ())
            held = latches.hold_of(agent.state.in_force, action.component) is not None
            if not held and any(agent.host.mains(name) for name in after):
                raise Violation("reverse order", f"{where} before {', '.join(after)}")
        if "silent for" not in reason:
            return
        now = self.cluster.world.now
        # What is shorter than a stall is not given back (`runtime/timekeeper.py`).
        stalled = agent.thawed_ns - agent.thawed_from_ns > STALL_NS
        if stalled and now - agent.thawed_ns < NS_PER_S and process.stood_still_ns < 0:
            raise Violation("patience", f"{where}: {reason}")

    def _failed(self, agent: Agent, action: Signal, process: Process) -> None:
        """See that what is ended for a failed probe may be ended for it."""
        where = f"{action.component} on {agent.host.name}"
        liveness = agent.state.members[action.component].spec.liveness
        if liveness is not None and liveness.on_failure is OnFailure.REPORT and not process.hangs:
            raise Violation("controller undisturbed", where)
        if agent.state.in_force.maintenance is not None:
            raise Violation("maintenance spares", where)

    def tree_killed(self, agent: Agent, action: KillTree, process: Process) -> None:
        """The agent kills one process of a tree."""
        member = agent.state.members.get(action.component)
        if process.job and (member is None or member.spec.stop.kill_scope is KillScope.PROCESS):
            raise Violation("jobs untouched", f"job {process.pid} on {agent.host.name}")

    def finished(self, agent: Agent) -> None:
        """The agent has stopped everything, or so it says."""
        for process in agent.host.processes.values():
            if process.component is not None and process.alive and not process.killed:
                raise Violation("stops end", f"{process.component} on {agent.host.name} is left behind")

    def replaced(self, host: Host, agent: Agent) -> None:
        """The agent replaces its program: what runs, and is to go on, will be found going on."""
        self.final[host.name] = {name for name, member in agent.state.members.items() if member.state.hold is not None}
        self.handed_over[host.name] = {
            name: (member.state.generation, member.spec)
            for name, member in agent.state.members.items()
            if member.state.run is not None
            and member.state.run.phase is Phase.LIVE
            and member.state.aim is Aim.NONE
            and member.state.want.up
        }

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
        steps.check(self, steps.Step(agent, before, event, after, actions, now))

    def replied(self, agent: Agent, action: Reply) -> None:
        """A command was answered; exactly once."""
        if action.id not in agent.answers:
            raise Violation("last word", f"{agent.host.name}: command {action.id} answered twice, or never asked")
        command = self.words.answered(agent, action.id, ok=action.ok)
        if command is None or not action.ok:
            return
        if command.verb is Verb.RECOMMISSION and agent.state.in_force.doubt is not None:
            raise Violation("last word", f"{agent.host.name} was recommissioned and is still in doubt")
        member = agent.state.members.get(command.component or "")
        if command.verb in {Verb.START, Verb.RESTART} and member is not None and member.state.hold is not None:
            raise Violation("last word", f"{command.component} on {agent.host.name} was started: {member.state.hold}")

    def fault(self, fault: Fault) -> None:
        """A fault was injected."""
        self.faults.append(fault)

    def settled(self) -> None:
        """The faults have ceased for long: everything is as it should be."""
        settled.check(self.cluster)


def _is_spared(process: Process) -> bool:
    """Tell whether something speaks against ending a process that hangs, or it is being ended."""
    agent = process.host.agent
    member = None if agent is None else agent.state.members.get(process.component or "")
    if agent is None or member is None or process.frozen or process.uninterruptible:
        return True
    liveness = member.spec.liveness
    reported = liveness is None or liveness.on_failure is OnFailure.REPORT
    ending = member.state.generation != process.generation or member.state.aim is not Aim.NONE
    return reported or ending or agent.state.in_force.maintenance is not None


def _undisturbed_ns(process: Process) -> int:
    """Return for how long the agent has run without having been stopped."""
    agent = process.host.agent
    if agent is None or agent.frozen:
        return 0
    return process.host.world.now - max(agent.born_ns, agent.thawed_ns)


def _is_lost(process: Process) -> bool:
    """Tell whether nothing can have ended it: its fuse is lost, and its agent could not act (an assumption)."""
    return process.unguarded and _undisturbed_ns(process) < UNGUARDED_NS
