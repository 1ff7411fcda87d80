"""The core's state on its way between two versions of the program."""

import json
import os
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from node_manager.core.nodestate import NodeState
from node_manager.runtime import carry
from tests.property.hosts import HOSTS
from tests.property.test_node_histories import Histories
from tests.unit.core.world import World


def on_the_way(value: Any) -> Any:
    return json.loads(json.dumps(carry.encode(value)))


class Carried(Histories):
    """Random histories of a node, whose state is carried over after every step."""

    @invariant()
    def nothing_is_lost(self) -> None:
        state = self.world.state
        assert state == carry.decode(NodeState, on_the_way(state), "state")


# A time-out within it would be taken for a history that fails, and reported as one that fails only now and then.
@pytest.mark.timeout(1800)
def test_every_state_arrives_as_it_was() -> None:
    """Whatever a node has come to, its successor has the very same state. `XCE_RANDOM=1` draws new histories."""
    run_state_machine_as_test(
        Carried,
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            derandomize="XCE_RANDOM" not in os.environ,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    name: str
    dropped: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class New:
    name: str
    added: int = 7
    needed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    name: str
    added: int = 7


def test_a_version_with_other_fields_takes_over() -> None:
    """A field that the older version did not have takes its default; one that only that had is left out."""
    data = on_the_way(Old(name="a")) | {"kind": "Grown"}
    assert Grown(name="a") == carry.decode(Grown, data, "state")


def test_a_field_without_a_default_is_needed() -> None:
    """What the older version cannot have meant is not made up."""
    with pytest.raises(ValueError, match="state has no needed"):
        carry.decode(New, on_the_way(Old(name="a")) | {"kind": "New"}, "state")


def change(data: Any, path: str, value: object) -> Any:
    """Return the data with another value at a path such as `members.api.state`."""
    *parents, last = path.split(".")
    place = data
    for name in parents:
        place = place[name]
    place[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("phase", "resting"),
        ("boot_id", 5),
        ("finished", 1),
        ("wall_offset_ns", True),
        ("wall_offset_ns", "5"),
        ("members", []),
        ("members.api.state", None),
        ("members.api.state.kind", "Component"),
        ("members.api.spec.readiness.check.kind", "SmtpCheck"),
        ("members.api.spec.command", "api"),
        ("members.api.state.run", 1),
        ("writeback.pending", [{"kind": "Pending", "seq": 1, "change": {"kind": "Unheard"}}]),
    ],
)
def test_what_is_not_understood_is_refused(path: str, value: object) -> None:
    """A state half understood would be acted on wrongly: it is refused, and the place is named."""
    world = World()
    world.spec = HOSTS[0]
    world.boot_agent(())
    with pytest.raises(ValueError, match=r"^state"):
        carry.decode(NodeState, change(on_the_way(world.state), path, value), "state")
