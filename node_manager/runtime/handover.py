"""What one program hands to the next when it is replaced in place (re-exec): the core's whole state, and descriptors.

The kernel keeps across execve(2) what makes the agent the agent: its pid, so its children and the status of each; the
locks of its directories; whatever waits in its sockets; the signal mask. The rest goes through a sealed memory file,
written before the exec, whose descriptor the environment names. Nothing of it touches a disk, and nothing in it is
acted on before all of it was understood: until then the successor can still be replaced by its predecessor.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from node_manager.core.actions import KillTree, LookAt, RunPreStart, RunProbe, TakeEvidence
from node_manager.core.nodestate import NodeState
from node_manager.heartbeat.server import KeptConnection
from node_manager.runtime import carry
from node_manager.runtime.notify import KeptSocket
from node_manager.runtime.process import ProcessRecord

VERSION = 1
"""Raised when a state of an older version would be misunderstood, not when a field with a default is added."""
MAX_BYTES = 64 * 1024 * 1024
"""Bound on what is read: the state of a host with 256 components and a full history is about 3 MiB."""
_STATE = "state"


class HandoverError(Exception):
    """The state cannot be taken over; the sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program as it is started: the file, and its arguments with the name in the first place."""

    path: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The last re-exec, for status: how many there were since the agent began, and how this one went."""

    count: int
    ok: bool
    detail: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The agent itself: everything but the program around it. Descriptors are open in the process that it names."""

    node: NodeState
    booted: bool
    births: Mapping[str, tuple[int, str]]
    """Component -> generation, and the digest of the spec that its process was started with."""
    running: tuple[ProcessRecord, ...]
    pidfds: tuple[int, ...]
    """One for each of `running`."""
    repeat: tuple[KillTree | RunPreStart | RunProbe | LookAt | TakeEvidence, ...]
    ambiguous: tuple[str, ...]
    history: str
    """JSON, as the status API has it."""
    sockets: tuple[KeptSocket, ...]
    connections: tuple[KeptConnection, ...]
    heartbeat_fd: int
    locks: tuple[int, ...]
    next_command: int
    turns: int
    dropped: int

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Everything that has to stay open across the exec."""
        sockets = [one.fd for one in self.sockets] + [one.fd for one in self.connections]
        return (self.heartbeat_fd, *self.pidfds, *self.locks, *sockets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """See the module."""

    agent: Kept
    status_fd: int
    pid: int
    at_ns: int
    """When it was written (CLOCK_BOOTTIME): the time in which nobody listens begins here."""
    agent_version: str
    replaced: Replaced | None
    """The re-exec before this one."""
    program: Program
    """Where the installed program is, whatever is there."""
    back: Program | None
    """What to fall back to: the program that hands over, where its files stay; None: they are the successor's now."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Everything that has to stay open across the exec."""
        return (self.status_fd, *self.agent.descriptors)


def write(handover: Handover) -> int:
    """Write a sealed memory file and return its descriptor, close-on-exec. Raises OSError."""
    data = json.dumps({"version": VERSION, "pid": handover.pid, _STATE: carry.encode(handover)}).encode()
    fd = os.memfd_create("xce-handover", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read(fd: int) -> Handover:
    """Return what `write` was given; the file can be read again. Raises HandoverError, also for another version."""
    try:
        size = os.fstat(fd).st_size
        if size > MAX_BYTES:
            raise HandoverError(f"the state has more than {MAX_BYTES} bytes")
        data = b""
        while len(data) < size and (chunk := os.pread(fd, size - len(data), len(data))):
            data += chunk
        body = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise HandoverError(f"the state cannot be read: {error}") from error
    found = body.get("version") if isinstance(body, dict) else None
    if found != VERSION:
        raise HandoverError(f"the state has format {found!r}, this program reads {VERSION}")
    try:
        return carry.decode(Handover, body.get(_STATE), _STATE)
    except (ValueError, TypeError, RecursionError) as error:
        raise HandoverError(f"the state cannot be understood: {error}") from error


def received(fd: int) -> Handover:
    """Return what was handed over to this very process. Raises HandoverError."""
    handed = read(fd)
    if handed.pid != os.getpid():
        raise HandoverError(f"the state was handed to process {handed.pid}, and this is {os.getpid()}")
    return handed


def pass_on(descriptors: tuple[int, ...], *, on: bool) -> None:
    """Let these descriptors survive an exec, or no longer. Raises OSError for one that is not open."""
    for fd in descriptors:
        os.set_inheritable(fd, on)
