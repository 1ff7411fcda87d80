"""A real agent with components in C: the controller and the scheduler of libxce/examples, alone and beside Python's."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.host import Host, wait_until

SOURCE = Path(__file__).parents[2] / "libxce"

pytestmark = pytest.mark.skipif(
    shutil.which("make") is None or shutil.which("cc") is None or not SOURCE.is_dir(),
    reason="the sources of libxce, make and a C compiler are needed",
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the two programs are, built as libxce's Makefile builds them."""
    build = tmp_path_factory.mktemp("libxce")
    subprocess.run(["make", "--quiet", f"BUILD={build}", "all"], cwd=SOURCE, check=True, timeout=100)
    return build


MakeC = Callable[..., Host]


@pytest.fixture
def make_c_host(make_host: Callable[..., Host], programs: Path, place: Path) -> MakeC:
    """Make hosts whose manager role has the C programs."""

    def make(name: str = "h1", *, lease: Path | None = None, lease_s: float = 5.0) -> Host:
        where = lease or place / "c.lease"
        host = make_host(name, roles=("cmanager",), role_files={"cmanager": role(programs, where, name, lease_s)})
        (host.state_dir / "reference").mkdir()
        return host

    return make


def role(programs: Path, lease: Path, name: str, lease_s: float) -> dict[str, Any]:
    probes = {"readiness": {"heartbeat": {}, "period_s": 0.2}}
    return {
        "role": "cmanager",
        "user": "inherit",
        "components": {
            "controller": {
                "command": [str(programs / "controller"), str(lease)],
                "environment": {"XCE_REF_LEASE_S": str(lease_s), "XCE_REF_HOLDER": f"{name}/c"},
                "states": ["controller.primary"],
                "probes": {**probes, "liveness": {"heartbeat": {}, "on_failure": "report"}},
                "stop": {"timeout_s": 5},
            },
            "scheduler": {
                "command": [str(programs / "scheduler"), "${state_dir}/reference/scheduler.log"],
                "after": ["controller"],
                "run_while": ["controller.primary"],
                "restart_on_change": ["controller.primary.term"],
                "probes": {**probes, "liveness": {"heartbeat": {}}},
                "stop": {"timeout_s": 1, "kill_timeout_s": 0.5},
            },
        },
    }


def pid_of(host: Host, name: str) -> int:
    pid = host.pids()[name]
    assert pid is not None
    return pid


def assert_terms_never_interleave(hosts: list[Host]) -> None:
    """Order all signs of life by time: a term, once followed by a newer one, never shows again."""
    signs = sorted((at, term) for host in hosts for term, at in host.trace())
    terms = [term for _at, term in signs]
    assert terms, "the schedulers left a trace"
    assert terms == sorted(terms)


def test_the_c_scheduler_follows_the_c_controller(make_c_host: MakeC) -> None:
    """Standby stops the scheduler at once; primary again it gets one under a newer term."""
    host = make_c_host()
    host.up()
    first = host.status()["facts"][0]["term"]
    os.kill(pid_of(host, "controller"), signal.SIGUSR1)
    host.wait_for("scheduler", state="stopped", desired="down", rule="condition")
    os.kill(pid_of(host, "controller"), signal.SIGUSR2)
    host.wait_for("scheduler", state="running", ready=True)
    assert host.status()["facts"][0]["term"] > first
    assert_terms_never_interleave([host])


def test_c_components_outlive_the_agent_and_greet_the_next(make_c_host: MakeC) -> None:
    """A killed agent takes nothing along: both reconnect by themselves and state what they had stated."""
    host = make_c_host(lease_s=20.0)
    host.up()
    before = host.pids()
    host.kill_agent()
    host.up()
    wait_until(
        lambda: host.component("controller")["status_text"].startswith("primary"),
        "the controller states its leadership to the new agent",
    )
    host.wait_for("scheduler", ready=True)
    assert host.pids() == before


def test_a_stopped_agent_blocks_no_c_component(make_c_host: MakeC, place: Path) -> None:
    """While the agent stands still the controller renews and the scheduler works; both go on as the same processes."""
    host = make_c_host(lease_s=20.0)
    host.up()
    before = host.pids()
    assert host.agent is not None
    host.agent.send_signal(signal.SIGSTOP)
    try:
        lease, signs = renewed(place), len(list(host.trace()))
        wait_until(lambda: renewed(place) > lease, "the controller renews")
        wait_until(lambda: len(list(host.trace())) > signs + 10, "the scheduler works")
    finally:
        host.agent.send_signal(signal.SIGCONT)
    host.wait_for("scheduler", ready=True)
    assert host.pids() == before


def renewed(place: Path) -> int:
    until: int = json.loads((place / "c.lease").read_text())["valid_until_ns"]
    return until


def test_a_stopped_c_controller_takes_its_scheduler_along_before_the_lease_ends(make_c_host: MakeC) -> None:
    """SIGSTOP of the controller beyond its lease: the last sign of the scheduler's work lies before the lease's end."""
    host = make_c_host()
    host.up()
    controller = pid_of(host, "controller")
    os.kill(controller, signal.SIGSTOP)
    try:
        host.wait_for("scheduler", state="stopped", pid=None)
        until = host.status()["facts"][0]["valid_until_ns"]
        assert max(at for _term, at in host.trace()) < until
        assert pid_of(host, "controller") == controller
    finally:
        os.kill(controller, signal.SIGCONT)
    host.wait_for("scheduler", state="running", ready=True)
    assert_terms_never_interleave([host])


def test_a_c_scheduler_fences_itself(make_c_host: MakeC) -> None:
    """Without controller and agent the scheduler ends by itself no later than its lease: the second line."""
    host = make_c_host(lease_s=4.0)
    host.up()
    scheduler, controller = pid_of(host, "scheduler"), pid_of(host, "controller")
    assert host.agent is not None
    host.agent.send_signal(signal.SIGSTOP)
    os.kill(controller, signal.SIGKILL)
    try:
        wait_until(lambda: not alive(scheduler), "the scheduler has ended")
        assert max(at for _term, at in host.trace()) < renewed(host.base.parent)
    finally:
        host.agent.send_signal(signal.SIGCONT)


def alive(pid: int) -> bool:
    """Whether the process runs: one that has ended is not reaped while its parent stands still."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_controllers_in_c_and_python_share_one_lease(
    make_c_host: MakeC, make_host: Callable[..., Host], place: Path
) -> None:
    """Both stand for one record in one file; a graceful stop passes the lead on, and terms never interleave."""
    lease = place / "shared.lease"
    hosts = [
        make_c_host("c1", lease=lease),
        make_host("p1", roles=("manager",), lease=lease, lease_s=5.0),
    ]
    for host in hosts:
        host.start()
    for _round in range(2):
        leader = wait_until(lambda: next((host for host in hosts if schedules(host)), None), "one host schedules")
        assert leader is not None
        follower = next(host for host in hosts if host is not leader)
        assert not schedules(follower)
        assert leader.stop() == 0
        assert leader.processes() == []
        follower.wait_for("scheduler", state="running", ready=True)
        leader.start()
        leader.wait_for("controller", ready=True)
    assert_terms_never_interleave(hosts)
    assert json.loads(lease.read_text())["term"] >= 3


def schedules(host: Host) -> bool:
    scheduler = host.component("scheduler")
    return scheduler["state"] == "running" and scheduler["ready"] is True
