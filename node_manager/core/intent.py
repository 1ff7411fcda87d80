"""The intent ledger: which rule decides whether a component runs, and what else would.

Every rule that holds makes a claim. The claim of the highest precedence decides; the others stay visible, so that an
operator who lifts one sees beforehand what the next one will say.
"""

from node_manager.core.symbols import Symbol
from node_manager.core.values import dataclass


class Rule(Symbol):
    """The rules in order of precedence, the strongest first. Values are what status and API print."""

    DECOMMISSIONED = "decommissioned"
    NODE_STOPPING = "node-stopping"
    DRAINED = "drained"
    OPERATOR_HOLD = "operator-hold"
    EXIT_HOLD = "exit-hold"
    CONDITION = "condition"
    DEPENDENCY = "dependency"
    MAINTENANCE = "maintenance"
    START_LIMIT = "start-limit"
    BACKOFF = "backoff"
    CONFIGURED = "configured"


PRECEDENCE = {rule: place for place, rule in enumerate(Rule)}
STOPPING_RULES = frozenset({Rule.DECOMMISSIONED, Rule.NODE_STOPPING, Rule.DRAINED, Rule.OPERATOR_HOLD, Rule.CONDITION})
"""Rules that stop a component that runs, and under which it is desired down. The rest only keep one from starting."""
REFUSES_START = frozenset({Rule.DECOMMISSIONED, Rule.NODE_STOPPING, Rule.DRAINED, Rule.CONDITION})
"""What refuses a manual start; it lifts or overrides the rest, and waits for a dependency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One rule that holds: its sentence, and since when where that is known (CLOCK_BOOTTIME)."""

    rule: Rule
    reason: str
    since_ns: int | None = None
    by: str | None = None
    at_wall_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What a start under leased facts is bound to. Times are CLOCK_BOOTTIME."""

    terms: tuple[tuple[str, int], ...]
    valid_until_ns: int
    not_after_ns: int
    """The command must not be executed later than this: there would be no time left to stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What the ledger asks of a component now; the input from the node to the component's machine."""

    up: bool
    rule: Rule
    reason: str
    waits: Claim | None = None
    """Up, but not to be started yet: a dependency that is not ready, or maintenance. Nothing to a run that exists."""
    held: bool = False
    """Down, but its turn to stop has not come: what depends on it is still there."""
    kill: bool = False
    """Down at once, without the stop signal."""
    clear_tree: bool = False
    """Down with everything it started, whatever its kill scope: a drain policy that says so."""
    patient: bool = False
    """Maintenance: no probe kills it."""
    lease: Lease | None = None


def ruling(claims: list[Claim]) -> Claim:
    """Return the claim that decides. `claims` is not empty: `configured` always holds."""
    return claims[0] if len(claims) == 1 else min(claims, key=lambda claim: PRECEDENCE[claim.rule])


def by_precedence(claims: list[Claim]) -> tuple[Claim, ...]:
    """Return the claims, the deciding one first."""
    return tuple(sorted(claims, key=lambda claim: PRECEDENCE[claim.rule]))
