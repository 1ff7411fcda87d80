"""Processes of a simulated host: they live, freeze, die when they are told to or not, and leave children."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from node_manager.core.events import ExitStatus
from tests.simulation.world import NS_PER_MS, NS_PER_S, Timer

if TYPE_CHECKING:
    from tests.simulation.host import Host

SIGKILL, SIGTERM = 9, 15
DEATH_NS = 50 * NS_PER_MS
"""Longest time from SIGKILL to death, as long as SIGKILL is effective."""


class Program(Protocol):
    """What a process does. Every callback runs only while the process lives and is not frozen."""

    def start(self) -> None:
        """Begin: called once the command is executed."""
        ...

    def terminate(self) -> None:
        """SIGTERM came."""
        ...

    def told(self, levels: dict[str, str]) -> None:
        """The agent sent levels over the heartbeat connection."""
        ...

    def flood(self, records: int) -> None:
        """Say the same so many times at once."""
        ...

    def hang(self) -> None:
        """Do nothing any more, and say nothing."""
        ...

    def finish(self) -> None:
        """End with a status that the role file calls final, where there is one."""
        ...

    def step_down(self) -> None:
        """Give up leadership, where there is any."""
        ...

    def agent_is_back(self) -> None:
        """The agent listens (again): say hello and everything."""
        ...


@dataclass(slots=True, eq=False)
class Process:
    """One process. `component` is None for a user's job."""

    host: Host
    pid: int
    component: str | None
    start_ticks: int = 0
    """What tells it from another process that had the same pid."""
    generation: int = 0
    started_ns: int = 0
    program: Program | None = None
    parent: Process | None = None
    alive: bool = True
    frozen: bool = False
    uninterruptible: bool = False
    term: int | None = None
    """The term that it was started under."""
    stood_still_ns: int = -1
    """When it was last stopped, in the world's time."""
    killed: bool = False
    job: bool = False
    unguarded: bool = False
    """Its fuse was lost."""
    hangs: bool = False
    """It sleeps for ever, and does nothing that it should."""
    env_lease_ns: int | None = None
    digest: str | None = None
    """What it was started with; None: no agent knows it any more."""
    children: list[Process] = field(default_factory=list)
    deferred: list[Callable[[], None]] = field(default_factory=list)

    @property
    def running(self) -> bool:
        """Whether its code makes progress now."""
        return self.alive and not self.frozen and not self.host.suspended

    def later(self, delay_ns: int, callback: Callable[[], None]) -> Timer:
        """Have its code do something later; while it is frozen that waits, and when it is dead it never happens."""
        return self.host.world.later(delay_ns, lambda: self.run(callback))

    def run(self, callback: Callable[[], None]) -> None:
        """Run a piece of its code now, or once it goes on."""
        if not self.alive:
            return
        if self.running:
            callback()
        else:
            self.deferred.append(callback)

    def stop(self) -> None:
        """SIGSTOP."""
        self.frozen = True
        self.stood_still_ns = self.host.world.now

    def go_on(self) -> None:
        """SIGCONT."""
        if self.frozen:
            self.frozen = False
            self.resume()

    def resume(self) -> None:
        """Go on with what was waiting."""
        waiting, self.deferred = self.deferred, []
        for callback in waiting:
            self.host.world.later(0, lambda callback=callback: self.run(callback))  # type: ignore[misc]

    def signal(self, number: int) -> None:
        """Deliver a signal; SIGKILL ends it even when it is frozen, but not in uninterruptible sleep."""
        if not self.alive:
            return
        if number == SIGKILL:
            self.killed = True
            if not self.uninterruptible:
                delay_ns = self.host.world.rng(f"{self.host.name}/death").randrange(1, DEATH_NS)
                self.host.world.later(delay_ns, lambda: self.die(ExitStatus(signal=SIGKILL)))
        elif self.program is not None:
            self.run(self.program.terminate)

    def wake_up(self) -> None:
        """Leave uninterruptible sleep: a SIGKILL that was sent takes effect."""
        self.uninterruptible = False
        if self.killed:
            self.die(ExitStatus(signal=SIGKILL))

    def die(self, status: ExitStatus) -> None:
        """End, once."""
        if self.alive and not self.uninterruptible:
            self.alive = False
            self.host.died(self, status)

    def tree(self) -> list[Process]:
        """Everything that descends from it and lives."""
        found: list[Process] = []
        for child in self.children:
            if child.alive:
                found.append(child)
            found.extend(child.tree())
        return found


ROUND_TRIP_NS = 5 * NS_PER_MS
"""Longest delay of a message between a process and its agent, without faults."""
RECONNECT_NS = 1 * NS_PER_S
"""Longest time until a client library finds a new agent."""
