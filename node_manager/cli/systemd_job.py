"""Why systemd sent SIGTERM: to stop the node, or to start the agent again.

systemd does not say it in the signal. It has a job for the unit meanwhile: `stop` for `systemctl stop` and for a
shutdown, `restart` for `systemctl restart`, none where somebody else sent the signal. `systemctl list-jobs` is asked,
as a child within a bound. What it does not tell counts as no stop: components run on without an agent for a while,
and a fuse, a lease's end and the next agent take care of them; stopped for a mistake they would be down.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from node_manager.cli.child import Child
from node_manager.runtime import kernel

TIMEOUT_S = 5.0
"""It takes some milliseconds; a manager that is busy with a shutdown, or a busy host, may take longer. No more, because
an agent that is not root asks over the bus: where both are restarted at once, systemd starts the bus again only when
this agent has ended. With the quiet moment after it (`leaving.QUIET_S`) it is below TimeoutStopSec=."""
_CGROUP = Path("/proc/self/cgroup")
_SEARCH = "/usr/bin:/bin"
_MAX_SHOWN = 200

Told = Callable[[str, str], None]
"""Gets the job's type, "" for none, and "" or why that is not known."""


def own_unit() -> str | None:
    """Return the service that this process belongs to, or None."""
    return unit_of(_CGROUP.read_text(encoding="utf-8", errors="replace"))


def ask(
    loop: asyncio.AbstractEventLoop,
    unit: str | None,
    told: Told,
    *,
    systemctl: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Child | None:
    """Find the unit's job. None: `told` is called before this returns."""
    program = systemctl or shutil.which("systemctl", path=_SEARCH)
    if unit is None or program is None:
        told("", "this process belongs to no service" if unit is None else "there is no systemctl")
        return None
    arguments = [program, "list-jobs", "--no-legend", "--no-pager", "--plain", "--full", unit]

    def answered(output: bytes, problem: str) -> None:
        told(*(("", problem) if problem else job_of(output.decode("utf-8", "replace"), unit)))

    nowhere = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        environment = {"PATH": _SEARCH, "LC_ALL": "C.UTF-8"}
        return Child(loop, program, arguments, environment, stdin_fd=nowhere, timeout_s=timeout_s, done=answered)
    except OSError as error:
        told("", f"cannot run {program}: {kernel.explain(error)}")
        return None
    finally:
        os.close(nowhere)


def unit_of(cgroups: str) -> str | None:
    """Return the service in which this process is, from the text of /proc/self/cgroup (cgroups(7))."""
    for line in cgroups.splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers in {"", "name=systemd"}:
            services = [part for part in path.split("/") if part.endswith(".service")]
            if services:
                return services[-1]
    return None


def job_of(listing: str, unit: str) -> tuple[str, str]:
    """Return the type of the unit's job in a listing, "" where there is none; and "" or why that is not known."""
    if not listing.strip():
        return "", ""
    for line in listing.splitlines():
        found = re.fullmatch(r"\s*\d+\s+(\S+)\s+([a-z-]+)\s+[a-z-]+\s*", line)
        if found is not None and found[1] == unit:
            return found[2], ""
    text = " ".join(listing.split())
    return "", "systemctl says: " + "".join(one if one.isprintable() else "?" for one in text)[:_MAX_SHOWN]
