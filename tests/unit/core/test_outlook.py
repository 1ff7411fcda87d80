"""What is said of a component in words: why it is as it is, how its last run ended, and what comes next."""

from dataclasses import replace

import pytest

from node_manager.core import status
from node_manager.core.events import Found, HostState, Outcome, Verb
from node_manager.core.ordering import process_digest
from node_manager.core.spec import OnFailure, RestartSpec
from node_manager.core.words import jobs, span
from tests.unit.core.build import HEARTBEAT, NOTIFY, PRE_START, T0, TCP, S, node_spec, spec
from tests.unit.core.hosts import BUDGET, CONTROLLER, SCHEDULER, WEB, WORKER, managing, running
from tests.unit.core.world import World

ALIVE = replace(HEARTBEAT, on_failure=OnFailure.RESTART)
SILENT = "liveness probe failed: silent for 3 intervals of 1000 ms"


def seen(world: World, name: str) -> status.ComponentStatus:
    body = status.node_status(world.state, world.now, name="h0", cgroup_mode="session")
    return next(one for one in body["components"] if one["name"] == name)


def following(world: World, name: str) -> str | None:
    """What comes next, where it comes at no fixed time."""
    found = seen(world, name)["next"]
    assert found is None or found["at_ns"] is None
    return None if found is None else found["what"]


class TestNotAlive:
    def test_a_stopped_controller_is_not_ready(self) -> None:
        """What has failed its liveness probe is not ready, at once and with the reason, whatever follows."""
        world = running(CONTROLLER)
        world.hello("controller")
        assert seen(world, "controller")["ready"] is True
        world.advance(3 * S)
        found = seen(world, "controller")
        assert (found["state"], found["ready"], found["reason"]) == ("running", False, SILENT)
        assert status.not_ready(world.state) == [f"controller is running: {SILENT}"]
        world.beat("controller")
        assert seen(world, "controller")["ready"] is True

    def test_whatever_its_readiness_probe_says(self) -> None:
        """An open port makes nothing ready whose heartbeats have stopped."""
        world = running(spec("web", readiness=TCP, liveness=CONTROLLER.liveness))
        world.hello("web")
        world.advance(3 * S)
        assert world.component("web").ready is False

    def test_adopted(self) -> None:
        """A new agent does not take a stopped controller for a healthy one before it is heard."""
        world = running(CONTROLLER)
        world.hello("controller")
        world.advance(3 * S)
        world.crash()
        found = seen(world, "controller")
        assert (found["ready"], found["reason"]) == (
            None,
            "not heard from since this agent began; it was not ready before",
        )
        world.hello("controller")
        assert seen(world, "controller")["ready"] is True

    def test_a_healthy_one_stays_ready_when_it_is_adopted(self) -> None:
        """What was ready is ready for a new agent too, until it is silent."""
        world = running(CONTROLLER)
        world.hello("controller")
        world.crash()
        assert world.component("controller").ready is True


class TestLastEnd:
    def ended(self) -> World:
        """A component that a probe had killed."""
        world = running(spec("web", liveness=ALIVE))
        world.hello("web")
        world.advance(3 * S)
        world.exit("web", signal=15)
        return world

    def test_of_a_run_that_a_probe_ended(self) -> None:
        """In its delay it says that the agent stopped it and why, not that a stranger killed it."""
        world = running(spec("web", liveness=ALIVE, restart=RestartSpec(initial_ns=9 * S)))
        world.hello("web")
        world.advance(3 * S)
        world.exit("web", signal=15)
        end = f"stopped by the agent: {SILENT}; killed by signal 15 (SIGTERM)"
        assert (seen(world, "web")["state"], seen(world, "web")["reason"]) == ("backoff", end)
        assert status.why(world.state, world.state.members["web"], world.now)["last_exit"] == end

    def test_stays_visible_in_the_next_run(self) -> None:
        """A young run that follows a failure says so; an old one does not."""
        world = self.ended()
        world.advance(S)
        end = f"stopped by the agent: {SILENT}; killed by signal 15 (SIGTERM)"
        assert seen(world, "web")["reason"] == f"starting; restarted 1 s ago: {end}"
        world.spawned("web")
        world.advance(3 * S)
        assert seen(world, "web")["reason"] == f"restarted 4 s ago: {end}"
        world.advance(56 * S)
        assert seen(world, "web")["reason"] == "the configuration wants it"

    def test_beside_what_is_wrong_now(self) -> None:
        """What is wrong now stands first."""
        world = running(WEB)
        world.exit("web")
        world.advance(2 * S)
        world.spawned("web")
        world.advance(S)
        assert seen(world, "web")["reason"] == "not ready: no answer yet; restarted 2 s ago: exited with status 1"

    def test_is_not_known_after_an_adoption(self) -> None:
        """A new agent knows how often it failed, not how."""
        world = World(node_spec())
        found = Found(
            component="web",
            pid=9,
            generation=4,
            started_ns=T0 - 2 * S,
            started_before=True,
            failures=3,
            spec_digest=process_digest(spec()),
        )
        world.reload(node_spec(spec()), found=(found,))
        assert seen(world, "web")["reason"] == "restarted 2 s ago: 3 runs before it failed"
        assert seen(world, "web")["since_ns"] == T0 - 2 * S

    def test_of_a_stop(self) -> None:
        """Who stopped it, or what, stands before how it ended."""
        world = managing()
        world.command(Verb.STOP, "controller", reason="disk swap")
        world.exit("controller", code=0)
        assert world.component("controller").last_exit == "stopped by ann: disk swap; exited with status 0"
        world = managing()
        world.standby("controller", 5)
        world.exit("scheduler", signal=15)
        assert world.component("scheduler").last_exit == (
            "stopped by the agent: controller.primary is false: controller gave it up (term 5); "
            "killed by signal 15 (SIGTERM)"
        )

    def test_of_a_start_that_was_cancelled(self) -> None:
        """A spawn that is taken back is told as that."""
        world = World(node_spec(spec()))
        world.command(Verb.STOP, "web")
        world.spawn_failed("web")
        assert world.component("web").last_exit == "stopped by ann; no such file"

    def test_the_first_cause_stands(self) -> None:
        """An operator's stop that comes while a probe's is under way does not hide what began it."""
        world = running(spec("web", liveness=ALIVE))
        world.hello("web")
        world.advance(3 * S)
        world.command(Verb.STOP, "web")
        world.exit("web", signal=15)
        assert world.component("web").last_exit == f"stopped by the agent: {SILENT}; killed by signal 15 (SIGTERM)"

    def test_a_crash_is_a_crash(self) -> None:
        """What an earlier run was stopped for is not said of a later one."""
        world = self.ended()
        world.advance(S)
        world.spawned("web")
        world.exit("web", signal=11)
        assert world.component("web").last_exit == "killed by signal 11 (SIGSEGV)"


class TestCrashes:
    def test_are_counted_apart_from_restarts(self) -> None:
        """`restarts` counts every start after the first, `crashes` the runs that failed."""
        world = running(spec("web", liveness=ALIVE))
        world.hello("web")
        world.advance(3 * S)
        world.exit("web", signal=15)
        world.advance(S)
        world.spawned("web")
        world.command(Verb.RESTART, "web")
        world.exit("web", code=0)
        world.spawn_failed("web")
        world.advance(S)
        world.spawned("web")
        assert (seen(world, "web")["restarts"], seen(world, "web")["crashes"]) == (3, 2)

    def test_what_is_final_or_finished_is_none(self) -> None:
        """A status that the role file calls final, and the end of a drain, are no crashes."""
        world = running(WORKER)
        world.exit("worker", code=78)
        assert seen(world, "worker")["crashes"] == 0
        world = running(WORKER)
        world.command(Verb.DRAIN)
        world.exit("worker", code=0)
        assert seen(world, "worker")["crashes"] == 0

    def test_a_check_that_fails_is_one(self) -> None:
        """A start that its own check forbids is a run that failed."""
        world = World(node_spec(spec(pre_start=PRE_START)))
        world.checked("web", ok=False)
        found = seen(world, "web")
        assert (found["crashes"], found["reason"], found["last_exit"]) == (
            1,
            "pre_start failed: bad file",
            "pre_start failed: bad file",
        )


class TestNext:
    def test_operators(self) -> None:
        """What an operator, a final exit or a limit keeps down says which command starts it."""
        limited = spec("limited", restart=RestartSpec(limit=1))
        world = running(WEB, WORKER, limited)
        world.command(Verb.STOP, "web")
        world.exit("web")
        world.exit("worker", code=78)
        world.now += S
        world.exit("limited")
        for name in ("web", "worker", "limited"):
            assert following(world, name) == f"start when an operator says `xce-nodectl start {name}`"

    def test_host(self) -> None:
        """What the host's state keeps down says what releases it."""
        world = running(WORKER)
        world.command(Verb.DRAIN)
        world.exit("worker", code=0)
        assert following(world, "worker") == "start after `xce-nodectl undrain`"
        world.command(Verb.DECOMMISSION)
        assert following(world, "worker") == "start after `xce-nodectl recommission`"

    def test_doubt(self) -> None:
        """Where the record is in doubt only a recommission helps, whatever takes part in a drain."""
        web = replace(WEB, drain=WORKER.drain)
        world = running(web)
        world.crash(gone=("web",), unreadable="torn")
        world.cleared("web")
        assert following(world, "web") == "start after `xce-nodectl recommission`"

    def test_conditions(self) -> None:
        """What waits for facts names all of them."""
        mover = spec("mover", run_while=("component.web.ready", "host.draining"), stop_when=("component.app.ready",))
        world = World(node_spec(WEB, spec("app"), mover))
        world.spawned("app")
        assert following(world, "mover") == (
            "start when component.web.ready is true and host.draining is true and component.app.ready is not true"
        )

    def test_a_host_fact_that_stops(self) -> None:
        """What a drain stops at its beginning says that it waits for the end of the drain."""
        world = running(WORKER, spec("proxy", stop_when=("host.draining",)))
        world.command(Verb.DRAIN)
        world.exit("proxy")
        assert following(world, "proxy") == "start when host.draining is false"

    def test_a_lease(self) -> None:
        """A lease that holds, but not for long enough to start under it, is told from one that is unknown."""
        world = running(CONTROLLER, SCHEDULER)
        assert following(world, "scheduler") == "start when controller.primary is true"
        world.primary("controller", 5, BUDGET)
        assert following(world, "scheduler") == "start when controller.primary holds for long enough"

    def test_dependencies(self) -> None:
        """What waits for others names those that are not ready."""
        world = World(node_spec(WEB, spec("db"), spec("one", after=("web", "db")), spec("two", after=("web",))))
        assert following(world, "one") == "start when web and db are ready"
        world.spawned("db")
        assert following(world, "one") == "start when web is ready"

    def test_maintenance(self) -> None:
        """What maintenance keeps down waits for its end."""
        world = running(WEB)
        world.command(Verb.MAINTENANCE)
        world.exit("web")
        assert following(world, "web") == "start when maintenance ends"

    def test_nothing(self) -> None:
        """On a node that stops nothing follows; nor for what left the configuration and is being cleared."""
        world = running(WEB, spec("app"))
        world.stop_node()
        world.exit("web")
        assert following(world, "web") is None
        removed = replace(world.state.members["web"], removed=True)
        node = replace(world.state, members={**world.state.members, "web": removed})
        assert status.component_status(node, removed, world.now)["next"] is None


class TestReadiness:
    def test_withdrawn(self) -> None:
        """What was ready and says that it is not any more is told from what never said so."""
        world = running(spec("mute", readiness=HEARTBEAT))
        assert seen(world, "mute")["reason"] == "not ready: has not said READY=1"
        world.hello("mute")
        world.beat("mute", ready=False)
        assert seen(world, "mute")["reason"] == "not ready: says that it is not ready"

    def test_of_an_adopted_run(self) -> None:
        """What an earlier agent knew is not taken for the component's word."""
        world = running(spec("mute", readiness=HEARTBEAT))
        world.hello("mute")
        world.beat("mute", ready=False)
        world.crash()
        assert seen(world, "mute")["reason"] == "not ready: has not said READY=1"

    def test_notified(self) -> None:
        """The same over sd_notify: STOPPING=1 takes READY=1 back."""
        world = running(spec("web", readiness=NOTIFY))
        assert seen(world, "web")["reason"] == "not ready: has not notified READY=1"
        world.notified("web", ready=True)
        assert seen(world, "web")["ready"] is True
        world.notified("web", stopping=True)
        assert seen(world, "web")["reason"] == "not ready: it notified STOPPING=1"

    def test_startup(self) -> None:
        """A startup probe that failed and is only reported is named."""
        slow = spec("web", startup=replace(TCP, failure_threshold=1, on_failure=OnFailure.REPORT))
        world = running(slow)
        world.exit("web")
        world.advance(S)
        world.spawned("web")
        world.probed(0, Outcome.FAILED)
        assert seen(world, "web")["reason"].startswith("startup probe failed: ")


class TestDraining:
    def test_told(self) -> None:
        """A component that drains says who told it, why, and what it has left."""
        world = running(WORKER)
        world.command(Verb.DRAIN, reason="kernel update")
        assert seen(world, "worker")["reason"] == "told to drain by ann: kernel update"
        world.beat("worker", jobs=2)
        assert seen(world, "worker")["reason"] == "told to drain by ann: kernel update; 2 jobs left"
        assert status.why(world.state, world.state.members["worker"], world.now)["reason"].startswith("told to drain")

    def test_told_by_the_controller(self) -> None:
        """Where the controller drains the host its epoch stands there."""
        world = running(WORKER)
        world.beat("worker", host_state=HostState.DRAINING, epoch=3, jobs=1)
        assert seen(world, "worker")["reason"] == "told to drain by the controller under epoch 3; 1 job left"

    def test_not_told(self) -> None:
        """What takes no part in the drain says nothing of it."""
        world = running(WORKER, spec("app"))
        world.command(Verb.DRAIN)
        assert seen(world, "app")["reason"] == "the configuration wants it"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0 s"), (119, "119 s"), (120, "2 min"), (7_199, "119 min"), (7_200, "2 h"), (172_800, "2 days")],
)
def test_spans(seconds: int, words: str) -> None:
    """A span of time is told in whole units, never as less than nothing."""
    assert words == span(seconds * S)


def test_counts() -> None:
    """One is not many."""
    assert (jobs(0), jobs(1), jobs(2)) == ("0 jobs", "1 job", "2 jobs")
