import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node_manager.cli.nodectl import main
from tests.unit.api.fake import Service, short_directory

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is UTC and nothing in the caller's environment changes what is printed."""
    for name in ("COLUMNS", "LINES", "NO_COLOR", "XCE_STATUS_SOCKET", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a short path."""
    with short_directory() as path:
        yield path


@pytest.fixture
def service(directory: Path) -> Iterator[Service]:
    """An agent that answers."""
    with Service(directory) as running:
        yield running
    assert running.errors == []


class Outcome:
    """What a run of the command left."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(service: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs xce-nodectl in this process against the service."""
    monkeypatch.setenv("XCE_STATUS_SOCKET", str(service.path))

    def call(*arguments: str) -> Outcome:
        status = main(arguments)
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return call


def command_line(*arguments: str) -> list[str]:
    """The command as a process of its own."""
    return [sys.executable, "-m", "node_manager.cli.nodectl", *arguments]


def spawn(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    """Start xce-nodectl as a process."""
    environment = os.environ | more.pop("env", {})
    return subprocess.Popen(command_line(*arguments), cwd=ROOT, env=environment, text=True, **more)
