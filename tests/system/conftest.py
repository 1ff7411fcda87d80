"""Fixtures of the system tests: the root file system, the installed package, and machines that boot them."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.system import package as packages
from tests.system.machine import Machine

CACHE = "XCE_TEST_CACHE"
"""Where the root file system is kept between runs; by default below the user's cache directory."""
TIMEOUT_S = 1800
"""For one test on a busy machine; the first one makes the root file system too, which fetches packages."""
TIMES = "times"
"""The property under which a test records how long something took, in words."""
_HERE = Path(__file__).parent
_NEEDED = ("mmdebstrap", "unshare", "nsenter", "setpriv", "dpkg-deb")

Make = Callable[..., Machine]
_running: list[Machine] = []
"""The machines of the test that runs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the whole suite: `-m system` runs it alone, `-m "not slow"` leaves it out."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker("system")
            item.add_marker("slow")
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the journals of a test that failed, while its machines still run."""
    report = yield
    if report.failed and item.path.is_relative_to(_HERE):
        for machine in _running:
            report.sections.append((f"journal of {machine.name}", machine.journal("--lines=300")))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the times that tests have recorded."""
    measured = [
        (report.nodeid.rpartition("::")[2], value)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == TIMES and report.when == "call"
    ]
    if measured:
        terminalreporter.section("after the boot has begun")
    for name, value in measured:
        terminalreporter.line(f"{name}: {value}")


@pytest.fixture(scope="session")
def able() -> None:
    """Skip where machines cannot be booted."""
    if os.geteuid() != 0:
        pytest.skip("to boot machines takes root")
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: run packaging/system-setup.sh")


@pytest.fixture(scope="session")
def shared(able: None) -> Iterator[Path]:  # noqa: ARG001 - first see whether it can be
    """A directory that all processes of this run share; the last of them removes it.

    On a disk, where layers may lie: /tmp may be an overlay itself, or memory.
    """
    path = Path(f"/var/tmp/xce-system-{os.environ.get('PYTEST_XDIST_TESTRUNUID') or os.getpid()}")
    path.mkdir(exist_ok=True)
    with (path / "users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield path
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(path)


@pytest.fixture(scope="session")
def place(shared: Path) -> Path:
    """A directory of this process."""
    return Path(tempfile.mkdtemp(dir=shared))


def once(path: Path, make: Callable[[Path], object]) -> Path:
    """Have a directory made by the first process that needs it."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            new = path.with_suffix(".new")
            make(new)
            new.rename(path)
    return path


@pytest.fixture(scope="session")
def root(able: None) -> Path:  # noqa: ARG001 - likewise
    """The root file system without the package."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = os.environ.get(CACHE) or str(home / "xce-node-manager")
    done = subprocess.run([_HERE / "make-root.sh", cache], check=True, stdout=subprocess.PIPE, text=True, timeout=1500)
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def package(shared: Path) -> Path:
    """The package."""
    given = os.environ.get(packages.GIVEN)
    return Path(given) if given else next(once(shared / "package", packages.build).glob("*.deb"))


@pytest.fixture(scope="session")
def installed(root: Path, package: Path, shared: Path) -> tuple[Path, Path]:
    """The layers of a machine on which the package is installed and nothing is configured."""
    return once(shared / "installed", lambda new: packages.layer(root, package, new)) / "upper", root


@pytest.fixture
def make_machine(installed: tuple[Path, Path], place: Path) -> Iterator[Make]:
    """Make machines, to be booted by the test; all of them are gone after it."""

    def make(name: str = "m1", *, lower: tuple[Path, ...] = installed, shared: Path | None = None) -> Machine:
        base = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))
        _running.append(Machine(lower, base, name, shared=shared))
        return _running[-1]

    yield make
    while _running:
        _running.pop().remove()


@pytest.fixture
def machine(make_machine: Make) -> Machine:
    """One machine, booted, with the package and without a configuration."""
    made = make_machine()
    made.boot()
    return made
