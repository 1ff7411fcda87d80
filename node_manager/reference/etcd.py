"""A lease in etcd, over the JSON gateway of its version 3 API: a `LeaseStore` for several hosts.

Two keys. `NAME` is the record: who has the lease. It is bound to a lease of etcd's, and vanishes with that. `NAME/term`
is written with each new leadership and never bound: the store's revision at that writing is the term, so it is known,
and never goes down, however often the record vanishes.

A renewal is a **new** lease of etcd's, to which the record is bound in a transaction that says which revision of the
record it must still be: a request that was held up somewhere, and is carried out late, changes nothing. etcd's own
renewal (`/v3/lease/keepalive`) is not used: it is answered by whoever believes to lead, without asking the other
members, and a leader that was stopped may answer it after others have elected another, or end leases that were renewed
elsewhere meanwhile (etcd-io/etcd#15247, #12528). A lease that is never renewed ends nowhere before its time, and
granting and binding go through the members' agreement. docs/decisions/0008-leases-in-etcd.md has the argument.

A rival takes the record over when it has vanished, or when it has seen the same revision of it for longer than its
holder can have the lease: what a holder states counts from before the writing, what a rival waits for counts from after
it. So a new leader of etcd's, which prolongs every lease, keeps nobody waiting.

Every step of a question is one request with a deadline. What fails is "unknown", and the next question goes to the
next endpoint: members that are down, cut off, without a leader, out of space, or that have lost a lease, all alike.
Only the present is read, never an old revision: compaction changes nothing.
"""

import base64
import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from node_manager.reference.clock import NS_PER_MS, NS_PER_S, boottime_ns
from node_manager.reference.httpcall import Answered, Call
from node_manager.reference.lease import (
    MAX_HOLDER,
    MAX_TERM,
    RATE_MARGIN_DIVISOR,
    Answer,
    Free,
    Held,
    Taken,
    Unknown,
)
from node_manager.reference.loop import MAX_WAIT_NS, Loop
from node_manager.reference.settings import Address

TIMEOUTS_PER_LEASE = 8
"""A member that does not answer costs an eighth of the lease, so that a renewal has time for each of three."""
MAX_TIMEOUT_NS = 2 * NS_PER_S

Json = dict[str, Any]
Steps = Generator[tuple[str, Json], Json, Answer]
"""The requests of one question: each yields path and body, and gets the body of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """Who has the lease, and for how long from each writing on. 0: it cannot be read, nobody knows."""

    holder: str
    identity: str
    lease_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The two keys at one moment. `record` None: there is none; `term` 0: never a leadership."""

    record: "_Record | None"
    revision: int
    """Of the last writing of the record; 0: there is none."""
    term: int


class _StrangeError(Exception):
    """An answer that is no answer, or a store that cannot be right."""


class EtcdLease:
    """The lease `name` at any of `endpoints`. `identity` tells this holder from every other process that ever stood."""

    def __init__(
        self,
        loop: Loop,
        endpoints: Sequence[Address],
        *,
        name: str,
        holder: str,
        identity: str,
        lease_ns: int,
        clock: Callable[[], int] = boottime_ns,
    ) -> None:
        self._loop = loop
        self._endpoints = endpoints
        self._endpoint = 0
        self._record, self._term_key = _code(name), _code(f"{name}/term")
        self._mine = _Record(holder=holder, identity=identity, lease_ns=lease_ns)
        self._timeout_ns = min(lease_ns // TIMEOUTS_PER_LEASE, MAX_TIMEOUT_NS)
        self._clock = clock
        self._ours: _Seen | None = None
        """The record as this process wrote it last; None: it has none, or does not know."""
        self._highest = 0
        """Term ever seen."""
        self._watched = (0, 0)
        """The newest revision of the record that was seen, and when it was seen first."""
        self._steps: Steps | None = None
        self._call: Call | None = None
        self._answer: Answer | None = None

    # --- LeaseStore ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        """See LeaseStore."""
        self._begin(self._looking())

    def acquire(self, *, lease_ns: int, new_term: bool) -> None:
        """See LeaseStore."""
        self._begin(self._acquiring(lease_ns, new_term=new_term))

    def release(self, *, term: int) -> None:
        """See LeaseStore."""
        self._begin(self._releasing(term))

    def answer(self, now_ns: int) -> Answer | None:
        """See LeaseStore."""
        while self._call is not None:
            result = self._call.poll(now_ns)
            if result is None:
                return None
            self._call = None
            if isinstance(result, Answered):
                self._advance(result.body)
            else:
                self._fail(result.reason)
        answer, self._answer = self._answer, None
        return answer

    def next_ns(self) -> int:
        """See LeaseStore."""
        return self._clock() + MAX_WAIT_NS if self._call is None else self._call.deadline_ns

    def close(self) -> None:
        """Give up what is under way, and nothing else: a lease runs out by itself."""
        if self._call is not None:
            self._call.close()
            self._call = None

    # --- one question at a time ---------------------------------------------------------------------------------

    def _begin(self, steps: Steps) -> None:
        self.close()
        self._answer = None
        self._steps = steps
        self._advance(None)

    def _advance(self, body: Json | None) -> None:
        """Hand the answer to the question's steps and send the next request, or take the question's answer."""
        assert self._steps is not None, "a call belongs to a question"
        try:
            path, request = next(self._steps) if body is None else self._steps.send(body)
        except StopIteration as end:
            self._answer = end.value
            return
        except (_StrangeError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            self._fail(f"{self._endpoints[self._endpoint]}: cannot understand its answer: {error}")
            return
        deadline_ns = self._clock() + self._timeout_ns
        self._call = Call(self._loop, self._endpoints[self._endpoint], path, request, deadline_ns=deadline_ns)

    def _fail(self, reason: str) -> None:
        self._answer = Unknown(reason=f"cannot use etcd at {reason}")
        self._endpoint = (self._endpoint + 1) % len(self._endpoints)

    # --- the questions ------------------------------------------------------------------------------------------

    def _looking(self) -> Steps:
        return self._view(self._seen((yield self._both())))

    def _acquiring(self, lease_ns: int, *, new_term: bool) -> Steps:
        seen, self._ours = self._ours, None  # until this one's outcome is known
        if seen is None:
            seen = self._seen((yield self._both()))
            if self._is_anothers(seen):
                return self._view(seen)
        goes_on = self._is_mine(seen) and seen.term > 0 and not new_term
        before_ns = self._clock()  # whatever happens from here on can only shorten the lease
        granted = yield "/v3/lease/grant", {"TTL": str(-(-lease_ns // NS_PER_S))}
        writes = [_put(self._record, _render(self._mine), lease=str(granted["ID"]))]
        if not goes_on:
            writes.append(_put(self._term_key, self._mine.holder))
        done = yield self._txn(writes, only_at=seen.revision)
        if done.get("succeeded") is not True:
            seen = self._seen(done)
            if self._is_mine(seen):
                return Unknown(reason="an earlier request of ours was carried out meanwhile: asking again")
            return self._view(seen)
        revision = _integer(done["header"], "revision")
        self._ours = _Seen(record=self._mine, revision=revision, term=seen.term if goes_on else revision)
        self._highest = max(self._highest, self._ours.term)
        length_ns = min(lease_ns, _integer(granted, "TTL") * NS_PER_S)
        return Held(term=self._ours.term, valid_until_ns=before_ns + length_ns)

    def _releasing(self, term: int) -> Steps:
        seen, self._ours = self._ours, None
        if seen is None:
            seen = self._seen((yield self._both()))
        if not self._is_mine(seen) or seen.term != term:
            return Unknown(reason="the lease is not ours any more")
        done = yield self._txn([{"request_delete_range": {"key": self._record}}], only_at=seen.revision)
        return Free(term=term) if done.get("succeeded") is True else self._view(self._seen(done))

    def _both(self) -> tuple[str, Json]:
        return "/v3/kv/txn", {"success": self._ranges()}

    def _txn(self, writes: list[Json], *, only_at: int) -> tuple[str, Json]:
        """Write where the record is still of this revision (0: is not there); tell the two keys where it is not."""
        still = {"target": "MOD", "result": "EQUAL", "key": self._record, "mod_revision": str(only_at)}
        return "/v3/kv/txn", {"compare": [still], "success": writes, "failure": self._ranges()}

    def _ranges(self) -> list[Json]:
        return [{"request_range": {"key": key}} for key in (self._record, self._term_key)]

    # --- what it reads ------------------------------------------------------------------------------------------

    def _seen(self, body: Json) -> _Seen:
        """The answer to the two ranges. Raises _StrangeError where this cannot be the store that was asked before.

        A store whose term went back may give a term, or a lease, a second time.
        """
        record, term = (item["response_range"].get("kvs", []) for item in body["responses"])
        seen = _Seen(
            record=_read(base64.b64decode(record[0].get("value", ""), validate=True)) if record else None,
            revision=_integer(record[0], "mod_revision") if record else 0,
            term=_integer(term[0], "mod_revision") if term else 0,
        )
        if seen.term < self._highest:
            raise _StrangeError(
                f"its term is {seen.term} and was {self._highest}: was it restored from a backup, or is it another one?"
            )
        self._highest = seen.term
        if seen.revision != self._watched[0]:
            self._watched = (seen.revision, self._clock())
        return seen

    def _view(self, seen: _Seen) -> Answer:
        """Who has the lease."""
        if seen.record is None:
            return Free(term=seen.term)
        return Taken(holder=seen.record.holder, term=seen.term, valid_until_ns=self._over_ns(seen.record))

    def _is_mine(self, seen: _Seen) -> bool:
        return seen.record is not None and seen.record.identity == self._mine.identity

    def _is_anothers(self, seen: _Seen) -> bool:
        """Whether another one may have the lease. A record that cannot be read is somebody's."""
        if seen.record is None or self._is_mine(seen):
            return False
        over_ns = self._over_ns(seen.record)
        return over_ns is None or self._clock() < over_ns

    def _over_ns(self, record: _Record) -> int | None:
        """When the holder of the record, which was seen last, cannot have the lease any more; None: not known."""
        if not record.lease_ns:
            return None
        length_ns = max(record.lease_ns, self._mine.lease_ns)
        return self._watched[1] + length_ns + length_ns // RATE_MARGIN_DIVISOR


def _code(text: str) -> str:
    return base64.b64encode(text.encode()).decode("ascii")


def _put(key: str, value: str, *, lease: str = "0") -> Json:
    return {"request_put": {"key": key, "value": _code(value), "lease": lease}}


def _integer(fields: Json, name: str) -> int:
    """A number of the gateway: text, and absent where it is 0. Raises _StrangeError."""
    value = int(fields.get(name, 0))
    if not 0 <= value <= MAX_TERM:
        raise _StrangeError(f"{name} is {value}")
    return value


def _render(record: _Record) -> str:
    """As it stands in the store."""
    return json.dumps({"holder": record.holder, "identity": record.identity, "lease_ms": record.lease_ns // NS_PER_MS})


def _read(data: bytes) -> _Record:
    """What stands in the store, whatever it is."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        fields = {}
    holder, identity, lease_ms = (fields.get(key) for key in ("holder", "identity", "lease_ms"))
    if not (isinstance(holder, str) and 0 < len(holder) <= MAX_HOLDER and isinstance(identity, str)):
        return _Record(holder="(a record that cannot be read)", identity="", lease_ns=0)
    if type(lease_ms) is not int or not 0 < lease_ms <= MAX_TERM // NS_PER_MS:
        lease_ms = 0
    return _Record(holder=holder, identity=identity, lease_ns=lease_ms * NS_PER_MS)
