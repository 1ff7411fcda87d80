"""Commands beside a component: pre_start, reload, drain and exec probes. Bounded in time, output and processes.

Each runs in a session of its own with its output captured, and a check or probe in a cgroup of its own where there are
cgroups. When its time is over, or it is cancelled, everything it started is killed. The result comes once; `released`
comes when nothing of it lives any more.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import count

from node_manager.core.events import ExitStatus
from node_manager.core.spec import ComponentSpec
from node_manager.runtime import environment, kernel, signals
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.kill import TreeKill, kill_exactly
from node_manager.runtime.plans import Planner
from node_manager.runtime.spawn import Launch, LaunchError, begin
from node_manager.runtime.tree import Owner, Root, Trees

MAX_OUTPUT_BYTES = 500
"""Tail of the output that goes into a detail: a few lines, where the message of a failed check stands."""
KILL_BOUND_S = 2.0
"""How long an answer waits for the death of what was killed; after that it is given, and the kill goes on."""
_READ_BYTES = 64 * 1024
_READS_AT_END = 16
"""Reads that empty the pipe after the exit: its capacity, unless a grandchild goes on writing."""


class End(Enum):
    """How a helper's run ended."""

    EXITED = "exited"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    NOT_STARTED = "not started"


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperResult:
    """What came of a run. `output` is the tail of what it wrote; `error` says why it was not started."""

    end: End
    status: ExitStatus
    output: str = ""
    error: str = ""
    timeout_ns: int = 0

    @property
    def ok(self) -> bool:
        """It exited 0."""
        return self.end is End.EXITED and self.status.code == 0

    @property
    def detail(self) -> str:
        """One sentence for people, with the tail of its output."""
        if self.end is End.NOT_STARTED:
            return self.error
        if self.end is End.TIMED_OUT:
            text = f"not finished within {self.timeout_ns / 1e9:g} s, killed"
        elif self.end is End.CANCELLED:
            text = "cancelled"
        else:
            text = signals.describe_exit(self.status)
        return f"{text}: {self.output}" if self.output else text


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperPlan:
    """What to run, and what becomes of it.

    `clear`: what it leaves behind when it exits is killed too. `answer_first`: the result does not wait for the
    deaths of what is killed.
    """

    spec: ComponentSpec
    generation: int
    command: tuple[str, ...]
    timeout_ns: int
    main_pid: int | None = None
    clear: bool = True
    answer_first: bool = False


class Helpers:
    """Runs helpers and knows the ones under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, trees: Trees, planner: Planner) -> None:
        self.loop = loop
        self.trees = trees
        self.planner = planner
        self._since_ns = boottime_ns()
        """A part of each mark: a successor counts from 1 again, and may have the same pid."""
        self._numbers = count(1)
        self._runs: dict[int, HelperRun] = {}
        """By pid of the helper, while it is not reaped."""
        self._open: set[HelperRun] = set()
        """Everything that still holds a descriptor or a timer: its tree may outlive the helper itself."""

    def run(
        self, plan: HelperPlan, done: Callable[[HelperResult], None], released: Callable[[], None] | None = None
    ) -> "HelperRun":
        """Start a run. Never raises: `done` is called once in any case, and never before this returns."""
        mark = f"{self._since_ns}.{next(self._numbers)}"
        if not plan.clear:
            mark = environment.MAY_LEAVE + mark
        made = HelperRun(self, plan, mark, done, released)
        self._open.add(made)
        return made

    @property
    def pids(self) -> tuple[int, ...]:
        """The helpers' own processes that are not reaped."""
        return tuple(self._runs)

    def owns(self, pid: int) -> bool:
        """Whether this child is a helper's: its status is not for others to take."""
        return pid in self._runs

    def exited(self, pid: int) -> None:
        """This helper is a zombie: take its status."""
        self._runs[pid].exited()

    def enlist(self, pid: int, run: "HelperRun") -> None:
        """A run has a process now."""
        self._runs[pid] = run

    def strike(self, pid: int) -> None:
        """The process was reaped."""
        self._runs.pop(pid, None)

    def close(self) -> None:
        """Kill what is under way; no results follow. Whoever reaps orphans, or init, gets the zombies."""
        for run in list(self._open):
            run.abandon()
        self._runs.clear()

    def closed(self, run: "HelperRun") -> None:
        """The run holds nothing any more."""
        self._open.discard(run)


class HelperRun:
    """One run of one helper."""

    def __init__(
        self,
        helpers: Helpers,
        plan: HelperPlan,
        mark: str,
        done: Callable[[HelperResult], None],
        released: Callable[[], None] | None,
    ) -> None:
        self._helpers = helpers
        self._loop = helpers.loop
        self._plan = plan
        self._owner = Owner(plan.spec.name, mark)
        self._done: Callable[[HelperResult], None] | None = done
        self._released = released
        self._tail = b""
        self._launch: Launch | None = None
        self._kill: TreeKill | None = None
        self._end = End.EXITED
        self._status = ExitStatus()
        self._timer: asyncio.TimerHandle | None = None
        self._output_fd = -1
        try:
            self._start()
        except LaunchError as error:
            self._loop.call_soon(self._not_started, str(error))
        except OSError as error:
            self._loop.call_soon(self._not_started, f"cannot run {plan.command[0]}: {kernel.explain(error)}")

    def cancel(self) -> None:
        """End it at once with everything it started; its result follows unless it was given already."""
        self._terminate(End.CANCELLED)

    def abandon(self) -> None:
        """SIGKILL what can be seen of it and forget it: the agent is about to end."""
        self._done = self._released = None
        try:
            for member in self._helpers.trees.members(self._owner, self._plan.generation):
                pidfd = kill_exactly(self._helpers.trees.procfs, member)
                if pidfd is not None:
                    os.close(pidfd)
        except OSError:
            pass  # no descriptors left at the very end: init's children then
        if self._launch is not None:
            self._loop.remove_reader(self._launch.pidfd)
            if self._launch.report_fd >= 0:
                self._loop.remove_reader(self._launch.report_fd)
            self._launch.kill()
            os.waitid(os.P_PIDFD, self._launch.pidfd, os.WEXITED | os.WNOHANG)
            self._launch.forget()
        self._close()

    def exited(self) -> None:
        """The helper's own process has ended: take its status, and see what it left."""
        launch = self._launch
        if launch is None or not self._settled():
            return
        if self._plan.clear and self._kill is None:
            self._helpers.trees.left(self._owner, self._plan.generation, launch.pid)  # what the kill has to find
        result = os.waitid(os.P_PIDFD, launch.pidfd, os.WEXITED | os.WNOHANG)
        if result is None:
            return
        self._status = kernel.wait_result(result)
        self._detach(launch)
        os.close(launch.pidfd)
        for _ in range(_READS_AT_END):
            if not self._readable():
                break
        if self._kill is None:
            if self._plan.clear:
                self._begin_kill()
            else:
                self._gone()

    def _begin_kill(self) -> None:
        """Clear its tree; the answer comes before, or with the end of that, or after a bound."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._plan.answer_first:
            self._answer()
        else:
            self._timer = self._loop.call_later(KILL_BOUND_S, self._answer)
        self._kill = TreeKill(
            self._loop, self._helpers.trees, self._owner, newest=self._plan.generation, done=self._gone
        )

    def _start(self) -> None:
        plan, helpers = self._plan, self._helpers
        self._output_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(self._output_fd, False)
            launch_plan = helpers.planner.helper(
                plan.spec,
                generation=plan.generation,
                command=plan.command,
                mark=self._owner.helper,
                main_pid=plan.main_pid,
                output_fd=write_fd,
                cgroup_fd=helpers.trees.enclose(self._owner) if plan.clear else None,
            )
            launch = begin(launch_plan)
        except BaseException:
            os.close(self._output_fd)
            self._output_fd = -1
            raise
        finally:
            os.close(write_fd)
        self._launch = launch
        helpers.trees.plant(Root(self._owner, plan.generation, launch.pid, helpers.trees.start_ticks(launch.pid)))
        helpers.enlist(launch.pid, self)
        self._loop.add_reader(self._output_fd, self._readable)
        self._loop.add_reader(launch.report_fd, self._settled)
        self._loop.add_reader(launch.pidfd, self.exited)
        self._timer = self._loop.call_later(plan.timeout_ns / 1e9, partial(self._terminate, End.TIMED_OUT))

    def _settled(self) -> bool:
        """Whether the launch succeeded, as far as is known. False also when it did not and all is over."""
        launch = self._launch
        if launch is None:
            return False
        try:
            return launch.settle(self._loop.remove_reader)
        except LaunchError as error:
            self._detach(launch)
            self._not_started(str(error))
            return False

    def _detach(self, launch: Launch) -> None:
        """The helper's own process is reaped."""
        self._loop.remove_reader(launch.pidfd)
        self._launch = None
        self._helpers.strike(launch.pid)
        self._helpers.trees.fell(launch.pid)

    def _readable(self) -> bool:
        """Take what it wrote, keep the tail. True while there may be more."""
        if self._output_fd < 0:
            return False
        try:
            data = os.read(self._output_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._output_fd)
            return False
        self._tail = (self._tail + data)[-MAX_OUTPUT_BYTES:]
        return True

    def _terminate(self, end: End) -> None:
        if self._done is None or self._kill is not None or self._output_fd < 0:
            return
        self._end = end
        self._begin_kill()

    def _gone(self) -> None:
        """Nothing of it lives."""
        self._kill = None
        self._answer()
        self._close()
        if self._released is not None:
            self._released()

    def _not_started(self, error: str) -> None:
        if self._kill is not None:
            self._kill.cancel()
        self._kill = None
        done, self._done = self._done, None
        self._close()
        if done is not None:
            done(HelperResult(end=End.NOT_STARTED, status=ExitStatus(), error=error))
        if self._released is not None:
            self._released()

    def _answer(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        done(
            HelperResult(
                end=self._end,
                status=self._status,
                output=_one_line(self._tail),
                timeout_ns=self._plan.timeout_ns,
            )
        )

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._kill is not None:
            self._kill.cancel()
            self._kill = None
        if self._output_fd >= 0:
            self._loop.remove_reader(self._output_fd)
            os.close(self._output_fd)
            self._output_fd = -1
        self._helpers.trees.forget(self._owner)
        self._helpers.closed(self)


def _one_line(output: bytes) -> str:
    """Output as a part of a sentence: lines joined, nothing that could steer a terminal."""
    text = " ".join(output.decode("utf-8", "replace").split())
    return "".join(character if character.isprintable() else "?" for character in text)
