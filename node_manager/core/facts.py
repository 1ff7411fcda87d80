"""Leased facts: who may state them, how long they hold, and what a condition on them says.

A leased fact (`controller.primary`, `lease.NAME`) is worth exactly what its authority last validly stated. A refused
statement, garbage, a closed connection, an authority that exits: all are silence, and silence lets the fact stand
until its own end and not an instant longer (DESIGN, "Facts").
"""

from collections.abc import Mapping
from dataclasses import field

from node_manager.core.changed import replace
from node_manager.core.events import KeptLease
from node_manager.core.intent import Lease
from node_manager.core.spec import NS_PER_S, ComponentSpec, stop_budget_ns
from node_manager.core.values import dataclass

PRIMARY = "controller.primary"
LEASE_PREFIX = "lease."
HOST_PREFIX = "host."


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedFact:
    """The last valid statement. `term` is the fencing token where the fact is a `lease.NAME`."""

    name: str
    authority: str
    value: bool
    term: int
    valid_until_ns: int
    stated_ns: int
    restored: bool = False
    """An earlier agent heard it; when, is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactTable:
    """All leased facts of this boot, and the highest term ever stated for each."""

    leased: Mapping[str, LeasedFact] = field(default_factory=dict)
    highest: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What an authority says about one leased fact, as it came."""

    fact: str
    authority: str
    value: bool
    term: int | None
    valid_until_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Whether one condition holds for one dependant, or why not; `until_ns` is when it stops holding by itself."""

    met: bool
    reason: str = ""
    until_ns: int | None = None


def is_leased(fact: str) -> bool:
    """Tell whether the fact has a term and a validity."""
    return fact == PRIMARY or fact.startswith(LEASE_PREFIX)


def refusal(table: FactTable, said: Statement, max_lease_ns: int, now: int) -> str | None:
    """Return why a statement is not believed, or None."""
    if said.term is None:
        return "no term"
    if said.term < table.highest.get(said.fact, 0):
        return f"term {said.term} is older than {table.highest[said.fact]}"
    if not said.value:
        return None
    if said.valid_until_ns is None:
        return "no validity"
    if said.valid_until_ns > now + max_lease_ns:
        return f"valid for longer than the {max_lease_ns / NS_PER_S:g} s that the role file allows"
    if said.valid_until_ns <= now:
        return "its validity has passed already"
    return None


def state(table: FactTable, said: Statement, now: int) -> FactTable:
    """Return the table after a statement that `refusal` did not refuse.

    Under the same term a validity never shrinks: what was validly stated holds until its own end. Standby ends a
    fact at once, and the term it names is remembered.
    """
    term = said.term
    assert term is not None
    old = table.leased.get(said.fact)
    until = now if said.valid_until_ns is None or not said.value else said.valid_until_ns
    if old is not None and old.value and said.value and old.term == term:
        until = max(until, old.valid_until_ns)
    new = LeasedFact(
        name=said.fact, authority=said.authority, value=said.value, term=term, valid_until_ns=until, stated_ns=now
    )
    highest = {**table.highest, said.fact: max(term, table.highest.get(said.fact, 0))}
    return FactTable(leased={**table.leased, said.fact: new}, highest=highest)


def is_news(old: LeasedFact | None, new: LeasedFact, spec: ComponentSpec, now: int) -> bool:
    """Tell whether a statement can change what is decided about `spec`, which has a condition on the fact.

    An authority says the same again with each of its heartbeats: then only the instant of the statement is new, and
    that counts for nothing but the reason why a lease near its end is not enough.
    """
    if old is None or old.value is not new.value or old.term != new.term or old.restored:
        return True
    if not new.value:
        return False
    return old.valid_until_ns != new.valid_until_ns or now >= new.valid_until_ns - stop_budget_ns(spec)


def restore(leases: tuple[KeptLease, ...], highest: tuple[tuple[str, int], ...], now: int) -> FactTable:
    """Return the table that an earlier agent of this boot had recorded."""
    leased = {
        kept.fact: LeasedFact(
            name=kept.fact,
            authority=kept.authority,
            value=kept.value,
            term=kept.term,
            valid_until_ns=kept.valid_until_ns,
            stated_ns=now,
            restored=True,
        )
        for kept in leases
    }
    terms = dict(highest)
    for fact in leased.values():
        terms[fact.name] = max(fact.term, terms.get(fact.name, 0))
    return FactTable(leased=leased, highest=terms)


def only_of(table: FactTable, authorities: Mapping[str, str]) -> FactTable:
    """Return the table without facts whose authority the configuration no longer names."""
    kept = {name: fact for name, fact in table.leased.items() if authorities.get(name) == fact.authority}
    return table if len(kept) == len(table.leased) else replace(table, leased=kept)


def value(table: FactTable, name: str, now: int) -> bool | None:
    """Return what is known of a leased fact at `now`; None: unknown."""
    fact = table.leased.get(name)
    if fact is None or (fact.value and now >= fact.valid_until_ns):
        return None
    return fact.value


def condition(table: FactTable, name: str, spec: ComponentSpec, now: int) -> Condition:
    """Return whether `spec` may run under the leased fact `name`.

    It must end early enough before the lease that there is time to stop: `stop_budget_ns`.
    """
    fact = table.leased.get(name)
    if fact is None:
        return Condition(met=False, reason=f"{name} is unknown: nobody has stated it since this boot")
    if not fact.value:
        return Condition(met=False, reason=f"{name} is false: {fact.authority} gave it up (term {fact.term})")
    budget_ns = stop_budget_ns(spec)
    if now < fact.valid_until_ns - budget_ns:
        return Condition(met=True, until_ns=fact.valid_until_ns - budget_ns)
    if not fact.restored and fact.valid_until_ns - fact.stated_ns <= budget_ns:
        return Condition(
            met=False,
            reason=f"{name}: the lease stated under term {fact.term} is too short for the stop budget of "
            f"{budget_ns / NS_PER_S:g} s",
        )
    return Condition(met=False, reason=f"{name} is unknown: the lease of term {fact.term} was not renewed in time")


def lease_of(table: FactTable, spec: ComponentSpec, now: int) -> Lease | None:
    """Return what a start of `spec` is bound to now, or None where it depends on no leased fact that holds."""
    held = [table.leased[name] for name in spec.run_while if is_leased(name) and value(table, name, now)]
    if not held:
        return None
    until = min(fact.valid_until_ns for fact in held)
    return Lease(
        terms=tuple((fact.name, fact.term) for fact in held),
        valid_until_ns=until,
        not_after_ns=until - stop_budget_ns(spec),
    )
