"""sd_notify sockets with real datagrams, and the agent's own word to systemd."""

import array
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_manager.core.events import Notified
from node_manager.core.spec import NotifyAccess
from node_manager.runtime import notify as limits
from node_manager.runtime.notify import MalformedDatagram, NotifySockets, SystemdNotifier, notified_from, parse
from tests.unit.heartbeat.support import MovableLoop, Node, child, line_of, short_directory

SENDER = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
print(os.getpid(), flush=True)
sys.stdin.readline()
sock.sendto(sys.argv[2].encode(), sys.argv[1])
print("sent", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def loop() -> Iterator[MovableLoop]:
    movable = MovableLoop()
    yield movable
    movable.close()


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def node() -> Node:
    made = Node()
    made.owners[os.getpid()] = ("nginx", 2)
    return made


@pytest.fixture
def notify(loop: MovableLoop, directory: Path, node: Node) -> Iterator[NotifySockets]:
    made = NotifySockets(
        loop, directory / "notify", post=node.events.append, identify=node.identify, member=node.member
    )
    yield made
    made.close_all()


@pytest.fixture
def path(notify: NotifySockets) -> Path:
    return notify.open("nginx", 2, NotifyAccess.MAIN)


@pytest.fixture
def sender() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        yield sock


def send_descriptors(sender: socket.socket, path: Path, datagram: bytes, descriptors: list[int]) -> None:
    rights = array.array("i", descriptors)
    sender.sendmsg([datagram], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], 0, str(path))


def notified(**values: bool | int | str) -> Notified:
    return Notified(component="nginx", generation=2, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("datagram", "event"),
    [
        (b"READY=1", notified(ready=True)),
        (b"READY=1\nSTATUS=up\n", notified(ready=True, status="up")),
        (b"STOPPING=1", notified(stopping=True)),
        (b"WATCHDOG=1", notified(watchdog=True)),
        (b"WATCHDOG=trigger", notified(watchdog_trigger=True)),
        (b"WATCHDOG_USEC=2000000", notified(watchdog_ns=2_000_000_000)),
        (b"EXTEND_TIMEOUT_USEC=5", notified(extend_ns=5000)),
        (b"STATUS=a\tb\x1b[31m=c", notified(status="a b [31m=c")),
        (b"STATUS=" + b"x" * 4000, notified(status="x" * limits.MAX_STATUS_CHARS)),
        (b"READY=1\nWHAT\nX_FUTURE=1\n=1\n\n", notified(ready=True)),
    ],
)
def test_what_sd_notify_says_becomes_an_event(
    loop: MovableLoop, path: Path, node: Node, sender: socket.socket, datagram: bytes, event: Notified
) -> None:
    """A daemon that knows only systemd is understood; what nobody knows is skipped."""
    sender.sendto(datagram, str(path))
    loop.until(lambda: bool(node.events))
    assert [event] == node.events


@pytest.mark.parametrize(
    "datagram", [b"RELOADING=1\nMONOTONIC_USEC=1", b"READY=0", b"", b"\n", b"ERRNO=2", b"FDPOLL=0"]
)
def test_what_does_not_concern_the_agent_is_no_event(
    loop: MovableLoop, notify: NotifySockets, path: Path, node: Node, sender: socket.socket, datagram: bytes
) -> None:
    """Assignments that the agent does not listen to are neither events nor errors."""
    sender.sendto(datagram, str(path))
    sender.sendto(b"READY=1", str(path))
    loop.until(lambda: bool(node.events))
    assert [notified(ready=True)] == node.events
    assert notify.last_error("nginx") is None


@pytest.mark.parametrize(
    "datagram",
    [
        b"STATUS=\xff",
        b"READY=1\0",
        b"WATCHDOG_USEC=-1",
        b"WATCHDOG_USEC=1s",
        b"EXTEND_TIMEOUT_USEC=99999999999999999999",
        b"EXTEND_TIMEOUT_USEC=9223372036854775807",
        "WATCHDOG_USEC=٣".encode(),
        b"STATUS=" + b"x" * limits.MAX_DATAGRAM_BYTES,
    ],
)
def test_garbage_costs_that_datagram_alone(
    loop: MovableLoop, notify: NotifySockets, path: Path, node: Node, sender: socket.socket, datagram: bytes
) -> None:
    """A datagram that sd_notify(3) does not describe is counted with its reason; the next one is taken."""
    sender.sendto(datagram, str(path))
    sender.sendto(b"READY=1", str(path))
    loop.until(lambda: bool(node.events))
    assert [notified(ready=True)] == node.events
    assert (notify.counters.malformed, notify.counters.accepted) == (1, 1)
    assert notify.last_error("nginx")


@given(st.binary(max_size=300) | st.lists(st.sampled_from([b"READY=1", b"WATCHDOG_USEC=", b"\n", b"\0"])).map(b"".join))
def test_any_bytes_are_read_or_malformed(datagram: bytes) -> None:
    """No datagram makes the parser raise anything but MalformedDatagram."""
    with contextlib.suppress(MalformedDatagram):
        notified_from(parse(datagram), "nginx", 2)


def test_mainpid_is_refused_and_the_rest_is_taken(
    loop: MovableLoop, notify: NotifySockets, path: Path, node: Node, sender: socket.socket
) -> None:
    """READY=1 with MAINPID, as forking daemons send it, is ready; nobody names the agent's children for it."""
    sender.sendto(b"READY=1\nMAINPID=1", str(path))
    sender.sendto(f"MAINPID={os.getpid()}\nSTATUS=me".encode(), str(path))
    loop.until(lambda: len(node.events) == 2)
    assert [notified(ready=True), notified(status="me")] == node.events
    assert notify.counters.mainpid_refused == 1


@pytest.mark.parametrize(
    ("access", "member_of", "heard"),
    [
        (NotifyAccess.MAIN, None, False),
        (NotifyAccess.MAIN, "nginx", False),
        (NotifyAccess.TREE, None, False),
        (NotifyAccess.TREE, "worker", False),
        (NotifyAccess.TREE, "nginx", True),
    ],
)
def test_who_may_speak_is_told_by_the_kernel(
    loop: MovableLoop, notify: NotifySockets, node: Node, access: NotifyAccess, member_of: str | None, heard: bool
) -> None:
    """Another process is heard only where the whole tree may speak, and it is in that tree."""
    path = notify.open("nginx", 2, access)
    with child(SENDER, str(path), "READY=1") as other:
        pid = int(line_of(other))
        if member_of:
            node.members[pid] = member_of
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.flush()
        assert line_of(other) == "sent"
        loop.until(lambda: notify.counters.wrong_sender + notify.counters.accepted == 1)
    assert ([notified(ready=True)] if heard else []) == node.events
    assert (None if heard else f"process {pid} may not speak for nginx") == notify.last_error("nginx")


@pytest.mark.skipif(shutil.which("systemd-notify") is None, reason="needs systemd-notify(1)")
def test_systemds_own_tool_is_understood(loop: MovableLoop, notify: NotifySockets, node: Node) -> None:
    """A script that calls systemd-notify is heard, and does not wait for its barrier in vain."""
    path = notify.open("nginx", 2, NotifyAccess.TREE)
    command = ["systemd-notify", "--ready", "--status=up"]
    with subprocess.Popen(command, env={"PATH": os.environ["PATH"], "NOTIFY_SOCKET": str(path)}) as process:
        node.members[process.pid] = "nginx"
        loop.until(lambda: process.poll() is not None)
    assert (process.returncode, node.events) == (0, [notified(ready=True, status="up")])


def test_a_component_cannot_speak_on_anothers_socket(
    loop: MovableLoop, notify: NotifySockets, node: Node, sender: socket.socket
) -> None:
    """Each component has its own socket, and is known there only."""
    sender.sendto(b"READY=1", str(notify.open("worker", 1, NotifyAccess.MAIN)))
    loop.until(lambda: notify.counters.wrong_sender == 1)
    assert node.events == []


def test_a_barrier_is_answered_after_what_came_before(
    loop: MovableLoop, notify: NotifySockets, path: Path, node: Node, sender: socket.socket
) -> None:
    """sd_notify_barrier(3) returns once the agent has taken the earlier datagrams, and is not counted as a leak."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    sender.sendto(b"READY=1", str(path))
    send_descriptors(sender, path, b"BARRIER=1", [writer])
    os.close(writer)
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    loop.until(lambda: bool(node.events))
    loop.turn()
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert notify.counters.descriptors_closed == 0


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_unasked_descriptors_are_closed(
    loop: MovableLoop, notify: NotifySockets, path: Path, node: Node, sender: socket.socket, count: int
) -> None:
    """FDSTORE=1 leaves no descriptor in the agent, however many come along."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    reader, writer = os.pipe()
    send_descriptors(sender, path, b"FDSTORE=1\nREADY=1", [writer] * count)
    os.close(writer)
    loop.until(lambda: bool(node.events))
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert before == len(list(Path("/proc/self/fd").iterdir()))
    assert notify.counters.descriptors_closed == 1


def test_a_strangers_descriptors_are_closed(
    loop: MovableLoop, notify: NotifySockets, path: Path, node: Node, sender: socket.socket
) -> None:
    """Also a refused datagram leaves nothing behind."""
    node.owners.clear()
    reader, writer = os.pipe()
    send_descriptors(sender, path, b"FDSTORE=1", [writer])
    os.close(writer)
    loop.until(lambda: notify.counters.wrong_sender == 1)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_flood_is_forgotten_and_then_heard_again(
    loop: MovableLoop, notify: NotifySockets, path: Path, node: Node, sender: socket.socket
) -> None:
    """A component that notifies without end costs no more than its share, and others nothing."""
    for _ in range(limits.FLOOD_BURST + 200):
        sender.sendto(b"WATCHDOG=1", str(path))
        loop.turn(1)
    loop.until(lambda: notify.counters.flooded > 0)
    other = notify.open("worker", 1, NotifyAccess.MAIN)
    node.owners[os.getpid()] = ("worker", 1)
    sender.sendto(b"READY=1", str(other))
    loop.until(lambda: node.events[-1] == Notified(component="worker", generation=1, ready=True))
    node.owners[os.getpid()] = ("nginx", 2)
    loop.advance(60)
    sender.sendto(b"STOPPING=1", str(path))
    loop.until(lambda: node.events[-1] == notified(stopping=True))


def test_a_new_generation_does_not_get_the_old_ones_words(
    loop: MovableLoop, notify: NotifySockets, path: Path, node: Node, sender: socket.socket
) -> None:
    """What the predecessor left in the socket is thrown away; the path stays the same."""
    sender.sendto(b"READY=1", str(path))
    assert path == notify.open("nginx", 3, NotifyAccess.MAIN)
    node.owners[os.getpid()] = ("nginx", 3)
    sender.sendto(b"STATUS=new", str(path))
    loop.until(lambda: bool(node.events))
    assert [Notified(component="nginx", generation=3, status="new")] == node.events


def test_last_words_can_be_read_before_the_exit_is_posted(
    notify: NotifySockets, path: Path, node: Node, sender: socket.socket
) -> None:
    """`read_now` takes what waits for this generation, and nothing for another."""
    sender.sendto(b"STOPPING=1", str(path))
    notify.read_now("nginx", 1)
    notify.read_now("worker", 2)
    assert node.events == []
    notify.read_now("nginx", 2)
    assert [notified(stopping=True)] == node.events


def test_sockets_are_there_for_every_user_and_go_away(
    loop: MovableLoop, notify: NotifySockets, directory: Path, node: Node
) -> None:
    """Components of any user reach their socket; a stale one is replaced, a closed one removed."""
    mask = os.umask(0o077)
    try:
        path = notify.open("worker", 1, NotifyAccess.MAIN)
    finally:
        os.umask(mask)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o666, 0o755)
    successor = NotifySockets(
        loop, directory / "notify", post=node.events.append, identify=node.identify, member=node.member
    )
    assert path == successor.open("worker", 1, NotifyAccess.MAIN)
    successor.close("worker")
    successor.close("worker")
    assert not path.exists()


@pytest.mark.parametrize("name", ["../evil", "", "a/b", ".x", "x" * 65])
def test_a_name_that_leaves_the_directory_is_refused(notify: NotifySockets, name: str) -> None:
    """A component's name is never a path."""
    with pytest.raises(ValueError, match="not a component's name"):
        notify.open(name, 1, NotifyAccess.MAIN)


def test_a_directory_that_cannot_be_made_is_said(loop: MovableLoop, directory: Path, node: Node) -> None:
    """The sentence names the path and the reason."""
    made = NotifySockets(
        loop, directory / "no" / "such", post=node.events.append, identify=node.identify, member=node.member
    )
    with pytest.raises(OSError, match=r"cannot make .*/no/such: No such file"):
        made.open("nginx", 1, NotifyAccess.MAIN)


def put(place: Path, what: str) -> None:
    """Something that is not ours, in a place of ours."""
    if what == "file":
        place.write_text("x")
    elif what == "fifo":
        os.mkfifo(place)
    elif what == "directory":
        place.mkdir()
    else:
        place.symlink_to("/tmp")


@pytest.mark.parametrize("what", ["file", "fifo", "link"])
def test_what_stands_in_the_directorys_place_is_said(notify: NotifySockets, directory: Path, what: str) -> None:
    """No socket is made in somebody else's directory, and the sentence says what to do."""
    put(directory / "notify", what)
    with pytest.raises(OSError, match=r"^cannot use .*/notify: it is not a directory; remove it$"):
        notify.open("nginx", 1, NotifyAccess.MAIN)


@pytest.mark.parametrize("what", ["file", "fifo", "directory", "link"])
def test_what_stands_in_a_sockets_place_is_said_until_it_is_gone(
    notify: NotifySockets, directory: Path, what: str
) -> None:
    """A look that fails is not forgotten at the next, and keeps no other socket from being made anew."""
    first, other = notify.open("a", 1, NotifyAccess.MAIN), notify.open("b", 1, NotifyAccess.MAIN)
    first.unlink()
    other.unlink()
    put(first, what)
    os.utime(directory / "notify", ns=(1, 1))
    for _ in range(3):
        with pytest.raises(OSError, match=r"cannot bind .*/a\.sock: something that is not a socket stands there; move"):
            notify.restore()
        assert other.is_socket()
        os.utime(directory / "notify", ns=(1, 1))
    first.rename(directory / "away")
    assert notify.restore()
    assert first.is_socket()


# --- the agent to systemd ---------------------------------------------------------------------------------------


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, directory: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.bind(f"\0{directory}" if request.param == "abstract" else str(directory / "notify"))
        yield sock


def address_of(sock: socket.socket) -> str:
    name = sock.getsockname()
    return "@" + name[1:].decode() if isinstance(name, bytes) else str(name)


def test_the_agent_tells_systemd(systemd: socket.socket) -> None:
    """Each message has the form of sd_notify(3), on a path and on an abstract socket."""
    notifier = SystemdNotifier({"NOTIFY_SOCKET": address_of(systemd)})
    assert notifier.active
    said = []
    for send in (
        notifier.ready,
        notifier.watchdog,
        notifier.stopping,
        lambda: notifier.ready("3 of\n4 ready"),
        lambda: notifier.status("é" * 1000),
        lambda: notifier.extend_timeout(2_000_000_000),
    ):
        assert send()
        said.append(systemd.recv(65536).decode())
    assert said == [
        *("READY=1", "WATCHDOG=1", "STOPPING=1", "READY=1\nSTATUS=3 of 4 ready"),
        *("STATUS=" + "é" * 512, "EXTEND_TIMEOUT_USEC=2000000"),
    ]
    before = time.monotonic_ns() // 1000
    assert notifier.reloading()
    reloading, _, usec = systemd.recv(65536).decode().partition("\nMONOTONIC_USEC=")
    assert reloading == "RELOADING=1"
    assert before <= int(usec) <= time.monotonic_ns() // 1000


def test_a_descriptor_can_be_stored(systemd: socket.socket) -> None:
    """FDSTORE=1 carries the descriptor itself and its name."""
    reader, writer = os.pipe()
    assert SystemdNotifier({"NOTIFY_SOCKET": address_of(systemd)}).store("heartbeat", writer)
    os.close(writer)
    data, descriptors, _, _ = socket.recv_fds(systemd, 4096, 4)
    assert data == b"FDSTORE=1\nFDNAME=heartbeat"
    (stored,) = descriptors
    os.write(stored, b"x")
    assert os.read(reader, 1) == b"x"
    os.close(stored)
    os.close(reader)


def test_components_never_see_the_agents_socket(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """The variables are taken out of the environment that children could inherit."""
    for name, value in (("NOTIFY_SOCKET", str(directory / "n")), ("WATCHDOG_USEC", "1"), ("WATCHDOG_PID", "1")):
        monkeypatch.setenv(name, value)
    SystemdNotifier()
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & os.environ.keys()


@pytest.mark.parametrize("address", ["", "PATH/nobody", "vsock:2:1", "relative", "/" + "x" * 200])
def test_without_systemd_nothing_is_raised(directory: Path, address: str) -> None:
    """The agent runs the same where nobody listens."""
    notifier = SystemdNotifier({"NOTIFY_SOCKET": address.replace("PATH", str(directory))})
    assert not notifier.ready()
    assert not notifier.store("x", 0)


def test_a_full_socket_does_not_block_the_agent(systemd: socket.socket) -> None:
    """When systemd does not read, the answer is False, and True again once it has read."""
    notifier = SystemdNotifier({"NOTIFY_SOCKET": address_of(systemd)})
    count = 0
    while notifier.watchdog():
        count += 1
        assert count < 100_000
    systemd.recv(4096)
    assert notifier.ready()


@pytest.mark.parametrize(
    ("environment", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "SELF"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_interval_is_systemds(environment: dict[str, str], interval_s: float | None) -> None:
    """WATCHDOG_USEC counts where it is meant for this process (sd_watchdog_enabled(3))."""
    own = {name: value.replace("SELF", str(os.getpid())) for name, value in environment.items()}
    assert interval_s == SystemdNotifier(own).watchdog_interval_s


def mode_and_owner(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mode & 0o777, found.st_uid


def test_only_the_components_user_can_send_where_its_main_process_alone_may_speak(notify: NotifySockets) -> None:
    """Others could fill the kernel's short queue, and the component's own READY or WATCHDOG would be lost."""
    own = os.geteuid()
    assert (0o600, own) == mode_and_owner(notify.open("nginx", 2, NotifyAccess.MAIN, uid=own))
    assert (0o666, own) == mode_and_owner(notify.open("nginx", 3, NotifyAccess.TREE, uid=own))
    assert (0o666, own) == mode_and_owner(notify.open("other", 1, NotifyAccess.MAIN))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket to another user")
def test_the_socket_belongs_to_the_user_of_the_component(
    loop: MovableLoop, notify: NotifySockets, node: Node, directory: Path
) -> None:
    """A stranger's datagrams never reach it; the component's own user's do, also when the role names another user."""
    directory.chmod(0o755)
    path = notify.open("nginx", 2, NotifyAccess.MAIN, uid=54321)
    assert mode_and_owner(path) == (0o600, 54321)
    code = (
        "import os, socket, sys; os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))\n"
        "sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); sock.sendto(b'READY=1', sys.argv[1])"
    )
    for uid, expected in ((65534, 1), (54321, 0)):
        done = subprocess.run([sys.executable, "-c", code, str(path), str(uid)], stderr=subprocess.PIPE, check=False)
        assert expected == done.returncode
    loop.until(lambda: notify.counters.wrong_sender == 1)  # its process is gone; that it came through is the point
    assert node.events == []
    assert mode_and_owner(notify.open("nginx", 3, NotifyAccess.MAIN, uid=54322)) == (0o600, 54322)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_socket_that_cannot_be_given_away_is_an_error(directory: Path) -> None:
    """An agent that is not root says whose socket it could not make."""
    code = (
        "import os, pathlib, socket, sys; from node_manager.heartbeat import sockets\n"
        "os.setgid(54321); os.setuid(54321)\n"
        "sockets.bind(pathlib.Path(sys.argv[1]), socket.SOCK_DGRAM, owner=65534)"
    )
    directory.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory / "s")], capture_output=True, text=True, check=False
    )
    assert f"cannot give {directory / 's'} to uid 65534: Operation not permitted; only root can" in done.stderr


@pytest.mark.parametrize("age_ns", [0, 3_600_000_000_000])
def test_a_removed_socket_is_made_anew_whenever_it_was_removed(notify: NotifySockets, path: Path, age_ns: int) -> None:
    """Also right after a look, when the directory's time of change may not tell the two apart."""
    at_ns = time.time_ns() - age_ns
    os.utime(path.parent, ns=(at_ns, at_ns))
    assert not notify.restore()
    assert not notify.restore()
    path.unlink()
    if age_ns == 0:
        os.utime(path.parent, ns=(at_ns, at_ns))
    assert notify.restore()
    assert path.is_socket()
    assert not notify.restore()


def test_sockets_in_a_directory_that_has_not_changed_are_not_looked_at(notify: NotifySockets, path: Path) -> None:
    """An idle agent looks at one directory, however many components there are."""
    os.utime(path.parent, ns=(1, 1))
    assert not notify.restore()
    path.unlink()
    os.utime(path.parent, ns=(1, 1))  # nobody but this test does that
    assert not notify.restore()


def test_a_directory_that_is_gone_is_made_anew(notify: NotifySockets, path: Path) -> None:
    """With every socket in it."""
    os.utime(path.parent, ns=(1, 1))
    assert not notify.restore()
    shutil.rmtree(path.parent)
    assert notify.restore()
    assert path.is_socket()
