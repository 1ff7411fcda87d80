"""A host's way out of the cluster: draining, drained, decommissioned, and back."""

from dataclasses import replace

import pytest

from node_manager.core import latches, node, status
from node_manager.core.actions import KillTree, RunHelper, SendLevels, Signal
from node_manager.core.durable import DurableFacts, Latch
from node_manager.core.events import (
    Booted,
    ConfigLoaded,
    Exited,
    ExitStatus,
    Found,
    HelperDone,
    HostState,
    Past,
    Verb,
    WallClock,
)
from node_manager.core.nodestate import DRAIN_RESERVE_NS, NodeState, drain_reserve_ns
from node_manager.core.spec import CommandSpec, DrainSpec
from node_manager.core.states import State
from node_manager.core.writeback import MAX_PENDING
from tests.unit.core.build import T0, S, node_spec, spec, told
from tests.unit.core.hosts import KILLING_WORKER, WEB, WORKER, running
from tests.unit.core.world import World

DRAINING = Latch(state="draining", by="ann", reason="", at_wall_ns=0)
SIGNALLED = spec("web", drain=DrainSpec(how=10))
COMMANDED = spec("web", drain=DrainSpec(how=CommandSpec(command=("drain",))))


def host(world: World) -> HostState:
    return world.state.host_state


def test_how_a_component_is_told() -> None:
    """A drain reaches each component once, in the way that its role file says."""
    world = running(WORKER, replace(SIGNALLED, name="a"), replace(COMMANDED, name="b"), spec("c"))
    world.command(Verb.DRAIN)
    actions = world.past[-1][-1][2]
    assert SendLevels(component="worker") in actions
    assert Signal(component="a", generation=1, signal=10) in actions
    assert [action.component for action in actions if isinstance(action, RunHelper)] == ["b"]
    assert told(world.tick()) == []


def test_a_stop_of_the_node_is_announced() -> None:
    """What takes part in a drain is told before anything gets its signal, and by a level that no restart keeps."""
    world = running(WORKER, WEB)
    assert ("NODE_STOPPING", "0") in status.levels(world.state, "worker", world.now)
    world.stop_node()
    actions = world.past[-1][-1][2]
    signals = [place for place, action in enumerate(actions) if isinstance(action, Signal)]
    assert actions.index(SendLevels(component="worker")) < signals[0]
    assert SendLevels(component="web") not in actions[: signals[0]]
    assert ("NODE_STOPPING", "1") in status.levels(world.state, "worker", world.now)
    assert HostState.ACTIVE is host(world)


def test_a_worker_without_a_drain_of_its_own() -> None:
    """What states the host's facts takes part in a drain, also where its role file says nothing of it."""
    world = running(replace(WORKER, drain=None))
    word = world.command(Verb.DRAIN)
    world.sync()
    assert world.replies[word].detail == "draining worker"
    assert HostState.DRAINING is host(world)
    world.beat("worker", host_state=HostState.DRAINED)
    assert HostState.DRAINED is host(world)


def test_nothing_to_drain() -> None:
    """A drain of a host where nothing takes part in it is complete at once, and says so."""
    world = running(WEB)
    word = world.command(Verb.DRAIN)
    world.sync()
    assert world.replies[word].detail == "drained: no component here takes part in a drain"
    assert HostState.DRAINED is host(world)


@pytest.mark.parametrize("removed_first", [True, False])
def test_a_worker_that_leaves_the_configuration_with_its_jobs(*, removed_first: bool) -> None:
    """A host is not drained because its worker was removed: its jobs live on, until a worker says that they ended."""
    world = running(WORKER, WEB)
    world.beat("worker", jobs=2)

    def remove() -> None:
        world.reload(node_spec(WEB))
        world.exit("worker", code=0, left=2)

    if removed_first:
        remove()
    word = world.command(Verb.DRAIN)
    if not removed_first:
        remove()
    world.sync()
    assert "worker" not in world.state.members
    assert HostState.DRAINING is host(world)
    assert world.replies[word].detail == "draining worker"
    world.reload(node_spec(WORKER, WEB))
    world.spawned("worker")
    world.beat("worker", host_state=HostState.DRAINED, jobs=0)
    assert HostState.DRAINED is host(world)


@pytest.mark.parametrize(("reported", "left"), [(2, 0), (2, 2), (0, 2)])
def test_a_worker_that_left_the_configuration_while_no_agent_ran(reported: int, left: int) -> None:
    """A successor that finds a worker which is configured no more does not call the host drained with its jobs."""
    found = Found(component="worker", pid=7, generation=2, started_ns=T0 - 60 * S)
    past = Past(component="worker", generation=2, last_jobs=reported)
    state, _ = node.step(NodeState(), Booted(boot_id="b", facts=DurableFacts(operator_latch=DRAINING)), T0)
    state, _ = node.step(state, ConfigLoaded(spec=node_spec(WEB), found=(found,), past=(past,)), T0)
    assert state.host_state is HostState.DRAINING
    exited = Exited(component="worker", generation=2, status=ExitStatus(code=0), left=left, jitter=0)
    state, _ = node.step(state, exited, T0 + S)
    assert "worker" not in state.members
    assert state.host_state is HostState.DRAINING


def test_what_left_the_configuration_with_nothing_keeps_no_drain_open() -> None:
    """Once it has ended, and without jobs in its last report, a removed component is not waited for."""
    found = Found(component="worker", pid=7, generation=2, started_ns=T0 - 60 * S)
    past = Past(component="worker", generation=2, last_jobs=0)
    state, _ = node.step(NodeState(), Booted(boot_id="b", facts=DurableFacts(operator_latch=DRAINING)), T0)
    state, _ = node.step(state, ConfigLoaded(spec=node_spec(WEB), found=(found,), past=(past,)), T0)
    assert state.host_state is HostState.DRAINING
    exited = Exited(component="worker", generation=2, status=ExitStatus(code=0), left=0, jitter=0)
    state, _ = node.step(state, exited, T0 + S)
    assert state.host_state is HostState.DRAINED


@pytest.mark.parametrize("how", ["says so", "exits 0", "exits with the mapped status"])
def test_drained(how: str) -> None:
    """Drained: the worker said so, or exited 0 with nothing left, or with the status that means it. Then it is down."""
    world = running(WORKER)
    word = world.command(Verb.DRAIN, reason="kernel update")
    if how == "says so":
        world.beat("worker", host_state=HostState.DRAINED, jobs=0)
        assert State.STOPPING is world.component("worker").state
        world.exit("worker", code=0)
    else:
        world.exit("worker", code=0 if how == "exits 0" else 77, left=0 if how == "exits 0" else 1)
    assert HostState.DRAINED is host(world)
    assert State.STOPPED is world.component("worker").state
    assert world.component("worker").want.rule.value == "drained"
    world.sync()
    assert world.replies[word].ok
    again = world.command(Verb.DRAIN)
    assert world.replies[again].detail == "this host is drained already by ann, for 0 s: kernel update"
    start = world.command(Verb.START, "worker")
    assert (world.replies[start].ok, world.replies[start].rule) == (False, "drained")


def test_drained_without_a_drain() -> None:
    """A worker that says drained while nothing is drained, or once more, completes nothing."""
    world = running(WORKER, SIGNALLED)
    world.beat("worker", host_state=HostState.DRAINED)
    assert State.RUNNING is world.component("worker").state
    world.command(Verb.DRAIN)
    for _ in range(2):
        world.beat("worker", host_state=HostState.DRAINED)
    assert sum(log.event == "component.drained" for log in world.logs) == 1
    assert HostState.DRAINING is host(world)


def test_several_take_part() -> None:
    """The host is drained when the last of them is."""
    world = running(WORKER, SIGNALLED)
    world.command(Verb.DRAIN)
    world.exit("web", code=0)
    assert HostState.DRAINING is host(world)
    assert State.STOPPED is world.component("web").state
    world.beat("worker", host_state=HostState.DRAINED)
    assert HostState.DRAINED is host(world)


def test_crash_during_a_drain() -> None:
    """A worker that crashes during a drain comes back, for its jobs need it, and is told again."""
    world = running(WORKER)
    world.command(Verb.DRAIN)
    world.exit("worker", signal=11, left=2)
    world.advance(S)
    assert told(world.spawned("worker")) == ["SendLevels"]
    assert HostState.DRAINING is host(world)


def test_exit_before_it_was_told() -> None:
    """An exit 0 outside a drain is no drain."""
    world = running(WORKER)
    world.exit("worker", code=0)
    assert State.BACKOFF is world.component("worker").state


def test_deadline_leaves() -> None:
    """With the policy `leave` the deadline stops nothing; status warns."""
    world = running(WORKER)
    world.hello("worker", jobs=2)
    world.command(Verb.DRAIN, deadline_ns=world.now + 60 * S)
    world.advance(120 * S)
    assert HostState.DRAINING is host(world)
    assert State.RUNNING is world.component("worker").state
    assert "the drain's deadline has passed" in status.warnings(world.state, world.now)


def test_deadline_kills() -> None:
    """With the policy `kill` the deadline stops the worker and then all that it started; then the host is drained."""
    world = running(KILLING_WORKER)
    world.command(Verb.DRAIN, deadline_ns=world.now + 60 * S)
    assert told(world.advance(60 * S - DRAIN_RESERVE_NS - 1)) == []
    assert told(world.advance(1)) == ["Signal 15"]
    assert KillTree(component="worker", generation=1) in world.exit("worker", code=0, left=2)
    assert HostState.DRAINING is host(world), "not drained while work is still stopping"
    world.cleared("worker")
    assert HostState.DRAINED is host(world)


@pytest.mark.parametrize("left", [0, 2])
def test_deadline_kills_what_a_dead_worker_left(left: int) -> None:
    """The deadline also reaches the jobs of a worker that is not running at that moment."""
    world = running(KILLING_WORKER)
    world.command(Verb.STOP, "worker")
    world.exit("worker", code=1, left=left)
    world.command(Verb.DRAIN, deadline_ns=world.now + 60 * S)
    world.advance(60 * S)
    if left:
        assert State.KILLING is world.component("worker").state
        assert HostState.DRAINING is host(world)
        world.cleared("worker")
    assert HostState.DRAINED is host(world)
    assert State.STOPPED is world.component("worker").state


def test_later_deadline() -> None:
    """A drain may be given more time after its deadline has passed."""
    world = running(WORKER)
    world.command(Verb.DRAIN, deadline_ns=world.now + 10 * S)
    world.advance(10 * S)
    assert world.state.drain_expired
    world.command(Verb.DRAIN, deadline_ns=world.now + 60 * S)
    assert not world.state.drain_expired


def test_deadline_over_a_reboot() -> None:
    """Over a reboot the wall clock tells when a drain must be over."""
    world = running(WORKER)
    world.deliver(WallClock(offset_ns=5_000 * S))
    world.command(Verb.DRAIN, deadline_ns=world.now + 100 * S)
    world.sync()
    world.now = 10 * S
    world.reboot()
    world.deliver(WallClock(offset_ns=6_040 * S))
    assert not world.state.drain_expired
    world.advance(45 * S)
    assert world.state.drain_expired


def test_deadline_while_there_is_no_configuration() -> None:
    """A drain whose deadline has passed does not keep a waiting agent busy."""
    world = World()
    latch = replace(DRAINING, boot_id="boot-1", deadline_ns=5 * S)
    world.deliver(Booted(boot_id="boot-1", facts=DurableFacts(operator_latch=latch)))
    assert node.next_wake_ns(world.state) is None


def test_undrain() -> None:
    """An undrain takes back what operator and controller asked for, once that is durable; the worker is told."""
    world = running(WORKER)
    world.beat("worker", host_state=HostState.DRAINING, epoch=3)
    world.command(Verb.DRAIN)
    world.sync()
    word = world.command(Verb.UNDRAIN)
    assert HostState.DRAINING is host(world)
    world.sync()
    assert world.replies[word].ok
    assert HostState.ACTIVE is host(world)
    world.beat("worker", host_state=HostState.DRAINING, epoch=3)
    assert HostState.ACTIVE is host(world), "an old epoch drains it no more"
    assert ("UNDRAIN", "1") in status.levels(world.state, "worker", world.now)
    again = world.command(Verb.UNDRAIN)
    assert world.replies[again].detail == "this host is not draining"
    world.beat("worker", host_state=HostState.DRAINING, epoch=4)
    assert HostState.DRAINING is host(world)


def test_undrain_brings_it_back() -> None:
    """After an undrain a worker that was drained starts again."""
    world = running(WORKER)
    world.command(Verb.DRAIN)
    world.exit("worker", code=0)
    world.command(Verb.UNDRAIN)
    world.sync()
    world.advance(S)
    assert "worker" in world.spawns


def test_words_that_overtake_the_disk() -> None:
    """A drain that is asked for again before its undrain is durable is a drain in the end."""
    world = running(WORKER)
    world.command(Verb.DRAIN)
    world.sync()
    world.command(Verb.UNDRAIN)
    second = world.command(Verb.UNDRAIN)
    assert second not in world.replies, "not acknowledged before it is so"
    world.command(Verb.DRAIN)
    world.sync()
    assert HostState.DRAINING is host(world)
    assert len(world.replies) == 4


@pytest.mark.parametrize("by", ["operator", "controller"])
def test_a_drain_that_ends_while_it_is_taken_back(by: str) -> None:
    """A drain that is complete before the disk knows that it was taken back does not come back as drained."""
    world = running(WORKER)
    if by == "operator":
        world.command(Verb.DRAIN)
        world.sync()
        world.command(Verb.UNDRAIN)
    else:
        world.beat("worker", host_state=HostState.DRAINING, epoch=3)
        world.sync()
        world.beat("worker", host_state=HostState.ACTIVE, epoch=4)
    writes = len(world.writes)
    world.exit("worker", code=0)
    assert writes == len(world.writes)
    world.sync()
    assert HostState.ACTIVE is host(world)
    assert HostState.ACTIVE is latches.host_state(world.disk)


def test_a_drain_that_ends_while_the_disk_is_full() -> None:
    """An undrain that cannot be written yet is still the last word when the drain is complete meanwhile."""
    world = running(WORKER)
    world.command(Verb.DRAIN)
    world.sync()
    world.command(Verb.UNDRAIN)
    world.write_failed()
    world.beat("worker", host_state=HostState.DRAINED)
    assert HostState.DRAINING is host(world)
    world.advance(S)
    world.sync()
    assert HostState.ACTIVE is host(world)
    world.exit("worker", code=0)
    world.advance(S)
    assert "worker" in world.spawns


def test_drain_after_an_unwritten_recommission() -> None:
    """A drain that follows a recommission does not release the decommission before that is durable."""
    world = running(WORKER)
    world.command(Verb.DECOMMISSION)
    world.sync()
    world.command(Verb.RECOMMISSION)
    world.command(Verb.DRAIN)
    assert HostState.DECOMMISSIONED is host(world)
    world.sync()
    assert HostState.DRAINING is host(world)


def test_decommissioned_refuses() -> None:
    """On a decommissioned host drain, undrain and start are refused with that rule."""
    world = running(WORKER)
    world.command(Verb.DECOMMISSION)
    world.sync()
    for verb, name in ((Verb.DRAIN, None), (Verb.UNDRAIN, None), (Verb.START, "worker"), (Verb.RESTART, "worker")):
        word = world.command(verb, name)
        assert (world.replies[word].ok, world.replies[word].rule) == (False, "decommissioned")


def test_decommission_says_what_it_stops() -> None:
    """The answer to a decommission names what it stops, or says that it stops nothing."""
    world = running(WORKER, SIGNALLED)
    word = world.command(Verb.DECOMMISSION)
    world.sync()
    assert world.replies[word].detail == "decommissioned: stops worker, web"
    other = running(WEB)
    word = other.command(Verb.DECOMMISSION)
    other.sync()
    assert other.replies[word].detail == "decommissioned: nothing here depends on it"
    assert State.RUNNING is other.component("web").state


def test_decommission_kills_jobs_by_the_drain_policy() -> None:
    """What a decommission does to jobs is the drain policy's to say."""
    leave, kill = running(WORKER), running(KILLING_WORKER)
    for world in (leave, kill):
        world.command(Verb.DECOMMISSION)
        world.exit("worker", code=0, left=2)
    assert State.STOPPED is leave.component("worker").state
    assert State.KILLING is kill.component("worker").state


def test_a_doubt_kills_no_jobs() -> None:
    """An unreadable file is no reason to kill users' jobs."""
    world = running(KILLING_WORKER)
    world.crash(unreadable="torn")
    world.exit("worker", code=0, left=2)
    assert State.STOPPED is world.component("worker").state
    assert not world.kills


def test_recommission() -> None:
    """Recommission releases both latches; only a higher epoch latches again."""
    world = running(WORKER)
    world.beat("worker", host_state=HostState.DECOMMISSIONED, epoch=3)
    world.exit("worker", code=79)
    world.command(Verb.DECOMMISSION)
    world.sync()
    word = world.command(Verb.RECOMMISSION)
    world.sync()
    assert world.replies[word].ok
    world.spawned("worker")
    world.beat("worker", host_state=HostState.DECOMMISSIONED, epoch=3)
    assert HostState.ACTIVE is host(world)
    world.beat("worker", host_state=HostState.DECOMMISSIONED, epoch=4)
    assert HostState.DECOMMISSIONED is host(world)
    assert (world.state.in_force.released_epoch, world.state.in_force.epoch_seen) == (3, 4)


def test_recommission_of_an_active_host() -> None:
    """There is nothing to recommission on an active host."""
    world = running(WORKER)
    word = world.command(Verb.RECOMMISSION)
    assert world.replies[word].detail == "this host is active already"


def test_controller_takes_it_back() -> None:
    """Under a higher epoch the controller makes the host active again: once that is durable."""
    world = running(WORKER)
    world.beat("worker", host_state=HostState.DRAINING, epoch=3)
    world.beat("worker", host_state=HostState.ACTIVE, epoch=4)
    assert HostState.DRAINING is host(world)
    world.sync()
    assert HostState.ACTIVE is host(world)


def test_controller_softens() -> None:
    """A milder word under a higher epoch acts once it is durable."""
    world = running(WORKER, SIGNALLED)
    world.beat("worker", host_state=HostState.DECOMMISSIONED, epoch=3)
    world.beat("worker", host_state=HostState.DRAINING, epoch=4)
    assert HostState.DECOMMISSIONED is host(world)
    world.sync()
    assert HostState.DRAINING is host(world)


def test_controller_completes_its_own_drain() -> None:
    """Under the same epoch only the end of that very drain is something new."""
    world = running(WORKER, SIGNALLED)
    world.beat("worker", host_state=HostState.DRAINING, epoch=3)
    world.beat("worker", host_state=HostState.DECOMMISSIONED, epoch=3)
    world.beat("worker", host_state=HostState.ACTIVE, epoch=3)
    assert HostState.DRAINING is host(world)
    world.beat("worker", host_state=HostState.DRAINED, epoch=3)
    assert HostState.DRAINED is host(world)
    assert world.state.in_force.controller_latch.by == "worker" if world.state.in_force.controller_latch else False


def test_an_exit_completes_the_controllers_drain() -> None:
    """A drain that the controller asked for is complete when the worker has exited 0 with nothing left."""
    world = running(WORKER)
    world.beat("worker", host_state=HostState.DRAINING, epoch=3)
    world.exit("worker", code=0)
    assert HostState.DRAINED is host(world)
    world.sync()
    assert world.disk.controller_latch is not None
    assert world.disk.controller_latch.state == "drained"


def test_the_more_severe_latch_rules() -> None:
    """Of the two latches the more severe one rules, the operator's where both are equal."""
    world = running(WORKER)
    world.command(Verb.DRAIN)
    world.beat("worker", host_state=HostState.DRAINING, epoch=3)
    assert (view(world)["by"], view(world)["state"]) == ("ann", "draining")
    world.beat("worker", host_state=HostState.DECOMMISSIONED, epoch=4)
    assert (view(world)["by"], view(world)["state"]) == ("worker", "decommissioned")


@pytest.mark.parametrize(
    ("code", "epoch", "state"),
    [
        (79, 4, HostState.DECOMMISSIONED),
        (77, 4, HostState.DRAINED),
        (79, None, HostState.ACTIVE),
        (77, None, HostState.ACTIVE),
        (79, 3, HostState.ACTIVE),
        (79, 5, HostState.DECOMMISSIONED),
    ],
)
def test_exit_status_latches_at_the_epoch_stated(code: int, epoch: int | None, state: HostState) -> None:
    """A mapped exit status latches at the epoch stated in that run; without a new one it holds the component."""
    world = running(WORKER, disk=DurableFacts(epoch_seen=3, released_epoch=3))
    world.beat("worker", host_state=HostState.ACTIVE, epoch=epoch)
    world.advance(S)
    world.exit("worker", code=code)
    assert state is host(world)
    if state is HostState.ACTIVE:
        assert State.EXITED is world.component("worker").state
        assert world.component("worker").hold == f"exit status {code}: rejoin refused"
    else:
        assert State.STOPPED is world.component("worker").state


def test_exit_status_under_an_old_epoch() -> None:
    """An exit status latches nothing under an epoch that the controller has overtaken: the component is held."""
    world = running(WORKER, disk=DurableFacts(epoch_seen=5, released_epoch=2))
    world.beat("worker", host_state=HostState.ACTIVE, epoch=4)
    world.exit("worker", code=79)
    assert HostState.ACTIVE is host(world)
    assert world.component("worker").hold == "exit status 79: rejoin refused"


def test_exit_status_of_a_host_that_is_latched_already() -> None:
    """The exit that a decommission asked for latches nothing a second time."""
    world = running(WORKER)
    world.beat("worker", host_state=HostState.DECOMMISSIONED, epoch=4)
    world.exit("worker", code=79)
    assert len(world.writes) == 1


def test_fatal_exit_of_a_component_that_was_stopped() -> None:
    """An exit status that means "final" holds nothing that was told to stop anyway."""
    world = running(WORKER)
    world.command(Verb.RESTART, "worker")
    world.exit("worker", code=78)
    assert "worker" in world.spawns


def test_fatal_exit_of_a_component_whose_condition_ended() -> None:
    """The same where a condition stopped it: when that holds again the component starts."""
    world = running(WORKER, spec("mover", run_while=("component.worker.ready",), exit_status=WORKER.exit_status))
    world.exit("worker")
    world.exit("mover", code=78)
    world.advance(S)
    world.spawned("worker")
    assert "mover" in world.spawns


def test_undrain_while_jobs_are_being_killed() -> None:
    """What is being killed is killed to the end, also when the word that wanted it is taken back."""
    world = running(KILLING_WORKER)
    world.command(Verb.DRAIN, deadline_ns=world.now + 10 * S)
    world.advance(10 * S)
    world.exit("worker", code=0, left=2)
    world.command(Verb.UNDRAIN)
    world.sync()
    assert [KillTree(component="worker", generation=1)] == world.advance(S)
    world.cleared("worker")
    assert "worker" in world.spawns


def test_start_during_a_stop_outlives_a_final_exit() -> None:
    """A start that was asked for while the run was ending is the later word than its exit status."""
    world = running(WORKER)
    world.command(Verb.STOP, "worker")
    world.sync()
    world.command(Verb.START, "worker")
    world.sync()
    world.exit("worker", code=79)
    assert "worker" in world.spawns


def test_a_flood_of_epochs_on_a_full_disk() -> None:
    """A worker that states ever new epochs while nothing can be written does not fill the memory."""
    world = running(WORKER)
    for epoch in range(MAX_PENDING + 20):
        world.beat("worker", host_state=HostState.DRAINING, epoch=epoch + 1)
        world.writes.clear()
    assert len(world.state.writeback.pending) == MAX_PENDING
    word = world.command(Verb.STOP, "worker")
    assert "256 changes wait for the disk already" in world.replies[word].detail


def test_stop_when_draining() -> None:
    """A component may be stopped by the beginning of a drain already."""
    world = running(WORKER, spec("proxy", stop_when=("host.draining",)), spec("late", stop_when=("host.drained",)))
    world.command(Verb.DRAIN)
    assert State.STOPPING is world.component("proxy").state
    assert world.component("proxy").want.rule.value == "condition"
    assert State.RUNNING is world.component("late").state
    world.beat("worker", host_state=HostState.DRAINED)
    assert world.component("late").want.rule.value == "drained"


def test_run_while_a_host_fact() -> None:
    """A component may also run only while the host drains."""
    world = World(node_spec(WORKER, spec("mover", run_while=("host.draining",))))
    assert State.STOPPED is world.component("mover").state
    world.command(Verb.DRAIN)
    assert "mover" in world.spawns


def test_a_drain_command_that_ends_completes_nothing() -> None:
    """The end of a drain command is history: the component itself says that it is drained."""
    world = running(COMMANDED)
    world.command(Verb.DRAIN)
    world.deliver(HelperDone(component="web", generation=1, purpose="drain", ok=True))
    assert HostState.DRAINING is host(world)


def view(world: World) -> status.HostStatus:
    return status.node_status(world.state, world.now, name="h1", cgroup_mode="session")["host"]


def drain_of(at_wall: int, deadline_wall: int | None) -> Latch:
    """A drain that was ordered and must be over at these times of the wall clock."""
    return replace(
        DRAINING, at_wall_ns=at_wall * S, deadline_wall_ns=None if deadline_wall is None else deadline_wall * S
    )


@pytest.mark.parametrize(
    ("latch", "reserve_ns"),
    [
        (drain_of(100, 108), 2 * S),
        (drain_of(100, 105), 5 * S // 4),
        (drain_of(100, 120), 5 * S),
        (drain_of(100, 4_000), 5 * S),
        (drain_of(100, 90), 0),
        (drain_of(100, None), 0),
    ],
)
def test_reserve(latch: Latch, reserve_ns: int) -> None:
    """A deadline keeps five seconds for the last report, and never more than a quarter of the drain's time."""
    assert reserve_ns == drain_reserve_ns(latch)


@pytest.mark.parametrize("reboot", [False, True])
def test_a_short_deadline(*, reboot: bool) -> None:
    """A short drain is not over at once, on this boot nor on the next; event and warning say what is kept, and why."""
    world = running(KILLING_WORKER)
    world.deliver(WallClock(offset_ns=5_000 * S))
    world.hello("worker", jobs=2)
    world.command(Verb.DRAIN, deadline_ns=world.now + 8 * S)
    world.sync()
    if reboot:
        world.now -= 900 * S
        world.reboot()
        world.deliver(WallClock(offset_ns=5_900 * S))
        world.spawned("worker")
    assert told(world.advance(6 * S - 1)) == []
    assert told(world.advance(1)) == ["Signal 15"]
    sentence = "the time to drain is over; 2 s are kept for the last report"
    assert sentence in status.warnings(world.state, world.now)
    assert [dict(log.fields)["what"] for log in world.logs if log.event == "host.drain_time_over"] == [sentence]
    world.advance(2 * S)
    assert "the drain's deadline has passed" in status.warnings(world.state, world.now)


def test_jobs_of_a_worker_that_was_stopped() -> None:
    """A worker that was stopped with jobs alive has not drained its host, whatever its exit status."""
    world = running(WORKER)
    world.hello("worker", jobs=2)
    world.command(Verb.DRAIN, reason="kernel update")
    world.command(Verb.STOP, "worker")
    world.exit("worker", code=0)
    assert HostState.DRAINING is host(world)
    assert (view(world)["jobs_left"], view(world)["jobs_left_last_known"]) == (2, True)
    waits = "the drain waits for worker, which is stopped: it last reported 2 jobs"
    assert waits in status.warnings(world.state, world.now)
    seen = status.component_status(world.state, world.state.members["worker"], world.now)
    assert (seen["reason"], seen["jobs"], seen["jobs_last_known"]) == (
        "stopped by ann; the drain waits for it: it last reported 2 jobs",
        2,
        True,
    )
    world.sync()
    world.command(Verb.START, "worker")
    world.sync()
    world.spawned("worker")
    assert (view(world)["jobs_left"], view(world)["jobs_left_last_known"]) == (2, True)
    world.beat("worker", jobs=0)
    assert (view(world)["jobs_left"], view(world)["jobs_left_last_known"]) == (0, False)
    world.exit("worker", code=0)
    assert HostState.DRAINED is host(world)


def test_a_worker_without_jobs_that_waits() -> None:
    """A drain that waits for a worker that is down says so, also where it had no jobs."""
    world = running(WORKER)
    world.command(Verb.STOP, "worker")
    world.exit("worker", code=1)
    world.command(Verb.DRAIN)
    assert "the drain waits for worker, which is stopped" in status.warnings(world.state, world.now)
    assert (view(world)["jobs_left"], view(world)["jobs_left_last_known"]) == (None, False)


def test_a_crash_in_a_drain_is_no_warning() -> None:
    """A worker that is to be restarted in a moment is not waited for by anybody else."""
    world = running(WORKER)
    world.hello("worker", jobs=2)
    world.command(Verb.DRAIN)
    world.exit("worker", signal=11)
    assert status.warnings(world.state, world.now) == []


def test_the_deadline_does_not_drain_what_has_jobs() -> None:
    """With the policy `kill` too the host is drained only when nothing was reported, or everything was killed."""
    world = running(KILLING_WORKER)
    world.hello("worker", jobs=2)
    world.command(Verb.DRAIN, deadline_ns=world.now + 60 * S)
    world.advance(55 * S)
    world.exit("worker", code=0)
    assert HostState.DRAINING is host(world)
    assert view(world)["jobs_left"] == 2


@pytest.mark.parametrize("how", ["main process and all", "what it left"])
def test_jobs_that_were_killed(how: str) -> None:
    """SIGKILL to everything that lives ends the jobs: nothing is left to report."""
    world = running(KILLING_WORKER)
    world.hello("worker", jobs=2)
    world.command(Verb.DRAIN, deadline_ns=world.now + 60 * S)
    world.advance(55 * S)
    if how == "what it left":
        world.exit("worker", code=0, left=2)
        assert view(world)["jobs_left"] == 2
        world.cleared("worker")
    else:
        world.advance(11 * S)
        world.exit("worker", signal=9)
    assert HostState.DRAINED is host(world)
    assert view(world)["jobs_left"] is None
