"""An agent to which a part of the cgroup v2 tree was delegated, as systemd does it."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node_manager.core.spec import ComponentSpec, HostSpec, LimitsSpec, NodeSpec
from node_manager.runtime import cgroupfs
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.limits import refused
from tests.integration.host import Host, wait_until
from tests.integration.leasing import LEASE_S, LONG_LEASE_S, ROLE, Leased, entering
from tests.integration.test_fuse import NS, assert_dead_in_time, pause
from tests.unit.runtime.cgroups import delegated, needs_cgroups

pytestmark = needs_cgroups

HIDE = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.execve('/bin/sleep', ['hidden', '1000'], {})\n"
    "    os._exit(0)\n"
    "os.wait()\n"
    "sys.stdout.flush()\n"
    "time.sleep(1000)\n"
)
FORGET = "import os\npid = os.getpid()\nos.execve('/bin/sleep', ['forgetful', '1000'], {})\n"
"""Overwrites its environment, as nginx does for its title: no marker tells whose process it is."""


@pytest.fixture
def group() -> Iterator[Path]:
    with delegated() as made:
        yield made


def role(**components: dict[str, Any]) -> dict[str, dict[str, Any]]:
    quiet = {"stop": {"timeout_s": 0.5, "kill_timeout_s": 0.5}}
    body = {name: quiet | {"command": ["/bin/sleep", "1000"]} | fields for name, fields in components.items()}
    return {"test": {"role": "test", "user": "inherit", "components": body}}


@pytest.fixture
def fenced(make_host: Callable[..., Host], group: Path) -> Callable[..., Host]:
    """Make a host whose agent begins in the delegated group."""

    def make(**components: dict[str, Any]) -> Host:
        host = make_host(roles=("test",), role_files=role(**components))
        entering(group, host.base / "bin" / "xce-node-manager")
        return host

    return make


def relative(group: Path, pid: int | None) -> str:
    """Where a process is, below the delegated group."""
    assert pid is not None
    name, prefix = cgroupfs.group_of(pid), cgroupfs.name_of(group)
    assert name is not None
    return name.removeprefix(f"{prefix}/")


def test_agent_components_and_jobs_have_their_groups(fenced: Callable[..., Host], group: Path) -> None:
    """The agent is in `agent`, each component in its own; status says that they are fenced."""
    host = fenced(web={}, worker={"stop": {"kill_scope": "process"}})
    host.up()
    pids = host.pids()
    assert relative(group, pids["web"]) == "web"
    assert relative(group, pids["worker"]) == "worker/main"
    node = host.status()["node"]
    assert relative(group, node["agent_pid"]) == "agent"
    assert (node["cgroup_mode"], cgroupfs.read(group, "cgroup.procs")) == ("delegated", "")
    assert "a cgroup of its own" in node["cgroup_detail"]
    record = host.run_dir / "runtime.json"
    wait_until(lambda: record.exists() and str(group / "web") in record.read_text(), "the record names its group")


def test_without_a_delegated_group_status_says_what_is_not_fenced(make_host: Callable[..., Host]) -> None:
    """Session mode is named with its reason and its gap."""
    host = make_host(roles=("test",), role_files=role(web={}))
    host.up()
    node = host.status()["node"]
    assert node["cgroup_mode"] == "session"
    assert "a process that hides from all three is not fenced" in node["cgroup_detail"]


def test_a_crash_leaves_nothing_behind(fenced: Callable[..., Host], group: Path) -> None:
    """What a component hid from session, descent and markers is dead before its next start."""
    host = fenced(web={"command": ["python3", "-c", HIDE]})
    host.start()
    host.wait_for("web", state="running")
    hidden = wait_until(lambda: named(group / "web", b"hidden"), "the hidden process")
    pid = host.pids()["web"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: host.pids()["web"] not in {pid, None}, "the next start")
    assert not set(hidden) & set(cgroupfs.processes(group / "web"))


def test_a_killed_agent_finds_everything_again_without_its_record(fenced: Callable[..., Host], group: Path) -> None:
    """Runtime record and markers lost: the groups say which process is whose. Nothing is started twice."""
    host = fenced(web={"command": ["python3", "-c", FORGET]})
    host.up()
    before = host.pids()
    wait_until(lambda: named(group / "web", b"forgetful"), "it has forgotten its environment")
    host.kill_agent()
    (host.run_dir / "runtime.json").unlink(missing_ok=True)  # it may not have been written yet
    host.up()
    assert before == host.pids()
    assert list(cgroupfs.processes(group / "web")) == [before["web"]]


def test_leftovers_without_a_main_process_are_cleared_before_a_start(fenced: Callable[..., Host], group: Path) -> None:
    """The main process died while no agent was there: what is left in its group goes before the next start."""
    host = fenced(web={"command": ["python3", "-c", HIDE]})
    host.start()
    host.wait_for("web", state="running")
    hidden = wait_until(lambda: named(group / "web", b"hidden"), "the hidden process")
    pid = host.pids()["web"]
    assert pid is not None
    host.kill_agent()
    os.kill(pid, signal.SIGKILL)
    host.start()
    host.wait_for("web", state="running")
    assert not set(hidden) & set(cgroupfs.processes(group / "web"))


def test_a_stop_removes_the_groups(fenced: Callable[..., Host], group: Path) -> None:
    """After a clean stop nothing is left but the group that the agent itself was in."""
    host = fenced(web={}, worker={"stop": {"kill_scope": "process"}})
    host.up()
    assert host.stop() == 0
    assert [path.name for path in group.iterdir() if path.is_dir()] == ["agent"]


@pytest.fixture
def leased(make_host: Callable[..., Host], group: Path) -> Leased:
    made = Leased(make_host(roles=("manager",), role_files={"manager": ROLE}))
    entering(group, made.host.base / "bin" / "xce-node-manager")
    return made


def test_the_fuse_kills_the_group(leased: Leased, group: Path) -> None:
    """The agent stopped: the group of this generation is empty before the lease ends, and the fuse is in its own."""
    pid = leased.up()
    assert relative(group, pid) == "leased.1"
    assert [relative(group, fuse) for fuse in leased.fuses()] == ["fuse"]
    leased.switch.unlink()
    wait_until(lambda: leased.valid_until_ns() < boottime_ns() + int((LEASE_S - 0.3) * NS), "no renewal")
    until_ns = leased.valid_until_ns()
    agent = pause(leased)
    try:
        assert_dead_in_time(leased, until_ns)
        assert not cgroupfs.populated(group / "leased.1")
    finally:
        os.kill(agent, signal.SIGCONT)
    leased.host.wait_for("leased", state="stopped", rule="condition")


def test_a_successor_takes_the_group_and_its_fuse_over(leased: Leased, group: Path) -> None:
    """After kill -9 the same process runs in the same group beyond the deadline that the first agent had told."""
    pid = leased.up(LONG_LEASE_S)
    leased.host.kill_agent()
    leased.host.start()
    assert pid == leased.running()
    until_ns = leased.valid_until_ns()
    wait_until(lambda: boottime_ns() > until_ns, "the old deadline")
    assert pid == leased.running()
    assert relative(group, pid) == "leased.1"


def test_check_refuses_a_limit_whose_controller_is_bound_to_v1(make_host: Callable[..., Host]) -> None:
    """On a hybrid host the limit, the component and the way out are named; the agent itself runs it with a warning."""
    if not list(refused(limited("web"))):
        pytest.skip("the memory controller of this host is not bound to cgroup v1")
    host = make_host(roles=("test",), role_files=role(web={"limits": {"memory_max": "1G"}}))
    options = [option for option in host.options() if not option.startswith(("--runtime", "--state"))]
    done = host.run("xce-node-manager", "check", *options, ok=78)
    assert "components.web.limits.memory_max: cannot be enforced on this host: its memory controller is bound" in (
        done.stderr
    )
    host.up()
    assert any(text.startswith("web: memory_max is not enforced") for text in host.status()["warnings"])


def limited(name: str) -> NodeSpec:
    component = ComponentSpec(name=name, role="test", command=("/bin/true",), limits=LimitsSpec(memory_max=1 << 30))
    return NodeSpec(host=HostSpec(name="h"), roles=(), components=(component,))


def named(group: Path, name: bytes) -> list[int]:
    """The processes of a group whose first word this is."""
    found = []
    for pid in cgroupfs.processes(group):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == name:
            found.append(pid)
    return found


LEAVES_A_JOB = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    os.execv('/bin/sleep', ['job', '1000'])\n"
    "time.sleep(1000)\n"
)


def test_a_worker_is_not_started_in_a_frozen_group(fenced: Callable[..., Host], group: Path) -> None:
    """The agent answers, says why, leaves the job alone and starts the worker once the group runs; a new agent too."""
    host = fenced(worker={"command": ["python3", "-c", LEAVES_A_JOB], "stop": {"kill_scope": "process"}})
    host.start()
    host.wait_for("worker", state="running")
    (job,) = wait_until(lambda: named(group / "worker", b"job"), "the job")
    host.ctl("stop", "worker")
    host.wait_for("worker", state="stopped")
    (group / "worker" / "cgroup.freeze").write_text("1")
    host.ctl("start", "worker")
    for _ in range(2):
        reason = host.wait_for("worker", state="backoff")["reason"]
        assert f"its cgroup {group / 'worker' / 'main'} is frozen" in reason
        host.kill_agent()
        host.start()
    (group / "worker" / "cgroup.freeze").write_text("0")
    host.wait_for("worker", state="running")
    assert job in cgroupfs.processes(group / "worker")
