"""From an operator's word to a durable one: what is in force now, what is being written, who waits for an answer.

`durable` is the newest record known to be on the disk. `pending` are the changes after it, oldest first, each with
the sequence number of the write that carries it. In force is the durable record with the restrictive pending changes
applied: they act at once. A permissive change acts when it is durable, so a crash can never have allowed what the
disk does not say.
"""

from dataclasses import field

from node_manager.core import latches
from node_manager.core.changed import replace
from node_manager.core.durable import DurableFacts
from node_manager.core.events import Command
from node_manager.core.latches import Change
from node_manager.core.spec import NS_PER_S
from node_manager.core.values import dataclass

MAX_PENDING = 256
"""Bound on changes that wait for the disk; beyond it an operator's command is refused, not queued."""
RETRY_NS = 1 * NS_PER_S
"""How soon a failed write is tried again: a full disk may be freed at any moment, and one write costs little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """One change on its way to the disk, and the command that waits for it."""

    seq: int
    change: Change
    command: Command | None = None
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writeback:
    """See the module."""

    durable: DurableFacts = field(default_factory=DurableFacts)
    pending: tuple[Pending, ...] = ()
    in_force: DurableFacts = field(default_factory=DurableFacts)
    next_seq: int = 1
    error: str | None = None
    retry_at_ns: int | None = None


def add(wb: Writeback, item: Pending) -> Writeback:
    """Return the state with one more change, in force at once where it is restrictive. `item.seq` is `next_seq`."""
    return _in_force(replace(wb, pending=(*wb.pending, item), next_seq=wb.next_seq + 1))


def target(wb: Writeback) -> DurableFacts:
    """Return the record that is to be on the disk when everything pending is written."""
    facts = wb.durable
    for item in wb.pending:
        facts = latches.apply(facts, item.change)
    return facts


def written(wb: Writeback, seq: int) -> tuple[Writeback, tuple[Pending, ...]]:
    """Return the state after the write `seq` succeeded, and the changes that became durable with it."""
    done = tuple(item for item in wb.pending if item.seq <= seq)
    facts = wb.durable
    for item in done:
        facts = latches.apply(facts, item.change)
    left = tuple(item for item in wb.pending if item.seq > seq)
    return _in_force(replace(wb, durable=facts, pending=left, error=None, retry_at_ns=None)), done


def failed(wb: Writeback, error: str, now: int) -> Writeback:
    """Return the state after a write failed."""
    if not wb.pending:
        return wb  # a write that was repeated: an earlier one has brought everything to the disk
    return replace(wb, error=error, retry_at_ns=now + RETRY_NS)


def _in_force(wb: Writeback) -> Writeback:
    facts = wb.durable
    for item in wb.pending:
        if not latches.is_permissive(facts, item.change):
            facts = latches.apply(facts, item.change)
    return replace(wb, in_force=facts)
