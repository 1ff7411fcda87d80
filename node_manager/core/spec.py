"""What the configuration asks for, as frozen values.

`config/` makes these from YAML once everything was validated; the core and the runtime trust them. All durations
are integer nanoseconds, all names are the ones the role files use.
"""

from node_manager.core.symbols import Symbol
from node_manager.core.values import dataclass

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

LEASE_MARGIN_NS = NS_PER_S // 2
"""What must be left of a lease once SIGKILL was sent and death had its time: a busy host schedules late."""


class KillScope(Symbol):
    """What SIGKILL reaches when a stop has run out of time."""

    TREE = "tree"
    """Everything that the component started and that still lives."""
    PROCESS = "process"
    """The main process alone: a worker's jobs live on."""


class OnFailure(Symbol):
    """What a probe's failure leads to."""

    RESTART = "restart"
    REPORT = "report"


class OnDeadline(Symbol):
    """What happens to work that is left when a drain's deadline passes."""

    LEAVE = "leave"
    KILL = "kill"


class NotifyAccess(Symbol):
    """Who may speak on a component's sockets (systemd.service(5), NotifyAccess=)."""

    MAIN = "main"
    TREE = "tree"


class LogSink(Symbol):
    """Where a component's standard output and standard error go."""

    JOURNAL = "journal"
    FILE = "file"
    INHERIT = "inherit"


class ProbeKind(Symbol):
    """The three questions of the kubelet: has it started, may it be used, does it still work."""

    STARTUP = "startup"
    READINESS = "readiness"
    LIVENESS = "liveness"


class ExitMeaning(Symbol):
    """What a role file may say about an exit status."""

    HOLD = "hold"
    """Final until an operator starts it again: the component is not restarted."""
    DRAINED = "host.drained"
    DECOMMISSIONED = "host.decommissioned"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecCheck:
    """Healthy when the command exits 0. `timeout_ns` of the probe bounds it."""

    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpCheck:
    """Healthy when a TCP connection can be opened."""

    port: int
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCheck:
    """Healthy when GET answers 200 to 399. Exactly one of `port` and `socket` (an absolute path) is set."""

    path: str = "/"
    port: int | None = None
    host: str = "127.0.0.1"
    socket: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatCheck:
    """Judged from the heartbeats that arrive; nothing is sent.

    Startup succeeds at the hello, readiness at READY=1, liveness fails when a beat is late by three of the
    intervals that the component itself declared.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyCheck:
    """Judged from sd_notify(3) datagrams: READY=1, and WATCHDOG=1 within WATCHDOG_USEC."""


Check = ExecCheck | TcpCheck | HttpCheck | HeartbeatCheck | NotifyCheck
PASSIVE_CHECKS = (HeartbeatCheck, NotifyCheck)
"""Checks for which the runtime does nothing: the core judges them from messages and deadlines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSpec:
    """One probe with the kubelet's parameters and defaults (kubernetes.io, Probe v1 core)."""

    check: Check
    initial_delay_ns: int = 0
    period_ns: int = 10 * NS_PER_S
    timeout_ns: int = 1 * NS_PER_S
    success_threshold: int = 1
    failure_threshold: int = 3
    on_failure: OnFailure = OnFailure.RESTART


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSpec:
    """The stop ladder: `signal`, at most `timeout_ns`, SIGKILL; `kill_timeout_ns` is how long death may take."""

    signal: int = 15
    timeout_ns: int = 10 * NS_PER_S
    kill_timeout_ns: int = 1 * NS_PER_S
    kill_scope: KillScope = KillScope.TREE
    abort_first: bool = False
    """A stop for a failed probe begins with SIGABRT, which leaves a core, in place of `signal`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartSpec:
    """Delays between restarts: `initial_ns * factor**n`, capped, forgotten after `reset_after_ns` of running."""

    initial_ns: int = NS_PER_S // 10
    factor: int = 2
    cap_ns: int = 30 * NS_PER_S
    reset_after_ns: int = 60 * NS_PER_S
    limit: int | None = None
    """Starts allowed within `limit_window_ns`; None (the default): an agent does not give up."""
    limit_window_ns: int = 60 * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """A helper command (pre_start, reload, drain) with its bound."""

    command: tuple[str, ...]
    timeout_ns: int = 10 * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSpec:
    """How a component is told to drain. `how` is a directive (None), a signal number or a command."""

    how: int | CommandSpec | None = None
    on_deadline: OnDeadline = OnDeadline.LEAVE


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSpec:
    """Resource limits. In session mode only `nofile` (RLIMIT_NOFILE) can be enforced; the others need a cgroup."""

    memory_max: int | None = None
    cpu_weight: int | None = None
    pids_max: int | None = None
    nofile: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSpec:
    """One component of one role, complete: substitutions done, overrides of the boot configuration applied."""

    name: str
    role: str
    command: tuple[str, ...]
    user: str | None = None
    """User to run as; None: as the agent itself (`user: inherit`)."""
    environment: tuple[tuple[str, str], ...] = ()
    environment_file: str | None = None
    working_directory: str | None = None
    pre_start: CommandSpec | None = None
    reload: int | CommandSpec | None = None
    """Signal number or command that makes it read its configuration again."""
    stop: StopSpec = StopSpec()
    restart: RestartSpec = RestartSpec()
    startup: ProbeSpec | None = None
    readiness: ProbeSpec | None = None
    liveness: ProbeSpec | None = None
    after: tuple[str, ...] = ()
    """Components that must be ready before this one is started, and that are stopped after it."""
    run_while: tuple[str, ...] = ()
    """Facts that must all be true while this component runs."""
    stop_when: tuple[str, ...] = ()
    """Facts that stop this component when they become true."""
    restart_on_change: tuple[str, ...] = ()
    """`FACT.term` names whose change, while the fact stays true, restarts this component."""
    states: tuple[str, ...] = ()
    """Facts that this component is the authority for."""
    max_lease_ns: int = 60 * NS_PER_S
    """A stated lease that ends later than this from now is not believed."""
    exit_status: tuple[tuple[int, ExitMeaning], ...] = ()
    drain: DrainSpec | None = None
    notify_access: NotifyAccess = NotifyAccess.MAIN
    limits: LimitsSpec = LimitsSpec()
    oom_score_adj: int | None = None
    log: LogSink = LogSink.JOURNAL


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """Who this host is. `instance_id` identifies it across names where the provider gives one."""

    name: str
    instance_id: str | None = None
    template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """The whole configuration of one host, ready to be supervised."""

    host: HostSpec
    roles: tuple[str, ...]
    components: tuple[ComponentSpec, ...]
    controllers: tuple[str, ...] = ()
    host_loss_grace_ns: int | None = None


def stop_budget_ns(spec: ComponentSpec) -> int:
    """Return how long before the end of a lease this component must begin to stop."""
    return spec.stop.timeout_ns + spec.stop.kill_timeout_ns + LEASE_MARGIN_NS
