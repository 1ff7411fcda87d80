"""A simulated host: its clock, its processes, its disk, and an agent that runs the real core.

The shell modelled here keeps the same contract as `runtime/`: every action is carried out in order, every effect takes
time, and the agent can be killed or frozen between a decision and any part of its effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from node_manager.core.durable import DurableFacts
from node_manager.core.events import Beat, Command, ExitStatus, HeartbeatClosed
from node_manager.core.spec import NodeSpec
from node_manager.runtime.record import RuntimeRecord
from tests.simulation.agent import Agent
from tests.simulation.processes import RECONNECT_NS, ROUND_TRIP_NS, SIGKILL, Process
from tests.simulation.programs import Component, Controller, Scheduler, Worker
from tests.simulation.world import NS_PER_S, World

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

PROGRAMS: dict[str, type[Component]] = {"controller": Controller, "scheduler": Scheduler, "worker": Worker}


EMPTY = RuntimeRecord(boot_id="", nonce="")
"""The runtime record before the first write, lost or torn."""


class Disk:
    """The durable store: a new record is readable once it has its name, and survives a power cut once that is synced.

    `full` refuses, `slow_ns` delays; `unreadable` is damage that no kill and no power cut can explain.
    """

    def __init__(self) -> None:
        self.facts: DurableFacts | None = None
        """What readers see."""
        self.full = False
        self.slow_ns = 0
        self.unreadable = False
        self._synced: DurableFacts | None = None

    def rename(self, facts: DurableFacts, identity: str) -> None:
        """Let readers see a record from now on."""
        self.facts = replace(facts, identity=identity)
        self.unreadable = False

    def sync(self) -> None:
        """Make what readers see survive a power cut."""
        self._synced = self.facts

    def cut_power(self, *, lost: bool) -> None:
        """Lose what is not synced, or not: the disk may have had it by itself."""
        if lost:
            self.facts = self._synced
        self._synced = self.facts

    def copy(self) -> Disk:
        """Return a disk with the same content, as an image made of it has."""
        twin = Disk()
        twin.facts, twin.unreadable = self.facts, self.unreadable
        twin.sync()
        return twin


class How(Enum):
    """What happens at a point between a decision and its effect."""

    STOP = "stopped"
    KILL = "killed"
    POWER_CUT = "without power"


@dataclass(frozen=True, slots=True)
class Trap:
    """A fault that waits for the next passage of a point."""

    how: How
    lasts_ns: int


class Host:
    """See the module."""

    def __init__(self, cluster: Cluster, name: str, spec: NodeSpec, *, rate: float) -> None:
        self.cluster = cluster
        self.world: World = cluster.world
        self.name = name
        self.spec = spec
        self.wanted_spec = spec
        """What the configuration file says now."""
        self.whole_spec = spec
        """What it says when nobody has tampered with it."""
        self.config_broken = False
        self.instance = 1
        self.boot = 1
        self.suspended = False
        self.crash_loop = False
        self.denied = False
        """The heartbeat socket refuses everybody."""
        self.processes: dict[int, Process] = {}
        self.after_death: list[Callable[[], None]] = []
        """What is to be done once after the next death of a process."""
        self.read_record: Callable[[], RuntimeRecord] = lambda: EMPTY
        self.disk = Disk()
        self.agent: Agent | None = None
        self.agent_frozen = False
        self.zombies: list[tuple[Process, ExitStatus]] = []
        """Main processes that ended while the agent was replacing its program: they are still its children."""
        self.traps: dict[str, Trap] = {}
        self.wall_offset_ns = 1_760_000_000 * NS_PER_S
        self._disks = {1: self.disk}
        self._replacing = False
        self._rate = rate
        self._pid = 100
        self._made = 0
        self.rng = self.world.rng(f"{name}/host")
        self.forgot_removed = False
        """The runtime record was lost while something with jobs was out of the configuration."""
        self.fuses: dict[str, tuple[int, int]] = {}
        """Component -> (generation, deadline in this host's clock); a blown one stays until it is armed anew."""

    @property
    def identity(self) -> str:
        """Who this host is: a name can return with another instance."""
        return f"{self.name}/{self.instance}"

    @property
    def record(self) -> RuntimeRecord:
        """The runtime record on the file system."""
        return self.read_record()

    @record.setter
    def record(self, record: RuntimeRecord) -> None:
        self.read_record = lambda: record

    # --- time -----------------------------------------------------------------------------------------------------

    def clock(self) -> int:
        """CLOCK_BOOTTIME of this host: it advances through suspends, at the host's own rate."""
        return int(self.world.now * self._rate) + 1000 * NS_PER_S

    def until(self, at_ns: int) -> int:
        """Return the world's time until this host's clock shows `at_ns`."""
        return int((at_ns - self.clock()) / self._rate) + 1

    # --- processes --------------------------------------------------------------------------------------------------

    def new_process(self, component: str | None, generation: int = 0, parent: Process | None = None) -> Process:
        """Make a process; its program is started by whoever made it."""
        self._pid += 1
        return self._make(self._pid, component, generation, parent)

    def stranger(self, pid: int) -> None:
        """Let somebody else's process have a pid that became free."""
        if pid not in self.processes:
            self._make(pid, None, 0, None)

    def _make(self, pid: int, component: str | None, generation: int, parent: Process | None) -> Process:
        self._made += 1
        process = Process(
            host=self,
            pid=pid,
            start_ticks=self._made,
            component=component,
            generation=generation,
            started_ns=self.clock(),
            parent=parent,
        )
        self.processes[process.pid] = process
        if parent is not None:
            parent.children.append(process)
        return process

    def spawn_job(self, worker: Process) -> Process:
        """Start a user's job, a child of the worker in a session of its own."""
        job = self.new_process(None, parent=worker)
        job.job = True
        return job

    def jobs(self) -> list[Process]:
        """Return the living jobs, whichever worker started them."""
        return [process for process in self.processes.values() if process.job and process.alive]

    def mains(self, component: str) -> list[Process]:
        """Return the living main processes of a component."""
        return [process for process in self.processes.values() if process.component == component and process.alive]

    def tree(self, component: str) -> list[Process]:
        """Return everything that lives of a component: main processes and what they started, now orphans or not."""
        found = {process.pid: process for process in self.mains(component)}
        for process in self.processes.values():
            if process.component == component:
                found.update({child.pid: child for child in process.tree()})
        return list(found.values())

    def died(self, process: Process, status: ExitStatus) -> None:
        """Take note of a death: the agent's pidfd becomes readable."""
        self.world.note(
            f"{self.name}: {process.component or 'job'} {process.pid} died ({status.code}, {status.signal})"
        )
        if process.component is not None and self.agent is not None:
            self.agent.process_died(process, status)
        elif process.component is not None and self._replacing:
            self.zombies.append((process, status))
        self._forget_dead()
        waiting, self.after_death = self.after_death, []
        for callback in waiting:
            callback()

    def _forget_dead(self) -> None:
        """Keep the table small: a dead process without living children is of no interest any more."""
        gone = [pid for pid, process in self.processes.items() if not process.alive and not process.tree()]
        for pid in gone:
            del self.processes[pid]

    # --- fuse -----------------------------------------------------------------------------------------------------

    def arm_fuse(self, component: str, generation: int, at_ns: int) -> None:
        """Have the component's processes of this generation killed at `at_ns`, whatever becomes of the agent."""
        if not self.cluster.assumptions.fuse:
            return
        self.fuses[component] = (generation, at_ns)
        self.world.later(self.until(at_ns), lambda: self._fuse_fires(component))

    def fuse_blown(self, component: str, generation: int) -> bool:
        """Tell whether the group of this generation is kept empty now."""
        fuse = self.fuses.get(component)
        return fuse is not None and self.cluster.assumptions.fuse and (fuse[0] != generation or self.clock() >= fuse[1])

    def lose_fuse(self, component: str) -> None:
        """Kill a fuse: its agent sees it end, if it runs."""
        generation, _ = self.fuses.get(component, (0, 0))
        guarded = [process for process in self.mains(component) if process.generation == generation]
        if self.agent is None or self.agent.frozen or not guarded:
            return
        del self.fuses[component]
        for process in guarded:
            self.world.note(f"{self.name}: the fuse of {component} {process.pid} is lost")
            process.unguarded = True
            self.cluster.invariants.fuse_lost(self.agent, process)
            self.agent.lost_fuse(process)

    def _fuse_fires(self, component: str, *, resumed: bool = False) -> None:
        """Kill. After a suspend that is what happens first: what was suspended beyond its lease runs no more."""
        fuse = self.fuses.get(component)
        if fuse is None or self.clock() < fuse[1] or self.suspended:
            return
        for process in self.tree(component):
            self.world.note(f"{self.name}: fuse kills {component} {process.pid}")
            if resumed:
                process.die(ExitStatus(signal=SIGKILL))
            else:
                self.cluster.invariants.fuse_killed(self, process)
                process.signal(SIGKILL)

    # --- heartbeats -------------------------------------------------------------------------------------------------

    def deliver(self, process: Process, beat: Beat) -> None:
        """Carry a heartbeat to the agent, unless it is lost with a connection, refused or garbage."""
        faults = self.cluster.faults
        if self.denied or self.rng.random() < faults.lose_beat:
            return
        event: Beat | HeartbeatClosed = beat
        if self.rng.random() < faults.garble_beat:
            garbled = (
                replace(beat, term=None, epoch=None, valid_until_ns=None),
                replace(beat, term=None if beat.term is None else max(0, beat.term - 1)),
                replace(beat, epoch=None if beat.epoch is None else beat.epoch - 1),
                replace(beat, valid_until_ns=None if beat.valid_until_ns is None else beat.valid_until_ns * 2),
                # What cannot be understood at all closes the connection.
                HeartbeatClosed(component=beat.component, generation=beat.generation),
            )
            event = self.rng.choice(garbled)
            if isinstance(event, Beat) and event.epoch is not None and event.epoch != beat.epoch:
                # Nobody can tell that this was not said under that epoch.
                self.cluster.decided.pop((self.identity, event.epoch), None)
        agent = self.agent
        if agent is not None:
            self.world.later(self.rng.randrange(1, ROUND_TRIP_NS), lambda: agent.hear(process, event))

    def tell(self, component: str, levels: dict[str, str]) -> None:
        """Carry levels to a component's main process."""
        for process in self.mains(component):
            delay_ns = self.rng.randrange(1, ROUND_TRIP_NS)
            program = process.program
            if program is not None:
                process.later(delay_ns, lambda program=program: program.told(levels))  # type: ignore[misc]

    # --- the agent's life -------------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        """Start the agent, as systemd does."""
        if self.agent is None and not self.suspended:
            self.world.note(f"{self.name}: agent starts")
            self._replacing = False
            self.agent = Agent(self)
            self.agent.start()
            for process in list(self.processes.values()):
                if process.program is not None:
                    process.later(self.rng.randrange(1, RECONNECT_NS), process.program.agent_is_back)

    def kill_agent(self, restart_after_ns: int) -> None:
        """Kill the agent; systemd starts it again."""
        self.world.note(f"{self.name}: agent killed")
        self._lose_agent()
        self.world.later(restart_after_ns, self.start_agent)

    def agent_finished(self, agent: Agent) -> None:
        """The agent has stopped everything and exits."""
        self.world.note(f"{self.name}: agent finished")
        self.cluster.invariants.finished(agent)
        self._lose_agent()

    def _lose_agent(self) -> None:
        if self.agent is not None:
            self.agent.dead = True
        self.agent = None
        self.agent_frozen = self._replacing = False
        self.zombies.clear()
        self.cluster.invariants.handed_over.pop(self.name, None)
        self.cluster.invariants.final.pop(self.name, None)

    def reexec_agent(self, blind_ns: int) -> None:
        """Replace the agent's program in place: same pid, so its children stay its own; the record is handed over."""
        agent = self.agent
        if agent is None or agent.frozen:
            return
        self.world.note(f"{self.name}: agent replaces its program")
        if agent.state.spec is not None:
            self.read_record = agent.made_record()
        self._lose_agent()
        self._replacing = True
        self.cluster.invariants.replaced(self, agent)
        self.world.later(blind_ns, self.start_agent)

    # --- points between a decision and its effect -------------------------------------------------------------------

    def at_point(self, point: str) -> bool:
        """Let the agent be stopped or killed here, if a fault waits for it; tell whether it was."""
        trap = self.traps.pop(point, None)
        agent = self.agent
        if trap is None or agent is None:
            return False
        self.world.note(f"{self.name}: agent {trap.how.value} at the point: {point}")
        match trap.how:
            case How.STOP:
                self.freeze_agent(True)
                self.world.later(trap.lasts_ns, lambda: self.freeze_agent(False) if self.agent is agent else None)
            case How.KILL:
                self.kill_agent(trap.lasts_ns)
            case How.POWER_CUT:
                self.reboot(power_cut=True)
        return True

    def child_pause_ns(self, point: str) -> int:
        """Return for how long a child that is about to pass this point stands still."""
        trap = self.traps.pop(point, None)
        return 0 if trap is None else trap.lasts_ns

    def freeze_agent(self, frozen: bool) -> None:
        """SIGSTOP or SIGCONT of the agent."""
        if self.agent is not None and frozen is not self.agent_frozen:
            if not self.agent.frozen:
                self.agent.stand_still()
            self.agent_frozen = frozen
            self.world.note(f"{self.name}: agent {'stopped' if frozen else 'continued'}")
            if not frozen and not self.suspended:
                self.agent.go_on()

    def suspend(self, suspended: bool) -> None:
        """Suspend the whole host, or let it go on; its CLOCK_BOOTTIME advances."""
        if suspended is self.suspended:
            return
        if self.agent is not None and not self.agent.frozen:
            self.agent.stand_still()
        self.suspended = suspended
        self.world.note(f"{self.name}: {'suspended' if suspended else 'resumed'}")
        if suspended:
            return
        for component in list(self.fuses):
            self._fuse_fires(component, resumed=True)
        for process in list(self.processes.values()):
            process.resume()
        if self.agent is None:
            self.start_agent()
        elif not self.agent_frozen:
            self.agent.go_on()

    def reboot(self, *, power_cut: bool = False) -> None:
        """Lose everything but the disk; without power also what is not synced."""
        self.world.note(f"{self.name}: {'loses power' if power_cut else 'reboots'}")
        self._lose_agent()
        self.disk.cut_power(lost=power_cut and self.rng.random() < 0.7)
        for process in list(self.processes.values()):
            process.alive = False
        self.processes.clear()
        self.fuses.clear()
        self.traps.clear()
        self.record = EMPTY
        self.suspended = False
        self.boot += 1
        self.world.later(self.rng.randrange(5 * NS_PER_S, 60 * NS_PER_S), self.start_agent)

    def become(self, instance: int, *, cloned: bool) -> None:
        """Return under the same name as another instance: with a disk of its own, or a copy of this one's."""
        self.world.note(f"{self.name}: becomes instance {instance}, {'cloned' if cloned else 'with its own disk'}")
        known = self._disks.get(instance)
        self.disk = known or (self.disk.copy() if cloned else Disk())
        self._disks[instance] = self.disk
        self.instance = instance
        who = replace(self.wanted_spec.host, instance_id=f"i-{self.name}-{instance}")
        self.spec = self.wanted_spec = replace(self.wanted_spec, host=who)
        self.config_broken = False
        self.reboot()

    def mend(self) -> None:
        """End every fault of this host."""
        self.traps.clear()
        self.config_broken = self.crash_loop = self.denied = False
        self.wanted_spec = replace(self.whole_spec, host=self.wanted_spec.host)
        self.disk.full, self.disk.slow_ns = False, 0
        self.suspend(False)
        self.freeze_agent(False)
        for process in list(self.processes.values()):
            process.wake_up()
            process.go_on()
        if self.agent is not None:
            self.agent.reload()
        else:
            self.start_agent()

    def instances(self) -> list[int]:
        """Return the instances that this name has had."""
        return list(self._disks)

    def command(self, command: Command) -> None:
        """Give an operator's command, where an agent is there to take it."""
        if self.agent is not None and not self.agent.frozen:
            self.agent.command(command, lambda _ok: None)
