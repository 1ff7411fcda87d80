"""Finding what an earlier agent of this boot left running, and proving what it is.

The runtime record names a process by pid, start time and boot id. Where it says nothing, or is lost, a main process
is known by the markers in its environment: its own pid in XCE_MAIN_PID, which a child that inherits the environment
does not have; this host's nonce of this boot; our heartbeat socket; the session that it leads; and the user that the
role gives it. What is not proven is never touched here, only reported.

Markers can be copied: a user's job that a worker started may set its own pid and open a session. So where the record
can be read, a marker proves a later run alone than the record knows, a spawn that was not written down any more.
And a main process by all its markers but the nonce is of an agent that lost its runtime directory: perhaps it is
ours, so nothing is started over it.
"""

import os
import select
from collections.abc import Callable
from dataclasses import dataclass, replace

from node_manager.core.events import Found
from node_manager.runtime import environment
from node_manager.runtime.environment import Markers
from node_manager.runtime.marks import marked
from node_manager.runtime.procfs import ProcFs, Stat
from node_manager.runtime.record import Kept, RuntimeRecord
from node_manager.runtime.stranded import Marked, Stranded, among

NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """A main process of an earlier agent. The pidfd belongs to whoever takes it, or is closed by `close`."""

    found: Found
    start_ticks: int
    pidfd: int

    def close(self) -> None:
        """Do without it: it is left alone."""
        os.close(self.pidfd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ambiguous:
    """Processes that could each be the main process of a component: none is taken.

    Several with this host's nonce; or one with another nonce.
    """

    component: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A recorded process that is not there any more; `reason` is a clause for people."""

    component: str
    pid: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the search brought.

    `leftovers` names components without a proven main process of which something carries the markers, and the highest
    generation of these: their trees should be killed before a start, where the kill scope is the tree.
    """

    proven: tuple[Proven, ...] = ()
    ambiguous: tuple[Ambiguous, ...] = ()
    gone: tuple[Gone, ...] = ()
    leftovers: tuple[tuple[str, int], ...] = ()
    stranded: tuple[Stranded, ...] = ()
    """What ran beside components."""

    @property
    def found(self) -> tuple[Found, ...]:
        """The proven processes as the core wants them."""
        return tuple(proven.found for proven in self.proven)


def find(
    record: RuntimeRecord,
    markers: Markers,
    expected_uid: Callable[[str], int | None],
    procfs: ProcFs | None = None,
) -> Findings:
    """Search the host once. `expected_uid` gives the user of a component (None: not configured, any user will do).

    Raises OSError when it cannot look: then nothing may be started, because it could be a second one.
    """
    procfs = procfs or ProcFs()
    proven: dict[str, Proven] = {}
    gone: list[Gone] = []
    for kept in record.processes:
        result = _prove_recorded(kept, procfs)
        if isinstance(result, Proven):
            proven[kept.found.component] = result
        else:
            gone.append(Gone(component=kept.found.component, pid=kept.found.pid, reason=result))
    known = {one.found.pid for one in proven.values()}
    runs = {kept.found.component: kept.found.generation for kept in record.processes}
    runs |= {past.component: max(past.generation, runs.get(past.component, 0)) for past in record.past}
    candidates: dict[str, list[Proven]] = {}
    foreign: dict[str, list[int]] = {}
    leftovers: dict[str, int] = {}
    beside: list[Marked] = []
    for stat, marks in marked(procfs, but=known):
        component = marks.get(environment.COMPONENT)
        if not component:
            continue
        if environment.HELPER in marks:
            beside.append((stat, marks))
        ours = marks.get(environment.NONCE) == markers.nonce
        if (
            _is_main(stat, marks, markers)
            and environment.generation(marks) > runs.get(component, 0)
            and procfs.runs_as(stat.pid, expected_uid(component))
        ):
            if not ours:
                foreign.setdefault(component, []).append(stat.pid)
                continue
            candidate = _proven(procfs, stat.start_ticks, _from_marks(component, marks, stat))
            if candidate is not None:
                candidates.setdefault(component, []).append(candidate)
                continue
        if ours:
            leftovers[component] = max(leftovers.get(component, 0), environment.generation(marks))
    ambiguous = _choose(proven, candidates, foreign)
    return Findings(
        proven=tuple(proven.values()),
        ambiguous=ambiguous,
        gone=tuple(one for one in gone if one.component not in proven),
        leftovers=tuple((name, generation) for name, generation in sorted(leftovers.items()) if name not in proven),
        stranded=among(beside, markers, expected_uid, procfs),
    )


def _choose(
    proven: dict[str, Proven], candidates: dict[str, list[Proven]], foreign: dict[str, list[int]]
) -> tuple[Ambiguous, ...]:
    """Take the candidate of a component where there is one only and the record proves none; close the others."""
    ambiguous: list[Ambiguous] = []
    for component in dict.fromkeys((*candidates, *foreign)):
        several, others = candidates.get(component, []), foreign.get(component, [])
        recorded = proven.get(component)
        if recorded is None and len(several) == 1 and not others:
            proven[component] = several[0]
            continue
        # What the record proves stays proven: a marker alone can be copied by any process of the same user.
        pids = ([recorded.found.pid] if recorded is not None else []) + [one.found.pid for one in several] + others
        ambiguous.append(Ambiguous(component=component, pids=tuple(sorted(pids))))
        for one in several:
            one.close()
    return tuple(ambiguous)


def _prove_recorded(kept: Kept, procfs: ProcFs) -> Proven | str:
    """The recorded process, or why it is not there."""
    stat = procfs.stat(kept.found.pid)
    if stat is None:
        return "it has ended"
    if kept.start_ticks == 0:
        return "its start time is not recorded"
    if stat.start_ticks != kept.start_ticks:
        return "its pid belongs to another process now"
    return _proven(procfs, kept.start_ticks, kept.found) or "it has ended"


def _proven(procfs: ProcFs, start_ticks: int, found: Found) -> Proven | None:
    """A pidfd on this very process, which lives, be it on its way out; None: it does not."""
    try:
        pidfd = os.pidfd_open(found.pid)
    except ProcessLookupError:
        return None
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    try:
        stat = procfs.stat(found.pid)
        if stat is not None and stat.start_ticks == start_ticks and not poller.poll(0):
            found = replace(found, dying=procfs.dying(stat))
            return Proven(found=found, start_ticks=start_ticks, pidfd=pidfd)
    except OSError:
        os.close(pidfd)
        raise
    os.close(pidfd)
    return None


def _is_main(stat: Stat, marks: dict[str, str], markers: Markers) -> bool:
    return (
        marks.get(environment.MAIN_PID) == str(stat.pid)
        and stat.session == stat.pid
        and environment.HELPER not in marks
        and marks.get(markers.place[0]) == markers.place[1]
        and environment.generation(marks) > 0
    )


def _from_marks(component: str, marks: dict[str, str], stat: Stat) -> Found:
    lease = marks.get(environment.LEASE_VALID_UNTIL, "")
    return Found(
        component=component,
        pid=stat.pid,
        generation=environment.generation(marks),
        started_ns=stat.start_ticks * NS_PER_TICK,
        lease_until_ns=int(lease) if lease.isdecimal() else None,
    )
