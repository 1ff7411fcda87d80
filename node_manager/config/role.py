"""Role files: what a role's components are, how they are started, judged and stopped (DESIGN 6).

A model has the fields that an operator writes, in the units of an operator; `spec()` gives the frozen value that the
core trusts. Runs in the validator alone.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from node_manager.config.fields import (
    MAX_ITEMS,
    AbsolutePath,
    Address,
    Bytes,
    Command,
    ExitCode,
    Name,
    Period,
    Port,
    Seconds,
    SecondsOrNone,
    SignalNumber,
    Strict,
    Text,
    User,
    Variable,
    enum_field,
    nanoseconds,
    refusal,
)
from node_manager.core.spec import (
    NS_PER_S,
    Check,
    CommandSpec,
    ComponentSpec,
    DrainSpec,
    ExecCheck,
    ExitMeaning,
    HeartbeatCheck,
    HttpCheck,
    KillScope,
    LimitsSpec,
    LogSink,
    NotifyAccess,
    NotifyCheck,
    OnDeadline,
    OnFailure,
    ProbeSpec,
    RestartSpec,
    StopSpec,
    TcpCheck,
)

INHERIT = "inherit"
"""`user: inherit`: the component runs as the agent's own user."""
PROBE_KINDS = ("exec", "tcp", "http", "heartbeat", "notify")
"""Exactly one of them is what a probe does."""

_PROBE = ProbeSpec(check=HeartbeatCheck())
_STOP = StopSpec()
_RESTART = RestartSpec()
_COMMAND = CommandSpec(command=("true",))
_COMPONENT = ComponentSpec(name="", role="", command=("true",))


def _s(duration_ns: int) -> float:
    """A default of the core in the unit of the role file: stated once, there."""
    return duration_ns / NS_PER_S


Threshold = Annotated[int, Field(ge=1, le=1000)]
Names = Annotated[list[Text], Field(max_length=MAX_ITEMS)]
"""Components or facts; whether they exist is judged once all of the host are known."""


class ExecModel(Strict):
    """Healthy when the command exits 0."""

    command: Command = Field(description="the program and its arguments, such as [check-it, --quick]")


class TcpModel(Strict):
    """Healthy when a TCP connection can be opened."""

    port: Port = Field(description="the port, such as 7011")
    host: Address = "127.0.0.1"


class HttpModel(Strict):
    """Healthy when GET answers 200 to 399."""

    path: Text = "/"
    port: Port | None = None
    host: Address = "127.0.0.1"
    socket: AbsolutePath | None = None

    @field_validator("path")
    @classmethod
    def _path(cls, path: str) -> str:
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
            raise refusal(f"{path[:60]!r} is no path of a URL", "begin it with / and encode spaces as %20")
        return path

    @model_validator(mode="after")
    def _where(self) -> "HttpModel":
        self.exactly_one("port", "socket")
        return self


class NothingModel(Strict):
    """A check without a setting of its own: `{}`."""


class ProbeModel(Strict):
    """One probe, with the kubelet's parameters."""

    exec: ExecModel | None = None
    tcp: TcpModel | None = None
    http: HttpModel | None = None
    heartbeat: NothingModel | None = None
    notify: NothingModel | None = None
    initial_delay_s: SecondsOrNone = _s(_PROBE.initial_delay_ns)
    period_s: Period = _s(_PROBE.period_ns)
    timeout_s: Seconds = _s(_PROBE.timeout_ns)
    success_threshold: Threshold = _PROBE.success_threshold
    failure_threshold: Threshold = _PROBE.failure_threshold
    on_failure: OnFailure = enum_field(_PROBE.on_failure, "what the failure of the probe leads to")

    @model_validator(mode="after")
    def _kind(self) -> "ProbeModel":
        self.exactly_one(*PROBE_KINDS)
        return self

    def check(self) -> Check:
        """What the probe does."""
        if self.exec is not None:
            return ExecCheck(command=tuple(self.exec.command))
        if self.tcp is not None:
            return TcpCheck(port=self.tcp.port, host=self.tcp.host)
        if self.http is not None:
            http = self.http
            return HttpCheck(path=http.path, port=http.port, host=http.host, socket=http.socket)
        return NotifyCheck() if self.notify is not None else HeartbeatCheck()

    def spec(self) -> ProbeSpec:
        """The probe for the core."""
        return ProbeSpec(
            check=self.check(),
            initial_delay_ns=nanoseconds(self.initial_delay_s),
            period_ns=nanoseconds(self.period_s),
            timeout_ns=nanoseconds(self.timeout_s),
            success_threshold=self.success_threshold,
            failure_threshold=self.failure_threshold,
            on_failure=self.on_failure,
        )


class ProbesModel(Strict):
    """The three questions of the kubelet: has it started, may it be used, does it still work."""

    startup: ProbeModel | None = None
    readiness: ProbeModel | None = None
    liveness: ProbeModel | None = None


class StopModel(Strict):
    """The stop ladder: signal, wait, SIGKILL."""

    signal: SignalNumber = _STOP.signal
    timeout_s: Seconds = _s(_STOP.timeout_ns)
    kill_timeout_s: Seconds = _s(_STOP.kill_timeout_ns)
    kill_scope: KillScope = enum_field(_STOP.kill_scope, "what SIGKILL reaches")
    abort_first: bool = _STOP.abort_first

    def spec(self) -> StopSpec:
        """The ladder for the core."""
        return StopSpec(
            signal=self.signal,
            timeout_ns=nanoseconds(self.timeout_s),
            kill_timeout_ns=nanoseconds(self.kill_timeout_s),
            kill_scope=self.kill_scope,
            abort_first=self.abort_first,
        )


class RestartModel(Strict):
    """Delays between restarts."""

    initial_s: Seconds = _s(_RESTART.initial_ns)
    factor: Annotated[int, Field(ge=1, le=100)] = _RESTART.factor
    cap_s: Seconds = _s(_RESTART.cap_ns)
    reset_after_s: Seconds = _s(_RESTART.reset_after_ns)
    limit: Annotated[int, Field(ge=1, le=1_000_000)] | None = _RESTART.limit
    limit_window_s: Seconds = _s(_RESTART.limit_window_ns)

    @model_validator(mode="after")
    def _cap(self) -> "RestartModel":
        if self.cap_s < self.initial_s:
            raise refusal(
                f"cap_s ({self.cap_s:g}) is below initial_s ({self.initial_s:g})", "make cap_s at least initial_s"
            )
        return self

    def spec(self) -> RestartSpec:
        """The delays for the core."""
        return RestartSpec(
            initial_ns=nanoseconds(self.initial_s),
            factor=self.factor,
            cap_ns=nanoseconds(self.cap_s),
            reset_after_ns=nanoseconds(self.reset_after_s),
            limit=self.limit,
            limit_window_ns=nanoseconds(self.limit_window_s),
        )


class CommandModel(Strict):
    """A helper command with its bound."""

    command: Command = Field(description="the program and its arguments, such as [nginx, -t]")
    timeout_s: Seconds = _s(_COMMAND.timeout_ns)

    def spec(self) -> CommandSpec:
        """The command for the core."""
        return CommandSpec(command=tuple(self.command), timeout_ns=nanoseconds(self.timeout_s))


class ReloadModel(Strict):
    """How a component is made to read its configuration again."""

    signal: SignalNumber | None = None
    command: Command | None = None
    timeout_s: Seconds = _s(_COMMAND.timeout_ns)

    @model_validator(mode="after")
    def _how(self) -> "ReloadModel":
        self.exactly_one("signal", "command")
        return self

    def spec(self) -> int | CommandSpec:
        """The signal or the command for the core."""
        if self.command is not None:
            return CommandSpec(command=tuple(self.command), timeout_ns=nanoseconds(self.timeout_s))
        if self.signal is None:
            raise AssertionError("exactly_one has seen to it")
        return self.signal


class DrainModel(Strict):
    """How a component is told to drain, and what happens to what is left at the deadline."""

    directive: Literal[True] | None = None
    signal: SignalNumber | None = None
    command: Command | None = None
    timeout_s: Seconds = _s(_COMMAND.timeout_ns)
    on_deadline: OnDeadline = enum_field(OnDeadline.LEAVE, "what happens to work left at the deadline")

    @model_validator(mode="after")
    def _how(self) -> "DrainModel":
        self.exactly_one("directive", "signal", "command")
        return self

    def spec(self) -> DrainSpec:
        """The drain for the core."""
        how: int | CommandSpec | None = self.signal
        if self.command is not None:
            how = CommandSpec(command=tuple(self.command), timeout_ns=nanoseconds(self.timeout_s))
        return DrainSpec(how=how, on_deadline=self.on_deadline)


class LimitsModel(Strict):
    """Resource limits of the component's group."""

    memory_max: Bytes | None = None
    cpu_weight: Annotated[int, Field(ge=1, le=10_000)] | None = None
    pids_max: Annotated[int, Field(ge=1, le=4_194_304)] | None = None
    nofile: Annotated[int, Field(ge=16, le=1_048_576)] | None = None

    def spec(self) -> LimitsSpec:
        """The limits for the core."""
        return LimitsSpec(
            memory_max=self.memory_max, cpu_weight=self.cpu_weight, pids_max=self.pids_max, nofile=self.nofile
        )


def _form(value: Any) -> str:
    """The member of the union that judges a value: everything but a mapping is taken for a list gone wrong."""
    return "mapping" if isinstance(value, dict) else "list"


PreStart = Annotated[
    Annotated[Command, Tag("list")] | Annotated[CommandModel, Tag("mapping")],
    Discriminator(_form),
]


class ComponentModel(Strict):
    """One component of a role."""

    command: Command = Field(description="the program and its arguments, such as [xce-controller, --foreground]")
    user: User | None = None
    environment: dict[Variable, Text] = Field(default_factory=dict, max_length=MAX_ITEMS)
    environment_file: AbsolutePath | None = None
    working_directory: AbsolutePath | None = None
    pre_start: PreStart | None = None
    reload: ReloadModel | None = None
    stop: StopModel = StopModel()
    restart: RestartModel = RestartModel()
    probes: ProbesModel = ProbesModel()
    after: Names = Field(default_factory=list)
    run_while: Names = Field(default_factory=list)
    stop_when: Names = Field(default_factory=list)
    restart_on_change: Names = Field(default_factory=list)
    states: Names = Field(default_factory=list)
    max_lease_s: Seconds = _s(_COMPONENT.max_lease_ns)
    exit_status: dict[ExitCode, Annotated[ExitMeaning, Field(strict=False)]] = Field(default_factory=dict)
    drain: DrainModel | None = None
    notify_access: NotifyAccess = enum_field(_COMPONENT.notify_access, "who may speak on the component's sockets")
    limits: LimitsModel = LimitsModel()
    oom_score_adj: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    log: LogSink = enum_field(_COMPONENT.log, "where standard output and standard error go")

    def spec(self, name: str, role: str) -> ComponentSpec:
        """The component for the core. Its user must be known by now: `user` is the role's where it is not its own."""
        pre_start = CommandModel(command=self.pre_start) if isinstance(self.pre_start, list) else self.pre_start
        probes = self.probes
        return ComponentSpec(
            name=name,
            role=role,
            command=tuple(self.command),
            user=None if self.user == INHERIT else self.user,
            environment=tuple(self.environment.items()),
            environment_file=self.environment_file,
            working_directory=self.working_directory,
            pre_start=pre_start.spec() if pre_start else None,
            reload=self.reload.spec() if self.reload else None,
            stop=self.stop.spec(),
            restart=self.restart.spec(),
            startup=probes.startup.spec() if probes.startup else None,
            readiness=probes.readiness.spec() if probes.readiness else None,
            liveness=probes.liveness.spec() if probes.liveness else None,
            after=tuple(self.after),
            run_while=tuple(self.run_while),
            stop_when=tuple(self.stop_when),
            restart_on_change=tuple(self.restart_on_change),
            states=tuple(self.states),
            max_lease_ns=nanoseconds(self.max_lease_s),
            exit_status=tuple(sorted(self.exit_status.items())),
            drain=self.drain.spec() if self.drain else None,
            notify_access=self.notify_access,
            limits=self.limits.spec(),
            oom_score_adj=self.oom_score_adj,
            log=self.log,
        )


class RoleHead(Strict):
    """A role file without a look into its components: those are judged one by one, overrides applied."""

    role: Name = Field(description="the role's name, which is also the file's")
    user: User = Field(description="the user that the role's components run as, such as xce; inherit: the agent's own")
    components: dict[Name, dict[str, Any]] = Field(
        min_length=1, max_length=MAX_ITEMS, description="the role's components by their names"
    )


class RoleFile(Strict):
    """A whole role file: the schema that editors get."""

    role: Name
    user: User
    components: dict[Name, ComponentModel] = Field(min_length=1, max_length=MAX_ITEMS)
