"""What an agent that is killed leaves beside its components: probes, checks and commands that hang.

With a delegated cgroup and without.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.host import Host, wait_until
from tests.integration.leasing import entering
from tests.unit.runtime.cgroups import delegated, needs_cgroups
from tests.unit.runtime.rig import alive

Make = Callable[..., Host]
HANGS = "echo $$ >> {0}; setsid sh -c 'echo $$ >> {0}; exec sleep 1000' & sleep 1000 & echo $! >> {0}; wait"
"""Hangs, and so do a child of it in its session and one in another; each writes its pid."""
PROCESSES = 3
LEAVES = "sleep 1000 & echo $! >> {0}"
"""Ends at once, and leaves a child in its session."""


@pytest.fixture(params=["session", pytest.param("cgroup", marks=needs_cgroups)])
def make(request: pytest.FixtureRequest, make_host: Make) -> Iterator[Make]:
    """Make a host with these components, whose agent has a delegated group or none."""
    group: Path | None = None

    def made(**components: dict[str, Any]) -> Host:
        quiet = {"command": ["/bin/sleep", "1000"], "stop": {"timeout_s": 0.5, "kill_timeout_s": 0.5}}
        body = {name: quiet | fields for name, fields in components.items()}
        files = {"test": {"role": "test", "user": "inherit", "components": body}}
        host = make_host(roles=("test",), role_files=files)
        if group is not None:
            entering(group, host.base / "bin" / "xce-node-manager")
        return host

    if request.param == "session":
        yield made
    else:
        with delegated() as group:
            yield made


def command(script: str, path: Path) -> dict[str, Any]:
    """A command of a role that nothing ends in time."""
    return {"command": ["/bin/sh", "-c", script.format(path)], "timeout_s": 900}


def probe(script: str, path: Path) -> dict[str, Any]:
    """A liveness probe that runs it."""
    words = command(script, path)
    return {"liveness": {"exec": {"command": words["command"]}, "timeout_s": words["timeout_s"], "period_s": 0.2}}


def written(path: Path, count: int) -> list[int]:
    """The pids in a file, once there are so many."""
    wait_until(lambda: path.exists() and path.read_text().count("\n") >= count, f"{path.name} has begun")
    return [int(line) for line in path.read_text().split()]


def test_what_a_killed_agent_ran_beside_its_components_is_ended(make: Make, place: Path) -> None:
    """The next agent ends hanging probes, checks and commands with their trees; a job with their environment lives."""
    files = [place / name for name in ("probed", "checked", "reloaded", "drained")]
    host = make(
        probed={"probes": probe(HANGS, files[0])},
        checked={"pre_start": command(HANGS, files[1])},
        reloaded={"reload": command(HANGS, files[2])},
        drained={"drain": command(HANGS, files[3])},
    )
    host.start()
    mains = {name: host.wait_for(name, state="running")["pid"] for name in ("probed", "reloaded", "drained")}
    host.ctl("reload", "reloaded")
    host.ctl("drain")
    pids = [pid for path in files for pid in written(path, PROCESSES)]
    assert len(files) * PROCESSES == len(pids)
    environ = dict(entry.split(b"=", 1) for entry in _environ(pids[0]).split(b"\0") if entry)
    with subprocess.Popen(["/bin/sleep", "1000"], env=environ, start_new_session=True) as job:
        try:
            host.kill_agent()
            assert all(map(alive, pids))
            host.start()
            wait_until(lambda: not any(map(alive, pids)), "all of them are dead")
            assert written(files[3], PROCESSES + 1), "the component is told to drain once more"
            found = host.pids()
            assert mains == {name: found[name] for name in mains}
            assert job.poll() is None
        finally:
            job.kill()


def test_what_a_probe_left_is_ended_and_what_a_command_left_stays(make: Make, place: Path) -> None:
    """Of a probe that died after its agent nothing stays; what a reload command started before it ended does."""
    probed, reloaded = place / "probed", place / "reloaded"
    host = make(probed={"probes": probe(HANGS, probed)}, reloaded={"reload": command(LEAVES, reloaded)})
    host.start()
    host.wait_for("reloaded", state="running")
    host.ctl("reload", "reloaded")
    (stays,) = written(reloaded, 1)
    wait_until(lambda: any(event["event"] == "component.helper_done" for event in host.events()), "it has ended")
    leader, *_ = written(probed, PROCESSES)
    (in_session,) = [pid for pid in written(probed, PROCESSES)[1:] if os.getsid(pid) == leader]
    host.kill_agent()
    os.kill(leader, signal.SIGKILL)
    wait_until(lambda: not alive(leader), "the probe is dead")
    assert alive(in_session)
    host.start()
    wait_until(lambda: not alive(in_session), "what it left is dead")
    assert alive(stays)


def test_what_a_replaced_agent_could_not_kill_of_its_probes_is_ended(make: Make, place: Path) -> None:
    """A probe is killed at one look when the agent is replaced; what it was just starting is the successor's to end."""
    probed, escaped = place / "probed", place / "escaped"
    host = make(probed={"probes": probe(HANGS, probed)})
    host.start()
    environ = dict(entry.split(b"=", 1) for entry in _environ(written(probed, PROCESSES)[0]).split(b"\0") if entry)
    # Nobody's child, in the session that its markers name, as what has just lost its parent to SIGKILL.
    script = f"export XCE_HELPER_PID=$$; sh -c 'sleep 1000 & echo $! >> {escaped}'; exec sleep 0"
    subprocess.run(["/bin/sh", "-c", script], env=environ, start_new_session=True, check=True)
    (left,) = written(escaped, 1)
    assert host.component("probed")["pid"] is not None
    assert alive(left)
    host.ctl("reexec")
    wait_until(lambda: not alive(left), "it is dead")
    assert written(probed, PROCESSES + 1), "the component is probed anew"


def _environ(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
