"""What was found, for people."""

import statistics
from collections import Counter

from node_manager.reference.clock import NS_PER_MS, NS_PER_S
from tests.cluster.faults import KINDS
from tests.cluster.rounds import Outcome

MAX_SHOWN = 20
"""Failures: one fault may show at every sign of a scheduler."""


def render(outcome: Outcome, *, title: str, seconds: float) -> list[str]:
    """The summary's lines."""
    rounds = outcome.rounds
    lines = ["", title]
    for kind in KINDS:
        of_kind = [done for done in rounds if done.fault.kind == kind]
        targets = Counter(done.fault.target for done in of_kind)
        listed = ", ".join(f"{target} {count}" for target, count in targets.items())
        lines.append(f"  {kind:<16}{len(of_kind):4} rounds   {listed}")
    again = sorted(done.again_ns for done in rounds if done.again_ns)
    errors = sorted(done.fuse_error_ns for done in rounds if done.fuse_error_ns is not None)
    past = [done.past_lease_ns for done in rounds if done.past_lease_ns is not None]
    lines += [
        f"  rounds {len(rounds)} in {seconds:.0f} s; terms {outcome.terms}; signs of schedulers {outcome.signs}",
        f"  another scheduler in {len(again)} rounds, on another host in {sum(done.moved for done in rounds)}",
        f"  ended by the fuse {sum(done.fused for done in rounds)}",
    ]
    if again:
        lines.append(f"  one again after {_s(statistics.median(again))} s (median), {_s(again[-1])} s (longest)")
    lines.append(f"  longest gap without a scheduler {_s(outcome.longest_gap_ns)} s")
    if errors:
        lines.append(
            f"  fuse: killed {_ms(errors[0])} to {_ms(errors[-1])} ms from valid_until - margin, "
            f"median {_ms(statistics.median(errors))} ms ({len(errors)} kills)"
        )
    if past:
        lines.append(f"  nearest death to the end of a lease {_ms(max(past))} ms (negative: before it)")
    lines += [
        f"  the observer looked at least every {outcome.blind_ns / NS_PER_MS:.1f} ms",
        f"  overlaps: {outcome.overlaps}",
        *(f"  FAILED {failure}" for failure in outcome.failures[:MAX_SHOWN]),
    ]
    if len(outcome.failures) > MAX_SHOWN:
        lines.append(f"  FAILED and {len(outcome.failures) - MAX_SHOWN} more")
    return lines


def _s(value_ns: float) -> str:
    return f"{value_ns / NS_PER_S:.2f}"


def _ms(value_ns: float) -> str:
    return f"{value_ns / NS_PER_MS:+.1f}"
