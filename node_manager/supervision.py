"""Supervision for other programs: the node manager's component machine and probes, without its daemon.

A program that has processes of its own to keep alive, such as the one that supervises service jobs under a worker,
describes each as a `ServiceSpec` and hands it to a `Supervisor`:

    async with Supervisor([ServiceSpec(name="web", command=("/usr/bin/web",))]) as supervisor:
        async for event in supervisor.events():
            print(event)

What holds for the node manager's components holds for services: one process at a time, restarts with growing delays,
kubelet's probes, stops that end in SIGKILL for the whole tree, and a reason for every state. A supervisor knows its own
processes alone: another one's, in this program or in any other, and the node manager's components are never touched,
whatever their names. It needs a running asyncio loop, and changes nothing of the program around it: no signal handler,
no reaping of children that are not its own.

docs/how-to/supervise-from-python.md shows more. Durations are seconds.
"""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from node_manager.core import status
from node_manager.core.actions import Reply
from node_manager.core.events import Verb
from node_manager.core.nodestate import Member
from node_manager.core.spec import (
    NS_PER_S,
    ComponentSpec,
    ExecCheck,
    ExitMeaning,
    HttpCheck,
    KillScope,
    LimitsSpec,
    LogSink,
    OnFailure,
    ProbeSpec,
    RestartSpec,
    StopSpec,
    TcpCheck,
)
from node_manager.core.states import IDLE
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.rundir import RuntimeDirError
from node_manager.runtime.supervising import DirectoryInUseError, Engine

__all__ = [
    "ExecCheck",
    "HttpCheck",
    "KillScope",
    "OnFailure",
    "Probe",
    "ServiceEvent",
    "ServiceSpec",
    "ServiceStatus",
    "SupervisionError",
    "Supervisor",
    "TcpCheck",
]

MAX_SERVICES = 1024
"""Services of one supervisor."""
MAX_DURATION_S = 86_400.0
"""One day: whatever is longer is a mistake of units."""
MIN_PERIOD_S = 0.1
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_EVENTS_AT_ONCE = 64


class SupervisionError(Exception):
    """Something that was asked for is not so; the text begins with "cannot" and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """How a service is asked whether it is well, with the kubelet's parameters, meanings and defaults.

    Raises ValueError, as `ServiceSpec` does, for what cannot be.
    """

    check: ExecCheck | TcpCheck | HttpCheck
    initial_delay_s: float = 0.0
    period_s: float = 10.0
    timeout_s: float = 1.0
    success_threshold: int = 1
    failure_threshold: int = 3
    on_failure: OnFailure = OnFailure.RESTART
    """`REPORT`: a failed liveness or startup probe is shown, and restarts nothing."""

    def __post_init__(self) -> None:
        _within("initial_delay_s", self.initial_delay_s, 0.0)
        _within("period_s", self.period_s, MIN_PERIOD_S)
        _within("timeout_s", self.timeout_s, 0.001)
        for name in ("success_threshold", "failure_threshold"):
            if getattr(self, name) < 1:
                raise ValueError(f"cannot use {name} {getattr(self, name)}: it must be 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """One process to keep alive. Raises ValueError with a sentence for what cannot be."""

    name: str
    """Lower-case letters, digits and `-`, at most 63, a letter first."""
    command: tuple[str, ...]
    """A program, by an absolute path or found in PATH, and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """In addition to PATH, LANG, TZ, HOME, USER, LOGNAME and SHELL. Nothing else is inherited."""
    working_directory: str = "/"
    user: str | None = None
    """None: the program's own."""
    startup: Probe | None = None
    readiness: Probe | None = None
    liveness: Probe | None = None
    after: tuple[str, ...] = ()
    """Services that must be ready before this one is started; they are stopped after it."""
    stop_signal: int = signal.SIGTERM
    stop_timeout_s: float = 10.0
    """After so long SIGKILL follows."""
    kill_scope: KillScope = KillScope.TREE
    """What SIGKILL reaches, and what is cleared before a restart: all that it started, or its main process alone."""
    restart_initial_s: float = 0.1
    restart_factor: int = 2
    restart_cap_s: float = 30.0
    restart_reset_after_s: float = 60.0
    """The n-th restart waits `initial * factor**n`, at most `cap`; so long a run forgets the earlier ones."""
    final_exits: frozenset[int] = frozenset()
    """Exit statuses after which it is not started again until `start`."""
    nofile: int | None = None
    """RLIMIT_NOFILE; None: the program's own."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"cannot use the service name {self.name[:64]!r}: it must match {_NAME.pattern}")
        if not self.command or not self.command[0]:
            raise ValueError(f"cannot use {self.name}: its command is empty; name a program first")
        if "/" in self.command[0] and not self.command[0].startswith("/"):
            raise ValueError(f"cannot use {self.name}: {self.command[0]!r} is a relative path; write an absolute one")
        if self.stop_signal not in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            raise ValueError(f"cannot use {self.name}: a program cannot handle the stop signal {self.stop_signal}")
        for name in ("stop_timeout_s", "restart_initial_s", "restart_reset_after_s"):
            _within(name, getattr(self, name), 0.0)
        _within("restart_cap_s", self.restart_cap_s, self.restart_initial_s)
        if not 1 <= self.restart_factor <= 100:  # noqa: PLR2004 - the bound of the role files
            raise ValueError(f"cannot use restart_factor {self.restart_factor}: it must be from 1 to 100")
        for name in ("startup", "liveness"):
            probe: Probe | None = getattr(self, name)
            if probe is not None and probe.success_threshold != 1:
                raise ValueError(f"cannot use {self.name}: success_threshold of its {name} probe must be 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceEvent:
    """One thing that happened; `str()` is a line for people."""

    seq: int
    at: str
    """Wall-clock time, ISO 8601, UTC."""
    kind: str
    """`state_changed`, `spawned`, `exited`, `readiness_changed`, `verdict_changed`, …: as the node manager's events."""
    service: str | None
    """None: it concerns the supervisor itself."""
    details: Mapping[str, str | int | bool | None]

    def __str__(self) -> str:
        shown = {key: str(value).lower() if isinstance(value, bool) else value for key, value in self.details.items()}
        details = " ".join(f"{key}={value}" for key, value in shown.items() if value is not None)
        return f"{self.at} {self.service or 'supervisor'}: {self.kind} {details}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """How one service is now, and why."""

    name: str
    state: str
    """`stopped`, `starting`, `running`, `stopping`, `killing`, `backoff`, `exited` or `failed`."""
    wanted: bool
    """It is meant to run."""
    ready: bool | None
    """None: not known yet."""
    pid: int | None
    generation: int
    """Counts its starts."""
    restarts: int
    reason: str
    """Why it is in this state, in words."""
    last_exit: str | None


class Supervisor:
    """Keeps services running. An asynchronous context manager: at its end every service is stopped, in order.

    With a `runtime_dir`, a directory of its own below an existing one, services outlive a program that is killed, or
    that calls `release`: the next supervisor in the same directory adopts those that it is given as `services`, and
    stops the others. It is for one boot; `stop` is not remembered there. `log_dir`, which must exist, gets a file
    NAME.log for each service; None: output goes to the program's standard error.

    Methods are for the loop and the thread that entered it.
    """

    def __init__(
        self,
        services: Iterable[ServiceSpec] = (),
        *,
        runtime_dir: Path | None = None,
        log_dir: Path | None = None,
    ) -> None:
        self._services: dict[str, ServiceSpec] = {}
        for service in services:
            self._accept(service)
        self._runtime_dir = runtime_dir
        self._log_dir = log_dir
        self._engine: Engine | None = None
        self._wakes: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        """Start. Raises SupervisionError where the runtime directory cannot be used."""
        if self._engine is not None:
            raise SupervisionError("cannot enter a supervisor twice; make another one")
        try:
            self._engine = Engine(
                asyncio.get_running_loop(), runtime_dir=self._runtime_dir, log_dir=self._log_dir, turned=self._wake_all
            )
        except (RuntimeDirError, DirectoryInUseError) as error:
            raise SupervisionError(str(error)) from error
        self._engine.history.subscribe(self._wake_all)
        self._engine.start(self._components())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop every service and end; bounded by the services' stop timeouts, and by 100 s in all.

        Where even that is interrupted, what still runs is killed at once.
        """
        engine = self._engine
        if engine is None or engine.closed:
            return
        engine.stop()
        try:
            await self._until(lambda: engine.finished)
        except BaseException:
            engine.kill()
            raise
        finally:
            self.release()

    def release(self) -> None:
        """End without touching a service. A later supervisor with the same `runtime_dir` adopts them."""
        if self._engine is not None:
            self._engine.close()
        self._wake_all()

    async def add(self, service: ServiceSpec) -> None:
        """Take one more service into charge; it is started as soon as those it is `after` are ready."""
        engine = self._running()
        self._accept(service)
        try:
            await self._done(engine.change(self._components()))
        except SupervisionError:
            del self._services[service.name]
            raise

    async def remove(self, name: str) -> None:
        """Stop a service for good; returns when nothing of it lives. Refused while another one is `after` it."""
        engine = self._running()
        self._known(name)
        followers = ", ".join(service.name for service in self._services.values() if name in service.after)
        if followers:
            raise SupervisionError(f"cannot remove {name}: {followers} is after it; remove that first")
        del self._services[name]
        await self._done(engine.change(self._components()))
        await self._until(lambda: name not in engine.state.members or name in self._services)

    async def start(self, name: str) -> None:
        """Have a service that was stopped, has ended for good or waits for its restart run now."""
        self._known(name)
        await self._done(self._running().ask(Verb.START, name))

    async def restart(self, name: str) -> None:
        """Stop a service and start it again; returns when that is under way."""
        self._known(name)
        await self._done(self._running().ask(Verb.RESTART, name))

    async def stop(self, name: str) -> None:
        """Stop a service until `start`; returns when nothing of it lives.

        What is beyond SIGKILL (uninterruptible sleep) keeps it waiting: `asyncio.timeout` bounds the wait, and the
        stop goes on.
        """
        engine = self._running()
        self._known(name)
        await self._done(engine.ask(Verb.STOP, name))

        def over() -> bool:
            member = engine.state.members.get(name)
            return member is None or member.state.want.up or member.state.state in IDLE

        await self._until(over)

    def status(self) -> tuple[ServiceStatus, ...]:
        """Return how every service is, in the order in which they were added."""
        engine = self._running()
        members = (engine.state.members.get(name) for name in self._services)
        return tuple(_status(engine, member) for member in members if member is not None)

    async def events(self, *, after: int = 0) -> AsyncIterator[ServiceEvent]:
        """Iterate over what happened since event number `after`, and what happens, until the supervisor ends.

        A bounded history stands behind it: who reads slowly misses events, and `seq` shows that; an event that repeats
        endlessly takes the place of its last repetition, with a `count`.
        """
        engine, seen = self._running(), after
        while True:
            entries = engine.history.after(seen, _EVENTS_AT_ONCE)
            for entry in entries:
                seen = entry["seq"]
                yield _event(entry)
            if not entries:
                if engine.closed:
                    return
                await self._until(partial(_has_news, engine, seen))

    def _running(self) -> Engine:
        if self._engine is None or self._engine.closed:
            raise SupervisionError("cannot ask a supervisor for anything before it was entered, or after its end")
        return self._engine

    def _accept(self, service: ServiceSpec) -> None:
        if service.name in self._services:
            raise SupervisionError(f"cannot add {service.name}: there is one already; remove it first")
        if len(self._services) >= MAX_SERVICES:
            raise SupervisionError(f"cannot add {service.name}: there are {MAX_SERVICES} services already")
        unknown = ", ".join(name for name in service.after if name not in self._services)
        if unknown:
            raise SupervisionError(f"cannot add {service.name}: it is after {unknown}, which must be added before it")
        self._services[service.name] = service

    def _known(self, name: str) -> None:
        if name not in self._services:
            known = ", ".join(self._services) or "none"
            raise SupervisionError(f"cannot find the service {name} (known: {known})")

    def _components(self) -> tuple[ComponentSpec, ...]:
        return tuple(_component(service) for service in self._services.values())

    async def _done(self, answer: "asyncio.Future[Reply]") -> None:
        await self._until(answer.done)
        if not answer.result().ok:
            raise SupervisionError(answer.result().detail)

    async def _until(self, condition: Callable[[], object]) -> None:
        """Wait until it holds: it is looked at after each turn of the engine."""
        while not condition():
            if self._engine is not None and self._engine.failure is not None:
                raise SupervisionError("cannot go on supervising: it has failed itself") from self._engine.failure
            wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._wakes.add(wake)
            try:
                await wake
            finally:
                self._wakes.discard(wake)

    def _wake_all(self) -> None:
        for wake in self._wakes:
            if not wake.done():
                wake.set_result(None)


def _has_news(engine: Engine, seen: int) -> bool:
    return engine.closed or bool(engine.history.after(seen, 1))


def _status(engine: Engine, member: Member) -> ServiceStatus:
    view = status.component_status(engine.state, member, boottime_ns())
    return ServiceStatus(
        name=view["name"],
        state=view["state"],
        wanted=view["desired"] == "up",
        ready=view["ready"],
        pid=view["pid"],
        generation=view["generation"],
        restarts=view["restarts"],
        reason=view["reason"],
        last_exit=view["last_exit"],
    )


def _event(entry: Mapping[str, Any]) -> ServiceEvent:
    return ServiceEvent(
        seq=entry["seq"],
        at=entry["at"],
        kind=entry["event"].rpartition(".")[2],
        service=entry["component"],
        details={key: value for key, value in entry.items() if key not in {"seq", "at", "event", "component"}},
    )


def _component(service: ServiceSpec) -> ComponentSpec:
    return ComponentSpec(
        name=service.name,
        role="",
        command=tuple(service.command),
        user=service.user,
        environment=tuple(service.environment.items()),
        working_directory=service.working_directory,
        startup=_probe(service.startup),
        readiness=_probe(service.readiness),
        liveness=_probe(service.liveness),
        after=tuple(service.after),
        stop=StopSpec(
            signal=int(service.stop_signal), timeout_ns=_ns(service.stop_timeout_s), kill_scope=service.kill_scope
        ),
        restart=RestartSpec(
            initial_ns=_ns(service.restart_initial_s),
            factor=service.restart_factor,
            cap_ns=_ns(service.restart_cap_s),
            reset_after_ns=_ns(service.restart_reset_after_s),
        ),
        exit_status=tuple((code, ExitMeaning.HOLD) for code in sorted(service.final_exits)),
        limits=LimitsSpec(nofile=service.nofile),
        log=LogSink.FILE,
    )


def _probe(probe: Probe | None) -> ProbeSpec | None:
    if probe is None:
        return None
    return ProbeSpec(
        check=probe.check,
        initial_delay_ns=_ns(probe.initial_delay_s),
        period_ns=_ns(probe.period_s),
        timeout_ns=_ns(probe.timeout_s),
        success_threshold=probe.success_threshold,
        failure_threshold=probe.failure_threshold,
        on_failure=probe.on_failure,
    )


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def _within(name: str, value: float, lowest: float) -> None:
    if not lowest <= value <= MAX_DURATION_S:  # also refuses NaN
        raise ValueError(f"cannot use {name} {value}: it must be from {lowest:g} to {MAX_DURATION_S:g} seconds")
