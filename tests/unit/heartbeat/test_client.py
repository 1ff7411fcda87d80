"""The Python client: against the real server, and against an agent that is away, mad, or does not read."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node_manager.core.events import HostState, Leadership, LeaseStatement
from node_manager.heartbeat import client as limits
from node_manager.heartbeat.client import AgentView, HeartbeatClient, boottime_ns
from node_manager.heartbeat.codec import decode, encode
from node_manager.heartbeat.server import HeartbeatServer
from tests.unit.heartbeat.support import MovableLoop, Node, child, line_of, tell

MS = 1_000_000
Maker = Callable[..., HeartbeatClient]


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now_ns = 10**12

    def __call__(self) -> int:
        return self.now_ns

    def advance_ms(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * MS


class Agent:
    """An agent's end of the socket, moved by hand."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(8)
        self.listener.setblocking(False)
        self.sock = self.listener

    def accept(self) -> None:
        self.sock, _ = self.listener.accept()
        self.sock.setblocking(False)

    def heard(self) -> list[dict[str, str]]:
        records: list[dict[str, str]] = []
        while True:
            try:
                data = self.sock.recv(65536)
            except BlockingIOError:
                return records
            if not data:
                return records
            records.append(decode(data))

    def say(self, *pairs: tuple[str, str]) -> None:
        for record in encode(pairs):
            self.sock.send(record)

    def hang_up(self) -> None:
        self.sock.close()

    def close(self) -> None:
        self.sock.close()
        self.listener.close()


@pytest.fixture
def path(directory: Path) -> Path:
    return directory / "heartbeat.sock"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(path: Path, clock: Clock) -> Iterator[Maker]:
    made: list[HeartbeatClient] = []

    def maker(component: str = "worker", interval_ms: int = 1000) -> HeartbeatClient:
        client = HeartbeatClient(component, str(path), interval_ms=interval_ms, clock_ns=clock, jitter=lambda: 1.0)
        made.append(client)
        return client

    yield maker
    for client in made:
        client.close()


@pytest.fixture
def agent(path: Path) -> Iterator[Agent]:
    made = Agent(path)
    yield made
    made.close()


@pytest.fixture
def server(loop: MovableLoop, path: Path, node: Node) -> Iterator[HeartbeatServer]:
    node.owners[os.getpid()] = ("worker", 3)
    made = HeartbeatServer(
        loop, path, post=node.events.append, identify=node.identify, hello=node.hello, levels=node.levels
    )
    made.start()
    made.accept()
    yield made
    made.close()


def met(client: HeartbeatClient, agent: Agent) -> dict[str, str]:
    """Let client and agent say hello to each other; the client's first record."""
    client.service()
    agent.accept()
    (record,) = agent.heard()
    agent.say(("XCE_HEARTBEAT", "1"), ("NODE", "n"), ("FULL", "1"))
    client.service()
    assert client.connected
    return record


def test_every_level_reaches_the_core_through_the_real_server(
    loop: MovableLoop, server: HeartbeatServer, node: Node, make: Maker, clock: Clock
) -> None:
    """What a program sets is what the core is told, in one record with the hello."""
    client = make()
    client.set_ready(True)
    client.set_status("two\njobs")
    client.set_progress(7)
    client.set_jobs(2)
    client.set_leadership(True, 5, 99)
    client.set_host_state("draining", 4, 77)
    client.set_lease("provisioner", True, 6, 88)
    client.set_lease("other", False)
    client.service()
    loop.until(lambda: len(node.beats) == 1)
    (beat,) = node.beats
    assert (beat.hello, beat.ready, beat.status, beat.progress, beat.jobs) == (True, True, "two jobs", 7, 2)
    assert (beat.leadership, beat.term, beat.valid_until_ns) == (Leadership.PRIMARY, 5, 99)
    assert (beat.host_state, beat.epoch, beat.drain_deadline_ns) == (HostState.DRAINING, 4, 77)
    assert beat.leases == (
        LeaseStatement(name="provisioner", held=True, token=6, valid_until_ns=88),
        LeaseStatement(name="other", held=False),
    )
    client.set_stopping()
    client.set_leadership(False, 5)
    client.service()
    loop.until(lambda: len(node.beats) == 2)
    beat = node.beats[1]
    assert (beat.stopping, beat.leadership, beat.term, beat.valid_until_ns) == (True, Leadership.STANDBY, 5, None)
    assert (beat.ready, beat.status, beat.host_state) == (None, None, None)
    assert server.counters.malformed == 0
    assert clock() == 10**12


def test_the_agents_levels_reach_the_program(
    loop: MovableLoop, server: HeartbeatServer, node: Node, make: Maker
) -> None:
    """Who the node is, directives, components and facts are there to be read; what is gone is gone."""
    node.said["worker"] = [
        *(("DRAIN", "1"), ("DRAIN_DEADLINE_NS", "123"), ("UNDRAIN", "0"), ("EPOCH", "4"), ("DECOMMISSIONED", "0")),
        *(("COMPONENT.worker", "running"), ("COMPONENT.worker.RESTARTS", "2")),
        *(("FACT.controller.primary", "true"), ("FACT.controller.primary.TERM", "9")),
        *(("FACT.controller.primary.VALID_UNTIL_NS", "456"), ("FACT.host.draining", "false"), ("FACT.x", "unknown")),
    ]
    client = make()
    client.service()
    loop.until(lambda: len(node.beats) == 1)
    assert not client.connected
    client.service()
    view = client.agent
    assert client.connected
    assert (view.node, view.instance_id, view.boot_id, view.roles) == ("node-1", "i-1", "b", ("manager", "worker"))
    assert (
        *(view.drain, view.drain_deadline_ns, view.undrain, view.epoch),
        view.decommissioned,
    ) == (True, 123, False, 4, False)
    assert view.components == {"worker": "running"}
    assert view.facts == {
        "controller.primary": (True, 9, 456),
        "host.draining": (False, None, None),
        "x": (None, None, None),
    }
    node.said["worker"] = [("DRAIN", "0"), ("DRAIN_DEADLINE_NS", "0"), ("UNDRAIN", "1"), ("DECOMMISSIONED", "1")]
    server.send("worker")
    client.service()
    view = client.agent
    assert (view.drain, view.undrain, view.decommissioned, view.epoch) == (False, True, True, None)
    assert view.drain_deadline_ns is None
    assert (view.components, view.facts) == ({}, {})
    assert view.node == "node-1"


def test_a_large_state_arrives_whole(loop: MovableLoop, server: HeartbeatServer, node: Node, make: Maker) -> None:
    """A state in parts replaces the one before it, directives being seen first."""
    node.said["worker"] = [("COMPONENT.old", "running")]
    client = make()
    client.service()
    loop.until(lambda: len(node.beats) == 1)
    client.service()
    node.said["worker"] = [(f"COMPONENT.c{n}", "x" * 500) for n in range(50)] + [("DRAIN", "1")]
    server.send("worker")
    client.service()
    assert {f"c{n}" for n in range(50)} == set(client.agent.components)
    assert client.agent.drain


def test_the_program_outlives_the_agent_and_meets_the_next(
    loop: MovableLoop, server: HeartbeatServer, path: Path, node: Node, make: Maker, clock: Clock
) -> None:
    """While the agent is away directives stay known; its successor is told the full state again."""
    node.said["worker"] = [("DRAIN", "1")]
    client = make()
    client.set_ready(True)
    client.service()
    loop.until(lambda: len(node.beats) == 1)
    client.service()
    server.close()
    client.service()
    assert (client.connected, client.fileno(), client.agent.drain) == (False, -1, True)
    for _ in range(20):
        clock.advance_ms(client.next_ms())
        client.service()
    successor = HeartbeatServer(
        loop, path, post=node.events.append, identify=node.identify, hello=node.hello, levels=node.levels
    )
    successor.start()
    successor.accept()
    assert client.next_ms() == 1000
    clock.advance_ms(1000)
    client.service()
    loop.until(lambda: len(node.beats) == 2)
    assert (node.beats[1].hello, node.beats[1].ready) == (True, True)
    client.service()
    assert client.connected
    successor.close()


def test_an_idle_program_beats(make: Maker, agent: Agent, clock: Clock) -> None:
    """The wait handed out is never longer than until the next beat, and each beat counts up."""
    client = make(interval_ms=200)
    assert met(client, agent)["BEAT"] == "1"
    beats = []
    for _ in range(5):
        assert 0 < client.next_ms() <= 200
        clock.advance_ms(client.next_ms())
        client.service()
        beats += [record["BEAT"] for record in agent.heard()]
    assert beats == ["2", "3", "4", "5", "6"]


def test_nothing_is_sent_before_it_is_due(make: Maker, agent: Agent, clock: Clock) -> None:
    """A program that calls service() all the time sends no more than its beats."""
    client = make()
    met(client, agent)
    for _ in range(99):
        clock.advance_ms(10)
        client.service()
    assert agent.heard() == []


def test_a_changed_level_is_due_at_once_and_alone(make: Maker, agent: Agent, clock: Clock) -> None:
    """A change is sent by the next service(), with all of its group and nothing else; the same value is no change."""
    client = make()
    client.set_ready(True)
    client.set_leadership(True, 5, 99)
    met(client, agent)
    client.set_leadership(True, 5, 100)
    assert client.next_ms() == 0
    client.service()
    (record,) = agent.heard()
    assert record == {"BEAT": "2", "LEADERSHIP": "primary", "TERM": "5", "VALID_UNTIL_NS": "100"}
    client.set_ready(True)
    assert client.next_ms() == 1000
    assert clock() == 10**12


def test_the_full_state_is_restated(make: Maker, agent: Agent, clock: Clock) -> None:
    """At least every ten seconds the agent hears everything again."""
    client = make()
    client.set_ready(True)
    met(client, agent)
    restated = 0
    for _ in range(11):
        clock.advance_ms(1000)
        client.service()
        restated += sum("READY" in record for record in agent.heard())
    assert restated == 1


def test_a_flurry_of_changes_is_paced(make: Maker, agent: Agent, clock: Clock) -> None:
    """A program that changes a level in a tight loop stays below what the agent calls a flood, and ends up to date."""
    client = make()
    met(client, agent)
    sent = []
    for number in range(1000):
        client.set_progress(number)
        client.service()
        sent += agent.heard()
    assert len(sent) <= limits.RECORDS_BURST
    assert 0 < client.next_ms() <= 1000 // limits.RECORDS_PER_S
    clock.advance_ms(client.next_ms())
    client.service()
    assert agent.heard()[-1]["PROGRESS"] == "999"


def test_reconnects_are_spread_and_slow_down(make: Maker, clock: Clock) -> None:
    """Without an agent the attempts come at 0.2 s doubling to 1 s, and nothing is raised."""
    client = make()
    waits = []
    for _ in range(8):
        client.service()
        assert client.fileno() == -1
        waits.append(client.next_ms())
        clock.advance_ms(waits[-1])
    assert waits == [200, 400, 800, 1000, 1000, 1000, 1000, 1000]


def test_the_jitter_halves_a_wait_at_most(path: Path, clock: Clock) -> None:
    """All components of a host do not come back in the same instant."""
    client = HeartbeatClient("worker", str(path), clock_ns=clock, jitter=lambda: 0.0)
    client.service()
    assert client.next_ms() == 100


def test_an_agent_that_hangs_up_at_once_is_not_pestered(make: Maker, agent: Agent, clock: Clock) -> None:
    """Only an answered hello resets the delay: a refused component does not hammer the socket."""
    client = make()
    waits = []
    for _ in range(4):
        client.service()
        agent.accept()
        agent.hang_up()
        client.service()
        assert client.fileno() == -1
        waits.append(client.next_ms())
        clock.advance_ms(waits[-1])
    assert waits == [200, 400, 800, 1000]


def test_an_answered_hello_resets_the_delay(make: Maker, agent: Agent, clock: Clock) -> None:
    """After a good connection the first attempt is quick again."""
    client = make()
    for _ in range(2):
        met(client, agent)
        agent.hang_up()
        client.service()
        assert client.next_ms() == 200
        clock.advance_ms(200)


def test_last_directives_are_heard_from_an_agent_that_is_gone(make: Maker, agent: Agent, clock: Clock) -> None:
    """An agent that closes with records of ours unread resets the connection; what it had said still counts."""
    client = make()
    met(client, agent)
    clock.advance_ms(1000)
    client.service()
    agent.say(("DRAIN", "1"))
    agent.hang_up()
    client.service()
    assert (client.agent.drain, client.connected) == (True, False)


def test_an_agent_that_takes_nothing_more_is_left(make: Maker, agent: Agent, clock: Clock) -> None:
    """A failing send ends the connection, and the next attempt comes after one delay, not two."""
    client = make()
    met(client, agent)
    agent.sock.shutdown(socket.SHUT_RD)
    clock.advance_ms(1000)
    client.service()
    assert (client.connected, client.fileno(), client.next_ms()) == (False, -1, 200)


def test_a_template_is_part_of_the_hello(path: Path, agent: Agent) -> None:
    """A component that knows its host's template says so."""
    client = HeartbeatClient("worker", str(path), template="spot-large")
    client.service()
    agent.accept()
    assert agent.heard()[0]["TEMPLATE"] == "spot-large"
    client.close()


@pytest.mark.parametrize("record", [b"\xff", b"no equals", b"PART=3/2\n", b"XCE_HEARTBEAT=2\n", b"A=" + b"x" * 8192])
def test_garbage_from_the_agent_ends_the_connection(make: Maker, agent: Agent, record: bytes) -> None:
    """What cannot be understood is not guessed at; what was known stays."""
    client = make()
    met(client, agent)
    agent.say(("DRAIN", "1"))
    agent.sock.send(record)
    client.service()
    assert (client.connected, client.agent.drain) == (False, True)


def test_an_agent_that_does_not_read_blocks_nothing(make: Maker, agent: Agent, clock: Clock) -> None:
    """With its buffer full the client keeps its levels, polls slowly, and sends the latest once it can."""
    client = make()
    met(client, agent)
    count = 0
    while client.next_ms() != limits.BLOCKED_RETRY_MS:
        assert count < 5000
        count += 1
        clock.advance_ms(100)
        client.set_status(f"{count}-{'x' * 1000}")
        client.service()
    client.set_status("last")
    assert client.next_ms() == limits.BLOCKED_RETRY_MS
    assert not client.sent
    assert len(agent.heard()) < count
    clock.advance_ms(100)
    client.service()
    assert agent.heard()[-1]["STATUS"] == "last"
    assert client.sent


def test_what_was_stated_is_sent_on_the_connection_that_stands(make: Maker, agent: Agent, clock: Clock) -> None:
    """Not before it went out, and not any more once that connection has ended; a hello says all of it again."""
    client = make()
    assert not client.sent
    met(client, agent)
    assert client.sent
    client.set_ready(True)
    assert not client.sent
    client.service()
    assert client.sent
    agent.hang_up()
    client.service()
    assert not client.sent
    clock.advance_ms(1000)
    client.service()
    assert client.sent


def test_an_interrupted_full_state_is_started_over(make: Maker, agent: Agent) -> None:
    """Parts that were cut short leave nothing behind once the state comes whole."""
    client = make()
    met(client, agent)
    for record in ("FULL=1;PART=1/2;A=old;B=old", "FULL=1;PART=1/2;A=new", "PART=2/2;C=new"):
        agent.sock.send(record.replace(";", "\n").encode())
    client.service()
    assert client.agent.levels == {"A": "new", "C": "new"}


def test_without_a_socket_everything_works_and_nothing_is_sent() -> None:
    """A program runs outside the agent as it does under it."""
    client = HeartbeatClient("worker", None)
    client.set_ready(True)
    client.service()
    assert (client.fileno(), client.next_ms(), client.connected) == (-1, limits.MAX_WAIT_MS, False)
    assert AgentView() == client.agent
    client.close()
    client.close()


@pytest.mark.parametrize(
    ("environment", "speaks"),
    [
        ({"XCE_HEARTBEAT_SOCKET": "PATH", "XCE_COMPONENT": "worker"}, True),
        ({"XCE_HEARTBEAT_SOCKET": "PATH", "XCE_COMPONENT": "worker", "XCE_MAIN_PID": "SELF"}, True),
        ({"XCE_HEARTBEAT_SOCKET": "PATH", "XCE_COMPONENT": "worker", "XCE_MAIN_PID": "1"}, False),
        ({"XCE_HEARTBEAT_SOCKET": "PATH"}, False),
        ({"XCE_COMPONENT": "worker"}, False),
    ],
)
def test_the_environment_makes_the_client(
    monkeypatch: pytest.MonkeyPatch, path: Path, agent: Agent, environment: dict[str, str], speaks: bool
) -> None:
    """Only the main process of a component speaks, not what inherits its environment."""
    for name in ("XCE_HEARTBEAT_SOCKET", "XCE_COMPONENT", "XCE_MAIN_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, {"PATH": str(path), "SELF": str(os.getpid())}.get(value, value))
    client = HeartbeatClient.from_environment(interval_ms=500)
    client.service()
    assert speaks is (client.fileno() >= 0)
    if speaks:
        agent.accept()
        (record,) = agent.heard()
        assert record == {"XCE_HEARTBEAT": "1", "COMPONENT": "worker", "INTERVAL_MS": "500", "BEAT": "1"}
    client.close()


FORKER = """
import os, sys
from node_manager.heartbeat.client import HeartbeatClient
client = HeartbeatClient("worker", sys.argv[1])
client.service()
child = os.fork()
if child == 0:
    client.set_ready(True)
    client.service()
    os._exit(0 if (client.fileno(), client.next_ms()) == (-1, 60000) else 1)
_, status = os.waitpid(child, 0)
print(status, os.get_inheritable(client.fileno()), flush=True)
sys.stdin.readline()
client.set_status("still here")
client.service()
print("done", flush=True)
"""


def test_a_forked_child_is_mute_and_leaves_the_parents_connection(agent: Agent) -> None:
    """After fork only the process that made the client speaks; the descriptor does not pass to programs."""
    with child(FORKER, agent.listener.getsockname()) as process:
        assert line_of(process) == "0 False"
        agent.accept()
        (record,) = agent.heard()
        assert "READY" not in record
        tell(process, "")
        assert line_of(process) == "done"
        assert agent.heard()[0]["STATUS"] == "still here"


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.set_jobs(-1),
        lambda client: client.set_progress(2**63),
        lambda client: client.set_leadership(True, -5),
        lambda client: client.set_lease("a b", True),
        lambda client: client.set_host_state("gone", 1),
        lambda _: HeartbeatClient("worker", None, interval_ms=99),
        lambda _: HeartbeatClient("worker", None, interval_ms=60_001),
    ],
)
def test_wrong_values_are_the_programs_error(call: Callable[[HeartbeatClient], object]) -> None:
    """What the agent would refuse is said to the caller instead."""
    with pytest.raises(ValueError, match=r"cannot|is not a valid"):
        call(HeartbeatClient("worker", None))


def test_the_clock_is_boottime() -> None:
    """Times on the wire count suspended time too."""
    assert boottime_ns() >= 0
