"""Everything that can happen to a node: the only input of `node.step`.

The shell turns happenings into these values, in the order in which it saw them. Times are CLOCK_BOOTTIME in
nanoseconds. What concerns one run of a component carries its `generation`; an event of an older generation changes
nothing. `jitter` is a number from 0 to 1023 drawn by the shell, because the core has no randomness of its own.
"""

from node_manager.core.durable import DurableFacts
from node_manager.core.spec import NodeSpec, ProbeKind
from node_manager.core.symbols import Symbol
from node_manager.core.values import dataclass
from node_manager.core.wedge import Sample

JITTER_STEPS = 1024
"""`jitter` is drawn from range(JITTER_STEPS)."""


class Verb(Symbol):
    """What an operator or a program may ask for."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    DECOMMISSION = "decommission"
    RECOMMISSION = "recommission"
    MAINTENANCE = "maintenance"
    RELOAD_COMPONENT = "reload"


class Outcome(Symbol):
    """The three answers of a probe."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The probe itself could not be carried out; says nothing about the component."""


class HostState(Symbol):
    """Where a host stands on its way out of the cluster, in order of severity."""

    ACTIVE = "active"
    DRAINING = "draining"
    DRAINED = "drained"
    DECOMMISSIONED = "decommissioned"


class Leadership(Symbol):
    """What a controller says about itself."""

    PRIMARY = "primary"
    STANDBY = "standby"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatement:
    """`LEASE.name=held|lost` with its fencing token and end."""

    name: str
    held: bool
    token: int | None = None
    valid_until_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How a process ended: exactly one of `code` and `signal`, or neither where the kernel no longer tells."""

    code: int | None = None
    signal: int | None = None
    core_dumped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A process of an earlier agent that still runs, proven to be the main process of `component`."""

    component: str
    pid: int
    generation: int
    started_ns: int
    started_before: bool = False
    """It had passed its startup probe."""
    ready: bool | None = None
    interval_ns: int | None = None
    """What it had promised in its heartbeats' hello."""
    watchdog_ns: int | None = None
    """What it had promised with WATCHDOG_USEC."""
    restarts: int = 0
    failures: int = 0
    terms: tuple[tuple[str, int], ...] = ()
    """Terms of the leased facts it was started under."""
    lease_until_ns: int | None = None
    """Greatest validity ever stated for a fact it depends on."""
    spec_digest: str = ""
    """`ordering.process_digest` of the spec it was started with."""
    stop_signal: int = 15
    stop_timeout_ns: int = 10_000_000_000
    stop_tree: bool = False
    dying: bool = False
    """It was on its way out when it was found, and has not come to its end (it hangs in the kernel, perhaps)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLease:
    """A leased fact from the runtime record of this boot."""

    fact: str
    authority: str
    value: bool
    term: int
    valid_until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptHold:
    """An exit-hold from the runtime record of this boot: finished work does not run again."""

    component: str
    reason: str
    since_ns: int
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of a component's earlier runs in this boot, where no main process of it was found.

    `left`: something of it lives all the same, of generation `generation` or an older one.
    """

    component: str
    generation: int
    restarts: int = 0
    left: bool = False
    crashes: int = 0
    last_exit: str | None = None
    last_jobs: int | None = None
    """Jobs in its last report: while they may live, a host is not concluded to be drained."""


# --- the agent's own life ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Booted:
    """First event: what the durable store and the runtime record hold.

    `unreadable` is the store's sentence when the latch file exists and cannot be understood: then everything that it
    could forbid is held until an operator says otherwise.
    """

    boot_id: str
    facts: DurableFacts
    unreadable: str | None = None
    leases: tuple[KeptLease, ...] = ()
    holds: tuple[KeptHold, ...] = ()
    highest_terms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLoaded:
    """A valid configuration; `found` are the processes that an earlier agent left for its components.

    `past` is what an earlier agent of this boot knew of the others: generations go on from there, and where the kill
    scope is the tree, what is left of one is killed before a start.
    """

    spec: NodeSpec
    found: tuple[Found, ...] = ()
    past: tuple[Past, ...] = ()
    command_id: int | None = None
    warning: str | None = None
    """Set when this is the last good copy because the file itself is wrong: the whole error text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFailed:
    """The configuration is absent or wrong; `error` lists everything that is wrong with it."""

    error: str
    command_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopNode:
    """Stop every component in order, then finish."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed: something's deadline may have come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """The agent itself could not listen for `duration_ns`: not the components' fault, never a lease's excuse."""

    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WallClock:
    """Wall clock minus CLOCK_BOOTTIME, for display and for what is kept over a reboot."""

    offset_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsWritten:
    """The durable record with this sequence number, and so every older one, is on the disk."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsWriteFailed:
    """The durable record could not be written; it will be tried again."""

    seq: int
    error: str


# --- processes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """The main process exists and has executed its command."""

    component: str
    generation: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnFailed:
    """No process came to be: `reason` has the errno's meaning and what it concerns."""

    component: str
    generation: int
    reason: str
    jitter: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """The main process is reaped. `left` counts what still lives of its tree (None: cannot be told)."""

    component: str
    generation: int
    status: ExitStatus
    left: int | None = None
    jitter: int = 0
    oom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEmpty:
    """Nothing of the component's tree lives any more (the answer to `KillTree`)."""

    component: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FuseLost:
    """Nothing would kill this run if its lease ended while the agent cannot act: `reason` says how that came."""

    component: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreStartDone:
    """The check before the start has ended."""

    component: str
    generation: int
    ok: bool
    detail: str = ""
    jitter: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperDone:
    """A reload or drain command has ended. `purpose` is "reload" or "drain"."""

    component: str
    generation: int
    purpose: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDone:
    """An active probe (exec, tcp, http) has answered; the shell bounds every probe by its time-out."""

    component: str
    generation: int
    probe: ProbeKind
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A look at a late component. `sample` None: it could not be looked at, and `trouble` says why."""

    component: str
    generation: int
    sample: Sample | None
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceTaken:
    """What a wedged component was doing stands in the file `path`; None: it does not, and `trouble` says why."""

    component: str
    generation: int
    path: str | None
    trouble: str = ""


# --- what components say ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One heartbeat record. None: the record did not mention it."""

    component: str
    generation: int
    hello: bool = False
    interval_ns: int | None = None
    beat: int | None = None
    template: str | None = None
    ready: bool | None = None
    stopping: bool | None = None
    status: str | None = None
    progress: int | None = None
    jobs: int | None = None
    leadership: Leadership | None = None
    term: int | None = None
    valid_until_ns: int | None = None
    host_state: HostState | None = None
    epoch: int | None = None
    drain_deadline_ns: int | None = None
    leases: tuple[LeaseStatement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatClosed:
    """The component's heartbeat connection ended, for whatever reason."""

    component: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notified:
    """One sd_notify(3) datagram of a component. None: not mentioned."""

    component: str
    generation: int
    ready: bool = False
    stopping: bool = False
    watchdog: bool = False
    watchdog_trigger: bool = False
    watchdog_ns: int | None = None
    extend_ns: int | None = None
    status: str | None = None


# --- what operators say -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """An operator's word. Answered by exactly one `Reply` with the same id."""

    id: int
    verb: Verb
    by: str
    component: str | None = None
    reason: str = ""
    deadline_ns: int | None = None
    """For a drain: when it must be over (CLOCK_BOOTTIME)."""
    enable: bool = True
    """For maintenance: on or off."""


Event = (
    Booted
    | ConfigLoaded
    | ConfigFailed
    | StopNode
    | Tick
    | Stalled
    | WallClock
    | FactsWritten
    | FactsWriteFailed
    | Spawned
    | SpawnFailed
    | Exited
    | TreeEmpty
    | FuseLost
    | PreStartDone
    | HelperDone
    | ProbeDone
    | Looked
    | EvidenceTaken
    | Beat
    | HeartbeatClosed
    | Notified
    | Command
)
