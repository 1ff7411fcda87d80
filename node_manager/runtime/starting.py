"""What a start needs beside the plan: the cgroup that the child is born in, its fuse, and where its output goes."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from node_manager.core.actions import Spawn
from node_manager.core.spec import LEASE_MARGIN_NS
from node_manager.runtime import cgroupfs, kernel
from node_manager.runtime.cgroup import Group, Groups
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.fuse import Fuses
from node_manager.runtime.output import OutputError, open_output
from node_manager.runtime.plans import Planner
from node_manager.runtime.spawn import Launch, LaunchError, begin


class Starter:
    """Begins starts. Of each, `begun` or `failed` is called once, perhaps before `start` returns.

    `begun` gets the child, the instant before it was made, and its group. `groups` None: no group. `fuses` None:
    nothing guards the end of a lease but the agent itself. `log_dir` None: `log: file` goes to the agent's standard
    error. `warn` gets sentences about what went on without.
    """

    def __init__(
        self,
        planner: Planner,
        *,
        groups: Groups | None,
        fuses: Fuses | None,
        log_dir: Path | None,
        warn: Callable[[str], None],
        begun: Callable[[Spawn, Launch, int, Group | None], None],
        failed: Callable[[str, int, str], None],
    ) -> None:
        self._planner = planner
        self._groups = groups
        self._fuses = fuses
        self._log_dir = log_dir
        self._warn = warn
        self._begun = begun
        self._failed = failed
        self._arming: dict[str, Spawn] = {}
        """Starts that wait for the word of their fuse."""

    def start(self, action: Spawn) -> None:
        """Make the child; of a leased component once its fuse guards it."""
        self._arming[action.component] = action
        if self._fuses is None or action.lease_valid_until_ns is None:
            self._armed(action, None, -1)
            return
        try:
            group = self._group(action)
        except LaunchError as error:
            self._armed(action, str(error), -1)
            return
        deadline_ns = action.lease_valid_until_ns - LEASE_MARGIN_NS
        self._fuses.arm(action.spec, action.generation, deadline_ns, group, partial(self._armed, action))

    def cancel(self, component: str, generation: int) -> bool:
        """End a start that waits for its fuse; False: there is none."""
        action = self._arming.get(component)
        if action is None or action.generation != generation:
            return False
        del self._arming[component]
        self._failed(component, generation, "not wanted any more before it was started")
        return True

    def close(self) -> None:
        """What waits is not made."""
        self._arming.clear()

    def _armed(self, action: Spawn, problem: str | None, link_fd: int) -> None:
        """The fuse guards the start, or there is no lease: make the child, unless it is not wanted any more."""
        try:
            if self._arming.get(action.component) is not action:
                return
            del self._arming[action.component]
            if problem is not None:
                text = f"cannot start {action.component}: no fuse guards the end of its lease: {problem}"
                self._failed(action.component, action.generation, text)
                return
            launch, started_ns, group = self._begin(action, link_fd)
        except LaunchError as error:
            self._failed(action.component, action.generation, str(error))
            return
        finally:
            if link_fd >= 0:
                os.close(link_fd)
        self._begun(action, launch, started_ns, group)

    def _begin(self, action: Spawn, link_fd: int) -> tuple[Launch, int, Group | None]:
        """Make the child; `link_fd` leads to its fuse, where it has to enlist itself (-1: it need not)."""
        output_fd = self._open_output(action)
        try:
            started_ns = boottime_ns()
            group = self._group(action)
            plan = self._planner.main(
                action,
                output_fd,
                cgroup_fd=None if group is None else group.fd,
                goes_there=group is not None and group.was_there,
                fuse_fd=None if link_fd < 0 else link_fd,
            )
            return begin(plan), started_ns, group
        finally:
            if output_fd is not None:
                os.close(output_fd)

    def _group(self, action: Spawn) -> Group | None:
        if self._groups is None:
            return None
        try:
            group = self._groups.open(action.spec, action.generation)
        except OSError as error:
            text = f"cannot make a cgroup for {action.component} below {self._groups.root}: {kernel.explain(error)}"
            raise LaunchError(0, "cgroup", text) from error
        if cgroupfs.frozen(group.inner):
            # Its first act is to die with the agent, and it would not come to that: should the agent be killed
            # meanwhile, the child would keep the agent's lock, and no other one could begin.
            text = f"cannot start {action.component}: its cgroup {group.inner} is frozen"
            raise LaunchError(0, "cgroup", f"{text}; {cgroupfs.THAW}")
        return group

    def _open_output(self, action: Spawn) -> int | None:
        try:
            return open_output(action.spec.log, action.component, self._log_dir)
        except OutputError as error:
            self._warn(f"{error}; the output of {action.component} goes to the agent's standard error")
            return None
