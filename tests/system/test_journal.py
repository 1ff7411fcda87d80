"""What components and the agent say, in the journal of a real systemd and without one; `xce-nodectl logs` for both."""

from typing import Any

import pytest
import yaml

from tests.system.conftest import Make
from tests.system.hosts import component, serve
from tests.system.machine import UNIT, Machine, wait_until

FIFO = "/run/say"
TALKER = ["sh", "-c", f'echo begun; while read -r line; do echo "$line"; done <>{FIFO}']
"""Prints what is written into the FIFO, a line at a time."""


def prepare(machine: Machine, user: str, **components: dict[str, Any]) -> None:
    """Give the machine a role `talk`, and the FIFO."""
    role = {"role": "talk", "user": user, "components": components}
    machine.write("/etc/xce/roles/talk.yaml", yaml.safe_dump(role))
    machine.shell(f"mkfifo --mode 666 {FIFO}")


def say(machine: Machine, line: str) -> None:
    """Have the talker print a line."""
    machine.shell(f"echo '{line}' >{FIFO}")


def entry(machine: Machine, message: str, *matches: str) -> dict[str, Any]:
    """The entry with this message; waits for it."""

    def look() -> dict[str, Any] | None:
        return next((found for found in machine.entries(*matches) if found["MESSAGE"] == message), None)

    found = wait_until(look, f"{message!r} is in the journal")
    assert found is not None
    return found


@pytest.fixture
def talker(machine: Machine) -> Machine:
    """A machine whose agent is `xce` and runs the talker."""
    prepare(machine, "xce", talker={"command": TALKER})
    serve(machine, "talk")
    return machine


def test_output_has_the_fields_that_a_stream_has(talker: Machine) -> None:
    """Who said it: the component by its name, its group and its process; who that is: the agent's own entry."""
    pid = talker.pids()["talker"]
    found = entry(talker, "begun", "SYSLOG_IDENTIFIER=talker", "_TRANSPORT=stdout")
    assert (found["_PID"], found["PRIORITY"]) == (str(pid), "6")
    assert found["_SYSTEMD_UNIT"] == UNIT
    assert found["_SYSTEMD_CGROUP"].endswith(f"/{UNIT}/talker")
    assert found["_UID"] == talker.shell("id -u xce").strip()

    born = entry(talker, f"component.spawned component=talker role=talk generation=1 pid={pid}", "XCE_COMPONENT=talker")
    assert (born["XCE_ROLE"], born["XCE_GENERATION"], born["XCE_PID"]) == ("talk", "1", str(pid))
    assert (born["SYSLOG_IDENTIFIER"], born["_SYSTEMD_UNIT"]) == ("xce-node-manager", UNIT)
    assert born["XCE_EVENT"] == "component.spawned"
    assert talker.status()["warnings"] == []


def test_output_needs_no_agent(talker: Machine) -> None:
    """It does not pass through the agent: said while that is stopped, dead, or another one, it is there."""
    agent = talker.agent_pid()
    talker.run("kill", "-STOP", str(agent))
    say(talker, "while it is stopped")
    entry(talker, "while it is stopped", "SYSLOG_IDENTIFIER=talker")
    pid = int(entry(talker, "begun", "SYSLOG_IDENTIFIER=talker")["_PID"])
    talker.run("kill", "-KILL", str(agent), ok=None)  # on a very busy host systemd's watchdog may have come first
    say(talker, "while it is dead")
    entry(talker, "while it is dead", "SYSLOG_IDENTIFIER=talker")
    talker.wait_status(lambda status: status["node"]["agent_pid"] != agent, "another agent is in charge")
    say(talker, "under the next")
    found = entry(talker, "under the next", "SYSLOG_IDENTIFIER=talker", f"_SYSTEMD_UNIT={UNIT}")
    assert (found["_PID"], talker.pids()["talker"]) == (str(pid), pid)
    matches = ("XCE_EVENT=component.adopted", "XCE_COMPONENT=talker")
    adopted = wait_until(lambda: talker.entries(*matches), "the adoption is in the journal")
    assert [(one["XCE_ROLE"], one["XCE_GENERATION"], one["XCE_PID"]) for one in adopted] == [("talk", "1", str(pid))]


def test_a_journal_that_is_restarted_costs_nothing(talker: Machine) -> None:
    """The component lives, and neither its output nor the agent's entries are lost."""
    pid = talker.pids()["talker"]
    talker.run("systemctl", "restart", "systemd-journald")
    say(talker, "after the restart")
    entry(talker, "after the restart", "SYSLOG_IDENTIFIER=talker")
    assert pid == talker.pids()["talker"]
    talker.ctl("restart", "talker")
    matches = ("XCE_EVENT=component.spawned", "XCE_GENERATION=2")
    (last,) = wait_until(lambda: talker.entries(*matches), "the second start is in the journal")
    talker.keeps({"talker": int(last["XCE_PID"])})


def test_logs_are_the_journals(talker: Machine) -> None:
    """The last lines, and each further one; not what others call by the same name."""
    say(talker, "one")
    say(talker, "two")
    entry(talker, "two", "SYSLOG_IDENTIFIER=talker")
    talker.run("setpriv", "--reuid=nobody", "--clear-groups", "logger", "-t", "talker", "forged")
    entry(talker, "forged", "SYSLOG_IDENTIFIER=talker")
    lines = talker.ctl("logs", "talker", "-n", "2").splitlines()
    assert [line.partition("]: ")[2] for line in lines] == ["one", "two"]
    talker.shell("xce-nodectl logs --follow -n 0 talker >/run/followed 2>&1 & echo $! >/run/follower")
    wait_until(lambda: talker.run("pgrep", "-x", "journalctl", ok=None).stdout, "journalctl follows")

    def followed() -> bool:
        say(talker, "three")
        return "]: three\n" in talker.path("/run/followed").read_text(encoding="utf-8")

    wait_until(followed, "the follower shows a new line")
    assert "two" not in talker.path("/run/followed").read_text(encoding="utf-8")
    # It is the very process: whoever ends the command leaves nothing behind.
    talker.shell("kill $(cat /run/follower)")
    wait_until(lambda: not talker.run("pgrep", "-x", "journalctl", ok=None).stdout, "nothing follows any more")


def test_last_words_are_the_components(machine: Machine) -> None:
    """What a process says that is gone before journald looks at it is of this unit all the same."""
    brief = {"command": ["sh", "-c", "echo these are my last words; exit 1"]}
    prepare(machine, "root", brief=brief, talker={"command": TALKER})
    machine.shell(
        "mkdir -p /etc/systemd/system/xce-node-manager.service.d;"
        "ln -s /usr/share/xce/units/root.conf /etc/systemd/system/xce-node-manager.service.d/50-root.conf;"
        "systemctl daemon-reload"
    )
    # As long as journald is stopped nobody looks.
    machine.write("/etc/xce/node-manager.yaml", yaml.safe_dump({"version": 1, "roles": ["talk"]}))
    journald = machine.property("MainPID", "systemd-journald.service")
    machine.run("systemctl", "start", UNIT)
    machine.wait_status(lambda found: found["components"], "the components are known")
    machine.run("kill", "-STOP", journald)
    before = component(machine.status(), "brief")["restarts"]
    found = machine.wait_status(lambda found: component(found, "brief")["restarts"] > before, "it has ended once more")
    pid = found["node"]["agent_pid"]
    machine.run("kill", "-CONT", journald)

    def said() -> list[dict[str, Any]]:
        words = machine.entries("MESSAGE=these are my last words")
        return words if len(words) >= component(found, "brief")["restarts"] else []

    units = {one.get("_SYSTEMD_UNIT") for one in wait_until(said, "the words of each run are in the journal")}
    assert units == {UNIT}
    assert machine.ctl("logs", "brief").splitlines()[-1].endswith("these are my last words")
    assert pid == machine.status()["node"]["agent_pid"]


def test_a_file_beside_the_journal(machine: Machine) -> None:
    """`log: file` writes to the service's log directory, and `logs` reads it there."""
    prepare(machine, "xce", talker={"command": TALKER, "log": "file"})
    serve(machine, "talk")
    wait_until(lambda: machine.ctl("logs", "talker") == "begun\n", "it is in the file")
    assert machine.shell("stat --format '%U %a' /var/log/xce/talker.log") == "xce 640\n"
    assert machine.entries("SYSLOG_IDENTIFIER=talker") == []
    assert "permission denied" in machine.shell(
        "setpriv --reuid=nobody --regid=nogroup --clear-groups xce-nodectl logs talker 2>&1", ok=4
    )


def test_without_a_journal(make_machine: Make) -> None:
    """Output goes to files by itself; components, agent and `logs` need no journal."""
    machine = make_machine()
    for name in ("systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket"):
        machine.prepare_without(f"/usr/lib/systemd/system/{name}")
    machine.boot()
    prepare(machine, "xce", talker={"command": TALKER})
    serve(machine, "talk")
    assert not machine.path("/run/systemd/journal/stdout").exists()
    wait_until(lambda: machine.ctl("logs", "talker") == "begun\n", "it is in the file")
    say(machine, "more")
    wait_until(lambda: machine.ctl("logs", "talker", "-n", "1") == "more\n", "so is this")
    assert "/var/log/xce/talker.log" in machine.ctl("why", "talker")
