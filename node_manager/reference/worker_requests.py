"""What a worker may ask of the primary controller: to join, to report, to say what happens on its host."""

import time
from collections.abc import Sequence

from node_manager.reference.clock import NS_PER_S, boottime_ns
from node_manager.reference.cluster import Cluster, host_level
from node_manager.reference.jobbook import MAX_SECONDS
from node_manager.reference.lines import Connection, LineError, Message, count, number, text, whole
from node_manager.reference.presence import MAX_REJOIN_MS, Key
from node_manager.reference.register import HostRecord, Refused
from node_manager.reference.settings import MAX_COUNT, MAX_NAME, MAX_SLOTS

MAX_REASON = 200
MAX_JOB_ID = 64
MAX_DEADLINE_S = 30 * MAX_SECONDS


class WorkerRequests:
    """The joined workers' side of the protocol."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._joined: dict[Connection, Key] = {}

    def gone(self, connection: Connection) -> None:
        """A connection has ended."""
        key = self._joined.pop(connection, None)
        if key is not None and self._cluster.workers.get(key) is connection:
            self._cluster.presence.gone(key, boottime_ns())
            del self._cluster.workers[key]
            self._cluster.refusing.discard(key)

    def join(self, connection: Connection, message: Message) -> Message:
        """A worker comes, or comes back, with its full state."""
        cluster, register = self._cluster, self._cluster.books.register
        host, instance_id = text(message, "host", limit=MAX_NAME), text(message, "instance_id", limit=MAX_NAME)
        slots = whole(message, "slots", low=1, high=MAX_SLOTS)
        released_epoch = count(message, "released_epoch", high=MAX_COUNT, optional=True)
        known_epoch = count(message, "known_epoch", high=MAX_COUNT, optional=True) or 0
        rejoin_ms = count(message, "rejoin_ms", high=MAX_REJOIN_MS, optional=True)
        jobs, ended = _job_ids(message, "jobs"), _job_ids(message, "ended")
        key = (host, instance_id)
        older = cluster.workers.get(key)
        if older is not None and older is not connection:
            older.close("the worker has a newer connection")
        before = register.get(host, instance_id)
        try:
            record = register.join(
                host,
                instance_id,
                slots=slots,
                released_epoch=released_epoch,
                known_epoch=known_epoch,
                now_ns=time.time_ns(),
            )
        except Refused as refused:
            if refused.record is not None:  # said again with a higher epoch, perhaps
                cluster.commit(before, refused.record, boottime_ns())
            raise
        record = cluster.commit(before, record, boottime_ns())
        cluster.workers[key] = connection
        self._joined[connection] = key
        self._cluster.joined(key, rejoin_ms)
        self._reconcile(host, jobs, ended)
        return host_level(record)

    def report(self, connection: Connection, message: Message) -> Message:
        """The worker's list of living jobs; answered by what the register says now."""
        record = self._record(connection)
        living = set(_job_ids(message, "jobs"))
        if self._joined[connection] in self._cluster.refusing:
            self._cluster.refusing.discard(self._joined[connection])
            self._cluster.touch(boottime_ns())
        book = self._cluster.books.jobs
        for job in book.on_host(record.host):
            if job.job in living and job.state == "assigned":
                book.move(job, "running")
                self._cluster.touch(boottime_ns())
        return host_level(self._cluster.books.register.seen(record, time.time_ns()))

    def state(self, connection: Connection, message: Message) -> Message:
        """The host drains, has drained, or was decommissioned by an operator there."""
        before = self._record(connection)
        deadline_in_s = number(message, "deadline_in_s", low=0, high=MAX_DEADLINE_S, optional=True)
        now_ns = time.time_ns()
        match text(message, "state", limit=16):
            case "draining" | "drained" | "decommissioned" as state:
                after = self._cluster.books.register.report(
                    before,
                    state,
                    reason=text(message, "reason", default="reported by the host", limit=MAX_REASON),
                    now_ns=now_ns,
                    deadline_wall_ns=None if deadline_in_s is None else now_ns + int(deadline_in_s * NS_PER_S),
                )
            case other:
                raise LineError(f"cannot report state {other!r}: draining, drained or decommissioned")
        return host_level(self._cluster.commit(before, after, boottime_ns()))

    def released(self, connection: Connection, message: Message) -> Message:
        """An operator on the host released it up to an epoch."""
        before = self._record(connection)
        epoch = whole(message, "released_epoch", high=MAX_COUNT)
        after = self._cluster.books.register.release(before, epoch, now_ns=time.time_ns())
        return host_level(self._cluster.commit(before, after, boottime_ns()))

    def job(self, connection: Connection, message: Message) -> Message:
        """One job runs, has ended, or was not taken (the host drains): then it is queued again."""
        record = self._record(connection)
        book = self._cluster.books.jobs
        job = book.get(text(message, "job", limit=MAX_JOB_ID))
        state = text(message, "state", limit=16)
        outcome = text(message, "outcome", default="", limit=MAX_REASON)
        if job is not None and job.host == record.host and job.state != "ended":
            match state:
                case "running":
                    book.move(job, "running")
                case "ended":
                    book.move(job, "ended", outcome=outcome)
                case "refused":
                    book.move(job, "queued")
                    self._cluster.refusing.add(self._joined[connection])
                case _:
                    raise LineError(f"cannot put a job into state {state!r}: running, ended or refused")
            self._cluster.touch(boottime_ns())
        return {"job": message["job"]}

    def _record(self, connection: Connection) -> HostRecord:
        key = self._joined.get(connection)
        record = None if key is None else self._cluster.books.register.get(*key)
        if record is None:
            raise Refused("not-joined", "cannot do that: this connection has not joined")
        return record

    def _reconcile(self, host: str, jobs: Sequence[str], ended: Sequence[str]) -> None:
        """Agree on the jobs of a host whose worker was away: its list is right about what runs there."""
        book, living, over = self._cluster.books.jobs, set(jobs), set(ended)
        for job in book.all():
            if job.host != host or job.state == "ended":
                continue
            if job.job in living:
                book.move(job, "running")
            elif job.job in over:
                book.move(job, "ended", outcome="ended while the worker had no controller")
            elif job.state == "running":
                book.move(job, "ended", outcome="lost")
            elif job.state == "assigned":
                self._cluster.send_job(job)
        for job_id in living:
            if book.get(job_id) is None:
                book.adopt(job_id, host)
        self._cluster.touch(boottime_ns())


def _job_ids(message: Message, key: str) -> list[str]:
    value = message.get(key, [])
    if not isinstance(value, list) or len(value) > MAX_SLOTS:
        raise LineError(f"cannot use {key!r}: give a list of at most {MAX_SLOTS} jobs")
    if any(not isinstance(item, str) or len(item) > MAX_JOB_ID for item in value):
        raise LineError(f"cannot use {key!r}: a job is named by at most {MAX_JOB_ID} characters")
    return value
