"""What a host may be asked for: the books that an observer keeps, and the promises of the core that they prove."""

from dataclasses import dataclass, field

from node_manager.core import latches
from node_manager.core.actions import (
    Action,
    CancelPreStart,
    CancelSpawn,
    EndRun,
    Finish,
    KillTree,
    Log,
    LookAt,
    Reply,
    RunHelper,
    RunPreStart,
    RunProbe,
    SendLevels,
    Signal,
    Spawn,
    TakeEvidence,
    WriteFacts,
)
from node_manager.core.durable import DurableFacts
from node_manager.core.events import Beat, Command, HostState, Leadership
from node_manager.core.ladder import MAX_EXTENSION_NS, SIGKILL
from node_manager.core.spec import LEASE_MARGIN_NS, ComponentSpec, KillScope, stop_budget_ns
from tests.unit.core.build import T0


@dataclass(slots=True)
class Main:
    """A main process that lives."""

    generation: int
    pid: int
    spec: ComponentSpec
    """As it is configured now."""
    born: ComponentSpec
    """As it was when the process was started."""
    terms: dict[str, int] = field(default_factory=dict)
    """Terms of the leased facts it was started under, as far as it can be known from outside."""
    lease_until_ns: int | None = None
    """End of its lease as it stands in its environment."""
    record_lost: bool = False
    """No agent knows any more what was stated while it ran."""
    kill_by_ns: int | None = None
    """SIGKILL must have come by then: it was told to stop."""
    extend_to_ns: int = 0
    killed: bool = False

    @property
    def ending(self) -> bool:
        """It was told to stop, or killed."""
        return self.killed or self.kill_by_ns is not None


@dataclass(frozen=True, slots=True)
class Stated:
    """What was last validly stated of a leased fact, by the world's own judgement."""

    term: int
    value: bool
    until_ns: int


class Books:
    """Processes, leftovers, writes and statements as seen from outside; fails at an action that breaks a promise."""

    def __init__(self, disk: DurableFacts | None, now: int = T0) -> None:
        self.now = now
        self.disk = DurableFacts() if disk is None else disk
        self.configured: dict[str, ComponentSpec] = {}
        self.mains: dict[str, Main] = {}
        self.spawns: dict[str, Spawn] = {}
        self.checks: dict[str, RunPreStart] = {}
        self.litter: dict[str, set[int]] = {}
        """Generations of which something lives without its main process."""
        self.terms: dict[str, dict[str, int]] = {}
        """Terms of leased facts that each spawn in flight was asked for under."""
        self.passed: tuple[str, int] | None = None
        """The check that has just been passed: its spawn may follow."""
        self.kills: dict[str, int] = {}
        self.probes: list[RunProbe] = []
        self.writes: list[WriteFacts] = []
        self.asked: dict[int, Command] = {}
        self.replies: dict[int, Reply] = {}
        self.generations: dict[str, int] = {}
        self.stated: dict[str, dict[int, Stated]] = {}
        """Fact -> term -> what was last stated under it."""
        self.promised: dict[str, dict[int, int]] = {}
        """Fact -> term -> the greatest end that was validly stated under it."""
        self.current: dict[str, Stated] = {}
        self.stopping = False
        self.finished = False
        self.logs: list[Log] = []

    # --- what is asked for ----------------------------------------------------------------------------------------

    def main_of(self, action: Spawn) -> Main:
        """Return the process that this spawn has become."""
        return Main(
            generation=action.generation,
            pid=1_000 + action.generation,
            spec=self.configured.get(action.component, action.spec),
            born=action.spec,
            terms=self.terms.pop(action.component),
            lease_until_ns=action.lease_valid_until_ns,
        )

    def carry_out(self, action: Action) -> None:
        match action:
            case Spawn():
                self._begin(action.component, action.generation, action.spec)
                self._check_spawn_lease(action)
                self.spawns[action.component] = action
            case RunPreStart():
                self._begin(action.component, action.generation, action.spec)
                self.checks[action.component] = action
            case CancelPreStart():
                assert self.checks[action.component].generation == action.generation, (
                    "only a running check is cancelled"
                )
            case CancelSpawn():
                assert self.spawns[action.component].generation == action.generation, (
                    "only a spawn under way is cancelled"
                )
            case Signal():
                main = self.mains.get(action.component)
                assert main is not None, "only a live main process is signalled"
                assert main.generation == action.generation, "only the current generation is signalled"
                if action.signal == SIGKILL:
                    main.killed = True
                elif action.signal == main.spec.stop.signal:
                    self._begin_stop(main)
            case KillTree():
                main = self.mains.get(action.component)
                alive = main is not None and main.generation == action.generation
                litter = any(left <= action.generation for left in self.litter.get(action.component, ()))
                assert alive or litter, "a tree is killed only where something of it may live"
                if main is not None:
                    main.killed = True
                self.kills[action.component] = max(action.generation, self.kills.get(action.component, 0))
            case RunProbe() | RunHelper() | LookAt() | TakeEvidence():
                assert self.mains[action.component].generation == action.generation, "what lives is probed and helped"
                if isinstance(action, RunProbe):
                    self.probes.append(action)
            case EndRun():
                main = self.mains.get(action.component)
                assert main is None or main.generation > action.generation, "a run is over when its process is"
            case WriteFacts():
                assert not self.writes or action.seq >= self.writes[-1].seq, "writes come in order"
                self.writes.append(action)
            case Reply():
                assert action.id in self.asked, "only what was asked is answered"
                assert action.id not in self.replies, "a command is answered once"
                self.replies[action.id] = action
            case Finish():
                assert not self.finished, "the node finishes once"
                self.finished = True
            case Log():
                self.logs.append(action)
            case SendLevels():
                pass

    def _begin(self, name: str, generation: int, spec: ComponentSpec) -> None:
        assert name not in self.mains, "nothing is started over a live main process"
        assert name not in self.spawns, "nothing is started over a spawn in flight"
        assert name not in self.checks, "nothing is started over a check in flight"
        if self.passed != (name, generation):
            assert generation > self.generations.get(name, 0), "generations only go up"
        self.generations[name] = generation
        if spec.stop.kill_scope is KillScope.TREE:
            assert not self.litter.get(name), "nothing is started over what an earlier run left"
        assert not self.stopping, "a node that stops starts nothing"
        assert latches.hold_of(self.disk, name) is None, "nothing is started over a durable stop"
        if any(fact.startswith("host.") for fact in spec.stop_when):
            host = latches.host_state(self.disk)
            assert host is not HostState.DECOMMISSIONED, "a durable decommission starts nothing that it stops"

    def _begin_stop(self, main: Main) -> None:
        assert not main.ending, "a stop begins once"
        main.kill_by_ns = self.now + main.spec.stop.timeout_ns
        main.extend_to_ns = main.kill_by_ns + MAX_EXTENSION_NS

    # --- leases ---------------------------------------------------------------------------------------------------

    def note_statements(self, spec: ComponentSpec, event: Beat) -> None:
        if event.leadership is not None and "controller.primary" in spec.states:
            value = event.leadership is Leadership.PRIMARY
            self._note("controller.primary", value, event.term, event.valid_until_ns, spec.max_lease_ns)
        for said in event.leases:
            if f"lease.{said.name}" in spec.states:
                self._note(f"lease.{said.name}", said.held, said.token, said.valid_until_ns, spec.max_lease_ns)

    def _note(self, fact: str, value: bool, term: int | None, until_ns: int | None, max_ns: int) -> None:
        terms = self.stated.setdefault(fact, {})
        if term is None or term < max(terms, default=0):
            return
        if value and (until_ns is None or not self.now < until_ns <= self.now + max_ns):
            return
        before = terms.get(term)
        until = until_ns if value and until_ns is not None else self.now
        if before is not None and before.value and value:
            until = max(until, before.until_ns)
        self.current[fact] = terms[term] = Stated(term, value, until)
        if value:
            promised = self.promised.setdefault(fact, {})
            promised[term] = max(until, promised.get(term, 0))

    def _check_spawn_lease(self, action: Spawn) -> None:
        facts = [fact for fact in action.spec.run_while if fact.startswith(("controller.", "lease."))]
        under = self.terms[action.component] = {}
        for fact in facts:
            stated = self.current[fact]
            assert stated.value, f"{action.component} starts only while {fact} is true"
            assert self.now < stated.until_ns - stop_budget_ns(action.spec), "there must be time left to stop it"
            under[fact] = stated.term
        if facts:
            assert action.term == under[facts[0]], "it is started under the newest term"
            ends = min(self.current[fact].until_ns for fact in facts)
            assert action.not_after_ns == ends - stop_budget_ns(action.spec), "it is started in time or not at all"

    def check_leases(self) -> None:
        for main in self.mains.values():
            for fact, term in main.terms.items():
                stated = self.current.get(fact)
                fresh = stated is not None and stated.value and self.now < stated.until_ns - stop_budget_ns(main.spec)
                if f"{fact}.term" in main.spec.restart_on_change and stated is not None:
                    fresh = fresh and stated.term == term
                assert fresh or main.ending, f"{main.spec.name} is being stopped once {fact} does not hold for it"

    def check_time(self) -> None:
        """What was told to stop is killed in time. Called after a tick, the only time when time is looked at."""
        for main in self.mains.values():
            if main.kill_by_ns is not None and self.now >= main.kill_by_ns:
                assert main.killed, f"{main.spec.name} is killed when its stop has run out of time"
            ends = [end for end in self._ends(main) if end is not None]
            if ends and self.now >= min(ends) - LEASE_MARGIN_NS:
                assert main.killed, f"{main.spec.name} was killed before its lease ended"

    def _ends(self, main: Main) -> list[int | None]:
        """Return when each lease of the process ends, as far as its agent can know."""
        if main.record_lost:
            return [main.lease_until_ns]
        found = []
        for fact, term in main.terms.items():
            follows = f"{fact}.term" not in main.spec.restart_on_change
            promised = self.promised.get(fact, {}).items()
            ends = [until for under, until in promised if under == term or (follows and under > term)]
            found.append(max(ends, default=None))
        return found
