"""The wall clock is set, for an agent and its components, by a library that is loaded before the C library's."""

import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.faults.ledger import Ledger
from tests.faults.rig import QUICK, Field, python, replaced, witness
from tests.integration.host import Host, wait_until
from tests.integration.leasing import AUTHORITY

Make = Callable[..., Host]

LEASE_S = 50.0
"""It must not end while an agent is replaced, however busy the machine is."""
HOUR_S = 3600
SHIFTS_S = (HOUR_S, -HOUR_S, 20 * 365 * 24 * HOUR_S, 0)
_CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long shift(void)
{
    char text[32] = "";
    const char *path = getenv("XCE_TEST_WALL_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    return got > 0 ? atol(text) : 0;
}
int clock_gettime(clockid_t id, struct timespec *at)
{
    int result = (int)syscall(SYS_clock_gettime, id, at);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        at->tv_sec += shift();
    return result;
}
int gettimeofday(struct timeval *at, void *zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_wall_clock_that_is_set_changes_nothing(make_host: Make, place: Path, ledger: Ledger) -> None:
    """An hour on, an hour back, twenty years on: leases, delays, a drain's deadline and processes stay (scenario 5).

    It is set while the agent runs and while none does.
    """
    base, library = place / "h1", place / "clock.so"
    source, wall, switch = place / "clock.c", place / "wall", place / "renew"
    source.write_text(_CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    switch.write_text(str(LEASE_S))
    faked = {"LD_PRELOAD": str(library), "XCE_TEST_WALL_CLOCK": str(wall)}
    probe = {"exec": {"command": ["/bin/true"]}, "period_s": 0.2}
    components: dict[str, Any] = {
        "authority": {"command": python(AUTHORITY, str(switch)), "states": ["controller.primary"]},
        "leased": {
            "command": witness(base, "leased"),
            "run_while": ["controller.primary"],
            "stop": {"timeout_s": 0.5, "kill_timeout_s": 0.5},
        },
        "worker": {
            "command": witness(base, "worker", "trap : USR1; while :; do sleep 0.1; done"),
            "states": ["host.draining", "host.drained", "host.decommissioned"],
            "drain": {"signal": "USR1", "on_deadline": "kill"},
            "probes": {"liveness": probe},
        },
        "victim": {"command": witness(base, "victim"), "restart": QUICK},
    }
    field = Field(make_host, ledger, {name: body | {"environment": faked} for name, body in components.items()})
    enter = ["env", *(f"{key}={value}" for key, value in faked.items())]
    field.launch(*enter)
    field.answers()
    field.settled()
    field.host.ctl("drain", "--deadline", "10m")
    deadline_ns = field.host.status()["host"]["deadline_ns"]
    field.recorded("leased", "worker")
    for agent_runs in (True, False):
        for shift_s in SHIFTS_S:
            if not agent_runs:
                field.host.kill_agent()
                ledger.inject()
            wall.write_text(str(shift_s))
            ledger.inject()
            if not agent_runs:
                field.launch(*enter)
                field.answers()
            before = _lease(field)
            replaced(field, "victim")
            assert abs(_told(field) - datetime.now(UTC) - timedelta(seconds=shift_s)) < timedelta(seconds=HOUR_S / 2)
            wait_until(lambda before=before: _lease(field) > before, "the lease is renewed")  # type: ignore[misc]
            assert field.host.status()["host"]["state"] == "draining"
            assert field.host.status()["host"]["deadline_ns"] == deadline_ns
            field.kept("leased", "worker")
    field.end()


def _lease(field: Field) -> int:
    """The end of the lease as the agent knows it."""
    found: int = field.host.status()["facts"][0]["valid_until_ns"]
    return found


def _told(field: Field) -> datetime:
    """What the agent takes for the time of day: that of its newest event."""
    return datetime.fromisoformat(field.host.events()[-1]["at"])
