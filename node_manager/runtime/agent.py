"""The agent's loop: one queue of events, and one place that calls `step` and carries its actions out.

Sockets, timers, processes and the writer thread only ever add to the queue. `_turn` empties it: each event goes
through the core, each action to whoever carries it out, and afterwards, once for the whole turn, the timer is armed
and the runtime record is handed to the writer.
"""

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable
from typing import assert_never

import structlog

from node_manager.core import node as core
from node_manager.core.actions import (
    Action,
    EndRun,
    Finish,
    Log,
    LookAt,
    Reply,
    SendLevels,
    TakeEvidence,
    WriteFacts,
)
from node_manager.core.events import (
    JITTER_STEPS,
    Beat,
    Command,
    Event,
    Exited,
    Found,
    Notified,
    SpawnFailed,
    Stalled,
    StopNode,
    Tick,
    Verb,
    WallClock,
)
from node_manager.core.intent import Rule
from node_manager.core.nodestate import NodePhase, NodeState
from node_manager.core.spec import NodeSpec
from node_manager.runtime import cgroup
from node_manager.runtime.adoption import Proven
from node_manager.runtime.books import Books
from node_manager.runtime.children import ChildAction, Children
from node_manager.runtime.clock import boot_id, boottime_ns
from node_manager.runtime.examiner import Examiner
from node_manager.runtime.handover import Kept
from node_manager.runtime.history import History
from node_manager.runtime.outstanding import Outstanding
from node_manager.runtime.process import Processes
from node_manager.runtime.settings import Settings
from node_manager.runtime.takeover import Takeover
from node_manager.runtime.timekeeper import CALM_PULSE_NS, STALL_NS, WALL_STEP_NS, Timekeeper, wall_offset_ns
from node_manager.runtime.uptake import Uptake
from node_manager.runtime.voices import Voices

EVENTS_PER_TURN = 256
"""Events taken before the loop looks at its descriptors again: a status query never waits behind a storm."""
MAX_QUEUE = 20_000
"""Bound on the queue. What components say is dropped beyond it: levels, which come again. The rest cannot be more."""
LOG_ALL_REPEATS = 16
"""Repeats of one event beyond this are logged only when their count is a power of two."""

Answer = Callable[[Reply], None]
Step = Callable[[NodeState, Event, int], tuple[NodeState, tuple[Action, ...]]]

log = structlog.get_logger("xce-node-manager")


class Agent:
    """The agent of one host. Everything runs on `loop`; `finished` is called when it may exit; `step` is the core.

    `turned` is called at the end of each turn, and one comes every CALM_PULSE_NS at least; `settled` once the first
    answer to what the configuration is was heard. `kept` is what a predecessor in this very process left (re-exec). The
    constructor only connects with it; nothing is acted on before `resume`, so that the predecessor can still take all
    of it back.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        *,
        user: str | None,
        finished: Callable[[], None],
        step: Step = core.step,
        turned: Callable[[], None] = lambda: None,
        settled: Callable[[], None] = lambda: None,
        kept: Kept | None = None,
        calm_pulse_ns: int = CALM_PULSE_NS,
    ) -> None:
        self._core_step = step
        self.loop = loop
        self.settings = settings
        self.state = NodeState()
        self._wake: tuple[NodeState | None, int | None] = (None, None)
        """A state, and when it needs a tick."""
        self.history = History()
        self.dropped = 0
        """Heartbeats and notify datagrams dropped because the queue was full."""
        self.turns = 0
        """Completed turns of the loop, for metrics."""
        self._finished = finished
        self._turned = turned
        self._random = random.Random()  # noqa: S311 - jitter, no secret
        self._queue: deque[Event] = deque()
        self._scheduled = False
        self._answers: dict[int, Answer] = {}
        self._next_command = 1
        self._changed = False
        self._closed = False
        self.boot_id = boot_id()
        locks = None if kept is None else kept.locks
        self._books = Books(loop, settings, boot_id=self.boot_id, post=self.post, locks=locks)
        self.troubles = self._books.troubles
        self._time = Timekeeper(loop, tick=self._tick, pulse=self._pulse, calm_pulse_ns=calm_pulse_ns)
        groups, self.unfenced = cgroup.claim(
            settings.runtime_dir, lambda text: log.warning("agent.warning", detail=text)
        )
        """Why components have no cgroups; empty: they have."""
        self.processes = Processes(
            loop,
            post=self._post_of_process,
            jitter=self._jitter,
            runtime_dir=settings.runtime_dir,
            log_dir=settings.log_dir,
            nonce=self._books.nonce,
            warn=lambda text: log.warning("agent.warning", detail=text),
            ending=self._last_words,
            groups=groups,
            fuse_dir=settings.runtime_dir / "fuse",
        )
        self._voices = Voices(
            loop,
            settings,
            boot_id=self.boot_id,
            post=self.post,
            processes=self.processes,
            state=lambda: self.state,
        )
        self.heartbeats = self._voices.heartbeats
        self.notify = self._voices.notify
        self._children = Children(
            loop,
            self.processes,
            log_dir=settings.log_dir,
            listen=self._voices.listen_to,
            spawned=self._books.recorder.spawned,
            post=self.post,
            jitter=self._jitter,
        )
        self._examiner = Examiner(loop, self.post, self.processes.snapshot, settings.state_dir, settings.log_dir)
        self._takeover = Takeover(
            settings,
            boot_id=self.boot_id,
            nonce=self._books.nonce,
            store=self._books.store,
            processes=self.processes,
            recorder=self._books.recorder,
            listen=self._voices.listen_to_adopted,
            post=self.post,
        )
        self._uptake = Uptake(
            loop,
            settings,
            user=user,
            takeover=self._takeover,
            post=self.post,
            write_last_good=self._books.writer.write_config,
            waiting=self._books.show_what_waits,
            settled=settled,
        )

        self._outstanding = Outstanding()
        if kept is not None:
            self._attach(kept)

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self, spec: NodeSpec | None, heartbeat_fd: int | None = None) -> None:
        """Take charge. `spec` is a configuration that was validated already; None: read it, and wait while it is wrong.

        `heartbeat_fd` listens at the heartbeat socket's path already. Raises OSError where a socket cannot be bound.
        """
        self.processes.start()
        if heartbeat_fd is None:
            self.heartbeats.start()
        else:
            self.heartbeats.resume(heartbeat_fd, ())
        self._note_wall_clock()
        if spec is not None:
            self._uptake.take(spec)
        else:
            self._uptake.reading.request()

    def resume(self, kept: Kept, since_ns: int) -> None:
        """Go on where a predecessor stopped at `since_ns`: with the same state, and with what was under way then."""
        self.processes.start()
        away_ns = boottime_ns() - since_ns
        if away_ns > STALL_NS:
            self.post(Stalled(duration_ns=away_ns))
        if self.state.spec is not None:
            self._takeover.end_stranded(self.state.spec)
        for action in kept.repeat:
            self._carry_out(action)
        self._note_wall_clock()
        self._changed = True
        self.post(Tick())
        if not self._uptake.booted:
            self._uptake.reading.request()
        elif self.state.config_error is not None:
            self._uptake.reading.watch()

    def under_way(self) -> tuple[str, ...]:
        """Return, in words, what has to be over before the program can be replaced; nothing: now it can."""
        found = list(self._outstanding.to_wait_for())
        if self.processes.fuses is not None and self.processes.fuses.launching:
            found.append("the start of a fuse")  # it would die with the thread that makes it
        if self._queue:
            found.append("what has just happened")
        if self._answers:
            found.append("the answer to a command")
        if self._uptake.reading.busy:
            found.append("the reading of the configuration")
        if self._books.writer.busy:
            found.append("a write to the runtime directory")
        return tuple(found)

    def keep(self) -> Kept:
        """Return what a successor in this process goes on with. Only while nothing is `under_way`."""
        heartbeats = self.heartbeats.listener
        assert heartbeats is not None, "an agent that runs listens"
        return Kept(
            node=self.state,
            booted=self._uptake.booted,
            births=self._books.recorder.births,
            running=self.processes.snapshot(),
            pidfds=self.processes.pidfds,
            repeat=self._outstanding.to_repeat(),
            ambiguous=tuple(sorted(self._takeover.ambiguous)),
            history=json.dumps(self.history.keep()),
            sockets=self.notify.keep(),
            connections=self.heartbeats.keep(),
            heartbeat_fd=heartbeats.fileno(),
            locks=self._books.locks,
            next_command=self._next_command,
            turns=self.turns,
            dropped=self.dropped,
        )

    def restore(self) -> tuple[str, ...]:
        """Make anew what somebody has removed from the runtime directory, and say what.

        Raises RuntimeDirError and OSError, each with a sentence.
        """
        restored = (*self._books.restore(), *self._voices.restore())
        if self.processes.fuses is not None:
            self.processes.fuses.restore()
        return restored

    def let_go(self) -> None:
        """Kill the probes and checks that are under way: a successor begins them again."""
        self._children.let_go()

    def take_back(self, kept: Kept) -> None:
        """Begin again what `let_go` has killed: there is no successor."""
        for action in kept.repeat:
            self._carry_out(action)

    def close(self, *, keep_sockets: bool = False) -> None:
        """Let go of everything without touching a component. What is not written yet gets a bounded time.

        `keep_sockets`: somebody else has the heartbeat socket open as well, so its path stays.
        """
        if self._closed:
            return
        self._closed = True
        self._uptake.reading.close()
        self._children.close()
        self._examiner.close()
        self._voices.close(keep_path=keep_sockets)
        self.processes.close()
        self._time.close()
        self._books.close()

    def stop(self, reason: str) -> None:
        """Stop every component in order; `finished` is called when that is done.

        Without a configuration what an earlier agent left is stopped, each in the way that it was started with.
        """
        if not self._uptake.booted:
            self._uptake.clear()
        self.post(StopNode(reason=reason))

    def reload(self, answer: Answer | None = None) -> None:
        """Read the configuration again."""
        self._uptake.reading.request(None if answer is None else self.expect(answer))

    def expect(self, answer: Answer) -> int:
        """Return a fresh command id; `answer` gets the one `Reply` with that id."""
        command_id = self._next_command
        self._next_command += 1
        self._answers[command_id] = answer
        return command_id

    def ask(self, command: Command) -> None:
        """Put an operator's command into the queue; its answer goes to whoever `expect`ed its id.

        What was ambiguous is looked for once more before it is started: the advice was to end processes first.
        """
        name = command.component
        why = None
        if name is not None and self.state.spec is not None and command.verb in {Verb.START, Verb.RESTART}:
            why = self._takeover.still_ambiguous(name, self.state.spec)
        if why is None:
            self.post(command)
            return
        self.note("command.received", verb=command.verb.value, by=command.by)
        self._carry_out(Reply(id=command.id, ok=False, detail=f"cannot start {name}: {why}", rule=Rule.EXIT_HOLD.value))

    def note(self, event: str, **fields: str) -> None:
        """Put something that is not the core's into the history."""
        self._log(Log(event=event, component=None, fields=tuple(fields.items())))

    def _attach(self, kept: Kept) -> None:
        self.state = kept.node
        self._uptake.booted = kept.booted
        self._next_command, self.turns, self.dropped = kept.next_command, kept.turns, kept.dropped
        self.history.restore(json.loads(kept.history))
        self._books.recorder.go_on(kept.births)
        self._takeover.ambiguous.update(kept.ambiguous)
        for process, pidfd in zip(kept.running, kept.pidfds, strict=True):
            found = Found(
                component=process.component,
                pid=process.pid,
                generation=process.generation,
                started_ns=process.started_ns,
            )
            self.processes.adopt(Proven(found=found, start_ticks=process.start_ticks, pidfd=pidfd), ended=True)
        for name in self.state.members:
            self.processes.look_everywhere(name)
        self._voices.resume(kept.heartbeat_fd, kept.connections, kept.sockets)

    # --- the queue ------------------------------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        """Add an event. Nothing is decided here."""
        if len(self._queue) >= MAX_QUEUE and isinstance(event, Beat | Notified):
            self.dropped += 1
            return
        self._outstanding.answered(event)
        self._queue.append(event)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def _post_of_process(self, event: Event) -> None:
        if isinstance(event, Exited | SpawnFailed):
            self.loop.call_soon(self._voices.tidy)
        self.post(event)

    def _turn(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        for _ in range(EVENTS_PER_TURN):
            if not self._queue:
                break
            self._step(self._queue.popleft())
        self.turns += 1
        self._after_turn()
        if self._queue:
            self._schedule()

    def _step(self, event: Event) -> None:
        now = boottime_ns()
        for each in self._time.with_stall(event, now):
            self._tell_core(each, now)

    def _tell_core(self, event: Event, now: int) -> None:
        self.state, actions = self._core_step(self.state, event, now)
        self._changed = self._changed or bool(actions)
        for action in actions:
            if not isinstance(action, Log):
                self._carry_out(action)
        for action in actions:  # told afterwards: what is done about a word comes first
            if isinstance(action, Log):
                self._carry_out(action)

    def _after_turn(self) -> None:
        if self._closed:
            return
        if self.state.phase is not NodePhase.WAITING_CONFIG:
            self.heartbeats.accept()  # everything that runs is adopted; before that it would be a stranger
        if self._wake[0] is not self.state:  # it looks at every component, and an idle turn changes none
            self._wake = self.state, core.next_wake_ns(self.state)
        self._time.arm(self._wake[1])
        self._keep_record()
        self.processes.keep(self.state)
        self._turned()

    def _keep_record(self) -> None:
        """Record what has changed; whatever does calls for an action."""
        if self._changed and self.state.phase is not NodePhase.WAITING_CONFIG:
            self._changed = False
            self._books.keep_record(self.state, self.processes.snapshot())

    def _last_words(self, component: str, generation: int) -> None:
        self._voices.last_words(component, generation)

    def _tick(self) -> None:
        # What has come in by now is heard before time is judged: the loop has seen it in the same look.
        self.loop.call_soon(self.post, Tick())

    def _pulse(self) -> None:
        self._note_wall_clock()
        if self.processes.groups is not None:
            self.processes.groups.age(self.loop.time())
        self._schedule()

    def _note_wall_clock(self) -> None:
        offset_ns = wall_offset_ns()
        if abs(offset_ns - self.state.wall_offset_ns) > WALL_STEP_NS:
            self.post(WallClock(offset_ns=offset_ns))

    # --- actions --------------------------------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        self._outstanding.issued(action)
        if isinstance(action, ChildAction):
            self._children.carry_out(action)
            if isinstance(action, EndRun):
                self.heartbeats.end(action.component, action.generation)
            return
        match action:
            case LookAt() | TakeEvidence():
                self._examiner.carry_out(action)
            case SendLevels():
                self.heartbeats.send(action.component)
            case WriteFacts():
                self._books.writer.write_facts(action.seq, action.facts)
            case Log():
                self._log(action)
            case Reply():
                answer = self._answers.pop(action.id, None)
                if answer is not None:
                    answer(action)
            case Finish():
                self._keep_record()
                self._finished()
            case _ as never:
                assert_never(never)

    def _log(self, action: Log) -> None:
        entry = self.history.add(action, boottime_ns() + wall_offset_ns())
        count: int = entry.get("count", 1)
        if count <= LOG_ALL_REPEATS or count & (count - 1) == 0:
            fields = {name: value for name, value in entry.items() if name not in {"seq", "at", "event", "first_at"}}
            log.info(action.event, **{name: value for name, value in fields.items() if value is not None})

    def _jitter(self) -> int:
        return self._random.randrange(JITTER_STEPS)
