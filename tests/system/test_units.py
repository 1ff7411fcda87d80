"""What the units say, judged by systemd itself."""

from pathlib import Path

import pytest

from tests.system.hosts import job, serve
from tests.system.machine import UNIT, Machine, wait_until

EXPOSURE = 24
"""Tenths of what systemd-analyze allows at most where no role needs root."""


def test_systemd_finds_no_fault(machine: Machine) -> None:
    """`systemd-analyze verify` has nothing to say."""
    done = machine.run("systemd-analyze", "verify", "--man=no", UNIT, "xce-node-manager-identity.service", "xce.slice")
    assert done.stderr == ""


def test_the_service_is_hardened_where_no_role_needs_root(machine: Machine) -> None:
    """The exposure stays low, and the components work all the same."""
    serve(machine, "manager")
    machine.running()
    found = machine.run("systemd-analyze", "security", "--no-pager", f"--threshold={EXPOSURE}", UNIT, ok=None)
    assert found.returncode == 0, found.stdout


def test_the_agent_alone_is_protected_when_memory_is_short(machine: Machine) -> None:
    """The kernel takes it last; components have no part in that. Where nobody may have it, nothing fails for it."""
    serve(machine, "manager")
    assert machine.property("OOMScoreAdjust") == "-900"
    here = Path("/proc/self/oom_score_adj").read_text(encoding="ascii")
    assert _oom_score_adj(machine, machine.agent_pid()) in {"-900\n", here}
    machine.running()
    assert {_oom_score_adj(machine, pid) for pid in machine.pids().values()} == {"0\n"}


def _oom_score_adj(machine: Machine, pid: int | None) -> str:
    return machine.shell(f"cat /proc/{pid}/oom_score_adj")


def test_users_jobs_are_bound_by_nothing(machine: Machine) -> None:
    """On a worker host a job may gain privileges, sees the host's mounts, and has its limits raised."""
    serve(machine, "manager", "worker")
    machine.shell("xce-reference ctl submit m1 --seconds 600")
    pid = wait_until(lambda: job(machine), "the job runs")
    words = dict(line.split(":", 1) for line in machine.shell(f"cat /proc/{pid}/status").splitlines())
    assert (words["NoNewPrivs"].strip(), words["Seccomp"].strip()) == ("0", "0")
    assert machine.shell("readlink /proc/1/ns/mnt") == machine.shell(f"readlink /proc/{pid}/ns/mnt")
    assert words["CapBnd"] == dict(
        line.split(":", 1) for line in machine.shell("cat /proc/1/status").splitlines()
    )["CapBnd"]  # fmt: skip
    assert machine.property("TasksMax") == "infinity"


@pytest.mark.parametrize("enabled", ["", "memory pids"])
def test_controllers_are_released_from_below(machine: Machine, enabled: str) -> None:
    """Before the next start every group below the unit's has its controllers disabled, the lowest first.

    In files that stand for a tree of cgroups: here no version 2 controllers can be had.
    """
    machine.shell("mkdir -p /root/tree/worker/main /root/tree/agent")
    for group in ("", "worker/", "worker/main/", "agent/"):
        machine.write(f"/root/tree/{group}cgroup.subtree_control", f"{enabled}\n")
    machine.run("/usr/lib/xce-node-manager/release-controllers", "/root/tree")
    last = f"-{enabled.rsplit(maxsplit=1)[-1]}\n" if enabled else "\n"
    found = machine.shell("cat /root/tree/cgroup.subtree_control /root/tree/worker/cgroup.subtree_control")
    assert found == last * 2


def test_pages_and_completion_are_installed(machine: Machine) -> None:
    """Every page that the package promises is there, and the completion knows the commands."""
    pages = machine.shell("cd /usr/share/man; ls man*/xce-* man*/node-manager*").split()
    assert sorted(pages) == [
        "man1/xce-nodectl.1.gz",
        "man5/node-manager.yaml.5.gz",
        "man5/xce-role.5.gz",
        "man8/xce-node-manager.8.gz",
    ]
    complete = (
        ". /usr/share/bash-completion/completions/xce-nodectl; COMP_WORDS=(xce-nodectl dr); COMP_CWORD=1; "
        '_xce_nodectl; echo "${COMPREPLY[@]}"'
    )
    assert machine.run("bash", "-c", complete).stdout == "drain\n"
