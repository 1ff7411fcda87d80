"""What becomes of the core's actions: a modelled shell in which every effect takes time and can be interrupted.

Between a decision and its effect lie named points (`POINTS`). A fault can stop, kill or power off at each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from node_manager.core import status
from node_manager.core.actions import (
    Action,
    CancelPreStart,
    CancelSpawn,
    EndRun,
    Finish,
    KillTree,
    Log,
    LookAt,
    Reply,
    RunHelper,
    RunPreStart,
    RunProbe,
    SendLevels,
    Signal,
    Spawn,
    TakeEvidence,
    WriteFacts,
)
from node_manager.core.events import (
    Event,
    EvidenceTaken,
    FactsWriteFailed,
    FactsWritten,
    Looked,
    Outcome,
    PreStartDone,
    ProbeDone,
    Spawned,
    SpawnFailed,
    TreeEmpty,
)
from node_manager.core.ordering import process_digest
from node_manager.core.run import Phase
from node_manager.core.spec import LEASE_MARGIN_NS
from node_manager.core.wedge import Sample
from tests.simulation.processes import SIGKILL, Process
from tests.simulation.world import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

BEFORE: dict[type[Action], str] = {
    Spawn: "decided to start",
    CancelSpawn: "decided to cancel a start",
    Signal: "decided to signal",
    KillTree: "decided to kill a tree",
    WriteFacts: "decided to write",
    Reply: "before the answer",
}
"""Points between a decision and the beginning of its effect: there the agent stands, with all that follows."""
CHILD_POINTS = ("child before its look at the clock", "child before exec")
"""There a child of the agent stands, and the agent goes on."""
POINTS = (
    *BEFORE.values(),
    "fuse armed",
    "forked",
    "executed",
    "before the disk has it",
    "before the write is acknowledged",
    *CHILD_POINTS,
)


@dataclass(slots=True)
class Starting:
    """A spawn between the decision and exec."""

    action: Spawn
    boot: int
    looked_ns: int = 0
    """When the child looked at the clock."""


class Effects:
    """Carries out the actions of one agent."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.host = agent.host
        self.world = agent.world
        self.rng = agent.rng
        self.spawning: dict[tuple[str, int], Starting] = {}
        self.handles: dict[tuple[str, int], Process] = {}
        """Component and generation -> the process that the agent holds a descriptor of."""
        self._waiting_trees: dict[str, int] = {}
        self.writing = False
        """The writer thread has something to do."""
        self._next_write: WriteFacts | None = None

    def carry_out(self, action: Action) -> None:
        """Begin the effect of one action."""
        host = self.host
        match action:
            case Spawn():
                self._spawn(action)
            case CancelSpawn():
                self._cancel_spawn(action.component, action.generation)
            case Signal():
                self._signal(action)
            case KillTree():
                self._kill_tree(action)
            case WriteFacts():
                self._write(action)
            case SendLevels():
                host.tell(action.component, dict(status.levels(self.agent.state, action.component, host.clock())))
            case Reply():
                self.agent.answer(action)
            case RunProbe():
                self._probe(action)
            case LookAt():
                self._look_at(action)
            case TakeEvidence():
                self._take_evidence(action)
            case RunPreStart():
                ok = self.rng.random() > host.cluster.faults.fail_probe
                self._soon(PreStartDone(component=action.component, generation=action.generation, ok=ok))
            case Log():
                if action.event != "component.readiness_changed":
                    text = " ".join(f"{name}={value}" for name, value in action.fields)
                    self.world.note(f"{host.name}: {action.event} {action.component or ''} {text}")
            case Finish():
                host.agent_finished(self.agent)
            case CancelPreStart() | EndRun() | RunHelper():
                pass

    def _soon(self, event: Event) -> None:
        self.agent.later(self.rng.randrange(1, 20 * NS_PER_MS), lambda: self.agent.post(event))

    def _probe(self, action: RunProbe) -> None:
        mains = self.host.mains(action.component)
        # What hangs answers nobody.
        ok = self.rng.random() > self.host.cluster.faults.fail_probe and any(not process.hangs for process in mains)
        outcome = Outcome.OK if ok else Outcome.FAILED
        self._soon(
            ProbeDone(component=action.component, generation=action.generation, probe=action.probe, outcome=outcome)
        )

    def _look_at(self, action: LookAt) -> None:
        """Tell what a late component does; now and then the look itself hangs."""
        process = self.handles.get((action.component, action.generation))
        if self.rng.random() < self.host.cluster.faults.hang_look:
            return
        if process is None or not process.alive:
            sample = Sample(at_ns=self.host.clock(), state="")
        else:
            state = "T" if process.frozen else "D" if process.uninterruptible else "S"
            sample = Sample(
                at_ns=self.host.clock(),
                state=state,
                uninterruptible=process.uninterruptible,
                ran_ns=0 if process.hangs else (self.host.clock() - process.started_ns) // 200,
            )
        self._soon(Looked(component=action.component, generation=action.generation, sample=sample))

    def _take_evidence(self, action: TakeEvidence) -> None:
        if not self.host.disk.full and self.rng.random() >= self.host.cluster.faults.hang_look:
            self._soon(EvidenceTaken(component=action.component, generation=action.generation, path="evidence"))

    # --- starts -----------------------------------------------------------------------------------------------------

    def _spawn(self, action: Spawn) -> None:
        """Decided → fuse armed → forked → last look at the clock → exec → report read."""
        host, agent = self.host, self.agent
        agent.recorder.spawned(action)
        key = (action.component, action.generation)
        self.spawning[key] = Starting(action, host.boot)
        if self.rng.random() < host.cluster.faults.fail_spawn:
            agent.later(NS_PER_MS, lambda: self._spawn_failed(*key, "no memory"))
            return
        if action.lease_valid_until_ns is not None:
            # The fuse has acknowledged its deadline before anything is forked.
            host.arm_fuse(action.component, action.generation, action.lease_valid_until_ns - LEASE_MARGIN_NS)
            host.at_point("fuse armed")
        agent.later(0, lambda: self._fork(key))

    def _fork(self, key: tuple[str, int]) -> None:
        if key in self.spawning:
            self.host.at_point("forked")
            self._child_later(key, CHILD_POINTS[0], self._look)

    def _child_later(self, key: tuple[str, int], point: str, step: Callable[[tuple[str, int]], None]) -> None:
        """Let the child go on: a process of its own, which stands still with the host but not with the agent."""
        pause_ns = self.host.child_pause_ns(point) or self.rng.randrange(1, 3 * NS_PER_MS)
        if self.rng.random() < self.host.cluster.faults.pause_in_spawn:
            pause_ns = self.rng.randrange(1, 30 * NS_PER_S)
        self.world.later(pause_ns, lambda: self._child(key, point, step))

    def _child(self, key: tuple[str, int], point: str, step: Callable[[tuple[str, int]], None]) -> None:
        starting = self.spawning.get(key)
        # PR_SET_PDEATHSIG: a child that has not executed its command dies with the agent.
        if self.agent.dead or starting is None or starting.boot != self.host.boot:
            return
        if self.host.suspended:
            self._child_later(key, point, step)
        else:
            step(key)

    def _look(self, key: tuple[str, int]) -> None:
        starting = self.spawning[key]
        starting.looked_ns = self.host.clock()
        if starting.action.not_after_ns is not None and starting.looked_ns >= starting.action.not_after_ns:
            self._spawn_failed(*key, "the lease is too near its end")
            return
        self._child_later(key, CHILD_POINTS[1], self._execute)

    def _execute(self, key: tuple[str, int]) -> None:
        from tests.simulation.host import PROGRAMS

        host, starting = self.host, self.spawning[key]
        action = starting.action
        if action.not_after_ns is not None and host.fuse_blown(*key):
            self._spawn_failed(*key, "the fuse keeps the group empty")
            return
        del self.spawning[key]
        host.cluster.invariants.executed(self.agent, starting)
        process = host.new_process(action.component, action.generation)
        self.handles[key] = process
        process.env_lease_ns = action.lease_valid_until_ns
        process.term = action.term
        process.digest = process_digest(action.spec)
        program = PROGRAMS[action.component](process, host.cluster)
        process.program = program
        host.cluster.invariants.born(process)
        process.run(program.start)
        host.at_point("executed")
        # The report pipe is read a moment later: what is decided meanwhile finds the spawn still under way.
        self._soon(Spawned(component=action.component, generation=action.generation, pid=process.pid))

    def _spawn_failed(self, component: str, generation: int, reason: str) -> None:
        if self.spawning.pop((component, generation), None) is None:
            return  # it was cancelled meanwhile
        jitter = self.rng.randrange(1024)
        self.agent.post(SpawnFailed(component=component, generation=generation, reason=reason, jitter=jitter))

    def _cancel_spawn(self, component: str, generation: int) -> None:
        """Kill a child that has not executed its command."""
        self._spawn_failed(component, generation, "not wanted any more")

    # --- ends -------------------------------------------------------------------------------------------------------

    def _signal(self, action: Signal) -> None:
        process = self.handles.get((action.component, action.generation))
        if process is not None and process.alive:
            self.host.cluster.invariants.signalled(self.agent, action, process)
            process.signal(action.signal)

    def _kill_tree(self, action: KillTree) -> None:
        for process in self.host.tree(action.component):
            self.host.cluster.invariants.tree_killed(self.agent, action, process)
            process.signal(SIGKILL)
        waits = action.component in self._waiting_trees
        self._waiting_trees[action.component] = action.generation
        if not waits:
            self._look_at_tree(action.component)

    def _look_at_tree(self, component: str) -> None:
        if self.host.tree(component):
            # What may have emptied it is a death: nobody looks a hundred times a second for as long as it lasts.
            again = partial(self._look_at_tree, component)
            self.host.after_death.append(partial(self.agent.later, 10 * NS_PER_MS, again))
        else:
            self.agent.post(TreeEmpty(component=component, generation=self._waiting_trees.pop(component)))

    # --- the disk ---------------------------------------------------------------------------------------------------

    def _write(self, action: WriteFacts) -> None:
        """Hand it to the writer thread, which writes one record at a time, the newest first and last."""
        self._next_write = action
        if not self.writing:
            self._begin_write()

    def _begin_write(self) -> None:
        action, self._next_write = self._next_write, None
        self.writing = action is not None
        if action is not None:
            delay_ns = self.rng.randrange(1, 5 * NS_PER_MS) + self.host.disk.slow_ns
            self.agent.later(delay_ns, lambda: self._written(action))

    def _written(self, action: WriteFacts) -> None:
        """The content is on the disk and its name is changed: readers see it, a power cut may still undo it."""
        disk = self.host.disk
        if disk.full:
            self._begin_write()
            self.agent.post(FactsWriteFailed(seq=action.seq, error="no space"))
            return
        disk.rename(action.facts, self.host.identity)
        self.host.at_point("before the disk has it")
        self.agent.later(self.rng.randrange(1, 5 * NS_PER_MS), lambda: self._synced(action))

    def _synced(self, action: WriteFacts) -> None:
        """The name is on the disk as well: now it may be acknowledged."""
        self.host.disk.sync()
        self.host.at_point("before the write is acknowledged")
        self.agent.later(0, lambda: self.agent.post(FactsWritten(seq=action.seq)))
        self.agent.later(0, self._begin_write)

    # --- fuses ------------------------------------------------------------------------------------------------------

    def keep_fuses(self) -> None:
        """Arm the fuses anew where a lease was renewed."""
        for name, member in self.agent.state.members.items():
            run = member.state.run
            if run is None or run.lease_until_ns is None or run.phase is Phase.TREE:
                continue
            # The first deadline of a generation is acknowledged before its spawn, by whoever spawns it.
            at_ns = run.lease_until_ns - LEASE_MARGIN_NS
            generation, known_ns = self.host.fuses.get(name, (0, 0))
            if generation == member.state.generation and at_ns != known_ns:
                self.host.arm_fuse(name, member.state.generation, at_ns)
