"""What the core has asked for and has not been answered yet: the work that is under way at any moment.

A re-exec replaces the program between two turns of the loop. Of what is under way then, some is waited for (a child
between fork and exec, a write, a command that changes a component), and some is begun again by the successor, because
that changes nothing: a check before a start, a probe, the kill of a tree, a look at what is late.
"""

from collections.abc import Hashable

from node_manager.core.actions import (
    Action,
    CancelPreStart,
    EndRun,
    KillTree,
    LookAt,
    RunHelper,
    RunPreStart,
    RunProbe,
    Spawn,
    TakeEvidence,
    WriteFacts,
)
from node_manager.core.events import (
    Event,
    EvidenceTaken,
    FactsWriteFailed,
    FactsWritten,
    HelperDone,
    Looked,
    PreStartDone,
    ProbeDone,
    Spawned,
    SpawnFailed,
    TreeEmpty,
)

Repeatable = KillTree | RunPreStart | RunProbe | LookAt | TakeEvidence
"""May be carried out once more by a successor."""


class Outstanding:
    """A ledger of actions, by what answers them."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Action] = {}

    def issued(self, action: Action) -> None:
        """Note an action that an event will answer."""
        match action:
            case Spawn():
                self._open[Spawn, action.component] = action
            case WriteFacts():
                self._open[WriteFacts, ""] = action
            case RunHelper():
                self._open[RunHelper, action.component, action.purpose] = action
            case KillTree():
                self._open[KillTree, action.component] = action
            case RunPreStart():
                self._open[RunPreStart, action.component] = action
            case CancelPreStart():
                self._open[CancelPreStart, action.component] = action
            case RunProbe():
                self._open[RunProbe, action.component, action.probe] = action
            case LookAt() | TakeEvidence():
                self._open[type(action), action.component] = action
            case EndRun():
                self._end_probes(action)
                self._open.pop((LookAt, action.component), None)
                self._open.pop((TakeEvidence, action.component), None)
            case _:
                pass

    def answered(self, event: Event) -> None:
        """Note an event: what it answers is under way no longer."""
        match event:
            case Spawned() | SpawnFailed():
                self._open.pop((Spawn, event.component), None)
            case FactsWritten() | FactsWriteFailed():
                self._written(event.seq)
            case HelperDone():
                self._open.pop((RunHelper, event.component, event.purpose), None)
            case TreeEmpty():
                self._open.pop((KillTree, event.component), None)
            case PreStartDone():
                self._open.pop((RunPreStart, event.component), None)
                self._open.pop((CancelPreStart, event.component), None)
            case Looked():
                self._open.pop((LookAt, event.component), None)
            case EvidenceTaken():
                self._open.pop((TakeEvidence, event.component), None)
            case ProbeDone():
                self._probe_done(event)
            case _:
                pass

    def to_wait_for(self) -> tuple[str, ...]:
        """Return, in words, what a re-exec has to wait for."""
        found: list[str] = []
        for action in self._open.values():
            match action:
                case Spawn():
                    found.append(f"the start of {action.component}")
                case CancelPreStart():
                    found.append(f"the end of the check before the start of {action.component}")
                case RunHelper():
                    found.append(f"the {action.purpose} command of {action.component}")
                case WriteFacts():
                    found.append("a write to the state directory")
                case _:
                    pass
        return tuple(found)

    def to_repeat(self) -> tuple[Repeatable, ...]:
        """Return what a successor carries out again."""
        return tuple(action for action in self._open.values() if isinstance(action, Repeatable))

    def _written(self, seq: int) -> None:
        waiting = self._open.get((WriteFacts, ""))
        if isinstance(waiting, WriteFacts) and seq >= waiting.seq:
            del self._open[WriteFacts, ""]

    def _probe_done(self, event: ProbeDone) -> None:
        key = (RunProbe, event.component, event.probe)
        waiting = self._open.get(key)
        if isinstance(waiting, RunProbe) and waiting.generation == event.generation:
            del self._open[key]

    def _end_probes(self, ended: EndRun) -> None:
        for key, action in tuple(self._open.items()):
            if (
                isinstance(action, RunProbe)
                and action.component == ended.component
                and action.generation <= ended.generation
            ):
                del self._open[key]
