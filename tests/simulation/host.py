"""A simulated host: its clock, its processes, its disk, and an agent that runs the real core.

The shell modelled here keeps the same contract as `runtime/`: every action is carried out in order, every effect takes
time, and the agent can be killed or frozen between a decision and any part of its effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from node_manager.core.durable import DurableFacts
from node_manager.core.events import Beat, Command, ExitStatus, Verb
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
"""The runtime record before the first write, or lost."""


class Disk:
    """The durable store: a write is whole or did not happen; `full` refuses, `slow_ns` delays."""

    def __init__(self) -> None:
        self.facts: DurableFacts | None = None
        self.full = False
        self.slow_ns = 0
        self.unreadable = False


class Host:
    """See the module."""

    def __init__(self, cluster: Cluster, name: str, spec: NodeSpec, *, rate: float) -> None:
        self.cluster = cluster
        self.world: World = cluster.world
        self.name = name
        self.spec = spec
        self.wanted_spec = spec
        """What the configuration file says now; None in it: it is wrong."""
        self.config_broken = False
        self.instance = 1
        self.boot = 1
        self.suspended = False
        self.crash_loop = False
        self.processes: dict[int, Process] = {}
        self.record = EMPTY
        self.disk = Disk()
        self.agent: Agent | None = None
        self.agent_frozen = False
        self.wall_offset_ns = 1_760_000_000 * NS_PER_S
        self._rate = rate
        self._pid = 100
        self.rng = self.world.rng(f"{name}/host")
        self.fuses: dict[str, tuple[int, int]] = {}
        """Component -> (generation, deadline in this host's clock); a blown one stays until it is armed anew."""

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
        process = Process(
            host=self,
            pid=self._pid,
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
        self._forget_dead()

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

    def _fuse_fires(self, component: str) -> None:
        fuse = self.fuses.get(component)
        if fuse is None or self.clock() < fuse[1]:
            return
        for process in self.tree(component):
            self.world.note(f"{self.name}: fuse kills {component} {process.pid}")
            self.cluster.invariants.fuse_killed(self, process)
            process.signal(SIGKILL)

    # --- heartbeats -------------------------------------------------------------------------------------------------

    def deliver(self, process: Process, beat: Beat) -> None:
        """Carry a heartbeat to the agent, unless it is lost with a connection."""
        faults = self.cluster.faults
        if self.rng.random() < faults.lose_beat:
            return
        delay_ns = self.rng.randrange(1, ROUND_TRIP_NS)
        if self.rng.random() < faults.garble_beat:
            garbled = (
                replace(beat, term=None, epoch=None, valid_until_ns=None),
                replace(beat, term=None if beat.term is None else max(0, beat.term - 1)),
                replace(beat, epoch=None if beat.epoch is None else beat.epoch - 1),
                replace(beat, valid_until_ns=None if beat.valid_until_ns is None else beat.valid_until_ns * 2),
            )
            beat = self.rng.choice(garbled)
        agent = self.agent
        self.world.later(delay_ns, lambda: agent.hear(process, beat) if agent is self.agent and agent else None)

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
            self.agent = Agent(self)
            self.agent.start()
            for process in list(self.processes.values()):
                if process.program is not None:
                    process.later(self.rng.randrange(1, RECONNECT_NS), process.program.agent_is_back)

    def kill_agent(self, restart_after_ns: int) -> None:
        """Kill the agent; systemd starts it again."""
        if self.agent is not None:
            self.world.note(f"{self.name}: agent killed")
            self.agent.dead = True
            self.agent = None
            self.agent_frozen = False
        self.world.later(restart_after_ns, self.start_agent)

    def freeze_agent(self, frozen: bool) -> None:
        """SIGSTOP or SIGCONT of the agent."""
        if self.agent is not None:
            self.agent_frozen = frozen
            self.world.note(f"{self.name}: agent {'stopped' if frozen else 'continued'}")
            if not frozen:
                self.agent.go_on()

    def suspend(self, suspended: bool) -> None:
        """Suspend the whole host, or let it go on; its CLOCK_BOOTTIME advances."""
        self.suspended = suspended
        self.world.note(f"{self.name}: {'suspended' if suspended else 'resumed'}")
        if suspended:
            return
        for process in list(self.processes.values()):
            process.resume()
        for component in list(self.fuses):
            self._fuse_fires(component)
        if self.agent is None:
            self.start_agent()
        else:
            self.agent.go_on()

    def reboot(self) -> None:
        """Lose everything but the disk."""
        self.world.note(f"{self.name}: reboots")
        if self.agent is not None:
            self.agent.dead = True
            self.agent = None
        self.agent_frozen = False
        for process in list(self.processes.values()):
            process.alive = False
        self.processes.clear()
        self.fuses.clear()
        self.record = EMPTY
        self.boot += 1
        self.world.later(self.rng.randrange(5 * NS_PER_S, 60 * NS_PER_S), self.start_agent)

    def command(self, verb: Verb, component: str | None = None, done: Callable[[bool], None] | None = None) -> None:
        """Give an operator's command, where an agent is there to take it."""
        if self.agent is not None and not self.agent_frozen and not self.suspended:
            self.agent.command(Command(id=0, verb=verb, by="operator", component=component), done or (lambda _ok: None))
