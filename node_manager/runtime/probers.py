"""Carries out active probes: at most one at a time of each kind for each component, no task, everything bounded.

What a probe means is the core's to say; here is only whether it answered. A probe that cannot be carried out, for
want of descriptors, processes or a resolver, is UNKNOWN: never a failure of the component.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from node_manager.core.actions import RunProbe
from node_manager.core.events import Event, Outcome, ProbeDone
from node_manager.core.spec import ExecCheck, HttpCheck, ProbeKind, TcpCheck
from node_manager.runtime.helpers import End, HelperPlan, HelperResult, HelperRun, Helpers
from node_manager.runtime.netprobe import LATE_S, NetProbe
from node_manager.runtime.resolver import Resolver

MAX_EXEC_PROBES = 16
"""Commands at once: a host with hundreds of exec probes must not fork them all in the same second."""
_NS_PER_S = 1_000_000_000

_Key = tuple[str, ProbeKind]


@dataclass(slots=True, eq=False)
class _Flight:
    """A probe under way. `action` None: it was answered, and what it started is being killed."""

    action: RunProbe | None
    net: NetProbe | None = None
    run: HelperRun | None = None
    patience: asyncio.TimerHandle | None = None
    """Set while an exec probe waits for its turn."""
    until_s: float = 0.0
    """When the time of an exec probe is over."""


class Probers:
    """All active probes of one agent. `helpers` runs the commands of exec probes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, post: Callable[[Event], None], helpers: Helpers) -> None:
        self._loop = loop
        self._post = post
        self._helpers = helpers
        self._resolver = Resolver(loop)
        self._flights: dict[_Key, _Flight] = {}
        self._queue: deque[tuple[_Key, _Flight]] = deque()
        self._running = 0

    def run(self, action: RunProbe) -> None:
        """Carry out one probe. ProbeDone follows, unless `end` of its generation comes first; never raises.

        It comes within the time-out; an exec probe that has to wait for its turn does so for one period at most,
        and is then UNKNOWN.
        """
        key = (action.component, action.probe)
        earlier = self._flights.get(key)
        if earlier is not None and earlier.action is not None and earlier.action.generation != action.generation:
            self._give_up(key, earlier)
            earlier = self._flights.get(key)
        if earlier is not None:
            text = (
                "the earlier probe is still under way" if earlier.action else "the earlier probe cannot be killed yet"
            )
            self._answer(action, Outcome.UNKNOWN, text)
            return
        check = action.check.check
        flight = _Flight(action)
        match check:
            case ExecCheck():
                self._flights[key] = flight
                self._queue.append((key, flight))
                flight.patience = self._loop.call_later(
                    action.check.period_ns / _NS_PER_S, self._out_of_patience, key, flight
                )
                self._start_waiting()
            case TcpCheck() | HttpCheck():
                self._flights[key] = flight
                timeout_s = action.check.timeout_ns / _NS_PER_S
                flight.net = NetProbe(self._loop, self._resolver, check, timeout_s, partial(self._net_done, key))
            case _:  # heartbeat, notify: nothing to carry out, the core judges them
                self._answer(action, Outcome.UNKNOWN, "this kind of probe is not carried out")

    def end(self, component: str, generation: int) -> None:
        """This generation is over: end its probes, with no answer, and kill what they started."""
        for key, flight in list(self._flights.items()):
            if key[0] == component and flight.action is not None and flight.action.generation <= generation:
                self._give_up(key, flight)

    def close(self) -> None:
        """End everything. Commands under way are killed by `Helpers.close`."""
        for flight in self._flights.values():
            flight.action = None
            if flight.net is not None:
                flight.net.cancel()
            if flight.patience is not None:
                flight.patience.cancel()
        self._flights.clear()
        self._queue.clear()
        self._resolver.close()

    def _give_up(self, key: _Key, flight: _Flight) -> None:
        flight.action = None
        if flight.run is not None:
            flight.run.cancel()  # the flight stays until nothing of it lives
            return
        if flight.net is not None:
            flight.net.cancel()
        if flight.patience is not None:
            flight.patience.cancel()
        del self._flights[key]

    def _net_done(self, key: _Key, outcome: Outcome, detail: str) -> None:
        action = self._flights.pop(key).action
        if action is not None:
            self._answer(action, outcome, detail)

    def _start_waiting(self) -> None:
        """Start exec probes while there is room."""
        while self._queue and self._running < MAX_EXEC_PROBES:
            key, flight = self._queue.popleft()
            action = flight.action
            if action is None or self._flights.get(key) is not flight:
                continue  # ended while it waited
            if flight.patience is not None:
                flight.patience.cancel()
                flight.patience = None
            check = action.check.check
            assert isinstance(check, ExecCheck)
            self._running += 1
            plan = HelperPlan(
                spec=action.spec,
                generation=action.generation,
                command=check.command,
                timeout_ns=action.check.timeout_ns,
                answer_first=True,
            )
            flight.until_s = self._loop.time() + action.check.timeout_ns / _NS_PER_S
            flight.run = self._helpers.run(
                plan, partial(self._exec_done, flight), partial(self._exec_gone, key, flight)
            )

    def _out_of_patience(self, key: _Key, flight: _Flight) -> None:
        action, flight.action = flight.action, None
        self._flights.pop(key, None)
        if action is not None:
            text = f"{MAX_EXEC_PROBES} other commands are under way, and none ended within the period"
            self._answer(action, Outcome.UNKNOWN, text)

    def _exec_done(self, flight: _Flight, result: HelperResult) -> None:
        action, flight.action = flight.action, None
        if action is None:
            return
        late = self._loop.time() > flight.until_s + LATE_S  # the agent itself stood still, and the command perhaps too
        if result.end in {End.NOT_STARTED, End.CANCELLED} or (result.end is End.TIMED_OUT and late):
            outcome = Outcome.UNKNOWN
        else:
            outcome = Outcome.OK if result.ok else Outcome.FAILED
        self._answer(action, outcome, "" if result.ok else result.detail)

    def _exec_gone(self, key: _Key, flight: _Flight) -> None:
        """Nothing of the command lives: its place is free."""
        self._running -= 1
        if self._flights.get(key) is flight:
            del self._flights[key]
        self._start_waiting()

    def _answer(self, action: RunProbe, outcome: Outcome, detail: str) -> None:
        self._post(
            ProbeDone(
                component=action.component,
                generation=action.generation,
                probe=action.probe,
                outcome=outcome,
                detail=detail,
            )
        )
