"""Fixtures of the integration tests: a directory with short paths, and hosts that end with their test."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.host import Host
from tests.integration.leftovers import Leftovers


@pytest.fixture(scope="session")
def leftovers() -> Iterator[Leftovers]:
    """Kills what tests have started, should this process be killed before it can."""
    made = Leftovers()
    yield made
    made.close()


@pytest.fixture
def place(leftovers: Leftovers) -> Iterator[Path]:
    """A new directory whose path is short enough for Unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="xce"))
    leftovers.begin(path)
    yield path
    leftovers.end(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def make_host(place: Path) -> Iterator[Callable[..., Host]]:
    """Make hosts; whatever they still run when the test ends is killed, by its id and its marker."""
    hosts: list[Host] = []

    def make(name: str = "h1", **options: object) -> Host:
        host = Host(place / name, name=name, **options)  # type: ignore[arg-type]
        hosts.append(host)
        return host

    yield make
    for host in hosts:
        host.end()


@pytest.fixture
def host(make_host: Callable[..., Host]) -> Host:
    """One host with the roles manager, worker and apiserver, not started yet."""
    return make_host()
