"""What an election needs of a store, and a lease on one host: a record in a file. `etcd` has the distributed one.

The record is {holder, term, valid_until_ns, boot_id}; `valid_until_ns` is CLOCK_BOOTTIME of that boot. What makes a
lease is the record, never a lock: a lock is freed at death at once, and kept for ever by a stopped process.

* The term is the store's own revision: one more with each acquisition, kept by the holder's renewals, never lower.
  Its highest value is kept in the lock file too, so that it survives the loss of the record.
* The validity counts from before the request, so that a slow request can only shorten it.
* A record of another boot has run out. A record that cannot be read grants nothing to anyone.
* A record that has vanished may have granted a lease: nobody gets one before a whole lease has passed.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from node_manager.reference.clock import boottime_ns
from node_manager.reference.guarded import GuardedFile, Replaced

UPDATE_ATTEMPTS = 4
"""Tries within one request when others change the record too; then it is "unknown", and the caller's next turn."""
RATE_MARGIN_DIVISOR = 1000
"""Clock rates of two hosts differ by less than one in a thousand (NTP disciplines within 500 ppm each)."""
MAX_TERM = 2**53
MAX_HOLDER = 600
COUNTER_DIGITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The lease is the caller's until `valid_until_ns`, under this term."""

    term: int
    valid_until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """`holder` has the lease until `valid_until_ns`; None: the store does not say when."""

    holder: str
    term: int
    valid_until_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Nobody has the lease; `term` was the last one."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The store could not be read or written; nothing is granted, nothing is known."""

    reason: str


Answer = Held | Taken | Free | Unknown


class LeaseStore(Protocol):
    """What an election needs of a store. One question at a time; a newer one takes the place of the last.

    Nothing here blocks for longer than one small file does. Times are CLOCK_BOOTTIME in nanoseconds.
    """

    def look(self) -> None:
        """Ask who has the lease; changes nothing. Answered by Free, Taken or Unknown."""
        ...

    def acquire(self, *, lease_ns: int, new_term: bool) -> None:
        """Ask to take or renew the lease. `new_term`: the holder gave its own up before, so even its own is a new one.

        Answered by Held, by Taken or Free where the lease was lost meanwhile, or by Unknown.
        """
        ...

    def release(self, *, term: int) -> None:
        """Ask to end the holder's own lease now. Only where every dependant is known to be stopped.

        Answered by Free, or by Unknown: then it runs out by itself.
        """
        ...

    def answer(self, now_ns: int) -> Answer | None:
        """The answer to the last question, once; None: there is none yet."""
        ...

    def next_ns(self) -> int:
        """When to ask for the answer again at the latest, though no descriptor was ready meanwhile."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The contents of the file."""

    holder: str
    term: int
    valid_until_ns: int
    boot_id: str


class FileLease:
    """The lease in one file. `writer` names the caller's slot; `clock` is CLOCK_BOOTTIME in nanoseconds."""

    def __init__(self, path: Path, *, boot_id: str, writer: str, clock: Callable[[], int] = boottime_ns) -> None:
        self._file = GuardedFile(path, writer=writer)
        self._boot_id = boot_id
        self._clock = clock
        self._missing: tuple[int, int] | None = None
        """Highest term and time when the record was first found missing: a higher term since then begins anew."""

    def look(self) -> Free | Taken | Unknown:
        """Who has the lease; changes nothing."""
        now_ns = self._clock()
        try:
            record = _decode(self._file.read())
        except (OSError, ValueError) as error:
            return self._unreadable(error)
        if record is None:
            return Free(term=0)
        return _taken(record) if self._valid(record, now_ns) else Free(term=record.term)

    def acquire(self, *, holder: str, lease_ns: int, new_term: bool = False) -> Held | Taken | Unknown:
        """Take or renew the lease; see LeaseStore."""
        for _ in range(UPDATE_ATTEMPTS):
            before_ns = self._clock()
            try:
                raw = self._file.read()
                record = _decode(raw)
                highest = self._highest(record)
                if record is None and highest > 0 and not self._waited_out(highest, before_ns, lease_ns):
                    return Unknown(reason=f"lease record {self._file.path} has vanished: waiting for one lease to pass")
                valid = record is not None and self._valid(record, before_ns)
                if record is not None and valid and record.holder != holder:
                    return _taken(record)
                keep = record is not None and valid and not new_term and record.term == highest
                new = LeaseRecord(
                    holder=holder,
                    term=highest if keep else highest + 1,
                    valid_until_ns=before_ns + lease_ns,
                    boot_id=self._boot_id,
                )
                if self._replace(raw, new):
                    return Held(term=new.term, valid_until_ns=new.valid_until_ns)
            except (OSError, ValueError) as error:
                return self._unreadable(error)
        return Unknown(reason=f"lease record {self._file.path} is being changed by others")

    def release(self, *, holder: str, term: int) -> bool:
        """End the holder's own lease now. False: not released, it runs out by itself."""
        try:
            raw = self._file.read()
            record = _decode(raw)
            if record is None or (record.holder, record.term, record.boot_id) != (holder, term, self._boot_id):
                return False
            ended = LeaseRecord(holder=holder, term=term, valid_until_ns=self._clock(), boot_id=self._boot_id)
            return self._replace(raw, ended)
        except (OSError, ValueError):
            return False

    def _replace(self, expected: bytes | None, record: LeaseRecord) -> bool:
        data = json.dumps(asdict(record), sort_keys=True).encode() + b"\n"

        def note(lock: int) -> None:
            known = _counter(os.pread(lock, COUNTER_DIGITS + 2, 0))
            if known is None or known < record.term:
                counter = f"{record.term:0{COUNTER_DIGITS}d}\n".encode()
                os.pwrite(lock, counter, 0)
                os.ftruncate(lock, len(counter))
                os.fsync(lock)

        return self._file.replace(expected, data, note=note) is Replaced.DONE

    def _highest(self, record: LeaseRecord | None) -> int:
        """The highest term ever granted. A broken counter is mended from the record; without both, ValueError."""
        raw = self._file.read_lock()
        known = _counter(raw)
        if record is not None:
            return max(known or 0, record.term)
        if known is None and raw:
            raise ValueError(f"{self._file.lock_path} does not hold the highest term")
        return known or 0

    def _valid(self, record: LeaseRecord, now_ns: int) -> bool:
        return record.boot_id == self._boot_id and now_ns < record.valid_until_ns

    def _waited_out(self, highest: int, now_ns: int, lease_ns: int) -> bool:
        """Whether no lease has been granted for as long as one lasts. Whoever ends such a wait raises the term."""
        if self._missing is None or self._missing[0] != highest:
            self._missing = (highest, now_ns)
        return now_ns - self._missing[1] >= lease_ns

    def _unreadable(self, error: Exception) -> Unknown:
        return Unknown(reason=f"cannot use lease record {self._file.path}: {error}")


class FileStore:
    """LeaseStore over a FileLease: every question is answered at once."""

    def __init__(self, lease: FileLease, *, holder: str) -> None:
        self._lease = lease
        self._holder = holder
        self._answer: Answer | None = None

    def look(self) -> None:
        """See LeaseStore."""
        self._answer = self._lease.look()

    def acquire(self, *, lease_ns: int, new_term: bool) -> None:
        """See LeaseStore."""
        self._answer = self._lease.acquire(holder=self._holder, lease_ns=lease_ns, new_term=new_term)

    def release(self, *, term: int) -> None:
        """See LeaseStore."""
        done = self._lease.release(holder=self._holder, term=term)
        self._answer = Free(term=term) if done else Unknown(reason="the lease could not be given back")

    def answer(self, now_ns: int) -> Answer | None:  # noqa: ARG002 -- it never comes late
        """See LeaseStore."""
        answer, self._answer = self._answer, None
        return answer

    def next_ns(self) -> int:
        """See LeaseStore: never asked for, the answer is there."""
        return 0


def _taken(record: LeaseRecord) -> Taken:
    return Taken(holder=record.holder, term=record.term, valid_until_ns=record.valid_until_ns)


def _counter(raw: bytes) -> int | None:
    text = raw.decode("ascii", "replace").strip()
    return int(text) if text.isdigit() and len(text) <= COUNTER_DIGITS and int(text) <= MAX_TERM else None


def _decode(raw: bytes | None) -> LeaseRecord | None:
    """The record, None where there is no file. ValueError: not a record, whole and of the right types."""
    if raw is None:
        return None
    try:
        value: Any = json.loads(raw)
    except RecursionError:
        raise ValueError("it is not a record") from None
    if not isinstance(value, dict) or set(value) != {"holder", "term", "valid_until_ns", "boot_id"}:
        raise ValueError("it is not a record of holder, term, valid_until_ns and boot_id")
    holder, term, until, boot_id = value["holder"], value["term"], value["valid_until_ns"], value["boot_id"]
    if not (isinstance(holder, str) and 0 < len(holder) <= MAX_HOLDER and isinstance(boot_id, str)):
        raise ValueError("holder and boot_id must be text")
    if type(term) is not int or type(until) is not int or not 0 < term <= MAX_TERM or until < 0:
        raise ValueError("term and valid_until_ns must be whole numbers")
    return LeaseRecord(holder=holder, term=term, valid_until_ns=until, boot_id=boot_id)
