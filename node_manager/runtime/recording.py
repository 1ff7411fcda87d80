"""From the core's state to the runtime record: what the next agent of this boot has to know."""

from collections.abc import Iterator, Mapping

from node_manager.core.actions import Spawn
from node_manager.core.changed import replace
from node_manager.core.events import Found, KeptHold, KeptLease, Past
from node_manager.core.nodestate import Member, NodeState
from node_manager.core.ordering import process_digest
from node_manager.core.run import Phase
from node_manager.core.spec import KillScope
from node_manager.core.states import ComponentState, past_of
from node_manager.runtime.process import ProcessRecord
from node_manager.runtime.record import Kept, RuntimeRecord


class Recorder:
    """Makes runtime records; remembers what each process was started with, whatever the configuration says since.

    A record is made at every change, of one component nearly always: the other components' parts are the very objects
    of the record before, so that neither this nor who compares and encodes them takes longer the more there are.
    """

    def __init__(self, *, boot_id: str, nonce: str, agent_pid: int) -> None:
        self._boot_id = boot_id
        self._nonce = nonce
        self._agent_pid = agent_pid
        self._births: dict[str, tuple[int, str]] = {}
        self._kept: dict[str, tuple[ProcessRecord, Member, str, Kept]] = {}
        """Component -> what its part of the newest record was made of, and that part."""
        self._pasts: dict[str, tuple[ComponentState, bool, Past]] = {}

    @property
    def births(self) -> dict[str, tuple[int, str]]:
        """Component -> generation, and the digest of the spec that its process was started with."""
        return dict(self._births)

    def go_on(self, births: Mapping[str, tuple[int, str]]) -> None:
        """Know what a predecessor knew."""
        self._births = dict(births)

    def spawned(self, action: Spawn) -> None:
        """Note a start."""
        self._births[action.component] = (action.generation, process_digest(action.spec))

    def adopted(self, found: Found) -> None:
        """Note a process that an earlier agent started."""
        self._births[found.component] = (found.generation, found.spec_digest)

    def record(self, node: NodeState, running: tuple[ProcessRecord, ...]) -> RuntimeRecord:
        """Return what there is to know about `node`, whose main processes are `running`."""
        made = {(one.component, one.generation) for one in running}
        return RuntimeRecord(
            boot_id=self._boot_id,
            nonce=self._nonce,
            agent_pid=self._agent_pid,
            processes=self._processes(node.members, running),
            past=(
                *self._past(node.members, made),
                *(item for item in node.past.values() if item.component not in node.members),
            ),
            leases=tuple(
                KeptLease(
                    fact=fact.name,
                    authority=fact.authority,
                    value=fact.value,
                    term=fact.term,
                    valid_until_ns=fact.valid_until_ns,
                )
                for fact in node.table.leased.values()
            ),
            holds=tuple(
                KeptHold(
                    component=member.spec.name,
                    reason=member.state.hold,
                    since_ns=member.state.hold_since_ns,
                    generation=member.state.generation,
                )
                for member in node.members.values()
                if member.state.hold is not None
            ),
            highest_terms=tuple(sorted(node.table.highest.items())),
        )

    def _processes(self, members: Mapping[str, Member], running: tuple[ProcessRecord, ...]) -> tuple[Kept, ...]:
        before, self._kept = self._kept, {}
        for process in running:
            name = process.component
            member = members.get(name)
            if member is None:
                continue
            digest = self._digest(process)
            known = before.get(name)
            if known is None or known[0] != process or known[1] is not member or known[2] != digest:
                found = _found(member, process, digest)
                kept = Kept(found=found, start_ticks=process.start_ticks, cgroup=process.cgroup)
                known = (process, member, digest, kept)
            self._kept[name] = known
        return tuple(known[-1] for known in self._kept.values())

    def _past(self, members: Mapping[str, Member], made: set[tuple[str, int]]) -> Iterator[Past]:
        """Every member's; `made`: components and generations that have a main process."""
        before, self._pasts = self._pasts, {}
        for name, member in members.items():
            state = member.state
            has_process = (name, state.generation) in made
            known = before.get(name)
            if known is None or known[0] is not state or known[1] != has_process:
                known = (state, has_process, _past(name, state, made=has_process))
            self._pasts[name] = known
            yield known[2]

    def _digest(self, process: ProcessRecord) -> str:
        generation, digest = self._births.get(process.component, (0, ""))
        return digest if generation == process.generation else ""


def _found(member: Member, process: ProcessRecord, digest: str) -> Found:
    state, spec = member.state, member.spec
    run = state.run
    stop = spec.stop
    kept = Found(
        component=process.component,
        pid=process.pid,
        generation=process.generation,
        started_ns=process.started_ns,
        restarts=state.restarts,
        failures=state.failures,
        spec_digest=digest,
        stop_signal=stop.signal,
        stop_timeout_ns=stop.timeout_ns,
        stop_tree=stop.kill_scope is KillScope.TREE,
    )
    if run is None or run.phase is Phase.CHECK or state.generation != process.generation:
        return kept
    return replace(
        kept,
        started_ns=run.started_ns,
        started_before=run.passed_startup,
        ready=state.ready,
        interval_ns=run.interval_ns,
        watchdog_ns=run.watchdog_ns,
        terms=run.terms,
        lease_until_ns=run.lease_until_ns,
    )


def _past(name: str, state: ComponentState, *, made: bool) -> Past:
    """Return a component's past; `made`: its generation has a main process.

    A generation begins with its main process. Until there is one (a check before the start, a user or a log that is
    being looked up, a fuse that is being armed) it is not recorded: a process that comes after the last record has to
    be newer than anything in it, else its markers prove nothing to the next agent, which would end it as a leftover.
    """
    past = past_of(name, state)
    run = state.run
    to_come = run is not None and run.phase in {Phase.CHECK, Phase.SPAWN}
    return replace(past, left=False, generation=past.generation - 1 if to_come and not made else past.generation)
