"""What was injected and what came of it, per test and in all."""

from collections import Counter
from collections.abc import Mapping

INJECTED = "faults injected"
HARM = ("components lost", "components doubled", "processes orphaned", "processes wrongly signalled")
"""What must never come of a fault."""


class Ledger:
    """The account of one test. Harm is written down when found, so that the summary has it though a test fails."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter({INJECTED: 0} | dict.fromkeys(HARM, 0))

    def inject(self, count: int = 1) -> None:
        """Note faults that were really injected."""
        self.counts[INJECTED] += count

    def harm(self, kind: str, found: list[str]) -> None:
        """Note harm, each with a sentence, and fail if there is any."""
        assert kind in HARM
        self.counts[kind] += len(found)
        assert found == [], f"{kind}: {'; '.join(found)}"


def render(counts: Mapping[str, int], tests: int) -> list[str]:
    """Return the summary's lines."""
    width = max(map(len, (INJECTED, *HARM)))
    return [
        f"{name:<{width}}  {counts.get(name, 0)}" + (f"  in {tests} tests" if name == INJECTED else "")
        for name in (INJECTED, *HARM)
    ]
