"""An agent that could not listen: its own fault, never its components'; and no excuse for a lease."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node_manager.runtime.clock import boottime_ns
from tests.integration.host import Host, wait_until

S = 1_000_000_000
SILENT_S = 3.0
"""Three intervals of the reference components: one that is late by so much is silent."""


@contextmanager
def stopped(*pids: int, for_s: float) -> Iterator[None]:
    """Stop processes, for the block and until so much time has passed."""
    until_ns = boottime_ns() + round(for_s * S)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        wait_until(lambda: _is_stopped(pid), f"{pid} is stopped")  # noqa: B023 - used in this round of the loop
    try:
        yield
        wait_until(lambda: boottime_ns() >= until_ns, "time passes")
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def agent_pid(host: Host) -> int:
    assert host.agent is not None
    return host.agent.pid


def stalls_ms(host: Host) -> list[int]:
    return [event["duration_ms"] for event in host.events() if event["event"] == "agent.stalled"]


def kept_through(host: Host, pids: dict[str, int | None]) -> None:
    """Two beats later everybody is still there, and nobody was ever restarted or called silent."""
    beats_ns = boottime_ns() + 2 * S
    wait_until(lambda: boottime_ns() >= beats_ns and host.status()["node"]["ready"], "it is ready")
    assert host.pids() == pids
    assert [item["restarts"] for item in host.status()["components"]] == [0] * len(pids)


def test_a_stopped_agent_kills_nobody_for_silence(host: Host) -> None:
    """SIGSTOP of the agent for longer than any component may be silent: measured, and nobody is restarted."""
    host.up()
    pids = host.pids()
    with stopped(agent_pid(host), for_s=2 * SILENT_S):
        pass
    kept_through(host, pids)
    assert max(stalls_ms(host)) >= (2 * SILENT_S - 1.5) * 1000


def test_a_frozen_host_kills_nobody_for_silence(host: Host) -> None:
    """Agent and components stand still together, as in a suspend: whoever is heard again is left alone."""
    host.up()
    pids = host.pids()
    with stopped(agent_pid(host), *(pid for pid in pids.values() if pid), for_s=2 * SILENT_S):
        pass
    kept_through(host, pids)
    assert len(stalls_ms(host)) == 1


def test_a_stall_is_no_excuse_for_a_lease(host: Host) -> None:
    """The controller stands still with the agent beyond the lease: the scheduler of that term is not kept."""
    host.up()
    pids = host.pids()
    term, controller, scheduler = host.status()["facts"][0]["term"], pids["controller"], pids["scheduler"]
    assert controller is not None
    assert scheduler is not None
    until_ns = host.status()["facts"][0]["valid_until_ns"]
    with stopped(agent_pid(host), controller, for_s=SILENT_S):
        wait_until(lambda: boottime_ns() > until_ns, "the lease is over")
    wait_until(lambda: host.pids()["scheduler"] not in {scheduler, None}, "a new scheduler")
    worked_ns = [at_ns for of, at_ns in host.trace() if of == term]
    assert max(worked_ns) < until_ns
