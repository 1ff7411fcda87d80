"""Components that fall silent in each way there is, under a real agent: what is spared, what is restarted, and why."""

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.host import Host, wait_until
from tests.unit.runtime.hung import silent_directory
from tests.unit.runtime.specimens import frozen_group

Make = Callable[..., Host]

BEATER = """
import os, socket, sys, threading, time
mode = sys.argv[1]
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect(os.environ["XCE_HEARTBEAT_SOCKET"])
link.send(f"XCE_HEARTBEAT=1\\nCOMPONENT={os.environ['XCE_COMPONENT']}\\nINTERVAL_MS={sys.argv[2]}\\n".encode())
print("the last words of it", flush=True)
while not os.path.exists(mode):
    try:
        link.send(b"BEAT=1\\nREADY=1\\nPROGRESS=7\\nSTATUS=beats\\n")
    except OSError:
        pass  # no agent runs
    time.sleep(0.05)
what = open(mode).read()
os.unlink(mode)
if what == "busy":
    while True: pass
lock = threading.Lock()
lock.acquire()
lock.acquire()
"""
"""It beats until the file that its first argument names exists, and then does what stands in it: the next one beats."""


def beater(place: Path, interval_ms: int, **fields: Any) -> dict[str, dict[str, Any]]:
    component = {
        "command": ["/usr/bin/env", "python3", "-S", "-c", BEATER, str(place / "mode"), str(interval_ms)],
        "log": "file",
        "environment": {"SECRET": "in-the-environment"},
        "probes": {"liveness": {"heartbeat": {}, **fields.pop("liveness", {})}},
        "stop": {"timeout_s": 1, **fields.pop("stop", {})},
        **fields,
    }
    return {"r": {"role": "r", "user": "inherit", "components": {"web": component}}}


def begin(make_host: Make, place: Path, *, interval_ms: int = 200, **fields: Any) -> tuple[Host, int]:
    """A host whose one component has begun to beat; its pid."""
    host = make_host(roles=("r",), role_files=beater(place, interval_ms, **fields))
    host.start()
    return host, host.wait_for("web", state="running", verdict="ok", status_text="beats")["pid"]


def fall(place: Path, mode: str) -> None:
    temporary = place / "mode.new"
    temporary.write_text(mode)
    temporary.rename(place / "mode")


def names(host: Host) -> list[str]:
    return [event["event"] for event in host.events()]


@pytest.mark.parametrize(("mode", "verdicts"), [("wait", {"deadlocked", "slow"}), ("busy", {"slow"})])
def test_a_silent_component_leaves_evidence_and_is_restarted(
    make_host: Make, place: Path, mode: str, verdicts: set[str]
) -> None:
    """Stuck or busy without a beat: a private file says what it did before it was killed, and events name the file.

    A stuck one is slow where a busy machine let it run between the looks.
    """
    host, pid = begin(make_host, place)
    fall(place, mode)
    evidence = wait_until(
        lambda: [event for event in host.events() if event["event"] == "component.evidence"], "evidence"
    )[0]
    wait_until(lambda: host.component("web")["pid"] not in {pid, None}, "a new process")
    assert evidence["verdict"] in verdicts
    path = Path(evidence["path"])
    assert path.parent == host.state_dir / "evidence"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    for part in (
        f"pid {pid}",
        "silent for 3 intervals of 200 ms",
        "PROGRESS: 7",
        "== wchan",
        "== stack",
        "the last words",
    ):
        assert part in text
    assert "in-the-environment" not in text
    assert "link.connect" not in text
    assert f"; {evidence['verdict']}: " in host.component("web")["last_exit"]
    events = names(host)
    assert events.index("component.verdict_changed") < events.index("component.evidence")
    assert str(path) in host.ctl("why", "web")


def test_a_stopped_component_is_reported_and_lives_on(make_host: Make, place: Path) -> None:
    """SIGSTOP: not ready, frozen, and the same process when it goes on, without a signal of ours."""
    host, pid = begin(make_host, place, interval_ms=1000)
    os.kill(pid, signal.SIGSTOP)
    host.wait_for("web", verdict="frozen", ready=False, state="running")
    wait_until(lambda: "component.probe_failed" in names(host), "it is silent")
    wait_until(lambda: "frozen: stopped by a signal" in host.component("web")["reason"], "the reason names it")
    os.kill(pid, signal.SIGCONT)
    found = host.wait_for("web", verdict="ok", ready=True)
    assert (found["pid"], found["restarts"]) == (pid, 0)
    assert "component.evidence" not in names(host)


def test_a_component_in_a_frozen_cgroup_is_reported_and_lives_on(make_host: Make, place: Path) -> None:
    """A frozen cgroup: frozen, not killed."""
    host, pid = begin(make_host, place)
    with frozen_group(pid):
        host.wait_for("web", verdict="frozen", ready=False, state="running", pid=pid)
        wait_until(lambda: "its cgroup is frozen" in host.component("web")["reason"], "the reason names it")
        assert "component.evidence" not in names(host)


def test_what_only_reports_is_not_restarted_for_silence(make_host: Make, place: Path) -> None:
    """`on_failure: report`: the verdict is shown, and the process is left alone."""
    host, pid = begin(make_host, place, liveness={"on_failure": "report"})
    fall(place, "wait")
    host.wait_for("web", verdict="deadlocked", ready=False, state="running", pid=pid)
    assert "component.evidence" not in names(host)


def test_a_core_can_come_first(make_host: Make, place: Path) -> None:
    """`abort_first`: what hangs is ended by SIGABRT."""
    host, _pid = begin(make_host, place, stop={"abort_first": True, "timeout_s": 30})
    fall(place, "wait")
    wait_until(lambda: "component.exited" in names(host), "its end")
    exits = [event["how"] for event in host.events() if event["event"] == "component.exited"]
    assert exits[0].startswith("killed by signal 6 (SIGABRT)")


def test_a_state_directory_that_cannot_be_written_does_not_save_a_wedge(make_host: Make, place: Path) -> None:
    """Without room for evidence the restart comes all the same, and the event says why there is none."""
    host, pid = begin(make_host, place)
    (host.state_dir / "evidence").write_text("no directory")
    fall(place, "wait")
    wait_until(lambda: "component.exited" in names(host), "its end")
    event = next(event for event in host.events() if event["event"] == "component.evidence")
    assert event["path"] is None
    assert event["detail"].startswith("cannot write it: ")
    wait_until(lambda: host.component("web")["pid"] not in {pid, None}, "a new process")


def test_a_component_that_hangs_while_no_agent_runs_is_found_by_the_next(make_host: Make, place: Path) -> None:
    """What hung between two agents never says hello to the new one: it is silent by what it promised to the old."""
    host, pid = begin(make_host, place)
    host.wait_for_record('"interval_ns": 200000000')
    host.kill_agent()
    fall(place, "wait")
    host.start()
    assert host.component("web")["pid"] == pid
    wait_until(lambda: "component.exited" in names(host), "its end")
    assert "component.evidence" in names(host)
    wait_until(lambda: host.component("web")["pid"] not in {pid, None}, "a new process")


LOOKER = """
import os, sys, time
try:
    os.stat(sys.argv[1])
except OSError:
    pass
time.sleep(1000)
"""


@pytest.mark.parametrize("scope", ["tree", "process"])
def test_what_hangs_with_sigkill_sent_is_not_running_for_the_next_agent(
    make_host: Make, place: Path, scope: str
) -> None:
    """It is as good as dead: shown so, never started over, and started as soon as it is gone."""
    (place / "silent").mkdir()
    command = ["/usr/bin/env", "python3", "-S", "-c", LOOKER, str(place / "silent" / "x")]
    component = {"command": command, "stop": {"kill_scope": scope}}
    role = {"r": {"role": "r", "user": "inherit", "components": {"web": component}}}
    host = make_host(roles=("r",), role_files=role)
    with silent_directory(place / "silent") as silent:
        host.start()
        pid = host.wait_for("web", state="running", ready=True)["pid"]
        silent.take()
        host.kill_agent()
        os.kill(pid, signal.SIGKILL)
        host.start()
        found = host.wait_for("web", state="killing")
        assert (found["pid"], found["ready"]) == (pid, False)
        assert "still there" in found["reason"]
        assert "still there" in host.ctl("why", "web")
        silent.fail()
        found = host.wait_for("web", state="running", ready=True)
    assert found["pid"] != pid
    assert names(host).count("component.spawned") == 1
