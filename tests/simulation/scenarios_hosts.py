"""Scenarios of a single host: adoption, holds, delays, stops, drains, disks."""

from __future__ import annotations

from typing import cast

from node_manager.core.durable import DurableFacts
from node_manager.core.events import Exited, ExitStatus, HostState, Notified, Outcome, ProbeDone, Verb
from node_manager.core.intent import Rule
from node_manager.core.ladder import MAX_EXTENSION_NS
from node_manager.core.spec import ProbeKind
from node_manager.core.states import State
from tests.simulation.host import EMPTY, Host
from tests.simulation.processes import SIGKILL, Process
from tests.simulation.scenarios_stage import Stage
from tests.simulation.world import NS_PER_S

FIRST_DELAY_S = 0.1 * 1.5 + 1.0
"""The first delay with its jitter, and the longest start of a program in the model."""


def pid_of_a_stranger(stage: Stage, _: object) -> None:
    """1: the pid that the record names belongs to a stranger by now."""
    host = stage.host
    host.kill_agent(5 * NS_PER_S)
    old = stage.kill(host, "worker")
    stage.run(1)
    stranger = host.new_process(None)
    del host.processes[stranger.pid]
    stranger.pid = old.pid
    host.processes[old.pid] = stranger
    before = len(stage.watching.signals)
    stage.until("the worker runs", lambda: stage.is_up(host, "worker"), 30)
    stage.run(60)
    stage.expect("the stranger lives", stranger.alive and not stranger.killed)
    stage.expect("nobody was signalled", len(stage.watching.signals) == before)
    stage.expect("the worker is another process", stage.main(host, "worker").pid != old.pid)


def adopted(stage: Stage, lost: object) -> None:
    """2 and 3: the agent is killed, with or without its record: the same processes, unsignalled, once each."""
    jobs = _jobs(stage, stage.cluster.hosts[-1], 1)
    before = stage.pids()
    for host in stage.cluster.hosts:
        host.kill_agent(3 * NS_PER_S)
        if lost:
            host.record = EMPTY
    stage.run(60)
    after = stage.pids()
    if lost:
        # Only the record says how long a lease still holds: without it a scheduler's ends with its start's.
        before = {key: pids for key, pids in before.items() if key[1] != "scheduler"}
        stage.expect("one scheduler runs", stage.is_up(stage.leader(), "scheduler"))
    for (host_name, component), pids in before.items():
        stage.expect(f"{component} on {host_name} is the same", pids == after[(host_name, component)])
    stage.expect("no job was killed", not any(job.killed for job in jobs))
    signalled = {name for name, _ in stage.watching.signals}
    stage.expect("nobody was signalled", signalled <= ({"scheduler"} if lost else set()))
    for host in stage.cluster.hosts:
        for spec in host.spec.components:
            known = stage.is_up(host, spec.name) or not host.mains(spec.name)
            stage.expect(f"{spec.name} on {host.name} is known", known)


def decommissioned_for_good(stage: Stage, variant: object) -> None:
    """4: the agent is killed, or the host loses power, at some instant of a decommission."""
    delay_ms, reboot = cast("tuple[int, bool]", variant)
    host = stage.host
    jobs = _jobs(stage, host, 1)
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


def finished_work(stage: Stage, _: object) -> None:
    """4: an exit status that the role calls final holds over the agent's death."""
    host = stage.host
    stage.main(host, "worker").die(ExitStatus(code=78))
    stage.run(5)
    stage.expect("it is held", stage.state(host, "worker").state is State.EXITED)
    host.kill_agent(NS_PER_S)
    stage.run(60)
    stage.expect("it is still held", not host.mains("worker"))
    stage.say(host, Verb.START, "worker")
    stage.until("an operator's start works", lambda: stage.is_up(host, "worker"), 5)


def last_word_holds(stage: Stage, variant: object) -> None:
    """7: a stop, then a start, at some instant of a restart, with the agent killed behind them or not."""
    delay_ms, agent_dies = cast("tuple[int, bool]", variant)
    host = stage.host
    for verb in (Verb.STOP, Verb.START):
        if verb is Verb.STOP:
            stage.kill(host, "worker")
            stage.run(delay_ms / 1000)
        else:
            stage.say(host, Verb.START, "worker")
            stage.run(delay_ms / 1000)
            stage.say(host, Verb.STOP, "worker")
            stage.run(delay_ms / 1000)
        answer = stage.say(host, verb, "worker")
        stage.run(0.1)
        stage.expect(f"the {verb.value} was acknowledged", answer.ok)
        if agent_dies:
            host.kill_agent(NS_PER_S)
        stage.run(90)
        if verb is Verb.STOP:
            stage.expect("the stop holds", stage.is_down(host, "worker", Rule.OPERATOR_HOLD))
        else:
            stage.expect("the start holds", stage.is_up(host, "worker"))


def backoff_forgets(stage: Stage, _: object) -> None:
    """8: five crashes, a stable run, a crash: the first delay again."""
    host = stage.host
    delays = []
    for _crash in range(5):
        delays.append(_start_after_kill(stage, host))
        stage.run(1)
    stage.expect(f"the delay grows: {delays}", delays[-1] > 2 * delays[1] > 0)
    stage.run(90)
    took_s = _start_after_kill(stage, host)
    stage.expect(f"the first delay counts again, not {took_s} s", took_s < delays[-1] / 2 and took_s < FIRST_DELAY_S)


def _start_after_kill(stage: Stage, host: Host) -> float:
    """Kill the worker; return after how many seconds the next one was started, its own death included."""
    old = stage.kill(host, "worker")
    return stage.until("it is started again", lambda: [item for item in host.mains("worker") if item is not old], 60)


def manual_start(stage: Stage, _: object) -> None:
    """8: in the middle of a long delay, an operator's start works at once."""
    host = stage.host
    host.crash_loop = True
    stage.kill(host, "worker")
    stage.run(60)
    stage.until("it waits", lambda: stage.state(host, "worker").state is State.BACKOFF, 60)
    host.crash_loop = False
    stage.say(host, Verb.START, "worker")
    took_s = stage.until("it is started", lambda: host.mains("worker"), 60)
    stage.expect(f"at once, not after {took_s} s", took_s < 0.2)


def grandchild(stage: Stage, component: object) -> None:
    """10: what a dead component left: cleared before the next start under `tree`, left alone under `process`."""
    assert isinstance(component, str)
    host = next(host for host in stage.cluster.hosts if host.mains(component))
    main = stage.main(host, component)
    child = host.new_process(None, parent=main)
    child.job = component == "worker"
    stage.kill(host, component)
    stage.until("another runs", lambda: main not in host.mains(component) and stage.is_up(host, component), 90)
    stage.expect("its grandchild had its due", child.alive is (component == "worker"))


def sigterm_ignored(stage: Stage, _: object) -> None:
    """11: SIGKILL comes on time."""
    host = stage.host
    stage.cluster.faults.ignore_term = 1.0
    main = stage.main(host, "worker")
    stage.say(host, Verb.STOP, "worker")
    took_s = stage.until("it is dead", lambda: not main.alive, 60)
    stage.expect(f"after its stop time-out, not {took_s} s", 5.0 <= took_s < 5.2)
    stage.run(1)
    stage.expect("it is stopped", stage.is_down(host, "worker", Rule.OPERATOR_HOLD))


def uninterruptible(stage: Stage, _: object) -> None:
    """11: not even SIGKILL ends it: reported as such, nothing is started over it, and the rest goes on."""
    host = stage.host
    main = stage.main(host, "controller")
    main.uninterruptible = True
    stage.say(host, Verb.RESTART, "controller")
    stage.run(120)
    state = stage.state(host, "controller")
    stage.expect(f"it is named: {state.reason}", state.state is State.KILLING and "unkillable" in state.reason)
    stage.expect("nothing is started over it", stage.main(host, "controller") is main)
    answer = stage.say(host, Verb.STOP, "scheduler")
    stage.run(1)
    stage.expect("the agent obeys", answer.ok)
    stage.say(host, Verb.START, "scheduler")
    main.wake_up()
    stage.until("it runs again", lambda: stage.is_up(host, "controller"), 60)


def stop_extended(stage: Stage, _: object) -> None:
    """11: slow but progressing: EXTEND_TIMEOUT_USEC gives it time, up to a bound."""
    host = stage.host
    stage.cluster.faults.ignore_term = 1.0
    main = stage.main(host, "worker")
    stage.say(host, Verb.STOP, "worker")
    took_s = 0.0
    while main.alive and took_s < 2 * MAX_EXTENSION_NS / NS_PER_S:
        stage.tell(host, Notified(component="worker", generation=main.generation, extend_ns=20 * NS_PER_S))
        stage.run(4)
        took_s += 4
        if took_s == 60:
            stage.expect("it has more time", main.alive)
    bound_s = MAX_EXTENSION_NS / NS_PER_S
    stage.expect(f"it ends at the bound, not after {took_s} s", bound_s / 2 <= took_s <= bound_s + 15)


def drained_when_done(stage: Stage, _: object) -> None:
    """16: drained means that the worker said so or left: not before its jobs have ended."""
    host = stage.host
    jobs = _jobs(stage, host, 2)
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
    (job,) = _jobs(stage, host, 1, endless=True)
    stage.say(host, Verb.DRAIN, deadline_s=60)
    took_s = stage.until("it is over", lambda: stage.agent(host).state.drain_expired, 70)
    stage.expect(f"a reserve was kept: {60 - took_s} s", 4 <= 60 - took_s <= 6)
    stage.run(120)
    stage.expect("the job runs on", job.alive and not job.killed)


def crash_in_a_drain(stage: Stage, _: object) -> None:
    """16: a worker that crashes during a drain comes back, for its jobs need it, and drains on."""
    host = stage.host
    (job,) = _jobs(stage, host, 1, endless=True)
    stage.say(host, Verb.DRAIN)
    stage.run(5)
    stage.kill(host, "worker")
    stage.run(20)
    stage.expect("it runs again", stage.is_up(host, "worker"))
    stage.expect("it drains on", stage.agent(host).state.host_state is HostState.DRAINING)
    job.die(ExitStatus(code=0))
    stage.until("it is drained", lambda: stage.agent(host).state.host_state is HostState.DRAINED, 60)


def one_bad_observation(stage: Stage, what: object) -> None:
    """18: nothing final follows from a single probe, message without epoch, or message of an older epoch."""
    host = stage.host
    before = stage.pids()
    main = stage.main(host, "worker")
    if what == "probe":
        for probe in (ProbeKind.LIVENESS, ProbeKind.READINESS, ProbeKind.STARTUP):
            for outcome in (Outcome.FAILED, Outcome.UNKNOWN):
                stage.tell(
                    host,
                    ProbeDone(component="worker", generation=main.generation, probe=probe, outcome=outcome),
                )
    elif what == "no epoch":
        stage.beat(host, "worker", host_state=HostState.DECOMMISSIONED)
    else:
        stage.beat(host, "worker", host_state=HostState.DECOMMISSIONED, epoch=0)
    stage.run(120)
    stage.expect("the host is active", stage.agent(host).state.host_state is HostState.ACTIVE)
    stage.expect("the worker is untouched", stage.pids() == before)
    stage.expect("nobody was signalled", stage.watching.signals == [])


def hot_restart_loop(stage: Stage, _: object) -> None:
    """19: what dies at birth is started ever more rarely, and comes back soon after its trouble has passed."""
    host = stage.host
    host.crash_loop = True
    first = stage.kill(host, "worker").generation
    stage.run(1800)
    starts = stage.state(host, "worker").generation - first
    stage.expect(f"about one start in 30 s, not {starts} in 1800", 30 <= starts <= 1800 / 30 * 1.5 + 10)
    host.crash_loop = False
    stage.until("it comes back", lambda: stage.is_up(host, "worker"), 50)


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


def out_of_memory(stage: Stage, _: object) -> None:
    """24: an OOM kill is named as such, and what was killed is started again."""
    host = stage.host
    main = stage.main(host, "worker")
    main.alive = False
    stage.tell(
        host,
        Exited(component="worker", generation=main.generation, status=ExitStatus(signal=SIGKILL), left=0, oom=True),
    )
    stage.run(0.01)
    stage.expect("it is named", "out of memory" in (stage.state(host, "worker").last_exit or ""))
    stage.until("it runs again", lambda: stage.is_up(host, "worker"), 30)


def wrong_configuration(stage: Stage, agent_dies: object) -> None:
    """15: a wrong configuration, also at the agent's start, leaves what runs alone and is taken up once it is right."""
    before = stage.pids()
    for host in stage.cluster.hosts:
        host.config_broken = True
        if agent_dies:
            host.kill_agent(NS_PER_S)
        else:
            stage.agent(host).reload()
    stage.run(60)
    stage.expect("the same processes run", stage.pids() == before)
    for host in stage.cluster.hosts:
        stage.expect("the error is shown", stage.agent(host).state.config_error is not None)
        host.config_broken = False
        stage.agent(host).reload()
    stage.run(1)
    stage.expect("the same processes run", stage.pids() == before)
    stage.expect("the error is gone", all(stage.agent(host).state.config_error is None for host in stage.cluster.hosts))


def _jobs(stage: Stage, host: Host, count: int, *, endless: bool = False) -> list[Process]:
    """Wait for jobs of users, or have some that do not end by themselves."""
    if endless:
        worker = stage.main(host, "worker")
        return [host.spawn_job(worker) for _ in range(count)]
    stage.until(f"{count} jobs run", lambda: len(host.jobs()) >= count, 600)
    return host.jobs()
