"""Scenarios about leadership: who runs the scheduler when leaders pause, lie, fall silent, step down or come back."""

from __future__ import annotations

from node_manager.core.events import HeartbeatClosed, Leadership, WallClock
from node_manager.core.intent import Rule
from node_manager.core.spec import LEASE_MARGIN_NS, stop_budget_ns
from tests.simulation.cluster import LEASE_TTL_NS
from tests.simulation.host import Host, How, Trap
from tests.simulation.processes import Process
from tests.simulation.scenarios_stage import Stage
from tests.simulation.world import NS_PER_S

PAUSE_S = 90.0
"""Longer than three leases."""
STOP_S = 5.5
"""From standby until a scheduler that ignores SIGTERM is dead: its stop time-out, and a moment."""
TAKEOVER_S = LEASE_TTL_NS / NS_PER_S + 20.0
"""From the last renewal until another host's scheduler runs: the lease, a round of requests, a start."""


def paused_leader(stage: Stage, what: object) -> None:
    """5: the leader stands still beyond its lease: its scheduler is dead before the lease ends, another takes over."""
    host = stage.leader()
    old = stage.main(host, "scheduler")
    frozen: list[Process] = []
    if what in {"agent", "agent and controller", "agent, and the controller killed"}:
        host.freeze_agent(True)
    if what in {"controller", "agent and controller"}:
        frozen = [stage.main(host, "controller")]
        stage.freeze(frozen[0], frozen=True)
    if what in {"agent", "agent, and the controller killed"}:
        stage.kill(host, "controller")
    if what == "host":
        host.suspend(True)
    stage.until("its scheduler is dead, or suspended", lambda: not old.alive or host.suspended, PAUSE_S)
    store = stage.cluster.store
    stage.expect("before the lease ended", store.holder == host.name and stage.now_ns < store.expires_ns)
    stage.until("another host's scheduler runs", lambda: _schedulers(stage), TAKEOVER_S)
    stage.expect("on another host", stage.leader() is not host)
    new = stage.main(stage.leader(), "scheduler")
    stage.run(PAUSE_S)
    if what == "host":
        host.suspend(False)
    elif host.agent_frozen:
        host.freeze_agent(False)
    for process in frozen:
        stage.freeze(process, frozen=False)
    stage.run(PAUSE_S)
    stage.expect("who wakes changes nothing", new.alive and stage.main(stage.leader(), "scheduler") is new)


def leader_cut_off(stage: Stage, late_s: object) -> None:
    """5: a leader cannot renew: its agent, not the fuse, ends a scheduler that ignores SIGTERM, also from a late start.

    `late_s`: the agent stands still until so long before the lease's end.
    """
    assert isinstance(late_s, float)
    stage.cluster.faults.ignore_term = 1.0
    host = stage.leader()
    old = stage.main(host, "scheduler")
    stage.cluster.cut.add(host.name)
    stage.run(7)
    valid_until_ns = stage.valid_until_ns(host)
    if late_s:
        host.freeze_agent(True)
        stage.run((valid_until_ns - host.clock()) / NS_PER_S - late_s)
        host.freeze_agent(False)
    stage.until("its scheduler is dead", lambda: not old.alive, PAUSE_S)
    left_s = (valid_until_ns - host.clock()) / NS_PER_S
    stage.expect(f"before the fuse, {left_s:.2f} s before the end", left_s > 2 * LEASE_MARGIN_NS / NS_PER_S)
    stage.until("another host's scheduler runs", lambda: _schedulers(stage), TAKEOVER_S)


def late_child(stage: Stage, point: object) -> None:
    """5: a start that was decided within the lease and is carried out long after it: the command is not executed."""
    assert isinstance(point, str)
    host = stage.leader()
    old, controller = stage.main(host, "scheduler"), stage.main(host, "controller")
    host.traps[point] = Trap(How.STOP, int(PAUSE_S * NS_PER_S))
    stage.kill(host, "scheduler")
    stage.until("it is gone", lambda: not old.alive, 1)
    stage.run(0.02)
    host.freeze_agent(True)
    stage.freeze(controller, frozen=True)
    stage.until("another host's scheduler runs", lambda: _schedulers(stage), TAKEOVER_S)
    new = stage.main(stage.leader(), "scheduler")
    stage.run(PAUSE_S)
    stage.expect("the child waited in vain", not host.traps and not host.mains("scheduler"))
    host.freeze_agent(False)
    stage.freeze(controller, frozen=False)
    stage.run(PAUSE_S)
    stage.expect("who wakes changes nothing", stage.main(stage.leader(), "scheduler") is new)


def wall_clock_set(stage: Stage, by_s: object) -> None:
    """5: the wall clock is set by an hour, on or back: nothing changes."""
    assert isinstance(by_s, int)
    before = stage.pids()
    for host in stage.cluster.hosts:
        host.wall_offset_ns += by_s * NS_PER_S
        stage.tell(host, WallClock(offset_ns=host.wall_offset_ns))
    stage.run(300)
    stage.expect("the same processes run", stage.pids() == before)
    stage.expect("nobody was signalled", stage.watching.signals == [])


def unknown(stage: Stage, said: object) -> None:
    """6: silence, close, garbage: all the same unknown, which keeps what was stated until its end and no longer."""
    host = stage.host
    controller = stage.main(host, "controller")
    scheduler = stage.main(host, "scheduler")
    stage.run(3)
    term = stage.controller(host).term
    stage.freeze(controller, frozen=True)
    valid_until_ns = stage.valid_until_ns(host)
    while scheduler.alive and host.clock() < valid_until_ns + PAUSE_S * NS_PER_S:
        now = host.clock()
        match said:
            case "close":
                stage.tell(host, HeartbeatClosed(component="controller", generation=controller.generation))
            case "no term":
                stage.beat(host, "controller", leadership=Leadership.PRIMARY, valid_until_ns=now + 30 * NS_PER_S)
            case "no end":
                stage.beat(host, "controller", leadership=Leadership.PRIMARY, term=term)
            case "a lower term":
                lower = {"term": term - 1, "valid_until_ns": now + 30 * NS_PER_S}
                stage.beat(host, "controller", leadership=Leadership.PRIMARY, **lower)
            case "beyond any lease":
                absurd = {"term": term, "valid_until_ns": now + 3600 * NS_PER_S}
                stage.beat(host, "controller", leadership=Leadership.PRIMARY, **absurd)
            case "nothing about it":
                stage.beat(host, "controller", beat=7)
            case _:
                stage.expect("silence", said == "silence")
        stage.run(0.5)
    stage.expect("what was stated holds to its end", stage.valid_until_ns(host) == valid_until_ns)
    budget_ns = stop_budget_ns(stage.agent(host).state.members["scheduler"].spec)
    left_s = (valid_until_ns - host.clock()) / NS_PER_S
    stage.expect(
        f"the scheduler ends in its time, {left_s:.1f} s before the end",
        LEASE_MARGIN_NS / NS_PER_S < left_s <= budget_ns / NS_PER_S,
    )
    stage.run(1)
    stage.expect("and stays down", stage.is_down(host, "scheduler", Rule.CONDITION))
    stage.freeze(controller, frozen=False)
    stage.until("it is back with its authority", lambda: stage.is_up(host, "scheduler"), 60)


def authority_comes_back(stage: Stage, _: object) -> None:
    """6: an authority that exits and comes back inside its lease changes nothing."""
    host = stage.host
    scheduler = stage.main(host, "scheduler")
    stage.run(1)
    stage.kill(host, "controller")
    stage.run(60)
    stage.expect("the controller is back", stage.is_up(host, "controller"))
    stage.expect("the same scheduler runs", scheduler.alive and stage.main(host, "scheduler") is scheduler)


def everything_stands_still(stage: Stage, how: object) -> None:
    """13: host or agent and components stopped for 90 s: no kill for silence, but a lease is lost."""
    before = stage.pids()
    stopped: list[Process] = []
    schedulers = _schedulers(stage)
    for host in stage.cluster.hosts:
        if how == "suspended":
            host.suspend(True)
            continue
        host.freeze_agent(True)
        stopped += [process for process in host.processes.values() if process.component is not None]
    for process in stopped:
        stage.freeze(process, frozen=True)
    stage.run(PAUSE_S)
    suspended = any(host.suspended for host in stage.cluster.hosts)
    stage.expect("no scheduler outlives its lease", suspended or not any(old.alive for old in schedulers))
    for host in stage.cluster.hosts:
        if how == "suspended":
            host.suspend(False)
        else:
            host.freeze_agent(False)
    for process in stopped:
        stage.freeze(process, frozen=False)
    stage.until("a scheduler runs again", lambda: _schedulers(stage), 120)
    stage.run(60)
    after = stage.pids()
    for (host_name, component), pids in before.items():
        if component != "scheduler":
            stage.expect(f"{component} on {host_name} was left alone", pids == after[(host_name, component)])
    stage.expect("nobody was signalled", not [name for name, _ in stage.watching.signals if name != "scheduler"])


def no_controller_for_an_hour(stage: Stage, how: object) -> None:
    """17: no controller can be reached for an hour: workers and their jobs go on, and nothing is done to a host."""
    workers = [host for host in stage.cluster.hosts if host.name.startswith("w")]
    managers = [host for host in stage.cluster.hosts if host not in workers]
    before = {host.name: stage.main(host, "worker") for host in workers}
    if how == "cut off":
        stage.cluster.cut.update(host.name for host in managers)
        stage.cluster.cut.add("store")
    else:
        for host in managers:
            host.suspend(True)
    stage.run(3600)
    for host in workers:
        stage.expect("the same worker runs", stage.main(host, "worker") is before[host.name])
        stage.expect("nothing was decided", stage.agent(host).state.in_force.controller_latch is None)
        stage.expect("jobs run", host.jobs() or how != "cut off")
    stage.expect("no worker was signalled", "worker" not in {name for name, _ in stage.watching.signals})
    stage.cluster.cut.clear()
    for host in managers:
        if host.suspended:
            host.suspend(False)
    stage.until("one scheduler runs again", lambda: len(_schedulers(stage)) == 1, 120)


def idle_scheduler(stage: Stage, _: object) -> None:
    """20: an idle scheduler that beats lives for ever; one that has stopped beating is ended and started again."""
    host = stage.host
    scheduler = stage.main(host, "scheduler")
    stage.run(2 * 3600)
    stage.expect("the same scheduler runs", stage.main(host, "scheduler") is scheduler)
    assert scheduler.program is not None
    scheduler.program.hang()
    stage.until("the silent one is ended", lambda: not scheduler.alive, 60)
    stage.until("another is started", lambda: stage.is_up(host, "scheduler"), 60)


def promoted_in_a_stop(stage: Stage, delay_s: object) -> None:
    """21: standby, then primary under a new term, at some instant of the stop: one scheduler, the newest term."""
    assert isinstance(delay_s, float)
    host = stage.host
    stage.cluster.faults.ignore_term = 1.0
    for _ in range(2):
        program = stage.controller(host)
        old = stage.main(host, "scheduler")
        before = program.term
        program.step_down()
        stage.run(delay_s)
        # This host is the only candidate: the store grants it a new term at its next request.
        stage.cluster.store.expires_ns = stage.now_ns
        program.stand()
        program.renew()
        stage.until(
            "a scheduler of the newest term runs",
            lambda before=before: [item for item in _schedulers(stage) if (item.term or 0) > before],  # type: ignore[misc]
            60,
        )
        stage.expect("it is the store's", stage.main(host, "scheduler").term == stage.cluster.store.term)
        stage.expect("the old one is gone", not old.alive)
        stage.run(2)


def new_term_while_primary(stage: Stage, _: object) -> None:
    """21: a new term with no standby between: the scheduler is started anew under it."""
    host = stage.host
    old, before = stage.main(host, "scheduler"), stage.cluster.store.term
    stage.cluster.store.expires_ns = stage.now_ns
    stage.controller(host).renew()
    stage.until("another runs", lambda: not old.alive and stage.is_up(host, "scheduler"), 30)
    stage.expect("under the new term", before < stage.cluster.store.term == stage.main(host, "scheduler").term)


def takeovers(stage: Stage, _: object) -> None:
    """21: leaders that step down one after the other, with nobody waiting for anybody: one scheduler after each."""
    stage.cluster.faults.ignore_term = 1.0
    for _round in range(4):
        host: Host = stage.leader()
        old, term = stage.main(host, "scheduler"), stage.cluster.store.term
        stage.controller(host).step_down()
        stage.until("the old one is gone", lambda old=old: not old.alive, STOP_S)  # type: ignore[misc]
        stage.until(
            "the next one's scheduler runs",
            lambda term=term: [item for item in _schedulers(stage) if (item.term or 0) > term],  # type: ignore[misc]
            2 * TAKEOVER_S,
        )
        stage.run(5)


def _schedulers(stage: Stage) -> list[Process]:
    acting = (host for host in stage.cluster.hosts if not host.suspended)
    return [process for host in acting for process in host.mains("scheduler")]
