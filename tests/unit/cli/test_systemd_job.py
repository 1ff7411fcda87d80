"""Why systemd sent SIGTERM."""

import asyncio
from pathlib import Path

import pytest

from node_manager.cli import leaving, systemd_job

UNIT = "xce-node-manager.service"
UNIT_FILE = Path(__file__).parent.parent.parent.parent / "units" / UNIT
BOUND_S = 20


@pytest.mark.skipif(not UNIT_FILE.exists(), reason="there are no units beside these tests")
def test_an_answer_and_a_quiet_moment_come_within_systemds_patience() -> None:
    """An agent that waits for both at their bounds is not killed by systemd meanwhile."""
    lines = UNIT_FILE.read_text(encoding="utf-8").splitlines()
    (patience,) = (line.removeprefix("TimeoutStopSec=") for line in lines if line.startswith("TimeoutStopSec="))
    assert float(patience) > systemd_job.TIMEOUT_S + leaving.QUIET_S


@pytest.mark.parametrize(
    ("cgroups", "unit"),
    [
        (f"0::/system.slice/{UNIT}/agent\n", UNIT),
        (f"0::/system.slice/{UNIT}\n", UNIT),
        (f"12:memory:/user.slice\n1:name=systemd:/system.slice/{UNIT}\n0::/\n", UNIT),
        (f"0::/user.slice/user@0.service/app.slice/{UNIT}\n", UNIT),
        (f"12:memory:/system.slice/{UNIT}\n0::/\n", None),
        ("0::/user.slice/session-1.scope\n", None),
        ("garbage\n", None),
        ("", None),
    ],
)
def test_the_unit_is_told_by_the_cgroup(cgroups: str, unit: str | None) -> None:
    """The innermost service of systemd's own hierarchy, whatever else is mounted."""
    assert unit == systemd_job.unit_of(cgroups)


@pytest.mark.parametrize(
    ("listing", "job"),
    [
        ("", ""),
        (f"1234 {UNIT} stop running\n", "stop"),
        (f"1234 {UNIT} restart running\n 99 other.service start waiting\n", "restart"),
        (f"  99 other.service stop waiting\n1234 {UNIT} verify-active waiting\n", "verify-active"),
    ],
)
def test_a_listing_is_read(listing: str, job: str) -> None:
    """The type of this unit's job and of no other; nothing at all means that there is none."""
    assert (job, "") == systemd_job.job_of(listing, UNIT)


@pytest.mark.parametrize(
    "listing",
    ["Failed to list jobs: Connection reset by peer\n", f"1 not-{UNIT} stop running\n", f"stop {UNIT}\n", "\x1b[2J"],
)
def test_what_is_not_understood_is_not_known(listing: str) -> None:
    """Neither a stop nor a restart is made of it, and what was said is passed on without what steers a terminal."""
    job, unknown = systemd_job.job_of(listing, UNIT)
    assert job == ""
    assert unknown.startswith("systemctl says: ")
    assert "\x1b" not in unknown


def answer_of(systemctl: Path, *, bound_s: float = BOUND_S) -> tuple[str, str]:
    """Ask this systemctl, on a loop."""
    loop = asyncio.new_event_loop()
    told: list[tuple[str, str]] = []

    def note(job: str, unknown: str) -> None:
        told.append((job, unknown))
        loop.stop()

    if systemd_job.ask(loop, UNIT, note, systemctl=str(systemctl), timeout_s=bound_s) is not None:
        loop.call_later(BOUND_S, loop.stop)
        loop.run_forever()
    loop.close()
    (one,) = told
    return one


def systemctl(directory: Path, text: str) -> Path:
    path = directory / "systemctl"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_it_is_asked_for_this_unit(tmp_path: Path) -> None:
    """What systemctl answers comes back."""
    script = systemctl(tmp_path, 'for last; do :; done; [ "$1" = list-jobs ] && echo "7 $last restart running"')
    assert answer_of(script) == ("restart", "")


def test_no_answer_is_waited_for_with_a_bound(tmp_path: Path) -> None:
    """A manager that hangs does not keep the agent from ending."""
    script = systemctl(tmp_path, "exec sleep 300")
    assert answer_of(script, bound_s=0.2) == ("", "it gave no answer within 0.2 s")


def test_no_systemctl(tmp_path: Path) -> None:
    """Where it cannot be started, that is what is not known."""
    job, unknown = answer_of(tmp_path / "gone")
    assert job == ""
    assert unknown.startswith("cannot run ")
