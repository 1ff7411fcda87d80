"""Fixtures of the runtime's tests: short paths, a rig of real processes, and proof that nothing leaks."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.unit.runtime.rig import Rig


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name (108 bytes)."""
    path = Path(tempfile.mkdtemp(prefix="xce"))
    yield path
    shutil.rmtree(path)


def _open_descriptors() -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            found[entry.name] = str(entry.readlink())
    return found


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """After the test there are no more descriptors than before, and no more children, dead or alive."""
    before = _open_descriptors()
    children = psutil.Process().children()
    yield
    extra = _open_descriptors().items() - before.items()
    assert not extra, f"descriptors left open: {extra}"
    more = [child for child in psutil.Process().children() if child not in children]
    assert not more, f"children left: {more}"


@pytest.fixture
def rig(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[Rig]:
    request.getfixturevalue("no_leaks")
    made = Rig(short_dir)
    yield made
    made.close()
