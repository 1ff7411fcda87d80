"""The judges of the cluster's trials: what they have to see, and what they have to let pass."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.judge import Log, Sign, interleaved, longest_gap_ns
from tests.cluster.observer import Observer
from tests.integration.host import wait_until


def signs(*entries: tuple[int, int, int]) -> list[Sign]:
    """From (time, term, pid)."""
    return [Sign(at_ns=at, term=term, pid=pid, valid_until_ns=0) for at, term, pid in entries]


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([(1, 1, 7), (2, 1, 7), (3, 2, 8), (4, 2, 8), (9, 5, 7)], 0),
        ([(1, 1, 7), (3, 2, 8), (2, 1, 7), (4, 2, 8)], 0),
        ([(1, 1, 7), (2, 2, 8), (3, 1, 7)], 1),
        ([(1, 1, 7), (2, 1, 8), (3, 1, 7)], 1),
        ([(1, 2, 7), (2, 1, 8)], 1),
        ([(1, 1, 7), (2, 2, 8), (3, 1, 7), (4, 2, 8)], 2),
    ],
)
def test_interleaving_terms_and_processes_are_found(entries: list[tuple[int, int, int]], found: int) -> None:
    """A scheduler that shows again after another one has, or under an older term, is found, and nothing else is."""
    assert found == len(interleaved(signs(*entries)))


def test_the_longest_gap() -> None:
    """It is between two signs, whoever made them."""
    assert longest_gap_ns(signs((1, 1, 7), (5, 1, 7), (20, 2, 8), (22, 2, 8))) == 15
    assert longest_gap_ns([]) == 0


def test_a_log_is_read_on_and_a_torn_line_waited_for(tmp_path: Path) -> None:
    """What has grown since the last look is read, up to the last whole line; the C programs say less."""
    path = tmp_path / "log"
    log = Log(path)
    assert log.read() == []
    path.write_text('{"term": 3, "boottime_ns": 5, "valid_until_ns": 9, "pid": 7}\n{"term": 3, "boott')
    assert log.read() == [Sign(at_ns=5, term=3, pid=7, valid_until_ns=9)]
    with path.open("a") as file:
        file.write('ime_ns": 6}\n')
    assert log.read()[1:] == [Sign(at_ns=6, term=3, pid=0, valid_until_ns=0)]


@pytest.fixture
def observer(tmp_path: Path) -> Iterator[Observer]:
    """An observer of the hosts below a directory."""
    made = Observer(tmp_path)
    made.start()
    yield made
    made.stop()


def scheduler(base: Path, host: str) -> "subprocess.Popen[bytes]":
    """A process that looks like a scheduler's main process."""
    script = "export XCE_MAIN_PID=$$; exec sleep 1000"
    environment = {"XCE_COMPONENT": "scheduler", "XCE_HEARTBEAT_SOCKET": f"{base}/{host}/run/heartbeat.sock"}
    return subprocess.Popen(["/bin/sh", "-c", script], env={**environment, "PATH": os.environ["PATH"]})


def test_two_at_once_are_seen_and_one_after_the_other_is_not(observer: Observer, tmp_path: Path) -> None:
    """The observer finds a scheduler by the process table, sees its end and how it ended, and tells two from one."""
    first = scheduler(tmp_path, "m1")
    wait_until(lambda: len(observer.alive()) == 1, "the first is seen")
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: not observer.alive(), "its end is seen")
    first.wait()
    assert [(life.host, life.pid) for life in observer.lives()] == [("m1", first.pid)]
    second = scheduler(tmp_path, "m2")
    wait_until(lambda: len(observer.alive()) == 1, "the second is seen")
    assert observer.overlaps == []
    third = scheduler(tmp_path, "m3")
    wait_until(lambda: observer.overlaps, "two at once are seen")
    for process in (second, third):
        process.kill()
        process.wait()
