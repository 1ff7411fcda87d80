"""A real agent's event journal: what it decided is decided again, step by step, from the file alone."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.host import BOUND_S, Host

SECRET = "hunter2-hunter2"  # noqa: S105 - what must not be found anywhere


class RecordingHost(Host):
    """A host whose agent records its events."""

    @property
    def journal(self) -> Path:
        """Where they are recorded."""
        return self.base / "events.journal"

    def options(self, *, roles: Path | None = None) -> list[str]:
        """Return the options of the agent."""
        return [*super().options(roles=roles), f"--record-events={self.journal}"]


@pytest.fixture
def host(place: Path) -> Iterator[RecordingHost]:
    made = RecordingHost(place / "h1")
    made.boot["components"]["apiserver"]["environment"]["XCE_REF_PASSWORD"] = SECRET  # type: ignore[index]
    made.write_config()
    yield made
    made.end()


def test_a_real_agents_journal_replays_to_the_same_actions(host: RecordingHost) -> None:
    """Start, a crash, decommission and its end, reload, kill -9 and adoption, stop: two lives replay identically."""
    host.up()
    for name in ("scheduler", "worker"):
        old = host.pids()[name]
        assert old is not None
        os.kill(old, signal.SIGKILL)
        host.wait_for(name, state="running", ready=True, restarts=1)
    host.ctl("decommission", "--reason", "broken fan")
    host.wait_for("worker", state="stopped", rule="decommissioned")
    host.ctl("recommission")
    host.wait_for("worker", state="running", ready=True)
    kept = host.pids()
    host.kill_agent()
    # The environment of one component changed while no agent ran; the others are adopted as they are.
    host.boot["components"]["apiserver"]["environment"]["XCE_REF_PASSWORD"] = SECRET[::-1]  # type: ignore[index]
    host.write_config()
    host.up()
    assert {name: pid for name, pid in kept.items() if name != "apiserver"} == {
        name: pid for name, pid in host.pids().items() if name != "apiserver"
    }
    assert kept["apiserver"] != host.pids()["apiserver"]
    host.boot["components"]["scheduler"]["restart"] = {"initial_s": 0.2}  # type: ignore[index]
    host.write_config()
    host.ctl("reload")
    assert host.stop() == 0

    said = host.run("xce-node-manager", "replay", str(host.journal)).stdout
    assert "2 lives of an agent" in said
    assert "the same actions in each" in said
    assert host.journal.stat().st_mode & 0o777 == 0o600
    text = host.journal.read_text()
    assert SECRET not in text
    assert SECRET[::-1] not in text
    _an_altered_line_is_named(host, text)


def test_a_file_that_cannot_be_recorded_to_is_refused_in_the_foreground(host: RecordingHost) -> None:
    """An agent that a person starts says which file, why, and what to do, and starts nothing."""
    host.journal.write_text("my notes\n")
    host.start()
    assert host.agent is not None
    assert host.agent.wait(BOUND_S) == 1
    said = f"cannot record to {host.journal}: it holds something else than a journal; choose another file"
    assert said in host.tail()
    assert host.journal.read_text() == "my notes\n"
    assert host.processes() == []


def test_under_systemd_a_host_is_supervised_all_the_same(host: RecordingHost) -> None:
    """A service goes on without recording, and says so in its status and in its history."""
    host.journal.write_text("my notes\n")
    notify = host.base / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(notify))
        host.start(NOTIFY_SOCKET=str(notify))
        host.ctl("wait", "--for", "ready", "--timeout", f"{BOUND_S:g}s")
        assert any("cannot record to" in warning for warning in host.status()["warnings"])
        (event,) = [event for event in host.events() if event["event"] == "agent.recording_stopped"]
        assert event["file"] == str(host.journal)


def test_a_replaced_program_goes_on_recording(host: RecordingHost) -> None:
    """The second life begins with the very state that was handed over: it replays, and no step is lost."""
    host.up()
    before = host.pids()
    host.ctl("reexec")
    assert before["worker"] is not None
    assert before["worker"] == host.pids()["worker"]
    os.kill(before["worker"], signal.SIGKILL)
    host.wait_for("worker", state="running", ready=True, restarts=1)
    assert host.stop() == 0
    said = host.run("xce-node-manager", "replay", str(host.journal)).stdout
    assert "2 lives of an agent" in said
    assert "note" not in said
    text = host.journal.read_text()
    assert SECRET not in text
    lives = [line for line in map(json.loads, text.splitlines()) if "xce_event_journal" in line]
    assert ["state" in life for life in lives] == [False, True]
    assert len({life["pid"] for life in lives}) == 1


def _an_altered_line_is_named(host: RecordingHost, text: str) -> None:
    """Replay names the step, its event and both outcomes when one line is another than what the core decides."""
    lines = text.splitlines()
    at = next(
        index
        for index, line in enumerate(lines)
        if any(action["kind"] == "Signal" for action in json.loads(line).get("actions", ()))
    )
    altered = json.loads(lines[at])
    signals = [action for action in altered["actions"] if action["kind"] == "Signal"]
    signals[0]["signal"] += 1
    host.journal.write_text("\n".join([*lines[:at], json.dumps(altered), *lines[at + 1 :]]) + "\n")
    said = host.run("xce-node-manager", "replay", str(host.journal), ok=1).stderr
    assert f"events.journal:{at + 1}: step {altered['step']} of life 1" in said
    assert f"event      {altered['event']['kind']}" in said
    expected, actual = (next(row for row in said.splitlines() if row.startswith(f"{word:8} !")) for word in WORDS)
    assert f"signal={signals[0]['signal']}" in expected
    assert f"signal={signals[0]['signal'] - 1}" in actual


WORDS = ("expected", "actual")
