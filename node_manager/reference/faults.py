"""Deliberate misbehaviour, for tests of whoever supervises: `XCE_REF_FAULT`, a comma list. Never set it otherwise.

`ignore-term` ignores SIGTERM; `unfenced` lets a leased program go on after its lease, as one does that has no second
line: only who supervises it ends it; `slow-start=S` opens nothing for S seconds; `mute` sends no heartbeats;
`crash-after=S` exits with status 70 S seconds after the start; `hang-after=S` stops doing anything at all.
"""

from dataclasses import dataclass

from node_manager.reference.clock import NS_PER_S

MAX_FAULT_S = 86_400.0
"""A test that waits for more than a day is a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What to do wrong. None and False: nothing."""

    ignore_term: bool = False
    unfenced: bool = False
    mute: bool = False
    slow_start_ns: int | None = None
    crash_after_ns: int | None = None
    hang_after_ns: int | None = None


def parse_faults(text: str) -> Faults:
    """Read the value of XCE_REF_FAULT. ValueError names the word that is not understood."""
    flags: set[str] = set()
    delays: dict[str, int] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, separator, amount = word.partition("=")
        if not separator and name in {"ignore-term", "unfenced", "mute"}:
            flags.add(name)
        elif separator and name in {"slow-start", "crash-after", "hang-after"}:
            delays[name] = _seconds(word, amount)
        else:
            known = "ignore-term, unfenced, mute, slow-start=S, crash-after=S, hang-after=S"
            raise ValueError(f"{word!r} is none of {known}")
    return Faults(
        ignore_term="ignore-term" in flags,
        unfenced="unfenced" in flags,
        mute="mute" in flags,
        slow_start_ns=delays.get("slow-start"),
        crash_after_ns=delays.get("crash-after"),
        hang_after_ns=delays.get("hang-after"),
    )


def _seconds(word: str, amount: str) -> int:
    seconds = float(amount)
    if not 0 <= seconds <= MAX_FAULT_S:
        raise ValueError(f"{word!r}: seconds must be between 0 and {MAX_FAULT_S:.0f}")
    return int(seconds * NS_PER_S)
