"""The heartbeat client for components written in Python. Synchronous, non-blocking, no threads, standard library only.

The program sets levels whenever they change and calls `service()` from its own loop, at the latest after `next_ms()`
milliseconds and whenever `fileno()` is readable:

    client = HeartbeatClient.from_environment()
    client.set_ready(True)
    while running:
        readable, _, _ = select.select([*mine, *([client.fileno()] if client.fileno() >= 0 else [])], [], [],
                                       min(client.next_ms(), my_own_wait_ms) / 1000)
        client.service()

Without an agent the program runs as it would with one: nothing here waits, and no failure of the socket is raised.
"""

import os
import random
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from node_manager.core.events import HostState
from node_manager.core.spec import NS_PER_MS, NS_PER_S
from node_manager.heartbeat.bucket import TokenBucket
from node_manager.heartbeat.codec import (
    MAX_INTEGER,
    MAX_INTERVAL_MS,
    MAX_RECORD_BYTES,
    MIN_INTERVAL_MS,
    VERSION,
    MalformedRecord,
    decode,
    encode,
    part_of,
    read_integer,
    split_attribute,
)

RECONNECT_MIN_NS = NS_PER_S // 5
RECONNECT_MAX_NS = NS_PER_S
"""Delays between attempts double from the first to the second; the jitter halves them at most, so that a restarted
agent is not met by all components in the same instant."""
FULL_STATE_NS = 10 * NS_PER_S
"""The full state is restated at least this often."""
MAX_WAIT_MS = 60_000
"""What `next_ms` says where nothing is ever due."""
BLOCKED_RETRY_MS = 100
"""When to try again after the socket took no more: the fastest interval."""
RECORDS_PER_S = 40
RECORDS_BURST = 50
"""Own pace, below what the agent takes for a flood: a program that changes a level in a tight loop is not cut off."""
READS_PER_SERVICE = 512
"""Above what the agent's send buffer holds; a bound for an agent that has gone mad."""


def boottime_ns() -> int:
    """The clock of every time in the protocol: CLOCK_BOOTTIME in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """What the agent has last told. It is kept while the connection is away: a directive does not lapse with it."""

    node: str = ""
    instance_id: str = ""
    boot_id: str = ""
    roles: tuple[str, ...] = ()
    levels: Mapping[str, str] = field(default_factory=dict)
    """Every level, by its key."""

    @property
    def drain(self) -> bool:
        """This host is to be drained."""
        return self.levels.get("DRAIN") == "1"

    @property
    def drain_deadline_ns(self) -> int | None:
        """When the drain must be over (CLOCK_BOOTTIME); None: no deadline, which is 0 on the wire."""
        return read_integer(self.levels.get("DRAIN_DEADLINE_NS")) or None

    @property
    def undrain(self) -> bool:
        """An operator has released drain and decommission of this host up to `epoch`."""
        return self.levels.get("UNDRAIN") == "1"

    @property
    def epoch(self) -> int | None:
        """The greatest epoch of this host that an operator has released; belongs to `undrain`."""
        return read_integer(self.levels.get("EPOCH"))

    @property
    def seen_epoch(self) -> int:
        """The greatest epoch of a host state that the agent has taken; 0: none yet."""
        return read_integer(self.levels.get("SEEN_EPOCH")) or 0

    @property
    def decommissioned(self) -> bool:
        """This host is out of the cluster for good."""
        return self.levels.get("DECOMMISSIONED") == "1"

    @property
    def node_stopping(self) -> bool:
        """The agent is stopping every component: this one's signal follows in its turn."""
        return self.levels.get("NODE_STOPPING") == "1"

    @property
    def components(self) -> dict[str, str]:
        """State of each component, by name."""
        return {name: value for name, attribute, value in self._of("COMPONENT.") if attribute is None}

    @property
    def facts(self) -> dict[str, tuple[bool | None, int | None, int | None]]:
        """Value (None: unknown), term and end of validity of each fact, by name."""
        return {
            name: (
                {"true": True, "false": False}.get(value),
                read_integer(self.levels.get(f"FACT.{name}.TERM")),
                read_integer(self.levels.get(f"FACT.{name}.VALID_UNTIL_NS")),
            )
            for name, attribute, value in self._of("FACT.")
            if attribute is None
        }

    def _of(self, prefix: str) -> list[tuple[str, str | None, str]]:
        return [
            (*split_attribute(key.removeprefix(prefix)), value)
            for key, value in self.levels.items()
            if key.startswith(prefix)
        ]


class HeartbeatClient:
    """Speaks for `component` at `socket_path`; without a path everything works and nothing is sent.

    `interval_ms` is the program's promise to the agent: silence for three intervals is taken for a hang. The process
    that made the client is the only one to speak: in a forked child it does nothing.
    """

    def __init__(
        self,
        component: str,
        socket_path: str | None,
        *,
        interval_ms: int = 1000,
        template: str | None = None,
        clock_ns: Callable[[], int] = boottime_ns,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if not MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS:
            raise ValueError(
                f"cannot beat every {interval_ms} ms: use an interval from {MIN_INTERVAL_MS} to {MAX_INTERVAL_MS}"
            )
        self._hello = [("XCE_HEARTBEAT", VERSION), ("COMPONENT", component), ("INTERVAL_MS", str(interval_ms))]
        if template is not None:
            self._hello.append(("TEMPLATE", template))
        self._path = socket_path
        self._interval_ns = interval_ms * NS_PER_MS
        self._clock_ns = clock_ns
        self._jitter = jitter
        self._owner = os.getpid()
        self._sock: socket.socket | None = None
        self._groups: dict[str, tuple[tuple[str, str], ...]] = {}
        """Everything this component states. What belongs together is a group and always sent together."""
        self._dirty: set[str] = set()
        self._beat = 0
        self._greeted = False
        self._blocked = False
        now = clock_ns()
        self._beat_at_ns = self._full_at_ns = self._retry_at_ns = now
        self._retry_delay_ns = RECONNECT_MIN_NS
        self._pace = TokenBucket(RECORDS_PER_S, RECORDS_BURST, now / NS_PER_S)
        self._filling: dict[str, str] | None = None
        """A full state of which not all parts have come."""
        self._next_part = (0, 0)
        """The PART=i/n that goes on with it."""
        self.connected = False
        self.agent = AgentView()

    @classmethod
    def from_environment(cls, component: str | None = None, *, interval_ms: int = 1000) -> "HeartbeatClient":
        """Make the client that the agent's environment describes.

        XCE_HEARTBEAT_SOCKET is the socket, XCE_COMPONENT the name, where none is given here. Where either is missing,
        or XCE_MAIN_PID is another process (the environment was inherited), the client sends nothing.
        """
        name = component or os.environ.get("XCE_COMPONENT", "")
        path = os.environ.get("XCE_HEARTBEAT_SOCKET") or None
        if not name or os.environ.get("XCE_MAIN_PID", str(os.getpid())) != str(os.getpid()):
            path = None
        return cls(name, path, interval_ms=interval_ms)

    # --- levels -------------------------------------------------------------------------------------------------

    def set_ready(self, ready: bool) -> None:
        """Whether the program does its work for others."""
        self._set("ready", ("READY", "1" if ready else "0"))

    def set_stopping(self) -> None:
        """The program is on its way out."""
        self._set("stopping", ("STOPPING", "1"))

    def set_status(self, text: str) -> None:
        """One line for operators."""
        self._set("status", ("STATUS", text))

    def set_progress(self, n: int) -> None:
        """A number that grows while work gets done."""
        self._set("progress", ("PROGRESS", _number(n)))

    def set_jobs(self, n: int) -> None:
        """How many jobs run."""
        self._set("jobs", ("JOBS", _number(n)))

    def set_leadership(self, primary: bool, term: int, valid_until_ns: int | None = None) -> None:
        """State `controller.primary`. What an authority promises by it: docs/reference/heartbeat-protocol.md."""
        pairs = [("LEADERSHIP", "primary" if primary else "standby"), ("TERM", _number(term))]
        self._set("leadership", *pairs, *_optional("VALID_UNTIL_NS", valid_until_ns))

    def set_host_state(self, state: str, epoch: int, drain_deadline_ns: int | None = None) -> None:
        """State where this host stands: active, draining, drained or decommissioned, under the controller's epoch."""
        pairs = [("HOST_STATE", HostState(state).value), ("EPOCH", _number(epoch))]
        self._set("host", *pairs, *_optional("DRAIN_DEADLINE_NS", drain_deadline_ns))

    def set_lease(self, name: str, held: bool, token: int | None = None, valid_until_ns: int | None = None) -> None:
        """State `lease.NAME` with its fencing token and end."""
        key = f"LEASE.{name}"
        extra = [*_optional(f"{key}.TOKEN", token), *_optional(f"{key}.VALID_UNTIL_NS", valid_until_ns)]
        self._set(key, (key, "held" if held else "lost"), *extra)

    # --- the program's loop -------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The descriptor to wait on for reading; -1 while there is no connection."""
        return self._sock.fileno() if self._sock is not None and self._speaks() else -1

    @property
    def sent(self) -> bool:
        """Whether all that was stated went out on the connection that stands. What the agent says then may be older."""
        return self._sock is not None and self._greeted and not self._dirty

    def next_ms(self) -> int:
        """The greatest time that the program may wait before it calls `service()` again."""
        if not self._speaks():
            return MAX_WAIT_MS
        now = self._clock_ns()
        if self._sock is None:
            due_ns = self._retry_at_ns
        else:
            due_ns = now if self._dirty else min(self._beat_at_ns, self._full_at_ns)
            due_ns = max(due_ns, now + round(self._pace.wait_s(now / NS_PER_S) * NS_PER_S))
        wait_ms = -((now - due_ns) // NS_PER_MS)
        return min(MAX_WAIT_MS, max(wait_ms, BLOCKED_RETRY_MS if self._blocked else 0))

    def service(self) -> None:
        """Connect if it is time to, take in what the agent said, send what is due. Never waits, never raises."""
        if not self._speaks():
            return
        now = self._clock_ns()
        if self._sock is not None:
            self._read(now)
        elif now >= self._retry_at_ns:
            self._connect(now)
        if self._sock is not None:
            self._write(now)

    def close(self) -> None:
        """End the connection for good."""
        self._path = None
        self._disconnect()

    # --- inside -------------------------------------------------------------------------------------------------

    def _speaks(self) -> bool:
        if self._path is not None and os.getpid() != self._owner:
            # A forked child: closing its copy of the descriptor leaves the parent's connection as it is.
            self.close()
        return self._path is not None

    def _set(self, group: str, *pairs: tuple[str, str]) -> None:
        encode(pairs)  # a name that cannot be a key is the caller's error, and said to the caller
        if self._groups.get(group) != pairs:
            self._groups[group] = pairs
            self._dirty.add(group)

    def _connect(self, now: int) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.setblocking(False)
            sock.connect(self._path or "")
        except OSError:
            sock.close()
            self._retry_later(now)
            return
        self._sock = sock
        self._greeted = self._blocked = False
        self._filling = None
        self._beat_at_ns = self._full_at_ns = now

    def _lose(self, now: int) -> None:
        if self._sock is not None:
            self._disconnect()
            self._retry_later(now)

    def _disconnect(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self.connected = False

    def _retry_later(self, now: int) -> None:
        self._retry_at_ns = now + round(self._retry_delay_ns * (0.5 + self._jitter() / 2))
        self._retry_delay_ns = min(2 * self._retry_delay_ns, RECONNECT_MAX_NS)

    def _read(self, now: int) -> None:
        for _ in range(READS_PER_SERVICE):
            if self._sock is None:
                return
            try:
                record = self._sock.recv(MAX_RECORD_BYTES + 1)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # the agent closed before it read all; what it had said is still there
            except OSError:
                self._lose(now)
                return
            try:
                self._take(decode(record))  # an empty record is the end of the connection
            except MalformedRecord:
                self._lose(now)

    def _take(self, fields: dict[str, str]) -> None:
        number, count = part_of(fields)
        view = self.agent
        node, instance_id, boot_id, roles = view.node, view.instance_id, view.boot_id, view.roles
        if "XCE_HEARTBEAT" in fields:
            if fields.pop("XCE_HEARTBEAT") != VERSION:
                raise MalformedRecord("unknown protocol version")
            self.connected = True
            self._retry_delay_ns = RECONNECT_MIN_NS
            node, instance_id = fields.pop("NODE", ""), fields.pop("INSTANCE_ID", "")
            boot_id, roles = fields.pop("BOOT_ID", ""), tuple(filter(None, fields.pop("ROLES", "").split(",")))
        full = fields.pop("FULL", "0") == "1"
        fields.pop("PART", None)
        levels = {**view.levels, **fields}
        if full:
            self._filling = {}
        elif (number, count) != self._next_part:
            self._filling = None  # it was interrupted: what comes now carries changes
        self._next_part = (number + 1, count)
        if self._filling is not None:
            self._filling.update(fields)
            if number == count:
                levels = self._filling
                self._filling = None
        self.agent = AgentView(node=node, instance_id=instance_id, boot_id=boot_id, roles=roles, levels=levels)

    def _write(self, now: int) -> None:
        full = now >= self._full_at_ns
        if not (full or self._dirty or now >= self._beat_at_ns):
            return
        if self._greeted and not self._pace.take(now / NS_PER_S):
            return
        pairs = [] if self._greeted else list(self._hello)
        pairs.append(("BEAT", str(self._beat + 1)))
        for group, levels in self._groups.items():
            if full or group in self._dirty:
                pairs += levels
        if self._send(pairs, now):
            self._beat += 1
            self._greeted = True
            self._dirty.clear()
            self._beat_at_ns = now + self._interval_ns
            if full:
                self._full_at_ns = now + FULL_STATE_NS

    def _send(self, pairs: list[tuple[str, str]], now: int) -> bool:
        """Send all of it; False if the socket did not take all, and then all is to be sent again."""
        self._blocked = False
        for record in encode(pairs):
            if self._sock is None:
                return False
            try:
                self._sock.send(record, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._blocked = True
                return False
            except OSError:
                # What the agent said last may still be there to be read, and it may be a directive.
                self._read(now)
                self._lose(now)
                return False
        return True


def _number(n: int) -> str:
    if not 0 <= n <= MAX_INTEGER:
        raise ValueError(f"cannot state {n}: numbers are from 0 to 2**63 - 1")
    return str(n)


def _optional(key: str, n: int | None) -> list[tuple[str, str]]:
    return [] if n is None else [(key, _number(n))]
