"""Faults: how often what goes wrong by itself, and the schedule of what is done to the cluster and when."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation import faults_cluster, faults_hosts, faults_operators
from tests.simulation.world import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.host import Host

MAX_FREEZE_S = 90


@dataclass(slots=True)
class Rates:
    """Chances of what goes wrong without being scheduled. All are set to 0 when the faults cease."""

    crash_at_start: float = 0.05
    hang_at_start: float = 0.02
    end_for_good: float = 0.01
    ignore_term: float = 0.2
    slow_term: float = 0.1
    fail_spawn: float = 0.03
    fail_probe: float = 0.002
    lose_beat: float = 0.05
    garble_beat: float = 0.01
    pause_in_spawn: float = 0.1
    hang_look: float = 0.1
    lose_message: float = 0.02

    def cease(self) -> None:
        """Let nothing go wrong any more."""
        for name in self.__slots__:
            setattr(self, name, 0.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of a schedule: from `at_ns` on for `lasts_ns` on one host (by number)."""

    at_ns: int
    kind: str
    host: int
    lasts_ns: int

    def __str__(self) -> str:
        return f"{self.at_ns / NS_PER_S:9.3f} s  {self.kind} on host {self.host} for {self.lasts_ns / NS_PER_S:.3f} s"


KINDS: dict[str, Callable[[Cluster, Host, int], None]] = {
    **faults_hosts.KINDS,
    **faults_cluster.KINDS,
    **faults_operators.KINDS,
}


def schedule(seed: int, hosts: int, until_ns: int, every_ns: int) -> list[Fault]:
    """Return a random schedule: on average one fault in `every_ns`."""
    rng = random.Random(f"{seed}/schedule")
    kinds = list(KINDS)
    found = []
    at = 10 * NS_PER_S
    while at < until_ns:
        at += int(rng.expovariate(1.0) * every_ns) + NS_PER_MS
        # Short ones find races, long ones outlast leases and time-outs.
        lasts_ns = rng.choice((rng.randrange(1, NS_PER_S), rng.randrange(NS_PER_S, MAX_FREEZE_S * NS_PER_S)))
        found.append(Fault(at, rng.choice(kinds), rng.randrange(hosts), min(lasts_ns, max(1, until_ns - at))))
    return [fault for fault in found if fault.at_ns < until_ns]


def apply(cluster: Cluster, fault: Fault) -> None:
    """Do it."""
    host = cluster.hosts[fault.host]
    cluster.world.note(f"--- {fault.kind} on {host.name} for {fault.lasts_ns / NS_PER_S:.3f} s")
    cluster.invariants.fault(fault)
    KINDS[fault.kind](cluster, host, fault.lasts_ns)
