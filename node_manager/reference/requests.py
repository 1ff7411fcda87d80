"""What can be asked of a controller, and who may be answered: the operators, the scheduler, the workers.

`docs/reference/reference-components.md` lists every operation.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from node_manager.reference.clock import NS_PER_S, boottime_ns
from node_manager.reference.cluster import Cluster, host_level
from node_manager.reference.election import Election
from node_manager.reference.jobbook import MAX_SECONDS, job_to_json
from node_manager.reference.lines import MAX_LINE, Connection, LineError, Message, count, encode, number, text, whole
from node_manager.reference.register import Refused, host_to_json
from node_manager.reference.settings import MAX_COUNT, MAX_NAME
from node_manager.reference.worker_requests import MAX_DEADLINE_S, MAX_JOB_ID, MAX_REASON, WorkerRequests

MAX_SUBMIT = 100
MAX_LISTING = MAX_LINE - 1024
"""A listing and what surrounds it fit in a line; a longer one says that it was cut."""

Handler = Callable[[Connection, Message], Message]


class Chair(Protocol):
    """What requests need of the controller itself."""

    election: Election

    def status(self) -> Message:
        """Its own state."""
        ...

    def stand_down(self) -> None:
        """An operator's word: standby, also after a restart, until told otherwise."""
        ...

    def stand(self) -> None:
        """An operator's word: stand again."""
        ...


class Requests:
    """Serves one message at a time. Leadership is checked for each, with a fresh clock."""

    def __init__(self, chair: Chair, cluster: Cluster) -> None:
        self._chair = chair
        self._cluster = cluster
        self._workers = workers = WorkerRequests(cluster)
        self._anyone: dict[str, Handler] = {
            "status": lambda _connection, _message: self._chair.status(),
            "standby": self._standby,
            "primary": self._primary,
        }
        self._primary_only: dict[str, Handler] = {
            "hosts": self._hosts,
            "jobs": self._jobs,
            "order": self._order,
            "submit": self._submit,
            "register": self._register,
            "assign": self._assign,
            "beat": lambda _connection, _message: {},
            "join": workers.join,
            "report": workers.report,
            "state": workers.state,
            "released": workers.released,
            "job": workers.job,
        }

    def serve(self, connection: Connection, message: Message) -> None:
        """Answer one message. LineError, for a malformed one, ends the connection in `Connection`."""
        operation = text(message, "op", limit=32)
        handler = self._anyone.get(operation)
        try:
            if handler is None:
                handler = self._primary_only.get(operation)
                if handler is None:
                    raise LineError(f"cannot do {operation!r}: there is no such operation")
                self._require_leadership()
            reply = handler(connection, message)
        except Refused as refused:
            reply = {"ok": False, "code": refused.code, "error": str(refused)}
            if refused.record is not None:
                reply.update(host_level(refused.record))
        connection.send({"reply": operation, "ok": True, **reply})

    def gone(self, connection: Connection) -> None:
        """A connection has ended."""
        self._workers.gone(connection)
        if self._cluster.scheduler is connection:
            self._cluster.scheduler = None

    def _require_leadership(self) -> None:
        election = self._chair.election
        if not election.leads(boottime_ns()):
            leader = election.leader or "nobody known"
            raise Refused("not-primary", f"cannot do that here: this controller is not primary, the leader is {leader}")

    # --- operators ---------------------------------------------------------------------------------------------

    def _standby(self, _connection: Connection, _message: Message) -> Message:
        self._chair.stand_down()
        return self._chair.status()

    def _primary(self, _connection: Connection, _message: Message) -> Message:
        self._chair.stand()
        return self._chair.status()

    def _hosts(self, _connection: Connection, _message: Message) -> Message:
        cluster = self._cluster
        rows = (
            {
                **host_to_json(record),
                "connected": (record.host, record.instance_id) in cluster.workers,
                **cluster.presence.level((record.host, record.instance_id), boottime_ns()),
                "jobs": len(cluster.books.jobs.on_host(record.host)),
            }
            for record in cluster.books.register.all()
        )
        return _listing("hosts", rows)

    def _jobs(self, _connection: Connection, _message: Message) -> Message:
        return _listing("jobs", (job_to_json(job) for job in reversed(self._cluster.books.jobs.all())))

    def _order(self, _connection: Connection, message: Message) -> Message:
        register = self._cluster.books.register
        deadline_s = number(message, "deadline_s", low=0, high=MAX_DEADLINE_S, optional=True)
        before = register.find(text(message, "host", limit=MAX_NAME))
        now_ns = time.time_ns()
        after = register.order(
            before,
            text(message, "verb", limit=16),
            reason=text(message, "reason", default="ordered", limit=MAX_REASON),
            now_ns=now_ns,
            deadline_wall_ns=None if deadline_s is None else now_ns + int(deadline_s * NS_PER_S),
        )
        return {"host": host_to_json(self._cluster.commit(before, after, boottime_ns()))}

    def _submit(self, _connection: Connection, message: Message) -> Message:
        books = self._cluster.books
        record = books.register.find(text(message, "host", limit=MAX_NAME))
        seconds = number(message, "seconds", low=0, high=MAX_SECONDS) or 0.0
        how_many = count(message, "count", low=1, high=MAX_SUBMIT, optional=True) or 1
        try:
            jobs = books.jobs.submit(record.host, seconds, how_many=how_many)
        except ValueError as error:
            raise Refused("full", str(error)) from None
        try:
            self._cluster.save()
        except OSError as error:
            books.jobs.withdraw(jobs)
            raise Refused("unavailable", f"cannot take the jobs: not recorded: {error}") from None
        if message.get("ignore_term") is True:
            for job in jobs[: self._cluster.free_slots(record)]:
                self._cluster.send_job(books.jobs.move(job, "assigned"))
        self._cluster.touch(boottime_ns())
        return {"jobs": [job.job for job in jobs]}

    # --- the scheduler -----------------------------------------------------------------------------------------

    def _register(self, connection: Connection, message: Message) -> Message:
        self._require_term(message)
        older, self._cluster.scheduler = self._cluster.scheduler, connection
        if older is not None and older is not connection:
            older.close("the scheduler has a newer connection")
        self._cluster.touch(boottime_ns())
        return {"term": self._chair.election.term}

    def _assign(self, connection: Connection, message: Message) -> Message:
        """Write one assignment. The term is checked first, for everyone: this is the second line."""
        self._require_term(message)
        if self._cluster.scheduler is not connection:
            raise Refused("not-registered", "cannot assign: this connection has not registered as the scheduler")
        books = self._cluster.books
        job = books.jobs.get(text(message, "job", limit=MAX_JOB_ID))
        if job is None or job.state != "queued":
            raise Refused("not-queued", "cannot assign: there is no such job in the queue")
        if self._cluster.free_slots(books.register.find(job.host)) < 1:
            raise Refused("no-slot", f"cannot assign {job.job}: {job.host} takes no job now")
        self._cluster.send_job(books.jobs.move(job, "assigned", term=self._chair.election.term))
        self._cluster.touch(boottime_ns())
        return {"job": job.job}

    def _require_term(self, message: Message) -> None:
        term = whole(message, "term", high=MAX_COUNT)
        current = self._chair.election.term
        if term < current:
            raise Refused("old-term", f"cannot take writes under term {term}: the term is {current}")
        if term > current:
            raise Refused("not-primary", f"cannot take writes under term {term}: this controller has {current} only")


def _listing(key: str, rows: Iterable[dict[str, Any]]) -> Message:
    """As many rows as a line takes."""
    taken: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        size += len(encode(row))
        if size > MAX_LISTING:
            return {key: taken, "truncated": True}
        taken.append(row)
    return {key: taken, "truncated": False}
