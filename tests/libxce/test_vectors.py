"""The shared test vectors against the Python side: the agent's codec and the client."""

import socket
from pathlib import Path

import pytest

from node_manager.core.events import Beat
from node_manager.core.spec import NS_PER_MS
from node_manager.heartbeat.client import HeartbeatClient
from node_manager.heartbeat.codec import MalformedRecord, beat_from, decode, part_of, read_integer
from tests.libxce.vectorfile import Vector, vectors

CASES = list(vectors())


def of(*sources: str) -> list[Vector]:
    return [vector for vector in CASES if vector.source in sources]


def name_of(vector: Vector) -> str:
    return vector.name


@pytest.mark.parametrize("vector", of("any"), ids=name_of)
def test_the_grammar(vector: Vector) -> None:
    """The codec takes apart what the protocol allows, and refuses everything else."""
    (record,) = vector.records
    if vector.malformed:
        with pytest.raises(MalformedRecord):
            part_of(decode(record))
        return
    fields = decode(record)
    part_of(fields)
    match vector.known:
        case [("KEYS", count)]:
            assert int(count) == len(fields)
        case [("SIZE", size)]:
            assert [int(size)] == [len(value) for value in fields.values()]
        case known:
            assert dict(known) == fields


@pytest.mark.parametrize("vector", of("component"), ids=name_of)
def test_what_a_component_says(vector: Vector) -> None:
    """The agent understands each key of a component's record, and refuses a value out of its range."""
    (record,) = vector.records
    if vector.malformed:
        with pytest.raises(MalformedRecord):
            beat_from(decode(record), "worker", 1)
        return
    beat = beat_from(decode(record), "worker", 1)
    match vector.known:
        case [("LEASES", count)]:
            assert int(count) == len(beat.leases)
        case known:
            assert sorted(item for item in known if item[0] != "component") == sorted(facts_of(beat))


def facts_of(beat: Beat) -> list[tuple[str, str]]:
    """What a beat says, in the vectors' words."""
    known: dict[str, object] = {
        "hello": 1 if beat.hello else None,
        "interval_ms": None if beat.interval_ns is None else beat.interval_ns // NS_PER_MS,
        "template": beat.template,
        "beat": beat.beat,
        "ready": None if beat.ready is None else int(beat.ready),
        "stopping": None if beat.stopping is None else int(beat.stopping),
        "status": beat.status,
        "progress": beat.progress,
        "jobs": beat.jobs,
        "leadership": None if beat.leadership is None else beat.leadership.value,
        "term": beat.term,
        "valid_until_ns": beat.valid_until_ns,
        "host_state": None if beat.host_state is None else beat.host_state.value,
        "epoch": beat.epoch,
        "drain_deadline_ns": beat.drain_deadline_ns,
    }
    found = [(key, str(value)) for key, value in known.items() if value is not None]
    for lease in beat.leases:
        word = "held" if lease.held else "lost"
        found.append(("lease", f"{lease.name} {word} {said(lease.token)} {said(lease.valid_until_ns)}"))
    return found


def said(value: object) -> str:
    return "-" if value is None else str(value)


class Agent:
    """The other end of a client's connection, which says what it is told to."""

    def __init__(self, place: Path) -> None:
        self.path = place / "heartbeat.sock"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.sock: socket.socket | None = None

    def accept(self) -> socket.socket:
        self.sock, _ = self.listener.accept()
        return self.sock

    def close(self) -> None:
        for sock in (self.listener, self.sock):
            if sock is not None:
                sock.close()


@pytest.mark.parametrize("vector", [vector for vector in of("component") if vector.sends], ids=name_of)
def test_what_a_client_sends(vector: Vector, tmp_path: Path) -> None:
    """The client says its state in exactly the record that every sender makes of it."""
    known = dict(vector.known)
    agent = Agent(tmp_path)
    client = HeartbeatClient(
        known["component"], str(agent.path), interval_ms=int(known["interval_ms"]), template=known.get("template")
    )
    state(client, known, vector)
    client.service()
    record = agent.accept().recv(65536)
    client.close()
    agent.close()
    assert vector.records[0] == record


def state(client: HeartbeatClient, known: dict[str, str], vector: Vector) -> None:
    """Tell the client what the vector knows."""
    if "ready" in known:
        client.set_ready(known["ready"] == "1")
    if "stopping" in known:
        client.set_stopping()
    if "status" in known:
        client.set_status(vector.set_status or known["status"])
    if "progress" in known:
        client.set_progress(int(known["progress"]))
    if "jobs" in known:
        client.set_jobs(int(known["jobs"]))
    if "leadership" in known:
        client.set_leadership(known["leadership"] == "primary", int(known["term"]), number(known.get("valid_until_ns")))
    if "host_state" in known:
        client.set_host_state(known["host_state"], int(known["epoch"]), number(known.get("drain_deadline_ns")))
    for key, text in vector.known:
        if key == "lease":
            name, word, token, until = text.split()
            client.set_lease(name, word == "held", number(token), number(until))


def number(text: str | None) -> int | None:
    return None if text in {None, "-"} else int(text or "")


@pytest.mark.parametrize("vector", of("agent"), ids=name_of)
def test_what_an_agent_says(vector: Vector, tmp_path: Path) -> None:
    """The client knows after the agent's records what every component knows after them, and no more."""
    agent = Agent(tmp_path)
    client = HeartbeatClient("c", str(agent.path))
    client.service()
    sock = agent.accept()
    for record in vector.records:
        sock.send(record)
    client.service()
    closed = client.fileno() < 0
    client.close()
    agent.close()
    assert vector.malformed == closed
    assert sorted(vector.known) == sorted(view_of(client))


def view_of(client: HeartbeatClient) -> list[tuple[str, str]]:
    """What a client knows, in the vectors' words."""
    view = client.agent
    known: dict[str, object] = {
        "drain": int(view.drain),
        "drain_deadline_ns": view.drain_deadline_ns,
        "undrain": int(view.undrain),
        "epoch": view.epoch,
        "decommissioned": int(view.decommissioned),
        "seen_epoch": view.seen_epoch,
        "node_stopping": int(view.node_stopping),
        "node": view.node,
        "instance_id": view.instance_id,
        "boot_id": view.boot_id,
        "roles": ",".join(view.roles),
    }
    found = [(key, str(value)) for key, value in known.items() if value]
    if "REJOIN_BUDGET_MS" in view.levels:
        found.append(("rejoin_budget_ms", view.levels["REJOIN_BUDGET_MS"]))
    for name, (value, term, until) in view.facts.items():
        word = {True: "true", False: "false", None: "unknown"}[value]
        found.append(("fact", f"{name} {word} {said(term)} {said(until)}"))
    for name, state_word in view.components.items():
        component = STATES.get(state_word, "unknown")
        attributes = (f"COMPONENT.{name}.RESTARTS", f"COMPONENT.{name}.EXPECTED_BACK_MS")
        restarts, back = (said(read_integer(view.levels.get(key))) for key in attributes)
        found.append(("component", f"{name} {component} {restarts} {back}"))
    return found


STATES = {
    word: word for word in ("stopped", "starting", "running", "stopping", "killing", "backoff", "exited", "failed")
}
