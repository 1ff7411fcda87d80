"""The controller's list of jobs: queued by users, assigned by the scheduler under its term, run by workers."""

import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

MAX_JOBS = 1000
"""Jobs not yet ended; a submission beyond it is refused."""
MAX_ENDED = 100
"""Ended jobs that are remembered, the latest."""
MAX_SECONDS = 86_400.0

JobState = Literal["queued", "assigned", "running", "ended"]
JOB_STATES: tuple[JobState, ...] = ("queued", "assigned", "running", "ended")
ON_HOST: frozenset[JobState] = frozenset({"assigned", "running"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job. `term` is the scheduler's when it was assigned, None where the administrator assigned it."""

    job: str
    host: str
    seconds: float
    state: JobState = "queued"
    term: int | None = None
    outcome: str = ""


class JobBook:
    """All jobs, in the order of their submission."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self._jobs = {job.job: job for job in jobs}

    def all(self) -> tuple[Job, ...]:
        """Every job."""
        return tuple(self._jobs.values())

    def get(self, job_id: str) -> Job | None:
        """The job of this id."""
        return self._jobs.get(job_id)

    def on_host(self, host: str) -> tuple[Job, ...]:
        """What is assigned to this host or runs there."""
        return tuple(job for job in self._jobs.values() if job.host == host and job.state in ON_HOST)

    def queued(self) -> tuple[Job, ...]:
        """What waits for the scheduler."""
        return tuple(job for job in self._jobs.values() if job.state == "queued")

    def submit(self, host: str, seconds: float, *, how_many: int) -> tuple[Job, ...]:
        """Queue jobs. Raises ValueError where the book is full."""
        if sum(job.state != "ended" for job in self._jobs.values()) + how_many > MAX_JOBS:
            raise ValueError(f"cannot take more jobs: {MAX_JOBS} wait or run")
        jobs = tuple(Job(job=f"job-{secrets.token_hex(6)}", host=host, seconds=seconds) for _ in range(how_many))
        self._jobs.update({job.job: job for job in jobs})
        return jobs

    def withdraw(self, jobs: Iterable[Job]) -> None:
        """Take a submission back."""
        for job in jobs:
            self._jobs.pop(job.job, None)

    def adopt(self, job_id: str, host: str) -> None:
        """A job runs that the book does not know: it was restored from an older copy."""
        self._jobs[job_id] = Job(job=job_id, host=host, seconds=0.0, state="running", outcome="adopted")

    def move(self, job: Job, state: JobState, *, term: int | None = None, outcome: str = "") -> Job:
        """Put a job into a state; the oldest ended ones are forgotten."""
        moved = replace(job, state=state, term=job.term if term is None else term, outcome=outcome)
        if state == "ended":  # the latest to end is remembered longest
            self._jobs.pop(job.job, None)
        self._jobs[job.job] = moved
        ended = [other.job for other in self._jobs.values() if other.state == "ended"]
        for job_id in ended[: max(len(ended) - MAX_ENDED, 0)]:
            del self._jobs[job_id]
        return moved


def job_to_json(job: Job) -> dict[str, Any]:
    """A job as it is kept and listed."""
    return asdict(job)


def job_from_json(value: Any) -> Job:
    """A job of the register's file. Raises ValueError where it is not exactly one."""
    if not isinstance(value, dict) or set(value) != set(Job.__slots__):
        raise ValueError("a job has the wrong fields")
    if (
        any(not isinstance(value[key], str) for key in ("job", "host", "outcome"))
        or isinstance(value["seconds"], bool)
        or not isinstance(value["seconds"], int | float)
        or value["state"] not in JOB_STATES
        or not (value["term"] is None or type(value["term"]) is int)
    ):
        raise ValueError(f"job {value['job']!r} is not valid")
    return Job(**value)
