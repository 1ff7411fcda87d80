"""What happens to one component: the input of `component.step`.

Events of the node that concern a run come as they are; the rest is the node's word to the component's machine.
"""

from node_manager.core.events import (
    Beat,
    EvidenceTaken,
    ExitStatus,
    Found,
    FuseLost,
    HeartbeatClosed,
    Looked,
    Notified,
    PreStartDone,
    ProbeDone,
    Spawned,
    SpawnFailed,
    Stalled,
    Tick,
    TreeEmpty,
)
from node_manager.core.intent import Want
from node_manager.core.spec import ComponentSpec
from node_manager.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The ledger's ruling for this component has changed."""

    want: Want


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAsked:
    """An operator asks for a start; the node has checked that no rule forbids it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartAsked:
    """End this run and begin another at once."""

    reason: str
    manual: bool = False
    """An operator asks for this very component; else its configuration has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """The main process is reaped. `hold` is set where its exit status means that it is not to be started again."""

    generation: int
    status: ExitStatus
    left: int | None = None
    jitter: int = 0
    oom: bool = False
    hold: str | None = None
    want: Want | None = None
    """The ledger's ruling at this very instant: the exit itself may have changed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A process of an earlier agent is taken into charge."""

    found: Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """The component has another spec than `old` now; what a process has from its birth is `RestartAsked`'s concern."""

    old: ComponentSpec


RunEvent = (
    Spawned
    | SpawnFailed
    | PreStartDone
    | Gone
    | TreeEmpty
    | ProbeDone
    | Looked
    | EvidenceTaken
    | FuseLost
    | Beat
    | HeartbeatClosed
    | Notified
)
"""What concerns one run, whose generation it carries."""
ComponentEvent = Wanted | StartAsked | RestartAsked | Adopted | Updated | RunEvent | Stalled | Tick
