"""The checks, in the order in which they are carried out. Each leaves a machine on which everything is ready.

First the agent is `xce`, then root. A check that fails may take later ones along; the first is the one to look at.
"""

import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from . import components, host
from .host import alive, component, counters, limits, members, read, settled, succeeded, systemd, tell, wait

CHECKS: list[Callable[[], None]] = []
_PIDFD_GET_INFO = 0xC040FF0B
"""_IOWR(0xFF, 11, struct pidfd_info): what the runtime asks a kernel of 6.13 and later with."""

OUT_OF_MEMORY = {
    "killed by signal 9 (SIGKILL), out of memory",
    "ended, exit status unknown, but the kernel had killed for want of memory",
}
"""The second where nobody tells the agent how an adopted process ended."""


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


# --- an agent that is not root ----------------------------------------------------------------------------------------


@check
def the_machine_is_full_cgroup_v2_of_an_old_kernel() -> None:
    """No v1 hierarchy, every controller in the v2 tree, a real systemd, and none of the newer calls on pidfds."""
    assert os.uname().release.startswith("6.1."), os.uname().release
    kinds = [line.split()[2] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    assert "cgroup2" in kinds, kinds
    assert "cgroup" not in kinds, kinds
    controllers = Path("/sys/fs/cgroup/cgroup.controllers").read_text(encoding="ascii").split()
    assert {"cpu", "memory", "pids"} <= set(controllers), controllers
    assert Path("/proc/1/comm").read_text(encoding="ascii") == "systemd\n"
    assert _errno_of_pidfd_get_info() in {errno.ENOTTY, errno.EINVAL}


def _errno_of_pidfd_get_info() -> int | None:
    fd = os.pidfd_open(os.getpid())
    try:
        fcntl.ioctl(fd, _PIDFD_GET_INFO, bytearray(64))
    except OSError as error:
        return error.errno
    finally:
        os.close(fd)
    return None


@check
def a_host_without_root_becomes_ready() -> None:
    """The package's own unit, with Delegate=yes: every component in a cgroup of its own, and nothing to warn of."""
    components.install()
    components.without_root()
    host.run("systemctl", "enable", "--now", "--quiet", host.UNIT)
    before = settled()
    found = host.status()
    assert found["node"]["cgroup_mode"] == "delegated", found["node"]
    assert found["warnings"] == [], found["warnings"]
    assert systemd("Delegate") == "yes"
    assert members("steady") == {before["steady"]}
    assert members("agent") >= {host.agent()}
    assert members("") == set()


@check
def limits_are_set_on_what_has_them() -> None:
    """memory.max, pids.max and cpu.weight as the role file says, and none on the agent and the others."""
    assert set(read("cgroup.subtree_control").split()) == {"cpu", "memory", "pids"}
    assert limits("steady") == components.STEADY_LIMITS
    assert limits("controller") == ("max", "max", "100")
    assert limits("agent") == ("max", "max", "100")


def _lost_and_found(hurt: Callable[[], object]) -> None:
    before, former = settled(), host.agent()
    host.fresh_lease(components.FRESH_S)
    hurt()
    succeeded(before, former)
    assert limits("steady") == components.STEADY_LIMITS
    assert "219" not in systemd("ExecMainStatus")


@check
def after_kill_9_limits_are_set_again() -> None:
    """Controllers were enabled, and systemd starts another agent; that one sets every limit before it is ready."""
    _lost_and_found(lambda: host.kill(host.agent(), signal.SIGKILL))
    assert systemd("NRestarts") == "1"


@check
def after_a_restart_limits_are_set_again() -> None:
    """`systemctl restart`."""
    _lost_and_found(lambda: host.run("systemctl", "restart", host.UNIT))


@check
def after_the_watchdog_limits_are_set_again() -> None:
    """An agent that is stopped is ended by systemd, with the unit's own times; nothing else is touched."""
    _lost_and_found(lambda: host.kill(host.agent(), signal.SIGSTOP))
    assert "Watchdog timeout" in host.journal()


@check
def without_release_controllers_systemd_could_not_start_the_agent() -> None:
    """The trap that ExecStopPost= is for, shown by taking it away; and that everything recovers once it is back."""
    before, former = settled(), host.agent()
    host.fresh_lease(components.FRESH_S)
    host.drop_in("trap.conf", "[Service]\nExecStopPost=\n")
    host.kill(former, signal.SIGKILL)
    wait(lambda: "status=219/CGROUP" in host.journal(), "systemd fails with 219/CGROUP")
    assert all(map(alive, before.values()))
    host.drop_in("trap.conf", None)
    succeeded(before, former)
    assert limits("steady") == components.STEADY_LIMITS


@check
def another_limit_is_set_at_a_reload() -> None:
    """A role file with other limits: the component, started again, has them, and nobody else is touched."""
    path = Path("/etc/xce/roles/bench.yaml")
    old, before = path.read_text(encoding="ascii"), settled()
    try:
        path.write_text(old.replace("memory_max: 64M, pids_max: 32", "memory_max: 48M"), encoding="ascii")
        host.run("systemctl", "reload", host.UNIT)
        wait(lambda: limits("steady") == ("50331648", "max", "50"), "the new limits are set")
    finally:
        path.write_text(old, encoding="ascii")
        host.run("systemctl", "reload", host.UNIT)
    wait(lambda: limits("steady") == components.STEADY_LIMITS, "the old limits are set")
    assert {**before, "steady": 0} == {**settled(), "steady": 0}


# --- ends, named ------------------------------------------------------------------------------------------------------


def _again(name: str, former: int) -> None:
    """Wait until another process is this component's."""
    wait(lambda: component(name).get("pid") not in {None, former}, f"{name} was started again")
    settled()


@check
def how_an_adopted_process_ended_is_unknown_or_true() -> None:
    """Whoever reaps it has the status; this kernel tells nobody else. It is no guess, and the next one runs."""
    former = settled()["steady"]
    host.kill(former, signal.SIGTERM)
    _again("steady", former)
    last = component("steady")["last_exit"]
    assert last in {"ended, exit status unknown", "killed by signal 15 (SIGTERM)"}, last
    assert limits("steady") == components.STEADY_LIMITS


@check
def how_a_child_ended_is_known() -> None:
    """The one after it is the new agent's child."""
    former = settled()["steady"]
    host.kill(former, signal.SIGTERM)
    _again("steady", former)
    assert component("steady")["last_exit"] == "killed by signal 15 (SIGTERM)"


def _out_of_memory(name: str) -> str:
    """Have a component killed for want of memory; how its end was told."""
    before, former = settled(), host.agent()
    tell(name)
    _again(name, before[name])
    rest = {other: pid for other, pid in before.items() if other != name}
    assert rest.items() <= settled().items(), "nobody else was touched"
    assert host.agent() == former
    events = host.ask("/v1/events?after=0&limit=1000")
    ends = [one for one in events if one["event"] == "component.exited" and one["component"] == name]
    how = str(ends[-1]["how"])
    why = host.ask(f"/v1/components/{name}/why")
    assert why["last_exit"] == how == component(name)["last_exit"], (why, how)
    return how


@check
def an_adopted_component_out_of_memory_is_named() -> None:
    """memory.max is enforced; how it ended is told by memory.events where nothing else tells it."""
    how = _out_of_memory("eater")
    assert how in OUT_OF_MEMORY, how


@check
def a_child_out_of_memory_is_named() -> None:
    """The same where the agent is its parent."""
    assert _out_of_memory("eater") == "killed by signal 9 (SIGKILL), out of memory"


@check
def a_fork_bomb_is_held_by_pids_max() -> None:
    """No more processes than the limit, an agent that answers, nobody else touched; and a restart clears all of it."""
    before, former = settled(), host.agent()
    tell("forker")
    wait(lambda: counters("forker", "pids.events").get("max", 0) > 0, "the limit is reached")
    for _ in range(10):
        assert int(read("forker", "pids.current")) <= 24
        assert host.pids() == before
    host.ask("/v1/components/forker/restart", "POST", by="check")
    _again("forker", before["forker"])
    assert members("forker") == {component("forker")["pid"]}
    assert host.agent() == former
    assert {**settled(), "forker": 0} == {**before, "forker": 0}


@check
def a_frozen_component_is_spared_and_named() -> None:
    """A scheduler in a frozen group is silent, and no restart would help it: reported, and gone on with when thawed."""
    pid = settled()["scheduler"]
    group = _group_of(pid)
    (group / "cgroup.freeze").write_text("1", encoding="ascii")
    wait(lambda: component("scheduler").get("verdict") == "frozen", "it is called frozen")
    assert component("scheduler")["pid"] == pid
    (group / "cgroup.freeze").write_text("0", encoding="ascii")
    wait(lambda: component("scheduler").get("verdict") == "ok", "it is well again")
    assert settled()["scheduler"] == pid


@check
def a_frozen_component_can_be_stopped() -> None:
    """It cannot take its SIGTERM, SIGKILL ends it all the same; the next one is born in a group that is not frozen."""
    before = settled()
    pid = before["scheduler"]
    (_group_of(pid) / "cgroup.freeze").write_text("1", encoding="ascii")
    host.ask("/v1/components/scheduler/stop", "POST", by="check")
    wait(lambda: component("scheduler").get("state") == "stopped", "it is stopped")
    assert not alive(pid)
    last = component("scheduler")["last_exit"]
    host.ask("/v1/components/scheduler/start", "POST", by="check")
    _again("scheduler", pid)
    assert last.endswith(("killed by signal 9 (SIGKILL)", "exit status unknown")), last
    assert {**settled(), "scheduler": 0} == {**before, "scheduler": 0}


def _group_of(pid: int) -> Path:
    own = Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").strip().removeprefix("0::/")
    return Path("/sys/fs/cgroup", own)


# --- the fuse ---------------------------------------------------------------------------------------------------------


@check
def a_new_agent_renews_through_the_old_fuse() -> None:
    """A scheduler that was adopted lives beyond the lease that it was adopted with, guarded by the same fuse."""
    before, former, fuses = settled(), host.agent(), members("fuse")
    assert len(fuses) == 1, fuses
    host.kill(former, signal.SIGKILL)
    succeeded(before, former)
    until_ns = host.lease_until_ns()
    wait(lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) > until_ns, "that lease is over")
    assert before == settled()
    assert fuses == members("fuse")


@check
def the_fuse_kills_where_the_agent_cannot() -> None:
    """An agent that is stopped beyond the lease: no scheduler when it ends. Let go on, it starts another one.

    With a watchdog that is slower than the lease, so that systemd does not come first.
    """
    host.drop_in("slow-watchdog.conf", "[Service]\nWatchdogSec=300\n")
    host.run("systemctl", "restart", host.UNIT)
    before, former = settled(), host.agent()
    host.kill(former, signal.SIGSTOP)
    wait(lambda: not alive(before["scheduler"]), "the scheduler is dead")
    stopped = host.state(former)
    host.kill(former, signal.SIGCONT)
    host.drop_in("slow-watchdog.conf", None)
    assert stopped == "T", "and the agent had no part in it"
    _again("scheduler", before["scheduler"])
    assert {**settled(), "scheduler": 0} == {**before, "scheduler": 0}


# --- an agent that is root --------------------------------------------------------------------------------------------


@check
def a_stop_leaves_nothing() -> None:
    """`systemctl stop`: components, fuses and groups are gone."""
    before = settled()
    host.run("systemctl", "stop", host.UNIT)
    assert not any(map(alive, before.values()))
    wait(lambda: not host.ROOT.exists(), "the unit's group is gone")


@check
def a_worker_host_becomes_ready() -> None:
    """The agent is root; the worker's limits bind its main process, and never its jobs."""
    components.with_root()
    host.run("systemctl", "start", host.UNIT)
    before = settled()
    assert limits("worker", "main") == components.WORKER_LIMITS
    assert limits("worker", "jobs") == ("max", "max", "100")
    assert members("worker", "main") >= {before["worker"]}
    assert limits("keeper", "main")[:2] == components.KEEPER_LIMITS


def _job() -> int:
    (pid,) = wait(lambda: members("keeper", "jobs", "one"), "the job runs in a group of its own")
    assert read("keeper", "jobs", "one", "memory.max") == components.JOB_MEMORY_MAX
    return pid


def _submitted() -> list[int]:
    """Return the jobs of the reference worker."""
    return [int(pid) for pid in host.run("pgrep", "-f", "^/bin/sleep 86400", ok=False).split()]


@check
def a_component_has_its_jobs_in_groups_of_its_own() -> None:
    """NAME/jobs is delegated to the component's user: groups with limits, and its processes moved there."""
    keeper, job = settled()["keeper"], _job()
    assert job not in members("keeper", "main")
    for path in (host.ROOT / "keeper" / "jobs", host.ROOT / "keeper" / "jobs" / "one"):
        assert path.owner() == "xce", path
    host.ask("/v1/components/keeper/restart", "POST", by="check")
    _again("keeper", keeper)
    assert job == _job()


@check
def a_worker_out_of_memory_leaves_its_job() -> None:
    """memory.max of NAME/main is the component's alone."""
    job = _job()
    assert _out_of_memory("keeper") == "killed by signal 9 (SIGKILL), out of memory"
    assert job == _job()


@check
def a_users_job_outlives_the_restart_of_its_worker() -> None:
    """The reference worker, with limits: the same job before and after."""
    worker = settled()["worker"]
    host.run("xce-reference", "ctl", "submit", "m1", "--seconds", "86400")
    (job,) = wait(_submitted, "it runs")
    host.ask("/v1/components/worker/restart", "POST", by="check")
    _again("worker", worker)
    wait(lambda: component("worker").get("jobs") == 1, "the new worker has found the job")
    assert alive(job)
    assert limits("worker", "main") == components.WORKER_LIMITS


def _root_lost_and_found(hurt: Callable[[], object]) -> None:
    before, former, job = settled(), host.agent(), _job()
    host.fresh_lease(components.FRESH_S)
    hurt()
    succeeded(before, former)
    assert limits("worker", "main") == components.WORKER_LIMITS
    assert limits("keeper", "main")[:2] == components.KEEPER_LIMITS
    assert job == _job(), "the same job, with the limit that its worker gave it"


@check
def after_kill_9_of_a_root_agent_limits_are_set_again() -> None:
    """Controllers were enabled three levels deep, by others too."""
    _root_lost_and_found(lambda: host.kill(host.agent(), signal.SIGKILL))


@check
def after_a_restart_of_a_root_agent_limits_are_set_again() -> None:
    """`systemctl restart`."""
    _root_lost_and_found(lambda: host.run("systemctl", "restart", host.UNIT))


@check
def after_the_watchdog_of_a_root_agent_limits_are_set_again() -> None:
    """An agent that is stopped."""
    _root_lost_and_found(lambda: host.kill(host.agent(), signal.SIGSTOP))


@check
def a_host_out_of_memory_loses_neither_agent_nor_job() -> None:
    """Without any limit the whole host runs out of memory: what took it is killed and named, the agent is protected."""
    job = _job()
    assert int(Path(f"/proc/{host.agent()}/oom_score_adj").read_text(encoding="ascii")) < 0
    how = _out_of_memory("hungry")
    assert how in OUT_OF_MEMORY, how
    assert job == _job()


@check
def without_any_limit_out_of_memory_is_named() -> None:
    """No controller is enabled where none is needed; the kernel's kill is told, adopted process or child."""
    jobs = [_job(), *_submitted()]
    host.run("systemctl", "stop", host.UNIT)
    assert all(map(alive, jobs)), "a stop leaves jobs alone"
    for job in jobs:  # the group of a job that is left keeps the controllers that were enabled for it
        host.kill(job, signal.SIGKILL)
    components.without_limits()
    host.run("systemctl", "start", host.UNIT)
    settled()
    assert read("cgroup.subtree_control") == ""
    host.run("systemctl", "restart", host.UNIT)
    how = _out_of_memory("hungry")
    assert how in OUT_OF_MEMORY, how
    assert _out_of_memory("hungry") == "killed by signal 9 (SIGKILL), out of memory"
