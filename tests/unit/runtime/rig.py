"""A loop, an event list and real processes for the tests of the runtime."""

import asyncio
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from node_manager.core.actions import KillTree, Spawn
from node_manager.core.events import Event, Exited, Spawned, SpawnFailed, TreeEmpty
from node_manager.core.spec import ComponentSpec, LogSink
from node_manager.runtime import kernel
from node_manager.runtime.environment import Markers
from node_manager.runtime.kill import kill_exactly
from node_manager.runtime.process import Processes
from node_manager.runtime.procfs import ProcFs

BOUND_S = 30.0
"""Far more than anything here takes, even on a busy machine."""
_LOOK_S = 0.01
T = TypeVar("T", bound=Event)


def python(code: str, *arguments: str) -> tuple[str, ...]:
    """A command that runs this Python code."""
    return (sys.executable, "-S", "-c", code, *arguments)


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


class Rig:
    """One agent's worth of runtime. `run_until` turns the loop until something is so."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.runtime_dir = directory / "run"
        self.log_dir = directory / "log"
        self.runtime_dir.mkdir(exist_ok=True)
        self.log_dir.mkdir(exist_ok=True)
        # Its own, because tests run side by side; the same for a second agent in this directory.
        self.nonce = hashlib.sha256(str(directory).encode()).hexdigest()[:32]
        self.loop = asyncio.new_event_loop()
        self.events: list[Event] = []
        self.warnings: list[str] = []
        self.processes = Processes(
            self.loop,
            post=self.events.append,
            jitter=lambda: 7,
            runtime_dir=self.runtime_dir,
            log_dir=self.log_dir,
            nonce=self.nonce,
            warn=self.warnings.append,
            **options,
        )
        self.processes.start()

    @property
    def markers(self) -> Markers:
        return Markers(nonce=self.nonce, runtime_dir=self.runtime_dir)

    def run_until(self, condition: Callable[[], object], what: str = "the condition") -> None:
        """Turn the loop until the condition holds; fails after BOUND_S."""
        deadline = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come; events: {self.events}"
            self.loop.run_until_complete(asyncio.sleep(_LOOK_S))

    def turn(self) -> None:
        """Let the loop handle everything that is ready now."""
        self.loop.run_until_complete(asyncio.sleep(0))

    def wait_for(self, kind: type[T], count: int = 1) -> T:
        """The latest event of this kind, when there are `count`."""
        self.run_until(lambda: len(self.of(kind)) >= count, kind.__name__)
        return self.of(kind)[-1]

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    def spec(self, command: tuple[str, ...], name: str = "comp", **fields: Any) -> ComponentSpec:
        fields.setdefault("log", LogSink.FILE)
        return ComponentSpec(name=name, role="test", command=command, **fields)

    def spawn(self, command: tuple[str, ...], name: str = "comp", generation: int = 1, **fields: Any) -> None:
        action_fields = {
            key: fields.pop(key) for key in ("term", "lease_valid_until_ns", "not_after_ns") if key in fields
        }
        spec = self.spec(command, name, **fields)
        self.processes.spawn(Spawn(component=name, generation=generation, spec=spec, **action_fields))

    def start(self, command: tuple[str, ...], name: str = "comp", generation: int = 1, **fields: Any) -> int:
        """Spawn and return the pid once the command runs."""
        before, failed = len(self.of(Spawned)), len(self.of(SpawnFailed))
        self.spawn(command, name, generation, **fields)
        self.run_until(lambda: len(self.of(Spawned)) > before or len(self.of(SpawnFailed)) > failed, "Spawned")
        assert len(self.of(Spawned)) > before, self.of(SpawnFailed)
        return self.of(Spawned)[-1].pid

    def log(self, name: str = "comp") -> str:
        try:
            return (self.log_dir / f"{name}.log").read_text()
        except FileNotFoundError:
            return ""

    def lines(self, count: int, name: str = "comp") -> list[str]:
        """The first lines that a component wrote, once there are so many."""
        self.run_until(lambda: self.log(name).count("\n") >= count, f"{count} lines of output")
        return self.log(name).splitlines()

    def kill_tree(self, name: str = "comp", generation: int = 1) -> TreeEmpty:
        before = len(self.of(TreeEmpty))
        self.processes.kill_tree(KillTree(component=name, generation=generation))
        return self.wait_for(TreeEmpty, before + 1)

    def exited(self, count: int = 1) -> Exited:
        return self.wait_for(Exited, count)

    def close(self) -> None:
        """End the runtime, then every process that this rig's markers are on or that came to us."""
        self.processes.close()
        self.loop.close()
        procfs = ProcFs()
        deadline = time.monotonic() + BOUND_S
        while marked := [
            found
            for found in procfs.table().values()
            if found.living
            and found.pid != os.getpid()
            and (
                (procfs.markers(found.pid) or {}).get("XCE_HEARTBEAT_SOCKET") == self.markers.heartbeat_socket
                or found.ppid == os.getpid()
            )
        ]:
            assert time.monotonic() < deadline, f"cannot end {marked}"
            for found in marked:
                pidfd = kill_exactly(procfs, found)
                if pidfd is not None:
                    os.close(pidfd)
            reap_all()
        reap_all()
        kernel.become_subreaper(on=False)


def reap_all() -> None:
    with suppress(ChildProcessError):
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
            pass


def stranger(*command: str) -> int:
    """A child of this process that no component has to do with; its environment is empty. Its pid."""
    return os.spawnve(os.P_NOWAIT, command[0], list(command), {})  # noqa: S606 - no shell is what is wanted


def alive(pid: int) -> bool:
    found = ProcFs().stat(pid)
    return found is not None and found.living


def wait_stopped(pid: int) -> None:
    """Until a child to which SIGSTOP was sent has really stopped, or ended: before that it may run on a while."""
    deadline = time.monotonic() + BOUND_S
    while (found := ProcFs().stat(pid)) is not None and found.state not in "TZ":
        assert time.monotonic() < deadline, f"{pid} does not stop"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
