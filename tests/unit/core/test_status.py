"""What the node looks like from outside: status, why, warnings and levels."""

from dataclasses import replace

import pytest

from node_manager.core import status
from node_manager.core.budget import rejoin_budget_ns
from node_manager.core.durable import DurableFacts, Hold, Latch, Maintenance
from node_manager.core.events import ExitStatus, FactsWriteFailed, HostState, Outcome, Verb
from node_manager.core.intent import PRECEDENCE, Rule
from node_manager.core.spec import NS_PER_MS, OnFailure, RestartSpec
from node_manager.core.states import describe_exit
from tests.unit.core.build import HEARTBEAT, PRE_START, T0, TCP, S, node_spec, spec
from tests.unit.core.hosts import BUDGET, CONTROLLER, SCHEDULER, WEB, WORKER, managing, running
from tests.unit.core.world import World


def seen(world: World) -> status.NodeStatus:
    return status.node_status(world.state, world.now, name="h0", cgroup_mode="session")


def component(world: World, name: str) -> status.ComponentStatus:
    return next(one for one in seen(world)["components"] if one["name"] == name)


def why(world: World, name: str) -> status.WhyStatus:
    return status.why(world.state, world.state.members[name], world.now)


class TestNodeStatus:
    def test_waiting(self) -> None:
        """Without a configuration the node says what it waits for, under the host's own name."""
        found = seen(World())
        assert tuple(found["node"][key] for key in ("name", "instance_id", "roles", "state", "ready")) == (
            "h0",
            None,
            [],
            "waiting-config",
            False,
        )
        assert found["node"]["config_error"] == "no configuration yet"
        assert status.not_ready(World().state) == ["the node is waiting-config"]

    def test_running(self) -> None:
        """A node is ready when everything that is wanted is; components stand in their order of start."""
        world = running(spec("app", after=("web",)), WEB)
        found = seen(world)
        assert (found["node"]["name"], found["node"]["instance_id"], found["node"]["ready"]) == ("h1", "i-1", True)
        assert [one["name"] for one in found["components"]] == ["web", "app"]
        world.exit("web")
        assert status.not_ready(world.state) == ["web is backoff: exited with status 1"]

    def test_what_is_not_wanted_is_not_missed(self) -> None:
        """What an operator stopped does not make the node unready."""
        world = running(WEB)
        world.command(Verb.STOP, "web")
        world.exit("web")
        assert status.not_ready(world.state) == []

    def test_warnings(self) -> None:
        """What an operator must know stands in words, the most serious first."""
        world = running(WORKER)
        world.crash(unreadable="torn")
        world.deliver(FactsWriteFailed(seq=1, error="disk full"))
        world.state = replace(world.state, config_error="line 3")
        assert status.warnings(world.state, world.now) == [
            "it is not known whether this host is decommissioned: torn",
            "1 changes are in force but not durable: disk full; trying again",
            "the configuration cannot be taken; the last good one is in force",
        ]
        assert tuple(seen(world)["host"][key] for key in ("state", "reason", "by")) == (
            "decommissioned",
            "torn",
            "node manager",
        )

    def test_maintenance(self) -> None:
        """Maintenance stands with who and why."""
        for reason, text in (("", "ann"), ("disk swap", "ann: disk swap")):
            record = DurableFacts(maintenance=Maintenance(by="ann", reason=reason, at_wall_ns=0))
            assert text == seen(World(node_spec(WEB), disk=record))["node"]["maintenance"]

    def test_host(self) -> None:
        """The host's state stands with epoch, reason, deadline and the jobs that are left."""
        world = running(WORKER)
        world.hello("worker", jobs=3)
        world.command(Verb.DRAIN, reason="update", deadline_ns=T0 + 600 * S)
        host = seen(world)["host"]
        assert (
            host["state"],
            host["reason"],
            host["by"],
            host["deadline_ns"],
            host["jobs_left"],
        ) == ("draining", "update", "ann", T0 + 600 * S, 3)

    def test_facts(self) -> None:
        """A leased fact stands with its authority, term, end and age; one that nobody stated is unknown."""
        world = running(CONTROLLER, SCHEDULER, WORKER)
        assert [(f["value"], f["term"], f["age_ms"]) for f in seen(world)["facts"]] == [(None, None, None)]
        world.primary("controller", 5, 20 * S)
        world.advance(2 * S)
        fact = seen(world)["facts"][0]
        assert tuple(fact.values()) == ("controller.primary", True, "controller", 5, T0 + 20 * S, 2_000)


class TestComponentStatus:
    def test_verdict(self) -> None:
        """What is said of the process stands beside its readiness; of what nothing judges nothing is said."""
        world = running(spec("web", liveness=HEARTBEAT), spec("plain"))
        world.hello("web")
        name, plain = "web", world.state.members["plain"]
        assert (component(world, name)["verdict"], component(world, "plain")["verdict"]) == ("ok", None)
        assert status.why(world.state, plain, world.now)["verdict_detail"] is None
        world.advance(2 * S)
        found = status.why(world.state, world.state.members[name], world.now)
        assert (found["verdict"], found["verdict_detail"]) == ("slow", "nothing can be seen")
        assert found["next"] is not None
        assert found["next"]["what"] == "a look at its process, or a probe"

    def test_running(self) -> None:
        """What runs stands with pid, uptime and its own words."""
        world = running(WEB)
        world.beat("web", status="serving", jobs=1)
        world.advance(S)
        found = component(world, "web")
        assert (
            found["state"],
            found["ready"],
            found["pid"],
            found["uptime_ns"],
            found["status_text"],
            found["jobs"],
        ) == ("running", True, 1001, S, "serving", 1)
        assert (found["rule"], (found["next"] or {"what": ""})["what"]) == ("configured", "probe")

    def test_next(self) -> None:
        """It says what happens next by itself, and when."""
        world = managing(for_ns=20 * S)
        found = component(world, "scheduler")["next"]
        assert found == {"what": "stop, unless the lease is renewed", "at_ns": T0 + 20 * S - BUDGET}
        world.standby("controller", 5)
        assert component(world, "scheduler")["next"] == {"what": "SIGKILL", "at_ns": T0 + 5 * S}
        world.advance(5 * S)
        assert component(world, "scheduler")["next"] == {"what": "SIGKILL again", "at_ns": T0 + 6 * S}
        world.exit("scheduler")
        assert component(world, "scheduler")["next"] == {"what": "start when controller.primary is true", "at_ns": None}
        world.exit("controller")
        world.advance(world.component("controller").not_before_ns - world.now)
        world.spawn_failed("controller")
        assert (component(world, "controller")["next"] or {"what": ""})["what"] == "start"

    def test_reason(self) -> None:
        """The reason is what an operator has to know first."""
        world = running(
            spec("quiet", readiness=TCP),
            spec("mute", readiness=HEARTBEAT),
            spec("sick", liveness=replace(TCP, failure_threshold=1, on_failure=OnFailure.REPORT)),
            spec("waiting", after=("mute",)),
            spec("fresh"),
        )
        while world.probes:
            world.probed(0)
        world.advance(2 * S)
        for index in reversed(range(len(world.probes))):
            world.probed(index, Outcome.FAILED)
        wanted = world.component("fresh").want.reason
        reasons = {one["name"]: one["reason"] for one in seen(world)["components"]}
        assert reasons == {
            "quiet": wanted,
            "mute": "not ready: has not said READY=1",
            "sick": "liveness probe failed: ",
            "waiting": "waits until mute is ready",
            "fresh": wanted,
        }

    def test_not_ready_before_the_first_answer(self) -> None:
        """A probe that has not answered yet is named."""
        world = World(node_spec(WEB))
        world.spawned("web")
        assert component(world, "web")["reason"] == "not ready: no answer yet"

    @pytest.mark.parametrize(
        ("exit_status", "oom", "words"),
        [
            (ExitStatus(code=3), False, "exited with status 3"),
            (ExitStatus(), False, "ended, exit status unknown"),
            (ExitStatus(), True, "ended, exit status unknown, but the kernel had killed for want of memory"),
            (ExitStatus(signal=11, core_dumped=True), False, "killed by signal 11 (SIGSEGV), core dumped"),
            (ExitStatus(signal=9), True, "killed by signal 9 (SIGKILL), out of memory"),
            (ExitStatus(signal=15), False, "killed by signal 15 (SIGTERM)"),
            (ExitStatus(signal=60), False, "killed by signal 60 (unknown)"),
        ],
    )
    def test_exits_in_words(self, exit_status: ExitStatus, words: str, *, oom: bool) -> None:
        """An exit is told as operators read it."""
        assert words == describe_exit(exit_status, oom=oom)


class TestWhy:
    def test_precedence(self) -> None:
        """`why` lists every rule that holds, the deciding one first, with who said so."""
        record = DurableFacts(
            operator_latch=Latch(state="decommissioned", by="ann", reason="lease is over", at_wall_ns=5),
            holds=(Hold(component="worker", by="bob", reason="", at_wall_ns=6),),
            maintenance=Maintenance(by="cid", reason="", at_wall_ns=7),
        )
        worker = replace(WORKER, after=("web",), run_while=("host.draining", "component.web.ready"))
        world = World(node_spec(worker, WEB), disk=record)
        found = why(world, "worker")
        rules = [claim["rule"] for claim in found["claims"]]
        assert rules == [
            "decommissioned",
            "drained",
            "operator-hold",
            "condition",
            "dependency",
            "maintenance",
            "configured",
        ]
        assert rules == sorted(rules, key=lambda rule: PRECEDENCE[Rule(rule)])
        assert found["rule"] == rules[0]
        assert (found["claims"][0]["by"], found["claims"][0]["at_wall_ns"]) == ("ann", 5)
        assert found["reason"] == "host decommissioned by ann: lease is over"
        assert found["claims"][0]["since_ns"] == T0

    def test_its_own_rules(self) -> None:
        """Exit-hold, start limit and backoff are rules of the ledger too."""
        held, limited, failing = (
            replace(WORKER, name="held"),
            spec("limited", restart=RestartSpec(limit=1)),
            spec("web"),
        )
        world = running(held, limited, failing)
        world.exit("held", code=78)
        world.exit("web")
        world.now += S
        world.exit("limited")
        assert {name: why(world, name)["claims"][0]["rule"] for name in ("held", "limited", "web")} == {
            "held": "exit-hold",
            "limited": "start-limit",
            "web": "backoff",
        }
        assert {name: why(world, name)["rule"] for name in ("held", "limited", "web")} == {
            "held": "exit-hold",
            "limited": "start-limit",
            "web": "backoff",
        }

    def test_an_exit_hold_outranks_a_condition(self) -> None:
        """The rule that is shown is the strongest one that holds."""
        ending = replace(SCHEDULER, exit_status=WORKER.exit_status)
        world = running(CONTROLLER, ending)
        world.primary("controller", 5, 20 * S)
        world.spawned("scheduler")
        world.exit("scheduler", code=78)
        world.standby("controller", 5)
        assert component(world, "scheduler")["rule"] == "exit-hold"
        assert [claim["rule"] for claim in why(world, "scheduler")["claims"]][:2] == ["exit-hold", "condition"]

    def test_waiting_rules_are_nothing_to_what_runs(self) -> None:
        """A component that runs is not said to wait for anything."""
        world = running(WEB)
        world.command(Verb.MAINTENANCE)
        assert [claim["rule"] for claim in why(world, "web")["claims"]] == ["configured"]

    def test_probes(self) -> None:
        """`why` shows the armed probes with their counts."""
        world = running(spec("web", readiness=TCP, liveness=HEARTBEAT))
        probes = why(world, "web")["probes"]
        assert [(probe["probe"], probe["state"], probe["successes"]) for probe in probes] == [
            ("readiness", "passed", 1),
            ("liveness", "unknown", 0),
        ]
        starting = World(node_spec(spec("web", startup=HEARTBEAT)))
        assert why(starting, "web")["probes"] == []
        starting.spawned("web")
        assert [probe["probe"] for probe in why(starting, "web")["probes"]] == ["startup"]

    def test_new_rule_new_time(self) -> None:
        """Since when a rule holds is when it began to decide."""
        world = running(WEB)
        world.advance(5 * S)
        world.command(Verb.STOP, "web")
        world.advance(S)
        assert why(world, "web")["claims"][0]["since_ns"] == T0 + 5 * S


class TestLevels:
    def test_facts_for_a_dependant(self) -> None:
        """A dependant is told the facts that it depends on, with term and end; a stranger nothing."""
        world = managing(term=5, for_ns=20 * S)
        told = dict(status.levels(world.state, "scheduler", world.now))
        assert ("true", "5", str(T0 + 20 * S)) == (
            told["FACT.controller.primary"],
            told["FACT.controller.primary.TERM"],
            told["FACT.controller.primary.VALID_UNTIL_NS"],
        )
        assert (told["COMPONENT.controller"], told["COMPONENT.controller.RESTARTS"]) == ("running", "0")
        world.standby("controller", 5)
        assert dict(status.levels(world.state, "scheduler", world.now))["FACT.controller.primary"] == "false"
        assert "FACT.controller.primary" not in dict(status.levels(world.state, "controller", world.now))
        assert status.levels(world.state, "nobody", world.now) == []

    def test_directives_first(self) -> None:
        """Directives stand first, in every state, each as 1 or 0."""
        world = running(WORKER)
        keys = ["DECOMMISSIONED", "DRAIN", "DRAIN_DEADLINE_NS", "UNDRAIN", "EPOCH"]
        assert keys == [key for key, _value in status.levels(world.state, "worker", world.now)[:5]]

        def directives() -> list[str]:
            return [value for _key, value in status.levels(world.state, "worker", world.now)[:5]]

        assert directives() == ["0", "0", "0", "0", "0"]
        world.command(Verb.DRAIN, deadline_ns=T0 + 60 * S)
        assert ["0", "1", str(T0 + 60 * S), "0", "0"] == directives()
        world.command(Verb.DECOMMISSION)
        assert directives() == ["1", "0", "0", "0", "0"]

    def test_seen_epoch(self) -> None:
        """A worker is told up to which epoch its controller's words were taken: only then comes its own progress."""
        world = running(WORKER)

        def seen() -> str:
            return dict(status.levels(world.state, "worker", world.now))["SEEN_EPOCH"]

        assert seen() == "0"
        world.beat("worker", host_state=HostState.ACTIVE, epoch=3)
        world.sync()
        assert seen() == "3"

    def test_expected_back(self) -> None:
        """From its end until it has started, the others are told by when a component must have rejoined."""
        startup = replace(HEARTBEAT, failure_threshold=20)
        world = running(replace(WEB, startup=startup), spec("app"))
        world.hello("web")

        def back() -> str | None:
            return dict(status.levels(world.state, "app", world.now)).get("COMPONENT.web.EXPECTED_BACK_MS")

        assert back() is None
        world.exit("web")
        assert back() == str((S // 10 + 25 * S) // NS_PER_MS)
        assert component(world, "web")["expected_back_ms"] == 25_100
        world.advance(S // 10)
        assert back() == "25000"
        world.spawned("web")
        world.advance(2 * S)
        assert back() == "23000"
        world.hello("web")
        assert back() is None
        assert component(world, "web")["expected_back_ms"] is None

    def test_expected_back_over_a_restart(self) -> None:
        """It counts down from the beginning of the stop on: no more than the budget, and never more than before."""
        world = running(replace(WEB, startup=HEARTBEAT), spec("app"))
        world.hello("web")
        expected = []
        world.command(Verb.RESTART, "web")
        expected.append(component(world, "web")["expected_back_ms"])
        world.advance(10 * S)
        expected.append(component(world, "web")["expected_back_ms"])
        world.exit("web", signal=9, code=None)
        expected.append(component(world, "web")["expected_back_ms"])
        assert expected == [56_000, 46_000, 15_000]
        world.spawned("web")
        world.hello("web")
        world.command(Verb.STOP, "web")
        assert component(world, "web")["expected_back_ms"] is None, "nobody starts it again"

    def test_expected_back_while_it_is_checked(self) -> None:
        """The check before a start has its time: then the start has all of its own."""
        world = World(node_spec(replace(WEB, startup=HEARTBEAT, pre_start=PRE_START), spec("app")))
        world.sync()
        world.checked("web")
        world.spawned("web")
        world.hello("web")
        world.exit("web")
        expected = [component(world, "web")["expected_back_ms"]]
        world.advance(S // 10)
        world.advance(2 * S)
        expected.append(component(world, "web")["expected_back_ms"])
        world.checked("web")
        expected.append(component(world, "web")["expected_back_ms"])
        assert expected == [25_100, 23_000, 15_000]

    def test_expected_back_is_never_negative(self) -> None:
        """A component that takes longer than it may is expected back now."""
        world = running(WEB, spec("app"))
        world.exit("web")
        later = dict(status.levels(world.state, "app", world.now + 60 * S))
        assert later["COMPONENT.web.EXPECTED_BACK_MS"] == "0"

    def test_rejoin_budget(self) -> None:
        """A component is told the worst time of its own restart: stop, longest delay, check, startup and rejoin."""
        startup = replace(HEARTBEAT, initial_delay_ns=S, failure_threshold=3)
        checked = replace(WEB, startup=startup, pre_start=PRE_START)
        world = running(replace(WEB, startup=startup), spec("app"))
        assert dict(status.levels(world.state, "web", world.now))["REJOIN_BUDGET_MS"] == "50000"
        assert dict(status.levels(world.state, "app", world.now))["REJOIN_BUDGET_MS"] == "46000"
        assert component(world, "web")["rejoin_budget_ms"] == 50_000
        assert rejoin_budget_ns(checked) == 60 * S


def test_what_is_said_of_a_component_stays_once_its_age_needs_no_explanation() -> None:
    """After a crash the reason tells for a while how long ago it restarted; then only its uptime changes again."""
    world = running(spec("web"))

    def steady() -> bool:
        world.check_status()
        return status.steady(world.state.members["web"], world.now)

    assert steady()
    world.exit("web")
    assert not steady()
    world.advance(S)
    world.spawned("web")
    reset_ns = world.state.members["web"].spec.restart.reset_after_ns
    run = world.state.members["web"].state.run
    assert run is not None
    world.now = run.started_ns + reset_ns - 1
    assert not steady()
    assert "restarted" in component(world, "web")["reason"]
    for later_ns in (0, 1, 70 * S):
        world.now = run.started_ns + reset_ns + later_ns
        assert steady()
        assert component(world, "web")["uptime_ns"] == reset_ns + later_ns
