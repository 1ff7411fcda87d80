"""Real programs, a real agent's end of the heartbeat socket, and waiting with a bound."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import node_manager
from node_manager.reference.clock import boottime_ns
from node_manager.reference.ctl import ask
from node_manager.reference.lines import LineError, Message
from node_manager.reference.settings import Address

BOUND_S = 40.0
"""Far above what any of this takes: a busy machine must not fail a test."""
SOURCE = Path(node_manager.__file__).parents[1]


class FakeAgent:
    """The agent's end of one component's heartbeat socket, as the protocol describes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.setblocking(False)
        self._peer: socket.socket | None = None
        self._greeted = False
        self.takes = True
        """Whether it takes what is said of the host; False: as one that has not come to it."""
        self.levels: dict[str, str] = {}
        self.said: dict[str, str] = {}
        self.history: list[dict[str, str]] = []

    def sockets(self) -> list[socket.socket]:
        return [self._listener, *([self._peer] if self._peer is not None else [])]

    def tell(self, **levels: str) -> None:
        """Change levels; a double underscore in a key stands for a dot."""
        self.levels.update({key.replace("__", "."): value for key, value in levels.items()})
        if self._greeted:
            self._send(self.levels)

    def pump(self) -> None:
        try:
            peer, _address = self._listener.accept()
        except BlockingIOError:
            pass
        else:
            if self._peer is not None:
                self._read()
                self._drop()
            peer.setblocking(False)
            self._peer = peer
        self._read()

    def _read(self) -> None:
        while self._peer is not None:
            try:
                record = self._peer.recv(65536)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue
            if not record:
                self._drop()
                return
            fields = dict(line.split("=", 1) for line in record.decode().splitlines())
            self.said.update(fields)
            self.history.append(fields)
            if "XCE_HEARTBEAT" in fields:
                self._greeted = True
                self._send(
                    {"XCE_HEARTBEAT": "1", "NODE": "node-1", "INSTANCE_ID": "i-1", "BOOT_ID": "b", **self.levels}
                )
            if self.takes and int(fields.get("EPOCH", "0")) > int(self.levels.get("SEEN_EPOCH", "0")):
                self.tell(SEEN_EPOCH=fields["EPOCH"])

    def _send(self, levels: dict[str, str]) -> None:
        assert self._peer is not None
        try:
            self._peer.send("".join(f"{key}={value}\n" for key, value in levels.items()).encode())
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        self._greeted = False
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def close(self) -> None:
        self._drop()
        self._listener.close()


class Bench:
    """Starts programs in one directory and ends them, and the jobs they left, by their pids."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._agents: list[FakeAgent] = []

    def agent(self) -> FakeAgent:
        agent = FakeAgent(self.directory / f"agent{len(self._agents)}.sock")
        self._agents.append(agent)
        return agent

    def start(self, *arguments: str, agent: FakeAgent | None = None, **environ: str) -> "subprocess.Popen[bytes]":
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONDONTWRITEBYTECODE": "1",
            "XCE_REF_STATE": str(self.directory),
            "XCE_REF_LISTEN": "127.0.0.1:0",
            "XCE_REF_HTTP": "127.0.0.1:0",
            "XCE_REF_HOST": "h1",
            "XCE_REF_HOLDER": "c1" if arguments[0] == "controller" else "",
            "XCE_REF_LEASE_S": "30",
            **environ,
        }
        if agent is not None:
            environment |= {"XCE_HEARTBEAT_SOCKET": str(agent.path), "XCE_COMPONENT": arguments[0]}
        with (self.directory / f"{len(self._processes)}-{arguments[0]}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "node_manager.reference", *arguments], cwd=SOURCE, env=environment, stderr=log
            )
        self._processes.append(process)
        return process

    def call(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "node_manager.reference", *arguments],
            cwd=SOURCE,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )

    def controller(self, agent: FakeAgent | None = None, **environ: str) -> "tuple[subprocess.Popen[bytes], Address]":
        """A controller that listens."""
        port_file = self.directory / "controller.port"
        port_file.unlink(missing_ok=True)
        process = self.start("controller", agent=agent, **environ)
        self.wait(port_file.exists, process)
        return process, Address("127.0.0.1", int(port_file.read_text(encoding="ascii")))

    def leader(self, agent: FakeAgent | None = None, **environ: str) -> "tuple[subprocess.Popen[bytes], Address]":
        """A controller that leads."""
        process, address = self.controller(agent, **environ)
        self.wait(lambda: self.ask(address, op="status").get("stance") == "primary", process)
        return process, address

    def ask(self, address: Address, **question: object) -> Message:
        """The controller's answer; empty while there is none."""
        try:
            return ask(address, question, timeout_s=2)
        except (OSError, LineError):
            return {}

    def wait(self, condition: Callable[[], object], *alive: "subprocess.Popen[bytes]") -> None:
        """Wait for a condition while the agents listen; the named programs must live meanwhile."""
        until = time.monotonic() + BOUND_S
        while True:
            for agent in self._agents:
                agent.pump()
            if condition():
                return
            for process in alive:
                assert process.poll() is None, f"ended with {process.returncode}\n{self.logs()}"
            assert time.monotonic() < until, f"waited for {BOUND_S} s\n{self.logs()}"
            select.select([each for agent in self._agents for each in agent.sockets()], [], [], 0.02)

    def ended(self, process: "subprocess.Popen[bytes]") -> int:
        """Wait for the end of a program; its exit status."""
        self.wait(lambda: process.poll() is not None)
        for agent in self._agents:
            agent.pump()
        return int(process.returncode)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.directory.glob("*.log")))

    def job_pids(self) -> list[int]:
        """Pids of the jobs that this bench's workers started and that still live."""
        found = []
        marker = f"REFERENCE_JOB={job_slot(self.directory):08x}/".encode()
        for directory in Path("/proc").iterdir():
            try:
                environ = (directory / "environ").read_bytes() if directory.name.isdigit() else b""
                state = (directory / "stat").read_text().rpartition(")")[2].split()[0] if environ else "Z"
            except OSError:
                continue
            if state != "Z" and marker in environ:
                found.append(int(directory.name))
        return found

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        for pid in self.job_pids():
            os.kill(pid, signal.SIGKILL)
        for agent in self._agents:
            agent.close()


def job_slot(directory: Path) -> int:
    """What the marker of a worker's jobs begins with."""
    return zlib.crc32(str((directory / "worker-jobs.json").resolve()).encode())


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory whose sockets have short names."""
    path = Path(tempfile.mkdtemp(prefix="xce"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def bench(directory: Path) -> Iterator[Bench]:
    bench = Bench(directory)
    yield bench
    bench.close()


def in_seconds(seconds: float) -> str:
    """A moment on CLOCK_BOOTTIME, as the environment has it."""
    return str(boottime_ns() + int(seconds * 1e9))
