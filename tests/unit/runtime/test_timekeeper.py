"""The agent's sense of time."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.timekeeper import CALM_NS, PULSE_NS, STALL_NS, Timekeeper

S = 1_000_000_000
BOUND_S = 20
CALM_PULSE_NS = 2 * S
"""Of these tests: longer than the ordinary one, and not so long to wait for."""


class Watch:
    """A timekeeper whose calls are noted; each pulse ends the wait."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.ticks = 0
        self.pulses = 0
        self.time = Timekeeper(self.loop, tick=self._tick, pulse=self._pulse, calm_pulse_ns=CALM_PULSE_NS)

    def _tick(self) -> None:
        self.ticks += 1

    def _pulse(self) -> None:
        self.pulses += 1
        self.loop.call_soon(self.loop.stop)

    def fire(self) -> None:
        """Run until the timer has fired."""
        bound = self.loop.call_later(BOUND_S, self.loop.stop)
        self.loop.run_forever()
        bound.cancel()

    def close(self) -> None:
        self.time.close()
        self.loop.close()


@pytest.fixture
def watch() -> Iterator[Watch]:
    found = Watch()
    yield found
    found.close()


def test_the_loop_turns_without_a_deadline(watch: Watch) -> None:
    """A pulse comes though nothing is due: else nobody would notice how long nobody noticed anything."""
    for deadline_ns, pulse_ns in ((None, CALM_PULSE_NS), (CALM_NS + S, CALM_PULSE_NS), (CALM_NS - S, PULSE_NS)):
        begin_ns = boottime_ns()
        watch.time.arm(None if deadline_ns is None else begin_ns + deadline_ns)
        before = watch.pulses
        watch.fire()
        assert (watch.pulses - before, watch.ticks) == (1, 0)
        assert boottime_ns() - begin_ns >= pulse_ns


def test_a_deadline_brings_a_tick(watch: Watch) -> None:
    """One that is past brings it at once, a later one not before its time, however many pulses come."""
    watch.time.arm(boottime_ns() - 5 * S)
    watch.fire()
    assert (watch.pulses, watch.ticks) == (1, 1)
    at_ns = boottime_ns() + PULSE_NS + S // 10
    while watch.ticks == 1:
        watch.time.arm(at_ns)
        watch.fire()
    assert boottime_ns() >= at_ns
    assert watch.pulses in {2, 3}, "the last is the deadline's, unless the one before it was late"


def test_nothing_is_a_stall_while_the_loop_turns(watch: Watch) -> None:
    """A deadline that was past already when it was set says nothing about the loop."""
    watch.time.arm(boottime_ns() - 60 * S)
    assert watch.time.stalled_ns(boottime_ns()) == 0
    watch.fire()
    assert watch.time.stalled_ns(boottime_ns()) == 0


STOPPED = """
import os, signal, sys, time
pid = int(sys.argv[1])
os.kill(pid, signal.SIGSTOP)
time.sleep(float(sys.argv[2]))
os.kill(pid, signal.SIGCONT)
"""


@pytest.mark.parametrize(("deadline_ns", "pulse_ns"), [(None, CALM_PULSE_NS), (20 * S, PULSE_NS)])
def test_a_stopped_process_knows_for_how_long(watch: Watch, deadline_ns: int | None, pulse_ns: int) -> None:
    """SIGSTOP is measured although no deadline passed meanwhile, but for the pulse it began in; and only once."""
    stop_s = (pulse_ns + STALL_NS) / S + 1.2
    watch.time.arm(None if deadline_ns is None else boottime_ns() + deadline_ns)
    before_ns = boottime_ns()
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", STOPPED, str(os.getpid()), str(stop_s)]):
        while boottime_ns() - before_ns < stop_s * S:
            signal.sigtimedwait((), 0.05)
    most_ns = boottime_ns() - before_ns
    stalled_ns = watch.time.stalled_ns(boottime_ns())
    assert STALL_NS < stalled_ns <= most_ns
    assert stalled_ns >= stop_s * S - pulse_ns
    assert watch.time.stalled_ns(boottime_ns()) == 0


def _pass(duration_ns: int) -> None:
    """Hold the loop up."""
    until_ns = boottime_ns() + duration_ns
    while boottime_ns() < until_ns:
        signal.sigtimedwait((), 0.05)


def test_a_stall_between_two_looks_is_seen_by_the_next_timer(watch: Watch) -> None:
    """A turn that was held up after its last event says so, though its timer is set anew; a second stall adds up."""
    held_ns = PULSE_NS + STALL_NS + S // 10
    watch.time.arm(boottime_ns() + 20 * S)
    _pass(held_ns)
    watch.time.arm(boottime_ns() + 3600 * S)
    watch.fire()
    assert watch.ticks == 1, "the core is told of it without anything else that is due"
    assert watch.time.stalled_ns(boottime_ns()) > STALL_NS
    watch.time.arm(boottime_ns() + 20 * S)
    _pass(held_ns)
    watch.time.arm(boottime_ns() + 20 * S)
    _pass(held_ns)
    assert watch.time.stalled_ns(boottime_ns()) > 2 * STALL_NS
