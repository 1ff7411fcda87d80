"""The agent's side on real sockets: who may speak, what is refused, and that nobody can hold it up."""

import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_manager.core.events import Beat, HeartbeatClosed
from node_manager.heartbeat import server as limits
from node_manager.heartbeat.codec import MAX_RECORD_BYTES
from node_manager.heartbeat.output import FULL_STATE_S
from node_manager.heartbeat.server import HeartbeatServer
from tests.unit.heartbeat.support import BOUND_S, MovableLoop, Node, Peer, child, line_of, tell

SPEAKER = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
print(os.getpid(), flush=True)
for line in sys.stdin:
    try:
        sock.send(line.strip().replace(";", "\\n").encode())
        print("sent", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""
HELLO = "XCE_HEARTBEAT=1;COMPONENT=worker;INTERVAL_MS=1000"


@pytest.fixture
def path(directory: Path) -> Path:
    return directory / "heartbeat.sock"


def made_for(loop: MovableLoop, path: Path, node: Node) -> HeartbeatServer:
    return HeartbeatServer(
        loop, path, post=node.events.append, identify=node.identify, hello=node.hello, levels=node.levels
    )


def open_descriptors() -> list[int]:
    return [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]


@pytest.fixture
def server(loop: MovableLoop, path: Path, node: Node) -> Iterator[HeartbeatServer]:
    node.owners[os.getpid()] = ("worker", 3)
    made = made_for(loop, path, node)
    made.start()
    made.accept()
    yield made
    made.close()


@pytest.fixture
def peer(server: HeartbeatServer, path: Path) -> Iterator[Peer]:
    assert server.counters.accepted == 0
    made = Peer(path)
    yield made
    made.close()


def greeted(loop: MovableLoop, node: Node, peer: Peer, interval_ms: int = 1000) -> None:
    """Say hello as the worker and take in the answer."""
    before = len(node.beats)
    peer.hello("worker", interval_ms)
    loop.until(lambda: len(node.beats) > before)
    assert peer.heard()


def test_a_hello_is_posted_and_answered_with_the_full_state(loop: MovableLoop, node: Node, peer: Peer) -> None:
    """The component learns at once who the node is and what holds, directives before all else."""
    node.said["worker"] = [("COMPONENT.worker", "running"), ("EPOCH", "4"), ("DRAIN", "1")]
    peer.hello("worker", 2000, ("READY", "1"))
    loop.until(lambda: bool(node.beats))
    assert node.events == [
        Beat(component="worker", generation=3, hello=True, interval_ns=2_000_000_000, ready=True),
    ]
    (answer,) = peer.heard()
    assert list(answer) == [
        *("XCE_HEARTBEAT", "NODE", "INSTANCE_ID", "BOOT_ID", "ROLES", "FULL"),
        *("DRAIN", "EPOCH", "BEAT", "COMPONENT.worker"),
    ]


def test_a_process_of_no_component_is_refused_at_once(
    loop: MovableLoop, server: HeartbeatServer, path: Path, node: Node
) -> None:
    """A user's job cannot speak for a component, nor occupy a place on the socket."""
    with child(SPEAKER, str(path)) as stranger:
        pid = int(line_of(stranger))
        loop.until(lambda: server.counters.wrong_peer == 1)
        tell(stranger, HELLO)
        assert line_of(stranger) != "sent"
    assert (server.counters.accepted, node.events) == (0, [])
    assert f"process {pid} of user {os.getuid()} is not the main process of a component" == server.last_error("")


def test_a_child_on_its_parents_connection_is_refused(
    loop: MovableLoop, server: HeartbeatServer, node: Node, peer: Peer
) -> None:
    """Credentials are checked for each record: a process that inherits the connection may not speak on it."""
    greeted(loop, node, peer)
    script = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).send(b'BEAT=2\\nREADY=1\\n')"
    os.set_inheritable(peer.sock.fileno(), True)
    pid = os.posix_spawn("/proc/self/exe", ["python", "-c", script, str(peer.sock.fileno())], os.environ)
    os.waitpid(pid, 0)
    loop.until(lambda: bool(node.closed))
    assert server.counters.wrong_peer == 1
    assert f"process {pid} is not the main process of worker" == server.last_error("worker")
    assert len(node.beats) == 1


def test_a_component_cannot_speak_for_another(
    loop: MovableLoop, server: HeartbeatServer, node: Node, peer: Peer
) -> None:
    """The name in the hello must be the one that the kernel's credentials lead to."""
    peer.hello("controller")
    loop.until(lambda: server.counters.wrong_peer == 1)
    loop.until(peer.is_closed)
    assert node.events == []


def test_an_older_generation_loses_its_voice(
    loop: MovableLoop, server: HeartbeatServer, node: Node, peer: Peer
) -> None:
    """A connection belongs to one generation: what comes under another one is not taken."""
    greeted(loop, node, peer)
    node.owners[os.getpid()] = ("worker", 4)
    peer.say(("BEAT", "2"))
    loop.until(lambda: bool(node.closed))
    assert node.closed == [HeartbeatClosed(component="worker", generation=3)]
    assert len(node.beats) == 1
    assert server.counters.records == 1


@pytest.mark.parametrize(
    ("record", "counter"),
    [
        (b"BEAT=2\xff\n", "malformed"),
        (b"BEAT=minus\n", "malformed"),
        (b"XCE_HEARTBEAT=2\nCOMPONENT=worker\nINTERVAL_MS=1000\n", "malformed"),
        (b"", "malformed"),
        (b"K=" + b"x" * MAX_RECORD_BYTES, "oversize"),
        (b"K=" + b"x" * 8 * MAX_RECORD_BYTES, "oversize"),
    ],
)
def test_a_bad_record_closes_that_connection_alone(
    loop: MovableLoop, server: HeartbeatServer, path: Path, node: Node, peer: Peer, record: bytes, counter: str
) -> None:
    """Garbage is counted, its reason kept, and others are heard as before."""
    greeted(loop, node, peer)
    node.owners[os.getpid()] = ("controller", 1)
    other = Peer(path)
    other.hello("controller")
    loop.until(lambda: len(node.beats) == 2)
    node.owners[os.getpid()] = ("worker", 3)
    peer.sock.send(record)
    loop.until(lambda: node.closed == [HeartbeatClosed(component="worker", generation=3)])
    assert getattr(server.counters, counter) == 1
    assert server.last_error("worker")
    node.owners[os.getpid()] = ("controller", 1)
    other.say(("BEAT", "2"))
    loop.until(lambda: node.beats[-1].beat == 2)
    other.close()


def test_a_record_before_the_hello_is_malformed(loop: MovableLoop, server: HeartbeatServer, peer: Peer) -> None:
    """Nobody is heard who has not promised an interval."""
    peer.say(("READY", "1"))
    loop.until(lambda: server.counters.malformed == 1)
    assert server.last_error("worker") == "the first record must be a hello"


def test_descriptors_never_enter_the_agent(loop: MovableLoop, server: HeartbeatServer, node: Node, peer: Peer) -> None:
    """A descriptor sent along is closed by the kernel, and the sender loses its connection."""
    greeted(loop, node, peer)
    reader, writer = os.pipe()
    before = len(open_descriptors())
    socket.send_fds(peer.sock, [b"BEAT=2\n"], [writer] * 5)
    loop.until(lambda: server.counters.malformed == 1)
    # The server's end of the connection is gone, and nothing came.
    assert before - 1 == len(open_descriptors())
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_new_hello_replaces_the_older_connection(
    loop: MovableLoop, server: HeartbeatServer, path: Path, node: Node, peer: Peer
) -> None:
    """The older connection is closed with what it had queued, and the end is posted before the new beginning."""
    greeted(loop, node, peer)
    newer = Peer(path)
    loop.until(lambda: server.counters.accepted == 2)
    newer.hello("worker")
    for number in range(50):
        peer.say(("BEAT", str(number)))
    loop.until(lambda: len(node.beats) >= 2 and node.beats[-1].hello)
    assert len(node.beats) <= 2 + limits.READS_PER_CALLBACK
    assert [HeartbeatClosed(component="worker", generation=3), node.beats[-1]] == node.events[-2:]
    assert server.counters.replaced == 1
    assert peer.is_closed()
    newer.say(("BEAT", "1"))
    loop.until(lambda: node.beats[-1].beat == 1)
    newer.close()


def test_the_end_of_a_generation_closes_its_connection(
    loop: MovableLoop, server: HeartbeatServer, node: Node, peer: Peer
) -> None:
    """`end` closes that generation's connection and no later one's."""
    greeted(loop, node, peer)
    server.end("worker", 2)
    server.end("controller", 3)
    assert not peer.is_closed()
    server.end("worker", 3)
    assert peer.is_closed()
    assert node.closed == [HeartbeatClosed(component="worker", generation=3)]


def test_eof_is_posted(loop: MovableLoop, node: Node, peer: Peer) -> None:
    """A component that closes its connection is known to have done so."""
    greeted(loop, node, peer)
    peer.close()
    loop.until(lambda: node.closed == [HeartbeatClosed(component="worker", generation=3)])


def test_last_words_are_heard_although_the_peer_read_nothing(loop: MovableLoop, node: Node, peer: Peer) -> None:
    """A peer that exits with records of ours unread resets the connection; what it had said before still counts."""
    node.said["worker"] = [("COMPONENT.worker", "running")]
    peer.hello("worker")
    loop.until(lambda: len(node.beats) == 1 and node.rendered > 0)
    for number in range(5):
        peer.say(("BEAT", str(number)))
    peer.say(("HOST_STATE", "decommissioned"), ("EPOCH", "5"))
    peer.close()  # with the answer to the hello unread
    loop.until(lambda: bool(node.closed))
    assert node.beats[-1].epoch == 5


def test_last_words_can_be_read_before_the_exit_is_posted(
    loop: MovableLoop, server: HeartbeatServer, path: Path, node: Node
) -> None:
    """`read_now` takes what a dead process had said, in its own generation, and nothing under another."""
    with child(SPEAKER, str(path)) as worker:
        pid = int(line_of(worker))
        node.owners[pid] = ("worker", 8)
        tell(worker, HELLO)
        assert line_of(worker) == "sent"
        loop.until(lambda: len(node.beats) == 1)
        tell(worker, "HOST_STATE=decommissioned;EPOCH=9")
        assert line_of(worker) == "sent"
    server.read_now("worker", 7)
    assert len(node.beats) == 1
    server.read_now("worker", 8)
    assert node.beats[-1].epoch == 9
    assert node.closed == [HeartbeatClosed(component="worker", generation=8)]


def test_what_a_reaped_process_left_is_no_intrusion(
    loop: MovableLoop, server: HeartbeatServer, path: Path, node: Node
) -> None:
    """A record of the process that said hello, read after its end, is dropped without an alarm about a stranger."""
    with child(SPEAKER, str(path)) as worker:
        pid = int(line_of(worker))
        node.owners[pid] = ("worker", 8)
        tell(worker, HELLO)
        loop.until(lambda: len(node.beats) == 1)
        tell(worker, "BEAT=1")
        assert [line_of(worker), line_of(worker)] == ["sent", "sent"]
    del node.owners[pid]
    loop.until(lambda: bool(node.closed))
    assert (len(node.beats), server.counters.wrong_peer) == (1, 0)


def test_a_flood_closes_the_connection_and_is_not_healed_by_reconnecting(
    loop: MovableLoop, server: HeartbeatServer, path: Path, node: Node, peer: Peer
) -> None:
    """A component that sends without end is cut off, and heard again after it has kept quiet."""
    greeted(loop, node, peer)
    while not node.closed:
        try:
            peer.say(("BEAT", "1"))
        except BlockingIOError:
            loop.turn(1)
        except BrokenPipeError:
            break
    loop.until(lambda: server.counters.flooded >= 1)
    assert len(node.beats) < 2 * limits.FLOOD_BURST + limits.FLOOD_RATE_PER_S * 10
    again = Peer(path)
    loop.until(again.is_closed)
    again.close()
    loop.advance(60)
    later = Peer(path)
    later.hello("worker")
    loop.until(lambda: node.beats[-1].hello)
    later.close()


def test_beats_that_waited_while_the_agent_stood_still_are_no_flood(
    loop: MovableLoop, server: HeartbeatServer, node: Node, peer: Peer
) -> None:
    """A stalled agent does not punish its components for the records that waited."""
    greeted(loop, node, peer)
    sent = 0
    try:
        while sent < 1000:
            peer.say(("BEAT", str(sent)))
            sent += 1
    except BlockingIOError:
        pass
    assert sent >= 100
    loop.until(lambda: len(node.beats) == 1 + sent)
    assert server.counters.flooded == 0


def test_a_silent_connection_is_closed(loop: MovableLoop, server: HeartbeatServer, node: Node, peer: Peer) -> None:
    """A connection that never says hello does not keep its place."""
    loop.until(lambda: server.counters.accepted == 1)
    loop.advance(limits.HELLO_TIMEOUT_S)
    loop.until(peer.is_closed)
    assert (server.counters.dropped_connections, node.events) == (1, [])


def test_a_greeted_connection_may_be_silent(loop: MovableLoop, server: HeartbeatServer, node: Node, peer: Peer) -> None:
    """After the hello it is the core that judges silence."""
    greeted(loop, node, peer)
    loop.advance(limits.HELLO_TIMEOUT_S * 2)
    loop.turn()
    assert not peer.is_closed()
    assert server.counters.dropped_connections == 0


def test_three_hundred_connections_are_bounded(
    loop: MovableLoop, server: HeartbeatServer, path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are at most so many connections; the rest is refused, and the first are still heard."""
    monkeypatch.setattr("node_manager.heartbeat.server.HELLO_TIMEOUT_S", BOUND_S)  # none is dropped for its silence
    peers = []
    for number in range(300):
        node.owners[os.getpid()] = (f"c{number}", 1)
        peers.append(Peer(path))
        loop.until(lambda n=number: server.counters.accepted + server.counters.dropped_connections == n + 1)  # type: ignore[misc]
    assert server.counters.accepted == limits.MAX_CONNECTIONS
    assert server.counters.dropped_connections == 300 - limits.MAX_CONNECTIONS
    node.owners[os.getpid()] = ("c0", 1)
    peers[0].hello("c0")
    loop.until(lambda: len(node.beats) == 1)
    assert peers[-1].is_closed()
    for one in peers:
        one.close()


def test_one_component_cannot_take_the_places_of_others(
    loop: MovableLoop, server: HeartbeatServer, path: Path, node: Node
) -> None:
    """A component that opens connection after connection is refused after a few."""
    peers = [Peer(path) for _ in range(20)]
    loop.until(lambda: server.counters.dropped_connections == 20 - limits.MAX_UNGREETED)
    assert server.counters.accepted == limits.MAX_UNGREETED
    assert node.events == []
    for one in peers:
        one.close()


def test_running_out_of_descriptors_pauses_accepting(
    loop: MovableLoop, server: HeartbeatServer, path: Path, node: Node
) -> None:
    """Without descriptors the loop does not spin, and the waiting connection is taken when there are some again."""
    one = Peer(path)
    one.hello("worker")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(open_descriptors())
    fillers = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
    try:
        while True:
            try:
                fillers.append(os.dup(0))
            except OSError:
                break
        loop.turn()
        assert "Too many open files" in (server.last_error("") or "")
        assert server.counters.accepted == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
    loop.turn()
    assert server.counters.accepted == 0
    loop.advance(limits.ACCEPT_PAUSE_S)
    loop.until(lambda: len(node.beats) == 1)
    one.close()


def test_closing_leaves_nothing_on_the_loop(loop: MovableLoop, server: HeartbeatServer, node: Node, peer: Peer) -> None:
    """After `close` no timer and no descriptor of the server does anything more, and no end is posted."""
    greeted(loop, node, peer)
    server.close()
    loop.advance(120)
    loop.turn()
    assert peer.is_closed()
    assert node.closed == []
    assert loop.pending_timers() == 0
    server.send("worker")
    server.close()


def test_the_agent_speaks_each_interval_of_the_component(loop: MovableLoop, node: Node, peer: Peer) -> None:
    """Beats count up by the component's own interval, and carry only what has changed."""
    node.said["worker"] = [("COMPONENT.worker", "running"), ("LOAD", "1")]
    greeted(loop, node, peer, 60_000)
    node.said["worker"][1] = ("LOAD", "2")
    assert peer.heard() == []
    loop.advance(29)
    loop.turn()
    assert peer.heard() == []
    peer.say(("INTERVAL_MS", "20000"))
    loop.until(lambda: len(node.beats) == 2)
    loop.advance(20)
    loop.turn()
    (record,) = peer.heard()
    assert (record["BEAT"], record["LOAD"]) == ("2", "2")
    loop.advance(20)
    loop.turn()
    assert peer.heard()[0]["BEAT"] == "3"


def test_changes_are_sent_at_once_and_alone(loop: MovableLoop, server: HeartbeatServer, node: Node, peer: Peer) -> None:
    """`send` tells a component what is new to it, and says nothing where nothing is."""
    node.said["worker"] = [("COMPONENT.worker", "running"), ("DRAIN", "0")]
    greeted(loop, node, peer)
    server.send("worker")
    assert peer.heard() == []
    node.said["worker"] = [("COMPONENT.worker", "running"), ("FACT.x", "true"), ("DRAIN", "1")]
    server.send("worker")
    (record,) = peer.heard()
    assert list(record.items()) == [("DRAIN", "1"), ("FACT.x", "true")]
    server.send("controller")


def test_a_level_that_is_gone_is_told_by_a_full_state(
    loop: MovableLoop, server: HeartbeatServer, node: Node, peer: Peer
) -> None:
    """A peer never keeps what no longer holds."""
    node.said["worker"] = [("COMPONENT.worker", "running"), ("COMPONENT.worker.EXPECTED_BACK_MS", "5")]
    greeted(loop, node, peer)
    node.said["worker"].pop()
    server.send("worker")
    (record,) = peer.heard()
    assert record == {"FULL": "1", "BEAT": "2", "COMPONENT.worker": "running"}


def test_a_full_state_comes_every_half_minute(loop: MovableLoop, node: Node, peer: Peer) -> None:
    """Whatever went wrong with a peer's picture is put right in time."""
    node.said["worker"] = [("COMPONENT.worker", "running")]
    greeted(loop, node, peer)
    loop.advance(FULL_STATE_S)
    loop.turn()
    assert peer.heard()[0] == {"FULL": "1", "BEAT": "2", "COMPONENT.worker": "running"}


def test_a_peer_that_does_not_read_costs_nothing_and_then_gets_the_present(
    loop: MovableLoop, server: HeartbeatServer, path: Path, node: Node, peer: Peer
) -> None:
    """Nothing is queued for a slow reader: when it reads, what it ends with is the state of now, parts in order."""

    def state(number: int) -> list[tuple[str, str]]:
        return [("DRAIN", str(number % 2)), *((f"COMPONENT.c{n}", f"{number}-{'x' * 900}") for n in range(40))]

    node.said["worker"] = state(0)
    peer.hello("worker")
    loop.until(lambda: len(node.beats) == 1)
    for number in range(1, 200):
        node.said["worker"] = state(number)
        server.send("worker")
        loop.turn(1)
    assert node.rendered < 100, "rendered for a socket that takes nothing"
    node.owners[os.getpid()] = ("controller", 1)
    other = Peer(path)
    other.hello("controller")
    loop.until(lambda: len(node.beats) == 2)
    levels: dict[str, str] = {}

    def caught_up() -> bool:
        for record in peer.heard():
            levels.update(record)
        return all(levels.get(key) == value for key, value in state(199))

    loop.until(caught_up)
    server.send("worker")
    assert peer.heard() == []
    other.close()


def test_a_peer_that_stops_listening_is_still_heard(
    loop: MovableLoop, server: HeartbeatServer, node: Node, peer: Peer
) -> None:
    """A failure to send does not throw away what the peer has said."""
    greeted(loop, node, peer)
    peer.say(("BEAT", "9"))
    peer.close()
    node.said["worker"] = [("DRAIN", "1")]
    server.send("worker")
    loop.until(lambda: bool(node.closed))
    assert node.beats[-1].beat == 9


def test_a_stale_socket_is_replaced(loop: MovableLoop, path: Path, node: Node) -> None:
    """What a killed agent left does not hinder its successor, and any user's component may connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind(str(path))
    made = made_for(loop, path, node)
    made.start()
    assert path.stat().st_mode & 0o777 == 0o666
    made.close()
    assert not path.exists()


def test_something_else_at_the_path_is_left_alone(loop: MovableLoop, path: Path, node: Node) -> None:
    """A file is not removed to make room for a socket."""
    path.write_text("precious")
    made = made_for(loop, path, node)
    with pytest.raises(OSError, match=r"cannot bind .* not a socket"):
        made.start()
    made.close()
    assert path.read_text() == "precious"


def test_a_path_that_cannot_be_bound_is_said(loop: MovableLoop, path: Path, node: Node) -> None:
    """A path too long for a socket is an error with a sentence."""
    long = path.parent / ("x" * 120)
    made = made_for(loop, long, node)
    with pytest.raises(OSError, match="cannot bind"):
        made.start()


def test_a_listening_descriptor_can_be_taken_over(loop: MovableLoop, path: Path, node: Node) -> None:
    """A socket kept over a restart serves those who connected meanwhile, and its path stays."""
    kept = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept.bind(str(path))
    kept.listen()
    early = Peer(path)
    early.hello("worker")
    node.owners[os.getpid()] = ("worker", 3)
    made = made_for(loop, path, node)
    made.start(kept.detach())
    made.accept()
    loop.until(lambda: len(node.beats) == 1)
    made.close()
    assert path.exists()
    early.close()


def test_whoever_connects_before_the_components_are_known_waits(loop: MovableLoop, path: Path, node: Node) -> None:
    """A process that is adopted only after it has connected is heard, and nobody took it for a stranger."""
    made = made_for(loop, path, node)
    made.start()
    early = Peer(path)
    early.hello("worker")
    made.read_now("other", 1)
    path.unlink()
    assert made.restore()
    late = Peer(path)
    late.hello("worker")
    loop.advance(0.0)
    made.read_now("other", 1)
    node.owners[os.getpid()] = ("worker", 3)
    made.accept()
    made.accept()
    loop.until(lambda: len(node.beats) == 1)
    assert (made.counters.wrong_peer, made.counters.accepted) == (0, 1)
    made.close()
    early.close()
    late.close()


def test_a_wrong_descriptor_is_refused(loop: MovableLoop, path: Path, node: Node) -> None:
    """A descriptor that is no such socket is an error with a sentence."""
    made = made_for(loop, path, node)
    with pytest.raises(OSError, match="cannot listen on descriptor"):
        made.start(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach())


def test_what_a_process_said_before_it_ended_is_heard_though_nobody_had_accepted_it(
    server: HeartbeatServer, path: Path, node: Node
) -> None:
    """It connects, states a lease and ends before the loop has looked at the listener: the statement counts."""
    peer = Peer(path)
    peer.hello("worker", 1000, ("HOST_STATE", "decommissioned"), ("EPOCH", "4"))
    peer.close()
    server.read_now("worker", 3)
    assert [beat.epoch for beat in node.beats if beat.epoch is not None] == [4]
    server.end("worker", 3)
