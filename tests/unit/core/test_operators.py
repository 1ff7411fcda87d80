"""What operators are told, and what becomes of a word that is said twice."""

from dataclasses import replace

import pytest

from node_manager.core import status
from node_manager.core.durable import DurableFacts, Latch
from node_manager.core.events import Command, ConfigFailed, HostState, Verb
from node_manager.core.spec import DrainSpec
from node_manager.core.states import State
from tests.unit.core.build import PRE_START, S, node_spec, spec
from tests.unit.core.hosts import KILLING_WORKER, SCHEDULER, WEB, WORKER, running
from tests.unit.core.world import World

ROOT = "root (uid 0)"


def say(world: World, verb: Verb, component: str | None = None, **fields: object) -> str:
    """An operator's word; returns its answer once everything is durable."""
    word = world.command(verb, component, **fields)
    world.sync()
    return world.replies[word].detail


def say_as(world: World, by: str, verb: Verb, component: str | None = None) -> str:
    """The word of somebody else than ann, with his answer."""
    command = Command(id=1_000 + len(world.replies), verb=verb, by=by, component=component)
    world.asked[command.id] = command
    world.deliver(command)
    world.sync()
    return world.replies[command.id].detail


def logged(world: World, event: str) -> list[dict[str, str | int | bool | None]]:
    return [{"component": log.component, **dict(log.fields)} for log in world.logs if log.event == event]


class TestRestart:
    @pytest.mark.parametrize("check", [None, PRE_START])
    def test_of_a_held_component_starts_it_once(self, check: object) -> None:
        """A restart of what an operator had stopped is one start, not a start and a restart."""
        web = spec("web", pre_start=check)
        world = running(replace(web, pre_start=None))
        say(world, Verb.STOP, "web")
        world.exit("web", code=0)
        world.reload(node_spec(web))
        assert say(world, Verb.RESTART, "web") == "web is starting"
        if check is not None:
            world.checked("web")
        world.spawned("web")
        world.settle()
        assert (
            world.component("web").state,
            world.component("web").generation,
            world.component("web").restarts,
        ) == (State.RUNNING, 2, 1)

    def test_twice_while_the_disk_is_slow(self) -> None:
        """Two restarts that wait for the same release are one start as well."""
        world = running(WEB)
        say(world, Verb.STOP, "web")
        world.exit("web", code=0)
        for _ in range(2):
            world.command(Verb.RESTART, "web")
        newest = world.writes.pop()
        world.writes = [newest]
        world.sync()
        world.spawned("web")
        assert world.component("web").generation == 2

    def test_names_who_asked(self) -> None:
        """The reason of a stop names the operator who asked for the restart."""
        world = running(WEB)
        say_as(world, ROOT, Verb.RESTART, "web")
        assert world.component("web").reason == f"restart asked for by {ROOT}"
        world.exit("web", code=0)
        last = "stopped by the agent: restart asked for by root (uid 0); exited with status 0"
        assert world.component("web").last_exit == last


class TestRefused:
    def test_is_in_the_history(self) -> None:
        """A refused command leaves who asked for what, and which rule forbids it."""
        world = running(WORKER)
        say(world, Verb.DECOMMISSION, reason="lease is over")
        say_as(world, ROOT, Verb.START, "worker")
        assert logged(world, "command.refused") == [
            {
                "component": "worker",
                "verb": "start",
                "by": ROOT,
                "rule": "decommissioned",
                "detail": "cannot start worker: host decommissioned by ann: lease is over",
            }
        ]

    def test_what_is_done_leaves_none(self) -> None:
        """A command that is obeyed is not said to be refused."""
        world = running(WORKER)
        say(world, Verb.STOP, "worker")
        assert logged(world, "command.refused") == []

    def test_an_unknown_component_is_not_named_as_one(self) -> None:
        """A name that is no component's here stands in the sentence alone."""
        world = running(WEB)
        say(world, Verb.START, "wbe")
        assert [(entry["component"], entry["rule"]) for entry in logged(world, "command.refused")] == [(None, None)]

    def test_once_it_is_durable(self) -> None:
        """A start that a later stop overtook is refused late, and that is in the history too."""
        world = running(WEB)
        say(world, Verb.STOP, "web")
        word = world.command(Verb.START, "web")
        world.command(Verb.STOP, "web")
        world.sync()
        assert not world.replies[word].ok
        assert [entry["rule"] for entry in logged(world, "command.refused")] == ["operator-hold"]

    def test_a_reload(self) -> None:
        """A reload that finds a wrong configuration is refused; one that nobody asked for is not."""
        world = running(WEB)
        world.asked[7] = Command(id=7, verb=Verb.RELOAD_COMPONENT, by="ann")
        world.deliver(ConfigFailed(error="line 3", command_id=7))
        world.deliver(ConfigFailed(error="line 4"))
        assert [entry["detail"] for entry in logged(world, "command.refused")] == ["cannot reload: line 3"]
        assert not world.replies[7].ok


class TestRepeated:
    @pytest.mark.parametrize(
        ("verb", "name", "again"),
        [
            (Verb.STOP, "worker", "worker is held already by ann, for 5 min: disk swap"),
            (Verb.MAINTENANCE, None, "maintenance is on already by ann, for 5 min: disk swap"),
            (Verb.DRAIN, None, "this host is draining already by ann, for 5 min: disk swap"),
            (Verb.DECOMMISSION, None, "this host is decommissioned already by ann, for 5 min: disk swap"),
        ],
    )
    def test_keeps_who_when_and_why(self, verb: Verb, name: str | None, again: str) -> None:
        """A word that is said again without a reason changes nothing, and the answer says what holds since when."""
        world = running(WORKER)
        say(world, verb, name, reason="disk swap")
        before = world.disk
        world.advance(300 * S)
        assert say_as(world, "bob", verb, name) == again
        assert say(world, verb, name, reason="disk swap") == again
        assert before == world.disk
        say(world, verb, name, reason="a fire")
        assert "a fire" in repr(world.disk)
        assert "disk swap" not in repr(world.disk)

    def test_is_not_acknowledged_before_it_is_durable(self) -> None:
        """A repeated word is answered when what it repeats is on the disk."""
        world = running(WORKER)
        world.command(Verb.STOP, "worker", reason="disk swap")
        word = world.command(Verb.STOP, "worker")
        assert word not in world.replies
        world.sync()
        assert world.replies[word].detail.startswith("worker is held already by ann")
        assert len(world.disk.holds) == 1

    def test_order_of_holds_does_not_matter(self) -> None:
        """A word that repeats the older of two holds writes nothing."""
        world = running(WORKER, WEB)
        for name in ("worker", "web", "worker"):
            say(world, Verb.STOP, name)
        before = world.state.writeback.next_seq
        say(world, Verb.STOP, "worker")
        assert before == world.state.writeback.next_seq

    def test_drain_keeps_its_deadline(self) -> None:
        """A drain that is asked for again keeps its deadline, unless a new one is given; then its reason stays."""
        world = running(WORKER)
        first, second = world.now + 100 * S, world.now + 200 * S
        say(world, Verb.DRAIN, reason="kernel update", deadline_ns=first)
        say(world, Verb.DRAIN)
        say(world, Verb.DRAIN, reason="new kernel")
        assert (first, "new kernel") == (view(world)["deadline_ns"], view(world)["reason"])
        assert say(world, Verb.DRAIN, deadline_ns=second) == "draining worker"
        assert (second, "new kernel") == (view(world)["deadline_ns"], view(world)["reason"])

    def test_the_next_step_is_no_repetition(self) -> None:
        """A decommission does not take over the reason of a drain."""
        world = running(WORKER)
        say(world, Verb.DRAIN, reason="kernel update")
        assert say(world, Verb.DECOMMISSION) == "decommissioned: stops worker"
        assert view(world)["reason"] == ""

    def test_undone_meanwhile(self) -> None:
        """A stop that follows a start whose release is not durable yet is a new one."""
        world = running(WORKER)
        say(world, Verb.STOP, "worker", reason="disk swap")
        world.command(Verb.START, "worker")
        word = world.command(Verb.STOP, "worker")
        world.sync()
        assert world.replies[word].detail == "worker is held and being stopped"
        assert [hold.reason for hold in world.disk.holds] == [""]


MUTE = "worker is down and tells no controller: decommission the host there too"


class TestDecommission:
    @pytest.mark.parametrize(
        ("worker", "jobs", "answer"),
        [
            (WORKER, 2, "decommissioned: stops worker; the 2 jobs of worker are left running"),
            (WORKER, 1, "decommissioned: stops worker; the 1 job of worker is left running"),
            (KILLING_WORKER, 2, "decommissioned: stops worker; the 2 jobs of worker are killed"),
            (spec("worker", drain=DrainSpec()), 1, "decommissioned: stops worker; the 1 job of worker is killed"),
            (
                spec("worker", stop_when=("host.decommissioned",), stop=WORKER.stop),
                1,
                "decommissioned: stops worker; the 1 job of worker is left running",
            ),
            (WORKER, 0, "decommissioned: stops worker"),
        ],
    )
    def test_says_what_becomes_of_jobs(self, worker: object, jobs: int, answer: str) -> None:
        """The answer says which jobs are left running, and which are killed."""
        world = running(worker)  # type: ignore[arg-type]
        world.beat("worker", jobs=jobs)
        assert say(world, Verb.DECOMMISSION) == answer

    def test_jobs_of_a_worker_that_is_down(self) -> None:
        """What a worker that is down last reported is told as that."""
        world = running(WORKER)
        world.beat("worker", jobs=2)
        say(world, Verb.STOP, "worker")
        world.exit("worker", code=0)
        told = "decommissioned: stops worker; the 2 jobs of worker that it last reported are left running"
        assert say(world, Verb.DECOMMISSION) == f"{told}; {MUTE}"

    def test_a_drained_worker_tells_nobody(self) -> None:
        """The controller cannot hear of it any more: the operator is told, and the worker is not started for that."""
        world = running(WORKER)
        say(world, Verb.DRAIN)
        world.beat("worker", host_state=HostState.DRAINED, epoch=1)
        world.exit("worker", code=0)
        assert State.STOPPED is world.component("worker").state
        assert say(world, Verb.DECOMMISSION) == f"decommissioned: stops worker; {MUTE}"
        assert State.STOPPED is world.component("worker").state


def facts(world: World) -> list[tuple[object, ...]]:
    seen = status.node_status(world.state, world.now, name="h1", cgroup_mode="session")["facts"]
    keys = {"name", "value", "authority", "term", "valid_until_ns", "age_ms"}
    assert all(keys == set(fact) for fact in seen)
    assert {fact["valid_until_ns"] for fact in seen} <= {None}
    return [(fact["name"], fact["value"], fact["authority"], fact["term"], fact["age_ms"]) for fact in seen]


def view(world: World) -> status.HostStatus:
    return status.node_status(world.state, world.now, name="h1", cgroup_mode="session")["host"]


class TestFacts:
    def test_of_operators(self) -> None:
        """Holds and maintenance are facts while they are in force, stated by who said so."""
        world = running(WEB, WORKER)
        assert facts(world) == []
        world.command(Verb.STOP, "worker")
        world.advance(2 * S)
        world.command(Verb.STOP, "web")
        world.command(Verb.MAINTENANCE)
        world.advance(S)
        assert facts(world) == [
            ("node.maintenance", True, "ann", None, 1_000),
            ("operator.hold.web", True, "ann", None, 1_000),
            ("operator.hold.worker", True, "ann", None, 3_000),
        ]
        world.sync()
        world.command(Verb.MAINTENANCE, enable=False)
        world.sync()
        assert "node.maintenance" not in [name for name, *_ in facts(world)]

    def test_of_the_host(self) -> None:
        """What the host has reached is true, under the epoch of the controller where it said so."""
        world = running(WORKER)
        world.beat("worker", host_state=HostState.DRAINED, epoch=3)
        assert facts(world) == [
            ("host.draining", True, "worker", 3, 0),
            ("host.drained", True, "worker", 3, 0),
        ]

    def test_in_doubt(self) -> None:
        """What an unreadable record could say is unknown, stated by nobody."""
        world = running(WORKER)
        world.crash(unreadable="torn")
        assert facts(world)[-1] == ("host.decommissioned", None, "node manager", None, None)

    def test_a_clock_that_was_set_back(self) -> None:
        """A latch from the future has no age below zero."""
        latch = Latch(state="draining", by="ann", reason="", at_wall_ns=10**18)
        world = World(node_spec(SCHEDULER), disk=DurableFacts(operator_latch=latch))
        assert facts(world)[0] == ("host.draining", True, "ann", None, 0)
