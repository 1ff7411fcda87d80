import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node_manager.core.durable import DurableFacts
from node_manager.core.events import Event, FactsWriteFailed, FactsWritten
from node_manager.runtime.store import Step, Store
from node_manager.runtime.writer import Writer
from tests.unit.runtime.rig import BOUND_S


class Desk:
    """A writer with its loop and what it said."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.loop = asyncio.new_event_loop()
        self.events: list[Event] = []
        self.troubles: list[tuple[str, str | None]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.store = Store(directory, step=self._step)
        self.writer = Writer(
            self.loop,
            post=self.events.append,
            trouble=lambda path, text: self.troubles.append((path.name, text)),
            store=self.store,
            record_path=directory / "runtime.json",
            config_path=directory / "config.json",
        )

    def _step(self, step: Step) -> None:
        if step is Step.TORN:
            self.gate.wait(BOUND_S)

    def run_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < deadline
            self.loop.run_until_complete(asyncio.sleep(0.005))


@pytest.fixture
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    request.getfixturevalue("no_leaks")
    made = Desk(tmp_path)
    yield made
    made.gate.set()
    assert made.writer.close(BOUND_S)
    made.loop.close()


def test_results_come_back_to_the_loop(desk: Desk) -> None:
    """FactsWritten names the sequence number, and the facts are on the disk by then."""
    desk.writer.write_facts(4, DurableFacts(identity="me", epoch_seen=2))
    desk.run_until(desk.events.__len__)
    assert [FactsWritten(seq=4)] == desk.events
    assert Store(desk.directory).load("me").facts.epoch_seen == 2


def test_a_disk_that_hangs_stalls_only_the_writer(desk: Desk) -> None:
    """While a write hangs the loop runs on; of what came meanwhile the newest of each kind is written."""
    desk.gate.clear()
    desk.writer.write_facts(1, DurableFacts(identity="me"))
    desk.run_until((desk.directory / "facts.json.new").exists)
    for seq in range(2, 100):
        desk.writer.write_facts(seq, DurableFacts(identity="me", epoch_seen=seq))
        desk.writer.write_record(b"record %d" % seq)
        desk.writer.write_config(b"config %d" % seq)
    assert not desk.writer.close(0.01)
    assert desk.events == []
    desk.gate.set()
    desk.run_until(lambda: len(desk.events) == 2)
    assert [FactsWritten(seq=1), FactsWritten(seq=99)] == desk.events
    assert desk.writer.close(BOUND_S)
    assert (desk.directory / "runtime.json").read_bytes() == b"record 99"
    assert (desk.directory / "config.json").read_bytes() == b"config 99"


def test_a_failure_has_the_errno_s_meaning_and_the_next_write_is_tried(desk: Desk) -> None:
    """FactsWriteFailed says why; the runtime record's trouble is told once it starts and once it ends."""
    moved = desk.directory.with_name("moved")
    desk.directory.rename(moved)
    desk.writer.write_facts(1, DurableFacts(identity="me"))
    desk.writer.write_record(b"x")
    desk.run_until(lambda: desk.events and desk.troubles)
    assert [FactsWriteFailed(seq=1, error="No such file or directory (ENOENT)")] == desk.events
    path = desk.directory / "runtime.json"
    assert [("runtime.json", f"cannot write {path}: No such file or directory (ENOENT)")] == desk.troubles
    moved.rename(desk.directory)
    desk.writer.write_facts(2, DurableFacts(identity="me"))
    desk.writer.write_record(b"x")
    desk.run_until(lambda: len(desk.events) == 2 and len(desk.troubles) == 2)
    assert FactsWritten(seq=2) == desk.events[-1]
    assert desk.troubles[-1] == ("runtime.json", None)
    assert sorted(path.name for path in desk.directory.iterdir()) == ["facts.json", "facts.json.spare", "runtime.json"]


@pytest.mark.usefixtures("no_leaks")
def test_closing_flushes_even_when_the_loop_is_gone(tmp_path: Path) -> None:
    """What waits at close is written; answers to a closed loop are dropped without noise."""
    desk = Desk(tmp_path)
    desk.loop.close()
    desk.writer.write_facts(1, DurableFacts(identity="me", epoch_seen=9))
    assert desk.writer.close(BOUND_S)
    assert Store(tmp_path).load("me").facts.epoch_seen == 9
