"""The simulated agent: the real core in a modelled shell."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from node_manager.core import node as core
from node_manager.core import status
from node_manager.core.actions import (
    Action,
    CancelPreStart,
    CancelSpawn,
    EndRun,
    Finish,
    KillTree,
    Log,
    Reply,
    RunHelper,
    RunPreStart,
    RunProbe,
    SendLevels,
    Signal,
    Spawn,
    WriteFacts,
)
from node_manager.core.durable import DurableFacts
from node_manager.core.events import (
    Beat,
    Booted,
    Command,
    ConfigFailed,
    ConfigLoaded,
    Event,
    Exited,
    ExitStatus,
    FactsWriteFailed,
    FactsWritten,
    Found,
    Outcome,
    Past,
    PreStartDone,
    ProbeDone,
    Spawned,
    SpawnFailed,
    Stalled,
    Tick,
    TreeEmpty,
    WallClock,
)
from node_manager.core.nodestate import NodeState
from node_manager.core.run import Phase
from node_manager.core.spec import LEASE_MARGIN_NS
from node_manager.runtime.process import ProcessRecord
from node_manager.runtime.recording import Recorder
from tests.simulation.invariants import Violation
from tests.simulation.processes import SIGKILL, Process
from tests.simulation.world import NS_PER_MS, NS_PER_S, Timer

if TYPE_CHECKING:
    from tests.simulation.host import Host

TURN_NS = NS_PER_MS // 2
"""Longest time from an event to the turn of the loop that takes it."""
STALL_NS = NS_PER_S
"""As in `runtime/agent.py`."""


class Agent:
    """One life of an agent. `dead` is set when it is killed: whatever was under way in it never happens."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.world = host.world
        self.rng = host.world.rng(f"{host.name}/agent")
        self.dead = False
        self.state = NodeState()
        self.queue: deque[Event] = deque()
        self.spawning: set[tuple[str, int]] = set()
        """Spawns between the decision and exec."""
        self.waiting_trees: dict[str, int] = {}
        self.recorder = Recorder(boot_id=f"boot{host.boot}", nonce="", agent_pid=0)
        self.answers: dict[int, Callable[[bool], None]] = {}
        self.next_id = 1
        self.born_ns = host.world.now
        self.thawed_ns = -1
        """When it last continued after having been stopped, in the world's time."""
        self._scheduled = False
        self._timer: Timer | None = None
        self._armed_ns: int | None = None

    @property
    def frozen(self) -> bool:
        return self.host.agent_frozen or self.host.suspended

    # --- the loop ---------------------------------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        """Add an event; a turn follows, as soon as the agent runs."""
        if self.dead:
            return
        self.queue.append(event)
        self.host.cluster.invariants.queue(self)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self.queue:
            self._scheduled = True
            self.world.later(self.rng.randrange(1, TURN_NS), self.turn)

    def turn(self) -> None:
        """One turn of the loop."""
        self._scheduled = False
        if self.dead or self.frozen:
            return
        late_ns = 0 if self._armed_ns is None else self.host.clock() - self._armed_ns
        if late_ns > STALL_NS:
            self._armed_ns = None
            self.step(Stalled(duration_ns=late_ns))
        # As in the shell, what has come in is heard before time is judged.
        heard = [event for event in self.queue if not isinstance(event, Tick)]
        late: list[Event] = [Tick()] if len(heard) < len(self.queue) else []
        self.queue = deque(heard + late)
        while self.queue and not self.dead:
            self.step(self.queue.popleft())
        if not self.dead:
            self.arm()
            self.keep_fuses()
            self.keep_record()

    def go_on(self) -> None:
        """Continue after having been frozen."""
        self.thawed_ns = self.world.now
        self._schedule()
        if not self.queue:
            self.post(Tick())

    def step(self, event: Event) -> None:
        before = self.state
        now = self.host.clock()
        try:
            self.state, actions = core.step(before, event, now)
        except AssertionError as error:
            raise Violation("machine consistent", f"{self.host.name}: {error}") from error
        self.host.cluster.invariants.stepped(self, before, event, self.state, actions, now)
        for action in actions:
            self.carry_out(action)

    def arm(self) -> None:
        self._armed_ns = core.next_wake_ns(self.state)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._armed_ns is not None:
            self._timer = self.world.later(self.host.until(self._armed_ns), lambda: self.post(Tick()))

    # --- birth ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read what is kept, find what runs, take charge."""
        host = self.host
        self.post(WallClock(offset_ns=host.wall_offset_ns))
        identity = f"{host.name}/{host.instance}"
        facts = host.disk.facts
        unreadable = "it is garbage" if host.disk.unreadable else None
        if facts is None or facts.identity != identity or unreadable:
            facts = DurableFacts(identity=identity)
        record = host.record
        self.post(
            Booted(
                boot_id=f"boot{host.boot}",
                facts=facts,
                unreadable=unreadable,
                leases=record.leases,
                holds=record.holds,
                highest_terms=record.highest_terms,
            )
        )
        # A wrong configuration leaves the last good one in force.
        self.post(self._configuration())

    def _configuration(self) -> ConfigLoaded:
        host = self.host
        if not host.config_broken:
            host.spec = host.wanted_spec
        recorded = {kept.found.component: kept.found for kept in host.record.processes}
        found, past = [], {item.component: item for item in host.record.past}
        for component in {process.component for process in host.processes.values() if process.component}:
            mains = host.mains(component)
            if not mains:
                if host.tree(component):
                    past[component] = replace(past.get(component, Past(component=component, generation=1)), left=True)
                continue
            main = mains[0]
            known = recorded.get(component)
            if known is None or known.pid != main.pid:
                # Found by its marker: the record knows nothing of it, the environment has its terms' end.
                known = Found(
                    component=component,
                    pid=main.pid,
                    generation=main.generation,
                    started_ns=main.started_ns,
                    lease_until_ns=main.env_lease_ns,
                )
            found.append(known)
            self.recorder.adopted(known)
        warning = "it is wrong" if host.config_broken else None
        return ConfigLoaded(spec=host.spec, found=tuple(found), past=tuple(past.values()), warning=warning)

    def reload(self) -> None:
        """Read the configuration again."""
        if self.host.config_broken:
            self.post(ConfigFailed(error="it is wrong"))
        elif self.state.spec is None:
            self.post(self._configuration())
        else:
            self.host.spec = self.host.wanted_spec
            self.post(ConfigLoaded(spec=self.host.spec))

    def command(self, command: Command, done: Callable[[bool], None]) -> None:
        """Take an operator's command."""
        command = replace(command, id=self.next_id)
        self.answers[self.next_id] = done
        self.next_id += 1
        self.post(command)

    # --- what happens to processes ------------------------------------------------------------------------------------

    def process_died(self, process: Process, status: ExitStatus) -> None:
        """The pidfd of a main process became readable."""
        assert process.component is not None
        component, generation = process.component, process.generation
        left = len([item for item in self.host.tree(component) if item is not process])
        jitter = self.rng.randrange(1024)
        self.post(Exited(component=component, generation=generation, status=status, left=left, jitter=jitter))

    def hear(self, process: Process, beat: Beat) -> None:
        """A heartbeat came; only the main process of the current generation may speak."""
        if process.alive and not self.dead:
            self.post(beat)

    # --- actions ------------------------------------------------------------------------------------------------------

    def carry_out(self, action: Action) -> None:
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
                host.tell(action.component, dict(status.levels(self.state, action.component)))
            case Reply():
                host.cluster.invariants.replied(self, action)
                done = self.answers.pop(action.id, None)
                if done is not None:
                    done(action.ok)
            case RunProbe():
                ok = bool(host.mains(action.component)) and self.rng.random() > host.cluster.faults.fail_probe
                outcome = Outcome.OK if ok else Outcome.FAILED
                self._soon(
                    ProbeDone(
                        component=action.component, generation=action.generation, probe=action.probe, outcome=outcome
                    )
                )
            case RunPreStart():
                ok = self.rng.random() > host.cluster.faults.fail_probe
                self._soon(PreStartDone(component=action.component, generation=action.generation, ok=ok))
            case Log():
                if action.event != "component.readiness_changed":
                    text = " ".join(f"{name}={value}" for name, value in action.fields)
                    self.world.note(f"{host.name}: {action.event} {action.component or ''} {text}")
            case CancelPreStart() | EndRun() | RunHelper() | Finish():
                pass

    def _soon(self, event: Event) -> None:
        self.world.later(self.rng.randrange(1, 20 * NS_PER_MS), lambda: self.post(event))

    def _spawn(self, action: Spawn) -> None:
        """Decided → forked → last look at the clock → exec; the agent or the child can be stopped at each step."""
        host = self.host
        faults = host.cluster.faults
        self.recorder.spawned(action)

        key = (action.component, action.generation)
        self.spawning.add(key)

        def failed(reason: str) -> None:
            self._spawn_failed(*key, reason)

        if action.lease_valid_until_ns is not None:
            # The fuse has acknowledged its deadline before anything is forked.
            host.arm_fuse(action.component, action.generation, action.lease_valid_until_ns - LEASE_MARGIN_NS)

        def fork() -> None:
            if self.dead or key not in self.spawning:
                return
            if self.frozen:
                self.world.later(50 * NS_PER_MS, fork)
                return
            child_later(look)

        def child_later(step: Callable[[], None]) -> None:
            # The child is a process of its own: it outlives the agent, and freezes with the host.
            pause_ns = self.rng.randrange(1, 3 * NS_PER_MS)
            if self.rng.random() < faults.pause_in_spawn:
                pause_ns = self.rng.randrange(1, 30 * NS_PER_S)
            self.world.later(pause_ns, lambda: step() if not host.suspended else child_later(step))

        def look() -> None:
            if self.dead or key not in self.spawning:
                return  # PR_SET_PDEATHSIG: a child that has not executed its command dies with the agent
            if action.not_after_ns is not None and host.clock() >= action.not_after_ns:
                if not self.dead:
                    failed("the lease is too near its end")
                return
            child_later(execute)

        def execute() -> None:
            if self.dead or key not in self.spawning or host.boot != boot:
                return
            if action.not_after_ns is not None and host.fuse_blown(action.component, action.generation):
                if not self.dead:
                    failed("the fuse keeps the group empty")
                return
            self.spawning.discard((action.component, action.generation))
            host.cluster.invariants.executed(self, action)
            process = host.new_process(action.component, action.generation)
            process.env_lease_ns = action.lease_valid_until_ns
            process.term = action.term
            from tests.simulation.host import PROGRAMS

            program = PROGRAMS[action.component](process, host.cluster)
            process.program = program
            host.cluster.invariants.born(process)
            process.run(program.start)
            # The report pipe is read a moment later: what is decided meanwhile finds the spawn still under way.
            spawned = Spawned(component=action.component, generation=action.generation, pid=process.pid)
            self.world.later(self.rng.randrange(1, 20 * NS_PER_MS), lambda: self.post(spawned))

        boot = host.boot
        if self.rng.random() < faults.fail_spawn:
            self.world.later(NS_PER_MS, lambda: failed("no memory"))
            return
        fork()

    def _spawn_failed(self, component: str, generation: int, reason: str) -> None:
        self.spawning.discard((component, generation))
        self.post(
            SpawnFailed(component=component, generation=generation, reason=reason, jitter=self.rng.randrange(1024))
        )

    def _cancel_spawn(self, component: str, generation: int) -> None:
        """Kill a child that has not executed its command."""
        if (component, generation) in self.spawning:
            self._spawn_failed(component, generation, "not wanted any more")

    def _signal(self, action: Signal) -> None:
        for process in self.host.mains(action.component):
            if process.generation == action.generation:
                self.host.cluster.invariants.signalled(self, action, process)
                process.signal(action.signal)

    def _kill_tree(self, action: KillTree) -> None:
        for process in self.host.tree(action.component):
            self.host.cluster.invariants.tree_killed(self, action, process)
            process.signal(SIGKILL)
        if action.component not in self.waiting_trees:
            self.waiting_trees[action.component] = action.generation
            self._look_at_tree(action.component)
        self.waiting_trees[action.component] = action.generation

    def _look_at_tree(self, component: str) -> None:
        if self.dead:
            return
        if self.host.tree(component):
            self.world.later(10 * NS_PER_MS, lambda: self._look_at_tree(component))
        else:
            self.post(TreeEmpty(component=component, generation=self.waiting_trees.pop(component)))

    def _write(self, action: WriteFacts) -> None:
        disk, host = self.host.disk, self.host
        delay_ns = self.rng.randrange(1, 5 * NS_PER_MS) + disk.slow_ns

        def written() -> None:
            if self.dead:
                return
            if disk.full:
                self.post(FactsWriteFailed(seq=action.seq, error="no space"))
                return
            disk.facts = replace(action.facts, identity=f"{host.name}/{host.instance}")
            disk.unreadable = False
            self.post(FactsWritten(seq=action.seq))

        self.world.later(delay_ns, written)

    def keep_fuses(self) -> None:
        """Arm the fuses anew where a lease was renewed."""
        for name, member in self.state.members.items():
            run = member.state.run
            if run is None or run.lease_until_ns is None or run.phase is Phase.TREE:
                continue
            at_ns = run.lease_until_ns - LEASE_MARGIN_NS
            if self.host.fuses.get(name) != (member.state.generation, at_ns):
                self.host.arm_fuse(name, member.state.generation, at_ns)

    # --- the record -------------------------------------------------------------------------------------------------

    def keep_record(self) -> None:
        """Hand the runtime record to the writer thread: it is on the file system a moment later, if the agent lives."""
        running = tuple(
            ProcessRecord(
                component=process.component,
                generation=process.generation,
                pid=process.pid,
                start_ticks=process.pid,
                started_ns=process.started_ns,
            )
            for process in self.host.processes.values()
            if process.component is not None and process.alive
        )
        made = self.recorder.record(self.state, running)

        def write() -> None:
            if not self.dead:
                self.host.record = made

        self.world.later(self.rng.randrange(1, 3 * NS_PER_MS), write)
