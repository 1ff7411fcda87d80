"""Specs and durable facts as JSON: nothing is lost, nothing unexpected is accepted."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_manager.config.codec import decode_facts, decode_spec, encode_facts, encode_spec
from node_manager.core.durable import DurableFacts, Hold, Latch, Maintenance
from node_manager.core.spec import (
    CommandSpec,
    ComponentSpec,
    DrainSpec,
    ExecCheck,
    ExitMeaning,
    HeartbeatCheck,
    HostSpec,
    HttpCheck,
    NodeSpec,
    NotifyCheck,
    ProbeSpec,
    TcpCheck,
)

# Hypothesis builds every field, defaults included, from the type hints: a new field is covered the day it appears.
CHECKS = st.one_of(*(st.builds(kind) for kind in (ExecCheck, TcpCheck, HttpCheck, HeartbeatCheck, NotifyCheck)))
PROBES = st.none() | st.builds(ProbeSpec, check=CHECKS)
HOW = st.none() | st.integers(1, 64) | st.builds(CommandSpec)
COMPONENTS = st.builds(
    ComponentSpec,
    startup=PROBES,
    readiness=PROBES,
    liveness=PROBES,
    reload=HOW,
    drain=st.none() | st.builds(DrainSpec, how=HOW),
    pre_start=st.none() | st.builds(CommandSpec),
    environment=st.lists(st.tuples(st.text(), st.text()), max_size=3).map(tuple),
    exit_status=st.lists(st.tuples(st.integers(0, 255), st.sampled_from(ExitMeaning)), max_size=3).map(tuple),
)
SPECS = st.builds(NodeSpec, host=st.builds(HostSpec), components=st.lists(COMPONENTS, max_size=2).map(tuple))
LATCHES = st.none() | st.builds(Latch, epoch=st.none() | st.integers(), deadline_ns=st.none() | st.integers())
FACTS = st.builds(
    DurableFacts,
    identity=st.text(),
    epoch_seen=st.integers(),
    released_epoch=st.integers(),
    controller_latch=LATCHES,
    operator_latch=LATCHES,
    holds=st.lists(st.builds(Hold), max_size=3).map(tuple),
    maintenance=st.none() | st.builds(Maintenance),
)

PLAIN = NodeSpec(
    host=HostSpec(name="h"),
    roles=("r",),
    components=(
        ComponentSpec(
            name="a",
            role="r",
            command=("x",),
            reload=CommandSpec(command=("y",)),
            liveness=ProbeSpec(check=TcpCheck(port=1)),
            exit_status=((1, ExitMeaning.HOLD),),
        ),
    ),
)


@settings(max_examples=60, deadline=None)
@given(SPECS)
def test_a_spec_survives_json(spec: NodeSpec) -> None:
    """The last good configuration and the child's answer are the configuration."""
    assert decode_spec(json.loads(json.dumps(encode_spec(spec)))) == spec


@settings(max_examples=60, deadline=None)
@given(FACTS)
def test_durable_facts_survive_json(facts: DurableFacts) -> None:
    """A latch read from the disk is the latch that was written."""
    assert decode_facts(json.loads(json.dumps(encode_facts(facts)))) == facts


def encoded() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(encode_spec(PLAIN)))
    return data


def test_what_is_written_is_what_the_docs_say() -> None:
    """Enums are their values, tuples are lists, the members of a union name their kind."""
    component = encoded()["components"][0]
    assert component["liveness"]["check"] == {"kind": "TcpCheck", "port": 1, "host": "127.0.0.1"}
    assert component["reload"] == {"kind": "CommandSpec", "command": ["y"], "timeout_ns": 10_000_000_000}
    assert component["exit_status"] == [[1, "hold"]]
    assert component["stop"]["kill_scope"] == "tree"
    assert component["pre_start"] is None


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("host",), None, "spec.host: object expected, NoneType found"),
        (("host", "name"), 5, "spec.host.name: str expected, int found"),
        (("roles",), "manager", "spec.roles: list expected, str found"),
        (("roles", 0), None, "spec.roles[0]: str expected, NoneType found"),
        (("extra",), 1, "spec: unexpected extra"),
        (("components", 0, "stop", "timeout_ns"), True, "stop.timeout_ns: int expected, bool found"),
        (("components", 0, "stop", "timeout_ns"), 1.5, "stop.timeout_ns: int expected, float found"),
        (("components", 0, "stop", "kill_scope"), "all", "'all' is not one of ['tree', 'process']"),
        (("components", 0, "stop", "kill_scope"), ["tree"], "['tree'] is not one of"),
        (("components", 0, "liveness", "check", "kind"), "PingCheck", "'PingCheck' is not a kind"),
        (("components", 0, "liveness", "check", "kind"), ["TcpCheck"], "is not a kind that may stand there"),
        (("components", 0, "liveness", "check"), 7, "liveness.check: int may not stand there"),
        (("components", 0, "reload"), "HUP", "reload: str may not stand there"),
        (("components", 0, "reload"), True, "reload: bool may not stand there"),
        (("components", 0, "exit_status", 0), [1], "exit_status[0]: 2 items expected, 1 found"),
    ],
)
def test_anything_unexpected_is_refused_by_name(path: tuple[str | int, ...], value: object, sentence: str) -> None:
    """A file of another version or a damaged one is never half understood."""
    data = encoded()
    at: Any = data
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(ValueError, match=r"^cannot decode spec") as raised:
        decode_spec(data)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("data", [None, [], "x", 5, {}])
def test_what_is_no_record_is_refused(data: object) -> None:
    """An empty or foreign JSON file is not a record without latches."""
    with pytest.raises(ValueError, match=r"^cannot decode facts: "):
        decode_facts(data)


def test_a_missing_latch_is_not_no_latch() -> None:
    """A record that lost a field is damaged: absence of evidence does not release a host."""
    data = encode_facts(DurableFacts())
    del data["controller_latch"]
    with pytest.raises(ValueError, match="cannot decode facts: controller_latch missing"):
        decode_facts(data)
