"""The measurements of one session: each takes the times of one supervisor that is up, and returns samples of it."""

import json
import os
import random
import select
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import procfs
from benchmarks.peers.adapter import Command, Supervisor
from benchmarks.peers.ours import NodeManager
from benchmarks.peers.startlog import restarts_ms

Found = tuple[str, list[float], dict[str, Any]]
"""Metric, values, notes."""

NS_PER_MS = 1_000_000
STOP_BOUND_S = 180.0
ADOPT_BOUND_S = 60.0
CHANGE_BOUND_S = 120.0
QUERIES_BOUND_S = 60.0
_GAP_S = (0.15, 0.45)
"""Between two kills of different components, so that no supervisor's cycle is met in step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is measured in one session."""

    kills: int = 8
    repeats: int = 2
    idle_s: float = 10.0
    commands: int = 10
    queries: int = 100
    storm_s: float = 10.0
    storm_rate: float = 1000.0


SHORT = Extent(kills=2, repeats=1, idle_s=0.5, commands=2, queries=20, storm_s=1.0, storm_rate=200.0)
"""Shows that the harness works; no figure to quote."""


def restart(peer: Supervisor, extent: Extent) -> Iterator[Found]:
    """SIGKILL of one component until its next start, of another each time where there are several; milliseconds."""
    values: list[float] = []
    several = len(peer.names) > 1
    names = random.sample(peer.names, min(extent.kills, len(peer.names))) if several else peer.names * extent.kills
    for name in names:
        peer.log.poll()
        ran_s = (time.monotonic_ns() - peer.log.newest[name].at_ns) / 1e9
        procfs.pause(max(peer.settled_s - ran_s, 0) + random.uniform(*_GAP_S))  # noqa: S311 - no secret
        old = peer.log.newest[name]
        killed_ns = _kill([old.pid])
        if not peer.log.wait(lambda: peer.log.newest[name].pid != old.pid, peer.restart_bound_s):  # noqa: B023
            break
        values.append((peer.log.newest[name].at_ns - killed_ns) / NS_PER_MS)
    yield "restart_ms", values, {"lost": len(names) - len(values)}


def memory(peer: Supervisor, _extent: Extent) -> Iterator[Found]:
    """What the supervisor's own processes hold; MiB."""
    found = procfs.memory(peer.pids())
    yield "pss_mib", [found.pss / procfs.KIB], {"processes": found.processes}
    yield "uss_mib", [found.uss / procfs.KIB], {"processes": found.processes}


def idle(peer: Supervisor, extent: Extent) -> Iterator[Found]:
    """Share of one core in per cent, and how often a thread of it is woken in a second, while nothing happens."""
    pids = peer.pids()
    begun_ns, before = time.monotonic_ns(), procfs.usage(pids)
    procfs.pause(extent.idle_s)
    after, took_ns = procfs.usage(pids), time.monotonic_ns() - begun_ns
    notes = {"same_processes": pids == peer.pids()}
    yield "idle_cpu_percent", [100 * (after.cpu_ns - before.cpu_ns) / took_ns], notes
    yield "idle_wakeups_per_s", [(after.sleeps - before.sleeps) * 1e9 / took_ns], notes


def status_command(peer: Supervisor, extent: Extent) -> Iterator[Found]:
    """The command that prints the status of all components, from its start to its end; milliseconds."""
    command = peer.status_command()
    if command is None:
        return
    values = []
    environment = peer.whole_environment()
    arguments = [str(part) for part in command]
    for _ in range(extent.commands):
        begun_ns = time.perf_counter_ns()
        done = subprocess.run(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        values.append((time.perf_counter_ns() - begun_ns) / NS_PER_MS)
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)[:200]} ends with {done.returncode}")
    yield "status_command_ms", values, {}


def status_kept(peer: Supervisor, extent: Extent) -> Iterator[Found]:
    """The status of all components over a kept connection; milliseconds."""
    command = peer.asker(extent.queries, 0, QUERIES_BOUND_S)
    if command is not None:
        yield "status_kept_ms", _answered(peer.output_of(command))["latencies_ms"], {}


def mass_crash(peer: Supervisor, extent: Extent) -> Iterator[Found]:
    """SIGKILL of all components at once until all have started again; milliseconds."""
    values: list[float] = []
    for _ in range(1 if peer.slow else extent.repeats):
        procfs.pause(peer.settled_s + 1)
        killed_ns = _kill(list(peer.component_pids().values()))
        if not peer.log.wait(lambda: peer.log.all_started(peer.names, killed_ns), 4 * peer.restart_bound_s):  # noqa: B023
            break
        values.append((max(peer.log.newest[name].at_ns for name in peer.names) - killed_ns) / NS_PER_MS)
    yield "mass_crash_ms", values, {}


def adoption(peer: Supervisor, _extent: Extent) -> Iterator[Found]:
    """SIGKILL of the agent; its successor from exec until all components are in its charge; milliseconds."""
    if not isinstance(peer, NodeManager) or peer.process is None:
        return
    before = len(peer.log.notes)
    peer.process.kill()
    peer.process.wait()
    took_ms = peer.adopt(ADOPT_BOUND_S)
    peer.log.poll()
    yield "adoption_ms", [took_ms], {"started_anew": len(peer.log.notes) - before}


def change(peer: Supervisor, _extent: Extent) -> Iterator[Found]:
    """A new configuration that touches one component, from the command that says so to its new start; milliseconds."""
    name = peer.names[-1]
    peer.session.changed.add(name)
    peer.configure()
    commands = peer.change_commands()
    if not commands:
        return
    procfs.pause(peer.settled_s)
    peer.log.poll()
    old, before = peer.log.newest[name], len(peer.log.notes)
    begun_ns = time.monotonic_ns()
    for command in commands:
        peer.output_of(command)
    came = peer.log.wait(lambda: peer.log.newest[name].pid != old.pid, CHANGE_BOUND_S)
    values = [(peer.log.newest[name].at_ns - begun_ns) / NS_PER_MS] if came else []
    yield "change_ms", values, {"others_started": len(peer.log.notes) - before - len(values)}


def stop(peer: Supervisor, _extent: Extent) -> Iterator[Found]:
    """All components and the supervisor itself, until the last of them is gone; milliseconds."""
    watched = [os.pidfd_open(pid) for pid in (*peer.component_pids().values(), *peer.pids())]
    poller = select.poll()
    for pidfd in watched:
        poller.register(pidfd, select.POLLIN)
    begun_ns = time.monotonic_ns()
    commands = peer.begin_stop()
    left, last_ns = set(watched), begun_ns
    while left and time.monotonic_ns() - begun_ns < STOP_BOUND_S * 1e9:
        for pidfd, _ in poller.poll(100):
            poller.unregister(pidfd)
            left.discard(pidfd)
            last_ns = time.monotonic_ns()
        peer.roots()  # reaps it
    for process in commands:
        process.wait(STOP_BOUND_S)
    for pidfd in watched:
        os.close(pidfd)
    yield "stop_ms", [] if left else [(last_ns - begun_ns) / NS_PER_MS], {"left": len(left)}


def storm(peer: Supervisor, extent: Extent) -> Iterator[Found]:
    """Status queries at a rate while every component ends again and again: latency of both, and the rate reached.

    Who cannot keep up is not waited for: what was answered in the time counts.
    """
    command = peer.asker(int(extent.storm_rate * extent.storm_s), extent.storm_rate, extent.storm_s)
    begun_ns = time.monotonic_ns()
    if command is None:
        procfs.pause(extent.storm_s)
    else:
        answer = _within(peer, command, extent.storm_s)
        latencies = answer["latencies_ms"]
        reached = {"per_s": round(len(latencies) / answer["duration_s"], 1)}
        yield "storm_status_ms", latencies, reached
        yield "storm_queries_per_s", [reached["per_s"]], {}
    ended_ns = time.monotonic_ns()
    procfs.pause(min(peer.restart_bound_s, 2.0))
    peer.log.poll()
    values = restarts_ms(peer.log.notes, begun_ns, ended_ns)
    yield "storm_restart_ms", values, {"restarts_per_s": round(len(values) * 1e9 / (ended_ns - begun_ns), 1)}


Measure = Callable[[Supervisor, Extent], Iterator[Found]]


def show(values: list[float]) -> str:
    """A line's worth of some values."""
    if not values:
        return "none"
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f}, {len(values)})"


def _kill(pids: list[int]) -> int:
    """SIGKILL; returns when, CLOCK_MONOTONIC."""
    pidfds = [os.pidfd_open(pid) for pid in pids]
    at_ns = time.monotonic_ns()
    for pidfd in pidfds:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    for pidfd in pidfds:
        os.close(pidfd)
    return at_ns


def _within(peer: Supervisor, command: Command, bound_s: float) -> dict[str, Any]:
    """The asker's answer; where not even its last query was answered long after the time: none."""
    try:
        return _answered(peer.output_of(command, 4 * bound_s + 30))
    except subprocess.TimeoutExpired:
        return {"latencies_ms": [], "duration_s": bound_s}


def _answered(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found
