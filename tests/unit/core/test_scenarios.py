"""Failures that hurt users of comparable programs (SCENARIOS): each a story with the right outcome.

Every step is also watched by `books.Books`: no second instance, no start over a latch, no signal to a stranger.
"""

from typing import Any

import pytest

from node_manager.core.actions import KillTree, Signal
from node_manager.core.durable import DurableFacts, Latch
from node_manager.core.events import (
    Beat,
    Command,
    Exited,
    ExitStatus,
    FuseLost,
    HostState,
    Leadership,
    Outcome,
    Verb,
    WallClock,
)
from node_manager.core.ladder import UNKILLABLE_RECHECK_NS
from node_manager.core.states import State
from tests.unit.core.build import HEARTBEAT, NOTIFY, TCP, S, node_spec, spec, told
from tests.unit.core.hosts import BUDGET, CONTROLLER, KILLING_WORKER, SCHEDULER, WEB, WORKER, managing, running
from tests.unit.core.world import World

DECOMMISSIONED = Latch(state="decommissioned", by="ann", reason="lease is over", at_wall_ns=7)


def state_of(world: World, name: str) -> State:
    return world.component(name).state


class TestFinishedWorkStaysFinished:
    """SCENARIOS 4."""

    @pytest.mark.parametrize("when", ["before the write", "after the write"])
    def test_decommission_over_a_kill_of_the_agent(self, when: str) -> None:
        """A decommissioned worker stays down over kill -9 of the agent, and was told "done" only once that is sure."""
        world = running(WORKER)
        word = world.command(Verb.DECOMMISSION)
        assert State.STOPPING is state_of(world, "worker")
        assert word not in world.replies
        if when == "after the write":
            world.sync()
            assert world.replies[word].ok
        world.crash(disk_reached=True)
        assert State.STOPPING is state_of(world, "worker")
        world.exit("worker", code=0)
        world.advance(600 * S)
        assert State.STOPPED is state_of(world, "worker")
        assert not world.spawns

    def test_decommission_over_a_reboot(self) -> None:
        """A decommissioned worker stays down over a reboot."""
        world = running(WORKER)
        world.command(Verb.DECOMMISSION)
        world.sync()
        world.reboot()
        world.advance(600 * S)
        assert not world.spawns

    def test_it_was_not_durable_and_not_acknowledged(self) -> None:
        """What was lost with the agent had not been acknowledged."""
        world = running(WORKER)
        word = world.command(Verb.DECOMMISSION)
        world.crash(disk_reached=False)
        assert word not in world.replies

    def test_exit_hold_over_a_new_agent(self) -> None:
        """A component that ended for good is not started by the next agent."""
        world = running(WORKER)
        world.exit("worker", code=78)
        assert State.EXITED is state_of(world, "worker")
        world.crash()
        assert State.EXITED is state_of(world, "worker")
        world.command(Verb.START, "worker")
        assert world.spawns["worker"].generation == 2


class TestOneScheduler:
    """SCENARIOS 5, 6, 21."""

    def test_silence_of_the_controller(self) -> None:
        """A controller that is stopped beyond its lease: the scheduler is dead before the lease ends."""
        world = managing(for_ns=20 * S)
        world.advance(20 * S - BUDGET)
        assert State.STOPPING is state_of(world, "scheduler")
        actions = world.advance(5 * S)
        assert actions == [KillTree(component="scheduler", generation=1)]
        assert world.now + S + S // 2 == world.current["controller.primary"].until_ns

    def test_agent_stopped_beyond_the_lease(self) -> None:
        """An agent that wakes up after the lease's end kills at once; its own stall excuses nothing."""
        world = managing(for_ns=20 * S)
        actions = world.stall(90 * S)
        assert told(actions) == ["Signal 15", "KillTree"]

    def test_agent_stalled_while_it_stops_the_scheduler(self) -> None:
        """A stall of the agent gives a leased component no more time than its lease."""
        world = managing(for_ns=20 * S)
        world.advance(20 * S - BUDGET)
        world.stall(5 * S)
        assert State.KILLING is state_of(world, "scheduler")

    def test_wall_clock_jumps(self) -> None:
        """The wall clock set an hour on or back changes nothing."""
        world = managing()
        before = world.state.members
        world.deliver(WallClock(offset_ns=3600 * S))
        world.deliver(WallClock(offset_ns=-3600 * S))
        assert before == world.state.members

    @pytest.mark.parametrize(
        "said",
        [
            {"leadership": Leadership.PRIMARY, "term": 5},
            {"leadership": Leadership.PRIMARY, "valid_until_ns": 1_030 * S},
            {"leadership": Leadership.PRIMARY, "term": 5, "valid_until_ns": 1_061 * S},
            {"leadership": Leadership.PRIMARY, "term": 5, "valid_until_ns": 999 * S},
            {"leadership": Leadership.PRIMARY, "term": 4, "valid_until_ns": 1_030 * S},
            {"leadership": Leadership.STANDBY, "term": 4},
            {"leadership": Leadership.STANDBY},
            {"status": "garbage"},
        ],
        ids=["no end", "no term", "too long", "past", "older term", "older standby", "standby without term", "nothing"],
    )
    def test_what_is_not_valid_is_silence(self, said: dict[str, Any]) -> None:
        """Whatever is wrong with a statement, it neither prolongs a lease nor ends it."""
        world = managing(term=5, for_ns=20 * S)
        before = world.state.table
        world.beat("controller", **said)
        assert before == world.state.table
        assert State.RUNNING is state_of(world, "scheduler")

    def test_standby_stops_at_once(self) -> None:
        """A controller that says standby has its scheduler stopped in the same step."""
        world = managing()
        assert sorted(told(world.standby("controller", 5))) == ["SendLevels", "Signal 15"]

    @pytest.mark.parametrize("point", ["stopping", "killing", "gone"])
    def test_promote_demote_promote(self, point: str) -> None:
        """Promoted again at any point of the stop: one scheduler in the end, under the newest term."""
        world = managing(term=5)
        world.standby("controller", 5)
        if point == "killing":
            world.advance(5 * S)
        if point == "gone":
            world.exit("scheduler", signal=15)
            assert State.STOPPED is state_of(world, "scheduler")
        world.primary("controller", 6, 20 * S)
        if point != "gone":
            assert "scheduler" not in world.spawns
            world.exit("scheduler", signal=15)
        assert world.spawns["scheduler"].term == 6
        world.spawned("scheduler")
        assert State.RUNNING is state_of(world, "scheduler")

    def test_a_new_term_restarts(self) -> None:
        """A new term while primary ends the old scheduler before the new one starts."""
        world = managing(term=5)
        actions = world.primary("controller", 9, 20 * S)
        assert "Signal 15" in told(actions)
        world.exit("scheduler", signal=15)
        assert world.spawns["scheduler"].term == 9

    def test_a_new_term_while_the_spawn_is_in_flight(self) -> None:
        """A spawn that was overtaken by a new term is ended when it is answered."""
        world = running(CONTROLLER, SCHEDULER)
        world.primary("controller", 5, 20 * S)
        world.primary("controller", 6, 20 * S)
        assert told(world.spawned("scheduler")) == ["Signal 15"]
        world.exit("scheduler", signal=15)
        assert world.spawns["scheduler"].term == 6

    def test_authority_dies_and_comes_back_inside_its_lease(self) -> None:
        """A controller that dies and comes back inside its lease leaves the scheduler untouched."""
        world = managing(term=5, for_ns=20 * S)
        world.exit("controller", signal=9)
        world.advance(S)
        world.spawned("controller")
        world.primary("controller", 5, 20 * S)
        world.advance(10 * S)
        assert State.RUNNING is state_of(world, "scheduler")
        assert world.component("scheduler").generation == 1

    def test_a_lease_never_shrinks_under_its_term(self) -> None:
        """A shorter end under the same term takes nothing back."""
        world = managing(term=5, for_ns=20 * S)
        world.primary("controller", 5, 7 * S)
        assert world.state.table.leased["controller.primary"].valid_until_ns == world.now + 20 * S

    def test_its_fuse_is_lost(self) -> None:
        """What nothing guards any more is stopped at once, maintenance or not, and started again under another fuse."""
        world = managing()
        world.deliver(FuseLost(component="scheduler", generation=1, reason="it is gone"))
        assert State.STOPPING is world.component("scheduler").state
        assert "lost: it is gone" in world.component("scheduler").reason
        world.exit("scheduler", signal=15)
        world.advance(S)
        assert world.spawns["scheduler"].generation == 2
        world.spawned("scheduler")
        world.command(Verb.MAINTENANCE, enable=True)
        world.deliver(FuseLost(component="scheduler", generation=2, reason="it is gone"))
        assert State.STOPPING is world.component("scheduler").state

    def test_a_lease_too_short_to_stop_in(self) -> None:
        """Under a lease that is shorter than the stop budget the dependant does not start, and says why."""
        world = running(CONTROLLER, SCHEDULER)
        world.primary("controller", 1, 6 * S)
        assert "too short for the stop budget of 6.5 s" in world.component("scheduler").reason
        word = world.command(Verb.START, "scheduler")
        assert (world.replies[word].ok, world.replies[word].rule) == (False, "condition")

    def test_renewed_in_time(self) -> None:
        """A lease that is renewed in time is never felt."""
        world = managing(for_ns=10 * S)
        for _ in range(10):
            world.advance(3 * S)
            world.primary("controller", 5, 10 * S)
        assert State.RUNNING is state_of(world, "scheduler")

    def test_no_more_time_for_a_leased_component(self) -> None:
        """EXTEND_TIMEOUT_USEC gives a leased component nothing."""
        world = managing(for_ns=60 * S)
        world.standby("controller", 5)
        world.notified("scheduler", extend_ns=60 * S)
        world.advance(5 * S)
        assert State.KILLING is state_of(world, "scheduler")


class TestTheOperatorsLastWord:
    """SCENARIOS 7."""

    def test_stop_during_a_start(self) -> None:
        """A stop while the spawn is in flight holds: what comes to be is ended, and not started again."""
        world = World(node_spec(WEB))
        world.command(Verb.STOP, "web")
        assert told(world.spawned("web")) == ["Signal 15"]
        world.exit("web", signal=15)
        world.advance(600 * S)
        assert State.STOPPED is state_of(world, "web")

    def test_stop_during_backoff(self) -> None:
        """A stop while it waits for its restart holds."""
        world = running(WEB)
        world.exit("web")
        assert State.BACKOFF is state_of(world, "web")
        world.command(Verb.STOP, "web")
        world.advance(600 * S)
        assert State.STOPPED is state_of(world, "web")

    def test_stop_over_a_new_agent(self) -> None:
        """A stop holds over a kill of the agent, and what it adopts is stopped."""
        world = running(WEB)
        world.command(Verb.STOP, "web")
        world.crash(disk_reached=True)
        assert State.STOPPING is state_of(world, "web")

    def test_start_during_a_stop(self) -> None:
        """A start during a stop is carried out when the stop is over."""
        world = running(WEB)
        world.command(Verb.STOP, "web")
        world.sync()
        word = world.command(Verb.START, "web")
        world.sync()
        assert world.replies[word].ok
        world.exit("web", signal=15)
        assert "web" in world.spawns

    def test_stop_start_stop(self) -> None:
        """Of several words before the disk has any of them, the last one holds; the others hear so."""
        world = running(WEB)
        world.command(Verb.STOP, "web")
        start = world.command(Verb.START, "web")
        stop = world.command(Verb.STOP, "web")
        world.sync()
        assert (world.replies[start].ok, world.replies[start].rule) == (False, "operator-hold")
        assert world.replies[stop].ok
        world.exit("web", signal=15)
        assert State.STOPPED is state_of(world, "web")

    def test_two_starts_before_the_disk(self) -> None:
        """A second start is not done before the first one is durable."""
        world = running(WEB)
        world.command(Verb.STOP, "web")
        world.exit("web", signal=15)
        world.sync()
        first = world.command(Verb.START, "web")
        second = world.command(Verb.START, "web")
        assert not {first, second} & set(world.replies)
        world.sync()
        assert world.replies[first].ok
        assert world.replies[second].ok
        assert "web" in world.spawns


class TestBackoffForgets:
    """SCENARIOS 8."""

    def test_five_crashes_a_stable_run_a_crash(self) -> None:
        """After a stable run the first delay counts again."""
        world = running(WEB)
        delays = []
        for _ in range(5):
            world.exit("web")
            delays.append(world.component("web").not_before_ns - world.now)
            world.advance(delays[-1])
            world.spawned("web")
        assert delays == [S // 10, S // 5, 2 * S // 5, 4 * S // 5, 8 * S // 5]
        world.advance(61 * S)
        world.exit("web")
        assert "web" in world.spawns, "a run that lasted is followed by the next at once"
        world.spawned("web")
        world.exit("web")
        assert State.BACKOFF is state_of(world, "web")
        assert world.component("web").not_before_ns == world.now + S // 5

    def test_five_crashes_a_stable_run_that_is_ended_a_crash(self) -> None:
        """A stable run is forgotten for also where it did not fail: a standby ended it, and later it leads again."""
        world = managing(for_ns=60 * S)
        for _ in range(5):
            world.exit("scheduler")
            world.advance(world.component("scheduler").not_before_ns - world.now)
            world.spawned("scheduler")
        for _ in range(3):
            world.primary("controller", 5, 60 * S)
            world.advance(25 * S)
        world.standby("controller", 5)
        world.exit("scheduler", code=0)
        world.primary("controller", 6, 60 * S)
        world.spawned("scheduler")
        world.exit("scheduler")
        assert world.component("scheduler").not_before_ns == world.now + S // 10

    def test_no_permanent_death_and_a_manual_start_at_once(self) -> None:
        """A hundred failures end nothing, and a manual start does not wait for the delay."""
        world = World(node_spec(WEB))
        for _ in range(100):
            world.spawn_failed("web")
            world.advance(world.component("web").not_before_ns - world.now)
        world.spawn_failed("web")
        assert State.BACKOFF is state_of(world, "web")
        word = world.command(Verb.START, "web")
        assert world.replies[word].ok
        assert "web" in world.spawns


class TestStops:
    """SCENARIOS 10, 11."""

    def test_sigterm_ignored(self) -> None:
        """SIGTERM ignored: SIGKILL to the whole tree, on time."""
        world = running(WEB)
        assert [a for a in told(world.deliver(stop(world))) if a != "SendLevels"] == ["WriteFacts", "Signal 15"]
        assert [KillTree(component="web", generation=1)] == world.advance(10 * S)

    def test_sigterm_ignored_by_a_worker(self) -> None:
        """Under kill scope `process` SIGKILL goes to the main process alone."""
        world = running(WORKER)
        world.command(Verb.STOP, "worker")
        assert [Signal(component="worker", generation=1, signal=9)] == world.advance(10 * S)
        world.exit("worker", signal=9, left=2)
        assert State.STOPPED is state_of(world, "worker")
        assert not world.kills

    def test_unkillable(self) -> None:
        """What survives SIGKILL is named so, rechecked, and nothing is started over it."""
        world = running(WEB)
        world.command(Verb.RESTART, "web")
        world.advance(10 * S)
        assert [KillTree(component="web", generation=1)] == world.advance(S)
        assert world.component("web").reason.startswith("unkillable")
        actions = world.advance(10 * UNKILLABLE_RECHECK_NS)
        assert sum(isinstance(action, KillTree) for action in actions) == 10
        world.exit("web", signal=9)
        assert "web" in world.spawns

    def test_slow_but_progressing(self) -> None:
        """EXTEND_TIMEOUT_USEC is granted again and again, up to a bound."""
        world = running(WEB)
        world.command(Verb.STOP, "web")
        for _ in range(60):
            world.advance(9 * S)
            world.notified("web", extend_ns=10 * S)
        assert State.STOPPING is state_of(world, "web")
        world.notified("web", extend_ns=3_600 * S)
        world.advance(610 * S - 60 * 9 * S)
        assert State.KILLING is state_of(world, "web")

    def test_grandchildren_under_kill_scope_tree(self) -> None:
        """What a dead main process left is cleared before the next one starts."""
        world = running(WEB)
        assert told(world.exit("web", left=2)) == ["EndRun", "KillTree"]
        world.advance(600 * S)
        assert not world.spawns
        world.cleared("web")
        assert "web" in world.spawns

    def test_jobs_under_kill_scope_process(self) -> None:
        """A worker that dies is started again beside its jobs."""
        world = running(WORKER)
        world.exit("worker", signal=9, left=3)
        world.advance(S)
        assert "worker" in world.spawns
        assert world.litter["worker"] == {1}

    def test_grandchildren_that_an_earlier_agent_left(self) -> None:
        """What is left of a component that died while no agent ran is cleared before a new agent starts it."""
        world = running(WEB)
        world.crash(gone=["web"])
        assert State.KILLING is state_of(world, "web")
        assert not world.spawns
        world.cleared("web")
        assert world.spawns["web"].generation == 2


class TestProbesDoNotLeak:
    """SCENARIOS 12, 13."""

    def test_counts_arm_again(self) -> None:
        """Failures of one run do not count in the next."""
        world = running(WEB)
        world.probes.clear()
        world.advance(2 * S)
        world.probed(0, Outcome.FAILED)
        world.exit("web")
        world.advance(S)
        world.spawned("web")
        readiness = world.component("web").run
        assert readiness is not None
        assert readiness.readiness is not None
        assert (readiness.readiness.failures, readiness.readiness.verdict) == (0, None)

    def test_cadence_holds(self) -> None:
        """A probe that takes long does not shift the next one; missed ones are not made up."""
        world = running(WEB)
        started = world.now
        asked = []
        for _ in range(3):
            world.advance(2 * S)
            asked.append(len(world.probes))
        assert asked == [1, 2, 3]
        world.stall(11 * S, noticed=False)
        assert len(world.probes) == 4
        world.advance(S)
        assert len(world.probes) == 5
        assert (world.now - started) % (2 * S) == 0

    @pytest.mark.parametrize("check", [HEARTBEAT, NOTIFY], ids=["heartbeat", "notify"])
    def test_a_stalled_agent_hears_nothing(self, check: Any) -> None:
        """Agent and components stopped for 90 s and continued: nothing is killed for silence."""
        world = running(spec("web", liveness=check))
        world.hello("web")
        world.notified("web", watchdog_ns=3 * S)
        assert told(world.stall(90 * S)) == []
        world.advance(2 * S)
        assert State.RUNNING is state_of(world, "web")
        assert told(world.advance(S)) == ["Signal 15"]

    def test_without_a_stall_silence_counts(self) -> None:
        """A component that breaks its own promise by three intervals is restarted."""
        world = running(spec("web", liveness=HEARTBEAT))
        world.hello("web")
        assert told(world.advance(3 * S - 1)) == []
        assert told(world.advance(1)) == ["Signal 15"]
        assert world.component("web").reason == "liveness probe failed: silent for 3 intervals of 1000 ms"


class TestDrained:
    """SCENARIOS 16."""

    def test_not_while_work_is_still_stopping(self) -> None:
        """An exit 0 that leaves jobs completes no drain: the worker comes back for them."""
        world = running(WORKER)
        world.command(Verb.DRAIN)
        world.exit("worker", code=0, left=2)
        assert HostState.DRAINING is world.state.host_state
        world.advance(S)
        assert "worker" in world.spawns

    def test_the_deadline_keeps_a_reserve(self) -> None:
        """What a drain kills is told to stop early enough before the deadline to report."""
        world = running(KILLING_WORKER)
        deadline = world.now + 60 * S
        world.command(Verb.DRAIN, deadline_ns=deadline)
        world.advance(55 * S - 1)
        assert State.RUNNING is state_of(world, "worker")
        world.advance(1)
        assert State.STOPPING is state_of(world, "worker")


class TestOneObservation:
    """SCENARIOS 17, 18."""

    def test_no_controller_for_an_hour(self) -> None:
        """Without a controller everything that does not depend on it goes on."""
        world = running(CONTROLLER, SCHEDULER, WORKER, spec("web"))
        world.exit("controller", signal=9)
        for _ in range(60):
            world.advance(60 * S)
            if "controller" in world.spawns:
                world.spawn_failed("controller")
        assert State.RUNNING is state_of(world, "worker")
        assert State.RUNNING is state_of(world, "web")

    def test_no_message_without_an_epoch(self) -> None:
        """HOST_STATE=decommissioned without an epoch, or under one that is not newer, changes nothing."""
        world = running(WORKER)
        world.beat("worker", host_state=HostState.ACTIVE, epoch=4)
        world.sync()
        for epoch in (None, 3, 4):
            world.beat("worker", host_state=HostState.DECOMMISSIONED, epoch=epoch)
        assert State.RUNNING is state_of(world, "worker")
        world.beat("worker", host_state=HostState.DECOMMISSIONED, epoch=5)
        assert HostState.DECOMMISSIONED is world.state.host_state

    def test_no_message_from_who_has_no_say(self) -> None:
        """What is not the authority for a fact cannot state it."""
        world = running(CONTROLLER, SCHEDULER, WORKER, spec("web"))
        world.deliver(beat_of(world, "web", host_state=HostState.DECOMMISSIONED, epoch=9))
        world.deliver(beat_of(world, "web", leadership=Leadership.PRIMARY, term=1, valid_until_ns=world.now + 20 * S))
        assert HostState.ACTIVE is world.state.host_state
        assert "scheduler" not in world.spawns

    def test_no_probe_that_could_not_run(self) -> None:
        """A probe that could not be carried out says nothing about the component."""
        world = running(spec("web", liveness=TCP))
        for _ in range(20):
            world.advance(2 * S)
            world.probed(0, Outcome.UNKNOWN)
        assert State.RUNNING is state_of(world, "web")


class TestDisk:
    """SCENARIOS 23."""

    def test_full_disk(self) -> None:
        """A restriction acts at once, is acknowledged once it is durable, and is retried while it is not."""
        world = running(WORKER)
        word = world.command(Verb.DECOMMISSION, reason="lease is over")
        assert State.STOPPING is state_of(world, "worker")
        for _ in range(3):
            world.write_failed()
            assert word not in world.replies
            world.advance(S)
        world.written()
        assert world.replies[word].ok

    def test_full_disk_and_a_permissive_word(self) -> None:
        """What allows something acts only once it is durable."""
        world = running(WORKER, disk=DurableFacts(operator_latch=DECOMMISSIONED))
        word = world.command(Verb.RECOMMISSION)
        world.write_failed()
        assert not world.spawns
        world.advance(S)
        world.written()
        assert world.replies[word].ok
        assert "worker" in world.spawns

    def test_unreadable(self) -> None:
        """An unreadable file holds what it could forbid until an operator decides; everything else runs."""
        world = World(node_spec(WORKER, WEB))
        world.spawned("worker")
        world.crash(unreadable="cannot read facts.json: checksum does not match")
        assert State.STOPPING is state_of(world, "worker")
        assert "checksum" in world.component("worker").want.reason
        assert "web" in world.mains
        world.exit("worker", code=0)
        world.crash()
        assert State.STOPPED is state_of(world, "worker"), "the doubt itself is durable"
        word = world.command(Verb.RECOMMISSION)
        world.sync()
        assert world.replies[word].ok
        assert "worker" in world.spawns

    def test_unreadable_and_confirmed(self) -> None:
        """An operator may also decide that the host is decommissioned."""
        world = World(node_spec(WORKER))
        world.crash(unreadable="torn")
        world.command(Verb.DECOMMISSION)
        world.sync()
        assert world.disk.doubt is None
        assert "ann" in world.component("worker").want.reason


class TestOutOfMemory:
    """SCENARIOS 24."""

    def test_it_is_named(self) -> None:
        """A kill for want of memory is called that."""
        world = running(WEB)
        main = world.mains.pop("web")
        event = Exited(component="web", generation=main.generation, status=ExitStatus(signal=9), left=0, oom=True)
        world.deliver(event)
        assert world.component("web").last_exit == "killed by signal 9 (SIGKILL), out of memory"


def stop(world: World) -> Command:
    command = Command(id=900, verb=Verb.STOP, by="ann", component="web")
    world.asked[900] = command
    return command


def beat_of(world: World, name: str, **fields: Any) -> Beat:
    return Beat(component=name, generation=world.mains[name].generation, **fields)
