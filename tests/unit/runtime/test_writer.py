import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node_manager.core.durable import DurableFacts
from node_manager.core.events import Event, FactsWriteFailed, FactsWritten
from node_manager.runtime.disk import LocalDisk
from node_manager.runtime.store import Store
from node_manager.runtime.writer import RETRY_S, Writer
from tests.unit.runtime.rig import BOUND_S


class HangingDisk(LocalDisk):
    """A disk whose writes wait for the gate."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate

    def write(self, fd: int, data: bytes, offset: int) -> int:
        self._gate.wait(BOUND_S)
        return super().write(fd, data, offset)


class Desk:
    """A writer with its loop and what it said."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.loop = asyncio.new_event_loop()
        self.events: list[Event] = []
        self.troubles: list[tuple[str, str | None]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.restart()

    def restart(self) -> None:
        """Another writer, after the one before has ended."""
        self.writer = Writer(
            self.loop,
            post=self.events.append,
            trouble=lambda path, text: self.troubles.append((path.name, text)),
            store=Store(self.directory, disk=HangingDisk(self.gate)),
            record_path=self.directory / "runtime.json",
            config_path=self.directory / "config.json",
        )

    @staticmethod
    def writing() -> bool:
        """Whether a writer's thread runs."""
        return any(thread.name == "xce-writer" for thread in threading.enumerate())

    def run_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < deadline
            self.loop.run_until_complete(asyncio.sleep(0.005))


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


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
    assert names(desk.directory) == ["facts.json", "facts.json.spare", "runtime.json"]


def test_what_could_not_be_written_is_tried_again(desk: Desk) -> None:
    """Nobody hands a record over twice: the writer keeps it, says so once, and writes it when the disk takes it."""
    moved = desk.directory.with_name("moved")
    desk.directory.rename(moved)
    desk.writer.write_record(b"held")
    desk.writer.write_config(b"good")
    desk.run_until(lambda: len(desk.troubles) == 2)
    moved.rename(desk.directory)
    desk.run_until(lambda: len(desk.troubles) == 4)
    assert desk.troubles[2:] == [("runtime.json", None), ("config.json", None)]
    assert (desk.directory / "runtime.json").read_bytes() == b"held"
    assert (desk.directory / "config.json").read_bytes() == b"good"


def test_a_trouble_is_told_when_it_starts_and_when_it_is_another(desk: Desk) -> None:
    """Each try of a full disk is no news; another reason is. A try comes no sooner than RETRY_S after a failure."""
    began_s = time.monotonic()
    moved = desk.directory.with_name("moved")
    desk.directory.rename(moved)
    for number in range(100):
        desk.writer.write_record(b"%d" % number)
        desk.run_until(desk.troubles.__len__)
    desk.directory.touch()
    desk.run_until(lambda: len(desk.troubles) > 1)
    assert time.monotonic() - began_s >= RETRY_S
    path = desk.directory / "runtime.json"
    assert desk.troubles == [
        ("runtime.json", f"cannot write {path}: No such file or directory (ENOENT)"),
        ("runtime.json", f"cannot write {path}: Not a directory (ENOTDIR)"),
    ]
    desk.directory.unlink()
    moved.rename(desk.directory)
    desk.run_until(lambda: desk.troubles[-1] == ("runtime.json", None))
    assert path.read_bytes() == b"99"


def test_facts_are_not_tried_again_by_the_writer(desk: Desk) -> None:
    """Their failure is the core's to answer: it may want other facts by then."""
    moved = desk.directory.with_name("moved")
    desk.directory.rename(moved)
    desk.writer.write_facts(1, DurableFacts(identity="me"))
    desk.writer.write_record(b"x")
    desk.run_until(lambda: desk.events and desk.troubles)
    moved.rename(desk.directory)
    desk.run_until(lambda: len(desk.troubles) == 2)
    assert desk.writer.close(BOUND_S) is False
    assert [FactsWriteFailed(seq=1, error="No such file or directory (ENOENT)")] == desk.events
    assert names(desk.directory) == ["runtime.json"]
    desk.restart()


@pytest.mark.parametrize("kind", ["FIFO", "link", "file"])
def test_what_stands_in_the_way_is_replaced(desk: Desk, kind: str) -> None:
    """Nothing in the directory holds the writer up or has it write elsewhere."""
    temporary = desk.directory / "runtime.json.new"
    match kind:
        case "FIFO":
            os.mkfifo(temporary)
        case "link":
            temporary.symlink_to(desk.directory / "elsewhere")
        case _:
            temporary.write_bytes(b"left by a write that was interrupted")
    desk.writer.write_record(b"x")
    assert desk.writer.close(BOUND_S)
    assert names(desk.directory) == ["runtime.json"]
    assert (desk.directory / "runtime.json").read_bytes() == b"x"


def test_closing_does_not_wait_for_a_disk_that_fails(desk: Desk) -> None:
    """What waits for its next try is tried once more at the end, and then given up."""
    moved = desk.directory.with_name("moved")
    desk.directory.rename(moved)
    desk.writer.write_record(b"x")
    desk.run_until(desk.troubles.__len__)
    assert not desk.writer.close(BOUND_S)
    assert not desk.writing()
    desk.restart()
    desk.writer.write_record(b"y")
    desk.run_until(lambda: len(desk.troubles) == 2)
    moved.rename(desk.directory)
    assert desk.writer.close(BOUND_S)
    assert (desk.directory / "runtime.json").read_bytes() == b"y"


@pytest.mark.usefixtures("no_leaks")
def test_closing_flushes_even_when_the_loop_is_gone(tmp_path: Path) -> None:
    """What waits at close is written; answers to a closed loop are dropped without noise."""
    desk = Desk(tmp_path)
    desk.loop.close()
    desk.writer.write_facts(1, DurableFacts(identity="me", epoch_seen=9))
    assert desk.writer.close(BOUND_S)
    assert Store(tmp_path).load("me").facts.epoch_seen == 9
