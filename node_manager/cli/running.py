"""`xce-node-manager run`: the agent in the foreground, or under systemd."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from node_manager import __version__
from node_manager.api.listener import ListenError
from node_manager.api.server import ApiServer
from node_manager.cli import guard, logs, places, replacing
from node_manager.cli.daemon import EX_CONFIG, EX_NOT_SO, EX_OK, print_problems, user_name
from node_manager.cli.leaving import Leaving
from node_manager.cli.premises import Premises
from node_manager.cli.reporting import Reports
from node_manager.config.load import ConfigInvalid, Sources, load, user_problem
from node_manager.core import node as core
from node_manager.core.actions import Action
from node_manager.core.events import Event
from node_manager.core.nodestate import NodeState
from node_manager.core.spec import NS_PER_S, NodeSpec
from node_manager.core.status import not_ready
from node_manager.runtime import handover
from node_manager.runtime.agent import Agent
from node_manager.runtime.backend import AgentBackend
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.handover import Handover
from node_manager.runtime.journal import EventJournal, JournalError
from node_manager.runtime.notify import SystemdNotifier
from node_manager.runtime.rundir import RuntimeDirError
from node_manager.runtime.settings import Settings
from node_manager.runtime.store import StateDirError
from node_manager.runtime.timekeeper import CALM_PULSE_NS, PULSE_NS

STATUS_NAME = "status"
HEARTBEAT_NAME = "heartbeat"
"""Names of the sockets in systemd's descriptor store."""
FIRST_ANSWER_S = 8.0
"""How long those who ask wait at most for the first reading of the configuration; then they are told that it lasts."""
FLUSH_S = 1.0
"""How long a replacement waits for the event journal: what a slow disk has not taken by then is missing in it."""
FEEDS_PER_INTERVAL = 4
"""WATCHDOG=1 goes out so often within systemd's interval, so that one that is late does no harm."""

log = structlog.get_logger("xce-node-manager")


def run(sources: Sources, log_dir: Path, journal: Path | None = None) -> int:
    """Run the agent until it has stopped everything; return the exit status. `journal`: record every step there.

    After an exec in place of another program (re-exec) it goes on with what that one handed over.
    """
    state_fd = os.environ.get(guard.STATE)
    failure = os.environ.get(guard.FAILED)
    origin = replacing.origin(dict(os.environ))
    systemd = SystemdNotifier()
    sink = logs.configure(under_systemd=systemd.active)
    settings = Settings(sources=sources, log_dir=log_dir, under_systemd=systemd.active, event_journal=journal)
    try:
        if state_fd is not None:
            handed = handover.received(int(state_fd))
            if failure is not None:  # started again from where its own files are
                origin = replace(origin, program=handed.program)
            daemon = _Daemon(settings, systemd, sink, origin, user_name(), handed)
            guard.in_charge()
            os.close(int(state_fd))
            return daemon.go_on(failure)
        return _run(settings, systemd, sink, origin)
    finally:
        sink.close()


def _run(settings: Settings, systemd: SystemdNotifier, sink: logs.Sink, origin: replacing.Origin) -> int:
    spec: NodeSpec | None = None
    user = user_name()
    if not systemd.active:
        # In the foreground a wrong configuration ends at once, with everything that is wrong.
        try:
            spec = load(settings.sources)
        except ConfigInvalid as error:
            return print_problems(error)
        problem = user_problem(spec, user, is_root=os.geteuid() == 0)
        if problem is not None:
            print(problem, file=sys.stderr)
            return EX_CONFIG
    try:
        places.prepare(settings, [component.name for component in spec.components] if spec is not None else ())
        return _Daemon(settings, systemd, sink, origin, user).run(spec)
    except (JournalError, places.PlaceError, RuntimeDirError, StateDirError, ListenError) as error:
        print(error, file=sys.stderr)
        return EX_NOT_SO
    except OSError as error:
        print(f"cannot run: {error}", file=sys.stderr)
        return EX_NOT_SO


def calm_pulse_ns(watchdog_s: float | None) -> int:
    """Return how often the loop has to turn while nothing is near: a watchdog wants to hear of it in time."""
    if watchdog_s is None:
        return CALM_PULSE_NS
    return max(PULSE_NS, min(CALM_PULSE_NS, round(watchdog_s * NS_PER_S / FEEDS_PER_INTERVAL)))


class _Daemon:
    """The agent, its status socket, its signals and its word to systemd.

    `user` is the agent's own, None where nobody tells. `handed` is what a predecessor left; the constructor acts on
    nothing of it.
    """

    def __init__(
        self,
        settings: Settings,
        systemd: SystemdNotifier,
        sink: logs.Sink,
        origin: replacing.Origin,
        user: str | None,
        handed: Handover | None = None,
    ) -> None:
        self._systemd = systemd
        self._sink = sink
        self._fed_ns = 0
        self._open_to_all = False
        self._handed = handed
        self._loop = asyncio.new_event_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._journal: EventJournal | None = None
        try:
            # Where there is a predecessor, it records until this program is in charge.
            problem = None if handed is not None else self._open_journal(settings, None)
            self._agent = Agent(
                self._loop,
                settings,
                user=user,
                finished=self._finish,
                step=self._step,
                turned=self._turned,
                settled=self._settled,
                kept=None if handed is None else handed.agent,
                calm_pulse_ns=calm_pulse_ns(systemd.watchdog_interval_s),
            )
        except BaseException:
            self._close_journal()
            self._loop.close()
            raise
        if problem is not None:
            self._recording_stopped(problem)
        self._leaving = Leaving(self._loop, self._agent, under_systemd=systemd.active, finish=self._finish)
        self._replacing = replacing.Replacing(
            self._loop,
            agent=self._agent,
            api=lambda: self._api,
            flush=self._flush,
            origin=origin,
            replaced=None if handed is None else handed.replaced,
            leaving=lambda: self._leaving.asked,
        )
        backend = AgentBackend(self._agent, log_lines_lost=lambda: sink.lost, replacing=self._replacing)
        self._api = ApiServer(self._loop, settings.status_socket, backend, version=__version__)
        self._premises = Premises(self._agent, self._api, restored=lambda: self._reports.store(anew=True))
        self._reports = Reports(
            systemd,
            summary=self._summary,
            stopping=lambda: self._agent.state.stop_by_ns is not None,
            descriptors=self._listeners,
        )

    def run(self, spec: NodeSpec | None) -> int:
        """Run until the agent has finished."""

        def begin() -> None:
            kept = self._kept_listener(STATUS_NAME, self._agent.settings.status_socket)
            heartbeats = self._kept_listener(HEARTBEAT_NAME, self._agent.settings.heartbeat_socket)
            self._api.start(kept, at_path=True)
            self._api.pause()
            self._loop.call_later(FIRST_ANSWER_S, self._settled)
            self._agent.start(spec, None if heartbeats is None else heartbeats.detach())
            path = str(self._agent.settings.status_socket)
            log.info("agent.started", pid=os.getpid(), version=__version__, socket=path)

        return self._run(begin)

    def go_on(self, failure: str | None) -> int:
        """Run in place of a predecessor; `failure` is why the one that was to follow it did not."""
        handed = self._handed
        assert handed is not None, "there was a predecessor"
        handover.pass_on(handed.descriptors, on=False)
        problem = self._open_journal(self._agent.settings, self._agent.state)
        if problem is not None:
            self._recording_stopped(problem)

        def begin() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, replacing.HELD_SIGNALS)
            self._api.start(socket.socket(fileno=handed.status_fd), at_path=True)
            self._agent.resume(handed.agent, handed.at_ns)
            self._replacing.note_success(handed, failure)
            self._settled()

        return self._run(begin)

    def _run(self, begin: Callable[[], None]) -> int:
        loop, agent = self._loop, self._agent
        loop.set_exception_handler(self._broken)
        self._sink.attach(loop)
        try:
            loop.add_signal_handler(signal.SIGTERM, self._leaving.terminate)
            loop.add_signal_handler(signal.SIGINT, agent.stop, "SIGINT")
            loop.add_signal_handler(signal.SIGHUP, agent.reload)
            begin()
            if self._systemd.active:
                self._reports.store()
                self._reports.send()
                agent.history.subscribe(self._reports.changed)
            loop.run_until_complete(self._done)
            log.info("agent.finished")
            return EX_OK
        finally:
            self._replacing.close()
            self._leaving.close()
            self._api.close(keep_path=self._leaving.handed_over)
            agent.close(keep_sockets=self._leaving.handed_over)
            self._close_journal()
            loop.close()

    def _settled(self) -> None:
        """It is known what there is to be in charge of: answer, and tell systemd."""
        if not self._open_to_all:
            self._open_to_all = True
            # What is there now stays: looking through it again would hold the loop for ten milliseconds each time.
            gc.freeze()
            self._api.accept_again()
            self._reports.in_charge()
            self._reports.send()

    def _listeners(self) -> dict[str, int]:
        """Return the listening sockets for systemd to keep: who connects between two agents waits for the second."""
        found = ((STATUS_NAME, self._api.listener), (HEARTBEAT_NAME, self._agent.heartbeats.listener))
        return {name: listener.fileno() for name, listener in found if listener is not None}

    def _kept_listener(self, name: str, path: Path) -> socket.socket | None:
        """Return the socket that systemd kept, where it still listens at the path."""
        fd = self._systemd.stored.pop(name, None)
        if fd is None:
            return None
        listener = socket.socket(fileno=fd)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and listener.getsockname() == str(path)
        if listens and path.is_socket():
            return listener
        listener.close()
        return None

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _broken(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Fail loudly: a fault of our own must not leave a loop that half works. Components live on."""
        error = context.get("exception")
        if not self._done.done():
            self._done.set_exception(error if isinstance(error, BaseException) else RuntimeError(str(context)))
        log.critical("agent.broken", detail=str(context.get("message")), error=repr(error))

    # --- the event journal ----------------------------------------------------------------------------------------

    def _open_journal(self, settings: Settings, state: NodeState | None) -> str | None:
        """Open the journal that is asked for, or return why there is none. `state`: a predecessor's, to go on with.

        Raises JournalError for a new agent in the foreground alone: elsewhere a file that cannot be recorded to must
        not leave the host without its supervisor.
        """
        if settings.event_journal is None:
            return None
        try:
            self._journal = EventJournal(settings.event_journal, stopped=self._journal_stopped, state=state)
        except JournalError as error:
            if not settings.under_systemd and state is None:
                raise
            return str(error)
        return None

    def _step(self, state: NodeState, event: Event, now: int) -> tuple[NodeState, tuple[Action, ...]]:
        """Make one step of the core, and record it where that is asked for."""
        return core.step(state, event, now) if self._journal is None else self._journal.step(state, event, now)

    def _journal_stopped(self, why: str) -> None:
        """Called from the journal's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the answer
            self._loop.call_soon_threadsafe(self._recording_stopped, why)

    def _recording_stopped(self, why: str) -> None:
        path = str(self._agent.settings.event_journal)
        self._agent.troubles[Path(path)] = why
        self._agent.note("agent.recording_stopped", file=path, why=why)

    def _flush(self) -> None:
        """Write what threads still hold: the program is about to be replaced."""
        self._sink.flush()
        if self._journal is not None:
            self._journal.flush(FLUSH_S)

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()

    # --- systemd --------------------------------------------------------------------------------------------------

    def _summary(self) -> str:
        missing = not_ready(self._agent.state)
        if not missing:
            return "all wanted components are ready"
        return f"not ready: {missing[0]}" + (f" (and {len(missing) - 1} more)" if len(missing) > 1 else "")

    def _turned(self) -> None:
        """A turn of the loop is completed."""
        self._reports.send()
        self._feed_watchdog()
        self._premises.look()

    def _feed_watchdog(self) -> None:
        """Say that the loop turns, at the end of a turn of it that was completed, and not more often than is of use."""
        interval_s = self._systemd.watchdog_interval_s
        now = boottime_ns()
        if interval_s is None or now - self._fed_ns < interval_s * NS_PER_S / FEEDS_PER_INTERVAL:
            return
        if self._systemd.watchdog():  # else its socket is full: again at the end of the next turn
            self._fed_ns = now
