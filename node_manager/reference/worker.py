"""The worker: joins the primary controller, runs jobs, drains, and reports its host's leaving of the cluster.

It states `host.*` under the epochs that the controller gives. Without a controller it goes on, and so do its jobs.
"""

from dataclasses import dataclass
from enum import Enum

from node_manager.heartbeat.client import AgentView
from node_manager.reference.clock import NS_PER_MS, NS_PER_S, boottime_ns
from node_manager.reference.jobs import Jobs
from node_manager.reference.lines import Message
from node_manager.reference.link import REPORT_NS, Link, code_of, is_ok
from node_manager.reference.loop import EXIT_DECOMMISSIONED, EXIT_OK, MAX_WAIT_NS, Context
from node_manager.reference.presence import MAX_REJOIN_MS
from node_manager.reference.register import STATES

FIRST_LEVELS_NS = NS_PER_S
"""How long it waits for the agent's first word before it joins: the agent may know that this host is out."""
REPORT_BOUND_NS = NS_PER_S
"""How long an ending worker tries to tell the controller about a decommission."""
STAY_NS = 2 * NS_PER_S
"""How long a decommissioned worker waits for its SIGTERM before it ends by itself."""
LAST_WORD_NS = 200 * NS_PER_MS
"""After SIGTERM: time for a directive that the agent sent along with it."""


class _Leaving(Enum):
    """Why it is on its way out."""

    TOLD_TO_STOP = "told to stop"
    ORDERED = "decommissioned by an operator on this host"
    EXPELLED = "decommissioned by the controller"
    REFUSED = "rejoin refused: this host is decommissioned"


@dataclass(slots=True, kw_only=True)
class _Host:
    """What the controller said last about this host."""

    state: str | None = None
    epoch: int = 0
    deadline_ns: int | None = None


class Worker:
    """Component."""

    def __init__(self, context: Context) -> None:
        self.exit_status: int | None = None
        self._settings = context.settings
        self._client = context.client
        self._journal = context.journal
        state_dir = self._settings.state_dir
        state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._jobs = Jobs(context.loop, state_dir, context.journal, on_ended=self._job_ended)
        self._jobs.take_over()
        self._host = _Host()
        self._asked: str | None = None
        """A change of the host's state that was reported and not answered yet."""
        self._ask_again_ns = 0
        self._released_epoch = -1
        self._next_report_ns = 0
        self._levels_until_ns = boottime_ns() + FIRST_LEVELS_NS if self._settings.supervised else 0
        self._leaving: _Leaving | None = None
        self._leave_ns = 0
        self._report_until_ns = 0
        self._said = False
        self._going_down = False
        self._terminated = False
        self._link = Link(
            context.loop,
            self._settings.controllers,
            context.journal,
            greeting=self._greeting,
            on_answer=self._joined,
            on_message=self._received,
            on_lost=self._lost,
        )
        self._client.set_ready(False)
        self._client.set_jobs(len(self._jobs.living))

    # --- the loop ----------------------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> int:
        """See Component."""
        agent = self._client.agent
        if self._levels_until_ns:
            if not agent.node and now_ns < self._levels_until_ns and not self._terminated:
                return self._levels_until_ns
            self._levels_until_ns = 0
        next_ns = now_ns + MAX_WAIT_NS
        if self._leaving not in {_Leaving.EXPELLED, _Leaving.REFUSED}:
            next_ns = min(next_ns, self._link.tick(now_ns))
        self._heed(agent, now_ns)
        if self._link.joined:
            if now_ns >= self._next_report_ns:
                self._next_report_ns = now_ns + REPORT_NS
                self._link.send({"op": "report", "jobs": list(self._jobs.living)})
            next_ns = min(next_ns, self._next_report_ns)
        self._state_levels(agent)
        return min(next_ns, self._leave(now_ns))

    def terminate(self) -> None:
        """See Component: jobs stay. The agent may have said why, at the same time."""
        self._terminated = True
        self._client.set_stopping()
        self._client.service()
        self._heed_stop(self._client.agent)
        if self._leaving is None and not self._client.agent.decommissioned:
            self._begin_leaving(_Leaving.TOLD_TO_STOP, boottime_ns() + (LAST_WORD_NS if self._client.connected else 0))

    def close(self) -> None:
        """See Component."""
        self._link.close()
        self._jobs.close()

    # --- what the agent says -----------------------------------------------------------------------------------

    def _heed_stop(self, agent: AgentView) -> None:
        if agent.node_stopping and not self._going_down:
            self._journal.say("the node is being stopped: no new jobs")
        self._going_down = agent.node_stopping

    def _heed(self, agent: AgentView, now_ns: int) -> None:
        self._heed_stop(agent)
        if agent.decommissioned and self._leaving in {None, _Leaving.TOLD_TO_STOP}:
            self._report_until_ns = now_ns + REPORT_BOUND_NS
            self._begin_leaving(_Leaving.ORDERED, now_ns + STAY_NS)
        if not self._link.joined or self._asked is not None or now_ns < self._ask_again_ns:
            return
        if self._leaving is _Leaving.ORDERED:
            if self._host.state != "decommissioned":
                self._report_state("decommissioned")
        elif agent.drain and self._host.state == "active" and self._has_taken(agent):
            deadline_ns = agent.drain_deadline_ns  # 0: none
            left_s = max((deadline_ns - now_ns) / NS_PER_S, 0.0) if deadline_ns else None
            self._report_state("draining", deadline_in_s=left_s)
        elif self._host.state == "draining" and not self._jobs.living:
            self._report_state("drained")
        elif (released := self._released(agent)) is not None and released > self._released_epoch:
            self._released_epoch = released
            if self._link.send({"op": "released", "released_epoch": released}):
                self._asked = "released"

    def _has_taken(self, agent: AgentView) -> bool:
        """Whether the agent knows the controller's newest word.

        Before that its DRAIN=1 may be its answer to an older word, and `drained` would hide the newer one from it.
        """
        return agent.seen_epoch >= self._host.epoch

    @staticmethod
    def _released(agent: AgentView) -> int | None:
        """The epoch up to which an operator on the host released it, where that is the agent's last word."""
        return agent.epoch if agent.undrain and not agent.drain and not agent.decommissioned else None

    def _report_state(self, state: str, *, deadline_in_s: float | None = None) -> None:
        reason = "ordered on the host itself"
        if self._link.send({"op": "state", "state": state, "reason": reason, "deadline_in_s": deadline_in_s}):
            self._asked = state

    def _answered(self, message: Message) -> None:
        """Take the answer to a report. What was not done is not asked again at once."""
        if self._asked == "released":
            done = is_ok(message)
            self._released_epoch = self._released_epoch if done else -1
        else:
            done = message.get("state") == self._asked
        self._asked = None
        self._ask_again_ns = 0 if done else boottime_ns() + REPORT_NS

    def _drains(self) -> bool:
        agent = self._client.agent
        told = agent.drain or agent.node_stopping
        return told or self._host.state not in {None, "active"} or self._leaving is not None

    # --- what it states ----------------------------------------------------------------------------------------

    def _state_levels(self, agent: AgentView) -> None:
        """State the host's state as the controller gave it; without one, how far a drain ordered here has come."""
        jobs = len(self._jobs.living)
        self._client.set_jobs(jobs)
        state, deadline_ns = self._host.state, self._host.deadline_ns
        drains = state == "draining" or (state in {None, "active"} and agent.drain and self._has_taken(agent))
        if drains and not self._link.joined:
            state = "draining" if jobs else "drained"
            deadline_ns = deadline_ns or agent.drain_deadline_ns or None
        if state is not None:
            self._client.set_host_state(state, self._host.epoch, deadline_ns if state == "draining" else None)
        where = f"joined {self._link.address}" if self._link.joined else "no controller"
        self._client.set_status(f"{where}, {state or 'state unknown'}, {jobs} jobs")

    # --- the controller ----------------------------------------------------------------------------------------

    def _greeting(self) -> Message:
        released = self._released(self._client.agent)
        rejoin_ms = self._client.agent.levels.get("REJOIN_BUDGET_MS", "")
        self._released_epoch = max(self._released_epoch, -1 if released is None else released)
        return {
            "op": "join",
            "host": self._settings.host,
            "instance_id": self._settings.instance_id,
            "slots": self._settings.slots,
            "jobs": list(self._jobs.living),
            "ended": list(self._jobs.ended),
            "released_epoch": released,
            "known_epoch": self._host.epoch,
            "rejoin_ms": min(int(rejoin_ms), MAX_REJOIN_MS) if rejoin_ms.isascii() and rejoin_ms.isdigit() else None,
        }

    def _joined(self, message: Message) -> bool:
        if is_ok(message):
            self._journal.say(f"joined {self._link.address}: {message.get('state')}, epoch {message.get('epoch')}")
            self._asked = None
            self._next_report_ns = 0
            for job in tuple(self._jobs.ended):
                self._jobs.acknowledged(job)
            self._client.set_ready(True)
            self._apply(message)
            return True
        if code_of(message) == "decommissioned":
            self._apply(message, _Leaving.REFUSED)
        return False

    def _lost(self) -> None:
        self._asked = None
        self._client.set_ready(False)
        self._journal.say("lost the controller: jobs go on, looking for it again")

    def _received(self, message: Message) -> None:
        reply, push = message.get("reply"), message.get("push")
        if push == "job":
            self._start_job(message)
        elif push == "host" or reply in {"report", "state", "released"}:
            if reply in {"state", "released"}:
                self._answered(message)
            self._apply(message)
        elif reply == "job" and is_ok(message) and isinstance(message.get("job"), str):
            self._jobs.acknowledged(message["job"])

    def _apply(self, message: Message, leaving: _Leaving = _Leaving.EXPELLED) -> None:
        """Take the controller's word, unless it is older than what is known."""
        state, epoch, deadline_in_s = message.get("state"), message.get("epoch"), message.get("deadline_in_s")
        if state not in STATES or type(epoch) is not int or epoch < self._host.epoch:
            return
        if (state, epoch) != (self._host.state, self._host.epoch):
            deadline_ns = None
            if isinstance(deadline_in_s, int | float):
                deadline_ns = boottime_ns() + int(deadline_in_s * NS_PER_S)
            self._host = _Host(state=state, epoch=epoch, deadline_ns=deadline_ns)
            self._journal.say(f"host is {state} at epoch {epoch}")
        if state == "decommissioned" and self._leaving in {None, _Leaving.TOLD_TO_STOP}:
            stay_ns = REPORT_BOUND_NS if leaving is _Leaving.REFUSED else STAY_NS
            self._begin_leaving(leaving, boottime_ns() + stay_ns)

    # --- jobs --------------------------------------------------------------------------------------------------

    def _start_job(self, message: Message) -> None:
        job, seconds = message.get("job"), message.get("seconds")
        if not isinstance(job, str) or not isinstance(seconds, int | float) or not seconds >= 0:
            return
        if job in self._jobs.ended:
            self._job_ended(job, self._jobs.ended[job])
        elif job not in self._jobs.living and (self._drains() or len(self._jobs.living) >= self._settings.slots):
            self._link.send({"op": "job", "job": job, "state": "refused"})
        elif why := self._jobs.start(job, seconds):
            self._journal.complain(why)
            self._link.send({"op": "job", "job": job, "state": "ended", "outcome": why[:200]})
        else:
            self._link.send({"op": "job", "job": job, "state": "running"})

    def _job_ended(self, job: str, outcome: str) -> None:
        self._link.send({"op": "job", "job": job, "state": "ended", "outcome": outcome})

    # --- leaving -----------------------------------------------------------------------------------------------

    def _begin_leaving(self, why: _Leaving, leave_ns: int) -> None:
        self._leaving = why
        self._leave_ns = leave_ns
        self._said = False
        self._journal.say(why.value)

    def _leave(self, now_ns: int) -> int:
        """End when it is time; returns when that is. What was stated in one turn is on its way in the next."""
        if self._leaving is None:
            return now_ns + MAX_WAIT_NS
        known = self._host.state == "decommissioned"
        if self._leaving is _Leaving.TOLD_TO_STOP:
            done = now_ns >= self._leave_ns
        elif self._terminated:
            done = known or self._leaving is not _Leaving.ORDERED or now_ns >= self._report_until_ns
        else:
            told_agent = self._leaving is _Leaving.REFUSED and self._client.connected and self._said
            done = told_agent or now_ns >= self._leave_ns
        if done:
            self.exit_status = EXIT_OK if self._terminated else EXIT_DECOMMISSIONED
        if self._leaving is _Leaving.REFUSED and not self._said:
            self._said = True
            return now_ns
        return self._report_until_ns if self._terminated and self._leaving is _Leaving.ORDERED else self._leave_ns
