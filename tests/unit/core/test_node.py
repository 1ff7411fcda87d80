"""The node as a whole: order, the end, commands, maintenance, and configurations that change."""

from dataclasses import replace

import pytest

from node_manager.core import node
from node_manager.core.actions import Finish, KillTree, RunHelper, Signal
from node_manager.core.durable import MAX_HOLDS, DurableFacts, Hold
from node_manager.core.events import (
    Beat,
    Booted,
    Command,
    ConfigFailed,
    ConfigLoaded,
    Exited,
    ExitStatus,
    FactsWriteFailed,
    Found,
    HostState,
    KeptLease,
    LeaseStatement,
    Past,
    Spawned,
    StopNode,
    Tick,
    Verb,
)
from node_manager.core.node import NODE_STOP_BOUND_NS, UNKILLABLE_GRACE_NS
from node_manager.core.nodestate import MAX_PAST, NodePhase, NodeState, remember
from node_manager.core.ordering import digest_differs, index, plan_change, process_digest, start_order
from node_manager.core.spec import CommandSpec, KillScope, RestartSpec, StopSpec
from node_manager.core.states import State, past_of
from tests.unit.core.build import HEARTBEAT, PRE_START, T0, TCP, S, node_spec, spec, told
from tests.unit.core.hosts import CONTROLLER, SCHEDULER, WEB, WORKER, managing, running
from tests.unit.core.world import World

DB = spec("db", readiness=TCP)
APP = spec("app", after=("db",))
FRONT = spec("front", after=("app",), stop=StopSpec(timeout_ns=300 * S))


def states(world: World) -> dict[str, str]:
    return {name: member.state.state.value for name, member in world.state.members.items()}


class TestOrder:
    def test_start(self) -> None:
        """A component starts once everything that it is after is ready."""
        world = World(node_spec(APP, DB))
        assert list(world.spawns) == ["db"]
        assert world.component("app").reason == "waits until db is ready"
        world.spawned("db")
        assert not world.spawns
        world.probed(0)
        assert list(world.spawns) == ["app"]

    def test_what_it_waited_for_goes_away(self) -> None:
        """A component that runs is not stopped when what it was started after is gone."""
        world = running(DB, APP)
        world.exit("db")
        assert State.RUNNING is world.component("app").state

    def test_order_of_names(self) -> None:
        """Each comes after all that it is after, else in the order given; names from elsewhere do not count."""
        specs = {one.name: one for one in (FRONT, APP, spec("x", after=("elsewhere",)), DB)}
        assert start_order(specs) == ("db", "app", "front", "x")

    def test_index(self) -> None:
        """The look-ups name dependants, followers and authorities."""
        found = index([CONTROLLER, SCHEDULER, WORKER])
        assert found.dependants == {"controller": ("scheduler",)}
        assert found.followers == {"controller.primary": ("scheduler",), "host.decommissioned": ("worker",)}
        assert found.authorities["controller.primary"] == "controller"

    def test_readiness_of_another_as_a_condition(self) -> None:
        """`component.NAME.ready` stops what runs under it, and what must not run beside it."""
        cache, ersatz = (
            spec("cache", run_while=("component.db.ready",)),
            spec("ersatz", stop_when=("component.db.ready",)),
        )
        world = running(DB, cache, ersatz)
        assert states(world) == {"db": "running", "cache": "running", "ersatz": "stopping"}
        world.exit("ersatz", code=0)
        world.advance(S)
        assert "ersatz" not in world.spawns
        world.exit("db")
        assert State.STOPPING is world.component("cache").state
        assert "ersatz" in world.spawns


class TestStop:
    def test_reverse_order(self) -> None:
        """Each stops once everything that depends on it is gone; then the node finishes, once."""
        world = running(DB, APP, FRONT)
        assert [Signal(component="front", generation=1, signal=15)] == world.stop_node()
        assert "Signal 15" in told(world.exit("front", code=0))
        assert State.RUNNING is world.component("db").state
        world.exit("app", code=0)
        assert Finish() in world.exit("db", code=0)
        assert world.deliver(StopNode(reason="again")) == []

    def test_nothing_to_stop(self) -> None:
        """Without anything that runs, with or without a configuration, a stop finishes at once."""
        for world in (World(), World(node_spec(spec("held")), disk=held("held"))):
            assert [Finish()] == world.stop_node()

    def test_one_bound_over_all(self) -> None:
        """When the node's bound has passed all that is left is killed, also what was held back or decommissioned."""
        world = running(DB, APP, FRONT, replace(WORKER, stop=StopSpec(timeout_ns=300 * S)))
        world.command(Verb.DECOMMISSION)
        world.stop_node()
        kills = [action for action in world.advance(NODE_STOP_BOUND_NS) if isinstance(action, KillTree)]
        assert {"front", "app", "db", "worker"} == {action.component for action in kills}

    def test_left_behind(self) -> None:
        """What survives even that is left behind, and named."""
        world = running(DB)
        world.stop_node()
        world.advance(NODE_STOP_BOUND_NS + UNKILLABLE_GRACE_NS - 1)
        assert not world.finished
        assert Finish() in world.advance(1)
        assert [log.event for log in world.logs if log.event.startswith("agent.left")] == ["agent.left_behind"]
        assert world.exit("db", signal=9)[1:] == []

    def test_a_stalled_agent_gives_the_time_back(self) -> None:
        """Time in which the agent did not run does not count against the stop."""
        world = running(DB)
        world.stop_node()
        world.stall(600 * S)
        assert State.STOPPING is world.component("db").state
        assert not world.finished

    def test_spawn_in_flight(self) -> None:
        """A spawn in flight is ended when it is answered."""
        world = World(node_spec(DB))
        world.stop_node()
        assert told(world.spawned("db")) == ["Signal 15"]

    def test_a_death_while_its_turn_has_not_come(self) -> None:
        """What dies while it is held back is not started again."""
        world = running(DB, APP)
        world.stop_node()
        world.exit("db")
        assert State.STOPPED is world.component("db").state

    def test_commands_while_it_stops(self) -> None:
        """A start is refused with the rule `node-stopping`, a reload as well."""
        world = running(DB)
        world.stop_node()
        word = world.command(Verb.START, "db")
        assert (world.replies[word].ok, world.replies[word].rule) == (False, "node-stopping")
        world.asked[77] = Command(id=77, verb=Verb.STOP, by="ann")
        world.deliver(ConfigLoaded(spec=node_spec(), command_id=77))
        assert world.replies[77].detail == "cannot reload: the node is stopping"

    @pytest.mark.parametrize("event", ["renewed", "expired", "standby", "new term"])
    def test_a_lease_does_not_wait_for_its_turn(self, event: str) -> None:
        """A leased component whose turn to stop has not come is stopped all the same when its lease ends."""
        watcher = spec("watcher", after=("scheduler",), stop=StopSpec(timeout_ns=80 * S))
        world = running(CONTROLLER, SCHEDULER, watcher)
        world.primary("controller", 5, 20 * S)
        world.spawned("scheduler")
        world.spawned("watcher")
        world.stop_node()
        assert State.RUNNING is world.component("scheduler").state
        if event == "renewed":
            world.advance(10 * S)
            world.primary("controller", 5, 60 * S)
            world.advance(20 * S)
            world.exit("watcher")
            assert State.STOPPING is world.component("scheduler").state, "with all its time, for its lease was renewed"
            return
        if event == "expired":
            world.advance(14 * S)
        elif event == "standby":
            world.standby("controller", 5)
        else:
            world.primary("controller", 6, 20 * S)
        assert State.STOPPING is world.component("scheduler").state


class TestCommands:
    def test_without_a_configuration(self) -> None:
        """Before there is a configuration every command is refused with that reason."""
        world = World()
        for verb in Verb:
            word = world.command(verb)
            assert not world.replies[word].ok
            assert "there is no configuration yet" in world.replies[word].detail

    def test_no_such_component(self) -> None:
        """An unknown component is refused, with those that are known."""
        world = running(DB, APP)
        word = world.command(Verb.START, "dbb")
        assert world.replies[word].detail == "cannot start dbb: no such component here (known: app, db)"
        bare = World(node_spec())
        word = bare.command(Verb.START, "db")
        assert "(known: none)" in bare.replies[word].detail

    def test_wrong_subject(self) -> None:
        """A verb of the host is not for a component, nor the other way round."""
        world = running(DB)
        for verb in (Verb.DRAIN, Verb.UNDRAIN, Verb.DECOMMISSION, Verb.RECOMMISSION, Verb.MAINTENANCE):
            assert "concerns the whole host" in world.replies[world.command(verb, "db")].detail
        for verb in (Verb.START, Verb.STOP, Verb.RESTART, Verb.RELOAD_COMPONENT):
            assert "name a component" in world.replies[world.command(verb)].detail

    def test_start_waits_for_what_it_depends_on(self) -> None:
        """A start does not override a dependency: it is accepted, and carried out as soon as it may be."""
        world = World(node_spec(APP, DB))
        word = world.command(Verb.START, "app")
        assert (
            world.replies[word].ok,
            world.replies[word].detail,
        ) == (True, "app will be started as soon as it may: waits until db is ready")
        world.spawned("db")
        world.probed(0)
        assert "app" in world.spawns

    def test_start_of_what_runs(self) -> None:
        """A start of what runs changes nothing, and says so."""
        world = running(DB)
        word = world.command(Verb.START, "db")
        assert world.replies[word].detail == "db is running, pid 1001"

    def test_restart(self) -> None:
        """A restart ends the run and begins another at once, without a delay; a held one is released."""
        world = running(DB)
        world.command(Verb.RESTART, "db")
        world.exit("db", code=0)
        assert "db" in world.spawns
        world.spawned("db")
        world.command(Verb.STOP, "db")
        world.sync()
        word = world.command(Verb.RESTART, "db")
        world.exit("db", code=0)
        world.sync()
        assert world.replies[word].ok
        assert "db" in world.spawns

    def test_stop_of_what_does_not_run(self) -> None:
        """A stop of what does not run holds it."""
        world = World(node_spec(DB))
        world.spawn_failed("db")
        word = world.command(Verb.STOP, "db", reason="broken disk")
        world.sync()
        assert world.replies[word].detail == "db is held; it was not running"
        assert world.component("db").want.reason == "stopped by ann: broken disk"

    def test_reload(self) -> None:
        """A reload is a signal or a command of a process that lives, and nothing else."""
        commanded = spec("b", reload=CommandSpec(command=("reload",)))
        world = running(spec("a", reload=1), commanded, spec("c"))
        world.command(Verb.RELOAD_COMPONENT, "a")
        assert Signal(component="a", generation=1, signal=1) in world.past[-1][-1][2]
        world.command(Verb.RELOAD_COMPONENT, "b")
        assert any(isinstance(action, RunHelper) for action in world.past[-1][-1][2])
        refused = world.command(Verb.RELOAD_COMPONENT, "c")
        assert "its role file has no reload" in world.replies[refused].detail
        world.command(Verb.STOP, "a")
        refused = world.command(Verb.RELOAD_COMPONENT, "a")
        assert world.replies[refused].detail == "cannot reload a: it is stopping"
        world.exit("b", left=1)
        refused = world.command(Verb.RELOAD_COMPONENT, "b")
        assert world.replies[refused].detail == "cannot reload b: it is killing"

    def test_too_many_holds(self) -> None:
        """The durable record has a bound; one more hold is refused, one that exists already is not."""
        holds = tuple(Hold(component=f"c{number}", by="ann", reason="", at_wall_ns=0) for number in range(MAX_HOLDS))
        world = running(DB, spec("c0"), disk=DurableFacts(holds=holds))
        refused = world.command(Verb.STOP, "db")
        assert "1024 components are held already" in world.replies[refused].detail
        word = world.command(Verb.STOP, "c0")
        world.sync()
        assert world.replies[word].ok

    def test_removed_meanwhile(self) -> None:
        """A start that waited for the disk is refused when its component has left the configuration meanwhile."""
        world = running(DB, APP)
        for left in ("down", "running"):
            world.command(Verb.STOP, "app")
            world.sync()
            word = world.command(Verb.START, "app")
            if left == "down":
                world.exit("app", code=0)
            world.reload(node_spec(DB))
            world.sync()
            assert not world.replies[word].ok
            assert "removed" in world.replies[word].detail
            world.reload(node_spec(DB, APP))
            world.settle()


class TestMaintenance:
    def test_nothing_by_itself(self) -> None:
        """In maintenance nothing starts by itself; when it ends, what is wanted does."""
        world = running(DB)
        word = world.command(Verb.MAINTENANCE, reason="disk swap")
        world.sync()
        assert world.replies[word].ok
        world.exit("db")
        world.advance(600 * S)
        assert world.component("db").reason == "maintenance by ann: disk swap: nothing starts by itself"
        world.command(Verb.MAINTENANCE, enable=False)
        assert not world.spawns
        world.sync()
        assert "db" in world.spawns

    def test_by_an_operator(self) -> None:
        """A manual start or restart overrides it, for that one start."""
        world = running(DB)
        world.command(Verb.MAINTENANCE)
        world.command(Verb.RESTART, "db")
        world.exit("db", code=0)
        assert "db" in world.spawns
        world.spawn_failed("db")
        assert State.STOPPED is world.component("db").state
        world.command(Verb.START, "db")
        assert "db" in world.spawns

    def test_conditions_still_stop(self) -> None:
        """Leases stop in maintenance too."""
        world = managing()
        world.command(Verb.MAINTENANCE)
        world.standby("controller", 5)
        assert State.STOPPING is world.component("scheduler").state

    def test_off_already(self) -> None:
        """There is nothing to end twice; but an end that is not durable yet is not over."""
        world = running(DB)
        word = world.command(Verb.MAINTENANCE, enable=False)
        assert world.replies[word].detail == "maintenance is off already"
        world.command(Verb.MAINTENANCE)
        world.sync()
        world.command(Verb.MAINTENANCE, enable=False)
        second = world.command(Verb.MAINTENANCE, enable=False)
        assert second not in world.replies
        world.sync()
        assert world.replies[second].ok

    def test_a_reload_does_not_become_a_stop(self) -> None:
        """A component whose configuration changes in maintenance is restarted, not left stopped."""
        world = running(DB)
        world.command(Verb.MAINTENANCE)
        world.reload(node_spec(replace(DB, command=("db", "-v"))))
        world.exit("db", code=0)
        assert "db" in world.spawns


class TestConfiguration:
    def test_plan(self) -> None:
        """A change of what a process has from its birth restarts it; any other does not."""
        old = {one.name: one for one in (DB, APP, WEB, FRONT)}
        new = node_spec(DB, replace(APP, command=("app2",)), replace(WEB, readiness=None), spec("new"))
        plan = plan_change(old, new)
        assert (plan.added, plan.removed, plan.restarted, plan.updated) == (("new",), ("front",), ("app",), ("web",))

    def test_answer(self) -> None:
        """A reload says what it did."""
        world = running(DB, APP)
        world.asked[50] = world.asked[51] = Command(id=50, verb=Verb.STOP, by="ann")
        changed = node_spec(replace(DB, command=("db2",)), WEB)
        world.reload(changed, command_id=50)
        assert world.replies[50].detail == "added: web; removed: app; restarted: db"
        world.exit("app")
        world.reload(changed, command_id=51)
        assert world.replies[51].detail == "nothing changed"

    def test_digests(self) -> None:
        """Digests of one version compare, those of different versions do not."""
        assert digest_differs("1:a", "1:b")
        assert not digest_differs("1:a", "1:a")
        assert not digest_differs("1:a", "2:b")
        assert not digest_differs("", "1:b")
        assert process_digest(DB) == process_digest(replace(DB, readiness=None, stop=StopSpec(timeout_ns=1)))
        assert process_digest(DB) != process_digest(replace(DB, environment=(("A", "1"),)))

    def test_restarted(self) -> None:
        """What runs under another command now is restarted; what waits for its restart starts at once."""
        world = running(DB, WEB)
        world.exit("web")
        world.reload(node_spec(replace(DB, command=("db2",)), replace(WEB, command=("web2",))))
        assert State.STOPPING is world.component("db").state
        assert world.spawns["web"].spec.command == ("web2",)

    def test_started_by_the_same_change(self) -> None:
        """What the new configuration has just started is not restarted because of it."""
        world = World(node_spec(DB, APP))
        world.reload(node_spec(DB, replace(APP, after=(), command=("app2",))))
        assert world.spawns["app"].spec.command == ("app2",)
        assert told(world.spawned("app")) == []

    def test_removed_and_back(self) -> None:
        """What was removed is stopped and goes; when it comes back its generations go on."""
        world = running(DB, APP)
        world.reload(node_spec(DB))
        assert State.STOPPING is world.component("app").state
        word = world.command(Verb.START, "app")
        assert world.replies[word].detail == "cannot start app: it was removed from the configuration"
        world.exit("app", code=0)
        assert "app" not in world.state.members
        world.deliver(Exited(component="app", generation=1, status=ExitStatus(code=0)))
        world.deliver(Spawned(component="app", generation=1, pid=4))
        world.deliver(Beat(component="app", generation=1))
        world.reload(node_spec(DB, APP))
        assert world.spawns["app"].generation == 2

    def test_back_before_it_is_gone(self) -> None:
        """What comes back while it is still stopping starts again when it has stopped."""
        world = running(DB, APP)
        world.reload(node_spec(DB))
        world.reload(node_spec(DB, APP))
        world.exit("app", code=0)
        assert "app" in world.spawns

    def test_identity_is_fixed(self) -> None:
        """A reload with another instance id is refused, and what runs goes on."""
        world = running(DB)
        world.asked[50] = Command(id=50, verb=Verb.STOP, by="ann")
        world.deliver(ConfigLoaded(spec=node_spec(APP, instance_id="i-2"), command_id=50))
        assert "cannot reload: host.instance_id changed from i-1 to i-2" in world.replies[50].detail
        assert states(world) == {"db": "running"}
        assert world.state.config_error is not None

    def test_wrong(self) -> None:
        """A wrong configuration changes nothing, and is told once."""
        world = running(DB)
        world.asked[50] = Command(id=50, verb=Verb.STOP, by="ann")
        world.deliver(ConfigFailed(error="line 3: no"))
        world.deliver(ConfigFailed(error="line 3: no", command_id=50))
        assert world.replies[50].detail == "cannot reload: line 3: no"
        assert sum(log.event == "config.failed" for log in world.logs) == 1
        assert states(world) == {"db": "running"}

    def test_last_good_copy(self) -> None:
        """Under the last good copy the agent runs, and the error stays visible."""
        world = World()
        world.deliver(ConfigLoaded(spec=node_spec(DB), warning="line 3: no"))
        assert (world.state.phase, world.state.config_error) == (NodePhase.RUNNING, "line 3: no")

    def test_raised_limit(self) -> None:
        """A start limit that was raised gives what had given up another chance."""
        limited = replace(DB, restart=RestartSpec(limit=1))
        world = running(limited)
        world.now += S
        world.exit("db")
        assert State.FAILED is world.component("db").state
        world.reload(node_spec(DB))
        assert "db" in world.spawns

    def test_kill_scope_becomes_tree(self) -> None:
        """What an earlier run left is cleared once the kill scope says so."""
        world = running(WORKER)
        world.exit("worker", left=2)
        world.reload(node_spec(replace(WORKER, stop=StopSpec(kill_scope=KillScope.TREE))))
        assert State.KILLING is world.component("worker").state

    def test_kill_scope_becomes_tree_during_the_check(self) -> None:
        """The same where the check before the start is under way: nothing is started over what is left."""
        jobs = spec("api", pre_start=PRE_START, stop=StopSpec(kill_scope=KillScope.PROCESS))
        world = World(node_spec(jobs))
        world.checked("api")
        world.spawned("api")
        world.now += S
        world.exit("api", left=2)
        world.reload(node_spec(replace(jobs, stop=StopSpec())))
        world.checked("api")
        assert not world.spawns
        assert State.KILLING is world.component("api").state

    def test_lease_condition_taken_away(self) -> None:
        """What runs under a lease no more has all its time to stop, long after that lease has ended."""
        world = managing(for_ns=20 * S)
        free = replace(SCHEDULER, run_while=(), restart_on_change=())
        world.mains["scheduler"].terms.clear()
        world.reload(node_spec(CONTROLLER, free))
        world.advance(60 * S)
        world.command(Verb.STOP, "scheduler")
        assert State.STOPPING is world.component("scheduler").state

    def test_new_token_without_a_restart(self) -> None:
        """A component that does not restart for a new term follows the new lease to its end."""
        keeper, user = spec("keeper", states=("lease.p",)), spec("user", run_while=("lease.p",))
        world = running(keeper, user)
        lease(world, 1, 20 * S)
        world.spawned("user")
        world.advance(5 * S)
        lease(world, 2, 50 * S)
        world.advance(30 * S)
        assert State.RUNNING is world.component("user").state
        world.command(Verb.STOP, "user")
        assert State.STOPPING is world.component("user").state

    def test_another_lease_than_its_own(self) -> None:
        """What a keeper says of a lease that it is not the authority for is nothing."""
        world = running(spec("keeper", states=("lease.p",)), spec("user", run_while=("lease.q",)))
        said = LeaseStatement(name="q", held=True, token=1, valid_until_ns=world.now + 20 * S)
        world.beat("keeper", leases=(said,))
        assert not world.state.table.leased

    def test_lease_renewed_during_the_check(self) -> None:
        """A start whose check took its time begins under the lease as it is then."""
        checked = replace(SCHEDULER, pre_start=PRE_START)
        world = running(CONTROLLER, checked)
        world.primary("controller", 5, 20 * S)
        world.advance(5 * S)
        world.primary("controller", 6, 20 * S)
        world.checked("scheduler")
        assert (6, world.now + 20 * S) == (
            world.spawns["scheduler"].term,
            world.spawns["scheduler"].lease_valid_until_ns,
        )

    def test_removed_while_its_start_waits(self) -> None:
        """A component that leaves the configuration while its manual start waits for a dependency is simply gone."""
        world = World(node_spec(DB, APP))
        world.command(Verb.START, "app")
        world.reload(node_spec(DB))
        assert states(world) == {"db": "starting"}

    def test_a_dependant_that_is_gone(self) -> None:
        """What depended on a component and has left the configuration is looked at no more."""
        world = running(DB, APP)
        world.reload(node_spec(DB))
        world.exit("app")
        world.exit("db")
        assert states(world) == {"db": "backoff"}

    def test_stop_while_a_lease_is_held_elsewhere(self) -> None:
        """A component that must not run while a lease is held starts when that lease ends by itself."""
        keeper, ersatz = spec("keeper", states=("lease.p",)), spec("ersatz", stop_when=("lease.p",))
        world = World(node_spec(keeper, ersatz))
        world.spawned("keeper")
        world.spawned("ersatz")
        lease(world, 1, 20 * S)
        world.exit("ersatz", code=0)
        world.advance(20 * S)
        assert "ersatz" in world.spawns

    def test_what_is_remembered_is_bounded(self) -> None:
        """Of components that left the configuration the latest are remembered."""
        many = [Past(component=f"c{number}", generation=1) for number in range(MAX_PAST + 3)]
        kept = remember(remember({}, *many[:5]), *many[5:])
        assert len(kept) == MAX_PAST
        assert "c2" not in kept
        assert "c3" in kept


class TestAdoption:
    def test_nothing_is_started_twice(self) -> None:
        """A new agent adopts what runs, with its readiness and its counts, and starts nothing twice."""
        world = running(DB, APP)
        world.crash()
        assert states(world) == {"db": "running", "app": "running"}
        assert world.component("db").ready is True
        assert world.component("db").generation == 1
        assert {"component.adopted"} <= {log.event for log in world.logs}

    def test_scheduler_under_a_kept_lease(self) -> None:
        """An adopted scheduler is not stopped for the agent's restart, nor kept beyond its lease."""
        world = managing(term=5, for_ns=20 * S)
        world.now += 5 * S
        world.crash()
        assert State.RUNNING is world.component("scheduler").state
        world.advance(9 * S)
        assert State.STOPPING is world.component("scheduler").state

    def test_scheduler_whose_lease_is_not_known(self) -> None:
        """Without the record an adopted scheduler is stopped, in the time that its own environment gives it."""
        world = managing(term=5, for_ns=20 * S)
        world.now += 16 * S
        world.crash(record_lost=True)
        assert State.STOPPING is world.component("scheduler").state
        world.advance(3 * S)
        assert State.KILLING is world.component("scheduler").state

    def test_scheduler_of_which_nothing_is_known(self) -> None:
        """A leased component gets no more time to stop, also where nobody knows under which lease it runs."""
        world = managing(term=5, for_ns=20 * S)
        world.mains["scheduler"].lease_until_ns = None
        world.crash(record_lost=True)
        world.notified("scheduler", extend_ns=60 * S)
        world.advance(5 * S)
        assert State.KILLING is world.component("scheduler").state

    def test_term_changed_while_no_agent_ran(self) -> None:
        """A scheduler of an older term is restarted under the newest one."""
        world = managing(term=5)
        world.crash()
        world.primary("controller", 6, 20 * S)
        assert State.STOPPING is world.component("scheduler").state

    def test_spawn_in_flight(self) -> None:
        """A process whose spawn the old agent had not heard of is adopted; one that did not come to be is started."""
        for came in (True, False):
            world = World(node_spec(WEB))
            world.crash(spawned=came)
            assert came is ("web" in world.mains)
            assert came is not ("web" in world.spawns)

    def test_configuration_changed_meanwhile(self) -> None:
        """What runs under an older command is restarted, what is configured no more is stopped as it was started."""
        world = running(DB, spec("old", stop=StopSpec(signal=3, timeout_ns=2 * S)))
        world.spec = node_spec(replace(DB, command=("db2",)))
        world.crash()
        assert State.STOPPING is world.component("db").state
        assert State.STOPPING is world.component("old").state
        assert [KillTree(component="old", generation=1)] == world.advance(2 * S)
        world.exit("old", signal=9)
        assert "old" not in world.state.members

    def test_removed_worker_meanwhile(self) -> None:
        """A worker that is configured no more is stopped without its jobs."""
        world = running(WORKER, WEB)
        world.spec = node_spec(WEB)
        world.crash()
        world.exit("worker", code=0, left=2)
        assert "worker" not in world.state.members

    def test_crash_loop_goes_on(self) -> None:
        """Generations go on where the last agent stopped."""
        world = running(WEB)
        world.exit("web")
        world.crash()
        assert world.spawns["web"].generation == 2
        assert world.component("web").restarts == 1

    def test_found_although_held(self) -> None:
        """A process that lives is proof that its exit-hold is over."""
        world = running(WORKER)
        world.exit("worker", code=78)
        world.command(Verb.START, "worker")
        world.spawned("worker")
        world.crash()
        assert State.RUNNING is world.component("worker").state


class TestMisc:
    def test_late_answers(self) -> None:
        """Answers for components that do not exist are nothing."""
        before = running(DB).state
        for event in (
            Spawned(component="x", generation=1, pid=1),
            Exited(component="x", generation=1, status=ExitStatus(code=0)),
            Beat(component="x", generation=1, host_state=HostState.DECOMMISSIONED, epoch=9),
        ):
            assert (before, ()) == node.step(before, event, T0)

    def test_failed_write_of_nothing(self) -> None:
        """A failed write that nothing waits for is nothing."""
        before = running(DB).state
        assert (before, ()) == node.step(before, FactsWriteFailed(seq=1, error="disk full"), T0)

    def test_trouble_of_the_disk_is_told_once(self) -> None:
        """A disk that stays full is told once, and that it is well again."""
        world = running(DB)
        world.command(Verb.STOP, "db")
        for _ in range(3):
            world.write_failed()
            world.advance(S)
        world.written()
        events = [log.event for log in world.logs if log.event.startswith("store.")]
        assert events == ["store.failed", "store.recovered"]

    def test_nothing_to_wait_for(self) -> None:
        """A node that waits for nothing needs no timer."""
        assert node.next_wake_ns(NodeState()) is None
        assert node.next_wake_ns(running(spec("web")).state) is None

    def test_tick_of_nothing(self) -> None:
        """Time alone changes nothing that has no deadline."""
        before = running(spec("web", liveness=HEARTBEAT)).state
        assert (before, ()) == node.step(before, Tick(), T0 + 3_600 * S)

    def test_two_found(self) -> None:
        """Of two processes that are found for one component the first is taken."""
        world = World()
        first = Found(component="db", pid=5, generation=3, started_ns=T0, started_before=True)
        found = (first, replace(first, pid=6, generation=2))
        world.mains["db"] = replace(running(DB).mains["db"], generation=3)
        world.deliver(ConfigLoaded(spec=node_spec(DB), found=found))
        run = world.component("db").run
        assert run is not None
        assert run.pid == 5

    def test_authority_that_changed(self) -> None:
        """What another component had stated is forgotten with its authority."""
        kept = KeptLease(fact="controller.primary", authority="old", value=True, term=3, valid_until_ns=T0 + 20 * S)

        world = World()
        world.deliver(Booted(boot_id="b", facts=DurableFacts(), leases=(kept,)))
        world.deliver(ConfigLoaded(spec=node_spec(CONTROLLER, SCHEDULER)))
        assert not world.state.table.leased
        assert dict(world.state.table.highest) == {"controller.primary": 3}


def held(name: str) -> DurableFacts:
    return DurableFacts(holds=(Hold(component=name, by="ann", reason="", at_wall_ns=0),))


def lease(world: World, token: int, for_ns: int) -> None:

    said = LeaseStatement(name="p", held=True, token=token, valid_until_ns=world.now + for_ns)
    world.beat("keeper", leases=(said,))


def test_what_is_known_of_the_past_goes_on_under_the_next_agent() -> None:
    """Counts, the last exit and the jobs last reported survive the agent: they decide and explain."""
    past = Past(component="db", generation=4, restarts=3, crashes=2, last_exit="exited with status 1", last_jobs=5)
    state, _ = node.step(NodeState(), Booted(boot_id="b", facts=DurableFacts()), T0)
    state, _ = node.step(state, ConfigLoaded(spec=node_spec(DB), past=(past,)), T0)
    assert past_of("db", state.members["db"].state) == replace(past, generation=5, restarts=4)
