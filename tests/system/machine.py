"""A machine of a test: a real systemd as PID 1, on an overlay of a shared root, in namespaces of its own."""

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

BOUND_S = 300.0
"""Longest wait for something that takes seconds at most on an idle machine; a busy one fails no test."""
LONG_S = 600.0
"""The same for what a package manager does."""
LOOK_S = 0.1
UNIT = "xce-node-manager.service"
CONFIG = "/etc/xce/node-manager.yaml"
_BOOT = Path(__file__).with_name("boot.sh")
_ENVIRONMENT = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "TERM=dumb")
_SETTLED = {"running", "degraded"}

T = TypeVar("T")


def wait_until(look: Callable[[], T], what: str, bound_s: float = BOUND_S) -> T:
    """Look until the result is true, and return it; fail with `what` after the bound."""
    until = time.monotonic() + bound_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > until:
            raise AssertionError(f"not within {bound_s:g} s: {what}")
        time.sleep(LOOK_S)


class Machine:
    """See the module. What it writes stays in `base` from boot to boot, until `remove`."""

    def __init__(self, lower: tuple[Path, ...], base: Path, name: str = "m1", *, shared: Path | None = None) -> None:
        self.name = name
        self.base = base
        self.upper = base / "upper"
        self._lower = ":".join(map(str, lower))
        self._shared = shared
        self._cgroup = _cgroup_mount() / f"xce-test-{os.getpid()}-{name}"
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        """Its PID 1, seen from here; 0 while it is off."""
        for directory in (self.upper, base / "work", base / "root"):
            directory.mkdir(parents=True)
        (self.upper / "etc").mkdir()
        (self.upper / "etc" / "hostname").write_text(f"{name}\n", encoding="ascii")

    def prepare(self, path: str, text: str) -> None:
        """Write a file before the first boot: into the image, as it were."""
        file = self.upper / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def prepare_without(self, path: str) -> None:
        """Take a file out of the image before the first boot."""
        file = self.upper / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(file, stat.S_IFCHR, os.makedev(0, 0))  # what an overlay calls a whiteout

    # --- life -------------------------------------------------------------------------------------------------------

    def boot(self, *, wait: bool = True) -> None:
        """Start; wait until systemd has nothing more to do."""
        assert self._process is None, "it runs already"
        self._forget_cgroup()
        with (self.base / "console").open("ab") as console:
            self._process = subprocess.Popen(
                [
                    *(_BOOT, self.name, self._cgroup, self._lower),
                    *(self.upper, self.base / "work", self.base / "root"),
                    *([self._shared] if self._shared is not None else []),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        self.pid = wait_until(self._first, f"{self.name} has a PID 1")
        if wait:
            self.wait_booted()

    def wait_booted(self) -> None:
        """Wait until systemd has nothing more to do."""
        wait_until(lambda: self.system_state() in _SETTLED, f"{self.name} has booted")

    def system_state(self) -> str:
        """What systemd says of the whole machine."""
        return self.run("systemctl", "is-system-running", ok=None).stdout.strip()

    def power_off(self, how: str = "poweroff") -> None:
        """Shut down in good order, and wait for the end."""
        self.run("systemctl", how, ok=None)
        self._ended()

    def reboot(self) -> None:
        """Shut down in good order, and boot from what was written."""
        self.power_off("reboot")
        self.boot()

    def kill(self) -> None:
        """Pull the plug."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._ended()

    def remove(self) -> None:
        """End it, and remove everything of it."""
        self.kill()
        shutil.rmtree(self.base)

    def _ended(self) -> None:
        assert self._process is not None, "it was started"
        self._process.wait(BOUND_S)
        self._process = None
        self.pid = 0
        self._forget_cgroup()

    def _first(self) -> int:
        assert self._process is not None, "it was started"
        if self._process.poll() is not None:
            raise AssertionError(f"{self.name} ended at once: {(self.base / 'console').read_text()}")
        pid = self._process.pid
        try:
            first = int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0])
            return first if Path(f"/proc/{first}/exe").readlink().name == "systemd" else 0
        except (OSError, IndexError):
            return 0

    def _forget_cgroup(self) -> None:
        if self._cgroup.is_dir():
            wait_until(lambda: "populated 0" in (self._cgroup / "cgroup.events").read_text(), "its cgroup is empty")
            wait_until(self._removed_cgroup, "its cgroup is removed")

    def _removed_cgroup(self) -> bool:
        try:
            for directory, _, _ in os.walk(self._cgroup, topdown=False):
                Path(directory).rmdir()
        except OSError:  # its last process is just being reaped
            return False
        return True

    # --- inside -----------------------------------------------------------------------------------------------------

    def run(
        self, *command: str, ok: int | None = 0, bound_s: float = BOUND_S, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as root. `ok` is the exit status that it must have, None any."""
        namespaces = ("--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--time")
        done = subprocess.run(
            ["nsenter", f"--target={self.pid}", *namespaces, "--", *_ENVIRONMENT, *command],
            check=False, capture_output=True, text=True, timeout=bound_s, input=stdin,
        )  # fmt: skip
        if ok is not None and done.returncode != ok:
            raise AssertionError(f"{command}: {done.returncode}, not {ok}\n{done.stdout}{done.stderr}")
        return done

    def shell(self, text: str, *, ok: int | None = 0) -> str:
        """Run a line of shell inside; return its output."""
        return self.run("sh", "-ec", text, ok=ok).stdout

    def write(self, path: str, text: str) -> None:
        """Write a file inside as a careful writer does, at once or not at all."""
        self.run("sh", "-ec", 'mkdir -p "$(dirname "$1")"; cat >"$1.new"; mv "$1.new" "$1"', "write", path, stdin=text)

    def path(self, inside: str) -> Path:
        """Where a file of the running machine is for this process."""
        return Path(f"/proc/{self.pid}/root") / inside.lstrip("/")

    def journal(self, *arguments: str) -> str:
        """The journal."""
        if self._process is None:
            return "(it is off)"
        return self.run("journalctl", "--no-pager", "-o", "short-monotonic", *arguments, ok=None).stdout

    def entries(self, *matches: str) -> list[dict[str, Any]]:
        """What the journal has, the oldest first; what was just said may not be in it yet."""
        out = self.run("journalctl", "--quiet", "--output=json", "--", *matches, ok=None).stdout
        return [json.loads(line) for line in out.splitlines()]

    def wait_journal(self, text: str, *arguments: str) -> None:
        """Wait until the journal has it: what was said reaches it later than whom it was said to."""
        wait_until(lambda: text in self.journal(*arguments), f"{text!r} is in the journal of {self.name}")

    def property(self, name: str, unit: str = UNIT) -> str:
        """What systemd says of a unit; while it is executed anew it says nothing."""
        command = ("systemctl", "show", "--value", "--property", name, unit)

        def answered() -> subprocess.CompletedProcess[str] | None:
            done = self.run(*command, ok=None)
            return done if done.returncode == 0 else None

        done = wait_until(answered, f"systemd of {self.name} answers")
        assert done is not None
        return done.stdout.strip()

    def wait_property(self, name: str, value: str, unit: str = UNIT) -> None:
        """Wait until systemd says it: what an agent tells systemd comes there later."""
        wait_until(lambda: self.property(name, unit) == value, f"{name} of {unit} is {value}")

    # --- the node manager -------------------------------------------------------------------------------------------

    def ctl(self, *arguments: str, ok: int | None = 0) -> str:
        """Run xce-nodectl; return all that it printed."""
        done = self.run("xce-nodectl", *arguments, ok=ok)
        return done.stdout + done.stderr

    def asked(self) -> dict[str, Any]:
        """The agent's answer, {} where there is none."""
        done = self.run("xce-nodectl", "status", "--json", ok=None)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode in {0, 1} and done.stdout else {}
        return found

    def wait_status(self, look: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        """Wait until the status is as `look` wants it; return it."""
        found: dict[str, Any] = {}

        def seen() -> bool:
            nonlocal found
            found = self.asked()
            return bool(found) and bool(look(found))

        try:
            wait_until(seen, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(found, indent=1)}\n{self.journal('-u', UNIT)}") from error
        return found

    def status(self) -> dict[str, Any]:
        """The agent's answer; waits for one."""
        return self.wait_status(bool, f"the agent of {self.name} answers")

    def ready(self) -> dict[str, Any]:
        """Wait until everything that should run is ready; return the status."""
        return self.wait_status(lambda status: status["node"]["ready"], f"{self.name} is ready")

    def running(self) -> dict[str, Any]:
        """Wait until everything has a process, is ready and recorded, also what waits for others; return the status.

        A killed agent's successor knows what was recorded, which comes a moment after it is shown.
        """
        return self.wait_status(
            lambda status: (
                status["components"]
                and all(one["pid"] and one["ready"] for one in status["components"])
                and _pids(status) == self._recorded()
            ),
            f"everything of {self.name} runs, and is recorded",
        )

    def _recorded(self) -> dict[str, int]:
        """The processes that the next agent would know."""
        record = self.path("/run/xce/node-manager/runtime.json")
        if not record.exists():
            return {}
        return {one["component"]: one["pid"] for one in json.loads(record.read_bytes())["processes"]}

    def pids(self) -> dict[str, int | None]:
        """The pid of each component."""
        return _pids(self.status())

    def keeps(self, pids: dict[str, int | None]) -> None:
        """Wait until the agent is in charge of exactly these processes: a pid that was lost does not come back."""
        self.wait_status(lambda status: _pids(status) == pids, f"{self.name} has the processes {pids}")

    def alive(self, pid: int | None) -> bool:
        """Whether this process lives inside."""
        return self.run("kill", "-0", str(pid), ok=None).returncode == 0

    def agent_pid(self) -> int:
        """The agent's pid inside, 0 where there is none."""
        return int(self.property("MainPID"))


def _pids(status: dict[str, Any]) -> dict[str, int | None]:
    return {component["name"]: component["pid"] for component in status["components"]}


def _cgroup_mount() -> Path:
    """Where the cgroup v2 tree is mounted, alone or beside version 1."""
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _device, point, kind, *_rest = line.split()
        if kind == "cgroup2":
            return Path(point)
    raise AssertionError("no cgroup v2 tree is mounted")
