"""What an agent keeps on the disk: its directories, locked; the runtime record; durable facts; a good configuration."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from node_manager.core.events import Event
from node_manager.core.nodestate import NodeState
from node_manager.runtime import kernel, record, rundir, store, unconfigured
from node_manager.runtime.process import ProcessRecord
from node_manager.runtime.recording import Recorder
from node_manager.runtime.settings import Settings
from node_manager.runtime.store import Store
from node_manager.runtime.writer import Writer

CLOSE_TIMEOUT_S = 5.0
"""How long the end of the agent waits for a disk that hangs."""

log = structlog.get_logger("xce-node-manager")


class Books:
    """Everything that is written. `locks` are a predecessor's, in this very process; None: they are taken.

    Raises RuntimeDirError and StateDirError where another agent has a directory, or it cannot be used.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        *,
        boot_id: str,
        post: Callable[[Event], None],
        locks: tuple[int, ...] | None,
    ) -> None:
        self.troubles: dict[Path, str] = {}
        """Files that cannot be written, and why."""
        self._settings = settings
        self._boot_id = boot_id
        rundir.prepare(settings.runtime_dir)
        self.locks = self._lock(settings) if locks is None else locks
        self.nonce = rundir.nonce(settings.runtime_dir, boot_id)
        self.recorder = Recorder(boot_id=boot_id, nonce=self.nonce, agent_pid=os.getpid())
        self.store = Store(settings.state_dir)
        self.writer = Writer(
            loop,
            post=post,
            trouble=self._note_trouble,
            store=self.store,
            record_path=settings.record_file,
            config_path=settings.last_good_file,
        )
        self._encoder = record.Encoder()
        self._recorded: record.RuntimeRecord | None = None

    def keep_record(self, state: NodeState, running: tuple[ProcessRecord, ...]) -> None:
        """Hand the runtime record to the writer where something in it has changed."""
        made = self.recorder.record(state, running)
        if made != self._recorded:
            self._recorded = made
            self.writer.write_record(self._encoder.encode(made))

    def restore(self) -> tuple[str, ...]:
        """Make anew what somebody has removed from the runtime directory under this agent, and say what it was.

        Without its lock a second agent would come in, without nonce and record the next one would know nothing.
        Raises RuntimeDirError, also when another agent has the directory by now.
        """
        runtime_dir = self._settings.runtime_dir
        record_file = self._settings.record_file
        to_come = self._recorded is None or self.writer.busy or record_file in self.troubles
        lost = tuple(
            name for name in rundir.lost(runtime_dir, self.locks[0]) if name != record_file.name or not to_come
        )
        if not lost:
            return ()
        rundir.prepare(runtime_dir)
        if "lock" in lost:
            lock, *others = rundir.lock(runtime_dir), *self.locks[1:]
            os.close(self.locks[0])
            self.locks = (lock, *others)
        if "nonce" in lost:
            rundir.keep_nonce(runtime_dir, self._boot_id, self.nonce)
        if self._recorded is not None:
            self.writer.write_record(self._encoder.encode(self._recorded))
        return lost

    def show_what_waits(self, waits: bool) -> None:
        """Show what an agent without a configuration does not act on; no longer, once it has one."""
        settings = self._settings
        found: dict[Path, str | None] = {settings.state_dir: None, settings.record_file: None}
        if waits:
            found[settings.state_dir] = unconfigured.latched(settings.state_dir)
            try:
                found[settings.record_file] = unconfigured.running(settings, boot_id=self._boot_id, nonce=self.nonce)
            except OSError as error:
                found[settings.record_file] = f"cannot look for what an earlier agent left: {kernel.explain(error)}"
        for path, sentence in found.items():
            if sentence is None:
                self.troubles.pop(path, None)
            elif self.troubles.get(path) != sentence:
                self.troubles[path] = sentence
                log.warning("agent.warning", detail=sentence)

    def close(self) -> None:
        """Write what waits, within a bound, and give the directories up."""
        self.writer.close(CLOSE_TIMEOUT_S)
        for lock in self.locks:
            os.close(lock)

    def _lock(self, settings: Settings) -> tuple[int, ...]:
        locks = [rundir.lock(settings.runtime_dir)]
        state_lock, remark = store.lock(settings.state_dir)
        if state_lock is not None:
            locks.append(state_lock)
        if remark is not None:
            self.troubles[settings.state_dir / "lock"] = remark
        return tuple(locks)

    def _note_trouble(self, path: Path, trouble: str | None) -> None:
        """Note that a file cannot be written, or can be again."""
        if trouble is None:
            self.troubles.pop(path, None)
            log.info("store.file_written", file=str(path))
        else:
            self.troubles[path] = trouble
            log.warning("store.file_failed", detail=trouble)
