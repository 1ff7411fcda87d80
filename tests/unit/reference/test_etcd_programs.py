"""Controller and lease keeper on a real etcd: what they say, and when."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_manager.reference.clock import NS_PER_S, boottime_ns
from tests.cluster.etcd import MISSING, PROGRAM, Member, alone, ask, code
from tests.integration.host import free_port
from tests.unit.reference.conftest import Bench

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=MISSING)

LEASE_S = "4"
TERM_KEY = "/xce/controller.primary/term"


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    """A cluster of one, which a test may stop."""
    with alone(tmp_path) as made:
        yield made


def revision(member: Member, key: str) -> int:
    """Of the last writing of a key."""
    found: str = ask(member.client, "/v3/kv/range", {"key": code(key)})["kvs"][0]["mod_revision"]
    return int(found)


def test_the_controller_leads_under_the_stores_revision(bench: Bench, member: Member) -> None:
    """It says nothing before it has read the store, then leads under its revision, and renews under the same."""
    agent = bench.agent()
    dead = f"127.0.0.1:{free_port()}"
    controller, address = bench.controller(agent, XCE_REF_ETCD=dead, XCE_REF_LEASE_S=LEASE_S)
    bench.wait(lambda: "cannot use etcd" in str(bench.ask(address, op="status").get("trouble")), controller)
    bench.wait(lambda: int(agent.said.get("BEAT", "0")) >= 2, controller)
    assert "LEADERSHIP" not in agent.said
    controller.kill()
    controller.wait()
    controller, _address = bench.leader(agent, XCE_REF_ETCD=member.client, XCE_REF_LEASE_S=LEASE_S)
    bench.wait(lambda: agent.said.get("LEADERSHIP") == "primary", controller)
    assert int(agent.said["TERM"]) == revision(member, TERM_KEY)
    first = agent.said["VALID_UNTIL_NS"]
    bench.wait(lambda: agent.said["VALID_UNTIL_NS"] != first, controller)
    assert int(agent.said["TERM"]) == revision(member, TERM_KEY)


def test_a_store_that_stands_still_blocks_nobody(bench: Bench, member: Member) -> None:
    """With etcd stopped the controller answers and beats; what it stated holds until its end, and no longer."""
    agent = bench.agent()
    controller, address = bench.leader(agent, XCE_REF_ETCD=member.client, XCE_REF_LEASE_S=LEASE_S)
    bench.wait(lambda: agent.said.get("LEADERSHIP") == "primary", controller)
    assert member.process is not None
    member.process.send_signal(signal.SIGSTOP)
    bench.wait(lambda: "no answer in time" in str(bench.ask(address, op="status").get("trouble")), controller)
    stated_ns = int(agent.said["VALID_UNTIL_NS"])
    bench.wait(lambda: agent.said["LEADERSHIP"] == "standby", controller)
    assert boottime_ns() >= stated_ns
    assert stated_ns == int(agent.said["VALID_UNTIL_NS"])
    term = int(agent.said["TERM"])
    member.process.send_signal(signal.SIGCONT)
    bench.wait(lambda: agent.said["LEADERSHIP"] == "primary", controller)
    assert int(agent.said["TERM"]) > term, "standby was said: this is another leadership"


def test_a_controller_that_steps_down_gives_back_only_what_nobody_needs(bench: Bench, member: Member) -> None:
    """Told to end while its scheduler is reported stopped, it gives the lease back; its rival leads at once."""
    agent = bench.agent()
    agent.tell(COMPONENT__scheduler="running")
    settings = {"XCE_REF_ETCD": member.client, "XCE_REF_LEASE_S": "600"}
    controller, _address = bench.leader(agent, **settings)
    bench.wait(lambda: agent.said.get("LEADERSHIP") == "primary", controller)
    controller.terminate()
    bench.wait(lambda: agent.said.get("LEADERSHIP") == "standby")
    agent.tell(COMPONENT__scheduler="stopped")
    assert bench.ended(controller) == 0
    assert "lease given back early" in bench.logs()
    bench.leader(None, XCE_REF_HOLDER="c2", **settings)


def test_a_controller_whose_scheduler_runs_gives_nothing_back(bench: Bench, member: Member) -> None:
    """Ended while its scheduler is not reported stopped, it leaves the lease to run out: a rival does not lead."""
    agent = bench.agent()
    agent.tell(COMPONENT__scheduler="running")
    settings = {"XCE_REF_ETCD": member.client, "XCE_REF_LEASE_S": "600"}
    controller, _address = bench.leader(agent, **settings)
    bench.wait(lambda: agent.said.get("LEADERSHIP") == "primary", controller)
    controller.terminate()
    assert bench.ended(controller) == 0
    rival, address = bench.controller(None, XCE_REF_HOLDER="c2", **settings)
    bench.wait(lambda: bench.ask(address, op="status").get("leader") == "c1", rival)
    # Its own successor is the same holder, but the term is over: a new one begins, without a gap for the rival.
    before = revision(member, TERM_KEY)
    successor, _address = bench.leader(None, **settings)
    assert successor.poll() is None
    assert revision(member, TERM_KEY) > before


def test_the_keeper_holds_its_lease_in_etcd(bench: Bench, member: Member) -> None:
    """Its token is the store's revision; another keeper waits until the first has given up and its lease has ended."""
    first, second = bench.agent(), bench.agent()
    settings = {"XCE_REF_ETCD": f"http://{member.client}", "XCE_REF_LEASE_S": "2", "XCE_REF_ETCD_PREFIX": "/other/"}
    keeper = bench.start("lease-keeper", "provisioner", agent=first, **settings)
    bench.wait(lambda: first.said.get("LEASE.provisioner") == "held", keeper)
    token = int(first.said["LEASE.provisioner.TOKEN"])
    assert token == revision(member, "/other/lease.provisioner/term")
    other = bench.start("lease-keeper", "provisioner", agent=second, XCE_REF_HOLDER="k2", **settings)
    bench.wait(lambda: second.said.get("LEASE.provisioner") == "lost", keeper, other)
    keeper.terminate()
    assert bench.ended(keeper) == 0
    greatest_ns = max(int(said.get("LEASE.provisioner.VALID_UNTIL_NS", "0")) for said in first.history)
    bench.wait(lambda: second.said.get("LEASE.provisioner") == "held", other)
    assert int(second.said["LEASE.provisioner.TOKEN"]) > token
    assert int(second.said["LEASE.provisioner.VALID_UNTIL_NS"]) - 2 * NS_PER_S * 999 // 1000 >= greatest_ns
