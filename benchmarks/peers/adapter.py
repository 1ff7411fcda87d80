"""What every supervisor is to the measurements: something that is configured, started, asked, changed and stopped."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import procfs
from benchmarks.peers.startlog import StartLog

Command = Sequence[str | Path]

_LEFT_ROUNDS = 3
"""What is killed at the end may have started something just before: it is looked for again."""
_LEFT_PAUSE_S = 0.05
_REAP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things are: what was built of `programs`, what packaging/bench-setup.sh installed, and our own commands."""

    built: Path
    installed: Path
    ours: Path

    @property
    def probe(self) -> Path:
        """The supervised program."""
        return self.built / "probe"

    @property
    def python(self) -> Path:
        """The interpreter that has the clients of supervisord and circus."""
        return self.installed / "venv" / "bin" / "python"


PROGRAMS = Path(__file__).parent / "programs"


class NotStartedError(Exception):
    """A supervisor did not get its components up."""


@dataclass(slots=True)
class Session:
    """What one session runs: `count` components; each ends by itself after `life_ms`, where that is given."""

    places: Places
    count: int
    life_ms: int | None = None
    changed: set[str] = field(default_factory=set)
    """Components whose command has one argument more than at the start."""

    @property
    def names(self) -> list[str]:
        """The components."""
        return [f"svc{index:04d}" for index in range(self.count)]


class Supervisor(ABC):
    """One supervisor in one session. Subclasses write its configuration and name its commands."""

    name: str
    settled_s = 0.05
    """How long a component has run before it is killed: some restart a short-lived one later than others."""
    start_bound_s = 120.0
    restart_bound_s = 30.0
    stop_signal = signal.SIGTERM
    slow = False
    """Works through its components one after the other, so that some measurements are made once."""
    floor = False
    """No supervisor to choose: what the machine or the language costs at least."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.names = session.names
        self.directory = Path(tempfile.mkdtemp(prefix="peers-"))
        self.log = StartLog(self.directory / "starts")
        self.process: subprocess.Popen[bytes] | None = None
        self._output = (self.directory / "output").open("ab")
        self._seen: dict[int, int] = {}

    # --- what a subclass says -------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def version(cls, places: Places) -> str:
        """Its version. Raises OSError where it is not installed."""

    @abstractmethod
    def configure(self) -> None:
        """Write its configuration, also anew after a change."""

    @abstractmethod
    def start_command(self) -> Command:
        """What starts it in the foreground."""

    def environment(self) -> dict[str, str]:
        """Variables beside the harness's own."""
        return {}

    def status_command(self) -> Command | None:
        """What prints the status of all components."""
        return None

    def asker(self, queries: int, rate: float, bound_s: float) -> Command | None:  # noqa: ARG002 - of those that have one
        """The program that asks for the status of all over a kept connection; see programs/asker.py."""
        return None

    def change_commands(self) -> Sequence[Command]:
        """What makes it take up the configuration that was written anew; none: it has no such thing."""
        return ()

    # --- shared ---------------------------------------------------------------------------------------------------

    def component_command(self, name: str, *more: str) -> list[str]:
        """The command of one component."""
        life = [] if self.session.life_ms is None else ["-l", str(self.session.life_ms)]
        changed = ["-changed"] if name in self.session.changed else []
        return [str(self.session.places.probe), str(self.log.path), name, *life, *changed, *more]

    def spawn(self, command: Command) -> subprocess.Popen[bytes]:
        """Start a program of this session, in a session of its own."""
        return subprocess.Popen(
            [str(part) for part in command],
            env=self.whole_environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            cwd=self.directory,
            start_new_session=True,
        )

    def output_of(self, command: Command, bound_s: float = 120.0) -> str:
        """Run a program of this session and return its standard output. Raises CalledProcessError."""
        return subprocess.run(
            [str(part) for part in command],
            env=self.whole_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._output,
            cwd=self.directory,
            timeout=bound_s,
            check=True,
            text=True,
        ).stdout

    def whole_environment(self) -> dict[str, str]:
        """The environment of every program of this session."""
        return dict(os.environ) | self.environment()

    def launch(self) -> None:
        """Start the supervisor."""
        self.process = self.spawn(self.start_command())

    def start(self) -> float:
        """Return the milliseconds from the exec of the supervisor to the last component's start."""
        self.configure()
        begun_ns = time.monotonic_ns()
        self.launch()
        if not self.log.wait(lambda: self.log.all_started(self.names), self.start_bound_s):
            raise NotStartedError(f"{len(self.log.newest)} of {self.session.count} started: {self.tail()}")
        self.pids()
        return (max(self.log.newest[name].at_ns for name in self.names) - begun_ns) / 1e6

    def roots(self) -> list[int]:
        """The supervisor's first process, where it runs."""
        return [self.process.pid] if self.process is not None and self.process.poll() is None else []

    def pids(self) -> list[int]:
        """The supervisor's own processes: without the components, with what supervises a single one."""
        found = procfs.family(self.roots(), without=str(self.session.places.probe))
        self._seen |= found
        return sorted(found)

    def component_pids(self) -> dict[str, int]:
        """The newest process of each component."""
        self.log.poll()
        return {name: self.log.newest[name].pid for name in self.names}

    def begin_stop(self) -> list[subprocess.Popen[bytes]]:
        """Have all components and the supervisor itself ended; return the commands that belong to it."""
        for pid in self.roots():
            os.kill(pid, self.stop_signal)
        return []

    def tail(self) -> str:
        """The end of what it printed."""
        self._output.flush()
        return (self.directory / "output").read_text(errors="replace")[-500:]

    def end(self) -> None:
        """Kill whatever this session left: only processes that were seen as its own, known by their start."""
        for _ in range(_LEFT_ROUNDS):
            self.pids()
            for pid, start_ticks in self._seen.items():
                if procfs.start_ticks(pid) == start_ticks:
                    _kill(pid)
            time.sleep(_LEFT_PAUSE_S)
            self.log.poll()
            for note in self.log.notes:
                if procfs.program(note.pid) == str(self.session.places.probe) and self._is_ours(note.pid):
                    _kill(note.pid)
            time.sleep(_LEFT_PAUSE_S)
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_REAP_S)
        self._output.close()
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _is_ours(self, pid: int) -> bool:
        ours = str(self.directory).encode()
        found = b""
        for name in ("cmdline", "environ"):
            with suppress(OSError):
                found += Path(f"/proc/{pid}/{name}").read_bytes()
        return ours in found


def asker(
    python: str | Path, kind: str, place: Path, names: Sequence[str], queries: int, rate: float, bound_s: float
) -> Command:
    """The command of programs/asker.py."""
    return [python, PROGRAMS / "asker.py", kind, place, ",".join(names), str(queries), str(rate), str(bound_s)]


def own_python() -> str:
    """The interpreter of the harness, for askers that need no library."""
    return sys.executable


def first_line(command: Command) -> str:
    """The first line that a command prints. Raises OSError where there is no such command."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60, check=False)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else "?"


def debian_version(package: str, program: str) -> str:
    """The version of a Debian package. Raises FileNotFoundError where its program is not installed."""
    if shutil.which(program) is None:
        raise FileNotFoundError(program)
    return first_line(["dpkg-query", "-W", "-f", "${Version}", package])


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
