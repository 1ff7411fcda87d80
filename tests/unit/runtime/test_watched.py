"""What the loop watches: nothing that is closed, even where a child between fork and exec has a copy of it."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from node_manager.core.events import Outcome, ProbeDone, Spawned, SpawnFailed
from node_manager.core.spec import ExecCheck, TcpCheck
from tests.unit.runtime.rig import Rig
from tests.unit.runtime.test_probers import NS, Bench


def _open() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers
        try:
            found[int(name)] = str(Path(f"/proc/self/fd/{name}").readlink())
        except OSError:
            continue  # the listing's own
    return found


def _watched_though_closed() -> set[int]:
    """The descriptors that epoll still tells of although they are closed."""
    now = _open()
    watched = {
        int(line.split()[1])
        for number, target in now.items()
        if target == "anon_inode:[eventpoll]"
        for line in Path(f"/proc/self/fdinfo/{number}").read_text().splitlines()
        if line.startswith("tfd:")
    }
    return watched - set(now)


@contextmanager
def copies(begin: Callable[[], object]) -> Iterator[None]:
    """Have copies of all descriptors that `begin` opens, as a child has them that was forked in that moment."""
    before = set(_open())
    begin()
    with ExitStack() as stack:
        for number in set(_open()) - before:
            stack.callback(os.close, os.dup(number))
        yield


def test_a_start_leaves_nothing_watched(rig: Rig) -> None:
    """Whether its command runs or cannot be executed."""
    with copies(lambda: rig.spawn(("/bin/sleep", "300"))):
        rig.wait_for(Spawned)
        assert _watched_though_closed() == set()
    with copies(lambda: rig.spawn(("/nonexistent",), "other")):
        rig.wait_for(SpawnFailed)
        assert _watched_though_closed() == set()


@pytest.mark.parametrize("command", ["/bin/true", "/nonexistent"])
def test_a_helper_leaves_nothing_watched(rig: Rig, command: str) -> None:
    """Nor does an exec probe."""
    bench = Bench(rig)
    with copies(lambda: bench.run(ExecCheck(command=(command,)))):
        bench.rig.run_until(lambda: bench.rig.events and not _under_way(bench))
        assert _watched_though_closed() == set()
    bench.close()


def _under_way(bench: Bench) -> tuple[int, ...]:
    return bench.rig.processes.helpers.pids


def test_a_wake_up_for_nothing_is_no_connection(rig: Rig) -> None:
    """Epoll tells of a descriptor whose number is the probe's socket's by now: it is not connected for that."""
    bench = Bench(rig)
    with socket.socket() as server, socket.socket() as filler:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        filler.setblocking(False)
        filler.connect_ex(server.getsockname())
        reading, writing = os.pipe()
        copy = os.dup(reading)
        rig.loop.add_reader(reading, lambda: None)
        os.close(reading)
        rig.loop.remove_reader(reading)
        os.close(writing)
        bench.run(TcpCheck(port=server.getsockname()[1]), timeout_ns=NS)
        rig.turn()
        assert rig.of(ProbeDone) == []
        assert reading in _open(), "the number is given anew"
        done = rig.wait_for(ProbeDone)
        assert (done.outcome, "did not come within 1 s" in done.detail) == (Outcome.FAILED, True)
        os.close(copy)
    bench.close()
