"""What `xce-node-manager run` says where it cannot run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from node_manager.cli import places, running
from node_manager.config.sources import Sources
from node_manager.runtime.settings import Settings
from tests.unit.api.fake import BOUND_S, short_directory
from tests.unit.cli.conftest import ROOT

ROLE = "role: r\nuser: inherit\ncomponents: {c: {command: [sleep, '60'], log: inherit}}\n"
NOBODY = 65534


@dataclass(frozen=True)
class Place:
    """A directory with a boot configuration and a role, readable by everyone."""

    root: Path

    def settings(self, **directories: Path) -> Settings:
        """These directories, the rest below `root`."""
        chosen = {name: self.root / name for name in ("runtime_dir", "state_dir", "log_dir")} | directories
        sources = Sources(
            config=self.root / "boot.yaml",
            roles_dirs=(self.root / "roles",),
            runtime_dir=chosen["runtime_dir"],
            state_dir=chosen["state_dir"],
        )
        return Settings(sources=sources, log_dir=chosen["log_dir"])

    def run(self, **directories: Path) -> subprocess.CompletedProcess[str]:
        """Run the agent."""
        settings = self.settings(**directories)
        code = "import sys; from node_manager.cli.daemon import main; sys.exit(main())"
        options = {
            "--config": settings.sources.config,
            "--roles-dir": self.root / "roles",
            "--runtime-dir": settings.runtime_dir,
            "--state-dir": settings.state_dir,
            "--log-dir": settings.log_dir,
        }
        arguments = [str(text) for option in options.items() for text in option]
        command = [sys.executable, "-c", code, "run", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S, check=False)


@pytest.fixture
def place() -> Iterator[Place]:
    """A place for one agent."""
    with short_directory() as root:
        root.chmod(0o755)
        (root / "roles").mkdir()
        (root / "roles" / "r.yaml").write_text(ROLE)
        (root / "boot.yaml").write_text("version: 1\nroles: [r]\n")
        yield Place(root)


@pytest.mark.parametrize("excess", [1, 5, 80])
def test_too_long_a_runtime_directory(place: Place, excess: int) -> None:
    """The sentence names the option; nothing is started, whichever socket is the first that does not fit."""
    longest = len("/heartbeat.sock")
    length = 107 - longest - len(str(place.root)) - 1 + excess
    done = place.run(runtime_dir=place.root / ("x" * length))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cannot use the runtime directory")
    assert done.stderr.endswith("choose a shorter one with --runtime-dir\n")
    assert "Traceback" not in done.stderr


def test_the_agent_loads_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    """Each costs every host memory, and time at each start: TLS, which asyncio takes along, and what only tests use."""
    code = (
        "import sys; from node_manager.cli.daemon import main; status = main(sys.argv[1:]); "
        "found = {'_ssl', 'multiprocessing', 'unittest'} & set(sys.modules); "
        "print(status, 'asyncio' in sys.modules, sorted(found))"
    )
    options = [f"--{name}={tmp_path}/none" for name in ("config", "roles-dir", "runtime-dir", "state-dir", "log-dir")]
    command = [sys.executable, "-c", code, "run", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S, check=True)
    assert done.stdout == "78 True []\n"


def test_longest_runtime_directory(place: Place) -> None:
    """What the kernel takes is taken."""
    length = 107 - len("/heartbeat.sock") - len(str(place.root)) - 1
    places.prepare(place.settings(runtime_dir=place.root / ("x" * length)), ["c"])


@pytest.mark.parametrize(
    ("name", "words"),
    [("state_dir", "state directory"), ("log_dir", "log directory"), ("runtime_dir", "runtime directory")],
)
def test_directory_that_may_not_be_made(place: Place, name: str, words: str) -> None:
    """Who runs it as an ordinary user learns which option gives each directory another place."""
    shared, closed = place.root / "shared", place.root / "closed"
    for directory, mode in ((shared, 0o777), (closed, 0o555)):
        directory.mkdir()
        directory.chmod(mode)
    directories = {other: shared / other for other in ("runtime_dir", "state_dir", "log_dir")}
    directories[name] = closed / "a" / "b"
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        with pytest.raises(places.PlaceError) as refused:
            places.prepare(place.settings(**directories), ["c"])
    finally:
        if root:
            os.seteuid(0)
    option = f"--{name.replace('_', '-')}"
    assert str(refused.value) == (
        f"cannot make the {words} {closed / 'a' / 'b'}: permission denied; choose another with {option}, or run as root"
    )


def test_directory_that_is_a_file(place: Place) -> None:
    """What is no matter of permission says what it is."""
    (place.root / "file").write_text("")
    done = place.run(state_dir=place.root / "file" / "state")
    assert done.returncode == 1
    assert "cannot make the state directory" in done.stderr
    assert done.stderr.endswith("choose another with --state-dir\n")


def test_socket_that_cannot_be_made(place: Place) -> None:
    """Something else in the place of the status socket is a sentence, not a traceback."""
    runtime = place.root / "runtime_dir"
    runtime.mkdir(mode=0o755)
    (runtime / "status.sock").write_text("")
    done = place.run()
    assert done.returncode == 1
    assert f"cannot listen at {runtime / 'status.sock'}: something that is not a socket is there" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("watchdog_s", "pulse_s"), [(None, 5.0), (20.0, 5.0), (5.0, 1.25), (4.0, 1.0), (0.5, 1.0)])
def test_a_calm_loop_turns_often_enough_for_a_watchdog(watchdog_s: float | None, pulse_s: float) -> None:
    """A quarter of the watchdog's interval at most, where that is more than the loop's ordinary second."""
    assert running.calm_pulse_ns(watchdog_s) == pulse_s * 1_000_000_000
