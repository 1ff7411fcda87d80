"""What components say and are told: the heartbeat socket and the notify sockets, over the components of one state."""

import asyncio
import os
from collections.abc import Callable

from node_manager.core import status
from node_manager.core.events import Event
from node_manager.core.nodestate import NodeState
from node_manager.core.spec import ComponentSpec
from node_manager.heartbeat.server import HeartbeatServer, KeptConnection
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.notify import KeptSocket, NotifySockets
from node_manager.runtime.process import Processes
from node_manager.runtime.settings import Settings
from node_manager.runtime.vitals import vitals


class Voices:
    """Both kinds of socket of one agent. `state` gives the core's state of this moment."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        *,
        boot_id: str,
        post: Callable[[Event], None],
        processes: Processes,
        state: Callable[[], NodeState],
    ) -> None:
        self._boot_id = boot_id
        self._state = state
        self._accounts = processes.accounts
        self._notified: set[str] = set()
        """Components that have a notify socket."""
        self._unheard: dict[str, tuple[ComponentSpec, int, int | None, OSError]] = {}
        """Adopted components whose notify socket cannot be made: what `listen_to` was told of each, and why not."""
        self.heartbeats = HeartbeatServer(
            loop,
            settings.heartbeat_socket,
            post=post,
            identify=processes.identify,
            hello=self._hello,
            levels=self._levels,
        )
        self.notify = NotifySockets(
            loop, settings.notify_dir, post=post, identify=processes.identify, member=processes.member
        )

    def listen_to(self, spec: ComponentSpec, generation: int, uid: int | None = None) -> None:
        """Have the component's notify socket take this generation's datagrams. Raises OSError.

        `uid`: who its process runs as; None: whoever the role names.
        """
        if uid is None:
            uid = self._accounts.uid(spec.user)
        if uid is None:
            uid = os.geteuid()  # nobody can be started under that name, so nobody else is to speak
        self._notified.add(spec.name)
        self._unheard.pop(spec.name, None)
        self.notify.open(spec.name, generation, spec.notify_access, uid=uid)

    def listen_to_adopted(self, spec: ComponentSpec, generation: int, uid: int | None = None) -> None:
        """The same for what runs already: where its socket cannot be made now, `restore` tries again, and says why.

        What stands in the way of one component's socket must not keep the agent from all the others.
        """
        try:
            self.listen_to(spec, generation, uid)
        except OSError as error:
            self._unheard[spec.name] = spec, generation, uid, error

    def last_words(self, component: str, generation: int) -> None:
        """Take what a process had sent before its end is posted: "decommissioned" comes before its exit status."""
        self.heartbeats.read_now(component, generation)
        self.notify.read_now(component, generation)

    def tidy(self) -> None:
        """Close the notify sockets of components that do not exist any more."""
        for name in self._notified - self._state().members.keys():
            self._notified.discard(name)
            self._unheard.pop(name, None)
            self.notify.close(name)

    def resume(self, heartbeat_fd: int, connections: tuple[KeptConnection, ...], kept: tuple[KeptSocket, ...]) -> None:
        """Go on with a predecessor's sockets. Raises OSError."""
        self.heartbeats.resume(heartbeat_fd, connections)
        self.notify.resume(kept)
        self._notified.update(one.component for one in kept)

    def restore(self) -> tuple[str, ...]:
        """Make the sockets anew that somebody has removed, and say which. Raises OSError with a sentence."""
        for spec, generation, uid, _error in tuple(self._unheard.values()):
            self.listen_to_adopted(spec, generation, uid)
        names = (("heartbeat.sock", self.heartbeats.restore()), ("notify", self.notify.restore()))
        for *_, error in self._unheard.values():
            raise error
        return tuple(name for name, was_lost in names if was_lost)

    def close(self, *, keep_path: bool = False) -> None:
        """Close every socket and remove its path; `keep_path`: but not that of the heartbeats."""
        self.heartbeats.close(keep_path=keep_path)
        self.notify.close_all()

    def _hello(self, _component: str) -> list[tuple[str, str]]:
        spec = self._state().spec
        assert spec is not None, "only a component of the configuration can say hello"
        return [
            ("XCE_HEARTBEAT", "1"),
            ("NODE", spec.host.name),
            ("INSTANCE_ID", spec.host.instance_id or ""),
            ("BOOT_ID", self._boot_id),
            ("ROLES", ",".join(spec.roles)),
        ]

    def _levels(self, component: str) -> list[tuple[str, str]]:
        found = status.levels(self._state(), component, boottime_ns())
        found.extend(vitals())
        return found
