"""What the primary keeps while it leads: the books, and the connections of workers and of the scheduler."""

import time
from pathlib import Path

from node_manager.reference.books import Books, BooksFile
from node_manager.reference.clock import NS_PER_S
from node_manager.reference.jobbook import Job
from node_manager.reference.journal import Journal
from node_manager.reference.lines import Connection, Message
from node_manager.reference.loop import MAX_WAIT_NS
from node_manager.reference.presence import Key, Presence
from node_manager.reference.register import STATES, HostRecord, Refused

SAVE_DELAY_NS = NS_PER_S // 5
"""Changes of jobs are gathered for this long; changes of hosts are written at once."""
RETRY_NS = NS_PER_S
MAX_OFFERED = 100
"""Jobs offered to the scheduler at a time: the line stays short, and the next ones follow."""


class Cluster:
    """Empty while this controller does not lead. `available` says whether the books could be read."""

    def __init__(self, path: Path, *, writer: str, grace_ns: int, journal: Journal) -> None:
        self._file = BooksFile(path, writer=writer)
        self._journal = journal
        self._books: Books | None = None
        self._term: int | None = None
        self._save_ns: int | None = None
        self._claim_ns = 0
        self._offer = False
        self._to_send: list[Job] = []
        self.workers: dict[Key, Connection] = {}
        self.refusing: set[Key] = set()
        """Workers that refused a job and have not reported since: offering more at once would go round in circles."""
        self.scheduler: Connection | None = None
        self.presence = Presence(grace_ns)
        self.trouble = ""

    @property
    def books(self) -> Books:
        """The books. Raises Refused where they cannot be read: unreadable is not the same as empty."""
        if self._books is None:
            why = self.trouble or "the host register is not read yet"
            raise Refused("unavailable", f"cannot say who belongs to the cluster: {why}")
        return self._books

    # --- leadership --------------------------------------------------------------------------------------------

    def lead(self, term: int) -> None:
        """This controller leads under `term`: take the books over."""
        if self._term != term:
            self.leave("a new term begins")
            self._term = term
            self._claim_ns = 0

    def leave(self, reason: str) -> None:
        """It leads no longer: others find the primary themselves."""
        self._term = None
        self._books = None
        self._save_ns = None
        self._to_send.clear()
        for connection in (*self.workers.values(), *((self.scheduler,) if self.scheduler else ())):
            connection.send({"push": "leave", "reason": reason})
            connection.finish(reason)
        self.workers.clear()
        self.refusing.clear()
        self.scheduler = None

    def tick(self, now_ns: int) -> int:
        """Claim, write and offer what is due; returns when to be called again."""
        if self._term is None:
            return now_ns + MAX_WAIT_NS
        if self._books is None:
            if now_ns >= self._claim_ns:
                self._claim(now_ns, self._term)
            if self._books is None:
                return self._claim_ns
        for job in self._to_send:
            self._send(job)
        self._to_send.clear()
        if self._offer:
            self._offer = False
            self._send_offer(self._books)
        if self._save_ns is not None and now_ns >= self._save_ns:
            self._save_ns = None
            try:
                self.save()
            except OSError as error:
                self._later(error, now_ns)
        lost, next_ns = self.presence.tick(now_ns)
        for sentence in lost:
            self._journal.say(sentence)
        return next_ns if self._save_ns is None else min(next_ns, self._save_ns)

    def _claim(self, now_ns: int, term: int) -> None:
        try:
            self._books = self._file.claim(term)
            self.trouble = ""
            self._offer = True
            members = (record for record in self._books.register.all() if record.state != "decommissioned")
            self.presence.begin(((record.host, record.instance_id) for record in members), now_ns)
        except (OSError, ValueError) as error:
            self._claim_ns = now_ns + RETRY_NS
            self.trouble = f"cannot read the host register: {error}; repair it, or move it away to begin anew"
            self._journal.complain(self.trouble)

    def joined(self, key: Key, rejoin_ms: int | None) -> None:
        """A worker has joined, and said how long a restart of it takes at worst."""
        if self.presence.joined(key, rejoin_ms):
            self._journal.say(f"host {key[0]} ({key[1] or 'no instance id'}) is back")

    # --- durability --------------------------------------------------------------------------------------------

    def touch(self, now_ns: int) -> None:
        """Something changed that may be written a little later."""
        if self._save_ns is None:
            self._save_ns = now_ns + SAVE_DELAY_NS
        self._offer = True

    def commit(self, before: HostRecord | None, after: HostRecord, now_ns: int) -> HostRecord:
        """Make a host's change durable and tell its worker.

        A restriction holds at once, and its writing is tried again; a release that cannot be written is taken back
        and refused, so that it is never undone by a crash.
        """
        if before == after:
            return after
        try:
            self.save()
        except OSError as error:
            if before is not None and STATES.index(after.state) < STATES.index(before.state):
                self.books.register.put(before)
                raise Refused("unavailable", f"cannot release {after.host!r}: not recorded: {error}", before) from None
            self._later(error, now_ns)
        if after.state == "decommissioned":
            self.presence.forget((after.host, after.instance_id))
        if before is None or before.epoch != after.epoch:
            self._journal.say(
                f"host {after.host} ({after.instance_id or 'no instance id'}) is {after.state}, epoch {after.epoch}, "
                f"by the {after.by}: {after.reason}"
            )
            worker = self.workers.get((after.host, after.instance_id))
            if worker is not None:
                worker.send({"push": "host", **host_level(after)})
        self._offer = True
        return after

    def save(self) -> None:
        """Make the books durable now. Raises OSError, and Refused where there are none."""
        self._file.save(self.books)
        self._save_ns = None
        self.trouble = ""

    def _later(self, error: OSError, now_ns: int) -> None:
        self._save_ns = now_ns + RETRY_NS
        self.trouble = f"cannot write the host register: {error}"
        self._journal.complain(self.trouble)

    # --- jobs --------------------------------------------------------------------------------------------------

    def free_slots(self, record: HostRecord) -> int:
        """How many jobs this host can take now."""
        key = (record.host, record.instance_id)
        if record.state != "active" or key not in self.workers or key in self.refusing:
            return 0
        return max(record.slots - len(self.books.jobs.on_host(record.host)), 0)

    def send_job(self, job: Job) -> None:
        """Tell the worker of this job's host to start it, in this turn and after the reply that is being made."""
        self._to_send.append(job)

    def _send(self, job: Job) -> None:
        worker = self.workers.get(self._key_of(job.host))
        if worker is not None:
            worker.send({"push": "job", "job": job.job, "seconds": job.seconds})

    def _key_of(self, host: str) -> Key:
        record = self.books.register.find(host)
        return record.host, record.instance_id

    def _send_offer(self, books: Books) -> None:
        if self.scheduler is None:
            return
        free = {host: self.free_slots(books.register.find(host)) for host, _instance in self.workers}
        free = {host: slots for host, slots in free.items() if slots}
        queue = [[job.job, job.host] for job in books.jobs.queued() if job.host in free]
        self.scheduler.send({"push": "work", "queue": queue[:MAX_OFFERED], "free": free})


def host_level(record: HostRecord) -> Message:
    """What a host's worker is told about it. The deadline is relative: clocks of two hosts differ."""
    deadline_in_s = None
    if record.deadline_wall_ns is not None:
        deadline_in_s = max((record.deadline_wall_ns - time.time_ns()) / NS_PER_S, 0.0)
    return {"state": record.state, "epoch": record.epoch, "by": record.by, "deadline_in_s": deadline_in_s}
