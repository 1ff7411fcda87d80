"""From the core's state to the runtime record and back."""

from dataclasses import replace

from node_manager.core import node as core
from node_manager.core.durable import DurableFacts
from node_manager.core.events import (
    Beat,
    Booted,
    ConfigLoaded,
    Exited,
    ExitStatus,
    Found,
    Leadership,
    PreStartDone,
    Spawned,
)
from node_manager.core.nodestate import NodeState
from node_manager.core.spec import (
    NS_PER_S,
    CommandSpec,
    ComponentSpec,
    ExitMeaning,
    HostSpec,
    KillScope,
    NodeSpec,
    StopSpec,
)
from node_manager.runtime.process import ProcessRecord
from node_manager.runtime.recording import Recorder

CONTROLLER = ComponentSpec(name="controller", role="m", command=("c",), states=("controller.primary",))
SCHEDULER = ComponentSpec(
    name="scheduler",
    role="m",
    command=("s",),
    run_while=("controller.primary",),
    restart_on_change=("controller.primary.term",),
    stop=StopSpec(timeout_ns=NS_PER_S, kill_scope=KillScope.TREE),
    exit_status=((78, ExitMeaning.HOLD),),
)
SPEC = NodeSpec(host=HostSpec(name="h"), roles=("m",), components=(CONTROLLER, SCHEDULER))


def running() -> NodeState:
    """Return a node whose controller is primary and whose scheduler runs under its lease."""
    state, now = NodeState(), 1000
    for event in (
        Booted(boot_id="b", facts=DurableFacts()),
        ConfigLoaded(spec=SPEC),
        Spawned(component="controller", generation=1, pid=10),
        Beat(
            component="controller",
            generation=1,
            hello=True,
            interval_ns=NS_PER_S,
            leadership=Leadership.PRIMARY,
            term=7,
            valid_until_ns=20 * NS_PER_S,
        ),
        Spawned(component="scheduler", generation=1, pid=11),
    ):
        now += 1000
        state, _ = core.step(state, event, now)
    return state


def processes(*names: str) -> tuple[ProcessRecord, ...]:
    return tuple(
        ProcessRecord(component=name, generation=1, pid=pid, start_ticks=99, started_ns=5)
        for name, pid in (("controller", 10), ("scheduler", 11))
        if name in names
    )


def test_a_successor_is_told_all_that_it_needs() -> None:
    """Process, generation, readiness, terms, lease, leased facts: an adopted scheduler keeps its right to run."""
    made = Recorder(boot_id="b", nonce="n", agent_pid=1).record(running(), processes("controller", "scheduler"))
    found = {kept.found.component: kept.found for kept in made.processes}
    assert found["scheduler"].terms == (("controller.primary", 7),)
    assert found["scheduler"].lease_until_ns == 20 * NS_PER_S
    assert found["scheduler"].ready is True
    assert found["scheduler"].stop_tree is True
    assert found["controller"].interval_ns == NS_PER_S
    assert [(lease.fact, lease.term, lease.valid_until_ns) for lease in made.leases] == [
        ("controller.primary", 7, 20 * NS_PER_S)
    ]
    assert made.highest_terms == (("controller.primary", 7),)
    # The successor itself: nothing is started, nothing is stopped.
    state, _ = core.step(
        NodeState(),
        Booted(boot_id="b", facts=DurableFacts(), leases=made.leases, highest_terms=made.highest_terms),
        NS_PER_S,
    )
    state, actions = core.step(state, ConfigLoaded(spec=SPEC, found=tuple(found.values())), NS_PER_S)
    assert {type(action).__name__ for action in actions} <= {"Log", "SendLevels"}
    assert {name: member.state.generation for name, member in state.members.items()} == {
        "controller": 1,
        "scheduler": 1,
    }


def test_a_process_that_the_core_has_not_heard_of_yet_is_recorded_too() -> None:
    """Between fork and Spawned the record names the process already."""
    state = running()
    newer = replace(processes("scheduler")[0], generation=2, pid=12)
    made = Recorder(boot_id="b", nonce="n", agent_pid=1).record(state, (newer,))
    assert made.processes[0].found == Found(
        component="scheduler",
        pid=12,
        generation=2,
        started_ns=5,
        spec_digest=made.processes[0].found.spec_digest,
        stop_timeout_ns=NS_PER_S,
        stop_tree=True,
    )


def test_a_final_exit_and_every_past_are_recorded() -> None:
    """What ended for good does not run again under the next agent, and generations go on."""
    event = Exited(component="scheduler", generation=1, status=ExitStatus(code=78), left=0)
    state, _ = core.step(running(), event, 2 * NS_PER_S)
    made = Recorder(boot_id="b", nonce="n", agent_pid=1).record(state, processes("controller"))
    assert [hold.component for hold in made.holds] == ["scheduler"]
    assert {past.component: past.generation for past in made.past} == {"controller": 1, "scheduler": 1}
    assert {past.component: past.last_exit for past in made.past} == {
        "controller": None,
        "scheduler": "exited with status 78",
    }


def test_what_has_no_process_yet_is_no_generation_yet() -> None:
    """A process that is made after the last record is newer than anything in it: so its markers can prove it.

    A check before the start, and then whatever a start has to wait for (a user's look-up, a log, a fuse).
    """
    checked = ComponentSpec(name="c", role="r", command=("x",), pre_start=CommandSpec(command=("true",)))
    spec = NodeSpec(host=HostSpec(name="h"), roles=("r",), components=(checked,))
    state, _ = core.step(NodeState(), Booted(boot_id="b", facts=DurableFacts()), 1)
    state, _ = core.step(state, ConfigLoaded(spec=spec), 2)
    recorder = Recorder(boot_id="b", nonce="n", agent_pid=1)
    assert [past.generation for past in recorder.record(state, ()).past] == [0]
    state, _ = core.step(state, PreStartDone(component="c", generation=1, ok=True), 3)
    assert [past.generation for past in recorder.record(state, ()).past] == [0]
    made = (ProcessRecord(component="c", generation=1, pid=12, start_ticks=99, started_ns=5),)
    assert [past.generation for past in recorder.record(state, made).past] == [1]
    state, _ = core.step(state, Spawned(component="c", generation=1, pid=12), 4)
    state, _ = core.step(state, Exited(component="c", generation=1, status=ExitStatus(code=1), left=0), 5)
    assert [past.generation for past in recorder.record(state, ()).past] == [1]


def test_what_has_not_changed_is_taken_from_the_record_before() -> None:
    """A record of many components is made at each change of one: the others' parts are the same objects."""
    recorder, state = Recorder(boot_id="b", nonce="n", agent_pid=1), running()
    before = recorder.record(state, processes("controller", "scheduler"))
    event = Exited(component="scheduler", generation=1, status=ExitStatus(code=1), left=0)
    changed, _ = core.step(state, event, 2 * NS_PER_S)
    after = recorder.record(changed, processes("controller", "scheduler"))
    assert after.processes[0] is before.processes[0]
    assert after.past[0] is before.past[0]
    assert after.past[1].last_exit == "exited with status 1"
    fresh = Recorder(boot_id="b", nonce="n", agent_pid=1)
    assert after == fresh.record(changed, processes("controller", "scheduler"))


def test_a_part_is_made_anew_for_another_process_of_the_same_state() -> None:
    """Between fork and Spawned the core's state says nothing of the process yet, and the record must name it."""
    recorder, state = Recorder(boot_id="b", nonce="n", agent_pid=1), running()
    (old, other) = processes("controller", "scheduler")
    assert [kept.found.pid for kept in recorder.record(state, (old, other)).processes] == [10, 11]
    newer = replace(other, generation=2, pid=12, start_ticks=100)
    made = recorder.record(state, (old, newer))
    assert [(kept.found.pid, kept.found.generation, kept.start_ticks) for kept in made.processes] == [
        (10, 1, 99),
        (12, 2, 100),
    ]
    recorder.adopted(replace(made.processes[1].found, spec_digest="d"))
    assert recorder.record(state, (old, newer)).processes[1].found.spec_digest == "d"
    assert [kept.found.component for kept in recorder.record(state, (newer,)).processes] == ["scheduler"]
