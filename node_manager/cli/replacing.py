"""`reexec`: the running program is replaced by the installed one in the same process.

Three steps, of which only the last cannot be called off. The installed program is started beside this one and is
shown the state: it says whether it can take over, and does nothing else. Then a quiet moment is waited for: nothing
between fork and exec, no write, no command under way. Then the state is written, the descriptors are let through, and
the program is executed. A successor that fails before it is in charge becomes this program again (`guard`).
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from node_manager import __version__
from node_manager.api.backend import CommandResult
from node_manager.api.server import ApiServer
from node_manager.cli import guard
from node_manager.cli.check_child import check
from node_manager.cli.child import Child
from node_manager.core.nodestate import NodePhase
from node_manager.runtime import handover, kernel
from node_manager.runtime.agent import Agent
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.handover import Handover, Kept, Program, Replaced

QUIET_S = 8.0
"""How long a quiet moment is waited for; longer than a launch may take."""
LAST_WORDS_S = 1.0
"""How long clients of the status API may take to send what they began, or to take their answer."""
_LOOK_S = 0.02
HELD_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Blocked across the exec, so that one that comes meanwhile waits for its handler instead of ending the process."""

_ON_ITS_WAY = "the agent is on its way out"
_OF_THIS_START = frozenset(
    {guard.STATE, guard.BACK, guard.FAILED, "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "LISTEN_PIDFDID"}
)
"""Variables that a successor must not take for its own: they speak of descriptors that are taken already."""

Done = Callable[[CommandResult], None]

log = structlog.get_logger("xce-node-manager")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How this process was started: what is installed at that place now may be another version."""

    program: Program
    real_path: str
    """The file itself, at the time of the start: where each version has its own directory, it stays."""
    environment: dict[str, str]


def origin(environment: dict[str, str]) -> Origin:
    """Return how this process was started; to be called at the start, with the environment of that time."""
    path = str(Path(sys.argv[0]).absolute())
    if Path(path).is_file() and os.access(path, os.X_OK):
        program = Program(path=path, arguments=(path, *sys.argv[1:]))
    else:  # `python -m`, or a script that is no program
        program = Program(path=sys.executable, arguments=(sys.executable, *sys.orig_argv[1:]))
    kept = {name: value for name, value in environment.items() if name not in _OF_THIS_START}
    return Origin(program=program, real_path=os.path.realpath(program.path), environment=kept)


class Replacing:
    """Carries `reexec` out. One at a time; `replaced` is how the last one went.

    `flush` writes what threads still hold. `leaving` tells whether the agent is on its way out: a successor would not
    know that it has to go.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        agent: Agent,
        api: Callable[[], ApiServer],
        flush: Callable[[], None],
        origin: Origin,
        replaced: Replaced | None,
        leaving: Callable[[], bool],
    ) -> None:
        self.replaced = replaced
        self._leaving = leaving
        self._loop = loop
        self._agent = agent
        self._api = api
        self._flush = flush
        self._origin = origin
        self._check: Child | None = None
        self._done: Done | None = None
        self._until_s = 0.0
        self._new_version = ""

    def ask(self, by: str, done: Done) -> None:
        """Replace the program. `done` gets the refusal, or that it is about to happen."""
        self._agent.note("command.received", verb="reexec", by=by)
        if self._done is not None or self._check is not None:
            done(CommandResult(ok=False, detail="a re-exec is under way already"))
            return
        if self._leaving() or self._agent.state.phase is NodePhase.STOPPING:
            done(CommandResult(ok=False, detail=_ON_ITS_WAY))
            return
        self._done = done
        try:
            state_fd = handover.write(self._handover(self._agent.keep()))
            try:
                self._check = check(self._loop, self._origin.program, state_fd, self._checked)
            finally:
                os.close(state_fd)
        except OSError as error:
            self._refuse(f"cannot check the installed program: {kernel.explain(error)}; nothing was changed")

    def note_success(self, handed: Handover, failure: str | None) -> None:
        """Say that this program follows another; `failure`: that it is that very program again, and why."""
        count = 1 + (handed.replaced.count if handed.replaced is not None else 0)
        if failure is None:
            detail = f"version {__version__} has taken over from {handed.agent_version}"
            self._agent.note("agent.replaced", old=handed.agent_version, new=__version__)
        else:
            detail = f"the installed program failed before it was in charge: {failure}; {__version__} goes on"
            self._agent.note("agent.reexec_failed", why=detail)
        self.replaced = Replaced(
            count=count, ok=failure is None, detail=detail, old=handed.agent_version, new=__version__
        )

    def close(self) -> None:
        """Call off what is under way."""
        if self._check is not None:
            self._check.close()
            self._check = None

    def _checked(self, version: str | None, problem: str) -> None:
        self._check = None
        if version is None:
            self._refuse(
                f"the installed program cannot take over: {problem}; this one ({__version__}) goes on, "
                "nothing was changed"
            )
            return
        self._new_version = version
        self._until_s = self._loop.time() + QUIET_S
        self._wait()

    def _wait(self) -> None:
        """Wait for a moment in which nothing is under way."""
        under_way = self._agent.under_way()
        if self._leaving():
            self._refuse(_ON_ITS_WAY)
        elif not under_way:
            self._announce()
        elif self._loop.time() >= self._until_s:
            self._refuse(
                f"no quiet moment within {QUIET_S:g} s: under way is {', '.join(sorted(set(under_way)))}; "
                "nothing was changed, try again later"
            )
        else:
            self._loop.call_later(_LOOK_S, self._wait)

    def _announce(self) -> None:
        done, self._done = self._done, None
        assert done is not None, "somebody asked"
        self._api().pause()
        self._until_s = self._loop.time() + LAST_WORDS_S
        done(
            CommandResult(
                ok=True,
                detail=f"version {self._new_version} takes over from {__version__} now; "
                "/v1/status, node.reexec, says how it went",
            )
        )
        self._loop.call_soon(self._last_words)

    def _last_words(self) -> None:
        """Let answers go out and requests come in; then go, at the next quiet moment."""
        now_s = self._loop.time()
        quiet = not self._agent.under_way()
        if self._leaving():
            self._failed(_ON_ITS_WAY)
        elif quiet and (not self._api().busy or now_s >= self._until_s):
            self._go()
        elif now_s >= self._until_s + QUIET_S:
            self._failed(f"no quiet moment within {QUIET_S:g} s: {', '.join(self._agent.under_way())}; try again later")
        else:
            self._loop.call_later(_LOOK_S, self._last_words)

    def _go(self) -> None:
        kept = self._agent.keep()
        self._agent.let_go()
        log.info("agent.replacing", old=__version__, new=self._new_version, program=self._origin.program.path)
        self._flush()
        try:
            self._execute(self._handover(kept))
        except OSError as error:
            self._agent.take_back(kept)
            self._failed(f"cannot execute {self._origin.program.path}: {kernel.explain(error)}")

    def _execute(self, handed: Handover) -> None:
        """Become the installed program. Raises OSError with everything as it was."""
        state_fd = handover.write(handed)
        descriptors = (state_fd, *handed.descriptors)
        environment = self._origin.environment | {guard.STATE: str(state_fd)}
        if handed.back is not None:
            environment[guard.BACK] = json.dumps([handed.back.path, *handed.back.arguments])
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)
        try:
            handover.pass_on(descriptors, on=True)
            os.execve(self._origin.program.path, self._origin.program.arguments, environment)  # noqa: S606
        except BaseException:
            handover.pass_on(descriptors, on=False)
            os.close(state_fd)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise

    def _handover(self, kept: Kept) -> Handover:
        listener = self._api().listener
        assert listener is not None, "somebody asked"
        program, real = self._origin.program, self._origin.real_path
        # A program that was replaced in its own place is no way back: it would be the new one again.
        stays = os.path.realpath(program.path) != real and os.access(real, os.X_OK)
        return Handover(
            agent=kept,
            status_fd=listener.fileno(),
            pid=os.getpid(),
            at_ns=boottime_ns(),
            agent_version=__version__,
            replaced=self.replaced,
            program=program,
            back=Program(path=real, arguments=(real, *program.arguments[1:])) if stays else None,
        )

    def _refuse(self, detail: str) -> None:
        done, self._done = self._done, None
        self._agent.note("agent.reexec_refused", why=detail)
        if done is not None:
            done(CommandResult(ok=False, detail=detail))

    def _failed(self, detail: str) -> None:
        """It was announced, and did not come about."""
        before = self.replaced.count if self.replaced is not None else 0
        detail = f"{detail}; {__version__} goes on"
        self.replaced = Replaced(count=before + 1, ok=False, detail=detail, old=__version__, new=self._new_version)
        self._agent.note("agent.reexec_failed", why=detail)
        self._api().accept_again()
