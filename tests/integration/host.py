"""One host of a test: an agent with its own directories and ports, run as its users run it."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import yaml

import node_manager
from node_manager.api.client import Client, NotReachable
from node_manager.runtime.procfs import ProcFs
from tests import slowed

BOUND_S = 40.0
"""Longest wait for something that takes a second or two on an idle machine."""
LOOK_S = 0.02
"""How often a condition is looked at that no event announces."""

T = TypeVar("T")

_SOURCE = Path(node_manager.__file__).parent.parent
_TESTS = Path(__file__).parents[2]
_ENTRIES = {
    "xce-node-manager": "node_manager.cli.daemon",
    "xce-nodectl": "node_manager.cli.nodectl",
    "xce-reference": "node_manager.reference.__main__",
}
_PORTS = iter(range(21000, 30000))
"""Below the ephemeral range: the kernel gives none of these away between choice and use."""
_taken: list[IO[str]] = []
"""Locks of the ports that this process has, until it ends."""


def free_port() -> int:
    """Return a port that no other test has, in this or any other test run on this machine."""
    for port in _PORTS:
        claim = (Path(tempfile.gettempdir()) / f"xce-test-port-{port}-{os.geteuid()}").open("a")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _taken.append(claim)
        return port
    raise AssertionError("every port is taken")


def wait_until(look: Callable[[], T], what: str, bound_s: float = BOUND_S) -> T:
    """Look until the result is true, and return it; fail with `what` after the bound."""
    until = time.monotonic() + bound_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > until:
            raise AssertionError(f"not within {bound_s} s: {what}")
        time.sleep(LOOK_S)


class Host:
    """See the module. `roles` and `components` go into the boot configuration; `lease` may be shared by two hosts."""

    def __init__(
        self,
        base: Path,
        *,
        name: str = "h1",
        roles: tuple[str, ...] = ("manager", "worker", "apiserver"),
        components: dict[str, Any] | None = None,
        lease: Path | None = None,
        lease_s: float = 12.0,
        controllers: list[str] | None = None,
        role_files: dict[str, dict[str, Any]] | None = None,
        instance_id: str = "i-test",
    ) -> None:
        self.base = base
        self.name = name
        self.run_dir = base / "run"
        self.state_dir = base / "state"
        self.log_dir = base / "log"
        self.roles_dir = base / "roles"
        self.config = base / "node-manager.yaml"
        self.agent_log = base / "agent.log"
        self.controller = f"127.0.0.1:{free_port()}"
        self.http_port = free_port()
        self.agent: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}
        for directory in (base, self.state_dir, self.log_dir, self.roles_dir, base / "bin"):
            directory.mkdir(parents=True, exist_ok=True)
        self._write_entries()
        for role, body in (role_files or {}).items():
            (self.roles_dir / f"{role}.yaml").write_text(yaml.safe_dump(body))
        lease = lease or self.state_dir / "reference" / "controller.lease"
        ours = self._reference_components(lease, lease_s) if not role_files else {}
        for component, override in (components or {}).items():
            ours[component] = _merge(ours.get(component, {}), override)
        present = {"controller", "scheduler"} if "manager" in roles else set()
        present |= set(roles) | set(components or {})
        self.boot = {
            "version": 1,
            "roles": list(roles),
            "host": {"name": name, "instance_id": instance_id},
            "controllers": controllers or [self.controller],
            "components": {key: value for key, value in ours.items() if key in present},
        }
        self.write_config()

    def _reference_components(self, lease: Path, lease_s: float) -> dict[str, Any]:
        port = int(self.controller.rpartition(":")[2])
        return {
            "controller": {
                "environment": {
                    "XCE_REF_LISTEN": self.controller,
                    "XCE_REF_LEASE": str(lease),
                    "XCE_REF_LEASE_S": str(lease_s),
                },
                "probes": {"readiness": {"tcp": {"port": port}, "period_s": 0.2}},
            },
            "scheduler": {
                "environment": {"XCE_REF_TRACE": "1"},
                "stop": {"timeout_s": 1, "kill_timeout_s": 0.5},
            },
            "apiserver": {
                "environment": {"XCE_REF_HTTP": f"127.0.0.1:{self.http_port}"},
                "probes": {
                    "readiness": {"http": {"port": self.http_port, "path": "/healthz"}, "period_s": 0.2},
                    "liveness": {"http": {"port": self.http_port, "path": "/healthz"}},
                },
            },
        }

    def _write_entries(self) -> None:
        parts = slowed.parts()
        for command, module in _ENTRIES.items():
            path = self.base / "bin" / command
            begin = ""
            if mine := [part for part in parts if slowed.PROGRAM[part] == command]:
                begin = f"sys.path.append({str(_TESTS)!r})\nfrom tests import slowed\nslowed.begin(*{mine!r})\n"
            path.write_text(
                f"#!{sys.executable} -P\nimport sys\nsys.path.insert(0, {str(_SOURCE)!r})\n"
                f"{begin}from {module} import main\nsys.exit(main())\n"
            )
            path.chmod(0o755)

    # --- the agent ------------------------------------------------------------------------------------------------

    def write_config(self, text: str | None = None) -> None:
        """Write the boot configuration, in one step."""
        temporary = self.config.with_suffix(".tmp")
        temporary.write_text(yaml.safe_dump(self.boot) if text is None else text)
        temporary.replace(self.config)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of commands on this host."""
        path = f"{self.base / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "LANG": "C.UTF-8", "XCE_STATUS_SOCKET": str(self.socket), **self._environment, **more}

    @property
    def socket(self) -> Path:
        """The status socket."""
        return self.run_dir / "status.sock"

    def options(self, *, roles: Path | None = None) -> list[str]:
        """Return the options that name this host's places."""
        reference = Path(__file__).parents[2] / "roles" / "reference"
        return [
            f"--config={self.config}",
            f"--roles-dir={roles or reference}",
            f"--roles-dir={self.roles_dir}",
            f"--runtime-dir={self.run_dir}",
            f"--state-dir={self.state_dir}",
        ]

    def start(self, *, stderr: int | None = None, **environment: str) -> None:
        """Start the agent, a child of the test in a session of its own; return when it answers, or has ended.

        `stderr` is a descriptor for its own log in place of the file.
        """
        with self.agent_log.open("ab") as log:
            self.agent = subprocess.Popen(
                [str(self.base / "bin" / "xce-node-manager"), "run", *self.options(), f"--log-dir={self.log_dir}"],
                env=self.environment(**environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log if stderr is None else stderr,
                cwd="/",
                start_new_session=True,
            )
        wait_until(self._answers_or_ended, "the agent answers")

    def _answers_or_ended(self) -> bool:
        assert self.agent is not None
        return self.agent.poll() is not None or self.answers()

    def answers(self) -> bool:
        """Whether the agent tells its status now."""
        try:
            return Client(str(self.socket)).get("/v1/status").ok
        except NotReachable:
            return False

    def up(self) -> None:
        """Start the agent and wait until everything is ready, and recorded for a successor."""
        self.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until everything is ready, and what a successor has to know of it is recorded."""
        self.ctl("wait", "--for", "ready", "--timeout", f"{BOUND_S:g}s")
        wait_until(self._recorded, "the record of what runs, and the copy of the configuration")

    def _recorded(self) -> bool:
        """A killed agent's successor knows what was recorded, which comes a moment after it is shown."""
        record = self.run_dir / "runtime.json"
        if not record.exists() or not (self.state_dir / "config.json").exists():
            return False
        kept = json.loads(record.read_bytes())
        status = self.status()
        ready = {one["name"]: one["pid"] for one in status["components"] if one["pid"] is not None and one["ready"]}
        leased = any(fact.get("valid_until_ns") for fact in status["facts"])
        return ready == {one["component"]: one["pid"] for one in kept["processes"] if one["ready"]} and (
            bool(kept["leases"]) or not leased
        )

    def kill_agent(self) -> None:
        """Kill the agent with SIGKILL."""
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait(BOUND_S)

    def wait_for_record(self, *parts: str) -> None:
        """Wait until the runtime record holds these parts: who follows a killed agent knows what was recorded."""
        record = self.run_dir / "runtime.json"

        def look() -> bool:
            text = record.read_text() if record.exists() else ""
            return all(part in text for part in parts)

        wait_until(look, f"{' and '.join(parts)} in the runtime record")

    def stop(self, how: int = signal.SIGTERM) -> int:
        """End the agent as a user would, and return its exit status."""
        assert self.agent is not None
        self.agent.send_signal(how)
        return self.agent.wait(BOUND_S)

    def end(self) -> None:
        """End whatever this host still runs."""
        if self.agent is not None and self.agent.poll() is None:
            self.agent.send_signal(signal.SIGCONT)
            self.agent.kill()
            self.agent.wait(BOUND_S)
        wait_until(self._kill_everything, f"everything of {self.name} is gone")

    def _kill_everything(self) -> bool:
        left = self.processes()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    def processes(self) -> list[int]:
        """Return the living processes that carry this host's marker or are of one of its jobs, with their descendants.

        Some programs (nginx) write over their environment; their command names the place too, but not their workers'.
        """
        procfs = ProcFs()
        ours = str(self.base)
        table = {pid: stat for pid, stat in procfs.table().items() if stat.living}
        found = {pid for pid in table if ours in _texts_of(pid)}
        while more := {pid for pid, stat in table.items() if stat.ppid in found} - found:
            found |= more
        return sorted(found)

    # --- questions and commands -------------------------------------------------------------------------------------

    def run(self, *command: str, ok: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command on this host; its exit status must be `ok`, unless that is None."""
        result = subprocess.run(
            [str(self.base / "bin" / command[0]), *command[1:]],
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BOUND_S + 10,
            check=False,
            cwd="/",
        )
        if ok is not None and result.returncode != ok:
            raise AssertionError(
                f"{command} ended with {result.returncode}, not {ok}:\n{result.stdout}{result.stderr}\n{self.tail()}"
            )
        return result

    def ctl(self, *arguments: str, ok: int | None = 0) -> str:
        """Run xce-nodectl; return what it printed, both streams."""
        result = self.run("xce-nodectl", *arguments, ok=ok)
        return result.stdout + result.stderr

    def reference(self, *arguments: str) -> Any:
        """Run a command of the reference controller and return its answer."""
        text = self.run("xce-reference", "ctl", *arguments, XCE_REF_CONTROLLERS=self.controller).stdout
        return json.loads(text) if text.strip() else None

    def status(self) -> dict[str, Any]:
        """Return the status body. In this process: a command for each look would be most of the load."""
        answer = Client(str(self.socket), BOUND_S).get("/v1/status")
        assert answer.ok, answer.body
        body: dict[str, Any] = answer.body
        return body

    def component(self, name: str) -> dict[str, Any]:
        """Return one component of the status."""
        return next(item for item in self.status()["components"] if item["name"] == name)

    def pids(self) -> dict[str, int | None]:
        """Return the main processes by component."""
        return {item["name"]: item["pid"] for item in self.status()["components"]}

    def wait_for(self, name: str, **wanted: object) -> dict[str, Any]:
        """Wait until a component's status has these values, and return it."""

        def look() -> dict[str, Any] | None:
            found = self.component(name)
            return found if all(found[key] == value for key, value in wanted.items()) else None

        try:
            return wait_until(look, f"{name} has {wanted}") or {}
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.component(name)}\n{self.tail()}") from None

    def events(self) -> list[dict[str, Any]]:
        """Return the event history."""
        text = self.run("xce-nodectl", "events", "--json").stdout
        return [json.loads(line) for line in text.splitlines()]

    def tail(self) -> str:
        """Return the end of the agent's log, for a failure's message."""
        return self.agent_log.read_text(errors="replace")[-4000:] if self.agent_log.exists() else ""

    def trace(self) -> Iterator[tuple[int, int]]:
        """Return what this host's schedulers wrote: (term, CLOCK_BOOTTIME) for each sign of life."""
        path = self.state_dir / "reference" / "scheduler.log"
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                yield entry["term"], entry["boottime_ns"]


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _texts_of(pid: int) -> str:
    """Return the environment of a process and its command."""
    try:
        return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline")).decode(
            errors="replace"
        )
    except OSError:
        return ""
