"""Scenarios of a host on its way out of the cluster and back: decommissions, drains, and what a disk does to both."""

from __future__ import annotations

from typing import cast

from node_manager.core.durable import DurableFacts
from node_manager.core.events import ExitStatus, HostState, Verb
from node_manager.core.intent import Rule
from tests.simulation.processes import SIGKILL
from tests.simulation.scenarios_stage import Stage
from tests.simulation.world import NS_PER_S


def decommissioned_for_good(stage: Stage, variant: object) -> None:
    """4: the agent is killed, or the host loses power, at some instant of a decommission."""
    delay_ms, reboot = cast("tuple[int, bool]", variant)
    host = stage.host
    jobs = stage.jobs(host, 1)
    answer = stage.say(host, Verb.DECOMMISSION)
    stage.run(delay_ms / 1000)
    if reboot:
        host.reboot()
    else:
        host.kill_agent(NS_PER_S)
    stage.run(120)
    if delay_ms >= 500:
        stage.expect("it was acknowledged", answer.ok)
    if answer.ok:
        stage.expect("the worker is down", stage.is_down(host, "worker", Rule.DECOMMISSIONED))
        refused = stage.say(host, Verb.START, "worker")
        stage.run(1)
        stage.expect("a start is refused", refused.ok is False)
    if not reboot:
        stage.expect("no job was touched", not any(job.killed for job in jobs))


def decommissioned_by_the_controller(stage: Stage, cut_short: object) -> None:
    """4: what the controller decided latches, by the worker's word or by its exit status alone."""
    host = stage.host
    stage.cluster.decide(host, "decommissioned")
    if cut_short:
        # The worker gets no word out any more, but for the one that it said earlier in this run.
        stage.cluster.faults.lose_beat = 1.0
    stage.until("the worker is down", lambda: not host.mains("worker"), 30)
    stage.cluster.faults.lose_beat = 0.0
    stage.run(5)
    stage.expect("by the latch", stage.is_down(host, "worker", Rule.DECOMMISSIONED))
    host.kill_agent(NS_PER_S)
    stage.run(30)
    stage.expect("over the agent's death", stage.is_down(host, "worker", Rule.DECOMMISSIONED))
    host.reboot()
    stage.run(120)
    stage.expect("over a reboot", stage.is_down(host, "worker", Rule.DECOMMISSIONED))


def taken_back(stage: Stage, _: object) -> None:
    """4: two latches are kept apart, and `recommission` releases both up to the epoch seen, not beyond."""
    host = stage.host
    stage.jobs(host, 1, endless=True)
    stage.say(host, Verb.DRAIN)
    stage.run(10)
    stage.cluster.decide(host, "active")
    stage.run(30)
    drains = stage.agent(host).state.host_state is HostState.DRAINING
    stage.expect("the controller does not lift an operator's latch", drains)
    stage.say(host, Verb.DECOMMISSION)
    stage.run(10)
    stage.say(host, Verb.RECOMMISSION)
    stage.until("an operator does", lambda: stage.is_up(host, "worker"), 30)
    stage.run(20)
    stage.cluster.decide(host, "decommissioned")
    stage.until("the controller's latch", lambda: stage.is_down(host, "worker", Rule.DECOMMISSIONED), 30)
    stage.say(host, Verb.RECOMMISSION)
    stage.run(60)
    # The controller has not changed its mind: it refuses the worker, and that is all.
    stage.expect("an epoch that was released does not latch", stage.is_down(host, "worker", Rule.EXIT_HOLD))
    stage.cluster.decide(host, "active")
    stage.say(host, Verb.START, "worker")
    stage.until("it is taken back", lambda: stage.is_up(host, "worker"), 30)
    stage.run(20)
    stage.cluster.decide(host, "decommissioned")
    stage.until("a higher epoch latches", lambda: stage.is_down(host, "worker", Rule.DECOMMISSIONED), 30)


def drained_when_done(stage: Stage, _: object) -> None:
    """16: drained means that the worker said so or left: not before its jobs have ended."""
    host = stage.host
    jobs = stage.jobs(host, 2)
    stage.say(host, Verb.DRAIN)
    while any(job.alive for job in jobs):
        stage.run(1)
        lives = any(job.alive for job in host.jobs())
        drained = stage.agent(host).state.host_state is HostState.DRAINED
        stage.expect("it is not drained while a job runs", not (lives and drained))
    stage.expect("no job was killed", not any(job.killed for job in jobs))
    stage.until("it is drained", lambda: stage.agent(host).state.host_state is HostState.DRAINED, 60)
    stage.until("the worker is down", lambda: stage.is_down(host, "worker", Rule.DRAINED), 30)
    stage.say(host, Verb.UNDRAIN)
    stage.until("undrain brings it back", lambda: stage.is_up(host, "worker"), 30)


def drain_deadline(stage: Stage, _: object) -> None:
    """16: at a drain's deadline jobs are left alone, and time was kept for the last report."""
    host = stage.host
    (job,) = stage.jobs(host, 1, endless=True)
    stage.say(host, Verb.DRAIN, deadline_s=60)
    took_s = stage.until("it is over", lambda: stage.agent(host).state.drain_expired, 70)
    stage.expect(f"a reserve was kept: {60 - took_s} s", 4 <= 60 - took_s <= 6)
    stage.run(120)
    stage.expect("the job runs on", job.alive and not job.killed)


CRASHES = (ExitStatus(signal=SIGKILL), ExitStatus(code=1), ExitStatus(code=0))
"""Ways to end while jobs run on: none of them says that the drain is complete."""


def crash_in_a_drain(stage: Stage, status: object) -> None:
    """16: a worker that ends during a drain comes back while it has jobs, for they need it, and drains on."""
    assert isinstance(status, ExitStatus)
    host = stage.host
    (job,) = stage.jobs(host, 1, endless=True)
    stage.run(10)
    stage.say(host, Verb.DRAIN)
    stage.run(5)
    stage.main(host, "worker").die(status)
    stage.run(20)
    stage.expect("it runs again", stage.is_up(host, "worker"))
    stage.expect("it drains on", stage.agent(host).state.host_state is HostState.DRAINING)
    job.die(ExitStatus(code=0))
    stage.until("it is drained", lambda: stage.agent(host).state.host_state is HostState.DRAINED, 60)


def unreadable(stage: Stage, _: object) -> None:
    """23: an unreadable latch file holds what it could forbid, until an operator decides; the rest runs."""
    for host in stage.cluster.hosts:
        host.disk.unreadable = True
        host.reboot()
    stage.run(180)
    manager, worker = stage.cluster.hosts
    stage.expect("the controller runs", stage.is_up(manager, "controller"))
    stage.expect("the worker is held", stage.is_down(worker, "worker", Rule.DECOMMISSIONED))
    stage.say(worker, Verb.RECOMMISSION)
    stage.until("an operator's word releases it", lambda: stage.is_up(worker, "worker"), 30)


def disk_full(stage: Stage, _: object) -> None:
    """23: with a full disk a decommission acts at once, and is acknowledged when it is durable."""
    host = stage.host
    host.disk.full = True
    answer = stage.say(host, Verb.DECOMMISSION)
    stage.until("it acts at once", lambda: stage.is_down(host, "worker", Rule.DECOMMISSIONED), 6)
    stage.run(60)
    stage.expect("it is not acknowledged", answer.ok is None)
    stage.expect("the trouble is shown", stage.agent(host).state.writeback.error is not None)
    host.disk.full = False
    stage.until("then it is", lambda: answer.ok, 60)
    host.kill_agent(NS_PER_S)
    stage.run(60)
    stage.expect("it holds", stage.is_down(host, "worker", Rule.DECOMMISSIONED))


def absent(stage: Stage, _: object) -> None:
    """23: no state file at all is a new host, not a doubt."""
    host = stage.host
    host.disk.facts = DurableFacts() if host.disk.facts is None else None
    host.reboot()
    stage.until("the worker runs", lambda: stage.is_up(host, "worker"), 120)
