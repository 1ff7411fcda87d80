"""The facts of this host as status lists them: who states each, and since when."""

from collections.abc import Iterator
from typing import TypedDict

from node_manager.core import facts, latches
from node_manager.core.events import HostState
from node_manager.core.nodestate import NodeState
from node_manager.core.spec import NS_PER_MS


class FactStatus(TypedDict):
    """One fact. `term` is the epoch where the fact is a `host.*`; `value` None: unknown."""

    name: str
    value: bool | None
    authority: str
    term: int | None
    valid_until_ns: int | None
    age_ms: int | None


def listing(node: NodeState, now: int) -> list[FactStatus]:
    """Return the leased facts that have an authority here, and of the latched ones those that are not false."""
    return [*_leased(node, now), *_host(node, now), *_operators(node, now)]


def _leased(node: NodeState, now: int) -> Iterator[FactStatus]:
    for name, authority in sorted(node.index.authorities.items()):
        if not facts.is_leased(name):
            continue
        fact = node.table.leased.get(name)
        yield FactStatus(
            name=name,
            value=facts.value(node.table, name, now),
            authority=authority,
            term=None if fact is None else fact.term,
            valid_until_ns=None if fact is None else fact.valid_until_ns,
            age_ms=None if fact is None else (now - fact.stated_ns) // NS_PER_MS,
        )


def _host(node: NodeState, now: int) -> Iterator[FactStatus]:
    record = node.in_force
    latch = latches.ruling_latch(record)
    for state in HostState:
        name = f"{facts.HOST_PREFIX}{state.value}"
        if state is HostState.ACTIVE or not latches.reached(record, name):
            continue
        if latch is None or record.doubt is not None:
            # The record is in doubt: what depends on it is held, but nobody has stated it.
            yield FactStatus(
                name=name, value=None, authority="node manager", term=None, valid_until_ns=None, age_ms=None
            )
        else:
            yield _latched(node, name, latch.by, latch.at_wall_ns, now, latch.epoch)


def _operators(node: NodeState, now: int) -> Iterator[FactStatus]:
    maintenance = node.in_force.maintenance
    if maintenance is not None:
        yield _latched(node, "node.maintenance", maintenance.by, maintenance.at_wall_ns, now)
    for hold in sorted(node.in_force.holds, key=lambda hold: hold.component):
        yield _latched(node, f"operator.hold.{hold.component}", hold.by, hold.at_wall_ns, now)


def _latched(
    node: NodeState, name: str, authority: str, at_wall_ns: int, now: int, term: int | None = None
) -> FactStatus:
    age_ns = max(0, now + node.wall_offset_ns - at_wall_ns)
    return FactStatus(
        name=name, value=True, authority=authority, term=term, valid_until_ns=None, age_ms=age_ns // NS_PER_MS
    )
