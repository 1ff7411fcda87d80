"""How long a reading of the configuration may take, with validators that hang and a clock that is set ahead."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from node_manager.api.limits import Limits
from node_manager.config.child import EXIT_WAIT_S
from node_manager.core.spec import NodeSpec
from node_manager.runtime.configuration import LEAST_S, RELOAD_TIMEOUT_S, Configuration
from node_manager.runtime.settings import Settings
from tests.unit.config.site import BOOT, PLAIN_BOOT, PLAIN_ROLE, Site
from tests.unit.heartbeat.support import MovableLoop
from tests.unit.runtime.rig import BOUND_S


class Reader:
    """A configuration that is read, and what came of each reading."""

    def __init__(self, loop: MovableLoop, settings: Settings) -> None:
        self.loop = loop
        self.loaded: list[tuple[int, ...]] = []
        self.failed: list[tuple[str, tuple[int, ...]]] = []
        self._others = set(psutil.Process().children())
        self.reading = Configuration(loop, settings, loaded=self._loaded, failed=self._failed)

    def _loaded(self, _spec: NodeSpec, ids: tuple[int, ...]) -> None:
        self.loaded.append(ids)
        self._others.update(psutil.Process().children())

    def _failed(self, error: str, ids: tuple[int, ...]) -> None:
        self.failed.append((error, ids))
        self._others.update(psutil.Process().children())

    def turn_until(self, condition: Callable[[], object], what: str) -> None:
        """Turn the loop until it holds; no turn waits for anything."""
        until_s = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < until_s, f"{what} did not come; {self.loaded} {self.failed}"
            self.loop.run_until_complete(asyncio.sleep(0))

    def validators(self) -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if child not in self._others]

    def hung(self) -> psutil.Process:
        """Return the next validator, which hangs."""
        self.turn_until(self.validators, "a validator")
        (child,) = self.validators()
        self.turn_until(lambda: child.status() == psutil.STATUS_STOPPED, "its stop")
        return child


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    site = Site(tmp_path)
    site.write(BOOT, PLAIN_BOOT)
    site.write("roles/web.yaml", PLAIN_ROLE)
    loop = MovableLoop()
    made = Reader(loop, Settings(sources=site.sources, log_dir=None))
    yield made
    made.reading.close()
    made.turn_until(lambda: not made.reading.busy, "the end")
    loop.close()


def test_a_reload_whose_check_hangs_fails_in_time_and_the_next_one_is_read(
    reader: Reader, hanging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the first reading's bound, but after its own; the validator is gone, and nothing is called wrong."""
    reader.reading.request()
    reader.turn_until(lambda: reader.loaded, "the first configuration")
    with monkeypatch.context() as within:
        within.setattr(sys, "executable", hanging)
        reader.reading.request(7)
        child = reader.hung()
    reader.loop.advance(RELOAD_TIMEOUT_S)
    reader.turn_until(lambda: reader.failed, "the failure")
    ((error, ids),) = reader.failed
    assert ids == (7,)
    assert f"the validator took longer than {RELOAD_TIMEOUT_S:g} s and was killed" in error
    assert "nothing is known to be wrong with it" in error
    reader.turn_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "its death")
    reader.reading.request(8)
    reader.turn_until(lambda: len(reader.loaded) > 1, "the next one")
    assert reader.loaded[1:] == [(8,)]


def test_who_asks_during_a_reading_that_hangs_does_not_wait_for_two(
    reader: Reader, hanging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading after it has what is left of the time that a command may take."""
    reader.reading.request()
    reader.turn_until(lambda: reader.loaded, "the first configuration")
    monkeypatch.setattr(sys, "executable", hanging)
    reader.reading.request(7)
    reader.hung()
    reader.loop.advance(5)
    reader.reading.request(8)
    reader.loop.advance(RELOAD_TIMEOUT_S - 5)
    reader.turn_until(lambda: reader.failed, "the first failure")
    reader.hung()
    reader.loop.advance(LEAST_S)
    reader.turn_until(lambda: len(reader.failed) > 1, "the second failure")
    assert [ids for _, ids in reader.failed] == [(7,), (8,)]


def test_a_command_waits_for_its_answer_for_longer_than_any_reading_takes() -> None:
    """Else nobody would hear why it was not read: with a reading before it, and both validators slow to die."""
    assert Limits().command_s > RELOAD_TIMEOUT_S + LEAST_S + 2 * EXIT_WAIT_S
