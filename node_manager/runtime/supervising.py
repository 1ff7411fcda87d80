"""The core and the processes without the rest of an agent: what `node_manager.supervision` is made of.

The same loop as the agent's, with one queue and one place that calls `step`, but no sockets, no configuration files, no
durable facts; and nothing that a program around it would notice: no signal handler, no subreaper, no child reaped but
its own. So orphans are looked for in the whole process table, by session and marker.
"""

import asyncio
import os
import random
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

from node_manager.core import node as core
from node_manager.core.actions import (
    Action,
    Finish,
    Log,
    LookAt,
    Reply,
    SendLevels,
    Signal,
    Spawn,
    TakeEvidence,
    WriteFacts,
)
from node_manager.core.durable import DurableFacts
from node_manager.core.events import (
    JITTER_STEPS,
    Booted,
    Command,
    ConfigLoaded,
    Event,
    EvidenceTaken,
    FactsWritten,
    StopNode,
    Tick,
    Verb,
)
from node_manager.core.nodestate import NodePhase, NodeState
from node_manager.core.spec import ComponentSpec, HostSpec, NodeSpec
from node_manager.runtime import adoption, files, inheritance, record, rundir
from node_manager.runtime.children import ChildAction, Children
from node_manager.runtime.clock import boot_id, boottime_ns
from node_manager.runtime.environment import Markers
from node_manager.runtime.examiner import Examiner
from node_manager.runtime.history import History
from node_manager.runtime.process import Processes
from node_manager.runtime.recording import Recorder
from node_manager.runtime.store import Store
from node_manager.runtime.stuck import reap_within
from node_manager.runtime.timekeeper import Timekeeper, wall_offset_ns
from node_manager.runtime.writer import Writer

EVENTS_PER_TURN = 256
"""Events taken before everything else on the loop has its turn."""
CLOSE_TIMEOUT_S = 5.0
"""How long the end waits for a disk that hangs."""
REAP_S = 0.5
"""How long the end waits for the deaths of what it kills: probes that were under way."""
_NONCE_BYTES = 16
_HOST = HostSpec(name="supervisor")
_RECORD = "runtime.json"


class DirectoryInUseError(Exception):
    """Another supervisor has the runtime directory; the text begins with "cannot"."""


class Engine:
    """Supervises components on `loop`, in its thread. `turned` is called after each turn, when anything has changed.

    With a `runtime_dir`, components outlive the program, and the next one with the same directory adopts them.
    Raises RuntimeDirError and DirectoryInUseError.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        runtime_dir: Path | None,
        log_dir: Path | None,
        turned: Callable[[], None],
    ) -> None:
        self.state = NodeState()
        self.history = History()
        self.failure: Exception | None = None
        """What went wrong in the supervision itself: it goes no further, and whoever waits for it must hear of that."""
        self.finished = False
        """Every component was told to stop, and is down."""
        self._loop = loop
        self._turned = turned
        self._random = random.Random()  # noqa: S311 - jitter, no secret
        self._queue: deque[Event] = deque()
        self._scheduled = False
        self.closed = False
        self._answers: dict[int, asyncio.Future[Reply]] = {}
        self._commands = 0
        self._killed: tuple[int, ...] = ()
        self._boot_id = boot_id()
        self._directory = (
            None if runtime_dir is None else _Directory(loop, runtime_dir, self._boot_id, trouble=self._note_trouble)
        )
        nonce = os.urandom(_NONCE_BYTES).hex() if self._directory is None else self._directory.nonce
        self._markers = Markers(nonce=nonce, runtime_dir=runtime_dir, sockets=False)
        self._time = Timekeeper(loop, tick=lambda: self.post(Tick()), pulse=lambda: None)
        self._processes = Processes(
            loop,
            post=self.post,
            jitter=self._jitter,
            runtime_dir=runtime_dir,
            log_dir=log_dir,
            nonce=nonce,
            sockets=False,
            subreaper=False,
            warn=lambda text: self._log(Log(event="supervisor.warning", component=None, fields=(("detail", text),))),
        )
        self._children = Children(
            loop,
            self._processes,
            log_dir=log_dir,
            listen=lambda _spec, _generation: None,  # nobody speaks
            spawned=self._note_start,
            post=self.post,
            jitter=self._jitter,
        )
        self._examiner = Examiner(
            loop,
            post=self.post,
            snapshot=self._processes.snapshot,
            state_dir=runtime_dir or Path(os.devnull),
            log_dir=log_dir,
        )

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self, components: tuple[ComponentSpec, ...]) -> None:
        """Take charge of these components, and of what an earlier program left in the runtime directory.

        What it left of others is stopped. Raises OSError when it cannot look: then nothing is started.
        """
        spec = _node(components)
        if self._directory is None:
            self.post(Booted(boot_id=self._boot_id, facts=DurableFacts()))
            self.post(ConfigLoaded(spec=spec))
            return
        kept, note = self._directory.read()
        findings = adoption.find(kept, self._markers, inheritance.expected_uid(spec, self._processes.accounts))
        for text in (note, *inheritance.remarks(findings)):
            if text:
                self._log(Log(event="supervisor.warning", component=None, fields=(("detail", text),)))
        holds = (*kept.holds, *inheritance.holds(findings, boottime_ns()))
        self.post(Booted(boot_id=self._boot_id, facts=DurableFacts(), holds=holds))
        adopted, left = inheritance.take(findings, self._processes.adopt, self._processes.look_everywhere)
        self._processes.endings.begin(findings.stranded)
        for found in adopted:
            self._directory.recorder.adopted(found)
        self.post(ConfigLoaded(spec=spec, found=adopted, past=inheritance.past(kept, findings, left)))

    def change(self, components: tuple[ComponentSpec, ...]) -> "asyncio.Future[Reply]":
        """Have these components in place of the ones so far."""
        command_id, answer = self._expect()
        self.post(ConfigLoaded(spec=_node(components), command_id=command_id))
        return answer

    def ask(self, verb: Verb, component: str) -> "asyncio.Future[Reply]":
        """Ask for something as an operator would."""
        command_id, answer = self._expect()
        self.post(Command(id=command_id, verb=verb, by="program", component=component))
        return answer

    def stop(self) -> None:
        """Stop every component in order; `finished` becomes true."""
        self.post(StopNode(reason="the supervisor ends"))

    def kill(self) -> None:
        """SIGKILL every main process, with no wait for anything: the last resort of a program that is in a hurry."""
        self._killed = tuple(process.pid for process in self._processes.snapshot())
        for process in self._processes.snapshot():
            self._processes.signal(
                Signal(component=process.component, generation=process.generation, signal=signal.SIGKILL)
            )

    def close(self) -> None:
        """Let go of everything without touching a component. What is not written yet gets a bounded time."""
        if self.closed:
            return
        self.closed = True
        self._children.close()
        self._examiner.close()
        self._processes.close(reap_s=REAP_S)
        reap_within(self._killed, REAP_S)
        self._time.close()
        if self._directory is not None:
            self._directory.close()
        for answer in self._answers.values():
            answer.cancel()

    # --- the queue ------------------------------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        """Add an event. Nothing is decided here. No bound: each stands for something that was asked for."""
        self._queue.append(event)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self.closed or self.failure is not None:
            return
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - the top of it: told to the program, which decides
            self.failure = error
        self._turned()

    def _work(self) -> None:
        for _ in range(EVENTS_PER_TURN):
            if not self._queue:
                break
            self._step(self._queue.popleft())
        self._time.arm(core.next_wake_ns(self.state))
        if self._directory is not None:
            self._directory.keep(self.state, self._processes)
        if self._queue:
            self._schedule()

    def _step(self, event: Event) -> None:
        now = boottime_ns()
        for each in self._time.with_stall(event, now):
            self._tell_core(each, now)

    def _tell_core(self, event: Event, now: int) -> None:
        self.state, actions = core.step(self.state, event, now)
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, ChildAction):
            self._children.carry_out(action)
            return
        match action:
            case LookAt():
                self._examiner.carry_out(action)
            case TakeEvidence():
                self._take_evidence(action)
            case SendLevels():
                pass  # nobody listens
            case WriteFacts():
                self.post(FactsWritten(seq=action.seq))  # a hold is the program's own to remember
            case Log():
                self._log(action)
            case Reply():
                answer = self._answers.pop(action.id, None)
                if answer is not None and not answer.done():
                    answer.set_result(action)
            case Finish():
                self.finished = True
            case _ as never:
                assert_never(never)

    def _note_start(self, action: Spawn) -> None:
        if self._directory is not None:
            self._directory.recorder.spawned(action)

    def _take_evidence(self, action: TakeEvidence) -> None:
        if self._directory is not None:
            self._examiner.carry_out(action)
            return
        trouble = "there is no runtime directory to write it to"
        self.post(EvidenceTaken(component=action.component, generation=action.generation, path=None, trouble=trouble))

    def _expect(self) -> "tuple[int, asyncio.Future[Reply]]":
        self._commands += 1
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._answers[self._commands] = answer
        return self._commands, answer

    def _log(self, action: Log) -> None:
        if not action.event.startswith(("config.", "command.")):  # the program's own doing
            self.history.add(action, boottime_ns() + wall_offset_ns())

    def _jitter(self) -> int:
        return self._random.randrange(JITTER_STEPS)

    def _note_trouble(self, path: Path, trouble: str | None) -> None:
        text = f"{path} is written again" if trouble is None else trouble
        self._log(Log(event="supervisor.warning", component=None, fields=(("detail", text),)))


class _Directory:
    """The runtime directory: its lock, its nonce, and the record of what runs."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: Path,
        boot: str,
        *,
        trouble: Callable[[Path, str | None], None],
    ) -> None:
        rundir.prepare(path)
        try:
            self._lock = files.lock(path / "lock")
        except files.LockHeldError as error:
            raise DirectoryInUseError(
                f"cannot supervise in {path}: process {error.holder} does so; end it, or take another directory"
            ) from error
        self._path = path
        self._boot_id = boot
        self.nonce = rundir.nonce(path, boot)
        self.recorder = Recorder(boot_id=boot, nonce=self.nonce, agent_pid=os.getpid())
        self._encoder = record.Encoder()
        self._kept: record.RuntimeRecord | None = None
        # The record alone is given to it; facts and a configuration are not kept here.
        self._writer = Writer(
            loop,
            post=lambda _event: None,
            trouble=trouble,
            store=Store(path),
            record_path=path / _RECORD,
            config_path=path / "config.json",
        )

    def read(self) -> tuple[record.RuntimeRecord, str | None]:
        """Return what an earlier program of this boot left, and why it is nothing."""
        return record.read(self._path / _RECORD, boot_id=self._boot_id, nonce=self.nonce)

    def keep(self, state: NodeState, processes: Processes) -> None:
        """Write the record where it has changed."""
        if state.phase is NodePhase.WAITING_CONFIG:
            return
        made = self.recorder.record(state, processes.snapshot())
        if made != self._kept:
            self._kept = made
            self._writer.write_record(self._encoder.encode(made))

    def close(self) -> None:
        """Write what waits, and let go."""
        self._writer.close(CLOSE_TIMEOUT_S)
        os.close(self._lock)


def _node(components: tuple[ComponentSpec, ...]) -> NodeSpec:
    return NodeSpec(host=_HOST, roles=(), components=components)
