"""What the status API sees of the agent."""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Protocol

from node_manager import __version__
from node_manager.api.backend import CommandRequest, CommandResult
from node_manager.core import status
from node_manager.core.actions import Reply
from node_manager.core.events import Command
from node_manager.core.spec import NS_PER_S, NodeSpec
from node_manager.core.status import NodeStatus
from node_manager.runtime import metrics
from node_manager.runtime.admins import AdminGroup
from node_manager.runtime.agent import Agent
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.handover import Replaced
from node_manager.runtime.output import journal_matches, log_file
from node_manager.runtime.spawn import NATIVE
from node_manager.runtime.statustext import StatusText

ADMIN_GROUP = "xce-admin"
"""Members may change the node, beside root."""
FENCED = "each component has a cgroup of its own; only what root itself moves elsewhere is not fenced"
UNFENCED = "components are held by session, descent and markers: a process that hides from all three is not fenced"
HISTORY_IN_WHY = 100
"""Events that `why` brings along."""


class Replacing(Protocol):
    """Who replaces the program."""

    replaced: Replaced | None

    def ask(self, by: str, done: Callable[[CommandResult], None]) -> None:
        """Replace it; `done` gets the refusal, or that it is about to happen."""
        ...


class AgentBackend:
    """Implements `api.backend.Backend` for an agent. Every method answers at once, on the agent's loop."""

    def __init__(
        self,
        agent: Agent,
        *,
        replacing: Replacing,
        log_lines_lost: Callable[[], int] = lambda: 0,
        admins: AdminGroup | None = None,
    ) -> None:
        self._agent = agent
        self._replacing = replacing
        self._log_lines_lost = log_lines_lost
        self._host_name = socket.gethostname()
        self._text = StatusText()
        self._unenforced: tuple[NodeSpec | None, list[str]] = (None, [])
        """A configuration, and what of it nothing enforces."""
        self._admins = admins or AdminGroup(ADMIN_GROUP)

    def status(self) -> dict[str, Any]:
        """Return the body of `/v1/status`."""
        return self._told(self._status())

    def status_text(self, encode: Callable[[Any], bytes]) -> bytes:
        """Return the same as the text that `encode` makes of it."""
        agent, now = self._agent, boottime_ns()
        return self._text.whole(self._told(self._frame(now)), agent.state, now, encode)

    def _told(self, found: NodeStatus) -> dict[str, Any]:
        """Put in what only the daemon knows."""
        body: dict[str, Any] = dict(found)
        agent, replaced = self._agent, self._replacing.replaced
        body["node"] = body["node"] | {
            "agent_pid": os.getpid(),
            "agent_version": __version__,
            "cgroup_detail": f"{agent.unfenced}; {UNFENCED}" if agent.unfenced else FENCED,
            "spawner": "native" if NATIVE else "fork",
            "reexec": None if replaced is None else asdict(replaced),
        }
        return body

    def why(self, component: str) -> dict[str, Any] | None:
        """Return the body of `/v1/components/{name}/why`."""
        agent = self._agent
        member = agent.state.members.get(component)
        if member is None:
            return None
        found = status.why(agent.state, member, boottime_ns())
        body: dict[str, Any] = dict(found)
        body["claims"] = [dict(claim) | {"at": _iso(claim["at_wall_ns"])} for claim in found["claims"]]
        body["history"] = agent.history.of(component, HISTORY_IN_WHY)
        log = log_file(member.spec.log, component, agent.settings.log_dir)
        body["log"] = None if log is None else str(log)
        body["journal"] = journal_matches(member.spec.log, component)
        return body

    def events(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Return events after a sequence number."""
        return self._agent.history.after(after, limit)

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have `wake` called for new events."""
        return self._agent.history.subscribe(wake)

    def command(self, request: CommandRequest, done: Callable[[CommandResult], None]) -> None:
        """Put an operator's word into the agent's queue."""
        deadline_ns = None
        if request.deadline_s is not None:
            deadline_ns = boottime_ns() + int(request.deadline_s * NS_PER_S)
        self._agent.ask(
            Command(
                id=self._agent.expect(_answering(done)),
                verb=request.verb,
                by=request.by,
                component=request.component,
                reason=request.reason,
                deadline_ns=deadline_ns,
                enable=request.enable,
            )
        )

    def reload(self, by: str, done: Callable[[CommandResult], None]) -> None:
        """Read the configuration again."""
        self._agent.note("command.received", verb="reload", by=by)
        self._agent.reload(_answering(done))

    def reexec(self, by: str, done: Callable[[CommandResult], None]) -> None:
        """Replace the running program by the installed one."""
        self._replacing.ask(by, done)

    def metrics(self) -> str:
        """Return the body of `/metrics`."""
        agent = self._agent
        counters = {"events_dropped": agent.dropped, "turns": agent.turns}
        counters |= {f"heartbeat_{name}": count for name, count in asdict(agent.heartbeats.counters).items()}
        counters |= {f"notify_{name}": count for name, count in asdict(agent.notify.counters).items()}
        return metrics.render(self._status(), agent.state, counters)

    def may_change(self, uid: int, gid: int, groups: Sequence[int]) -> bool:
        """Tell whether a peer with these credentials may change the node."""
        if uid == 0:
            return True
        if uid == os.geteuid() and not self._agent.settings.under_systemd:
            return True
        return self._admins.includes(gid, groups)

    def _status(self) -> NodeStatus:
        now = boottime_ns()
        return status.complete(self._frame(now), self._agent.state, now)

    def _frame(self, now: int) -> NodeStatus:
        """Return the status without its components."""
        agent = self._agent
        mode = "session" if agent.unfenced else "delegated"
        found = status.frame(agent.state, now, name=self._host_name, cgroup_mode=mode)
        found["warnings"].extend(agent.troubles.values())
        lost = self._log_lines_lost()
        if lost:
            found["warnings"].append(f"{lost} lines of the agent's own log could not be written; events have them all")
        trouble = self._admins.trouble()
        if trouble is not None:
            found["warnings"].append(trouble)
        found["warnings"].extend(self._refused_peers())
        if agent.processes.groups is None:
            spec = agent.state.spec
            if spec is not self._unenforced[0]:
                self._unenforced = spec, _unenforced(spec)
            found["warnings"].extend(self._unenforced[1])
        else:
            unenforced = agent.processes.groups.unenforced
            found["warnings"].extend(f"{name}: its limits are not enforced: {why}" for name, why in unenforced.items())
        return found

    def _refused_peers(self) -> list[str]:
        """Return what was refused of those who spoke on the components' sockets."""
        agent = self._agent
        found: list[str] = []
        for kind, server in (("heartbeats", agent.heartbeats), ("notify datagrams", agent.notify)):
            if not server.refused:
                continue
            errors = ((name, server.last_error(name)) for name in ("", *agent.state.members))
            found.extend(
                f"{kind} of {name or 'a stranger'} were refused, last: {error}" for name, error in errors if error
            )
        return found


def _answering(done: Callable[[CommandResult], None]) -> Callable[[Reply], None]:
    def answer(reply: Reply) -> None:
        done(CommandResult(ok=reply.ok, detail=reply.detail, rule=reply.rule))

    return answer


def _unenforced(spec: NodeSpec | None) -> list[str]:
    """Return which limits of which components nothing enforces: without a delegated cgroup only `nofile` is."""
    found: list[str] = []
    for component in () if spec is None else spec.components:
        limits = component.limits
        names = [name for name in ("memory_max", "cpu_weight", "pids_max") if getattr(limits, name) is not None]
        if names:
            found.append(f"{component.name}: {', '.join(names)} is not enforced: there is no delegated cgroup")
    return found


def _iso(wall_ns: int | None) -> str | None:
    if wall_ns is None:
        return None
    return datetime.fromtimestamp(wall_ns / NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
