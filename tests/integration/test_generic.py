"""Role files that have nothing to do with XCE: wrong commands, probes, trees, configuration changes, nginx."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.host import BOUND_S, Host, free_port, wait_until

Make = Callable[..., Host]


def role(**components: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return one role file `r`, run by whoever runs the agent, whose output goes to files."""
    body = {name: {"log": "file", **component} for name, component in components.items()}
    return {"r": {"role": "r", "user": "inherit", "components": body}}


def make_with(make_host: Make, **components: dict[str, Any]) -> Host:
    """Return a host with these components alone."""
    return make_host(roles=("r",), role_files=role(**components))


def test_a_wrong_command_backs_off_and_says_why_while_the_rest_runs(make_host: Make, place: Path) -> None:
    """Missing, not executable, not a program, in a missing directory: each is named, and the others run."""
    plain = place / "plain"
    plain.write_text("not a program")
    garbage = place / "garbage"
    garbage.write_bytes(b"\0\1\2\3")
    garbage.chmod(0o755)
    host = make_with(
        make_host,
        missing={"command": ["/nonexistent/program"]},
        unnamed={"command": ["no-such-program-anywhere"]},
        forbidden={"command": [str(plain)]},
        garbage={"command": [str(garbage)]},
        homeless={"command": ["/bin/sleep", "300"], "working_directory": "/nonexistent"},
        fine={"command": ["/bin/sleep", "300"]},
    )
    host.start()
    host.wait_for("fine", state="running", ready=True)
    for name, sentence in {
        "missing": "No such file or directory",
        "unnamed": "no-such-program-anywhere",
        "forbidden": "Permission denied",
        "garbage": "Exec format error",
        "homeless": "/nonexistent",
    }.items():
        found = host.wait_for(name, state="backoff", rule="backoff")
        assert sentence in found["reason"]
        assert found["next"]["what"] == "start"
    why = host.ctl("why", "missing")
    assert "No such file" in why


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs components as another user")
def test_components_run_as_their_user_and_an_unknown_user_backs_off(make_host: Make) -> None:
    """Root drops to the user that the role file names; a user that does not exist is the reason of the backoff."""
    host = make_with(
        make_host,
        nobody={"command": ["/bin/sleep", "300"], "user": "nobody"},
        ghost={"command": ["/bin/sleep", "300"], "user": "no-such-user-here"},
    )
    host.start()
    pid = host.wait_for("nobody", state="running")["pid"]
    uid = Path(f"/proc/{pid}").stat().st_uid
    assert uid != 0
    notify = (host.run_dir / "notify" / "nobody.sock").stat()
    assert (notify.st_uid, notify.st_mode & 0o777) == (uid, 0o600)
    assert "no-such-user-here" in host.wait_for("ghost", state="backoff")["reason"]


def test_five_crashes_back_off_and_a_manual_start_does_not_wait(make_host: Make) -> None:
    """A component that dies at birth is started ever more slowly, never given up, and at once when asked for."""
    host = make_with(make_host, dies={"command": ["/bin/false"], "restart": {"cap_s": 3600, "factor": 10}})
    host.start()
    wait_until(lambda: (found := host.component("dies"))["restarts"] >= 3 and found["state"] == "backoff", "backoff")
    restarts = host.component("dies")["restarts"]
    host.ctl("start", "dies")
    wait_until(lambda: host.component("dies")["restarts"] > restarts, "started by hand")


def _keeper(place: Path) -> dict[str, Any]:
    """Return a component whose grandchild, in a session of its own, keeps a lock; a second one at a time fails.

    Each grandchild that has the lock says so in the file `held`: whoever tries the lock takes it, for a moment.
    """
    lock = place / "lock"
    child = f"setsid flock -n {lock} /bin/sh -c 'echo $$ >> {place}/held; exec sleep 300' & wait $!"
    return {"command": ["/bin/sh", "-c", f"flock -n {lock} true || exit 7; {child}"]}


def _keepers(place: Path) -> int:
    """How many have had the lock so far."""
    held = place / "held"
    return len(held.read_text().splitlines()) if held.exists() else 0


def test_a_grandchild_that_hides_is_cleared_before_the_respawn(make_host: Make, place: Path) -> None:
    """A grandchild in a session of its own keeps a lock; it is gone before the next run begins."""
    host = make_with(make_host, keeper=_keeper(place))
    host.start()
    pid = host.wait_for("keeper", state="running")["pid"]
    wait_until(lambda: _keepers(place) == 1, "the grandchild has the lock")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: _keepers(place) == 2, "a new run has the lock")
    exits = [event["how"] for event in host.events() if event["event"] == "component.exited"]
    assert exits == ["killed by signal 9 (SIGKILL)"]


def test_what_a_dead_component_left_is_cleared_by_the_next_agent(make_host: Make, place: Path) -> None:
    """The main process dies while no agent runs, and its grandchild keeps the lock: cleared before the start."""
    host = make_with(make_host, keeper=_keeper(place))
    host.start()
    pid = host.wait_for("keeper", state="running")["pid"]
    wait_until(lambda: _keepers(place) == 1, "the grandchild has the lock")
    host.kill_agent()
    os.kill(pid, signal.SIGKILL)
    assert _locked(place / "lock")
    host.start()
    found = host.wait_for("keeper", state="running", ready=True)
    assert found["generation"] > 1
    wait_until(lambda: _keepers(place) == 2, "the new run has the lock")
    assert [event for event in host.events() if event["event"] == "component.exited"] == []


def test_what_is_ambiguous_is_neither_signalled_nor_started(make_host: Make) -> None:
    """The record is lost and two processes claim to be the component: an operator's start waits until both are gone."""
    host = make_with(make_host, sleeper={"command": ["/bin/sleep", "300"]})
    host.start()
    pid = host.wait_for("sleeper", state="running")["pid"]
    environ = Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
    variables = {key: value for key, _, value in (item.partition(b"=") for item in environ)}
    host.kill_agent()
    (host.run_dir / "runtime.json").unlink(missing_ok=True)  # it may not have been written yet
    with subprocess.Popen(
        ["/bin/sh", "-c", "export XCE_MAIN_PID=$$; exec sleep 300"], env=variables, start_new_session=True
    ) as pretender:
        wait_until(lambda: f"XCE_MAIN_PID={pretender.pid}".encode() in _environ(pretender.pid), "it pretends")
        host.start()
        found = host.wait_for("sleeper", state="exited", rule="exit-hold")
        assert f"{min(pid, pretender.pid)}, {max(pid, pretender.pid)}" in found["reason"]
        assert str(pid) in host.ctl("start", "sleeper", ok=1)
        pretender.kill()
        pretender.wait()
        assert str(pid) in host.ctl("start", "sleeper", ok=1)
        assert Path(f"/proc/{pid}").exists()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not _environ(pid), "it is gone")
    host.ctl("start", "sleeper")
    host.wait_for("sleeper", state="running", ready=True)


def test_limits_that_nothing_enforces_are_said(make_host: Make) -> None:
    """Without a delegated cgroup a memory limit does not hold: status warns instead of keeping quiet."""
    limited = {"command": ["/bin/sleep", "300"], "limits": {"memory_max": "1G", "nofile": 64}}
    host = make_with(make_host, limited=limited)
    host.start()
    pid = host.wait_for("limited", state="running")["pid"]
    assert any("limited: memory_max is not enforced" in text for text in host.status()["warnings"])
    assert "Max open files            64" in Path(f"/proc/{pid}/limits").read_text()


def test_sigterm_ignored_is_answered_with_sigkill_in_time(make_host: Make) -> None:
    """What ignores its stop signal is killed when the time is over, and the stop is complete."""
    deaf = {"command": ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"], "stop": {"timeout_s": 0.3}}
    host = make_with(make_host, deaf=deaf)
    host.start()
    host.wait_for("deaf", state="running")
    host.ctl("stop", "deaf")
    assert "SIGKILL" in host.wait_for("deaf", state="stopped")["last_exit"]


def test_a_hung_exec_probe_dies_with_its_tree_and_the_component_is_restarted(make_host: Make, place: Path) -> None:
    """A liveness probe that hangs counts as failed; its processes do not pile up."""
    marker = place / "probes"
    probe = {"exec": {"command": ["/bin/sh", "-c", f"echo $$ >> {marker}; sleep 300"]}}
    timing = {"period_s": 0.2, "timeout_s": 0.2, "failure_threshold": 2}
    host = make_with(make_host, hung={"command": ["/bin/sleep", "300"], "probes": {"liveness": probe | timing}})
    host.start()
    host.wait_for("hung", state="running")
    wait_until(lambda: host.component("hung")["restarts"] >= 1, "restarted for its liveness")
    failed = [event for event in host.events() if event["event"] == "component.probe_failed"]
    assert failed[0]["probe"] == "liveness"
    host.ctl("stop", "hung")
    host.wait_for("hung", state="stopped")
    pids = [int(line) for line in marker.read_text().split()]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "no probe is left")


def test_an_unmodified_notify_daemon_becomes_ready(make_host: Make) -> None:
    """READY=1 by sd_notify is enough; the agent's own NOTIFY_SOCKET is never seen by a component."""
    program = (
        "import os,socket,time;s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM);"
        "s.connect(os.environ['NOTIFY_SOCKET']);s.send(b'READY=1\\nSTATUS=serving');time.sleep(300)"
    )
    host = make_with(
        make_host,
        daemon={
            "command": [shutil.which("python3") or "python3", "-c", program],
            "probes": {"startup": {"notify": {}}},
        },
    )
    host.start()
    found = host.wait_for("daemon", state="running", ready=True, status_text="serving")
    environ = Path(f"/proc/{found['pid']}/environ").read_bytes()
    assert f"NOTIFY_SOCKET={host.run_dir}/notify/daemon.sock".encode() in environ


def test_a_new_configuration_changes_what_it_must_and_nothing_else(make_host: Make) -> None:
    """Reload: an added component starts, a removed one stops, a changed one restarts, the others are untouched."""
    sleeper = {"command": ["/bin/sleep", "300"]}
    host = make_with(make_host, kept=sleeper, changed=sleeper, removed=sleeper)
    host.start()
    for name in ("kept", "changed", "removed"):
        host.wait_for(name, state="running")
    before = host.pids()
    body = role(kept=sleeper, changed={"command": ["/bin/sleep", "301"]}, added=sleeper)["r"]
    import yaml

    (host.roles_dir / "r.yaml").write_text(yaml.safe_dump(body))
    answer = host.ctl("reload")
    assert "added: added" in answer
    host.wait_for("added", state="running")
    wait_until(lambda: set(host.pids()) == {"kept", "changed", "added"}, "the removed one is gone")
    wait_until(lambda: host.pids()["changed"] not in {before["changed"], None}, "the changed one was restarted")
    assert host.pids()["kept"] == before["kept"]
    (host.roles_dir / "r.yaml").write_text("role: r\ncomponents: nonsense\n")
    refused = host.ctl("reload", ok=1)
    assert "r.yaml" in refused
    assert host.status()["node"]["config_error"]
    assert host.pids()["kept"] == before["kept"]


def test_a_component_removed_while_no_agent_ran_is_stopped(make_host: Make) -> None:
    """What an earlier agent started and the configuration no longer has is taken into charge, and stopped."""
    sleeper = {"command": ["/bin/sleep", "300"]}
    host = make_with(make_host, kept=sleeper, removed=sleeper)
    host.start()
    host.wait_for("kept", state="running")
    pid = host.wait_for("removed", state="running")["pid"]
    kept = host.pids()["kept"]
    host.kill_agent()
    import yaml

    (host.roles_dir / "r.yaml").write_text(yaml.safe_dump(role(kept=sleeper)["r"]))
    host.start()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() and set(host.pids()) == {"kept"}, "it is gone")
    assert host.pids()["kept"] == kept


def test_a_foreground_run_with_a_wrong_configuration_exits_78(host: Host) -> None:
    """In the foreground everything that is wrong is said at once, with the file and the line."""
    host.write_config("version: 1\nroles: [manger]\nroles: [worker]\n")
    result = host.run("xce-node-manager", "run", *host.options(), ok=78)
    assert f"{host.config}:3" in result.stderr
    assert "given twice" in result.stderr
    assert "did you mean manager?" in result.stderr


def test_under_systemd_the_agent_waits_for_its_configuration(make_host: Make, place: Path) -> None:
    """Absent, half-written, then right: it waits, says why, and takes the file up by itself."""
    host = make_host()
    host.config.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.settimeout(BOUND_S)
    listener.bind(str(place / "systemd.sock"))
    try:
        host.start(NOTIFY_SOCKET=str(place / "systemd.sock"))
        while b"READY=1" not in listener.recv(4096):
            pass  # it has other things to say as well
        wait_until(host.socket.exists, "the status socket is there")
        wait_until(lambda: host.status()["node"]["state"] == "waiting-config", "it waits")
        wait_until(lambda: str(host.config) in host.status()["node"]["config_error"], "it names the file")
        host.write_config("version: 1\nroles: [worker\n")
        wait_until(lambda: f"{host.config}:" in host.status()["node"]["config_error"], "it names the line")
        host.write_config()
        host.wait_until_ready()
        # Gone again, and the agent dies: the last good copy is in force, and says so.
        host.config.unlink()
        before = host.pids()
        host.kill_agent()
        host.start(NOTIFY_SOCKET=str(place / "systemd.sock"))
        host.wait_until_ready()
        assert host.pids() == before
        assert host.status()["node"]["config_error"]
    finally:
        listener.close()


def test_garbage_on_the_heartbeat_socket_hurts_nobody(host: Host) -> None:
    """A stranger's garbage is counted and shown; components and status go on."""
    host.up()
    before = host.pids()
    for _ in range(5):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(host.run_dir / "heartbeat.sock"))
            with contextlib.suppress(BrokenPipeError):  # the agent has seen who it is and closed
                sock.sendall(b"\xff\xfe garbage")
    wait_until(lambda: any("stranger" in text for text in host.status()["warnings"]), "it is shown")
    assert host.pids() == before
    assert host.status()["node"]["ready"] is True


@pytest.mark.skipif(shutil.which("nginx", path="/usr/sbin:/usr/bin") is None, reason="nginx is not installed")
def test_a_real_nginx_is_checked_started_and_reloaded(make_host: Make, place: Path) -> None:
    """The reverse proxy: a wrong nginx.conf is named before the start; a right one serves; HUP takes up a new one."""
    port = free_port()
    home = place / "h1"  # the host's: nginx writes over its environment, and is known by its command afterwards
    conf = home / "nginx.conf"
    flags = ["-e", "stderr", "-p", str(home), "-c", str(conf)]
    component = {
        "command": ["nginx", "-g", "daemon off;", *flags],
        "pre_start": {"command": ["nginx", "-t", "-q", *flags]},
        "reload": {"signal": "HUP"},
        "stop": {"signal": "QUIT", "timeout_s": 5},
        "probes": {"readiness": {"http": {"port": port}, "period_s": 0.2}},
    }
    host = make_with(make_host, proxy=component)
    conf.write_text("nonsense;\n")
    host.start()
    found = host.wait_for("proxy", state="backoff")
    assert "nonsense" in found["reason"]

    def write(text: str) -> None:
        conf.write_text(
            f"pid {home}/nginx.pid;\nevents {{}}\nhttp {{\n access_log off;\n client_body_temp_path {home}/t;\n"
            f" proxy_temp_path {home}/p;\n fastcgi_temp_path {home}/f;\n uwsgi_temp_path {home}/u;\n"
            f" scgi_temp_path {home}/s;\n"
            f" server {{ listen 127.0.0.1:{port}; location / {{ return 200 '{text}'; }} }}\n}}\n"
        )

    write("one")
    host.ctl("start", "proxy")
    pid = host.wait_for("proxy", state="running", ready=True)["pid"]
    assert _get(port) == "one"
    write("two")
    host.ctl("reload", "proxy")
    wait_until(lambda: _get(port) == "two", "the new configuration serves")
    assert host.component("proxy")["pid"] == pid


def _get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=BOUND_S) as answer:
        body: bytes = answer.read()
        return body.decode()


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _locked(lock: Path) -> bool:
    import fcntl

    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
