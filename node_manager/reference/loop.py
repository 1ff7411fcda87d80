"""The loop that every reference component runs: one thread, descriptors, one deadline, heartbeats, SIGTERM.

In each turn the component looks at the clock first and the heartbeat is rendered after that: a program that was
stopped and continued notices the end of its lease before it says anything.
"""

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from node_manager.heartbeat.client import HeartbeatClient
from node_manager.reference.clock import NS_PER_MS, NS_PER_S, boottime_ns
from node_manager.reference.faults import Faults
from node_manager.reference.guarded import write_whole
from node_manager.reference.journal import Journal
from node_manager.reference.settings import Settings, SettingsError

MAX_WAIT_NS = 60 * NS_PER_S
"""Even a component with nothing to do looks at the clock once a minute."""

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_FAILED = 70
"""EX_SOFTWARE of sysexits.h: the fault `crash-after`."""
EXIT_UNAVAILABLE = 71
"""EX_OSERR: it cannot have its address, its slot or its files."""
EXIT_FENCED = 75
"""EX_TEMPFAIL: its lease is over, or someone has a newer term."""
EXIT_CONFIG = 78
EXIT_DECOMMISSIONED = 79


class StartError(Exception):
    """The component cannot have what it needs; the text says what and why. Ends with EXIT_UNAVAILABLE."""


class Loop:
    """Descriptors and what to call when they are ready.

    poll(2), not epoll: descriptors are numbers there, so a heartbeat connection that was replaced by another with
    the same number needs no care.
    """

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()
        self._callbacks: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call `callback(ready)` when one of `events` (selectors.EVENT_*) is there. Replaces an earlier watch."""
        if fd in self._callbacks:
            self._selector.modify(fd, events)
        else:
            self._selector.register(fd, events)
        self._callbacks[fd] = callback

    def unwatch(self, fd: int) -> None:
        """Forget this descriptor; do it before closing it."""
        if self._callbacks.pop(fd, None) is not None:
            self._selector.unregister(fd)

    def turn(self, timeout_s: float) -> None:
        """Wait once, then call what is ready and still watched."""
        for key, ready in self._selector.select(timeout_s):
            callback = self._callbacks.get(key.fd)
            if callback is not None:
                callback(ready)

    def close(self) -> None:
        """Forget everything."""
        self._selector.close()
        self._callbacks.clear()


class Context:
    """What a component is given: the loop, the heartbeat client, its settings and its journal."""

    def __init__(self, *, name: str, settings: Settings, client: HeartbeatClient, loop: Loop) -> None:
        self.name = name
        self.settings = settings
        self.client = client
        self.loop = loop
        self.journal = Journal(name)


def publish_port(context: Context, port: int) -> None:
    """Write `NAME.port` into the state directory, for whoever let the kernel choose. Not having it stops nobody."""
    state_dir = context.settings.state_path
    if state_dir is None:
        return
    try:
        state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        write_whole(state_dir / f"{context.name}.port", f"{port}\n".encode())
    except OSError as error:
        context.journal.say(f"cannot write the port file: {error}")


class Component(Protocol):
    """One program. `exit_status` other than None ends it after one last heartbeat."""

    exit_status: int | None

    def tick(self, now_ns: int) -> int:
        """Do what is due; returns when it wants to be called again at the latest (CLOCK_BOOTTIME)."""
        ...

    def terminate(self) -> None:
        """SIGTERM or SIGINT has come."""
        ...

    def close(self) -> None:
        """Give back every descriptor."""
        ...


class _Signals:
    """SIGTERM and SIGINT as a readable descriptor."""

    def __init__(self, *, ignore: bool) -> None:
        self.arrived = False
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN if ignore and number == signal.SIGTERM else self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.arrived = True

    def fileno(self) -> int:
        return self._reader.fileno()

    def drain(self, _ready: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()


def run(name: str, settings: Settings, build: Callable[[Context], Component]) -> int:
    """Run one component until it ends; returns the exit status."""
    journal = Journal(name)
    faults = settings.faults
    started_ns = boottime_ns()
    signals = _Signals(ignore=faults.ignore_term)
    loop = Loop()
    loop.watch(signals.fileno(), selectors.EVENT_READ, signals.drain)
    try:
        if not _slow_start(loop, signals, started_ns, faults):
            return EXIT_OK
        if faults.mute:
            os.environ.pop("XCE_HEARTBEAT_SOCKET", None)
        client = HeartbeatClient.from_environment()
        try:
            context = Context(name=name, settings=settings, client=client, loop=loop)
            return _run_component(context, build, signals, started_ns)
        finally:
            client.close()
    except SettingsError as error:
        journal.say(str(error))
        return EXIT_CONFIG
    except (StartError, OSError) as error:
        journal.say(str(error) if isinstance(error, StartError) else f"cannot go on: {error}")
        return EXIT_UNAVAILABLE
    finally:
        loop.close()
        signals.close()


def _run_component(context: Context, build: Callable[[Context], Component], signals: _Signals, started_ns: int) -> int:
    component = build(context)
    heartbeat_fd = -1
    told = False
    try:
        while True:
            if signals.arrived and not told:
                told = True
                component.terminate()
            now_ns = boottime_ns()
            next_ns = min(component.tick(now_ns), now_ns + MAX_WAIT_NS)
            next_ns = min(next_ns, _misbehave(now_ns, started_ns, context.settings.faults))
            if serve_heartbeat(context.client):
                next_ns = now_ns
            if component.exit_status is not None:
                return component.exit_status
            heartbeat_fd = _watch_heartbeat(context, heartbeat_fd)
            wait_ns = min(next_ns - boottime_ns(), context.client.next_ms() * NS_PER_MS)
            context.loop.turn(max(wait_ns, 0) / NS_PER_S)
    finally:
        component.close()


def serve_heartbeat(client: HeartbeatClient) -> bool:
    """Service it; True: look before the next wait, for the agent has said something, or all that was stated is sent."""
    before, sent = client.agent, client.sent
    client.service()
    return client.agent is not before or client.sent != sent


def _watch_heartbeat(context: Context, watched: int) -> int:
    fd = context.client.fileno()
    if watched not in {fd, -1}:
        context.loop.unwatch(watched)
    if fd != -1:
        context.loop.watch(fd, selectors.EVENT_READ, lambda _ready: None)  # every turn services it
    return fd


def _slow_start(loop: Loop, signals: _Signals, started_ns: int, faults: Faults) -> bool:
    """Wait out the fault `slow-start`. False: told to end meanwhile."""
    until_ns = started_ns + (faults.slow_start_ns or 0)
    while not signals.arrived and (left_ns := until_ns - boottime_ns()) > 0:
        loop.turn(left_ns / NS_PER_S)
    return not signals.arrived


def _misbehave(now_ns: int, started_ns: int, faults: Faults) -> int:
    """Carry out the faults `crash-after` and `hang-after`; returns when the next one is due."""
    next_ns = now_ns + MAX_WAIT_NS
    if faults.crash_after_ns is not None:
        if now_ns - started_ns >= faults.crash_after_ns:
            os._exit(EXIT_FAILED)
        next_ns = min(next_ns, started_ns + faults.crash_after_ns)
    if faults.hang_after_ns is not None:
        while now_ns - started_ns >= faults.hang_after_ns:
            time.sleep(NS_PER_S)  # SIGTERM's handler runs and changes nothing: as a deadlocked program
        next_ns = min(next_ns, started_ns + faults.hang_after_ns)
    return next_ns
