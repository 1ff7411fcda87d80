"""The processes of this host's components: start, watch, signal, kill, adopt, reap.

Carries out the core's actions and turns what happens into events; decides nothing. Each main process is watched
through its pidfd by the loop. Orphans come to the agent as the subreaper and are reaped when SIGCHLD says so, without
ever taking the status of a main process or a helper.
"""

import asyncio
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from node_manager.core import actions, events
from node_manager.core.events import Event, ExitStatus, Found
from node_manager.runtime import kernel
from node_manager.runtime.adoption import Proven
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.commands import Commands
from node_manager.runtime.environment import Markers
from node_manager.runtime.helpers import Helpers
from node_manager.runtime.kill import TreeKill
from node_manager.runtime.output import OutputError, open_output
from node_manager.runtime.plans import Planner
from node_manager.runtime.procfs import ProcFs
from node_manager.runtime.spawn import LAUNCH_TIMEOUT_S, Launch, LaunchError, begin
from node_manager.runtime.stuck import Stuck, reap_within
from node_manager.runtime.tree import Owner, Root, Trees

_MAX_REAPED_AT_ONCE = 256
"""Orphans reaped in one turn of the loop, so that a storm of them leaves time for everything else."""
_REAP_SLICE_S = 0.01
"""The same bound in time: waiting takes longer the more children there are."""
_STATUS_LOOK_S = 0.02
_STATUS_BOUND_S = 0.5
"""How long an adopted process's own parent may take to reap it before its status counts as unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """What makes a main process known again: the runtime record keeps it with what the core knows."""

    component: str
    generation: int
    pid: int
    start_ticks: int
    started_ns: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Main:
    """A main process. `launch` is set until it has executed its command."""

    component: str
    generation: int
    pid: int
    pidfd: int
    start_ticks: int
    started_ns: int
    child: bool
    launch: Launch | None = None
    timer: asyncio.TimerHandle | None = None
    status_until_s: float | None = None

    @property
    def owner(self) -> Owner:
        return Owner(self.component)


class Processes:
    """All processes of one agent. `post` gets the events; `jitter` is drawn for each that carries one.

    `log_dir` None: `log: file` goes to the agent's standard error. `warn` gets sentences about what went on without
    (a log that cannot be opened). `ending` is told a component and a generation when the main process has ended, while
    `identify` still knows it and before Exited is posted: the time to read what it had sent. `subreaper` False: orphans
    go elsewhere, the whole process table is searched. `sockets` False: there are none that components speak on.
    `exit_info` False: behave as where neither its zombie nor the kernel (6.15) tells how an adopted process ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        post: Callable[[Event], None],
        jitter: Callable[[], int],
        runtime_dir: Path | None,
        log_dir: Path | None,
        nonce: str,
        sockets: bool = True,
        subreaper: bool = True,
        warn: Callable[[str], None] = lambda _text: None,
        ending: Callable[[str, int], None] = lambda _component, _generation: None,
        exit_info: bool = True,
        procfs: ProcFs | None = None,
    ) -> None:
        self._loop = loop
        self._post = post
        self._jitter = jitter
        self._log_dir = log_dir
        self._warn = warn
        self._tell_ending = ending
        self._ending: _Main | None = None
        self._exit_info = exit_info
        self._subreaper = subreaper
        self._planner = Planner(Markers(nonce=nonce, runtime_dir=runtime_dir, sockets=sockets))
        self._trees = Trees(loop, nonce=nonce, subreaper=subreaper, procfs=procfs)
        self.helpers = Helpers(loop, self._trees, self._planner)
        """Runs commands beside components; exec probes use it too."""
        self._commands = Commands(self.helpers, post=post, jitter=jitter)
        self._mains: dict[str, _Main] = {}
        self._by_pid: dict[int, _Main] = {}
        self._stuck = Stuck(loop)
        self._kills: dict[str, TreeKill] = {}
        self._started = False

    def start(self) -> None:
        """Become the subreaper and listen for SIGCHLD. Only from the main thread. Raises OSError."""
        if self._subreaper:
            kernel.become_subreaper()
        self._loop.add_signal_handler(signal.SIGCHLD, self.reap_orphans)
        self._started = True
        self.reap_orphans()  # a predecessor in this very process may have left some

    def close(self, *, reap_s: float = 0.0) -> None:
        """Stop watching. Main processes and their trees are left alone; helpers under way are killed.

        For so long at most it waits for the deaths of children that were killed: a program that goes on afterwards
        would keep their zombies.
        """
        dying = (*self.helpers.pids, *self._stuck.pids)
        if self._started:
            self._loop.remove_signal_handler(signal.SIGCHLD)
            self._started = False
        for kill in self._kills.values():
            kill.cancel()
        self._kills.clear()
        self.helpers.close()
        for main in list(self._mains.values()):
            self._unwatch(main)
            os.close(main.pidfd)
        self._mains.clear()
        self._by_pid.clear()
        self._stuck.close()
        reap_within(dying, reap_s)

    # --- actions ------------------------------------------------------------------------------------------------

    def spawn(self, action: actions.Spawn) -> None:
        """Start a main process. Posts Spawned or SpawnFailed exactly once; never raises."""
        try:
            main = self._begin(action)
        except LaunchError as error:
            self._spawn_failed(action.component, action.generation, str(error))
            return
        self._mains[main.component] = main
        self._by_pid[main.pid] = main
        self._trees.plant(Root(main.owner, main.generation, main.pid, main.start_ticks))
        assert main.launch is not None
        self._loop.add_reader(main.launch.report_fd, self._settle, main)
        self._loop.add_reader(main.pidfd, self._ended, main)
        main.timer = self._loop.call_later(LAUNCH_TIMEOUT_S, self._launch_timed_out, main)

    def cancel_spawn(self, action: actions.CancelSpawn) -> None:
        """Kill a child that has not executed its command; nothing where it has, or is gone: that is posted already."""
        main = self._mains.get(action.component)
        if main is not None and main.generation == action.generation and not self._settle(main) and main.launch:
            self._give_up(main, main.launch, "not wanted any more before it was started")

    def signal(self, action: actions.Signal) -> None:
        """Send a signal to the main process of this generation; nothing if that is gone."""
        main = self._mains.get(action.component)
        if main is None or main.generation != action.generation:
            return
        try:
            signal.pidfd_send_signal(main.pidfd, action.signal)
        except ProcessLookupError:
            pass  # ended: its exit is on the way
        except PermissionError:
            self._warn(
                f"cannot signal {action.component} (pid {main.pid}): the agent has no right to; it changed its user"
            )

    def kill_tree(self, action: actions.KillTree) -> None:
        """SIGKILL everything of the component until nothing lives; TreeEmpty follows once, for the newest request."""
        running = self._kills.get(action.component)
        if running is not None:
            running.newest = max(running.newest, action.generation)
            return
        self._kills[action.component] = TreeKill(
            self._loop,
            self._trees,
            Owner(action.component),
            newest=action.generation,
            done=partial(self._tree_empty, action.component),
        )

    def run_pre_start(self, action: actions.RunPreStart) -> None:
        """Run the check before a start. PreStartDone follows exactly once, after its tree is gone where that can be."""
        self._commands.run_pre_start(action)

    def cancel_pre_start(self, action: actions.CancelPreStart) -> None:
        """End the running check at once; its PreStartDone follows."""
        self._commands.cancel_pre_start(action)

    def run_helper(self, action: actions.RunHelper) -> None:
        """Run a reload or drain command beside the component. HelperDone follows exactly once."""
        main = self._mains.get(action.component)
        self._commands.run_helper(action, main.pid if main is not None else None)

    def adopt(self, proven: Proven, *, ended: bool = False) -> bool:
        """Take over a process of an earlier agent, with its pidfd. False: it has ended, or the place is taken.

        `ended`: the pidfd was the earlier agent's own (re-exec): take it also when it has ended, and post how.
        """
        found: Found = proven.found
        poller = select.poll()
        poller.register(proven.pidfd, select.POLLIN)
        stat = self._trees.procfs.stat(found.pid)
        gone = not ended and (bool(poller.poll(0)) or stat is None)
        if found.component in self._mains or gone:
            os.close(proven.pidfd)
            self._trees.look_everywhere(found.component)
            return False
        main = _Main(
            component=found.component,
            generation=found.generation,
            pid=found.pid,
            pidfd=proven.pidfd,
            start_ticks=proven.start_ticks,
            started_ns=found.started_ns,
            child=stat is not None and stat.ppid == os.getpid() and stat.start_ticks == proven.start_ticks,
        )
        self._mains[main.component] = main
        self._by_pid[main.pid] = main
        self._trees.plant(Root(main.owner, main.generation, main.pid, main.start_ticks))
        self._trees.look_everywhere(main.component)
        self._loop.add_reader(main.pidfd, self._ended, main)
        return True

    def look_everywhere(self, component: str) -> None:
        """An earlier agent left processes of this component without a main process: KillTree must find them."""
        self._trees.look_everywhere(component)

    # --- questions ----------------------------------------------------------------------------------------------

    def identify(self, pid: int) -> tuple[str, int] | None:
        """Component and generation of which this is the main process now, or None.

        Spawned of that generation was posted before this answers.
        """
        main = self._by_pid.get(pid)
        if main is None:
            return None
        if main.launch is not None and not self._settle(main):
            return None
        if not main.child and main is not self._ending:  # its pid may be another's by now: it is not ours to reap
            found = self._trees.procfs.stat(pid)
            if found is None or found.start_ticks != main.start_ticks:
                return None
        return main.component, main.generation

    def member(self, pid: int) -> str | None:
        """The component whose tree this living process belongs to, helpers included, or None."""
        try:
            owner = self._trees.owner_of(pid)
        except OSError:
            return None  # no descriptors left: not proven is not a member
        return owner.component if owner is not None else None

    def snapshot(self) -> tuple[ProcessRecord, ...]:
        """Every main process, the ones between fork and exec included."""
        return tuple(
            ProcessRecord(
                component=main.component,
                generation=main.generation,
                pid=main.pid,
                start_ticks=main.start_ticks,
                started_ns=main.started_ns,
            )
            for main in self._mains.values()
        )

    @property
    def pidfds(self) -> tuple[int, ...]:
        """The descriptors of these processes, in the same order."""
        return tuple(main.pidfd for main in self._mains.values())

    # --- reaping ------------------------------------------------------------------------------------------------

    def reap_orphans(self) -> None:
        """Reap every zombie child; one that is a main process's or a helper's goes through its own end."""
        until_s = time.monotonic() + _REAP_SLICE_S
        for _ in range(_MAX_REAPED_AT_ONCE):
            if time.monotonic() >= until_s:
                break
            try:
                zombie = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if zombie is None:
                return
            pid = zombie.si_pid
            if pid in self._by_pid:
                self._ended(self._by_pid[pid])
            elif self.helpers.owns(pid):
                self.helpers.exited(pid)
            else:
                self._reap_stranger(pid)
        self._loop.call_soon(self.reap_orphans)

    def _reap_stranger(self, pid: int) -> None:
        if self._stuck.reap(pid):
            return
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)

    # --- starting -----------------------------------------------------------------------------------------------

    def _begin(self, action: actions.Spawn) -> _Main:
        current = self._mains.get(action.component)
        if current is not None:
            raise LaunchError(
                0, "plan", f"cannot start {action.component}: pid {current.pid} of an earlier start still runs"
            )
        stuck_pid = self._stuck.hanging(action.component)
        if stuck_pid is not None:
            raise LaunchError(
                0,
                "stuck",
                f"cannot start {action.component}: an earlier attempt (pid {stuck_pid}) hangs in the kernel "
                "before its command; a file system does not answer",
            )
        output_fd = self._open_output(action)
        try:
            started_ns = boottime_ns()
            launch = begin(self._planner.main(action, output_fd))
        finally:
            if output_fd is not None:
                os.close(output_fd)
        return _Main(
            component=action.component,
            generation=action.generation,
            pid=launch.pid,
            pidfd=launch.pidfd,
            start_ticks=self._trees.start_ticks(launch.pid),
            started_ns=started_ns,
            child=True,
            launch=launch,
        )

    def _open_output(self, action: actions.Spawn) -> int | None:
        try:
            return open_output(action.spec.log, action.component, self._log_dir)
        except OutputError as error:
            self._warn(f"{error}; the output of {action.component} goes to the agent's standard error")
            return None

    def _settle(self, main: _Main) -> bool:
        """Whether the child has executed its command, as far as is known now; posts what becomes known."""
        launch = main.launch
        if launch is None:
            return True
        report_fd = launch.report_fd
        try:
            known = launch.settle()
        except LaunchError as error:
            self._loop.remove_reader(report_fd)
            self._drop(main)
            main.launch = None
            self._spawn_failed(main.component, main.generation, str(error))
            return False
        if known:
            self._loop.remove_reader(report_fd)
            main.launch = None
            if main.timer is not None:
                main.timer.cancel()
                main.timer = None
            self._post(events.Spawned(component=main.component, generation=main.generation, pid=main.pid))
        return known

    def _launch_timed_out(self, main: _Main) -> None:
        """Kill a child that does not reach its command."""
        if main.launch is not None:
            self._give_up(main, main.launch, str(main.launch.timeout_error()))

    def _give_up(self, main: _Main, launch: Launch, reason: str) -> None:
        """Kill a child before its command; where even that takes time, remember it."""
        launch.kill()
        self._drop(main)
        self._stuck.bury(main.component, launch)
        self._spawn_failed(main.component, main.generation, reason)

    def _spawn_failed(self, component: str, generation: int, reason: str) -> None:
        self._post(events.SpawnFailed(component=component, generation=generation, reason=reason, jitter=self._jitter()))

    # --- ends ---------------------------------------------------------------------------------------------------

    def _ended(self, main: _Main) -> None:
        """The pidfd is readable: the main process is a zombie, or gone where it is not our child."""
        if self._by_pid.get(main.pid) is not main or not self._settle(main):
            return
        status = self._peek_status(main) if main.child else self._ask_status(main)
        if status is None:
            return
        self._ending = main
        self._tell_ending(main.component, main.generation)
        self._ending = None
        left = self._trees.left(main.owner, main.generation, main.pid)
        if main.child:
            with suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, main.pidfd, os.WEXITED | os.WNOHANG)
        self._drop(main)
        os.close(main.pidfd)
        self._post(
            events.Exited(
                component=main.component,
                generation=main.generation,
                status=status,
                left=left,
                jitter=self._jitter(),
            )
        )

    @staticmethod
    def _peek_status(main: _Main) -> ExitStatus | None:
        """How our child ended; it stays a zombie, its pid its own. None: it has not ended after all."""
        try:
            result = os.waitid(os.P_PIDFD, main.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # SIGCHLD was ignored when it ended
            return ExitStatus()
        return kernel.wait_result(result) if result is not None else None

    def _ask_status(self, main: _Main) -> ExitStatus | None:
        """How a process ended that somebody else reaps. None: asked again in a moment."""
        now_s = self._loop.time()
        if main.status_until_s is None:
            main.status_until_s = now_s + _STATUS_BOUND_S
        if not self._exit_info or now_s >= main.status_until_s:
            return ExitStatus()
        wait_status = self._trees.procfs.zombie_status(main.pid, main.start_ticks)
        if wait_status is not None:
            return kernel.exit_status(wait_status)
        status = kernel.foreign_exit_status(main.pidfd)
        if status is not None:
            return status
        found = self._trees.procfs.stat(main.pid)
        if found is None or found.start_ticks != main.start_ticks:
            return kernel.foreign_exit_status(main.pidfd) or ExitStatus()  # reaped; it was perhaps not a moment ago
        self._loop.remove_reader(main.pidfd)  # it stays readable
        main.timer = self._loop.call_later(_STATUS_LOOK_S, self._ended, main)
        return None

    def _unwatch(self, main: _Main) -> None:
        self._loop.remove_reader(main.pidfd)
        if main.launch is not None and main.launch.report_fd >= 0:
            self._loop.remove_reader(main.launch.report_fd)
            os.close(main.launch.report_fd)
            main.launch.report_fd = -1
        if main.timer is not None:
            main.timer.cancel()
            main.timer = None

    def _drop(self, main: _Main) -> None:
        self._unwatch(main)
        del self._mains[main.component]
        del self._by_pid[main.pid]
        self._trees.fell(main.pid)

    def _tree_empty(self, component: str) -> None:
        kill = self._kills.pop(component)
        self._trees.all_gone(component)
        self._post(events.TreeEmpty(component=component, generation=kill.newest))
