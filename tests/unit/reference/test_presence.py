"""Which hosts a primary waits for, and which it gives up."""

import subprocess

from node_manager.heartbeat.client import AgentView
from node_manager.reference.clock import NS_PER_S
from node_manager.reference.presence import Presence
from tests.unit.reference.conftest import Bench

GRACE_NS = 10 * NS_PER_S
T0 = 10**12
HOST = ("h1", "i-1")
OTHER = ("h2", "")


def presence() -> Presence:
    """A primary that leads since T0, with one host that is connected."""
    made = Presence(GRACE_NS)
    made.begin([HOST], T0)
    made.joined(HOST, None)
    return made


def back_in(ms: int, **more: str) -> AgentView:
    return AgentView(levels={"COMPONENT.worker.EXPECTED_BACK_MS": str(ms), **more})


def lost_at(made: Presence, *times_ns: int) -> list[bool]:
    """Whether the host counts as given up at each of these times."""
    found = []
    for now_ns in times_ns:
        made.tick(now_ns)
        found.append(made.level(HOST, now_ns)["presence"] == "lost")
    return found


def test_a_silent_host_is_given_up_after_the_grace_and_once() -> None:
    """Not before the end of the grace, at it, and the sentence is said a single time."""
    made = presence()
    made.gone(HOST, T0 + 5)
    said, next_ns = made.tick(T0 + 5 + GRACE_NS - 1)
    assert (said, next_ns) == ([], T0 + 5 + GRACE_NS)
    said, _next_ns = made.tick(T0 + 5 + GRACE_NS)
    assert said == ["host h1 (i-1) is lost: silent for 10.0 s"]
    assert made.tick(T0 + 6 + GRACE_NS)[0] == []
    assert made.joined(HOST, None), "it had been given up"
    assert made.level(HOST, T0 + 7 + GRACE_NS) == {"presence": "connected", "given_up_in_s": None}


def test_a_host_whose_restart_takes_longer_than_the_grace_is_waited_for() -> None:
    """What its worker said of its restarts when it joined counts, where it is more than the grace."""
    made = presence()
    made.joined(HOST, 25_000)
    made.gone(HOST, T0)
    assert lost_at(made, T0 + GRACE_NS, T0 + 25 * NS_PER_S - 1, T0 + 25 * NS_PER_S) == [False, False, True]


def test_a_host_that_said_when_it_is_back_is_not_lost_before_and_is_lost_after() -> None:
    """While the agent counts down to the worker's return nobody gives up; when it is not back by then, they do."""
    made = presence()
    made.gone(HOST, T0)
    made.expect("h1", back_in(30_000), T0 + NS_PER_S)
    made.expect("h1", back_in(28_000), T0 + 3 * NS_PER_S)
    times_ns = (T0 + GRACE_NS, T0 + 31 * NS_PER_S - 1, T0 + 31 * NS_PER_S)
    assert lost_at(made, *times_ns) == [False, False, True]


def test_an_old_word_does_not_keep_a_host_for_ever() -> None:
    """An agent that is silent itself leaves its last word standing: it counts from when it came."""
    made = presence()
    made.gone(HOST, T0)
    word = back_in(15_000)
    for second in range(16):
        made.expect("h1", word, T0 + second * NS_PER_S)
    assert lost_at(made, T0 + 15 * NS_PER_S - 1, T0 + 15 * NS_PER_S) == [False, True]


def test_the_word_is_for_the_own_host_alone() -> None:
    """What the agent here says of its worker keeps no other host; garbage and 0 keep none."""
    made = Presence(GRACE_NS)
    made.begin([HOST], T0)
    for view in (back_in(0), AgentView(levels={"COMPONENT.worker.EXPECTED_BACK_MS": "soon"})):
        made.expect("h1", view, T0)
    made.expect("h2", back_in(60_000), T0)
    assert lost_at(made, T0 + GRACE_NS) == [True]


def test_a_new_primary_gives_every_host_the_grace_from_then_on() -> None:
    """It knows nothing of the time before it led; a host that left the cluster is not waited for."""
    made = Presence(GRACE_NS)
    made.begin([HOST, OTHER], T0)
    made.forget(OTHER)
    assert made.level(HOST, T0 + NS_PER_S) == {"presence": "away", "given_up_in_s": 9.0}
    assert made.tick(T0 + GRACE_NS)[0] == ["host h1 (i-1) is lost: silent for 10.0 s"]


def test_the_primary_waits_for_a_worker_that_restarts_and_gives_up_one_that_does_not(bench: Bench) -> None:
    """Real programs: with a word of its return the host is away and not lost; late, it is lost, and comes back."""
    agent = bench.agent()
    controller, address = bench.leader(agent, XCE_REF_HOST_LOSS_GRACE_S="0.2")

    def standing() -> object:
        hosts = bench.ask(address, op="hosts").get("hosts", [])
        return hosts[0]["presence"] if hosts else None

    def worker() -> "subprocess.Popen[bytes]":
        made = bench.start("worker", XCE_REF_CONTROLLERS=str(address))
        bench.wait(lambda: standing() == "connected", controller, made)
        return made

    first = worker()
    agent.tell(COMPONENT__worker="backoff", COMPONENT__worker__EXPECTED_BACK_MS="600000")
    first.kill()
    first.wait()
    bench.wait(lambda: standing() == "away", controller)
    assert bench.ask(address, op="hosts")["hosts"][0]["given_up_in_s"] > 300
    second = worker()
    agent.tell(COMPONENT__worker="starting", COMPONENT__worker__EXPECTED_BACK_MS="0")
    second.kill()
    second.wait()
    bench.wait(lambda: standing() == "lost", controller)
    assert "is lost: silent for" in bench.logs()
    worker()
    assert "is back" in bench.logs()
