"""Everything that the core can ask of the world: the only output of `node.step`.

The shell carries actions out in order, and never decides anything. Whatever comes of an action returns as an event.
"""

from node_manager.core.durable import DurableFacts
from node_manager.core.spec import CommandSpec, ComponentSpec, ProbeKind, ProbeSpec
from node_manager.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """Start the main process. Answered by `Spawned` or `SpawnFailed`, always."""

    component: str
    generation: int
    spec: ComponentSpec
    term: int | None = None
    """Term of the leased fact it depends on (XCE_TERM)."""
    lease_valid_until_ns: int | None = None
    """End of that lease as known now (XCE_LEASE_VALID_UNTIL_NS)."""
    not_after_ns: int | None = None
    """The child must not execute its command after this instant: the last look at the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelSpawn:
    """End a spawn that is not wanted any more, before the child executes its command where that is still possible.

    `SpawnFailed` follows; or `Spawned`, where the command had been executed already.
    """

    component: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Send a signal to the main process of this generation, and to it alone."""

    component: str
    generation: int
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KillTree:
    """SIGKILL everything of the component that still lives. Answered by `TreeEmpty` once nothing does.

    Repeating it while it is under way is harmless.
    """

    component: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPreStart:
    """Run the check before a start. Answered by `PreStartDone`, always, within its time-out."""

    component: str
    generation: int
    spec: ComponentSpec
    command: CommandSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelPreStart:
    """End the running check at once; `PreStartDone` follows."""

    component: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHelper:
    """Run a reload or drain command beside the component. Answered by `HelperDone`."""

    component: str
    generation: int
    purpose: str
    spec: ComponentSpec
    command: CommandSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProbe:
    """Carry out one active probe now. Answered by `ProbeDone`, always, within its time-out."""

    component: str
    generation: int
    probe: ProbeKind
    spec: ComponentSpec
    check: ProbeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAt:
    """Look at the main process of a late component. Answered by `Looked`, unless the look itself hangs."""

    component: str
    generation: int
    tree: bool
    """What it started counts as a part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeEvidence:
    """Write down what the main process is doing, before it is killed for a wedge. Answered by `EvidenceTaken`.

    `said` are lines on what is known of it already. The answer does not come where reading or writing hangs.
    """

    component: str
    generation: int
    spec: ComponentSpec
    said: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRun:
    """This generation is over: end its probes, its heartbeat connection and forget its notify datagrams."""

    component: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLevels:
    """What this component should know has changed: render its levels and send them, directives first."""

    component: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFacts:
    """Make this record durable (atomic, fsync). Answered by `FactsWritten` or `FactsWriteFailed`."""

    seq: int
    facts: DurableFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One entry of the event history: `event` is `subject.what_happened`, `fields` are plain values."""

    event: str
    component: str | None
    fields: tuple[tuple[str, str | int | bool | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to a command. `ok` False: refused, and `rule` names what forbids it, where a rule does."""

    id: int
    ok: bool
    detail: str
    rule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Every component is down and the node was told to stop: the agent may exit."""


Action = (
    Spawn
    | CancelSpawn
    | Signal
    | KillTree
    | RunPreStart
    | CancelPreStart
    | RunHelper
    | RunProbe
    | LookAt
    | TakeEvidence
    | EndRun
    | SendLevels
    | WriteFacts
    | Log
    | Reply
    | Finish
)
