"""The agent's sense of time: when the core needs a tick, how long the agent itself could not listen, the wall clock.

The timer never stands for later than a pulse from now. So whoever looks at the clock knows since when the loop has not
turned at the most, whatever kept it: SIGSTOP, a suspended host, a starved machine, a callback of its own that took too
long. Without a pulse only a stall over a deadline would be seen, and one that began long before it not measured. A
stall may begin and end at any instruction, in the middle of a turn as well as between two: so it is looked for before
each event that the core is told of, and before the timer is set anew.
"""

import asyncio
import time
from collections.abc import Callable

from node_manager.core.events import Event, Stalled
from node_manager.core.spec import NS_PER_S
from node_manager.runtime.clock import BootTimer, boottime_ns

PULSE_NS = 1 * NS_PER_S
"""How often the loop turns at least. Of a stall, at most so much is not seen."""
CALM_PULSE_NS = 5 * NS_PER_S
"""The same while the next deadline is further than CALM_NS away: then a little more of a stall harms nobody."""
CALM_NS = 60 * NS_PER_S
"""Ten times what is not seen of a stall then: a pulse, and what counts as no stall."""
STALL_NS = 1 * NS_PER_S
"""A timer that fires later than this was not heard in time: the agent itself was stopped, suspended or starved."""
WALL_STEP_NS = NS_PER_S // 10
"""A smaller change of the wall clock against CLOCK_BOOTTIME is slewing, and not worth an event."""


def wall_offset_ns() -> int:
    """Return wall clock minus CLOCK_BOOTTIME."""
    return time.time_ns() - boottime_ns()


class Timekeeper:
    """One timer. `pulse` is called whenever it fires, and has to lead to a turn; `tick` when the core has to look.

    `calm_pulse_ns`: as CALM_PULSE_NS, where somebody else counts on turns (a watchdog).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        tick: Callable[[], None],
        pulse: Callable[[], None],
        calm_pulse_ns: int = CALM_PULSE_NS,
    ) -> None:
        self._calm_pulse_ns = calm_pulse_ns
        self._tick = tick
        self._pulse = pulse
        self._wanted_ns: int | None = None
        self._due_ns: int | None = None
        """When the loop has to have turned by."""
        self._stalled_ns = 0
        """What was seen of stalls and nobody has asked for yet."""
        self._timer = BootTimer(loop, self._expired)

    def arm(self, at_ns: int | None) -> None:
        """Have a tick at `at_ns` of CLOCK_BOOTTIME, at once if that is past; None: none. For the end of each turn."""
        now = boottime_ns()
        self._look(now)
        self._wanted_ns = at_ns
        if at_ns is None or at_ns > now + CALM_NS:
            self._due_ns = now + self._calm_pulse_ns
        else:
            self._due_ns = min(max(at_ns, now), now + PULSE_NS)
        self._timer.arm(self._due_ns)

    def stalled_ns(self, now: int) -> int:
        """Return for how long the loop has not turned beyond what it should, once for each stall; 0: it has not."""
        self._look(now)
        stalled_ns, self._stalled_ns = self._stalled_ns, 0
        return stalled_ns

    def with_stall(self, event: Event, now: int) -> tuple[Event, ...]:
        """Return what the core is to be told: nothing is judged by time in which nobody listened."""
        stalled_ns = self.stalled_ns(now)
        return (Stalled(duration_ns=stalled_ns), event) if stalled_ns else (event,)

    def close(self) -> None:
        """Stop for good."""
        self._timer.close()

    def _look(self, now: int) -> None:
        if self._due_ns is not None and now - self._due_ns > STALL_NS:
            self._stalled_ns += now - self._due_ns
            self._due_ns = now + PULSE_NS

    def _expired(self) -> None:
        now = boottime_ns()
        self._look(now)
        self._pulse()
        if self._stalled_ns or (self._wanted_ns is not None and self._wanted_ns <= now):
            self._tick()
