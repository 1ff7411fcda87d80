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
from pathlib import Path

from node_manager.core import actions, events
from node_manager.core.events import Event, ExitStatus, Found
from node_manager.core.nodestate import NodeState
from node_manager.core.spec import NodeSpec
from node_manager.runtime import exits, kernel
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.adoption import Proven
from node_manager.runtime.cgroup import Group, Groups
from node_manager.runtime.commands import Commands
from node_manager.runtime.environment import EnvironmentFiles, Markers
from node_manager.runtime.fuse import Fuses
from node_manager.runtime.helpers import Helpers
from node_manager.runtime.kill import Kills
from node_manager.runtime.mains import Main
from node_manager.runtime.plans import Planner
from node_manager.runtime.procfs import ProcFs
from node_manager.runtime.spawn import LAUNCH_TIMEOUT_S, Launch, LaunchError
from node_manager.runtime.starting import Starter
from node_manager.runtime.stranded import Endings
from node_manager.runtime.stuck import Stuck, reap_within
from node_manager.runtime.tree import Root, Trees

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
    cgroup: str = ""
    """Its group, where components have groups."""


class Processes:
    """All processes of one agent. `post` gets the events; `jitter` is drawn for each that carries one.

    `log_dir` None: `log: file` goes to the agent's standard error. `warn` gets sentences about what went on without
    (a log that cannot be opened). `ending` is told a component and a generation when the main process has ended, while
    `identify` still knows it and before Exited is posted: the time to read what it had sent. `subreaper` False: orphans
    go elsewhere, the whole process table is searched. `sockets` False: there are none that components speak on.
    `exit_info` False: behave as where neither its zombie nor the kernel (6.15) tells how an adopted process ended.
    `groups`: where components have cgroups. `fuse_dir`: where fuses are reached; None: there are none.
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
        groups: Groups | None = None,
        fuse_dir: Path | None = None,
    ) -> None:
        self._loop = loop
        self._post = post
        self._jitter = jitter
        self._warn = warn
        self._tell_ending = ending
        self._ending: Main | None = None
        self._exit_info = exit_info
        self._subreaper = subreaper
        self.accounts = Accounts()
        self.environment_files = EnvironmentFiles()
        markers = Markers(nonce=nonce, runtime_dir=runtime_dir, sockets=sockets)
        self._planner = Planner(markers, accounts=self.accounts, files=self.environment_files)
        self.groups = groups
        if groups is not None:
            groups.accounts = self.accounts
        self._configured: NodeSpec | None = None
        self.fuses = None
        if fuse_dir is not None:
            self.fuses = Fuses(loop, fuse_dir, nonce=nonce, groups=groups, lost=self._fuse_lost, warn=warn)
        self._trees = Trees(loop, nonce=nonce, subreaper=subreaper, procfs=procfs, groups=groups)
        self.helpers = Helpers(loop, self._trees, self._planner)
        """Runs commands beside components; exec probes use it too."""
        self._commands = Commands(self.helpers, post=post, jitter=jitter)
        self._starter = Starter(
            self._planner,
            groups=groups,
            fuses=self.fuses,
            log_dir=log_dir,
            warn=warn,
            begun=self._begun,
            failed=self._spawn_failed,
        )
        self._mains: dict[str, Main] = {}
        self._by_pid: dict[int, Main] = {}
        self._stuck = Stuck(loop)
        self.endings = Endings(loop, self._trees)
        """Ends what an earlier agent ran beside components; told after `adopt`, which says what is none of it."""
        self._kills = Kills(loop, self._trees, emptied=self._tree_empty)
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
        self._kills.cancel()
        self.endings.close()
        self.helpers.close()
        for main in list(self._mains.values()):
            self._unwatch(main)
            os.close(main.pidfd)
        self._mains.clear()
        self._by_pid.clear()
        self._stuck.close()
        self._starter.close()
        if self.fuses is not None:
            self.fuses.close()
        self._trees.close()
        if self.groups is not None:
            self.groups.close()
        reap_within(dying, reap_s)

    # --- actions ------------------------------------------------------------------------------------------------

    def keep(self, state: NodeState) -> None:
        """Set the limits of a new configuration on what runs, and tell the fuses how long the leases hold now."""
        if state.spec is not None and state.spec is not self._configured:
            self._configured = state.spec
            if self.groups is not None:
                self.groups.configure(state.spec)
            if self.fuses is not None:
                self.fuses.configure(state.spec)
        if self.fuses is not None:
            self.fuses.keep(state.members)

    def spawn(self, action: actions.Spawn) -> None:
        """Start a main process. Posts Spawned or SpawnFailed exactly once; never raises."""
        try:
            self._refuse_second(action)
        except LaunchError as error:
            self._spawn_failed(action.component, action.generation, str(error))
            return
        self._starter.start(action)

    def cancel_spawn(self, action: actions.CancelSpawn) -> None:
        """Kill a child that has not executed its command; nothing where it has, or is gone: that is posted already."""
        if self._starter.cancel(action.component, action.generation):
            return
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
        self._kills.begin(action.component, action.generation)

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
        main = Main(
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
        if self.groups is None or not self.groups.adopt(main.component, main.generation, main.pid):
            self._trees.look_everywhere(main.component)
        if self.fuses is not None:
            self.fuses.adopted(main.component)
        self._loop.add_reader(main.pidfd, self._ended, main)
        return True

    def look_everywhere(self, component: str) -> None:
        """An earlier agent left processes of this component without a main process: KillTree must find them."""
        if self.groups is not None:
            self.groups.inherit(component)
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
                cgroup="" if self.groups is None else self.groups.path_of(*main.run),
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
            elif self.fuses is not None and self.fuses.reap(pid):
                continue
            else:
                self._reap_stranger(pid)
        self._loop.call_soon(self.reap_orphans)

    def _reap_stranger(self, pid: int) -> None:
        if self._stuck.reap(pid):
            return
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)

    # --- starting -----------------------------------------------------------------------------------------------

    def _refuse_second(self, action: actions.Spawn) -> None:
        """Raises LaunchError where an earlier start is not over."""
        current = self._mains.get(action.component)
        if current is not None:
            raise LaunchError(
                0, "plan", f"cannot start {action.component}: pid {current.pid} of an earlier start still runs"
            )
        self._stuck.refuse(action.component)

    def _begun(self, action: actions.Spawn, launch: Launch, started_ns: int, group: Group | None) -> None:
        """A child is on its way to its command."""
        main = Main(
            component=action.component,
            generation=action.generation,
            pid=launch.pid,
            pidfd=launch.pidfd,
            start_ticks=self._trees.start_ticks(launch.pid),
            started_ns=started_ns,
            child=True,
            launch=launch,
        )
        if self.groups is not None and group is not None:
            self.groups.born(group, main.pid, main.start_ticks, action.lease_valid_until_ns)
        self._mains[main.component] = main
        self._by_pid[main.pid] = main
        self._trees.plant(Root(main.owner, main.generation, main.pid, main.start_ticks))
        self._loop.add_reader(launch.report_fd, self._settle, main)
        self._loop.add_reader(main.pidfd, self._ended, main)
        main.timer = self._loop.call_later(LAUNCH_TIMEOUT_S, self._launch_timed_out, main)

    def _settle(self, main: Main) -> bool:
        """Whether the child has executed its command, as far as is known now; posts what becomes known."""
        launch = main.launch
        if launch is None:
            return True
        try:
            known = launch.settle(self._loop.remove_reader)
        except LaunchError as error:
            self._drop(main)
            main.launch = None
            self._spawn_failed(main.component, main.generation, str(error))
            return False
        if known:
            main.launch = None
            if main.timer is not None:
                main.timer.cancel()
                main.timer = None
            self._post(events.Spawned(component=main.component, generation=main.generation, pid=main.pid))
        return known

    def _launch_timed_out(self, main: Main) -> None:
        """Kill a child that does not reach its command."""
        if main.launch is not None:
            self._give_up(main, main.launch, str(main.launch.timeout_error()))

    def _give_up(self, main: Main, launch: Launch, reason: str) -> None:
        """Kill a child before its command; where even that takes time, remember it."""
        launch.kill()
        self._drop(main)
        self._stuck.bury(main.component, launch)
        self._spawn_failed(main.component, main.generation, reason)

    def _spawn_failed(self, component: str, generation: int, reason: str) -> None:
        self._post(events.SpawnFailed(component=component, generation=generation, reason=reason, jitter=self._jitter()))

    # --- ends ---------------------------------------------------------------------------------------------------

    def _ended(self, main: Main) -> None:
        """The pidfd is readable: the main process is a zombie, or gone where it is not our child."""
        if self._by_pid.get(main.pid) is not main or not self._settle(main):
            return
        status = exits.of_child(main.pidfd) if main.child else self._ask_status(main)
        if status is None:
            return
        self._ending = main
        self._tell_ending(main.component, main.generation)
        self._ending = None
        left = self._trees.left(main.owner, main.generation, main.pid)
        groups = self.groups
        killed = status.signal == signal.SIGKILL or status == ExitStatus()
        oom = killed and groups is not None and groups.oom_killed(*main.run)
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
                oom=oom,
            )
        )

    def _ask_status(self, main: Main) -> ExitStatus | None:
        """How a process ended that somebody else reaps. None: asked again in a moment."""
        now_s = self._loop.time()
        if main.status_until_s is None:
            main.status_until_s = now_s + _STATUS_BOUND_S
        if not self._exit_info or now_s >= main.status_until_s:
            return ExitStatus()
        status = exits.of_stranger(self._trees.procfs, main.pid, main.start_ticks, main.pidfd)
        if status is not None:
            return status
        self._loop.remove_reader(main.pidfd)  # it stays readable
        main.timer = self._loop.call_later(_STATUS_LOOK_S, self._ended, main)
        return None

    def _unwatch(self, main: Main) -> None:
        self._loop.remove_reader(main.pidfd)
        if main.launch is not None and main.launch.report_fd >= 0:
            self._loop.remove_reader(main.launch.report_fd)
            os.close(main.launch.report_fd)
            main.launch.report_fd = -1
        if main.timer is not None:
            main.timer.cancel()
            main.timer = None

    def _drop(self, main: Main) -> None:
        self._unwatch(main)
        del self._mains[main.component]
        del self._by_pid[main.pid]
        self._trees.fell(main.pid)

    def _tree_empty(self, component: str, newest: int) -> None:
        self._trees.all_gone(component)
        if self.groups is not None:
            self.groups.emptied(component)
        self._post(events.TreeEmpty(component=component, generation=newest))

    def _fuse_lost(self, component: str, generation: int, why: str) -> None:
        self._post(events.FuseLost(component=component, generation=generation, reason=why))
