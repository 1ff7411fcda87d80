"""The event journal: complete, bounded, without secrets, and never in the loop's way."""

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node_manager.cli.replay import Replay, replay
from node_manager.core.actions import Action
from node_manager.core.durable import DurableFacts, Latch
from node_manager.core.events import Beat, Booted, ConfigLoaded, Event, Found, Spawned, Tick
from node_manager.core.nodestate import NodeState
from node_manager.core.ordering import process_digest
from node_manager.core.spec import NS_PER_S, ComponentSpec, HostSpec, NodeSpec
from node_manager.runtime.journal import BATCH, LIMIT_BYTES, MAX_WAITING, EventJournal, JournalError, Write

BOUND_S = 30.0
SECRET = "hunter2"  # noqa: S105 - what must not be found


def spec(password: str = SECRET) -> NodeSpec:
    """A host with one component, which has a secret in its environment."""
    component = ComponentSpec(name="db", role="db", command=("db",), environment=(("PASSWORD", password),))
    return NodeSpec(host=HostSpec(name="h"), roles=("db",), components=(component,))


class Life:
    """An agent's life of which nothing but the core and the journal is real."""

    def __init__(self, path: Path, *, limit_bytes: int = LIMIT_BYTES, write: Write = os.write) -> None:
        self.stops: list[str] = []
        self.stopped = threading.Event()
        self.journal = EventJournal(path, stopped=self._stopped, limit_bytes=limit_bytes, write=write)
        self.state = NodeState()
        self.now = 1000 * NS_PER_S

    def _stopped(self, why: str) -> None:
        self.stops.append(why)
        self.stopped.set()

    def hear(self, *events: Event) -> tuple[Action, ...]:
        """Take events a second apart; return what the last one led to."""
        actions: tuple[Action, ...] = ()
        for event in events:
            self.now += NS_PER_S
            self.state, actions = self.journal.step(self.state, event, self.now)
        return actions

    def boot(self, *found: Found, password: str = SECRET) -> None:
        self.hear(Booted(boot_id="b", facts=DurableFacts()), ConfigLoaded(spec=spec(password), found=found))


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "events"
    assert not any(thread.name == "xce-journal" for thread in threading.enumerate())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_two_lives_in_one_file_replay(path: Path) -> None:
    """A second agent appends to the first one's journal, and both are replayed, each from its own birth."""
    for _ in range(2):
        life = Life(path)
        life.boot()
        life.hear(Spawned(component="db", generation=1, pid=4), Tick())
        life.journal.close()
    found = Replay("events")
    with path.open("rb") as file:
        found.run(file)
    assert (found.lives, found.steps, found.torn, found.ends) == (2, 8, 0, [])


def test_no_environment_value_is_recorded_and_a_change_is_still_seen(path: Path) -> None:
    """A changed secret restarts the component on replay as it did in truth, and stands nowhere in the file."""
    life = Life(path)
    life.boot()
    life.hear(Spawned(component="db", generation=1, pid=4))
    assert life.hear(ConfigLoaded(spec=spec(SECRET)))[0].component is None  # type: ignore[union-attr]
    changed = life.hear(ConfigLoaded(spec=spec("other-secret")))
    assert "Signal" in {type(action).__name__ for action in changed}
    life.journal.close()
    assert replay(path) == 0
    text = path.read_text()
    assert SECRET not in text
    assert "other-secret" not in text
    assert process_digest(spec().components[0]) not in text


def test_what_is_hidden_cannot_be_guessed(path: Path) -> None:
    """The same secret stands as another digest in another life: nobody can try values against it."""
    for _ in range(2):
        life = Life(path)
        life.boot()
        life.journal.close()
    shown = [
        line["event"]["spec"]["components"][0]["environment"][0][1]
        for line in lines(path)
        if line.get("event", {}).get("kind") == "ConfigLoaded"
    ]
    assert len(set(shown)) == 2
    assert all(value.startswith("hidden:") for value in shown)


@pytest.mark.parametrize("password", [SECRET, "changed while no agent ran"])
def test_an_adopted_process_compares_as_it_did(path: Path, password: str) -> None:
    """What an agent adopted is restarted on replay exactly if its configuration had changed in truth."""
    life = Life(path)
    found = Found(
        component="db", pid=4, generation=3, started_ns=NS_PER_S, spec_digest=process_digest(spec().components[0])
    )
    life.boot(found, password=password)
    life.journal.close()
    assert replay(path) == 0
    signalled = any(action["kind"] == "Signal" for line in lines(path) for action in line.get("actions", ()))
    assert signalled is (password != SECRET)


def test_the_file_has_a_limit(path: Path) -> None:
    """Recording stops below the limit, says why in the file and to the agent, and what is there replays."""
    life = Life(path, limit_bytes=64 * 1024)
    life.boot()
    while not life.stopped.is_set():
        life.hear(Tick())
    life.journal.close()
    life.hear(Tick())
    assert path.stat().st_size <= 64 * 1024
    assert len(life.stops) == 1
    assert "limit" in life.stops[0]
    assert "limit" in lines(path)[-1]["end"]
    assert replay(path) == 0
    with pytest.raises(JournalError, match="has reached its limit"):
        Life(path, limit_bytes=64 * 1024)


def test_a_full_disk_ends_the_recording_and_nothing_else(path: Path) -> None:
    """Steps go on being made, and the agent hears why nothing more is recorded."""
    writes = iter([True, False])

    def write(descriptor: int, data: bytes) -> int:
        if next(writes):
            return os.write(descriptor, data)
        raise OSError(errno.ENOSPC, "no space")

    life = Life(path, write=write)
    life.boot()
    assert life.stopped.wait(BOUND_S)
    life.hear(Tick())
    life.journal.close()
    assert life.stops == [f"events are not recorded to {path} any more: No space left on device (ENOSPC)"]
    assert replay(path) == 0


def test_a_disk_that_hangs_does_not_hold_up_a_step(path: Path) -> None:
    """Steps wait in a bounded queue; beyond it recording ends with that reason, and what was kept replays."""
    gate, header = threading.Event(), threading.Event()

    def write(descriptor: int, data: bytes) -> int:
        if header.is_set():
            gate.wait(BOUND_S)
        header.set()
        return os.write(descriptor, data)

    life = Life(path, write=write)
    life.boot()
    life.hear(*(Tick() for _ in range(MAX_WAITING + 2 * BATCH)))
    gate.set()
    assert life.stopped.wait(BOUND_S)
    life.journal.close()
    assert "too slow" in life.stops[0]
    assert replay(path) == 0
    assert MAX_WAITING <= len(lines(path)) < MAX_WAITING + 2 * BATCH


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.write_text("version: 1\n"), "holds something else"),
        (lambda path: path.mkdir(), "directory"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/etc/hostname"), "symbolic link"),
    ],
)
def test_what_is_no_journal_is_left_alone(path: Path, make: Callable[[Path], object], why: str) -> None:
    """A file of something else, a directory, a FIFO, a link: refused in a sentence, and untouched."""
    make(path)
    with pytest.raises(JournalError, match=why) as caught:
        Life(path)
    assert str(caught.value).startswith(f"cannot record to {path}: ")
    if path.is_file() and not path.is_symlink():
        assert path.read_text() == "version: 1\n"


def test_one_agent_at_a_time(path: Path) -> None:
    """A second agent that is given the same file while the first records is refused."""
    life = Life(path)
    with pytest.raises(JournalError, match="another agent records to it"):
        Life(path)
    life.journal.close()


def test_only_its_owner_may_read_it(path: Path) -> None:
    """Mode 0600, also where an older journal had been opened to others."""
    Life(path).journal.close()
    path.chmod(0o644)
    Life(path).journal.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_the_core_fails_on_is_the_last_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fault of the core is recorded with its event before it ends the agent, and replay shows it."""
    life = Life(path)
    life.boot()
    latch = Latch(state="nonsense", by="nobody", reason="", at_wall_ns=0)
    with pytest.raises(ValueError, match="nonsense"):
        life.hear(Booted(boot_id="b", facts=DurableFacts(operator_latch=latch)))
    life.journal.close()
    assert replay(path) == 0
    assert "the core failed in step 3: ValueError" in capsys.readouterr().out


def test_a_torn_last_line_is_known_as_such(path: Path) -> None:
    """An agent killed in a write leaves half a line: the next life begins on its own, and replay counts the tear."""
    life = Life(path)
    life.boot()
    life.journal.close()
    path.write_bytes(path.read_bytes()[:-20])
    after = Life(path)
    after.boot()
    after.hear(Beat(component="db", generation=1))
    after.journal.close()
    found = Replay("events")
    with path.open("rb") as file:
        found.run(file)
    assert (found.lives, found.steps, found.torn) == (2, 1 + 3, 1)
