import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from node_manager.core.actions import RunProbe
from node_manager.core.events import Outcome, ProbeDone
from node_manager.core.spec import Check, ExecCheck, HeartbeatCheck, HttpCheck, ProbeKind, ProbeSpec, TcpCheck
from node_manager.runtime.marks import marked
from node_manager.runtime.probers import MAX_EXEC_PROBES, Probers
from node_manager.runtime.procfs import ProcFs
from tests.unit.runtime.rig import BOUND_S, Rig, alive, python, shell
from tests.unit.runtime.test_process import DOUBLE_FORK

NS = 1_000_000_000
OK_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class CalmClock:
    """The loop's time on a machine that is never too busy: however long it is not asked, it goes on in small steps."""

    STEP_S = 0.05

    def __init__(self) -> None:
        self.shown_s = self._asked_s = time.monotonic()

    def __call__(self) -> float:
        now_s = time.monotonic()
        self.shown_s += min(now_s - self._asked_s, self.STEP_S)
        self._asked_s = now_s
        return self.shown_s


class Bench:
    """Probers with a rig."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.clock = CalmClock()
        rig.loop.time = self.clock  # type: ignore[method-assign]
        self.probers = Probers(rig.loop, post=rig.events.append, helpers=rig.processes.helpers)

    def close(self) -> None:
        """End, and wait for lookups under way: their sockets are open until then."""
        self.probers.close()
        self.rig.run_until(lambda: not any(thread.name == "xce-resolver" for thread in threading.enumerate()))

    def run(
        self,
        check: Check,
        *,
        timeout_ns: int = 30 * NS,
        period_ns: int = 60 * NS,
        name: str = "comp",
        generation: int = 1,
        probe: ProbeKind = ProbeKind.READINESS,
    ) -> None:
        spec = ProbeSpec(check=check, timeout_ns=timeout_ns, period_ns=period_ns)
        component = self.rig.spec(("/bin/true",), name)
        self.probers.run(RunProbe(component=name, generation=generation, probe=probe, spec=component, check=spec))

    def answer(self, check: Check, timeout_ns: int = 30 * NS) -> tuple[Outcome, str]:
        before = len(self.rig.of(ProbeDone))
        self.run(check, timeout_ns=timeout_ns)
        done = self.rig.wait_for(ProbeDone, before + 1)
        return done.outcome, done.detail


@pytest.fixture
def bench(rig: Rig) -> Iterator[Bench]:
    made = Bench(rig)
    yield made
    made.close()


@contextmanager
def serving(family: socket.AddressFamily, address: object, answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that gives its one peer at a time to `answer`; yields its port."""
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(address)  # type: ignore[arg-type]
        server.listen()

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.settimeout(BOUND_S)
                    answer(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1] if family != socket.AF_UNIX else 0
        server.shutdown(socket.SHUT_RDWR)
        thread.join(BOUND_S)


def replying(data: bytes) -> Callable[[socket.socket], None]:
    def answer(peer: socket.socket) -> None:
        if peer.recv(65536) and data:
            try:
                peer.sendall(data)
            except OSError:
                return

    return answer


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port that takes no connection and says nothing: its backlog is full."""
    with socket.socket() as server, socket.socket() as one, socket.socket() as two:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for client in (one, two):
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server.getsockname()[1]


def test_tcp_is_ok_when_somebody_listens(bench: Bench) -> None:
    """A connection is success, by number and by localhost, IPv6 too; a refusal is a failure that names the port."""
    with serving(socket.AF_INET, ("127.0.0.1", 0), lambda _peer: None) as port:
        assert bench.answer(TcpCheck(port=port)) == (Outcome.OK, "")
        assert bench.answer(TcpCheck(port=port, host="localhost")) == (Outcome.OK, "")
    refused = f"a connection to 127.0.0.1 port {port} failed: Connection refused (ECONNREFUSED)"
    assert (Outcome.FAILED, refused) == bench.answer(TcpCheck(port=port))
    with serving(socket.AF_INET6, ("::1", 0), lambda _peer: None) as port:
        assert bench.answer(TcpCheck(port=port, host="::1")) == (Outcome.OK, "")
        assert bench.answer(TcpCheck(port=port, host="localhost")) == (Outcome.OK, "")


def test_many_connects_into_nothing_do_not_block(bench: Bench, deaf: int) -> None:
    """A hundred probes to a peer that drops packets time out together, and others answer meanwhile (scenario 22)."""
    for number in range(100):
        bench.run(TcpCheck(port=deaf), timeout_ns=2 * NS, name=f"deaf{number}")
    with serving(socket.AF_INET, ("127.0.0.1", 0), lambda _peer: None) as port:
        assert bench.answer(TcpCheck(port=port)) == (Outcome.OK, "")
    assert len(bench.rig.of(ProbeDone)) == 1
    bench.rig.wait_for(ProbeDone, 101)
    failed = {(done.outcome, done.detail) for done in bench.rig.of(ProbeDone)[1:]}
    assert {(Outcome.FAILED, f"a connection to 127.0.0.1 port {deaf} did not come within 2 s")} == failed


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (OK_ANSWER, (Outcome.OK, "the answer to GET /live has status 200")),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK_ANSWER, (Outcome.OK, "the answer to GET /live has status 200")),
        (b"HTTP/1.0 399 X\r\n\r\n", (Outcome.OK, "the answer to GET /live has status 399")),
        (b"HTTP/1.1 400 X\r\n\r\n", (Outcome.FAILED, "the answer to GET /live has status 400")),
        (b"HTTP/1.1 503 X\r\n\r\n", (Outcome.FAILED, "the answer to GET /live has status 503")),
        (b"SSH-2.0-OpenSSH\r\n\r\n", (Outcome.FAILED, "the answer to GET /live is not HTTP")),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 40_000, (Outcome.FAILED, "the answer to GET /live is not HTTP")),
        (b"HTTP/1.1 200 OK\r\nX: y\r\n", (Outcome.FAILED, "the answer to GET /live")),
        (b"", (Outcome.FAILED, "the answer to GET /live")),
    ],
)
def test_http_judges_the_status(bench: Bench, data: bytes, expected: tuple[Outcome, str]) -> None:
    """200 to 399 is healthy; other statuses, other protocols, too much and nothing are failures."""
    with serving(socket.AF_INET, ("127.0.0.1", 0), replying(data)) as port:
        outcome, detail = bench.answer(HttpCheck(port=port, path="/live"))
    assert expected[0] is outcome
    assert detail.startswith(expected[1])


def test_http_over_a_unix_socket(bench: Bench) -> None:
    """The same over a Unix socket; a missing one is a failure, an impossible path says nothing."""
    path = str(bench.rig.directory / "http.sock")
    seen: list[bytes] = []

    def answer(peer: socket.socket) -> None:
        seen.append(peer.recv(65536))
        peer.sendall(OK_ANSWER)

    with serving(socket.AF_UNIX, path, answer):
        assert Outcome.OK is bench.answer(HttpCheck(socket=path, path="/v1/live"))[0]
    assert seen[0].startswith(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n")
    assert bench.answer(HttpCheck(socket=path))[1].endswith("failed: Connection refused (ECONNREFUSED)")
    assert Outcome.FAILED is bench.answer(HttpCheck(socket=path + ".not"))[0]
    assert Outcome.UNKNOWN is bench.answer(HttpCheck(socket="/" + "x" * 200))[0]
    with serving(socket.AF_INET, ("127.0.0.1", 0), replying(b"")) as port:
        assert Outcome.UNKNOWN is bench.answer(HttpCheck(port=port, path="/a b"))[0]


def test_http_that_does_not_answer_times_out(bench: Bench) -> None:
    """A server that takes the connection and says nothing, or trickles, is a failure at the time-out."""
    released = threading.Event()

    def trickle(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        released.wait(BOUND_S)

    with serving(socket.AF_INET, ("127.0.0.1", 0), trickle) as port:
        outcome, detail = bench.answer(HttpCheck(port=port), timeout_ns=NS // 5)
        released.set()
    assert (outcome, detail) == (Outcome.FAILED, "the answer to GET / did not come within 0.2 s")


def test_a_name_that_cannot_be_resolved_is_unknown(bench: Bench) -> None:
    """The resolver's failure is not the component's."""
    outcome, detail = bench.answer(TcpCheck(port=1, host="no-such-host.invalid"))
    assert Outcome.UNKNOWN is outcome
    assert detail.startswith(("cannot look no-such-host.invalid up: ", "the lookup of no-such-host.invalid"))


def test_exec_judges_the_exit_status(bench: Bench) -> None:
    """Exit 0 is healthy; another status or a signal is a failure with the output; a missing command says nothing."""
    assert bench.answer(ExecCheck(command=("/bin/true",))) == (Outcome.OK, "")
    failed = bench.answer(ExecCheck(command=shell("echo not yet; exit 3")))
    assert failed == (Outcome.FAILED, "exited with status 3: not yet")
    assert bench.answer(ExecCheck(command=shell("kill -9 $$"))) == (Outcome.FAILED, "killed by SIGKILL")
    missing = "cannot execute /nowhere: No such file or directory (ENOENT)"
    assert (Outcome.UNKNOWN, missing) == bench.answer(ExecCheck(command=("/nowhere",)))


def test_a_hung_exec_probe_dies_with_its_tree_and_the_next_one_runs(bench: Bench) -> None:
    """At the time-out it fails, its daemon dies too, and the next probe is carried out (scenario 12)."""
    marker = bench.rig.directory / "pids"
    code = f"import os\nopen({str(marker)!r}, 'a').write(str(os.getpid()) + '\\n')\n" + DOUBLE_FORK.replace(
        "print(os.getpid(), flush=True)", f"open({str(marker)!r}, 'a').write(str(os.getpid()) + '\\n')"
    )
    outcome, detail = bench.answer(ExecCheck(command=python(code)), timeout_ns=2 * NS)
    assert (outcome, detail.startswith("not finished within 2 s, killed")) == (Outcome.FAILED, True)
    pids = [int(line) for line in marker.read_text().splitlines()]
    assert len(pids) == 2
    bench.rig.run_until(lambda: not any(alive(pid) for pid in pids), "the deaths")
    bench.rig.run_until(lambda: bench.answer(ExecCheck(command=("/bin/true",)))[0] is Outcome.OK, "a free place")


def test_probes_are_never_stacked(bench: Bench) -> None:
    """While one is under way, a second of the same kind is UNKNOWN; another kind or component is carried out."""
    hang = ExecCheck(command=("/bin/sleep", "1000"))
    bench.run(hang)
    bench.run(hang)
    assert Outcome.UNKNOWN is bench.rig.wait_for(ProbeDone).outcome
    bench.run(ExecCheck(command=("/bin/true",)), probe=ProbeKind.LIVENESS)
    bench.run(ExecCheck(command=("/bin/true",)), name="other")
    bench.rig.wait_for(ProbeDone, 3)
    assert [done.outcome for done in bench.rig.of(ProbeDone)[1:]] == [Outcome.OK, Outcome.OK]


def test_the_end_of_a_run_ends_its_probes(bench: Bench, deaf: int) -> None:
    """After EndRun no answer comes for that generation, its commands die, and the next one's probes run."""
    marker = bench.rig.directory / "pid"
    bench.run(ExecCheck(command=shell(f"echo $$ >{marker}; exec sleep 1000")))
    bench.run(TcpCheck(port=deaf), probe=ProbeKind.LIVENESS)
    bench.rig.run_until(lambda: marker.exists() and marker.read_text().endswith("\n"))
    bench.run(TcpCheck(port=deaf), name="other", timeout_ns=NS // 2)
    bench.probers.end("comp", 1)
    bench.rig.run_until(lambda: not alive(int(marker.read_text())))
    assert bench.rig.wait_for(ProbeDone).component == "other"
    bench.run(ExecCheck(command=("/bin/true",)), generation=2)
    bench.probers.end("comp", 1)
    done = bench.rig.wait_for(ProbeDone, 2)
    assert (done.component, done.generation, done.outcome) == ("comp", 2, Outcome.OK)


def test_a_new_generation_replaces_the_probe_of_the_old(bench: Bench, deaf: int) -> None:
    """A probe left over from an older run does not keep the new run's from being carried out."""
    bench.run(TcpCheck(port=deaf))
    with serving(socket.AF_INET, ("127.0.0.1", 0), lambda _peer: None) as port:
        bench.run(TcpCheck(port=port), generation=2)
        done = bench.rig.wait_for(ProbeDone)
    assert (done.generation, done.outcome) == (2, Outcome.OK)


def test_few_commands_run_at_once_and_all_answer(bench: Bench) -> None:
    """Of many exec probes MAX_EXEC_PROBES run at a time; the others wait, those that wait too long are UNKNOWN."""
    gate = bench.rig.directory / "gate"
    command = shell(f"while ! test -e {gate}; do sleep 0.02; done")
    count = MAX_EXEC_PROBES + 5
    for number in range(count):
        bench.run(ExecCheck(command=command), name=f"c{number}")
    bench.run(ExecCheck(command=command), name="impatient", period_ns=NS // 5)
    done = bench.rig.wait_for(ProbeDone)
    assert (done.component, done.outcome) == ("impatient", Outcome.UNKNOWN)
    socket_path = bench.rig.markers.heartbeat_socket
    names = {
        marks["XCE_COMPONENT"] for _found, marks in marked(ProcFs()) if marks.get("XCE_HEARTBEAT_SOCKET") == socket_path
    }
    assert len(names) == MAX_EXEC_PROBES
    gate.touch()
    bench.rig.wait_for(ProbeDone, count + 1)
    assert [Outcome.OK] * count == [done.outcome for done in bench.rig.of(ProbeDone)[1:]]


def test_no_descriptors_left_says_nothing_about_the_component(bench: Bench) -> None:
    """EMFILE in a tcp, http or exec probe is UNKNOWN."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bench.rig.turn()
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        bench.run(TcpCheck(port=1))
        bench.run(HttpCheck(port=1), probe=ProbeKind.LIVENESS)
        bench.run(ExecCheck(command=("/bin/true",)), probe=ProbeKind.STARTUP)
        bench.rig.wait_for(ProbeDone, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [done.outcome for done in bench.rig.of(ProbeDone)] == [Outcome.UNKNOWN] * 3
    assert all("Too many open files (EMFILE)" in done.detail for done in bench.rig.of(ProbeDone))


def test_what_is_judged_from_messages_is_not_carried_out(bench: Bench) -> None:
    """A heartbeat check answers UNKNOWN instead of raising: there is nothing to do for it."""
    assert Outcome.UNKNOWN is bench.answer(HeartbeatCheck())[0]


def test_closing_cancels_everything(bench: Bench, deaf: int) -> None:
    """After close no answer comes and nothing is left."""
    bench.run(TcpCheck(port=deaf))
    bench.run(TcpCheck(port=1, host="no-such-host.invalid"), name="b")
    bench.run(ExecCheck(command=("/bin/sleep", "1000")), name="c")
    bench.probers.close()
    bench.rig.processes.close()
    bench.rig.turn()
    assert bench.rig.of(ProbeDone) == []
