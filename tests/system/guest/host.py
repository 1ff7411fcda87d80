"""The machine as its checks see it: systemd, the node manager, cgroups, processes."""

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

UNIT = "xce-node-manager.service"
ROOT = Path("/sys/fs/cgroup/xce.slice") / UNIT
"""The delegated group."""
DROP_INS = Path("/etc/systemd/system") / f"{UNIT}.d"
CONFIG = Path("/etc/xce/node-manager.yaml")
WORK = Path("/var/lib/xce-checks")
"""Where components are told what to do, each by a FIFO of its name."""
BOUND_S = 240.0
"""Longest wait, in the machine's own time: what takes seconds on a machine of today may take a minute here."""
LOOK_S = 0.2
_SOCKET = "/run/xce/node-manager/status.sock"
_STATUS_BOUND_S = 60.0

T = TypeVar("T")


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(_SOCKET)


def ask(target: str, method: str = "GET", **fields: object) -> Any:
    """What the agent answers: parsed JSON, one value a line for events. Raises OSError and AssertionError."""
    connection = _Connection("localhost", timeout=_STATUS_BOUND_S)
    try:
        body, headers = (json.dumps(fields), {"Content-Type": "application/json"}) if method == "POST" else (None, {})
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    except http.client.HTTPException as error:
        raise OSError(f"{method} {target}: {error!r}") from error
    finally:
        connection.close()
    assert answer.status == 200, f"{method} {target}: {answer.status} {text}"
    return [json.loads(line) for line in text.splitlines()] if target.startswith("/v1/events") else json.loads(text)


def status() -> dict[str, Any]:
    """The agent's status, {} where there is no answer."""
    try:
        found: dict[str, Any] = ask("/v1/status")
    except OSError:
        return {}
    return found


def component(name: str) -> dict[str, Any]:
    """What the status says of a component, {} where there is none."""
    return next((one for one in status().get("components", ()) if one["name"] == name), {})


def pids() -> dict[str, int | None]:
    """The pid of each component."""
    return {one["name"]: one["pid"] for one in status().get("components", ())}


def wait(look: Callable[[], T | None], what: str) -> T:
    """Look until the result is true, and return it."""
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(LOOK_S)
    raise AssertionError(f"not within {BOUND_S:g} s: {what}")


def run(*command: str, ok: bool = True) -> str:
    """Run a command; return what it printed."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=BOUND_S)
    assert done.returncode == 0 or not ok, f"{' '.join(command)}: {done.returncode} {done.stdout}{done.stderr}"
    return done.stdout


def systemd(name: str) -> str:
    """A property of the unit."""
    return run("systemctl", "show", "--value", "--property", name, UNIT).strip()


def journal() -> str:
    """Everything that the journal has of the unit."""
    return run("journalctl", "--no-pager", "-o", "cat", "-u", UNIT)


def agent() -> int:
    """The agent's pid, 0 where there is none."""
    return int(systemd("MainPID"))


def drop_in(name: str, text: str | None) -> None:
    """Have a drop-in of this content for the unit; None: not any more."""
    path = DROP_INS / name
    if text is None:
        path.unlink()
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="ascii")
    run("systemctl", "daemon-reload")


def read(*parts: str) -> str:
    """A file below the delegated group, "" where it is not there."""
    try:
        return ROOT.joinpath(*parts).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def counters(*parts: str) -> dict[str, int]:
    """A file of lines `key number` below the delegated group."""
    return {key: int(value) for key, value in (line.split() for line in read(*parts).splitlines())}


def limits(*parts: str) -> tuple[str, str, str]:
    """What a group has: memory.max, pids.max, cpu.weight."""
    return read(*parts, "memory.max"), read(*parts, "pids.max"), read(*parts, "cpu.weight")


def members(*parts: str) -> set[int]:
    """The processes in a group."""
    return set(map(int, read(*parts, "cgroup.procs").split()))


def state(pid: int | None) -> str:
    """The state of a process as in proc_pid_stat(5), "" where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def alive(pid: int | None) -> bool:
    """Whether this process lives."""
    return state(pid) not in {"", "Z", "X"}


def kill(pid: int, number: signal.Signals) -> None:
    """Send a signal."""
    os.kill(pid, number)


def tell(name: str) -> None:
    """Have a component do what it waits for: it is at its FIFO, or comes there."""
    fd = wait(lambda: _writer(WORK / name), f"{name} reads its FIFO")
    os.write(fd, b"\n")
    os.close(fd)


def _writer(path: Path) -> int | None:
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # nobody reads
        return None


def settled() -> dict[str, int]:
    """Wait until everything that is configured runs and is ready; the pids."""

    def look() -> dict[str, int] | None:
        found = status()
        every = found.get("components", ())
        good = every and found["node"]["ready"] and all(one["pid"] and one["ready"] for one in every)
        return {one["name"]: one["pid"] for one in every} if good else None

    try:
        return wait(look, "everything is ready")
    except AssertionError as error:
        raise AssertionError(f"{error}; {json.dumps(status())}") from error


def lease_until_ns() -> int:
    """The end of the lease that the controller has stated last, CLOCK_BOOTTIME; 0: none is valid."""
    found = [one["valid_until_ns"] for one in status().get("facts", ()) if one["name"] == "controller.primary"]
    return found[0] or 0 if found else 0


def fresh_lease(rest_s: float) -> None:
    """Wait until an agent has heard of a lease that holds for so long yet: what is hurt now has that time."""
    rest_ns = int(rest_s * 1e9)
    wait(lambda: lease_until_ns() > time.clock_gettime_ns(time.CLOCK_BOOTTIME) + rest_ns, "the lease was renewed")


def succeeded(before: dict[str, int], former: int) -> None:
    """Wait until another agent than `former` is in charge of exactly the processes of before."""
    wait(lambda: agent() not in {0, former} and systemd("ActiveState") == "active", "another agent is ready")
    found = status()
    assert found["node"]["agent_pid"] != former, "the new agent answers"
    after = settled()
    assert before == after, f"other processes than {before}: {after}"
