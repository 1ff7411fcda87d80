"""The register and the jobs on the disk: one file, shared by the controllers of a cluster, written by its primary.

The file carries the term it was written under. A controller that was stopped and has lost its leadership meanwhile
cannot write over its successor's file: the term there is higher.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node_manager.reference.guarded import GuardedFile, Replaced
from node_manager.reference.jobbook import JobBook, job_from_json, job_to_json
from node_manager.reference.register import Register, host_from_json, host_to_json

CLAIM_ATTEMPTS = 4
"""Tries within one turn to take the file over while its last writer still writes."""
SCHEMA = 1


@dataclass(slots=True)
class Books:
    """What the primary knows of its cluster."""

    register: Register = field(default_factory=Register)
    jobs: JobBook = field(default_factory=JobBook)


class BooksFile:
    """The file. `term` is the one this controller writes under."""

    def __init__(self, path: Path, *, writer: str) -> None:
        self._file = GuardedFile(path, writer=writer)
        self._raw: bytes | None = None
        self._term = 0

    def claim(self, term: int) -> Books:
        """Read the file and put this term into it. Raises OSError or ValueError: unreadable is not empty."""
        for _ in range(CLAIM_ATTEMPTS):
            raw = self._file.read()
            books, last_term = _decode(raw)
            if last_term > term:
                raise ValueError(f"{self._file.path} was written under term {last_term}, which is newer than {term}")
            data = _encode(books, term)
            if self._file.replace(raw, data) is Replaced.DONE:
                self._raw, self._term = data, term
                return books
        raise OSError(f"{self._file.path} is being written by another controller")

    def save(self, books: Books) -> None:
        """Make the books durable. Raises OSError, also where another controller has written meanwhile."""
        data = _encode(books, self._term)
        if data == self._raw:
            return
        outcome = self._file.replace(self._raw, data)
        if outcome is not Replaced.DONE:
            raise OSError(f"{self._file.path} is written by another controller ({outcome.value})")
        self._raw = data


def _encode(books: Books, term: int) -> bytes:
    value = {
        "schema": SCHEMA,
        "term": term,
        "hosts": [host_to_json(record) for record in books.register.all()],
        "jobs": [job_to_json(job) for job in books.jobs.all()],
    }
    return json.dumps(value, indent=1).encode() + b"\n"


def _decode(raw: bytes | None) -> tuple[Books, int]:
    if raw is None:
        return Books(), 0
    try:
        value: Any = json.loads(raw)
    except RecursionError:
        raise ValueError("the host register is not JSON") from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA or type(value.get("term")) is not int:
        raise ValueError(f"the host register is not of schema {SCHEMA}")
    hosts, jobs = value.get("hosts"), value.get("jobs")
    if not (isinstance(hosts, list) and isinstance(jobs, list)):
        raise ValueError("the host register lacks its hosts or its jobs")  # noqa: TRY004 -- wrong contents of a file
    register = Register(host_from_json(item) for item in hosts)
    return Books(register=register, jobs=JobBook(job_from_json(item) for item in jobs)), value["term"]
