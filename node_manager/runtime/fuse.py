"""Fuses: one tiny process for each leased component, which kills it when its lease has run out.

The agent itself stops in time what depends on a lease; a fuse is for an agent that cannot, because it is stopped, dead
or starved. It acknowledges its deadline before the component is spawned, is told of every renewal, outlives the agent,
and is found again by the next one through its socket in the runtime directory. A fuse that is lost, or does not answer,
is reported: what it guarded must be stopped, and is started under another.

native/fuse.c is the program, `fuseprogram` the same in Python where it was not built.
"""

import asyncio
import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from node_manager.core.facts import is_leased
from node_manager.core.nodestate import Member
from node_manager.core.run import Phase
from node_manager.core.spec import LEASE_MARGIN_NS, ComponentSpec, KillScope, NodeSpec
from node_manager.runtime import kernel
from node_manager.runtime.accounts import itself
from node_manager.runtime.cgroup import Group, Groups
from node_manager.runtime.spawn import Launch, LaunchError, LaunchPlan, begin

PROGRAM = Path(__file__).with_name("xce-fuse")
FALLBACK = Path(__file__).with_name("fuseprogram.py")
ANSWER_S = 2.0
"""How long a fuse may take to answer: far longer than one that runs needs, far shorter than a lease."""
ARM_S = 5.0
"""How long arming may take, with the start of a fuse on a host that is busy: as long as any start."""
ARM_GROUP, ARM_LINK, RENEW, RELEASE, ASK, RETIRE, LISTEN = range(1, 8)
ORDER = struct.Struct("=IIQq")
"""kind, whole tree, generation, deadline."""
ANSWER = struct.Struct("=iIQqIi")
"""errno, kind, generation, deadline, marks, pid."""
BLOWN = 1
"""The mark of a fuse that has killed, and keeps what it guards empty."""
_BACKLOG = 4
_MAX_PATH = 107
"""unix(7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a fuse says of itself."""

    error: int
    kind: int
    generation: int
    deadline_ns: int
    marks: int
    pid: int


class Fuses:
    """The fuses of one agent, below `directory`. `lost` gets a component, a generation and a clause; `warn` a sentence.

    `program` is the command of a fuse, to which the component and the nonce are added.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        directory: Path,
        *,
        nonce: str,
        groups: Groups | None,
        lost: Callable[[str, int, str], None],
        warn: Callable[[str], None] = lambda _text: None,
        program: tuple[str, ...] | None = None,
    ) -> None:
        self.loop = loop
        self.directory = directory
        self.nonce = nonce
        self.groups = groups
        self.program = program or default_program()
        self.warn = warn
        self._lost = lost
        self._fuses: dict[str, Fuse] = {}
        self._unproven: set[str] = set()
        """Components that run, perhaps under a lease, and of whose fuse nothing is known yet."""
        self.launches: dict[int, Launch] = {}
        """By pid: children of ours that are fuses, or are about to be; not to be reaped by others before."""

    def configure(self, spec: NodeSpec) -> None:
        """Have a fuse ready for each component that depends on a lease, so that a start need not wait for one."""
        leased = {component.name for component in spec.components if depends_on_lease(component)}
        self._unproven |= leased
        for name in leased - self._fuses.keys():
            with suppress(OSError, LaunchError):  # a start says what is wrong
                self._fuse(name)
        for name in self._fuses.keys() - leased:
            self._fuses.pop(name).retire()

    def arm(self, spec: ComponentSpec, generation: int, deadline_ns: int, group: Group | None, done: "Armed") -> None:
        """Have a fuse guard a generation that is about to be spawned; `done` is called once, and not before this ends.

        Without a group the spawned process has to enlist itself over the link that `done` gets.
        """
        try:
            fuse = self._fuse(spec.name)
            fuse.arm(generation, deadline_ns, group, spec.stop.kill_scope is KillScope.TREE, done)
        except OSError as error:
            self.loop.call_soon(done, kernel.explain(error), -1)
        except LaunchError as error:
            self.loop.call_soon(done, str(error), -1)

    def adopted(self, component: str) -> None:
        """Look for the fuse that an earlier agent gave a process, once it is known to run under a lease."""
        self._unproven.add(component)

    def attach(self, component: str, generation: int) -> None:
        """Find the fuse that guards a running generation; `lost` is told where there is none."""
        fuse = self._fuses.get(component)
        if fuse is None:
            fuse = Fuse(self, component)
            try:
                fuse.connect()
            except OSError:
                self.loop.call_soon(self._lost, component, generation, "it is gone")
                return
            self._fuses[component] = fuse
        if fuse.generation != generation:
            fuse.attach(generation)

    def keep(self, members: Mapping[str, Member]) -> None:
        """Renew where a lease was; release where a component does not depend on one any more."""
        for name in tuple(self._unproven):
            member = members.get(name)
            run = None if member is None else member.state.run
            if member is None or run is None or run.phase is not Phase.LIVE:
                self._unproven.discard(name)  # its next start has a fuse
            elif run.lease_until_ns is not None:
                self._unproven.discard(name)
                self.attach(name, member.state.generation)
        for name, fuse in self._fuses.items():
            member = members.get(name)
            run = None if member is None else member.state.run
            if member is None or run is None or run.phase is Phase.TREE or member.state.generation != fuse.generation:
                continue
            fuse.keep(None if run.lease_until_ns is None else run.lease_until_ns - LEASE_MARGIN_NS)

    @property
    def launching(self) -> bool:
        """Whether a fuse is between fork and exec."""
        return any(launch.report_fd >= 0 for launch in self.launches.values())

    def restore(self) -> None:
        """Have fuses listen at their paths again that somebody has removed: the next agent looks there.

        What came of it is said once they have answered. Raises OSError.
        """
        for name, fuse in self._fuses.items():
            if fuse.findable and not self.path(name).exists():
                fuse.listen_anew()

    def reap(self, pid: int) -> bool:
        """Take the end of a child that was a fuse; False: it was none."""
        launch = self.launches.get(pid)
        if launch is None:
            return False
        if launch.report_fd >= 0:  # it ended before its program ran: whoever waits for it takes it
            self._settle(launch)
        if self.launches.pop(pid, None) is not None:
            launch.reap()
        return True

    def close(self) -> None:
        """Let go. A fuse that guards something stays, and the next agent finds it; the others go."""
        for fuse in self._fuses.values():
            fuse.retire()
        self._fuses.clear()
        for launch in self.launches.values():
            if launch.report_fd >= 0:
                self.loop.remove_reader(launch.report_fd)
            launch.forget()
        self.launches.clear()

    def fuse_lost(self, fuse: "Fuse", why: str) -> None:
        """A fuse has ended or does not answer: forget it, and say whose guard it was."""
        if self._fuses.get(fuse.component) is fuse:
            del self._fuses[fuse.component]
        if fuse.generation:
            self._lost(fuse.component, fuse.generation, why)

    def _fuse(self, component: str) -> "Fuse":
        """The component's fuse; where there is none, the one of an earlier agent, or a new one."""
        fuse = self._fuses.get(component)
        if fuse is None:
            fuse = Fuse(self, component)
            try:
                fuse.connect()
            except OSError:
                self._start(component)
                fuse.connect()
            self._fuses[component] = fuse
        return fuse

    def _start(self, component: str) -> None:
        """Start a fuse. Its socket takes connections before it runs. Raises OSError and LaunchError."""
        with self.listener(component) as listener:
            launch = begin(
                LaunchPlan(
                    command=(*self.program, component, self.nonce),
                    environment=(),
                    account=itself(),
                    output_fd=listener.fileno(),
                    cgroup_fd=None if self.groups is None else self.groups.fuse_fd(),
                )
            )
        self.launches[launch.pid] = launch
        self.loop.add_reader(launch.report_fd, self._settle, launch)

    def listener(self, component: str) -> socket.socket:
        """A socket at a fuse's path, for it to listen on. Raises OSError."""
        path = self.path(component)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        path.unlink(missing_ok=True)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            made.bind(str(path))
            path.chmod(0o600)
            made.listen(_BACKLOG)
        except OSError:
            made.close()
            raise
        return made

    def _settle(self, launch: Launch) -> None:
        """The program runs, or cannot be executed: then its socket is gone with it, which is noticed."""
        try:
            launch.settle(self.loop.remove_reader)
        except LaunchError:
            del self.launches[launch.pid]

    def path(self, component: str) -> Path:
        """Where a fuse listens. Raises OSError for a path that no socket can have."""
        path = self.directory / f"{component}.sock"
        if len(os.fsencode(path)) > _MAX_PATH:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))
        return path


Armed = Callable[[str | None, int], None]
"""Gets why a fuse does not guard (None: it does), and the link (-1: none), which then belongs to the called."""


class Fuse:
    """The connection to one fuse. One order is under way at a time; a renewal that comes meanwhile waits."""

    def __init__(self, fuses: Fuses, component: str) -> None:
        self.component = component
        self.generation = 0
        """The one that it guards; 0: none that we know of."""
        self.findable = True
        """False: it is of an older version, and its path is gone for good."""
        self._fuses = fuses
        self._loop = fuses.loop
        self._socket: socket.socket | None = None
        self._deadline_ns: int | None = None
        self._wanted_ns: int | None = None
        self._pending = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed: Armed | None = None
        self._link_fd = -1

    def connect(self) -> None:
        """Raises OSError where no fuse listens."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            made.connect(str(self._fuses.path(self.component)))
        except OSError:
            made.close()
            raise
        self._socket = made
        self._loop.add_reader(made, self._readable)

    def arm(self, generation: int, deadline_ns: int, group: Group | None, whole_tree: bool, done: Armed) -> None:
        """See `Fuses.arm`. Raises OSError."""
        self._dismiss("another start took its place")
        if group is not None:
            # The whole of it where SIGKILL reaches the tree; else where the main process is.
            fd = os.open(group.path if whole_tree else group.inner, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            kind = ARM_GROUP
        else:
            fd, self._link_fd = _link()
            kind = ARM_LINK
        self._armed = done
        self.generation = generation
        self._deadline_ns = self._wanted_ns = deadline_ns
        try:
            self._send(kind, generation, deadline_ns, whole_tree=whole_tree, fd=fd)
        except OSError:
            self._armed = None
            self.generation = 0
            self._close_link()
            raise
        finally:
            os.close(fd)

    def attach(self, generation: int) -> None:
        """Ask whether it guards this generation."""
        self.generation = generation
        self._wanted_ns = 0
        try:
            self._send(ASK, generation, 0)
        except OSError as error:
            self._loop.call_soon(self._gone, kernel.explain(error))

    def keep(self, deadline_ns: int | None) -> None:
        """Let it know how long the lease holds now (None: there is none any more). An earlier end changes nothing."""
        if deadline_ns is not None and self._wanted_ns is not None and deadline_ns <= self._wanted_ns:
            return
        if deadline_ns == self._wanted_ns:
            return
        self._wanted_ns = deadline_ns
        if not self._pending:
            self._renew()

    def listen_anew(self) -> None:
        """Give it another socket at its path, unless an order is under way. Raises OSError."""
        if self._pending or self._socket is None:
            return
        with self._fuses.listener(self.component) as listener:
            self._send(LISTEN, self.generation, 0, fd=listener.fileno())

    def retire(self) -> None:
        """It may go, unless it guards something: then it stays."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(ORDER.pack(RETIRE, 0, 0, 0))
        self._close()

    def _renew(self) -> None:
        if self._wanted_ns == self._deadline_ns or self._socket is None:
            return
        self._deadline_ns = self._wanted_ns
        try:
            if self._wanted_ns is None:
                self._send(RELEASE, self.generation, 0)
            else:
                self._send(RENEW, self.generation, self._wanted_ns)
        except OSError as error:
            self._gone(kernel.explain(error))

    def _send(self, kind: int, generation: int, deadline_ns: int, *, whole_tree: bool = False, fd: int = -1) -> None:
        if self._socket is None:
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        rights = [] if fd < 0 else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))]
        self._socket.sendmsg([ORDER.pack(kind, whole_tree, generation, deadline_ns)], rights, socket.MSG_NOSIGNAL)
        self._pending = kind
        if self._timer is not None:
            self._timer.cancel()
        bound_s = ARM_S if self._armed is not None else ANSWER_S
        self._timer = self._loop.call_later(bound_s, partial(self._gone, f"no answer within {bound_s:g} s"))

    def _readable(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(ANSWER.size)
        except BlockingIOError:
            return
        except OSError as error:
            self._gone(kernel.explain(error))
            return
        if len(data) != ANSWER.size:
            self._gone("it is gone")
            return
        number, kind, generation, deadline_ns, marks, pid = ANSWER.unpack(data)
        self._answered(
            Answer(error=number, kind=kind, generation=generation, deadline_ns=deadline_ns, marks=marks, pid=pid)
        )

    def _answered(self, answer: Answer) -> None:
        if answer.kind != self._pending:
            return
        other = answer.generation != self.generation
        if answer.kind in {ARM_GROUP, ARM_LINK} and answer.error == 0 and other:
            return  # to the arming of a start that was cancelled
        self._pending = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if answer.kind in {ARM_GROUP, ARM_LINK}:
            self._dismiss(None if answer.error == 0 else kernel.describe(answer.error))
        elif answer.kind == LISTEN:
            self._moved(answer.error)
        elif other or (answer.kind == ASK and answer.marks & BLOWN):
            self._gone("it guards another start")
            return
        elif answer.kind == ASK:
            self._deadline_ns = answer.deadline_ns
            if self._wanted_ns is not None:
                self._wanted_ns = max(self._wanted_ns, answer.deadline_ns)
        self._renew()

    def _moved(self, error: int) -> None:
        """It listens at its path again, or cannot."""
        if error == 0:
            self._fuses.warn(f"somebody removed the socket of the fuse of {self.component}; it listens there again")
            return
        self.findable = False
        with suppress(OSError):
            self._fuses.path(self.component).unlink()
        self._fuses.warn(
            f"somebody removed the socket of the fuse of {self.component}, and that fuse, of an older version, cannot "
            "have another: it still kills at the end of the lease, but the next agent will not find it and stop "
            f"{self.component}; restart {self.component} at a good moment"
        )

    def _dismiss(self, problem: str | None) -> None:
        """Tell whoever waits for it to be armed."""
        armed, self._armed = self._armed, None
        if armed is None:
            return
        link_fd, self._link_fd = self._link_fd, -1
        if problem is not None:
            self.generation = 0
            if link_fd >= 0:
                os.close(link_fd)
            link_fd = -1
        armed(problem, link_fd)

    def _gone(self, why: str) -> None:
        """It has ended, or does not do its work: another one is started when one is needed."""
        with suppress(OSError):
            self._fuses.path(self.component).unlink()
        self._close()
        self._dismiss(why)
        self._fuses.fuse_lost(self, why)

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _close_link(self) -> None:
        if self._link_fd >= 0:
            os.close(self._link_fd)
            self._link_fd = -1


def depends_on_lease(spec: ComponentSpec) -> bool:
    """Whether a component runs only while a leased fact holds."""
    return any(is_leased(fact) for fact in spec.run_while)


def default_program() -> tuple[str, ...]:
    """The command of a fuse here."""
    if os.access(PROGRAM, os.X_OK):
        return (str(PROGRAM),)
    return (sys.executable, "-I", "-S", str(FALLBACK))


def _link() -> tuple[int, int]:
    """Two ends of a connection: the fuse's, and the one over which the child enlists itself."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return theirs.detach(), ours.detach()
