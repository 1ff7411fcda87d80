"""One host from its boot configuration to supervised components, and through the deaths of every part of it."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.host import BOUND_S, Host, wait_until

ALL = ("controller", "scheduler", "worker", "apiserver")


def test_a_host_comes_up_and_is_taken_down_without_a_trace(host: Host) -> None:
    """One configuration brings everything up; SIGINT stops everything, exits 0 and leaves no process behind."""
    host.up()
    status = host.status()
    assert status["node"]["ready"] is True
    assert [item["name"] for item in status["components"]] == list(ALL)
    assert all(item["state"] == "running" and item["ready"] for item in status["components"])
    assert [(item["name"], item["value"]) for item in status["facts"]] == [("controller.primary", True)]
    assert host.stop(signal.SIGINT) == 0
    assert host.processes() == []


@pytest.mark.parametrize("name", ALL)
def test_a_killed_component_is_replaced(host: Host, name: str) -> None:
    """Kill -9 of one component brings a new process of it at once, and touches no other."""
    host.up()
    before = host.pids()
    pid = before[name]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: host.pids()[name] not in {pid, None}, f"a new {name}")
    assert host.component(name)["restarts"] == 1
    host.wait_for(name, state="running", ready=True)
    others = {key: value for key, value in host.pids().items() if key != name}
    assert others == {key: value for key, value in before.items() if key != name}
    exits = [event for event in host.events() if event["event"] == "component.exited" and event["component"] == name]
    assert [event["how"] for event in exits] == ["killed by signal 9 (SIGKILL)"]


def test_components_outlive_the_agent_and_are_adopted(host: Host) -> None:
    """After kill -9 of the agent its successor has the very same processes in charge, and started none twice."""
    host.up()
    before = host.pids()
    host.kill_agent()
    assert sorted(filter(None, before.values())) == sorted(_mains(host))
    host.up()
    assert host.pids() == before
    assert sorted(filter(None, before.values())) == sorted(_mains(host))
    adopted = {event["component"] for event in host.events() if event["event"] == "component.adopted"}
    assert adopted == set(ALL)
    assert not [event for event in host.events() if event["event"] == "component.spawned"]


def test_an_adopted_component_that_dies_is_replaced(host: Host) -> None:
    """A process that is not the agent's child is watched all the same, and restarted when it ends."""
    host.up()
    host.kill_agent()
    host.up()
    pid = host.pids()["apiserver"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: host.pids()["apiserver"] not in {pid, None}, "a new apiserver")
    host.wait_for("apiserver", ready=True)


def test_what_died_while_no_agent_ran_is_started_again(host: Host) -> None:
    """A component that ended between two agents is gone, and only that one is started."""
    host.up()
    before = host.pids()
    pid = before["apiserver"]
    assert pid is not None
    host.kill_agent()
    os.kill(pid, signal.SIGKILL)
    host.up()
    after = host.pids()
    assert after.pop("apiserver") != before.pop("apiserver")
    assert after == before


def test_a_lost_runtime_record_loses_no_component(host: Host) -> None:
    """Without the record the processes are found by their markers: adopted, not started a second time."""
    host.up()
    before = host.pids()
    host.kill_agent()
    (host.run_dir / "runtime.json").unlink(missing_ok=True)  # it may not have been written yet
    host.up()
    # The scheduler's lease was in the record: without it nobody vouches for its term, and it is started anew.
    for name in ("controller", "worker", "apiserver"):
        assert host.pids()[name] == before[name]
    host.wait_for("scheduler", state="running", ready=True)
    assert len(_mains(host)) == len(ALL)


def test_a_second_agent_is_refused(host: Host) -> None:
    """Two agents never supervise in one runtime directory: the second names the first and ends."""
    host.up()
    result = subprocess.run(
        [str(host.base / "bin" / "xce-node-manager"), "run", *host.options(), f"--log-dir={host.log_dir}"],
        env=host.environment(),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert host.agent is not None
    assert result.returncode == 1
    assert f"another node manager (pid {host.agent.pid})" in result.stderr
    assert host.status()["node"]["ready"] is True


def test_a_second_agent_with_the_same_state_directory_is_refused(host: Host) -> None:
    """Two agents must not write one another's latches: the lock of the state directory names the first."""
    host.up()
    options = [option for option in host.options() if not option.startswith("--runtime-dir")]
    result = subprocess.run(
        [
            str(host.base / "bin" / "xce-node-manager"),
            "run",
            *options,
            f"--runtime-dir={host.base / 'other'}",
            f"--log-dir={host.log_dir}",
        ],
        env=host.environment(),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert host.agent is not None
    assert result.returncode == 1
    assert f"another node manager (pid {host.agent.pid})" in result.stderr
    assert "--state-dir" in result.stderr


def test_a_killed_worker_leaves_its_jobs_and_takes_them_back(host: Host) -> None:
    """Kill -9 of a worker kills no user's job; the new worker knows them."""
    host.up()
    host.reference("submit", host.name, "--seconds", "300", "--count", "2")
    host.wait_for("worker", jobs=2)
    jobs = _jobs(host)
    pid = host.pids()["worker"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: host.pids()["worker"] not in {pid, None}, "a new worker")
    host.wait_for("worker", ready=True, jobs=2)
    assert _jobs(host) == jobs


def test_a_worker_restart_by_an_operator_leaves_its_jobs(host: Host) -> None:
    """Restarting the worker stops its main process alone."""
    host.up()
    host.reference("submit", host.name, "--seconds", "300", "--count", "2")
    host.wait_for("worker", jobs=2)
    jobs, pid = _jobs(host), host.pids()["worker"]
    host.ctl("restart", "worker")
    wait_until(lambda: host.pids()["worker"] not in {pid, None}, "a new worker")
    host.wait_for("worker", ready=True, jobs=2)
    assert _jobs(host) == jobs


def test_an_agent_that_was_stopped_for_long_kills_nobody(make_host: Callable[..., Host]) -> None:
    """SIGSTOP of the agent beyond every deadline of a heartbeat: nobody is killed for a silence it did not hear."""
    host = make_host(lease_s=40.0)
    host.up()
    before = host.pids()
    assert host.agent is not None
    scheduler_lines = len(list(host.trace()))
    host.agent.send_signal(signal.SIGSTOP)
    try:
        # The components go on meanwhile: 4 s are more than three intervals of every one of them.
        wait_until(lambda: len(list(host.trace())) > scheduler_lines + 40, "4 s of the scheduler's life")
    finally:
        host.agent.send_signal(signal.SIGCONT)
    wait_until(lambda: any(event["event"] == "agent.stalled" for event in host.events()), "the stall is noticed")
    host.ctl("wait", "--for", "ready", "--timeout", "30s")
    assert host.pids() == before


def test_curl_reads_the_status(host: Host) -> None:
    """Any HTTP client gets the status and the explanation of every component from the socket."""
    host.up()
    result = subprocess.run(
        ["curl", "-sS", "--fail", "--unix-socket", str(host.socket), "http://localhost/v1/status"],
        capture_output=True,
        text=True,
        check=True,
        timeout=BOUND_S,
    )
    assert '"schema":1' in result.stdout.replace(" ", "")
    for name in ALL:
        text = host.ctl("why", name)
        assert name in text
        assert "running" in text


def test_the_log_of_a_component_is_in_its_file(host: Host) -> None:
    """Where there is no journal, each component's output goes to a file of its own."""
    host.up()
    assert sorted(path.name for path in host.log_dir.iterdir()) == [f"{name}.log" for name in sorted(ALL)]


def test_a_log_that_nobody_reads_does_not_touch_supervision(host: Host) -> None:
    """The pipe of the agent's log is full, then gone: components are replaced, and status says what was lost."""
    reading, writing = os.pipe()
    with contextlib.suppress(BlockingIOError):
        os.set_blocking(writing, False)
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    host.start(stderr=writing)
    os.close(writing)
    host.wait_until_ready()
    for gone in (False, True):
        if gone:
            os.close(reading)
        pid = host.pids()["apiserver"]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: host.pids()["apiserver"] not in {pid, None}, "a new apiserver")  # type: ignore[misc]
        host.wait_for("apiserver", ready=True)
    wait_until(lambda: any("could not be written" in text for text in host.status()["warnings"]), "it is said")
    assert host.stop() == 0


def test_the_runtime_directory_is_not_shared(make_host: Callable[..., Host], tmp_path: Path) -> None:
    """An agent refuses a runtime directory that others could write to, and says what to do."""
    host = make_host()
    host.run_dir.mkdir(mode=0o777)
    host.run_dir.chmod(0o777)
    host.start()
    assert host.agent is not None
    assert host.agent.wait(BOUND_S) == 1
    assert "chmod go-w" in host.tail()
    del tmp_path


def _mains(host: Host) -> list[int]:
    """Return the main processes of this host's components: their marker names their own pid."""
    found = []
    for pid in host.processes():
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"XCE_MAIN_PID={pid}".encode() in environ:
            found.append(pid)
    return found


def _jobs(host: Host) -> list[int]:
    return sorted(pid for pid in host.processes() if Path(f"/proc/{pid}/comm").read_text().strip() == "sleep")


def test_a_cleared_runtime_directory_is_made_anew(host: Host) -> None:
    """Whoever removes what an agent lives on finds it there again: asked, heard, locked and recorded as before."""
    host.up()
    before = host.pids()
    nonce = (host.run_dir / "nonce").read_text()
    shutil.rmtree(host.run_dir)
    wait_until(lambda: host.run("xce-nodectl", "status", ok=None).returncode in {0, 1}, "it answers again")
    wait_until((host.run_dir / "runtime.json").exists, "it has a record again")
    (event,) = [event for event in host.events() if event["event"] == "agent.runtime_dir_restored"]
    # A record that was to be written while the directory was gone is a write that failed, and is tried again.
    assert event["what"].replace("runtime.json, ", "") == "lock, nonce, heartbeat.sock, notify, status.sock"
    host.wait_until_ready()
    assert host.pids() == before
    assert (host.run_dir / "nonce").read_text() == nonce
    second = host.run("xce-node-manager", "run", *host.options(), f"--log-dir={host.log_dir}", ok=1)
    assert host.agent is not None
    assert f"another node manager (pid {host.agent.pid})" in second.stderr
    # A component that was started since is heard on the new sockets, and the next agent knows all of them.
    host.ctl("restart", "apiserver", "worker")
    host.wait_until_ready()
    host.ctl("stop", "scheduler")  # the way to its fuse went with the directory: the next agent could not rely on it
    host.wait_for("scheduler", state="stopped")
    before = host.pids()
    host.kill_agent()
    host.up()
    assert host.pids() == before


def test_what_stands_in_the_place_of_one_notify_socket_holds_nobody_else_up(host: Host) -> None:
    """The next agent takes charge all the same; it says what is in the way, and listens once that is gone."""
    host.up()
    before = host.pids()
    name = next(name for name, pid in before.items() if pid is not None)
    host.kill_agent()
    place = host.run_dir / "notify" / f"{name}.sock"
    place.unlink()
    place.write_text("not a socket")
    host.up()
    assert host.pids() == before
    wait_until(lambda: any(f"cannot bind {place}" in text for text in host.status()["warnings"]), "it says so")
    place.unlink()
    wait_until(place.is_socket, "it listens")
    wait_until(lambda: not any("cannot bind" in text for text in host.status()["warnings"]), "it says so no longer")


def test_a_directory_that_another_agent_took_is_left_to_it(host: Host) -> None:
    """Without its lock a second agent may have come in: the first says so, and takes nothing from it."""
    host.up()
    (host.run_dir / "lock").unlink()
    with (host.run_dir / "lock").open("w") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (host.run_dir / "heartbeat.sock").unlink()
        wait_until(lambda: any("cannot be restored" in text for text in host.status()["warnings"]), "it says so")
        (text,) = [text for text in host.status()["warnings"] if "cannot be restored" in text]
        assert "another node manager (pid 4711)" in text
        assert not (host.run_dir / "heartbeat.sock").exists()
    wait_until((host.run_dir / "heartbeat.sock").exists, "it is the only one again")
    assert not [text for text in host.status()["warnings"] if "cannot be restored" in text]
