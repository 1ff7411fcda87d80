"""Random histories of a whole node: whatever happens in whatever order, the core keeps its promises.

`World` proves them after every step (see `tests/unit/core/books.py`), here is only what may happen. In the end all
faults cease, and everything that is wanted has to run.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from node_manager.core.events import (
    JITTER_STEPS,
    Beat,
    ConfigFailed,
    Exited,
    ExitStatus,
    HeartbeatClosed,
    HelperDone,
    HostState,
    Leadership,
    LeaseStatement,
    Outcome,
    Spawned,
    TreeEmpty,
    Verb,
    WallClock,
)
from node_manager.core.intent import Rule
from node_manager.core.states import State
from tests.property.hosts import ALL, HOSTS
from tests.unit.core.build import S
from tests.unit.core.world import World

_RANDOM = "XCE_RANDOM" in os.environ
NAMES = tuple(one.name for one in ALL)
COMPONENT_VERBS = (Verb.START, Verb.STOP, Verb.RESTART, Verb.RELOAD_COMPONENT)
HOST_VERBS = tuple(verb for verb in Verb if verb not in COMPONENT_VERBS)
TIMES = st.sampled_from((0, S // 10, S, 4 * S, 13 * S, 70 * S))
TERMS = st.sampled_from((None, 0, 1, 1, 2, 2, 3, 5))
UNTIL = st.sampled_from((None, -1 * S, 1 * S, 8 * S, 20 * S, 59 * S, 90 * S))
LEFT = st.sampled_from((0, 0, 1, None))


class Histories(RuleBasedStateMachine):
    """What may happen to a node."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    def _pick(self, data: st.DataObject, names: Any) -> Any:
        return data.draw(st.sampled_from(sorted(names)))

    @initialize(host=st.integers(0, len(HOSTS) - 1), kind=st.booleans())
    def begin(self, host: int, kind: bool) -> None:
        self.world.spec = HOSTS[host]
        self.world.boot_agent(())
        if kind:
            for _ in range(8):
                self.world.kindly()
                self.world.advance(S)

    def alive(self) -> bool:
        return not self.world.finished

    # --- processes

    @precondition(lambda self: self.world.spawns)
    @rule(data=st.data(), ok=st.sampled_from((True, True, True, False)), jitter=st.integers(0, JITTER_STEPS - 1))
    def spawn_answered(self, data: st.DataObject, ok: bool, jitter: int) -> None:
        name = self._pick(data, self.world.spawns)
        if ok:
            self.world.spawned(name)
        else:
            self.world.spawn_failed(name, jitter)

    @precondition(lambda self: self.world.checks)
    @rule(data=st.data(), ok=st.booleans())
    def check_answered(self, data: st.DataObject, ok: bool) -> None:
        self.world.checked(self._pick(data, self.world.checks), ok=ok)

    @precondition(lambda self: self.world.mains)
    @rule(
        data=st.data(),
        status=st.sampled_from(((0, None), (1, None), (77, None), (78, None), (79, None), (None, 9), (None, None))),
        left=LEFT,
    )
    def process_ends(self, data: st.DataObject, status: tuple[int | None, int | None], left: int | None) -> None:
        self.world.exit(self._pick(data, self.world.mains), code=status[0], signal=status[1], left=left)

    @precondition(lambda self: any(main.ending for main in self.world.mains.values()))
    @rule(data=st.data(), left=LEFT)
    def process_obeys(self, data: st.DataObject, left: int | None) -> None:
        name = self._pick(data, [name for name, main in self.world.mains.items() if main.ending])
        self.world.exit(name, code=0, left=left)

    @precondition(lambda self: self.world.clearable())
    @rule(data=st.data())
    def tree_is_gone(self, data: st.DataObject) -> None:
        self.world.cleared(self._pick(data, self.world.clearable()))

    @precondition(lambda self: self.world.probes)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def probe_answered(self, data: st.DataObject, outcome: Outcome) -> None:
        self.world.probed(data.draw(st.integers(0, len(self.world.probes) - 1)), outcome)

    @precondition(lambda self: self.world.state.members)
    @rule(data=st.data(), which=st.integers(0, 3))
    def late_word_of_an_older_run(self, data: st.DataObject, which: int) -> None:
        name = self._pick(data, self.world.state.members)
        before = self.world.state.members[name].state
        old = before.generation - 1
        event = (
            Exited(component=name, generation=old, status=ExitStatus(code=79), left=0),
            TreeEmpty(component=name, generation=old),
            Spawned(component=name, generation=old, pid=3),
            Beat(component=name, generation=old, host_state=HostState.DECOMMISSIONED, epoch=99, hello=True),
        )[which]
        host = self.world.state.host_state
        self.world.deliver(event)
        assert self.world.state.members[name].state == before, "an older generation changes nothing"
        assert self.world.state.host_state is host

    @precondition(lambda self: self.world.mains)
    @rule(data=st.data(), ok=st.booleans())
    def helper_ends(self, data: st.DataObject, ok: bool) -> None:
        name = self._pick(data, self.world.mains)
        generation = self.world.mains[name].generation
        self.world.deliver(HelperDone(component=name, generation=generation, purpose="drain", ok=ok))

    # --- what components say

    @precondition(lambda self: self.world.mains)
    @rule(
        data=st.data(),
        hello=st.booleans(),
        ready=st.sampled_from((None, True, False)),
        stopping=st.sampled_from((None, None, True)),
        jobs=st.sampled_from((None, 0, 2)),
    )
    def beats(self, data: st.DataObject, hello: bool, ready: Any, stopping: Any, jobs: Any) -> None:
        name = self._pick(data, self.world.mains)
        interval_ns = S if hello else None
        self.world.beat(name, hello=hello, interval_ns=interval_ns, ready=ready, stopping=stopping, jobs=jobs)

    @precondition(lambda self: "controller" in self.world.mains)
    @rule(leadership=st.sampled_from(Leadership), term=TERMS, until=UNTIL)
    def leadership_is_stated(self, leadership: Leadership, term: int | None, until: int | None) -> None:
        until_ns = None if until is None else self.world.now + until
        self.world.beat("controller", leadership=leadership, term=term, valid_until_ns=until_ns)

    @precondition(lambda self: "keeper" in self.world.mains)
    @rule(held=st.booleans(), token=TERMS, until=UNTIL, name=st.sampled_from(("p", "other")))
    def lease_is_stated(self, held: bool, token: int | None, until: int | None, name: str) -> None:
        until_ns = None if until is None else self.world.now + until
        self.world.beat("keeper", leases=(LeaseStatement(name=name, held=held, token=token, valid_until_ns=until_ns),))

    @precondition(lambda self: "worker" in self.world.mains)
    @rule(state=st.sampled_from(HostState), epoch=st.sampled_from((None, 1, 2, 3, 4, 7)), deadline=TIMES)
    def host_state_is_stated(self, state: HostState, epoch: int | None, deadline: int) -> None:
        until_ns = self.world.now + deadline if deadline else None
        self.world.beat("worker", host_state=state, epoch=epoch, drain_deadline_ns=until_ns)

    @precondition(lambda self: self.world.mains)
    @rule(
        data=st.data(),
        fields=st.sampled_from(
            (
                {"ready": True},
                {"stopping": True},
                {"watchdog": True},
                {"watchdog_ns": 5 * S},
                {"watchdog_trigger": True},
                {"extend_ns": 60 * S},
                {"status": "busy"},
            )
        ),
    )
    def notifies(self, data: st.DataObject, fields: dict[str, Any]) -> None:
        self.world.notified(self._pick(data, self.world.mains), **fields)

    @precondition(lambda self: self.world.state.members)
    @rule(data=st.data())
    def connection_closes(self, data: st.DataObject) -> None:
        name = self._pick(data, self.world.state.members)
        before = self.world.state.members[name].state
        self.world.deliver(HeartbeatClosed(component=name, generation=before.generation))
        assert before == self.world.state.members[name].state, "silence counts, not closing"

    # --- operators

    @rule(verb=st.sampled_from(HOST_VERBS), enable=st.booleans(), deadline=TIMES)
    def operator_says_of_the_host(self, verb: Verb, enable: bool, deadline: int) -> None:
        deadline_ns = self.world.now + deadline if deadline else None
        self.world.command(verb, enable=enable, deadline_ns=deadline_ns, reason="because")

    @rule(verb=st.sampled_from(COMPONENT_VERBS), name=st.sampled_from(NAMES))
    def operator_says_of_a_component(self, verb: Verb, name: str) -> None:
        self.world.command(verb, name)

    @rule(verb=st.sampled_from(Verb), name=st.sampled_from((None, "nobody", "worker")))
    def operator_says_anything(self, verb: Verb, name: str | None) -> None:
        self.world.command(verb, name)

    @precondition(lambda self: self.alive())
    @rule(name=st.sampled_from(NAMES), verbs=st.lists(st.sampled_from((Verb.START, Verb.STOP)), min_size=1, max_size=4))
    def operator_insists(self, name: str, verbs: list[Verb]) -> None:
        """The last word holds, however fast words follow each other."""
        if name not in self.world.state.members or self.world.state.members[name].removed:
            return
        last = [self.world.command(verb, name) for verb in verbs][-1]
        self.world.sync()
        held = any(hold.component == name for hold in self.world.disk.holds)
        if verbs[-1] is Verb.STOP:
            assert held
            assert not self.world.state.members[name].state.want.up
        elif self.world.replies[last].ok:
            assert not held
            assert self.world.state.members[name].state.want.rule is not Rule.OPERATOR_HOLD

    @rule(index=st.integers(0, len(HOSTS) - 1))
    def configuration_changes(self, index: int) -> None:
        if self.world.stopping:
            self.world.deliver(ConfigFailed(error="half written"))
        else:
            self.world.reload(HOSTS[index])

    @rule(offset=st.integers(-3600, 3600))
    def wall_clock_is_set(self, offset: int) -> None:
        before = {name: member.state for name, member in self.world.state.members.items()}
        self.world.deliver(WallClock(offset_ns=offset * S))
        after = {name: member.state for name, member in self.world.state.members.items()}
        # A drain's deadline that was set before a reboot is known in wall-clock time alone.
        assert before == after or self.world.state.host_state is HostState.DRAINING

    @precondition(lambda self: self.alive() and not self.world.stopping)
    @rule(really=st.sampled_from((True, False, False, False)))
    def node_is_stopped(self, really: bool) -> None:
        if really:
            self.world.stop_node()

    # --- the disk

    @precondition(lambda self: self.world.writes)
    @rule(ok=st.sampled_from((True, True, False)))
    def write_answered(self, ok: bool) -> None:
        if ok:
            self.world.written()
        else:
            self.world.write_failed()

    # --- time, crashes

    @rule(duration=TIMES)
    def time_passes(self, duration: int) -> None:
        self.world.advance(duration)

    @rule(duration=TIMES, noticed=st.booleans())
    def agent_stalls(self, duration: int, noticed: bool) -> None:
        self.world.stall(duration, noticed=noticed)

    @rule(
        data=st.data(),
        disk_reached=st.booleans(),
        spawned=st.booleans(),
        record_lost=st.sampled_from((False, False, False, True)),
        unreadable=st.sampled_from((None, None, None, "checksum does not match")),
        away=TIMES,
    )
    def agent_is_killed(
        self, data: st.DataObject, disk_reached: bool, spawned: bool, record_lost: bool, unreadable: Any, away: int
    ) -> None:
        gone = data.draw(st.sets(st.sampled_from(sorted(self.world.mains)))) if self.world.mains else set()
        self.world.now += away
        self.world.crash(
            disk_reached=disk_reached, spawned=spawned, gone=gone, record_lost=record_lost, unreadable=unreadable
        )

    @rule(really=st.sampled_from((True, False, False, False)))
    def host_reboots(self, really: bool) -> None:
        if really:
            self.world.reboot()

    @rule(seconds=st.integers(0, 3))
    def all_is_well_for_a_while(self, seconds: int) -> None:
        self.world.kindly()
        for _ in range(seconds):
            self.world.advance(S)
            self.world.kindly()

    def teardown(self) -> None:
        """Once faults cease, everything comes to rest where it belongs; every command was answered; all repeats."""
        world = self.world
        if world.spec is None:
            return
        world.settle()
        assert set(world.asked) == set(world.replies) & set(world.asked), "every command is answered"
        for name, member in world.state.members.items():
            state, want = member.state, member.state.want
            if not want.up:
                assert state.state is State.STOPPED, name
            elif want.waits is None:
                assert state.state in {State.RUNNING, State.EXITED, State.FAILED}, name
        world.replay()


def _settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=not _RANDOM,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink) if _RANDOM else (Phase.generate,),  # shrinking takes minutes
        report_multiple_bugs=False,
        database=None,
        print_blob=True,
    )


def test_random_histories() -> None:
    """In short random histories every promise of the core holds (the same ones in each run)."""
    run_state_machine_as_test(Histories, settings=_settings(25, 40))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_long_random_histories() -> None:
    """In many and longer ones too. `XCE_RANDOM=1` draws new ones."""
    run_state_machine_as_test(Histories, settings=_settings(300, 80))
