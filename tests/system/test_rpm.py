"""The .rpm over its life, on a real systemd: installed, upgraded, refused, removed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from node_manager import __version__
from tests.system.conftest import Make
from tests.system.hosts import serve
from tests.system.machine import CONFIG, LONG_S, UNIT, Machine

_TREE = Path(__file__).parent.parent.parent
_LIB = "/usr/lib/xce-node-manager"
_NAMES = ("one", "two")


@pytest.fixture(scope="module")
def rpms(place: Path) -> tuple[Path, Path]:
    """The package, and the next release of it."""
    if shutil.which("rpmbuild") is None:
        pytest.skip("rpmbuild not installed: run packaging/system-setup.sh")
    made = []
    for release in ("1", "2"):
        command = [_TREE / "packaging" / "build-rpm.sh", place / "rpm"]
        environment = os.environ | {"XCE_REVISION": release}
        done = subprocess.run(
            command, check=True, env=environment, stdout=subprocess.PIPE, text=True, timeout=LONG_S
        )  # fmt: skip
        made.append(Path(done.stdout.strip()))
    return made[0], made[1]


@pytest.fixture(scope="module")
def with_rpm(root: Path, place: Path) -> tuple[Path, Path]:
    """The layers of a machine that has rpm: this host's, which is of the same release, with its libraries."""
    layer = place / "with-rpm"
    loaded = subprocess.run(["ldd", "/usr/bin/rpm"], check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
    libraries = [Path(line.split()[2]) for line in loaded.splitlines() if "=> /" in line]
    for path in (Path("/usr/bin/rpm"), *libraries):
        real = Path("/usr") / path.relative_to("/") if path.is_relative_to("/lib") else path
        copy = layer / real.relative_to("/")
        if not (root / real.relative_to("/")).exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(real, copy)
    shutil.copytree("/usr/lib/rpm", layer / "usr" / "lib" / "rpm", symlinks=True)
    return layer, root


@pytest.fixture
def host(make_machine: Make, with_rpm: tuple[Path, Path], rpms: tuple[Path, Path]) -> Machine:
    """A machine with the package installed by rpm, which runs two components."""
    machine = make_machine(lower=with_rpm)
    machine.boot()
    rpm(machine, "--install", rpms[0])
    components = {name: {"command": ["sleep", "infinity"]} for name in _NAMES}
    role = {"role": "sleepers", "user": "xce", "components": components}
    machine.write("/etc/xce/roles/sleepers.yaml", yaml.safe_dump(role))
    return machine


def rpm(machine: Machine, action: str, package: Path, *options: str, ok: int | None = 0) -> str:
    """Have rpm do something with a package; return what was said. Whatever it requires, Debian's rpm knows not of."""
    inside = f"/var/cache/{package.name}"
    machine.path(inside).write_bytes(package.read_bytes())
    command = ("rpm", "--force-debian", "--nodeps", action, *options, inside)
    done = machine.run(*command, bound_s=LONG_S, ok=ok)
    return done.stdout + done.stderr


def current(machine: Machine) -> str:
    """Which version is in force."""
    return machine.shell(f"readlink {_LIB}/current").strip()


def everything(machine: Machine) -> tuple[dict[str, int | None], int]:
    """What an upgrade must leave as it is."""
    return machine.pids(), machine.agent_pid()


def test_a_fresh_installation_starts_nothing(host: Machine) -> None:
    """Users, directories and programs are there, and the files as they were packed; nothing runs."""
    assert host.property("ActiveState") == "inactive"
    assert host.run("systemctl", "is-enabled", UNIT, ok=1).stdout == "disabled\n"
    host.run("xce-nodectl", "--version")
    assert host.shell("id -un xce; getent group xce-admin | cut -d: -f1").split() == ["xce", "xce-admin"]
    host.run("rpm", "--verify", "--nodeps", "xce-node-manager")
    assert (
        host.run("rpm", "--query", "--configfiles", "xce-node-manager").stdout == "/etc/logrotate.d/xce-node-manager\n"
    )


def test_an_upgrade_touches_no_process(host: Machine, rpms: tuple[Path, Path]) -> None:
    """The new version runs in the process of the old one; components run on untouched."""
    serve(host, "sleepers")
    before = everything(host)
    rpm(host, "--upgrade", rpms[1])
    host.keeps(before[0])
    assert before == everything(host)
    assert current(host) == f"versions/{__version__}-2"
    assert host.status()["node"]["reexec"]["ok"]
    host.run("systemctl", "restart", UNIT)
    host.keeps(before[0])


def test_a_version_that_refuses_leaves_the_old_one_in_charge(host: Machine, rpms: tuple[Path, Path]) -> None:
    """It says why; once that is mended, one command takes the new one into force."""
    serve(host, "sleepers")
    before = everything(host)
    right = host.path(CONFIG).read_text(encoding="utf-8")
    host.write(CONFIG, "version: 1\nroles: [nonsense]\n")
    said = rpm(host, "--upgrade", rpms[1], ok=None)
    assert "nonsense" in said
    assert f"to try again: {_LIB}/activate" in said
    assert current(host) == f"versions/{__version__}-1"
    host.keeps(before[0])
    assert before == everything(host)
    host.write(CONFIG, right)
    host.wait_status(lambda status: status["node"]["config_error"] is None, "the right one is taken up")
    host.run(f"{_LIB}/activate")
    host.keeps(before[0])
    assert current(host) == f"versions/{__version__}-2"
    assert before == everything(host)


def test_removal_stops(host: Machine) -> None:
    """A removal stops components, and leaves the operator's files and the state."""
    serve(host, "sleepers")
    before = host.pids()
    host.run("rpm", "--force-debian", "--erase", "xce-node-manager", bound_s=LONG_S)
    assert not any(host.alive(pid) for pid in before.values())
    assert host.run("systemctl", "is-active", UNIT, ok=None).stdout == "inactive\n"
    assert host.run("test", "-e", _LIB, ok=None).returncode == 1
    host.shell(f"ls {CONFIG} /var/lib/xce/node-manager/config.json")
