"""From a component's spec to a complete plan for one child of it."""

import os
from collections.abc import Iterable
from pathlib import Path

from node_manager.core.actions import Spawn
from node_manager.core.spec import ComponentSpec
from node_manager.runtime import environment
from node_manager.runtime.accounts import Account, AccountError, Accounts
from node_manager.runtime.environment import EnvironmentFiles, Markers
from node_manager.runtime.spawn import LaunchError, LaunchPlan

_OWN_OOM_SCORE_ADJ = Path("/proc/self/oom_score_adj")
_MAX_NUMBER_BYTES = 16


class Planner:
    """Makes launch plans. Every method raises LaunchError with a sentence for what cannot be.

    What `accounts` and `files` know already is not asked for again.
    """

    def __init__(
        self,
        markers: Markers,
        *,
        accounts: Accounts | None = None,
        files: EnvironmentFiles | None = None,
        own_oom_score_adj: Path = _OWN_OOM_SCORE_ADJ,
    ) -> None:
        self.markers = markers
        self._own_oom_score_adj = own_oom_score_adj
        self._accounts = accounts or Accounts()
        self._files = files or EnvironmentFiles()

    def main(
        self,
        action: Spawn,
        output_fd: int | None,
        *,
        cgroup_fd: int | None = None,
        goes_there: bool = False,
        fuse_fd: int | None = None,
    ) -> LaunchPlan:
        """The component's own command."""
        spec = action.spec
        account = self._account(spec)
        marks = dict(self.markers.of(action.component, action.generation))
        marks[environment.MAIN_PID] = "0"  # the child writes its own pid here; the place is at the front
        if self.markers.sockets:
            marks[environment.NOTIFY_SOCKET] = self.markers.notify_socket(action.component)
        if action.term is not None:
            marks[environment.TERM] = str(action.term)
        if action.lease_valid_until_ns is not None:
            marks[environment.LEASE_VALID_UNTIL] = str(action.lease_valid_until_ns)
        return LaunchPlan(
            command=spec.command,
            environment=self._environment(marks, spec, account),
            account=account,
            directory=spec.working_directory or "/",
            output_fd=output_fd,
            nofile=spec.limits.nofile,
            oom_score_adj=self._oom_score_adj(spec),
            own_pid_key=environment.MAIN_PID,
            not_after_ns=action.not_after_ns,
            cgroup_fd=cgroup_fd,
            goes_there=goes_there,
            fuse_fd=fuse_fd,
        )

    def helper(
        self,
        spec: ComponentSpec,
        *,
        generation: int,
        command: tuple[str, ...],
        mark: str,
        main_pid: int | None,
        output_fd: int,
        cgroup_fd: int | None = None,
    ) -> LaunchPlan:
        """A command beside the component: the same user, environment and limits, but never taken for its main process.

        `main_pid` is the component's, as XCE_MAIN_PID, for commands such as `kill -HUP`.
        """
        account = self._account(spec)
        marks = dict(self.markers.of(spec.name, generation))
        marks[environment.HELPER] = mark
        marks[environment.HELPER_PID] = "0"  # as above
        if main_pid is not None:
            marks[environment.MAIN_PID] = str(main_pid)
        return LaunchPlan(
            command=command,
            environment=self._environment(marks, spec, account),
            account=account,
            directory=spec.working_directory or "/",
            output_fd=output_fd,
            nofile=spec.limits.nofile,
            oom_score_adj=self._oom_score_adj(spec),
            own_pid_key=environment.HELPER_PID,
            cgroup_fd=cgroup_fd,
        )

    def _environment(self, marks: dict[str, str], spec: ComponentSpec, account: Account) -> tuple[tuple[str, str], ...]:
        return _merged(marks, environment.component_environment(spec, account, self._files.read))

    def _account(self, spec: ComponentSpec) -> Account:
        try:
            return self._accounts.find(spec.user)
        except AccountError as error:
            detail = f"cannot run {spec.name} as user {spec.user}: {error}"
            raise LaunchError(error.errno, "user", detail) from error

    def _oom_score_adj(self, spec: ComponentSpec) -> int | None:
        """What the role says; else nothing of the protection that the agent has for itself (None: as it is)."""
        if spec.oom_score_adj is not None:
            return spec.oom_score_adj
        try:
            fd = os.open(self._own_oom_score_adj, os.O_RDONLY | os.O_CLOEXEC)  # at every start: no file object for it
            try:
                own = int(os.read(fd, _MAX_NUMBER_BYTES))
            finally:
                os.close(fd)
        except (OSError, ValueError):
            return None
        return 0 if own < 0 else None


def _merged(marks: dict[str, str], variables: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Marks first, and no variable of the role in their place."""
    rest: Iterable[tuple[str, str]] = ((key, value) for key, value in variables.items() if key not in marks)
    return (*marks.items(), *rest)
