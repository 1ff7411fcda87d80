"""A host in miniature: it does what the core asks for, answers, and complains about what must never be asked for.

It plays the shell, the processes, the disk and the clock, without a thread, a process or a wait. Whatever it asserts
is a promise of the core over time, seen from outside: it keeps its own books and does not look into the core's.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from node_manager.api.messages import encode
from node_manager.core import node, status
from node_manager.core.actions import (
    Action,
    Log,
    LookAt,
    TakeEvidence,
)
from node_manager.core.durable import DurableFacts
from node_manager.core.events import (
    Beat,
    Booted,
    Command,
    ConfigLoaded,
    Event,
    Exited,
    ExitStatus,
    FactsWriteFailed,
    FactsWritten,
    Found,
    KeptHold,
    KeptLease,
    Leadership,
    LeaseStatement,
    Notified,
    Outcome,
    Past,
    PreStartDone,
    ProbeDone,
    Spawned,
    SpawnFailed,
    Stalled,
    StopNode,
    Tick,
    TreeEmpty,
    Verb,
)
from node_manager.core.invariants import check_invariants
from node_manager.core.nodestate import NodeState
from node_manager.core.ordering import process_digest
from node_manager.core.run import Phase
from node_manager.core.spec import KillScope, NodeSpec
from node_manager.core.states import ComponentState, State
from node_manager.runtime.statustext import StatusText
from tests.unit.core.books import Books, Main
from tests.unit.core.build import T0, S, blind

MAX_TICKS = 10_000
"""Wakes within one stretch of time: more is a busy loop."""


class World(Books):
    """See the module."""

    def __init__(self, spec: NodeSpec | None = None, *, disk: DurableFacts | None = None, now: int = T0) -> None:
        super().__init__(disk, now)
        self.texts = StatusText()
        self.spec = spec
        self.boot = 1
        self.examined = True
        """Each look at a late component is answered at once by one that sees nothing, and each call for evidence."""
        self.state = NodeState()
        self.past: list[list[tuple[Event, int, tuple[Action, ...]]]] = [[]]
        """Every event of every agent's life, with its actions."""
        self._next_id = 1
        if spec is not None:
            self.boot_agent(())

    # --- the agent's life -----------------------------------------------------------------------------------------

    def boot_agent(self, gone: Iterable[str], *, record_lost: bool = False, unreadable: str | None = None) -> None:
        """Let a new agent begin with what the disk, the record and the process table hold."""
        old, self.state = self.state, NodeState()
        self.past.append([])
        self.writes, self.probes, self.kills = [], [], {}
        self.checks, self.spawns = {}, {}
        self.asked = {}
        self.stopping = self.finished = False
        for name in gone:
            main = self.mains.pop(name, None)
            if main is not None:
                self.litter.setdefault(name, set()).add(main.generation)
        leases: tuple[KeptLease, ...] = ()
        holds: tuple[KeptHold, ...] = ()
        highest: tuple[tuple[str, int], ...] = ()
        if not record_lost:
            leases = tuple(
                KeptLease(
                    fact=f.name, authority=f.authority, value=f.value, term=f.term, valid_until_ns=f.valid_until_ns
                )
                for f in old.table.leased.values()
            )
            holds = tuple(
                KeptHold(
                    component=name, reason=m.state.hold, since_ns=m.state.hold_since_ns, generation=m.state.generation
                )
                for name, m in old.members.items()
                if m.state.hold is not None
            )
            highest = tuple(old.table.highest.items())
        if unreadable is not None:
            self.disk = DurableFacts()
        assert self.spec is not None
        self.configured = {new.name: new for new in self.spec.components}
        self.deliver(
            Booted(
                boot_id=f"boot-{self.boot}",
                facts=self.disk,
                unreadable=unreadable,
                leases=leases,
                holds=holds,
                highest_terms=highest,
            )
        )
        found = tuple(self._found(name, main, None if record_lost else old) for name, main in self.mains.items())
        past = tuple(
            Past(component=name, generation=generation, left=bool(self.litter.get(name)))
            for name, generation in self.generations.items()
            if name not in self.mains
        )
        if record_lost:
            # What no validity is known of is nothing that was stated: the world forgets it with the record.
            self.stated, self.current, self.promised = {}, {}, {}
        for main in self.mains.values():
            main.record_lost = main.record_lost or record_lost
            main.kill_by_ns = None
            main.killed = False
        self.deliver(ConfigLoaded(spec=self.spec, found=found, past=past))

    def _found(self, name: str, main: Main, old: NodeState | None) -> Found:
        member = None if old is None else old.members.get(name)
        run = None if member is None else member.state.run
        base = Found(
            component=name,
            pid=main.pid,
            generation=main.generation,
            started_ns=self.now - S,
            spec_digest="" if member is None else process_digest(main.born),
            stop_signal=main.spec.stop.signal,
            stop_timeout_ns=main.spec.stop.timeout_ns,
            stop_tree=main.spec.stop.kill_scope is KillScope.TREE,
            lease_until_ns=main.lease_until_ns,
        )
        if member is None or run is None or member.state.generation != main.generation:
            return base
        return replace(
            base,
            started_ns=run.started_ns,
            started_before=run.passed_startup,
            ready=member.state.ready,
            restarts=member.state.restarts,
            failures=member.state.failures,
            terms=run.terms,
            lease_until_ns=run.lease_until_ns,
        )

    def crash(self, *, disk_reached: bool = True, spawned: bool = True, gone: Iterable[str] = (), **how: Any) -> None:
        """Kill the agent and start another one. What it was doing is done or not, as the arguments say."""
        if disk_reached and self.writes:
            self.disk = self.writes[-1].facts
        for name, action in self.spawns.items():
            if spawned:
                self.mains[name] = self.main_of(action)
        self.boot_agent(gone, **how)

    def reboot(self) -> None:
        """The host begins again: nothing but the disk is left."""
        self.boot += 1
        self.mains, self.litter, self.generations = {}, {}, {}
        self.stated, self.current, self.promised = {}, {}, {}
        self.state = NodeState()
        self.boot_agent(())

    def reload(self, spec: NodeSpec, **fields: Any) -> list[Action]:
        """Another configuration."""
        self.spec = spec
        self.configured = {new.name: new for new in spec.components}
        for name, main in self.mains.items():
            main.spec = self.configured.get(name, main.spec)
        return self.deliver(ConfigLoaded(spec=spec, **fields))

    def check_status(self) -> None:
        """What is kept of the status from one question to the next is what it would be without."""
        fresh = status.node_status(self.state, self.now, name="h1", cgroup_mode="session")
        frame = dict(status.frame(self.state, self.now, name="h1", cgroup_mode="session"))
        assert encode(fresh) == self.texts.whole(frame, self.state, self.now, encode)

    # --- events ---------------------------------------------------------------------------------------------------

    def deliver(self, event: Event) -> list[Action]:
        """Let the core take one event; check the invariants and carry its actions out."""
        self.state, actions = node.step(self.state, event, self.now)
        self.past[-1].append((event, self.now, actions))
        check_invariants(self.state, self.now)
        self.check_status()
        for action in actions:
            self.carry_out(action)
        if self.state.spec is not None:
            self.check_leases()
        if isinstance(event, Tick):
            self.check_time()
        found: list[Action] = []
        for action in actions:
            if isinstance(action, LookAt | TakeEvidence):
                found += self.deliver(blind(action)) if self.examined else [action]
            elif not isinstance(action, Log):
                found.append(action)
        return found

    def tick(self) -> list[Action]:
        """Time has come. Ticks at one instant come to rest."""
        actions = self.deliver(Tick())
        for _ in range(2):
            # A late agent may have to act twice: the first SIGKILL, and the end of waiting for it.
            wake = node.next_wake_ns(self.state)
            if wake is not None and wake <= self.now:
                actions += self.deliver(Tick())
        wake = node.next_wake_ns(self.state)
        assert wake is None or wake > self.now, "ticks at one instant come to rest"
        return actions

    def advance(self, duration_ns: int) -> list[Action]:
        """Let time pass; the agent wakes up whenever it asked for it."""
        end = self.now + duration_ns
        actions: list[Action] = []
        for _ in range(MAX_TICKS):
            wake = node.next_wake_ns(self.state)
            if wake is None or wake > end:
                break
            self.now = max(self.now, wake)
            actions += self.tick()
        else:
            raise AssertionError("it wakes up again and again")
        self.now = end
        return actions

    def stall(self, duration_ns: int, *, noticed: bool = True) -> list[Action]:
        """Let time pass in which the agent does not run."""
        self.now += duration_ns
        actions: list[Action] = []
        if noticed:
            for main in self.mains.values():
                if main.kill_by_ns is not None:
                    main.kill_by_ns += duration_ns
            actions = self.deliver(Stalled(duration_ns=duration_ns))
        return actions + self.tick()

    def command(self, verb: Verb, component: str | None = None, **fields: Any) -> int:
        """An operator's word; returns its id."""
        command = Command(id=self._next_id, verb=verb, by="ann", component=component, **fields)
        self._next_id += 1
        self.asked[command.id] = command
        self.deliver(command)
        return command.id

    def stop_node(self) -> list[Action]:
        """Stop everything."""
        self.stopping = True
        return self.deliver(StopNode(reason="systemctl stop"))

    # --- what happens to processes --------------------------------------------------------------------------------

    def spawned(self, name: str) -> list[Action]:
        """The spawn under way succeeds."""
        action = self.spawns.pop(name)
        self.mains[name] = self.main_of(action)
        return self.deliver(Spawned(component=name, generation=action.generation, pid=self.mains[name].pid))

    def spawn_failed(self, name: str, jitter: int = 0) -> list[Action]:
        """It does not."""
        action = self.spawns.pop(name)
        return self.deliver(
            SpawnFailed(component=name, generation=action.generation, reason="no such file", jitter=jitter)
        )

    def checked(self, name: str, *, ok: bool = True) -> list[Action]:
        """The check before the start ends."""
        action = self.checks.pop(name)
        self.passed = (name, action.generation)
        return self.deliver(PreStartDone(component=name, generation=action.generation, ok=ok, detail="bad file"))

    def exit(self, name: str, *, code: int | None = 1, signal: int | None = None, left: int | None = 0) -> list[Action]:
        """The main process ends; `left` says what it leaves (None: it leaves something that cannot be counted)."""
        main = self.mains.pop(name)
        if left != 0:
            self.litter.setdefault(name, set()).add(main.generation)
        elif main.generation in self.litter.get(name, ()):
            self.litter[name].discard(main.generation)
        status_ = ExitStatus(code=None if signal is not None else code, signal=signal)
        if self.litter.get(name):
            left = left or 1
        return self.deliver(Exited(component=name, generation=main.generation, status=status_, left=left))

    def cleared(self, name: str) -> list[Action]:
        """Nothing of the tree that is being killed lives any more."""
        newest = self.kills.pop(name)
        self.litter[name] = {generation for generation in self.litter.get(name, ()) if generation > newest}
        return self.deliver(TreeEmpty(component=name, generation=newest))

    def clearable(self) -> list[str]:
        """Components whose tree is being killed and may be gone now."""
        alive = {name: main.generation for name, main in self.mains.items()}
        return [name for name, newest in self.kills.items() if alive.get(name, newest + 1) > newest]

    def probed(self, index: int, outcome: Outcome = Outcome.OK) -> list[Action]:
        """A probe under way is answered."""
        action = self.probes.pop(index)
        return self.deliver(
            ProbeDone(component=action.component, generation=action.generation, probe=action.probe, outcome=outcome)
        )

    def beat(self, name: str, **fields: Any) -> list[Action]:
        """A heartbeat record of the process that lives."""
        main = self.mains[name]
        event = Beat(component=name, generation=main.generation, **fields)
        self.note_statements(main.spec, event)
        return self.deliver(event)

    def hello(self, name: str, **fields: Any) -> list[Action]:
        """Its first record: a promise of one beat a second, and it is ready."""
        return self.beat(name, hello=True, interval_ns=S, ready=True, **fields)

    def primary(self, name: str, term: int, for_ns: int, **fields: Any) -> list[Action]:
        """The controller says that it is primary."""
        until = self.now + for_ns
        return self.beat(name, leadership=Leadership.PRIMARY, term=term, valid_until_ns=until, **fields)

    def standby(self, name: str, term: int) -> list[Action]:
        """It says that it is not."""
        return self.beat(name, leadership=Leadership.STANDBY, term=term)

    def notified(self, name: str, **fields: Any) -> list[Action]:
        """An sd_notify datagram of the process that lives."""
        main = self.mains[name]
        extend_ns = fields.get("extend_ns")
        if extend_ns is not None and main.kill_by_ns is not None and not main.terms and not main.killed:
            main.kill_by_ns = max(main.kill_by_ns, min(self.now + extend_ns, main.extend_to_ns))
        return self.deliver(Notified(component=name, generation=main.generation, **fields))

    # --- the disk -------------------------------------------------------------------------------------------------

    def written(self) -> list[Action]:
        """The oldest write succeeds."""
        write = self.writes.pop(0)
        self.disk = write.facts
        return self.deliver(FactsWritten(seq=write.seq))

    def write_failed(self) -> list[Action]:
        """The oldest write fails."""
        write = self.writes.pop(0)
        return self.deliver(FactsWriteFailed(seq=write.seq, error="no space left on device"))

    def sync(self) -> None:
        """Let the disk catch up."""
        while self.writes:
            self.written()

    # --- the end of all faults --------------------------------------------------------------------------------------

    def component(self, name: str) -> ComponentState:
        """The component's state as the core has it."""
        return self.state.members[name].state

    def kindly(self, *, beats: bool = True) -> None:
        """Answer everything that is under way as a healthy host would."""
        self.sync()
        for name in tuple(self.checks):
            self.checked(name)
        for name in tuple(self.spawns):
            self.spawned(name)
        for name, main in tuple(self.mains.items()):
            if main.ending:
                left = 0 if main.killed and name in self.kills else len(self.litter.get(name, ()))
                if name in self.kills:
                    self.litter.pop(name, None)
                self.exit(name, code=0, left=left)
        for name in self.clearable():
            self.cleared(name)
        while self.probes:
            self.probed(0)
        for name in tuple(self.mains) if beats else ():
            self._speak(name)
        self.sync()

    def _speak(self, name: str) -> None:
        main = self.mains[name]
        said: dict[str, Any] = {}
        for fact in main.spec.states:
            term = max(self.state.table.highest.get(fact, 1), 1)
            until = self.now + 30 * S
            if fact == "controller.primary":
                said |= {"leadership": Leadership.PRIMARY, "term": term, "valid_until_ns": until}
            elif fact.startswith("lease."):
                lease = LeaseStatement(name=fact.removeprefix("lease."), held=True, token=term, valid_until_ns=until)
                said["leases"] = (*said.get("leases", ()), lease)
        self.hello(name, stopping=False, **said)
        if name in self.mains:
            self.notified(name, ready=True, watchdog=True)

    def calm(self) -> bool:
        """Nothing is under way."""
        under_way = self.spawns or self.checks or self.writes or self.kills or self.state.writeback.pending
        return not under_way and all(
            member.state.state in {State.STOPPED, State.EXITED, State.FAILED}
            or (member.state.state is State.RUNNING and member.state.ready is True)
            for member in self.state.members.values()
        )

    def settle(self, bound_s: int = 200) -> None:
        """Let everything be well from now on, until nothing is under way; fail if that takes longer than the bound."""
        for _ in range(bound_s // 2):
            self.kindly()
            if self.calm() and (self.finished or not self.stopping):
                return
            self.advance(2 * S)
        stuck = {name: (member.state.state.value, member.state.ready) for name, member in self.state.members.items()}
        raise AssertionError(
            f"something is stuck: {stuck}, in flight {[*self.spawns, *self.checks, *self.kills]}, "
            f"{len(self.state.writeback.pending)} changes pending, finished: {self.finished}"
        )

    def replay(self) -> None:
        """Identical events give identical actions."""
        for life in self.past:
            state = NodeState()
            for event, now, actions in life:
                state, again = node.step(state, event, now)
                assert actions == again

    def phase(self, name: str) -> Phase | None:
        """The phase of the component's run."""
        run = self.component(name).run
        return None if run is None else run.phase
