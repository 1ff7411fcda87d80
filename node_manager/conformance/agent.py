"""The agent as the scripts play it: one socket for one program, and a stage on which several play at once."""

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from node_manager.conformance.judge import Judge
from node_manager.conformance.program import Program
from node_manager.core.events import Beat
from node_manager.core.spec import NS_PER_S
from node_manager.heartbeat import sockets
from node_manager.heartbeat.codec import MAX_RECORD_BYTES, MalformedRecord, beat_from, decode, encode

TICK_S = 0.05
STALL_S = 0.25
"""The kit was elsewhere, or did not get the processor, for longer than a turn takes."""
BACKLOG = 16
DIRECTIVES = {"DRAIN": "0", "DRAIN_DEADLINE_NS": "0", "UNDRAIN": "0", "EPOCH": "0", "DECOMMISSIONED": "0"}
HELLO = {"XCE_HEARTBEAT": "1", "NODE": "conformance", "INSTANCE_ID": "", "BOOT_ID": "conformance", "ROLES": "test"}


def now_ns() -> int:
    """CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Heard:
    """One record that kept the grammar: when, on which connection, and what it says."""

    at_ns: int
    connection: int
    beat: Beat
    fields: Mapping[str, str]


@dataclass(slots=True)
class Connection:
    """One connection of the program."""

    sock: socket.socket
    number: int
    opened_ns: int
    last_ns: int
    """When the program last spoke, or the end of a pause that was not its fault."""
    greeted: bool = False
    answered: bool = False


class Stage:
    """Lets time pass for every agent on it."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.agents: list[Agent] = []
        self._turned_s = time.monotonic()

    def turn(self, timeout_s: float = TICK_S) -> None:
        """Wait once, and let each agent do what is due.

        Time in which the kit itself did not listen is no program's fault.
        """
        ready = self.selector.select(timeout_s)
        at_s = time.monotonic()
        if at_s - self._turned_s > timeout_s + STALL_S:
            for agent in self.agents:
                agent.forgive()
        self._turned_s = at_s
        for key, _ in ready:
            key.data()
        for agent in self.agents:
            agent.tick()

    def until(self, condition: Callable[[], bool], bound_s: float) -> bool:
        """Play until the condition holds; False when it did not within the bound."""
        end = time.monotonic() + bound_s
        while not condition():
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            self.turn(min(TICK_S, left_s))
        return True

    def play(self, seconds: float) -> None:
        """Play for so long."""
        self.until(lambda: False, seconds)

    def close(self) -> None:
        """End every agent and its program."""
        for agent in tuple(self.agents):
            agent.close()
        self.selector.close()


@dataclass(slots=True, eq=False)
class Agent:
    """One heartbeat socket. `levels` is what the program is told; everything that it says is judged as it comes."""

    stage: Stage
    path: Path
    component: str
    judge: Judge
    levels: dict[str, str] = field(default_factory=lambda: dict(DIRECTIVES))
    answering: bool = True
    welcoming: bool = True
    """Off: a connection is closed as soon as it is accepted."""
    reading: bool = True
    beating: bool = True
    heard: list[Heard] = field(default_factory=list)
    program: Program | None = None
    connection: Connection | None = None
    connections: int = 0
    interval_ns: int = 0
    _listener: socket.socket | None = None
    _beat: int = 0
    _beat_at_ns: int = 0

    def __post_init__(self) -> None:
        self.stage.agents.append(self)

    # --- its socket ---------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Make the socket."""
        self._listener = sockets.bind(self.path, socket.SOCK_SEQPACKET)
        self._listener.listen(BACKLOG)
        self.stage.selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def leave(self) -> None:
        """Be gone: no socket, no connection."""
        self.hang_up()
        if self._listener is not None:
            self.stage.selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Be gone, and the program with it."""
        if self.program is not None:
            self.program.end()
        self.leave()
        self.stage.agents.remove(self)

    def hang_up(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self._watch(on=False)
            self.connection.sock.close()
            self.connection = None

    def read(self, *, on: bool) -> None:
        """Stop reading, or begin again: the time between is not the program's fault."""
        self.reading = on
        self._watch(on=on)
        self.forgive()

    def forgive(self) -> None:
        """The program could not speak until now."""
        if self.connection is not None:
            self.connection.last_ns = now_ns()

    def _watch(self, *, on: bool) -> None:
        if self.connection is None:
            return
        with contextlib.suppress(KeyError):
            self.stage.selector.unregister(self.connection.sock)
        if on:
            self.stage.selector.register(self.connection.sock, selectors.EVENT_READ, self._read)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self.connections += 1
        if not self.welcoming:
            sock.close()
            return
        self.hang_up()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        at = now_ns()
        self.connection = Connection(sock, self.connections, at, at)
        self._watch(on=self.reading)

    # --- hearing ------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        while (connection := self.connection) is not None:
            try:
                message = sockets.receive(connection.sock, MAX_RECORD_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue
            except OSError:
                self.hang_up()
                return
            if message.ended:
                self.hang_up()
                return
            self._take(connection, message)

    def _take(self, connection: Connection, message: sockets.Message) -> None:
        if self.program is not None:
            self.judge.speaker(message.pid, self.program.pid)
        if message.truncated or message.control_truncated:
            self.judge.malformed("longer than a record may be, or with a descriptor")
            return
        try:
            fields = decode(message.data)
            beat = beat_from(fields, self.component, 1)
        except MalformedRecord as error:
            # The real agent closes the connection. The script goes on: what follows is judged as well.
            self.judge.malformed(error.reason)
            return
        at = now_ns()
        if not connection.greeted:
            connection.greeted = True
            self.judge.first_record(fields, self.component, late_ns=at - connection.opened_ns)
        if self.interval_ns and self.program is not None and not self.program.stopped and self.reading:
            self.judge.interval(at - connection.last_ns, self.interval_ns)
        connection.last_ns = at
        self.judge.record(beat, fields, at, prompt=self.reading)
        self.heard.append(Heard(at, connection.number, beat, fields))
        if beat.interval_ns is not None:
            self.interval_ns = beat.interval_ns
        if beat.hello and self.answering:
            self.answer()

    # --- saying -------------------------------------------------------------------------------------------------

    def answer(self) -> None:
        """Say the agent's hello and the full state."""
        if self.connection is not None:
            self.connection.answered = True
        self.say({**HELLO, "FULL": "1", **self.levels})
        self._beat_at_ns = now_ns() + self.interval_ns

    def tell(self, changes: Mapping[str, str]) -> None:
        """Change levels, and say the changes."""
        self.levels.update(changes)
        self.say(changes)

    def say(self, pairs: Mapping[str, str]) -> None:
        """Send pairs, if there is a connection whose hello was answered."""
        for record in encode(list(pairs.items())):
            self.say_raw(record)

    def say_raw(self, record: bytes) -> None:
        """Send any bytes as a record, likewise."""
        if self.connection is not None and self.connection.answered:
            with contextlib.suppress(OSError):
                self.connection.sock.send(record, socket.MSG_NOSIGNAL)

    def tick(self) -> None:
        """Beat when it is time to, and notice silence."""
        at, connection = now_ns(), self.connection
        if connection is None or self.program is None or self.program.stopped or not self.reading:
            return
        if self.program.running:
            if not connection.greeted:
                self.judge.no_hello_yet(at - connection.opened_ns)
            elif self.interval_ns:
                self.judge.silence(at - connection.last_ns, self.interval_ns)
        if self.beating and self.interval_ns and at >= self._beat_at_ns:
            self._beat_at_ns = at + self.interval_ns
            self._beat += 1
            self.say({"BEAT": str(self._beat)})

    # --- questions ----------------------------------------------------------------------------------------------

    @property
    def interval_s(self) -> float:
        """The program's promise; a second before it has made one."""
        return self.interval_ns / NS_PER_S if self.interval_ns else 1.0

    def since(self, count: int) -> list[Heard]:
        """What was heard after the first `count` records."""
        return self.heard[count:]
