from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.heartbeat.support import MovableLoop, Node, short_directory


@pytest.fixture
def loop() -> Iterator[MovableLoop]:
    movable = MovableLoop()
    yield movable
    movable.close()


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture
def node() -> Node:
    return Node()
