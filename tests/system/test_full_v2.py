"""The node manager on a whole machine with full cgroup v2 and an old kernel: limits, the `219/CGROUP` trap, OOM.

One emulated boot carries all checks out (`guest/checks.py`, where each says what it protects); here each of them is a
test. The unit runs as the package has it: with its own WatchdogSec= and time-outs.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import package as packages
from tests.system.conftest import CACHE
from tests.system.emulated import BOUND_S, PROGRAM, Emulator
from tests.system.guest.checks import CHECKS

_HERE = Path(__file__).parent
_LINE = re.compile(r"(ok|not ok) \d+ (\w+)(?:: (.*))? # [\d.]+ s")


class Report:
    """What a machine says while it runs, line by line."""

    def __init__(self, machine: Emulator) -> None:
        self.machine = machine
        self._lines = machine.lines()
        self._found: dict[str, str | None] = {}

    def why_not(self, name: str) -> str | None:
        """Why a check failed, None where it did not; returns as soon as the machine has said so."""
        while name not in self._found:
            line = next(self._lines, None)
            if line is None:
                return "the machine ended before it said so"
            match = _LINE.fullmatch(line)
            if match is not None:
                self._found[match[2]] = None if match[1] == "ok" else match[3] or "it does not say why"
        return self._found[name]

    def close(self) -> None:
        """Switch it off, if it has not done so."""
        self._lines.close()


@pytest.fixture(scope="module")
def report(package: Path, place: Path) -> Iterator[Report]:
    """The report of the one machine."""
    if shutil.which(PROGRAM) is None or shutil.which("mke2fs") is None:
        pytest.skip(f"{PROGRAM} or mke2fs not installed: run packaging/system-setup.sh")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = os.environ.get(CACHE) or str(home / "xce-node-manager")
    done = subprocess.run([_HERE / "make-vm.sh", cache], check=True, stdout=subprocess.PIPE, text=True, timeout=1500)
    root = Path(done.stdout.strip())
    packages.layer(root, package, place / "emulated")
    made = Report(Emulator(root, place / "emulated" / "upper", place / "machine"))
    yield made
    made.close()


@pytest.mark.timeout(BOUND_S + 1800)
@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_in_the_emulated_machine(name: str, report: Report) -> None:
    """Each check of the machine's own report; its sentence stands there."""
    why = report.why_not(name)
    if why is not None:
        pytest.fail(f"{why}\n{report.machine.console()}", pytrace=False)
