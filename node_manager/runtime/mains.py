"""A main process, as the one who is in charge of it knows it."""

import asyncio
from dataclasses import dataclass

from node_manager.runtime.spawn import Launch
from node_manager.runtime.tree import Owner


@dataclass(slots=True, kw_only=True, eq=False)
class Main:
    """A main process. `launch` is set until it has executed its command."""

    component: str
    generation: int
    pid: int
    pidfd: int
    start_ticks: int
    started_ns: int
    child: bool
    launch: Launch | None = None
    timer: asyncio.TimerHandle | None = None
    status_until_s: float | None = None

    @property
    def owner(self) -> Owner:
        """Whose it is."""
        return Owner(self.component)

    @property
    def run(self) -> tuple[str, int]:
        """Component and generation."""
        return self.component, self.generation
