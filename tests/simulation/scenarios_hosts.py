"""Scenarios of a single host: adoption, holds, delays, stops, probes, configurations."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from node_manager.core.events import Exited, ExitStatus, HostState, Notified, Outcome, ProbeDone, Spawned, Verb
from node_manager.core.intent import Rule
from node_manager.core.ladder import MAX_EXTENSION_NS
from node_manager.core.spec import ProbeKind, ProbeSpec, TcpCheck
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
    host.processes.pop(old.pid, None)  # reaped, whatever jobs it left
    host.stranger(old.pid)
    stranger = host.processes[old.pid]
    before = len(stage.watching.signals)
    stage.until("the worker runs", lambda: stage.is_up(host, "worker"), 30)
    stage.run(60)
    stage.expect("the stranger lives", stranger.alive and not stranger.killed)
    stage.expect("nobody was signalled", len(stage.watching.signals) == before)
    stage.expect("the worker is another process", stage.main(host, "worker").pid != old.pid)


def adopted(stage: Stage, how: object) -> None:
    """2, 3: killed, with or without its record, or replaced in place: the same processes, unsignalled, once each."""
    lost = how == "killed, its record lost"
    jobs = stage.jobs(stage.cluster.hosts[-1], 1)
    before = stage.pids()
    for host in stage.cluster.hosts:
        if how == "replaced":
            host.reexec_agent(NS_PER_S)
        else:
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


def killed_in_a_start(stage: Stage, component: object) -> None:
    """2: the agent is killed between its decision to start and exec: one instance, not two, and none left over."""
    assert isinstance(component, str)
    host = next(host for host in stage.cluster.hosts if host.mains(component))
    for _ in range(8):
        stage.cluster.faults.pause_in_spawn = 1.0
        old = stage.kill(host, component)
        stage.until("it is gone", lambda old=old: not old.alive, 1)  # type: ignore[misc]
        stage.run(0.01)
        host.kill_agent(NS_PER_S // 2)
        stage.cluster.faults.pause_in_spawn = 0.0
        stage.run(40)
        stage.until("it runs", lambda: stage.is_up(host, component), 40)


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


def stop_in_a_delay(stage: Stage, _: object) -> None:
    """7: a stop between two attempts holds, also over the agent's death, until a start."""
    host = stage.host
    host.crash_loop = True
    stage.kill(host, "worker")
    stage.run(20)
    stage.until("it waits", lambda: stage.state(host, "worker").state is State.BACKOFF, 60)
    answer = stage.say(host, Verb.STOP, "worker")
    stage.run(0.1)
    stage.expect("it was acknowledged", answer.ok)
    stage.expect("it is stopped", stage.is_down(host, "worker", Rule.OPERATOR_HOLD))
    host.crash_loop = False
    host.kill_agent(NS_PER_S)
    stage.run(60)
    stage.expect("it holds", stage.is_down(host, "worker", Rule.OPERATOR_HOLD))
    stage.say(host, Verb.START, "worker")
    stage.until("a start lifts it", lambda: stage.is_up(host, "worker"), 5)


def stop_in_a_slow_start(stage: Stage, _: object) -> None:
    """7: a stop between the decision to start and exec: the child never executes its command."""
    host = stage.host
    for _round in range(8):
        stage.cluster.faults.pause_in_spawn = 1.0
        old = stage.kill(host, "worker")
        stage.until("it is gone", lambda old=old: not old.alive, 1)  # type: ignore[misc]
        stage.run(0.01)
        generation = stage.state(host, "worker").generation
        stage.say(host, Verb.STOP, "worker")
        for _look in range(100):
            stage.run(0.6)
            late = [process for process in host.mains("worker") if process.generation == generation]
            stage.expect("no child came through", not late)
        stage.expect("it is stopped", stage.is_down(host, "worker", Rule.OPERATOR_HOLD))
        stage.cluster.faults.pause_in_spawn = 0.0
        stage.say(host, Verb.START, "worker")
        stage.until("a start works", lambda: stage.is_up(host, "worker"), 5)


def backoff_forgets(stage: Stage, _: object) -> None:
    """8: five crashes, a stable run, a crash: the first delay again."""
    host = stage.host
    delays = []
    for _crash in range(5):
        delays.append(_start_after_kill(stage, host))
        stage.run(1)
    stage.expect(f"the delay grows: {delays}", delays[-1] > 2 * delays[1] > 0)
    stage.run(90)
    stage.expect("it comes back at once", _start_after_kill(stage, host) < FIRST_DELAY_S)
    stage.run(1)
    took_s = _start_after_kill(stage, host)
    stage.expect(f"the first delay counts again, not {took_s} s", took_s < min(FIRST_DELAY_S, delays[-1] / 2))


def _start_after_kill(stage: Stage, host: Host) -> float:
    """Kill the worker; return after how many seconds the next one was started, its own death included."""
    old = stage.kill(host, "worker")
    return stage.until("it is started again", lambda: [item for item in host.mains("worker") if item is not old], 60)


def _waits_ns(stage: Stage, host: Host) -> int:
    """Return for how long the worker's delay lasts from now on."""
    state = stage.state(host, "worker")
    if state.state is not State.BACKOFF or state.deadline_ns is None:
        return 0
    return state.deadline_ns - host.clock()


def manual_start(stage: Stage, _: object) -> None:
    """8: in the middle of a long delay, an operator's start works at once."""
    host = stage.host
    host.crash_loop = True
    stage.kill(host, "worker")
    stage.run(60)
    stage.until("it waits for long", lambda: _waits_ns(stage, host) > 5 * NS_PER_S, 60)
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


def one_bad_observation(stage: Stage, what: object) -> None:
    """18: nothing final follows from a single probe, message without epoch, or message of an older epoch."""
    host = stage.host
    before = stage.pids()
    main = stage.main(host, "worker")
    if what == "no epoch":
        stage.beat(host, "worker", host_state=HostState.DECOMMISSIONED)
    elif what == "an older epoch":
        stage.beat(host, "worker", host_state=HostState.DECOMMISSIONED, epoch=0)
    else:
        older = main.generation - 1
        stage.tell(host, Exited(component="worker", generation=older, status=ExitStatus(code=79), left=0))
        stage.tell(host, Spawned(component="worker", generation=older, pid=1))
        for _ in range(5):
            stage.tell(
                host,
                ProbeDone(component="worker", generation=older, probe=ProbeKind.LIVENESS, outcome=Outcome.FAILED),
            )
    stage.run(120)
    stage.expect("the host is active", stage.agent(host).state.host_state is HostState.ACTIVE)
    stage.expect("the worker is untouched", stage.pids() == before)
    stage.expect("nobody was signalled", stage.watching.signals == [])


def one_failed_probe(stage: Stage, _: object) -> None:
    """18, 12: one failed probe restarts nothing, three in a row do, and after that they are counted anew."""
    host = stage.host
    (spec,) = host.wanted_spec.components
    probed = replace(spec, liveness=ProbeSpec(check=TcpCheck(port=7012), period_ns=3600 * NS_PER_S))
    host.wanted_spec = replace(host.wanted_spec, components=(probed,))
    stage.agent(host).reload()
    for _restart in range(2):
        main = stage.main(host, "worker")

        def answers(outcome: Outcome, main: Process = main) -> None:
            for _answer in range(2):
                stage.run(1)
                stage.tell(
                    host,
                    ProbeDone(
                        component="worker", generation=main.generation, probe=ProbeKind.LIVENESS, outcome=outcome
                    ),
                )

        answers(Outcome.FAILED)
        answers(Outcome.OK)
        answers(Outcome.FAILED)
        answers(Outcome.UNKNOWN)
        stage.run(10)
        stage.expect("it was left alone", stage.main(host, "worker") is main)
        answers(Outcome.FAILED)
        stage.run(10)
        stage.expect("it was restarted", stage.main(host, "worker") is not main)


def hot_restart_loop(stage: Stage, _: object) -> None:
    """19: what dies at birth is started ever more rarely, and comes back soon after its trouble has passed."""
    host = stage.host
    host.crash_loop = True
    first = stage.kill(host, "worker").generation
    stage.run(1800)
    starts = stage.state(host, "worker").generation - first
    # Ten until the delay is at its cap of 30 s, of which jitter takes at most a fifth.
    stage.expect(f"about one start in 27 s, not {starts} in 1800", 60 <= starts <= 85)
    host.crash_loop = False
    stage.until("it comes back", lambda: stage.is_up(host, "worker"), 50)


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
