"""The example's controller in etcd, alone and beside the reference's, towards an agent that the test plays."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from node_manager.conformance.program import Program
from node_manager.reference.clock import boottime_ns
from tests.cluster.etcd import MISSING, PROGRAM, Member, alone, ask, code
from tests.integration.host import free_port, wait_until
from tests.libxce.test_library import CAN_BUILD, SOURCE, WHY_NOT, make
from tests.unit.reference.conftest import Bench, FakeAgent, bench, directory

__all__ = ["bench", "directory"]

pytestmark = [
    pytest.mark.skipif(not CAN_BUILD, reason=WHY_NOT),
    pytest.mark.skipif(PROGRAM is None, reason=MISSING),
]

TERM_KEY = "/xce/controller.primary/term"
LEASE_S = "4"
LONG_S = "600"

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("libxce")
    make(str(build / "controller"), build)
    return build / "controller"


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    """A cluster of one, which a test may stop."""
    with alone(tmp_path) as made:
        yield made


@pytest.fixture
def start(bench: Bench, program: Path) -> Iterator[Start]:
    """Start controllers in C, whose state is in the bench's directory."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(lease: str, agent: FakeAgent, *, holder: str = "c", lease_s: str = LEASE_S) -> "subprocess.Popen[bytes]":
        environment = {
            "XCE_REF_STATE": str(bench.directory / "state"),
            "XCE_REF_HOLDER": holder,
            "XCE_REF_LEASE_S": lease_s,
            "XCE_HEARTBEAT_SOCKET": str(agent.path),
            "XCE_COMPONENT": "controller",
        }
        with (bench.directory / f"c{len(made)}.log").open("wb") as log:
            made.append(subprocess.Popen([program, lease], env=environment, stderr=log))
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.wait()


def revision(member: Member) -> int:
    """The term that the store has."""
    found: str = ask(member.client, "/v3/kv/range", {"key": code(TERM_KEY)})["kvs"][0]["mod_revision"]
    return int(found)


def says(agent: FakeAgent, word: str) -> Callable[[], bool]:
    return lambda: agent.said.get("LEADERSHIP") == word


def status_has(agent: FakeAgent, words: str) -> Callable[[], bool]:
    return lambda: words in agent.said.get("STATUS", "")


def test_it_leads_under_the_stores_revision(bench: Bench, member: Member, start: Start) -> None:
    """It says nothing before it has read the store, then leads under its revision, and renews under the same."""
    agent = bench.agent()
    controller = start(f"etcd:127.0.0.1:{free_port()}", agent)
    bench.wait(status_has(agent, "unread, term 0; cannot use etcd at"), controller)
    bench.wait(lambda: int(agent.said.get("BEAT", "0")) >= 2, controller)
    assert "LEADERSHIP" not in agent.said
    controller.kill()
    controller.wait()
    controller = start(f"etcd:{member.client}", agent)
    bench.wait(says(agent, "primary"), controller)
    assert int(agent.said["TERM"]) == revision(member)
    first = agent.said["VALID_UNTIL_NS"]
    bench.wait(lambda: agent.said["VALID_UNTIL_NS"] != first, controller)
    assert int(agent.said["TERM"]) == revision(member)


def test_a_store_that_stands_still_blocks_nobody(bench: Bench, member: Member, start: Start) -> None:
    """With etcd stopped it beats; what it stated holds until its end, and no longer; afterwards it leads anew."""
    agent = bench.agent()
    controller = start(f"etcd:{member.client}", agent)
    bench.wait(says(agent, "primary"), controller)
    assert member.process is not None
    member.process.send_signal(signal.SIGSTOP)
    bench.wait(status_has(agent, "no answer in time"), controller)
    stated_ns, beat = int(agent.said["VALID_UNTIL_NS"]), int(agent.said["BEAT"])
    bench.wait(says(agent, "standby"), controller)
    assert boottime_ns() >= stated_ns
    assert stated_ns == int(agent.said["VALID_UNTIL_NS"])
    bench.wait(lambda: int(agent.said["BEAT"]) > beat + 2, controller)
    term = int(agent.said["TERM"])
    member.process.send_signal(signal.SIGCONT)
    bench.wait(says(agent, "primary"), controller)
    assert int(agent.said["TERM"]) > term, "standby was said: this is another leadership"


def test_a_successor_goes_on_inside_the_lease_unless_the_term_is_over(
    bench: Bench, member: Member, start: Start
) -> None:
    """Killed, it comes back under its term; killed after it said standby, under a new one, with no gap for a rival."""
    agent = bench.agent()
    lease = f"etcd:{member.client}"
    controller = start(lease, agent, lease_s=LONG_S)
    bench.wait(says(agent, "primary"), controller)
    term = revision(member)
    controller.kill()
    controller.wait()
    agent.said.clear()
    controller = start(lease, agent, lease_s=LONG_S)
    bench.wait(says(agent, "primary"), controller)
    assert int(agent.said["TERM"]) == term == revision(member)
    controller.send_signal(signal.SIGUSR1)
    bench.wait(says(agent, "standby"), controller)
    controller.kill()
    controller.wait()
    agent.said.clear()
    controller = start(lease, agent, lease_s=LONG_S)
    bench.wait(says(agent, "primary"), controller)
    assert int(agent.said["TERM"]) == revision(member) > term


def test_controllers_in_c_and_python_pass_one_lease_on(bench: Bench, member: Member, start: Start) -> None:
    """One leads, the other waits; each gives back what is proven to be free, and terms rise from one to the other."""
    ours, theirs = bench.agent(), bench.agent()
    lease, settings = f"etcd:{member.client}", {"XCE_REF_ETCD": member.client, "XCE_REF_LEASE_S": LONG_S}
    terms = []
    for _round in range(2):
        ours.tell(COMPONENT__scheduler="running")
        in_c = start(lease, ours, lease_s=LONG_S)
        bench.wait(says(ours, "primary"), in_c)
        terms.append(int(ours.said["TERM"]))
        waits, address = bench.controller(None, **settings)
        bench.wait(lambda: bench.ask(address, op="status").get("leader") == "c", waits)  # noqa: B023 -- asked at once
        waits.kill()
        waits.wait()
        in_c.terminate()
        bench.wait(says(ours, "standby"))
        ours.tell(COMPONENT__scheduler="stopped")
        assert bench.ended(in_c) == 0
        theirs.tell(COMPONENT__scheduler="running")
        python, _address = bench.leader(theirs, **settings)
        bench.wait(says(theirs, "primary"), python)
        terms.append(int(theirs.said["TERM"]))
        in_c = start(lease, ours, lease_s=LONG_S)
        ours.said.clear()
        bench.wait(says(ours, "standby"), in_c)
        in_c.kill()
        in_c.wait()
        python.terminate()
        bench.wait(says(theirs, "standby"))
        theirs.tell(COMPONENT__scheduler="stopped")
        assert bench.ended(python) == 0
        ours.said.clear()
    assert terms == sorted(set(terms))


def test_one_whose_scheduler_runs_gives_nothing_back(bench: Bench, member: Member, start: Start) -> None:
    """Ended while its scheduler is not reported stopped, it leaves the lease to run out: a rival does not lead."""
    agent, other = bench.agent(), bench.agent()
    agent.tell(COMPONENT__scheduler="running")
    controller = start(f"etcd:{member.client}", agent, lease_s=LONG_S)
    bench.wait(says(agent, "primary"), controller)
    controller.terminate()
    assert bench.ended(controller) == 0
    assert "given back" not in bench.logs()
    rival = start(f"etcd:{member.client}", other, holder="rival", lease_s=LONG_S)
    bench.wait(says(other, "standby"), rival)
    record = ask(member.client, "/v3/kv/range", {"key": code("/xce/controller.primary")})["kvs"][0]
    assert int(record["version"]) >= 1


def turns(program: Program, count: int) -> None:
    """Let it wait so often, which is once in each turn of its loop, or end."""
    begun = program.waits()
    wait_until(lambda: not program.running or program.waits() >= begun + count, "it goes on")


@pytest.mark.parametrize("language", ["c", "python"])
def test_nothing_is_given_back_while_standby_was_not_sent(
    bench: Bench, member: Member, program: Path, language: str
) -> None:
    """To an agent that does not read standby is not said yet: its "stopped" may be older than a start under way."""
    agent = bench.agent()
    agent.tell(COMPONENT__scheduler="running")
    environment = {
        "XCE_REF_STATE": str(bench.directory / "state"),
        "XCE_REF_ETCD": member.client,
        "XCE_REF_LISTEN": "127.0.0.1:0",
        "XCE_REF_LEASE_S": LONG_S,
        "XCE_HEARTBEAT_SOCKET": str(agent.path),
        "XCE_COMPONENT": "controller",
        "PYTHONPATH": str(SOURCE.parent),
    }
    in_python = [sys.executable, "-m", "node_manager.reference", "controller"]
    command = [str(program), f"etcd:{member.client}"] if language == "c" else in_python
    controller = Program(command, environment, bench.directory / "controller.log")
    try:
        bench.wait(says(agent, "primary"))
        copy = controller.heartbeat_socket(str(agent.path))
        if copy is None:
            pytest.skip("the kernel does not let a test shorten the send queue of another process")
        with copy:
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's least: some records
            with suppress(BlockingIOError):
                while True:  # until it is full
                    copy.send(b"BEAT=0\n")
            controller.signal(signal.SIGUSR1 if language == "c" else signal.SIGTERM)
            turns(controller, 3)  # long enough to look at its scheduler
            agent.tell(COMPONENT__scheduler="stopping")
            agent.tell(COMPONENT__scheduler="stopped")
            turns(controller, 3)
        assert "kvs" in ask(member.client, "/v3/kv/range", {"key": code("/xce/controller.primary")})
    finally:
        controller.end()


def test_a_second_one_of_its_name_ends(bench: Bench, member: Member, start: Start) -> None:
    """One process alone stands under a holder's name in one place."""
    agent = bench.agent()
    controller = start(f"etcd:{member.client}", agent)
    bench.wait(says(agent, "primary"), controller)
    assert bench.ended(start(f"etcd:{member.client}", bench.agent())) == 71
    assert controller.poll() is None


@pytest.mark.parametrize(
    ("lease", "state"),
    [("etcd:", "s"), ("etcd:localhost:2379", "s"), ("etcd:127.0.0.1:2379,", "s"), ("etcd:127.0.0.1:2379", "")],
)
def test_a_wrong_environment_is_told(program: Path, tmp_path: Path, lease: str, state: str) -> None:
    """What cannot be used ends with 78 at once, and a sentence."""
    environment = {**os.environ, "XCE_REF_STATE": f"{tmp_path}/s" if state else ""}
    done = subprocess.run([program, lease], env=environment, capture_output=True, text=True, check=False, timeout=40)
    assert done.returncode == 78
    assert done.stderr.startswith("controller: ")
