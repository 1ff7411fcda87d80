"""The scheduler: registers with the controller under its term, assigns queued jobs, ends with its lease."""

import json
import os
from typing import Any

from node_manager.reference.clock import boottime_ns
from node_manager.reference.fence import Fence
from node_manager.reference.guarded import FILE_MODE
from node_manager.reference.lines import Message
from node_manager.reference.link import REPORT_NS, Link, code_of, is_ok
from node_manager.reference.loop import EXIT_FENCED, EXIT_OK, MAX_WAIT_NS, Context

MAX_TRACE_LINES = 1_000_000
"""A trace is for a test of an hour at most."""
FACT = "controller.primary"


class Scheduler:
    """Component. Assigns nothing outside its lease, and ends with EXIT_FENCED once that is over."""

    def __init__(self, context: Context) -> None:
        self.exit_status: int | None = None
        self._client = context.client
        self._journal = context.journal
        self._fence = Fence(FACT, context.settings)
        self._next_report_ns = 0
        self._assigned = 0
        self._trace = _Trace(context) if context.settings.trace else None
        self._link = Link(
            context.loop,
            context.settings.controllers,
            context.journal,
            greeting=lambda: {"op": "register", "term": self._fence.term},
            on_answer=self._registered,
            on_message=self._received,
            on_lost=lambda: self._client.set_ready(False),
        )
        self._client.set_ready(False)
        context.journal.say(f"scheduling under term {self._fence.term}")

    def tick(self, now_ns: int) -> int:
        """See Component."""
        self._fence.heed(self._client.agent.facts)
        if why := self._fence.why_over(now_ns):
            self._end(EXIT_FENCED, f"fenced: {why}")
            return now_ns
        next_ns = min(self._fence.next_ns(now_ns), self._link.tick(now_ns))
        if self._link.joined:
            if now_ns >= self._next_report_ns:
                self._next_report_ns = now_ns + REPORT_NS
                self._link.send({"op": "beat"})
            next_ns = min(next_ns, self._next_report_ns)
        if self._trace is not None:
            next_ns = min(next_ns, self._trace.tick(now_ns, self._fence))
        return next_ns

    def terminate(self) -> None:
        """See Component: the scheduler keeps nothing that would have to be saved."""
        self._client.set_stopping()
        self._end(EXIT_OK, "told to stop")

    def close(self) -> None:
        """See Component."""
        self._link.close()
        if self._trace is not None:
            self._trace.close()

    def _end(self, status: int, why: str) -> None:
        if self.exit_status is None:
            self.exit_status = status
            self._client.set_ready(False)
            self._journal.say(why)

    def _registered(self, message: Message) -> bool:
        if is_ok(message):
            self._client.set_ready(True)
            self._client.set_status(f"scheduling under term {self._fence.term}")
            return True
        if code_of(message) == "old-term":
            self._end(EXIT_FENCED, f"refused: {message.get('error')}")
        return False

    def _received(self, message: Message) -> None:
        if code_of(message) == "old-term":
            self._end(EXIT_FENCED, f"refused: {message.get('error')}")
        elif message.get("push") == "work":
            self._work(message)

    def _work(self, message: Message) -> None:
        """Assign in the order of submission, while the host has a free slot."""
        queue, free = message.get("queue"), message.get("free")
        if not isinstance(queue, list) or not isinstance(free, dict):
            return
        left: dict[Any, Any] = dict(free)
        for item in queue:
            if not (isinstance(item, list) and len(item) == 2):  # noqa: PLR2004 -- a pair of job and host
                continue
            job, host = item
            if not isinstance(host, str) or not isinstance(left.get(host), int) or left[host] < 1:
                continue
            # The fence is asked for each write: this process may have been stopped since the last one.
            if self._fence.why_over(boottime_ns()):
                return
            left[host] -= 1
            self._assigned += 1
            self._link.send({"op": "assign", "term": self._fence.term, "job": job})
        self._client.set_progress(self._assigned)


class _Trace:
    """For tests: a line for each moment at which this scheduler was at work, to prove that terms never interleave."""

    def __init__(self, context: Context) -> None:
        path = context.settings.state_dir / "scheduler.log"
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        self._every_ns = context.settings.trace_ns
        self._next_ns = 0
        self._lines = 0

    def tick(self, now_ns: int, fence: Fence) -> int:
        if now_ns >= self._next_ns and self._lines < MAX_TRACE_LINES:
            self._next_ns = now_ns + self._every_ns
            self._lines += 1
            sign = {
                "term": fence.term,
                "boottime_ns": now_ns,
                "valid_until_ns": fence.valid_until_ns,
                "pid": os.getpid(),
            }
            os.write(self._fd, json.dumps(sign).encode() + b"\n")
        return self._next_ns if self._lines < MAX_TRACE_LINES else now_ns + MAX_WAIT_NS

    def close(self) -> None:
        os.close(self._fd)
