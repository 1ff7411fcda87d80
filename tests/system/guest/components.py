"""The components that the checks are about, and the configurations that name them."""

import os
import shutil
from pathlib import Path

from . import host

_SCRIPTS = Path("/usr/local/lib/xce-checks")
_LEASE_S = 55
"""The controller's lease, renewed each fifth of it: longer than a frozen agent's time (WatchdogSec=, TimeoutAbortSec=,
the start of another) and a scheduler's stop. Else the scheduler of such a host is ended, as it should be."""
FRESH_S = 43.0
"""What is left of it just after a renewal."""

_EATER = """#!/bin/sh
# When it is told to, it fills two buffers, together more memory than the machine has.
read -r _ </var/lib/xce-checks/$XCE_COMPONENT
exec dd if=/dev/zero of=/dev/null ibs=400M obs=700M
"""
_FORKER = """#!/bin/sh
# When it is told to, it fills every place for a process, again and again.
read -r _ </var/lib/xce-checks/$XCE_COMPONENT
bomb() { while :; do bomb & done; }
bomb 2>/dev/null &
exec sleep infinity
"""
_KEEPER = """#!/bin/sh
# A worker as far as cgroups go: a job of its own in a group of its own beside it, with a limit of its own, which the
# next one finds again. It needs no root for that.
own=$(sed -n 's/^0:://p' /proc/self/cgroup)
jobs=/sys/fs/cgroup${own%/main}/jobs
if ! grep -q '^populated 1$' "$jobs/one/cgroup.events" 2>/dev/null; then
    mkdir -p "$jobs/one"
    echo +memory >"$jobs/cgroup.subtree_control"
    echo 50331648 >"$jobs/one/memory.max"
    sh -c 'echo $$ >"$1/cgroup.procs" && exec sleep infinity' job "$jobs/one" &
fi
read -r _ </var/lib/xce-checks/$XCE_COMPONENT
exec dd if=/dev/zero of=/dev/null ibs=400M obs=700M
"""
_BENCH = """
role: bench
user: xce
components:
  steady:
    command: [sleep, infinity]
    limits: {memory_max: 64M, pids_max: 32, cpu_weight: 50}
    stop: {timeout_s: 2}
  eater:
    command: [/usr/local/lib/xce-checks/eater]
    limits: {memory_max: 32M}
  forker:
    command: [/usr/local/lib/xce-checks/forker]
    limits: {pids_max: 24}
"""
_KEEPING = """
role: keeping
user: xce
components:
  keeper:
    command: [/usr/local/lib/xce-checks/keeper]
    stop: {kill_scope: process}
    limits: {memory_max: 32M, pids_max: 16}
  hungry:
    command: [/usr/local/lib/xce-checks/eater]
"""
_PLAIN = """
role: plain
user: xce
components:
  hungry:
    command: [/usr/local/lib/xce-checks/eater]
"""
STEADY_LIMITS = ("67108864", "32", "50")
WORKER_LIMITS = ("201326592", "64", "20")
KEEPER_LIMITS = ("33554432", "16")
JOB_MEMORY_MAX = "50331648"


def install() -> None:
    """Put programs and role files where they belong."""
    _SCRIPTS.mkdir(exist_ok=True)
    for name, text in (("eater", _EATER), ("forker", _FORKER), ("keeper", _KEEPER)):
        path = _SCRIPTS / name
        path.write_text(text, encoding="ascii")
        path.chmod(0o755)
    host.WORK.mkdir(exist_ok=True)
    for name in ("eater", "forker", "keeper", "hungry"):
        os.mkfifo(host.WORK / name, 0o600)
        shutil.chown(host.WORK / name, "xce")
    for name, text in (("bench", _BENCH), ("keeping", _KEEPING), ("plain", _PLAIN)):
        Path(f"/etc/xce/roles/{name}.yaml").write_text(text, encoding="ascii")


def without_root() -> None:
    """A host of which everything runs as xce."""
    host.CONFIG.write_text(
        f"""
version: 1
roles: [bench, manager]
host: {{name: m1, instance_id: i-1}}
controllers: ["127.0.0.1:7011"]
components:
  controller: {{environment: {{XCE_REF_LEASE_S: "{_LEASE_S}"}}}}
""",
        encoding="ascii",
    )


def with_root() -> None:
    """A host whose worker is root's: the agent is root too."""
    host.DROP_INS.mkdir(exist_ok=True)
    (host.DROP_INS / "50-root.conf").symlink_to("/usr/share/xce/units/root.conf")
    host.run("systemctl", "daemon-reload")
    host.CONFIG.write_text(
        """
version: 1
roles: [keeping, manager, worker]
host: {name: m1, instance_id: i-1}
controllers: ["127.0.0.1:7011"]
components:
  controller: {environment: {XCE_REF_LEASE_S: "@"}}
  worker:
    environment: {XCE_REF_INSTANCE_ID: i-1, XCE_REF_HOST: m1}
    limits: {memory_max: 192M, pids_max: 64, cpu_weight: 20}
""".replace("@", str(_LEASE_S)),
        encoding="ascii",
    )


def without_limits() -> None:
    """A host of which no component has a limit."""
    host.CONFIG.write_text("version: 1\nroles: [plain]\nhost: {name: m1, instance_id: i-1}\n", encoding="ascii")
