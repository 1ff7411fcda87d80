"""`reexec`: the running program is replaced by the installed one, in the same process, and nothing else happens.

A version is a directory with its own `xce-node-manager`; a symlink names the installed one, as a package does it. A
version of a test is this program with a few lines of its own before it, that name it or break it.
"""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from node_manager.reference.clock import boottime_ns
from node_manager.runtime.procfs import ProcFs
from tests.integration.host import BOUND_S, Host, wait_until
from tests.integration.test_generic import make_with
from tests.unit.runtime.hung import hung_directory
from tests.unit.runtime.rig import alive

Make = Callable[..., Host]

NAMED = "import node_manager\nnode_manager.__version__ = {name!r}\n"
SUCCEEDS = "import os, sys\nif 'XCE_NODE_MANAGER_HANDOVER' in os.environ:\n    {action}\n"
"""Something that a version does when it follows another, before anything else."""


def version(host: Host, name: str, prologue: str = "", *, installed: bool = True) -> Path:
    """Make a version of the program; `installed`: it is what a re-exec finds."""
    link = host.base / "bin" / "xce-node-manager"
    shebang, _, rest = (host.base / "bin" / "xce-nodectl").read_text().partition("\n")
    path = host.base / "versions" / name / "xce-node-manager"
    path.parent.mkdir(parents=True, exist_ok=True)
    head, _, tail = rest.replace("node_manager.cli.nodectl", "node_manager.cli.daemon").partition("from ")
    path.write_text(f"{shebang}\n{head}{NAMED.format(name=name)}{prologue}from {tail}")
    path.chmod(0o755)
    if installed:
        link.unlink(missing_ok=True)
        link.symlink_to(path)
    return path


def upgrade(host: Host, **wanted: object) -> dict[str, Any]:
    """Ask for the re-exec and return how it went, as status has it."""
    host.ctl("reexec", ok=None)
    found: dict[str, Any] = host.status()["node"]["reexec"]
    for key, value in wanted.items():
        assert value == found[key], (found, host.tail())
    return found


def agent_pid(host: Host) -> int:
    assert host.agent is not None
    return host.agent.pid


def names(host: Host, *, after: int = 0) -> list[str]:
    """Return what happened, without what the commands and the re-exec themselves leave."""
    return [
        event["event"]
        for event in host.events()
        if event["seq"] > after and event["event"].partition(".")[0] not in {"command", "agent"}
    ]


def test_everything_goes_on(host: Host) -> None:
    """Another version takes over: same pid, same processes, still ready, and to components nothing was done."""
    version(host, "1.0")
    host.up()
    before, last = host.pids(), host.events()[-1]["seq"]
    version(host, "2.0")
    assert host.ctl("reexec") == "version 2.0 has taken over from 1.0\n"
    status = host.status()
    assert (agent_pid(host), "2.0") == (status["node"]["agent_pid"], status["node"]["agent_version"])
    if not lease_ended(host, after=last):
        assert status["node"]["ready"] is True
        assert [(item["name"], item["value"]) for item in status["facts"]] == [("controller.primary", True)]
    untouched(host, before, last)
    # Leases are renewed and probes go on: what was ready stays so for longer than any of them lasts.
    wait_until(lambda: _lease_renewed(host, status), "the lease is renewed")
    untouched(host, before, last)
    assert host.stop() == 0
    assert host.processes() == []


def test_one_that_takes_longer_than_a_lease_costs_what_depends_on_it(make_host: Make, place: Path) -> None:
    """No time that the agent was away is given back to a lease: the fuse kills, and the history says why."""
    host = make_host(lease_s=4.0)
    version(host, "1.0")
    host.up()
    before, last = host.pids(), host.events()[-1]["seq"]
    scheduler = before.pop("scheduler")
    assert scheduler is not None
    with between(host, place):
        wait_until(lambda: not alive(scheduler), "its fuse has killed it")
    host.wait_for("scheduler", state="running")
    assert lease_ended(host, after=last)
    after = host.pids()
    assert after.pop("scheduler") != scheduler
    assert before == after


def untouched(host: Host, before: dict[str, int | None], last: int) -> None:
    """Check that nothing was done to a component since that event.

    But on a machine so busy that the replacement takes longer than the lease, the scheduler was ended with it.
    """
    ended = {"scheduler"} if lease_ended(host, after=last) else set()
    found = host.pids()
    assert {name: pid for name, pid in before.items() if name not in ended} == {
        name: pid for name, pid in found.items() if name not in ended
    }
    others = [event for event in host.events() if event["seq"] > last and event.get("component") not in ended]
    assert [event for event in others if event["event"].partition(".")[0] not in {"command", "agent"}] == []


def lease_ended(host: Host, *, after: int) -> bool:
    """Whether the scheduler was stopped because its lease was not renewed in time."""
    return any(
        event["event"] == "component.state_changed"
        and event["component"] == "scheduler"
        and "was not renewed in time" in (event.get("reason") or "")
        for event in host.events()
        if event["seq"] > after
    )


def _lease_renewed(host: Host, before: dict[str, Any]) -> bool:
    return bool(host.status()["facts"][0]["valid_until_ns"] > before["facts"][0]["valid_until_ns"])


def test_the_history_goes_on(host: Host) -> None:
    """Every event keeps its number, the next ones follow, and the history says what replaced what."""
    version(host, "1.0")
    host.up()
    before = host.events()
    version(host, "2.0")
    upgrade(host, ok=True, count=1)
    after = host.events()
    assert before == after[: len(before)]
    assert list(range(1, len(after) + 1)) == [event["seq"] for event in after]
    assert [(event["old"], event["new"]) for event in after if event["event"] == "agent.replaced"] == [("1.0", "2.0")]


def test_one_after_another(make_host: Make) -> None:
    """A second re-exec is as good as the first; also where the program was replaced in its own place."""
    host = make_with(make_host, one={"command": ["/bin/sleep", "300"]})
    version(host, "1.0")
    host.start()
    host.wait_for("one", state="running")
    before = host.pids()
    version(host, "1.0", "import node_manager; node_manager.__version__ = '1.1'\n")
    upgrade(host, ok=True, count=1, new="1.1")
    version(host, "3.0")
    upgrade(host, ok=True, count=2, old="1.1", new="3.0")
    assert before == host.pids()


@contextmanager
def between(host: Host, place: Path) -> Iterator[None]:
    """Hold the next version between exec and its first line, for the time of the block."""
    gate = place / "gate"
    os.mkfifo(gate)
    version(host, "2.0", SUCCEEDS.format(action=f"open({str(gate)!r}).read()"))
    with subprocess.Popen(
        [str(host.base / "bin" / "xce-nodectl"), "reexec"], env=host.environment(), stdout=subprocess.DEVNULL
    ) as command:
        with gate.open("w"):  # opened when the successor reads
            yield
        assert command.wait(BOUND_S) == 0


def test_what_happens_in_between_is_not_lost(make_host: Make, place: Path) -> None:
    """A component that ends while no program listens has its real status; queries wait; a signal is not forgotten."""
    host = make_with(
        make_host,
        quits={"command": ["/bin/sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.05; done"]},
        stays={"command": ["/bin/sleep", "300"]},
    )
    version(host, "1.0")
    host.start()
    for name in ("quits", "stays"):
        host.wait_for(name, state="running")
    pids = host.pids()
    assert pids["quits"] is not None
    with between(host, place):
        os.kill(pids["quits"], signal.SIGTERM)
        os.kill(agent_pid(host), signal.SIGHUP)
        query = subprocess.Popen(
            [str(host.base / "bin" / "xce-nodectl"), "status", "--json"],
            env=host.environment(),
            stdout=subprocess.PIPE,
        )
        wait_until(lambda: Path(f"/proc/{pids['quits']}/stat").read_text().split()[2] == "Z", "it has ended")
        assert query.poll() is None
    answer = json.loads(query.communicate(timeout=BOUND_S)[0])
    assert answer["node"]["agent_version"] == "2.0"
    wait_until(lambda: host.pids()["quits"] not in {pids["quits"], None}, "a new run")
    exits = [event["how"] for event in host.events() if event["event"] == "component.exited"]
    assert exits == ["exited with status 7"]
    wait_until(lambda: names(host).count("config.loaded") == 2, "SIGHUP has come through")
    assert pids["stays"] == host.pids()["stays"]


def test_what_a_component_says_in_between_is_heard(make_host: Make, place: Path) -> None:
    """A datagram that waits in a notify socket is the successor's to read."""
    notify = (
        "import os, socket, sys, time; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "s.sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])\ntime.sleep(300)\n"
    )
    word = place / "word"
    host = make_with(
        make_host,
        late={
            "command": ["/usr/bin/env", "python3", "-I", "-c", notify, str(word)],
            "probes": {"readiness": {"notify": {}}},
        },
    )
    version(host, "1.0")
    host.start()
    host.wait_for("late", state="running", ready=False)
    with between(host, place):
        word.touch()
    host.wait_for("late", ready=True, generation=1)


def test_a_stop_under_way_goes_on(make_host: Make, place: Path) -> None:
    """The stop signal is not sent again; SIGKILL comes when the first program would have sent it.

    Or later, by no more than the replacement took: a time in which nobody was there is not counted against anybody.
    """
    said = place / "said"
    stubborn = f"trap 'echo TERM >> {said}' TERM; echo up >> {said}; while :; do sleep 0.05; done"
    host = make_with(
        make_host, stubborn={"command": ["/bin/sh", "-c", stubborn], "stop": {"timeout_s": 20}}
    )  # a replacement takes less
    version(host, "1.0")
    host.start()
    wait_until(said.exists, "it has its trap")
    host.ctl("stop", "stubborn")
    wait_until(lambda: "TERM" in said.read_text(), "it was asked to stop")
    kill_at = host.component("stubborn")["next"]["at_ns"]
    version(host, "2.0")
    before_ns = boottime_ns()
    upgrade(host, ok=True)
    took_ns = boottime_ns() - before_ns
    found = host.component("stubborn")
    assert found["state"] == "stopping"
    assert kill_at <= found["next"]["at_ns"] <= kill_at + took_ns
    host.wait_for("stubborn", state="stopped", rule="operator-hold")
    assert said.read_text().split() == ["up", "TERM"]


def test_a_delay_and_a_hold_go_on(make_host: Make) -> None:
    """What waits out its backoff is not started early, and what an operator stopped stays down."""
    host = make_with(
        make_host,
        dies={"command": ["/bin/false"], "restart": {"initial_s": 1000, "cap_s": 3600}},
        held={"command": ["/bin/sleep", "300"]},
    )
    version(host, "1.0")
    host.start()
    before = host.wait_for("dies", state="backoff")
    host.ctl("stop", "held", "--reason", "disk swap")
    host.wait_for("held", state="stopped")
    version(host, "2.0")
    upgrade(host, ok=True)
    after = host.component("dies")
    assert [before[key] for key in ("state", "next", "restarts", "since_ns", "reason")] == [
        after[key] for key in ("state", "next", "restarts", "since_ns", "reason")
    ]
    assert (host.component("held")["state"], host.component("held")["rule"]) == ("stopped", "operator-hold")
    assert "disk swap" in host.ctl("why", "held")


def test_a_second_agent_is_refused_before_and_after(make_host: Make) -> None:
    """The locks stay with the process: no other agent comes in between."""
    host = make_with(make_host, one={"command": ["/bin/sleep", "300"]})
    version(host, "1.0")
    host.start()
    version(host, "2.0")
    upgrade(host, ok=True)
    second = host.run("xce-node-manager", "run", *host.options(), f"--log-dir={host.log_dir}", ok=1)
    assert f"another node manager (pid {agent_pid(host)})" in second.stderr


def test_no_descriptor_is_left_over(make_host: Make) -> None:
    """Re-exec after re-exec, the agent has as many descriptors as before, and a new component none of them."""
    host = make_with(make_host, one={"command": ["/bin/sleep", "300"]})
    version(host, "1.0")
    host.start()
    host.wait_for("one", state="running")
    upgrade(host, ok=True)
    wait_until(lambda: _descriptors(agent_pid(host)) is not None, "it can be looked at")
    first = wait_until(lambda: _settled(host), "the number of descriptors settles")
    for _ in range(3):  # a connection of ours may have been counted: one descriptor a time would be more than that
        upgrade(host, ok=True)
    wait_until(lambda: (_descriptors(agent_pid(host)) or first + 1) <= first, f"{first} descriptors again, at most")
    pid = host.pids()["one"]
    host.ctl("restart", "one")
    wait_until(lambda: host.pids()["one"] not in {pid, None}, "a new run")
    assert len(list(Path(f"/proc/{host.pids()['one']}/fd").iterdir())) == 3


def test_no_descriptor_is_left_inheritable(make_host: Make) -> None:
    """What went through the exec goes no further: no child that the successor starts can hold a lock or a socket."""
    host = make_with(make_host, one={"command": ["/bin/sleep", "300"]})
    version(host, "1.0")
    host.start()
    upgrade(host, ok=True)
    assert inheritable(agent_pid(host)) == set()


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _settled(host: Host) -> int:
    first = _descriptors(agent_pid(host))
    host.status()
    return first if first == _descriptors(agent_pid(host)) else 0


BEFORE_EXEC = {
    "cannot be imported": ("raise ImportError('no module named gone')\n", "no module named gone"),
    "does not know the command": ("import sys; sys.argv[1:] = ['frobnicate']\n", "frobnicate"),
    "cannot read the state": ("import node_manager.runtime.handover as h; h.VERSION = 99\n", "reads 99"),
}


@pytest.mark.parametrize("broken", BEFORE_EXEC)
def test_a_version_that_cannot_take_over_is_not_executed(make_host: Make, broken: str) -> None:
    """The check finds it: the running program goes on untouched, and says what is wrong with the other."""
    host = make_with(make_host, one={"command": ["/bin/sleep", "300"]})
    version(host, "1.0")
    host.start()
    host.wait_for("one", state="running")
    before = host.pids()
    prologue, sentence = BEFORE_EXEC[broken]
    version(host, "2.0", prologue)
    said = host.ctl("reexec", ok=1)
    assert "cannot take over" in said
    assert sentence in said
    assert "this one (1.0) goes on, nothing was changed" in said
    status = host.status()
    assert (status["node"]["agent_version"], status["node"]["reexec"]) == ("1.0", None)
    assert before == host.pids()
    version(host, "3.0")
    upgrade(host, ok=True, new="3.0")


def test_a_wrong_configuration_keeps_the_old_program(make_host: Make) -> None:
    """What the new version could not read after its next start is said before, with the file and the field."""
    host = make_with(make_host, one={"command": ["/bin/sleep", "300"]})
    host.start()
    host.boot["controler"] = {}
    host.write_config()
    said = host.ctl("reexec", ok=1)
    assert "refuses the configuration" in said
    assert "controler" in said
    assert host.component("one")["state"] == "running"


AFTER_EXEC = {
    "raises": "raise RuntimeError('broken on purpose')",
    "exits": "sys.exit(3)",
    "hangs": "import time; time.sleep(300)",
}


@pytest.mark.parametrize("how", AFTER_EXEC)
def test_a_version_that_fails_after_the_exec_falls_back(make_host: Make, how: str) -> None:
    """Before it is in charge nothing is lost: the old program takes the same state back, and says why."""
    host = make_with(
        make_host,
        one={"command": ["/bin/sleep", "300"]},
        dies={"command": ["/bin/false"], "restart": {"initial_s": 1000, "cap_s": 3600}},
    )
    version(host, "1.0")
    host.start()
    host.wait_for("dies", state="backoff")
    host.wait_for("one", state="running")
    before, events = host.pids(), host.events()
    broken = (
        "import node_manager.cli.guard as guard, node_manager.runtime.voices as voices\n"
        f"guard.IN_CHARGE_S = {2.0 if how == 'hangs' else 60.0}\n"
        f"def resume(*_): {AFTER_EXEC[how]}\n"
        "voices.Voices.resume = resume\n"
    )
    version(host, "2.0", "import sys\n" + broken)
    said = host.ctl("reexec", ok=1)
    assert "the installed program failed before it was in charge" in said
    assert {"raises": "broken on purpose", "exits": "3", "hangs": "not in charge after 2 s"}[how] in said
    assert "1.0 goes on" in said
    status = host.status()
    assert (agent_pid(host), "1.0") == (status["node"]["agent_pid"], status["node"]["agent_version"])
    assert before == host.pids()
    assert events == host.events()[: len(events)]
    assert "agent.reexec_failed" in [event["event"] for event in host.events()]
    assert host.component("dies")["state"] == "backoff"
    version(host, "3.0")
    upgrade(host, ok=True, old="1.0", new="3.0", count=2)
    assert before == host.pids()


DIES = (
    "import os, signal\nif 'XCE_NODE_MANAGER_HANDOVER' in os.environ:\n    {when}os.kill(os.getpid(), signal.SIGKILL)\n"
)
DIES_WHEN = {
    "before its first line": "",
    "when it connects": "import node_manager.runtime.voices as v; v.Voices.resume = lambda *_: ",
    "when it is in charge": "import node_manager.cli.guard as g; g.in_charge = lambda *_: ",
}


@pytest.mark.parametrize("when", DIES_WHEN)
def test_a_fatal_signal_after_the_exec_costs_the_agent_alone(make_host: Make, when: str) -> None:
    """No way back is left: the agent that is started next adopts the very same processes, and fuses, and holds."""
    host = make_host(lease_s=50.0)
    version(host, "1.0")
    host.up()
    host.ctl("stop", "apiserver", "--reason", "disk swap")
    host.wait_for("apiserver", state="stopped")
    before, alive = host.pids(), components_of(host)
    version(host, "2.0", DIES.format(when=DIES_WHEN[when]))
    with subprocess.Popen(
        [str(host.base / "bin" / "xce-nodectl"), "reexec"],
        env=host.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as command:
        assert host.agent is not None
        assert host.agent.wait(BOUND_S) == -signal.SIGKILL
        command.kill()
    version(host, "3.0")
    host.up()
    assert before == host.pids()
    assert alive == components_of(host)
    assert (
        sorted(name for name in names(host) if name in {"component.adopted", "component.spawned"})
        == ["component.adopted"] * 3
    )
    found = host.component("apiserver")
    assert (found["state"], found["rule"]) == ("stopped", "operator-hold")
    status = host.status()
    wait_until(lambda: _lease_renewed(host, status), "the lease is renewed")
    assert before == host.pids()


def components_of(host: Host) -> set[int]:
    """Everything that lives on this host but its agent: what carries its markers, and fuses."""
    nonce = (host.run_dir / "nonce").read_bytes().split()[0]
    fuses = set()
    for pid in ProcFs().table():
        with suppress(OSError):
            if nonce in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                fuses.add(pid)
    assert len(fuses) == 1
    return (set(host.processes()) | fuses) - {agent_pid(host)}


EXEC_FAILS = {
    "is gone": ("os.unlink({link!r})", "No such file or directory (ENOENT)"),
    "may not be executed": ("os.chmod({link!r}, 0o600)", "Permission denied (EACCES)"),
    "is half written": ("open({link!r}, 'w').close()", "Exec format error (ENOEXEC)"),
}


@pytest.mark.parametrize("how", EXEC_FAILS)
def test_a_program_that_cannot_be_executed_after_a_good_check(make_host: Make, place: Path, how: str) -> None:
    """It was well a moment ago: the old program says why it is not the new one, and everything is as it was.

    What was let go for the successor is begun again, and nothing is left that a child could inherit.
    """
    gate, begun = place / "gate", place / "begun"
    os.mkfifo(gate)
    checked = {"command": ["/bin/sh", "-c", f"echo begun >> {begun}; cat {gate}"], "timeout_s": 600}
    asked = place / "asked"
    probe = {"exec": {"command": ["/bin/sh", "-c", f"echo x >> {asked}"]}, "period_s": 0.2, "timeout_s": 30}
    host = make_with(
        make_host,
        one={"command": ["/bin/sleep", "300"], "probes": {"readiness": probe}},
        waits={"command": ["/bin/sleep", "300"], "pre_start": checked},
    )
    version(host, "1.0")
    host.start()
    host.wait_for("one", state="running", ready=True)
    wait_until(begun.exists, "the check has begun")
    before, events = host.pids(), host.events()
    link = str(host.base / "bin" / "xce-node-manager")
    breaks, sentence = EXEC_FAILS[how]
    action = breaks.format(link=link)
    version(host, "2.0", f"import os, sys\nif sys.argv[1] == 'self-check':\n    {action}\n")
    said = host.ctl("reexec", ok=1)
    assert f"cannot execute {link}: {sentence}; 1.0 goes on" in said
    status = host.status()
    assert (agent_pid(host), "1.0") == (status["node"]["agent_pid"], status["node"]["agent_version"])
    assert (status["node"]["reexec"]["ok"], status["node"]["reexec"]["count"]) == (False, 1)
    assert events == host.events()[: len(events)]
    assert "agent.reexec_failed" in [event["event"] for event in host.events()]
    assert before == host.pids()
    wait_until(lambda: begun.read_text().split() == ["begun", "begun"], "the check has begun again")
    asked.unlink()
    wait_until(asked.exists, "probes go on")
    assert inheritable(agent_pid(host)) == set()
    with gate.open("w"):
        pass
    host.wait_for("waits", state="running", generation=1)
    assert "component.pre_start_failed" not in names(host)
    version(host, "3.0")
    upgrade(host, ok=True, old="1.0", new="3.0", count=2)
    assert before["one"] == host.pids()["one"]


def test_a_start_under_way_is_waited_for(make_host: Make, place: Path) -> None:
    """A child between fork and exec would die with the old program: it gets there, or is given up, before the exec."""
    home, ran = place / "home", place / "ran"
    home.mkdir()
    host = make_with(
        make_host,
        hangs={
            "command": ["/bin/sh", "-c", f"echo x >> {ran}"],
            "working_directory": str(home),
            "restart": {"initial_s": 1000, "cap_s": 3600},
        },
        one={"command": ["/bin/sleep", "300"]},
    )
    version(host, "1.0")
    with hung_directory(home) as fail:
        host.start()
        host.wait_for("one", state="running")
        before = host.component("hangs")
        version(host, "2.0")
        upgrade(host, ok=True)
        after = host.component("hangs")
        assert (before["state"], before["generation"]) == ("starting", 1)
        assert (after["state"], after["generation"]) == ("backoff", 1)
        assert "not begun within 5 s" in after["reason"]
        fail()
    children = Path(f"/proc/{agent_pid(host)}/task/{agent_pid(host)}/children")
    wait_until(lambda: children.read_text().split() == [str(host.pids()["one"])], "nothing is left of the start")
    assert not ran.exists()


def inheritable(pid: int) -> set[Path]:
    """What a child of this process could inherit by mistake."""
    process = Path(f"/proc/{pid}")
    found = set()
    for number in os.listdir(process / "fd"):  # noqa: PTH208 - names, not paths
        with suppress(FileNotFoundError):  # closed meanwhile
            flags = int((process / "fdinfo" / number).read_text().splitlines()[1].split()[1], 8)
            if int(number) > 2 and not flags & os.O_CLOEXEC:
                found.add((process / "fd" / number).readlink())
    return found


def test_a_command_under_way_is_not_cut_off(make_host: Make, place: Path) -> None:
    """A drain or reload command does something to its component: it is waited for, and named where it takes long."""
    gate = place / "gate"
    os.mkfifo(gate)
    host = make_with(
        make_host,
        one={
            "command": ["/bin/sleep", "300"],
            "reload": {"command": ["/bin/sh", "-c", f"cat {gate}"], "timeout_s": 60},
        },
    )
    version(host, "1.0")
    host.start()
    host.wait_for("one", state="running")
    host.ctl("reload", "one")
    version(host, "2.0")
    said = host.ctl("reexec", ok=1)
    assert "no quiet moment" in said
    assert "the reload command of one" in said
    with gate.open("w"):
        pass
    wait_until(lambda: "component.helper_done" in names(host), "the command has ended")
    upgrade(host, ok=True, new="2.0")


def test_a_check_before_a_start_is_begun_again(make_host: Make, place: Path) -> None:
    """A check under way is no reason to wait; the component starts when the new run of it has passed."""
    gate = place / "gate"
    os.mkfifo(gate)
    host = make_with(
        make_host,
        one={
            "command": ["/bin/sleep", "300"],
            "pre_start": {"command": ["/bin/sh", "-c", f"echo begun >> {place}/begun; cat {gate}"], "timeout_s": 60},
        },
    )
    version(host, "1.0")
    host.start()
    wait_until((place / "begun").exists, "the check has begun")
    version(host, "2.0")
    upgrade(host, ok=True)
    wait_until(lambda: (place / "begun").read_text().split() == ["begun", "begun"], "it has begun again")
    assert host.component("one")["state"] == "starting"
    with gate.open("w"):
        pass
    host.wait_for("one", state="running", generation=1)


def test_who_follows_events_goes_on_following(make_host: Make) -> None:
    """`events --follow` misses nothing over a re-exec and shows nothing twice."""
    host = make_with(make_host, one={"command": ["/bin/sleep", "300"]})
    version(host, "1.0")
    host.start()
    host.wait_for("one", state="running")
    with subprocess.Popen(
        [str(host.base / "bin" / "xce-nodectl"), "--json", "events", "--follow"],
        env=host.environment(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
    ) as follower:
        try:
            version(host, "2.0")
            upgrade(host, ok=True)
            host.ctl("stop", "one")
            host.wait_for("one", state="stopped")
            last = host.events()[-1]["seq"]
            assert follower.stdout is not None
            seen: list[int] = []
            for line in follower.stdout:
                seen.append(json.loads(line)["seq"])
                if seen[-1] >= last:
                    break
            assert list(range(1, last + 1)) == seen
        finally:
            follower.kill()


def test_an_agent_that_waits_for_its_configuration_is_replaced(make_host: Make) -> None:
    """Without a configuration there is an agent to upgrade all the same, and it takes the file up later."""
    host = make_with(make_host, one={"command": ["/bin/sleep", "300"]})
    version(host, "1.0")
    right = host.config.read_text()
    host.write_config("version: 1\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{host.base}/notify")
        host.start(NOTIFY_SOCKET=f"@{host.base}/notify")
        assert host.status()["node"]["state"] == "waiting-config"
        version(host, "2.0")
        upgrade(host, ok=True, new="2.0")
        assert host.status()["node"]["state"] == "waiting-config"
        host.write_config(right)
        wait_until(lambda: host.pids().get("one"), "it is taken up")
