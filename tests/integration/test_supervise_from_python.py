"""The example of the documentation, run as it stands there."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.host import BOUND_S, free_port

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "supervise-from-python.md"
LINE = re.compile(r"\S+Z (\S+): (\S+) ?(.*)")


@pytest.fixture
def example() -> str:
    """The first Python block of the page."""
    found = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def told(program: "subprocess.Popen[str]") -> Iterator[tuple[str, str, str]]:
    """Service, kind and details of each event that it prints."""
    assert program.stdout is not None
    for line in program.stdout:
        found = LINE.fullmatch(line.strip())
        assert found is not None, line
        yield found[1], found[2], found[3]


@pytest.mark.timeout(2 * BOUND_S)
def test_the_documented_example_supervises_two_processes(example: str, place: Path) -> None:
    """Under 40 lines: both become ready, in order; a killed one comes back; Ctrl-C ends both and the program."""
    assert len(example.splitlines()) < 40
    port = free_port()
    source = place / "services.py"
    source.write_text(example)
    with subprocess.Popen(
        [sys.executable, str(source), str(port)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        events = told(program)
        pids: dict[str, int] = {}
        ready: list[str] = []
        for service, kind, details in events:
            if kind == "spawned":
                pids[service] = int(details.split("pid=")[1])
            if kind == "readiness_changed" and "ready=true" in details:
                ready.append(service)
            if len(ready) == 2:
                break
        assert ready == ["web", "watcher"]
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=BOUND_S).status == 200
        first = pids["web"]
        os.kill(first, signal.SIGKILL)
        for service, kind, details in events:
            if (service, kind) == ("web", "spawned"):
                pids["web"] = int(details.split("pid=")[1])
                break
        assert pids["web"] != first
        program.send_signal(signal.SIGINT)
        assert program.wait(BOUND_S) != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
