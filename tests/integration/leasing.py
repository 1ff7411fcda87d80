"""Programs of a host with one leased component, for what happens to it when nobody acts.

The authority states a lease, again and again while a file says so. The leased program fences itself by nothing: it
writes CLOCK_BOOTTIME to a file until somebody kills it, and so does a daemon of it in a session of its own.
"""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from node_manager.runtime.procfs import ProcFs
from tests.integration.host import Host

LEASE_S = 4.0
LONG_LEASE_S = 15.0
"""For what has to be done within a lease, on a slow machine too."""
STOP_S = 0.5
KILL_S = 0.3

AUTHORITY = """
import os, socket, sys, time
switch = sys.argv[1]
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
while True:
    try:
        link.connect(os.environ["XCE_HEARTBEAT_SOCKET"])
        break
    except OSError:
        time.sleep(0.05)
link.send(b"XCE_HEARTBEAT=1\\nCOMPONENT=authority\\nINTERVAL_MS=1000\\n")
link.setblocking(False)
until_ns, beat = 0, 0
while True:
    beat += 1
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    try:
        until_ns = now_ns + int(float(open(switch).read() or 0) * 1e9)
    except OSError:
        pass
    text = f"BEAT={beat}\\nREADY=1\\n"
    if until_ns > now_ns:
        text += f"LEADERSHIP=primary\\nTERM=7\\nVALID_UNTIL_NS={until_ns}\\n"
    try:
        link.send(text.encode())
        while link.recv(65536):
            pass
    except BlockingIOError:
        pass
    except OSError:
        link.close()
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            link.connect(os.environ["XCE_HEARTBEAT_SOCKET"])
            link.send(b"XCE_HEARTBEAT=1\\nCOMPONENT=authority\\nINTERVAL_MS=1000\\n")
        except OSError:
            pass
        link.setblocking(False)
    time.sleep(0.1)
"""
SIGNS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
file = open(sys.argv[1], "a")
while True:
    file.write(f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {os.environ['XCE_LEASE_VALID_UNTIL_NS']}\\n")
    file.flush()
    time.sleep(0.002)
"""


class Leased:
    """Such a host, made from `make_host`."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.switch = host.base / "renew"
        self.signs_file = host.base / "signs"
        (host.base / "authority.py").write_text(AUTHORITY)
        (host.base / "leased.py").write_text(SIGNS)
        host.boot["components"] = {
            "authority": {"command": self._command("authority.py", str(self.switch))},
            "leased": {"command": self._command("leased.py", str(self.signs_file))},
        }
        host.write_config()

    def _command(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-S", str(self.host.base / name), *arguments]

    def renew(self, lease_s: float = LEASE_S) -> None:
        """Have the authority state the lease, each time for so long."""
        temporary = self.switch.with_suffix(".tmp")
        temporary.write_text(str(lease_s))
        temporary.replace(self.switch)

    def up(self, lease_s: float = LEASE_S) -> int:
        """Start the agent and the lease; the pid of the leased component once it runs, and a successor knows the lease.

        Whoever follows an agent that was killed before it had recorded the lease stops what it leased.
        """
        self.renew(lease_s)
        self.host.start()
        pid = self.running()
        self.host.wait_for_record('"leases": [{', f'"pid": {pid},')
        return pid

    def running(self) -> int:
        """The pid of the leased component once it runs and has written."""
        self.host.wait_for("leased", state="running")
        pid = self.host.pids()["leased"]
        assert pid is not None
        return pid

    def valid_until_ns(self) -> int:
        """The end of the lease as the agent knows it."""
        found: int = self.host.status()["facts"][0]["valid_until_ns"]
        return found

    def last_sign_ns(self) -> int:
        """When anything of the leased component was last alive."""
        return max((int(line.split()[0]) for line in self.signs_file.read_text().splitlines()), default=0)

    def living(self) -> list[int]:
        """Whatever of the leased component lives."""
        script = str(self.host.base / "leased.py").encode()
        return [stat.pid for stat in ProcFs().table().values() if stat.living and script in _words(stat.pid)]

    def fuses(self) -> list[int]:
        """The fuses of this host."""
        nonce = (self.host.run_dir / "nonce").read_text().split()[0].encode()
        return [
            stat.pid
            for stat in ProcFs().table().values()
            if stat.living and _words(stat.pid)[-3:-1] == [b"leased", nonce]
        ]


ROLE: dict[str, Any] = {
    "role": "manager",
    "user": "inherit",
    "components": {
        "authority": {"command": ["/bin/false"], "states": ["controller.primary"], "max_lease_s": 60},
        "leased": {
            "command": ["/bin/false"],
            "run_while": ["controller.primary"],
            "stop": {"timeout_s": STOP_S, "kill_timeout_s": KILL_S},
        },
    },
}


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def entering(group: Path, program: Path) -> None:
    """Make a program go into a group before it does anything."""
    inner = program.with_suffix(".inner")
    os.rename(program, inner)  # noqa: PTH104 - the same name again
    procs = shlex.quote(str(group / "cgroup.procs"))
    program.write_text(f'#!/bin/sh\necho $$ >{procs}\nexec {shlex.quote(str(inner))} "$@"\n')
    program.chmod(0o755)
