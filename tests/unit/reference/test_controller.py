"""The controller as a program: its promises as an authority, and what it refuses."""

import json
import signal
import socket
import subprocess
import zlib
from pathlib import Path

import pytest

from node_manager.reference.lines import LineBuffer, Message, encode
from node_manager.reference.settings import Address
from tests.unit.reference.conftest import Bench, FakeAgent

LEASE_S = 30
MARGIN_NS = LEASE_S * 10**9 // 1000


def record(directory: Path) -> Message:
    value: Message = json.loads((directory / "controller.lease").read_bytes())
    return value


def ends_stated(agent: FakeAgent) -> list[tuple[int, int]]:
    """Term and validity of every time that primary was said."""
    return [
        (int(said["TERM"]), int(said["VALID_UNTIL_NS"]))
        for said in agent.history
        if said.get("LEADERSHIP") == "primary"
    ]


class Talk:
    """One connection to a controller, with its bounds."""

    def __init__(self, address: Address) -> None:
        self._sock = socket.create_connection(address, timeout=20)
        self._buffer = LineBuffer()
        self._got: list[Message] = []

    def ask(self, **question: object) -> Message:
        self._sock.sendall(encode(question))
        return self.hear("reply")

    def hear(self, key: str) -> Message:
        """The next message that has this key."""
        while True:
            while self._got:
                message = self._got.pop(0)
                if key in message:
                    return message
            data = self._sock.recv(65536)
            assert data, "closed"
            self._got += self._buffer.feed(data)

    def close(self) -> None:
        self._sock.close()


def test_it_leads_and_says_so_with_term_and_validity(bench: Bench) -> None:
    """Primary is stated with the record's term, and an end a little before the record's."""
    agent = bench.agent()
    process, _address = bench.leader(agent)
    bench.wait(lambda: agent.said.get("READY") == "1", process)
    term, until_ns = ends_stated(agent)[0]
    assert term == 1
    assert record(bench.directory)["term"] == 1
    assert record(bench.directory)["valid_until_ns"] - until_ns >= MARGIN_NS


def test_it_says_nothing_about_leadership_while_the_store_is_unreadable(bench: Bench) -> None:
    """A torn record: no word about leadership, not even standby; it listens, and the status tells why."""
    (bench.directory / "controller.lease").write_bytes(b'{"holder"')
    agent = bench.agent()
    process, address = bench.controller(agent)
    bench.wait(lambda: "cannot use lease record" in agent.said.get("STATUS", ""), process)
    assert all("LEADERSHIP" not in said for said in agent.history)
    assert bench.ask(address, op="status")["stance"] == "unread"
    (bench.directory / "controller.lease").unlink()
    bench.wait(lambda: agent.said.get("LEADERSHIP") == "primary", process)


def test_killed_and_back_inside_its_lease_it_changes_nothing(bench: Bench) -> None:
    """The same slot keeps its term over kill -9: whoever depends on it need not stop."""
    process, _address = bench.leader()
    process.kill()
    assert bench.ended(process) == -signal.SIGKILL
    agent = bench.agent()
    bench.leader(agent)
    bench.wait(lambda: ends_stated(agent))
    assert ends_stated(agent)[0][0] == 1
    assert all(said.get("LEADERSHIP") != "standby" for said in agent.history)


def test_told_standby_it_stays_so_over_a_restart_and_comes_back_with_a_new_term(bench: Bench) -> None:
    """An operator's word is not undone by a restart, and a leadership given up has a new term when it is taken."""
    agent = bench.agent()
    process, address = bench.leader(agent)
    assert bench.ask(address, op="standby")["stance"] == "standby"
    bench.wait(lambda: agent.said.get("LEADERSHIP") == "standby", process)
    assert record(bench.directory)["valid_until_ns"] > ends_stated(agent)[-1][1]
    process.kill()
    bench.ended(process)
    process, address = bench.controller(agent)
    bench.wait(lambda: bench.ask(address, op="status").get("stance") == "standby", process)
    stated = len(ends_stated(agent))
    assert bench.ask(address, op="hosts")["code"] == "not-primary"
    assert bench.ask(address, op="primary")["ok"] is True
    bench.wait(lambda: len(ends_stated(agent)) > stated, process)
    assert ends_stated(agent)[stated][0] == 2


def test_a_graceful_stop_never_gives_the_lease_away(bench: Bench) -> None:
    """Told to stop, it says standby and ends in bounded time; a rival's leadership begins after all it ever stated."""
    first, second = bench.agent(), bench.agent()
    first.tell(COMPONENT__scheduler="running")
    lease = {"XCE_REF_LEASE_S": "4", "XCE_REF_RENEW_S": "0.4"}
    primary, _address = bench.leader(first, **lease)
    rival, _address = bench.controller(second, XCE_REF_HOLDER="c2", **lease)
    bench.wait(lambda: second.said.get("LEADERSHIP") == "standby", primary, rival)
    bench.wait(lambda: first.said.get("BEAT", "0") > "1", primary)
    primary.terminate()
    assert bench.ended(primary) == 0
    assert first.said["LEADERSHIP"] == "standby"
    assert first.said["STOPPING"] == "1"
    bench.wait(lambda: ends_stated(second), rival)
    term, until_ns = ends_stated(second)[0]
    acquired_ns = until_ns + 4_000_000 - 4_000_000_000
    assert acquired_ns >= max(end for _term, end in ends_stated(first))
    assert term > max(term for term, _end in ends_stated(first))


def test_the_lease_is_given_back_early_once_the_scheduler_is_reported_stopped(bench: Bench) -> None:
    """After standby was said and the agent then reported the scheduler stopped, a rival need not wait for the end."""
    agent = bench.agent()
    agent.tell(COMPONENT__scheduler="running")
    process, address = bench.leader(agent)
    bench.wait(lambda: agent.said.get("LEADERSHIP") == "primary", process)
    end_ns = record(bench.directory)["valid_until_ns"]
    bench.ask(address, op="standby")
    bench.wait(lambda: agent.said.get("LEADERSHIP") == "standby", process)
    agent.tell(COMPONENT__scheduler="stopping")
    agent.tell(COMPONENT__scheduler="stopped")
    bench.wait(lambda: record(bench.directory)["valid_until_ns"] < end_ns - 10**9, process)
    rival, rival_address = bench.controller(XCE_REF_HOLDER="c2")
    bench.wait(lambda: bench.ask(rival_address, op="status").get("stance") == "primary", rival)


@pytest.mark.parametrize("state", ["stopped", "running", None])
def test_the_lease_is_kept_without_that_report(bench: Bench, state: str | None) -> None:
    """Stopped all along, still running, or never mentioned: none of it proves a stop after standby was said."""
    agent = bench.agent()
    if state is not None:
        agent.tell(COMPONENT__scheduler=state)
    process, _address = bench.leader(agent)
    bench.wait(lambda: agent.said.get("LEADERSHIP") == "primary" and agent.said.get("BEAT", "0") > "1", process)
    end_ns = record(bench.directory)["valid_until_ns"]
    process.terminate()
    assert bench.ended(process) == 0
    assert record(bench.directory)["valid_until_ns"] >= end_ns


def test_stopped_beyond_its_lease_it_asks_before_it_says_primary(bench: Bench) -> None:
    """Continued after SIGSTOP, with a rival leading: standby, no new validity under the old term, no service."""
    first = bench.agent()
    lease = {"XCE_REF_LEASE_S": "1", "XCE_REF_RENEW_S": "0.1"}
    primary, address = bench.leader(first, **lease)
    bench.wait(lambda: ends_stated(first), primary)
    primary.send_signal(signal.SIGSTOP)
    try:
        rival, rival_address = bench.leader(None, XCE_REF_HOLDER="c2", **lease)
        first.pump()
        stated, heard = len(ends_stated(first)), len(first.history)
        term = bench.ask(rival_address, op="status")["term"]
    finally:
        primary.send_signal(signal.SIGCONT)
    bench.wait(lambda: any(said.get("LEADERSHIP") == "standby" for said in first.history[heard:]), primary, rival)
    later = ends_stated(first)[stated:]
    assert all(later_term > term for later_term, _end in later)
    assert bench.ask(address, op="assign", term=1, job="x")["code"] in {"not-primary", "old-term"}


def test_two_processes_cannot_stand_under_one_name(bench: Bench) -> None:
    """A holder's name keeps its term, so a second process with it is refused, with status 71."""
    bench.leader()
    assert bench.ended(bench.start("controller")) == 71
    assert "another process does" in bench.logs()


def test_writes_under_an_old_term_are_refused(bench: Bench) -> None:
    """The second line: registration and assignments under an older term are refused, for whoever sends them."""
    process, address = bench.leader()
    bench.ask(address, op="standby")
    bench.ask(address, op="primary")
    bench.wait(lambda: bench.ask(address, op="status").get("stance") == "primary", process)
    assert bench.ask(address, op="register", term=1)["code"] == "old-term"
    assert bench.ask(address, op="assign", term=1, job="x")["code"] == "old-term"
    assert bench.ask(address, op="register", term=3)["code"] == "not-primary"
    assert bench.ask(address, op="assign", term=2, job="x")["code"] == "not-registered"
    assert bench.ask(address, op="register", term=2)["ok"] is True


def test_assignment_follows_slots_and_states(bench: Bench) -> None:
    """Jobs are offered while a slot is free; the worker gets what is assigned; a draining host gets nothing more."""
    _process, address = bench.leader()
    worker, scheduler = Talk(address), Talk(address)
    try:
        joined = worker.ask(op="join", host="h7", instance_id="i-7", slots=1, jobs=[], ended=[])
        assert (joined["state"], joined["epoch"]) == ("active", 1)
        scheduler.ask(op="register", term=1)
        jobs = bench.ask(address, op="submit", host="h7", seconds=5, count=2)["jobs"]
        offer = scheduler.hear("push")
        while not offer["queue"]:
            offer = scheduler.hear("push")
        assert offer["free"] == {"h7": 1}
        assert scheduler.ask(op="assign", term=1, job=jobs[0])["ok"] is True
        pushed = worker.hear("push")
        assert (pushed["push"], pushed["job"], pushed["seconds"]) == ("job", jobs[0], 5)
        assert scheduler.ask(op="assign", term=1, job=jobs[1])["code"] == "no-slot"
        worker.ask(op="job", job=jobs[0], state="ended", outcome="exit 0")
        drained = bench.ask(address, op="order", verb="drain", host="h7", deadline_s=60)
        assert drained["host"]["state"] == "draining"
        pushed = worker.hear("push")
        assert (pushed["push"], pushed["state"], pushed["epoch"]) == ("host", "draining", 2)
        assert 0 < pushed["deadline_in_s"] <= 60
        assert scheduler.ask(op="assign", term=1, job=jobs[1])["code"] == "no-slot"
        assert worker.ask(op="report", jobs=[])["state"] == "draining"
    finally:
        worker.close()
        scheduler.close()


def test_the_register_outlives_the_controller_and_is_shared(bench: Bench) -> None:
    """A decommissioned host is refused by a restarted controller, and by another one of the cluster."""
    process, address = bench.leader()
    join = {"op": "join", "host": "h7", "instance_id": "i-7", "slots": 1}
    assert bench.ask(address, **join)["ok"] is True
    assert bench.ask(address, op="order", verb="decommission", host="h7")["host"]["epoch"] == 2
    process.kill()
    bench.ended(process)
    process, address = bench.leader(XCE_REF_LEASE_S="1")
    refused = bench.ask(address, **join)
    assert (refused["code"], refused["state"], refused["epoch"]) == ("decommissioned", "decommissioned", 2)
    process.terminate()
    bench.ended(process)
    _rival, address = bench.leader(XCE_REF_HOLDER="c2")
    assert bench.ask(address, **join)["code"] == "decommissioned"
    fresh = bench.ask(address, **{**join, "instance_id": "i-8"})
    assert (fresh["ok"], fresh["state"]) == (True, "active")


def test_an_unreadable_register_is_not_an_empty_one(bench: Bench) -> None:
    """Nobody joins while it cannot be said who is decommissioned; the controller leads all the same."""
    (bench.directory / "register.json").write_bytes(b"{torn")
    process, address = bench.leader()
    answer = bench.ask(address, op="join", host="h7", instance_id="", slots=1)
    assert answer["code"] == "unavailable"
    assert "cannot read the host register" in bench.ask(address, op="status")["trouble"]
    (bench.directory / "register.json").unlink()
    bench.wait(lambda: bench.ask(address, op="join", host="h7", instance_id="", slots=1).get("ok") is True, process)


def test_with_a_full_disk_restrictions_hold_and_releases_wait(bench: Bench) -> None:
    """What cannot be written: a decommission holds at once and is written later, a recommission is refused."""
    process, address = bench.leader()
    join = {"op": "join", "host": "h7", "instance_id": "i-7", "slots": 1}
    bench.ask(address, **join)
    obstacle = bench.directory / f".register.json.{zlib.crc32(b'c1'):08x}.tmp"
    obstacle.mkdir()
    assert bench.ask(address, op="order", verb="decommission", host="h7")["ok"] is True
    assert bench.ask(address, **join)["code"] == "decommissioned"
    assert "cannot write the host register" in bench.ask(address, op="status")["trouble"]
    refused = bench.ask(address, op="order", verb="recommission", host="h7")
    assert refused["code"] == "unavailable"
    assert bench.ask(address, op="submit", host="h7", seconds=1)["code"] == "unavailable"
    assert bench.ask(address, **join)["code"] == "decommissioned"
    obstacle.rmdir()
    register = bench.directory / "register.json"
    bench.wait(lambda: json.loads(register.read_bytes())["hosts"][0]["state"] == "decommissioned", process)
    assert bench.ask(address, op="order", verb="recommission", host="h7")["ok"] is True
    assert bench.ask(address, **join)["state"] == "active"


@pytest.mark.parametrize("rubbish", [b"\n\n{}\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100_000, b'{"op": "join"}\n'])
def test_hostile_input_ends_its_own_connection(bench: Bench, rubbish: bytes) -> None:
    """Whatever arrives, its connection is closed after a word about why, and the controller goes on."""
    process, address = bench.leader()
    with socket.create_connection(address, timeout=20) as peer:
        peer.sendall(rubbish)
        assert b'"ok":false' in peer.recv(65536)
    assert bench.ask(address, op="status")["stance"] == "primary"
    assert process.poll() is None


def test_ctl_speaks_for_operators(bench: Bench) -> None:
    """`xce-reference ctl` prints JSON, finds the primary, and tells refusal and absence by its status."""
    _process, address = bench.leader()
    bench.ask(address, op="join", host="h7", instance_id="", slots=1)
    listing = _ctl(bench, f"127.0.0.1:1,{address}", "hosts")
    assert listing.returncode == 0
    assert json.loads(listing.stdout)["hosts"][0]["host"] == "h7"
    assert _ctl(bench, str(address), "drain", "h7", "--deadline", "5").returncode == 0
    refused = _ctl(bench, str(address), "drain", "h8")
    assert (refused.returncode, refused.stderr) == (1, "cannot find host 'h8': no such host has joined\n")
    assert _ctl(bench, "127.0.0.1:1", "status").returncode == 3
    assert _ctl(bench, str(address), "explode").returncode == 2


def _ctl(bench: Bench, controller: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return bench.call("ctl", "--controller", controller, *arguments)
