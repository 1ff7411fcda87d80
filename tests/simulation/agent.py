"""The simulated agent: the real core in a modelled shell (`effects.py`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from node_manager.core import node as core
from node_manager.core.actions import Action, Reply
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
    Found,
    FuseLost,
    HeartbeatClosed,
    Past,
    Stalled,
    StopNode,
    Tick,
    WallClock,
)
from node_manager.core.nodestate import NodeState
from node_manager.runtime.process import ProcessRecord
from node_manager.runtime.record import RuntimeRecord
from node_manager.runtime.recording import Recorder
from tests.simulation.effects import BEFORE, Effects
from tests.simulation.invariants import Violation
from tests.simulation.processes import Process
from tests.simulation.steps import Seen
from tests.simulation.world import NS_PER_MS, NS_PER_S, Timer

if TYPE_CHECKING:
    from tests.simulation.host import Host

TURN_NS = NS_PER_MS // 2
"""Longest time from an event to the turn of the loop that takes it."""
STALL_NS = NS_PER_S
"""As in `runtime/agent.py`."""
MAX_UNREAD = 256
"""Records that the sockets hold for an agent that does not read; what comes then is lost, as its sender learns."""


class Agent:
    """One life of an agent. `dead` is set when it is killed: whatever was under way in it never happens."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.world = host.world
        self.rng: Random = host.world.rng(f"{host.name}/agent")
        self.dead = False
        self.state = NodeState()
        self.queue: deque[Event] = deque()
        self.recorder = Recorder(boot_id=f"boot{host.boot}", nonce="", agent_pid=0)
        self.answers: dict[int, Callable[[bool], None]] = {}
        self.born_ns = host.world.now
        self.thawed_ns = -1
        """When it last continued after having been stopped, in the world's time."""
        self.thawed_from_ns = -1
        """When it had been stopped, before it last continued."""
        self.stood_still_ns = 0
        """For how long it was stopped altogether."""
        self.seen = Seen()
        self.to_do: deque[Action] = deque()
        """Actions of a step that were not begun when it was stopped."""
        self.effects = Effects(self)
        self._next_id = 1
        self._stopped_ns = 0
        self._unread = 0
        self._newest_record = host.read_record
        self._writing_record = False
        self._held: list[Callable[[], None]] = []
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

    def later(self, delay_ns: int, callback: Callable[[], None]) -> None:
        """Have the agent or one of its threads do something later; never when it is dead, not before it goes on."""
        self.world.later(delay_ns, lambda: self._run(callback))

    def _run(self, callback: Callable[[], None]) -> None:
        if self.dead:
            return
        if self.frozen:
            self._held.append(callback)
        else:
            callback()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.world.later(self.rng.randrange(1, TURN_NS), self.turn)

    def turn(self) -> None:
        """One turn of the loop."""
        self._scheduled = False
        if self.dead or self.frozen:
            return
        self._unread = 0
        if self.to_do:
            # The turn in which it was stopped comes to its end.
            self._carry_out()
            self.arm()
        late_ns = 0 if self._armed_ns is None else self.host.clock() - self._armed_ns
        if late_ns > STALL_NS and self._goes_on():
            self._armed_ns = None
            self.step(Stalled(duration_ns=late_ns))
        # As in the shell, what has come in is heard before time is judged.
        heard = [event for event in self.queue if not isinstance(event, Tick)]
        late: list[Event] = [Tick()] if len(heard) < len(self.queue) else []
        self.queue = deque(heard + late)
        while self.queue and self._goes_on():
            self.step(self.queue.popleft())
        if self._goes_on():
            self.arm()
            self.effects.keep_fuses()
            self.keep_record()

    def _goes_on(self) -> bool:
        return not self.dead and not self.frozen

    def stand_still(self) -> None:
        """Note that it does not run from now on."""
        self._stopped_ns = self.world.now

    def go_on(self) -> None:
        """Continue after having been frozen."""
        self.thawed_from_ns, self.thawed_ns = self._stopped_ns, self.world.now
        self.stood_still_ns += self.world.now - self._stopped_ns
        held, self._held = self._held, []
        for callback in held:
            self.later(0, callback)
        self.post(Tick())

    def step(self, event: Event) -> None:
        before = self.state
        now = self.host.clock()
        try:
            self.state, actions = core.step(before, event, now)
        except AssertionError as error:
            raise Violation("machine consistent", f"{self.host.name}: {error}") from error
        self.to_do.extend(actions)
        self.host.cluster.invariants.stepped(self, before, event, self.state, actions, now)
        self._carry_out()

    def _carry_out(self) -> None:
        """Carry out what was decided, in order; it may be stopped or killed before each action."""
        while self.to_do and self._goes_on():
            point = BEFORE.get(type(self.to_do[0]))
            if point is not None and self.host.at_point(point):
                continue
            self.effects.carry_out(self.to_do.popleft())

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
        # What is read counts as durable, so it is made so: its writer may have been killed before it could.
        host.disk.sync()
        facts, unreadable = host.disk.facts, "it is garbage" if host.disk.unreadable else None
        # Another instance inherits nothing.
        if facts is None or facts.identity != host.identity or unreadable:
            facts = DurableFacts(identity=host.identity)
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
        for process, _ in self._proven(host.record):
            if process.unguarded:
                self.lost_fuse(process)
        zombies, host.zombies = host.zombies, []
        for process, status in zombies:
            self.process_died(process, status)

    def _configuration(self) -> ConfigLoaded:
        host = self.host
        if not host.config_broken:
            host.spec = host.wanted_spec
        found, past = [], {item.component: item for item in host.record.past}
        for process, item in self._proven(host.record):
            found.append(item)
            self.recorder.adopted(item)
            self.effects.handles[(item.component, item.generation)] = process
        taken = {item.component for item in found}
        for component in sorted({process.component for process in host.processes.values() if process.component}):
            if component not in taken and host.tree(component):
                past[component] = replace(past.get(component, Past(component=component, generation=1)), left=True)
        warning = "it is wrong" if host.config_broken else None
        return ConfigLoaded(spec=host.spec, found=tuple(found), past=tuple(past.values()), warning=warning)

    def _proven(self, record: RuntimeRecord) -> list[tuple[Process, Found]]:
        """Return the processes that are an earlier agent's: by pid and start time, or by their marker."""
        zombies = [process for process, _ in self.host.zombies]
        processes = {process.pid: process for process in (*zombies, *self.host.processes.values())}
        proven: dict[str, tuple[Process, Found]] = {}
        for kept in record.processes:
            process = processes.get(kept.found.pid)
            if process is None or process.start_ticks != kept.start_ticks:
                continue
            if process.alive or process in zombies:
                proven[kept.found.component] = process, kept.found
        for process in self.host.processes.values():
            if process.alive and process.component is not None and process.component not in proven:
                # The record knows nothing of it; its environment has the end of its lease.
                process.digest = None
                found = Found(
                    component=process.component,
                    pid=process.pid,
                    generation=process.generation,
                    started_ns=process.started_ns,
                    lease_until_ns=process.env_lease_ns,
                )
                proven[process.component] = process, found
        return list(proven.values())

    def reload(self) -> None:
        """Read the configuration again."""
        if self.host.config_broken:
            self.post(ConfigFailed(error="it is wrong"))
        elif self.state.spec is None:
            self.post(self._configuration())
        else:
            self.host.spec = self.host.wanted_spec
            self.post(ConfigLoaded(spec=self.host.spec))

    # --- what comes in ----------------------------------------------------------------------------------------------

    def command(self, command: Command, done: Callable[[bool], None]) -> None:
        """Take an operator's command."""
        command = replace(command, id=self._next_id)
        self.answers[self._next_id] = done
        self._next_id += 1
        self.post(command)

    def stop(self) -> None:
        """Take the order to stop everything and end."""
        self.post(StopNode(reason="shutdown"))

    def answer(self, action: Reply) -> None:
        """Answer a command."""
        self.host.cluster.invariants.replied(self, action)
        self.answers.pop(action.id)(action.ok)

    def process_died(self, process: Process, status: ExitStatus) -> None:
        """The pidfd of a main process became readable."""
        assert process.component is not None
        component, generation = process.component, process.generation
        left = len([item for item in self.host.tree(component) if item is not process])
        jitter = self.rng.randrange(1024)
        self.post(Exited(component=component, generation=generation, status=status, left=left, jitter=jitter))

    def lost_fuse(self, process: Process) -> None:
        """The fuse of a main process ended, or is not there."""
        assert process.component is not None
        lost = FuseLost(component=process.component, generation=process.generation, reason="killed")
        self.later(self.rng.randrange(1, 20 * NS_PER_MS), lambda: self.post(lost))

    def hear(self, process: Process, said: Beat | HeartbeatClosed) -> None:
        """A heartbeat came; only the main process of the current generation may speak."""
        if process.alive and not self.dead and self._unread < MAX_UNREAD:
            self._unread += 1
            self.post(said)

    # --- the record -------------------------------------------------------------------------------------------------

    def made_record(self) -> Callable[[], RuntimeRecord]:
        """Return what works out the runtime record as it is to be now: most records are replaced before one is read."""
        mains = [process for process in self.host.processes.values() if process.component is not None and process.alive]
        recorder = Recorder(boot_id=f"boot{self.host.boot}", nonce="", agent_pid=0)
        recorder.go_on(self.recorder.births)
        return partial(_record, recorder, self.state, mains)

    def keep_record(self) -> None:
        """Hand the runtime record to the writer thread: it is on the file system a moment later, if the agent lives."""
        self._newest_record = self.made_record()
        if not self._writing_record:
            self._writing_record = True
            self.later(self.rng.randrange(1, 3 * NS_PER_MS), self._write_record)

    def _write_record(self) -> None:
        self._writing_record = False
        self.host.read_record = self._newest_record


def _record(recorder: Recorder, state: NodeState, mains: list[Process]) -> RuntimeRecord:
    """Return the runtime record of a state of the core; of the processes only what never changes is asked for."""
    running = tuple(
        ProcessRecord(
            component=process.component,
            generation=process.generation,
            pid=process.pid,
            start_ticks=process.start_ticks,
            started_ns=process.started_ns,
        )
        for process in mains
        if process.component is not None
    )
    return recorder.record(state, running)
