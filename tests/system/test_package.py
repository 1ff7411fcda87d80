"""The package over its life: installed, upgraded, broken, removed, purged."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.system import package as packages
from tests.system.conftest import once
from tests.system.hosts import configure, job, serve, worker
from tests.system.machine import BOUND_S, CONFIG, LONG_S, UNIT, Machine, wait_until

EVERYTHING = ("manager", "worker", "apiserver")
VERSIONS = "/usr/lib/xce-node-manager/versions"
LOAD = """
for n in 1 2; do (while :; do :; done) & done
(while :; do dd if=/dev/zero of=/var/tmp/load bs=1M count=16 conv=fsync 2>/dev/null; done) &
while :; do
    xce-reference ctl submit m1 --seconds 1 >/dev/null
    if curl --silent --max-time @ --unix-socket /run/xce/node-manager/status.sock http://localhost/v1/status >/dev/null
    then echo asked; else echo unanswered; fi
done
""".replace("@", f"{BOUND_S:g}")
"""What a busy host does: compute, write, start jobs, and be asked how it is."""


@pytest.fixture(scope="module")
def newer(package: Path, shared: Path) -> Path:
    """The next version."""
    made = once(shared / "newer", lambda new: packages.remade(package, new, "9.0"))
    return next(made.glob("*.deb"))


@pytest.fixture(scope="module")
def broken(package: Path, shared: Path) -> Path:
    """A version that cannot even be imported."""
    prologue = "raise ImportError('broken on purpose')"
    made = once(shared / "broken", lambda new: packages.remade(package, new, "8.9", prologue=prologue))
    return next(made.glob("*.deb"))


def install(machine: Machine, package: Path, *, ok: int = 0) -> str:
    """Install a package as an operator does; return what was said."""
    machine.path("/root/package.deb").write_bytes(package.read_bytes())
    done = machine.run("apt-get", "install", "-y", "/root/package.deb", bound_s=LONG_S, ok=ok)
    machine.run("rm", "/root/package.deb")
    return done.stdout + done.stderr


@pytest.fixture
def host(machine: Machine) -> Machine:
    """A machine on which everything runs, with a job."""
    serve(machine, *EVERYTHING)
    machine.running()
    machine.shell("xce-reference ctl submit m1 --seconds 600")
    wait_until(lambda: job(machine), "the job runs")
    return machine


def everything(machine: Machine) -> tuple[dict[str, int | None], int, str]:
    """What an upgrade must leave as it is: components, the agent's own process, the job."""
    return machine.pids(), machine.agent_pid(), job(machine)


def untouched(machine: Machine, before: tuple[dict[str, int | None], int, str], *, same_agent: bool = True) -> None:
    """Wait until the agent is in charge of what ran before; nothing of it has ended."""
    machine.keeps(before[0])
    assert before[2] in job(machine).split()
    if same_agent:
        assert before[1] == machine.agent_pid()


def node(machine: Machine) -> dict[str, Any]:
    """What the agent says of itself."""
    found: dict[str, Any] = machine.status()["node"]
    return found


def now_runs(machine: Machine, version: str) -> None:
    """Wait until the agent is of this version: on a very busy host nobody may have waited for it so long."""
    machine.wait_status(lambda status: status["node"]["agent_version"] == version, f"{version} is in charge")


def test_lintian_finds_no_fault(package: Path) -> None:
    """But for what the package overrides, each with its reason beside it."""
    if shutil.which("lintian") is None:
        pytest.skip("lintian not installed: run packaging/system-setup.sh")
    done = subprocess.run(["lintian", package], check=False, stdout=subprocess.PIPE, text=True, timeout=LONG_S)
    assert (done.stdout, done.returncode) == ("", 0)


def test_a_fresh_installation_starts_nothing(machine: Machine) -> None:
    """Without a configuration there is nothing to run; the programs, their pages and directories are there."""
    assert machine.property("ActiveState") == "inactive"
    assert machine.run("systemctl", "is-enabled", UNIT, ok=1).stdout == "disabled\n"
    machine.run("xce-node-manager", "--version")
    machine.run("xce-nodectl", "--version")
    assert machine.shell("id -un xce; getent group xce-admin | cut -d: -f1").split() == ["xce", "xce-admin"]
    missing = machine.run("dpkg", "--verify", "xce-node-manager").stdout.splitlines()
    assert [line for line in missing if "/usr/share/doc/" not in line] == []  # which this root leaves out


def test_an_upgrade_touches_no_process(host: Machine, newer: Path) -> None:
    """The new version runs in the process of the old one; components and jobs run on untouched."""
    before = everything(host)
    install(host, newer)
    now_runs(host, "9.0")
    untouched(host, before)
    assert host.shell(f"readlink /usr/lib/xce-node-manager/current; ls {VERSIONS}").split()[0] == "versions/9.0-1"
    host.run("systemctl", "restart", UNIT)
    untouched(host, before, same_agent=False)


def test_an_upgrade_under_load(host: Machine, newer: Path) -> None:
    """While processors, disk, controller and status socket are busy: no process is touched, no job is lost."""
    before = everything(host)
    host.write("/root/load", LOAD)
    host.run("systemd-run", "--quiet", "--unit=load", "sh", "/root/load")
    wait_until(lambda: "asked" in host.journal("-u", "load"), "there is load")
    install(host, newer)
    asked = host.journal("-u", "load").count("asked")
    wait_until(lambda: host.journal("-u", "load").count("asked") > asked, "the new version answers")
    host.run("systemctl", "stop", "load")
    assert "unanswered" not in host.journal("-u", "load")
    now_runs(host, "9.0")
    untouched(host, before)
    wait_until(lambda: before[2] == job(host), "the short jobs have ended")
    wait_until(lambda: _outcomes(host) == {("ended", "exit 0"), ("running", None)}, "each job ran to its end")


def _outcomes(machine: Machine) -> set[tuple[str, str | None]]:
    """What became of the jobs, the long one and any number of short ones."""
    done = machine.run("xce-reference", "ctl", "jobs", ok=None)
    jobs = json.loads(done.stdout)["jobs"] if done.returncode == 0 else []
    return {(one["state"], one.get("outcome") or None) for one in jobs}


def test_a_broken_version_leaves_the_old_one_in_charge(host: Machine, broken: Path, newer: Path) -> None:
    """A version that cannot run is not switched to: the installation fails, and even after a crash the old one runs."""
    before = everything(host)
    assert "broken on purpose" in install(host, broken, ok=100)
    untouched(host, before)
    host.run("kill", "-KILL", str(before[1]))
    host.wait_status(lambda status: status["node"]["agent_pid"] != before[1], "another agent is in charge")
    assert node(host)["agent_version"] != "8.9"
    untouched(host, before, same_agent=False)
    install(host, newer)
    now_runs(host, "9.0")
    untouched(host, before, same_agent=False)


@pytest.mark.parametrize("wrong", ["version: 1\nroles: [nonsense]\n", ""])
def test_a_wrong_configuration_during_an_upgrade(host: Machine, newer: Path, wrong: str) -> None:
    """What the new version would refuse keeps the old one in charge, under the last good copy, until it is right.

    "": there is no file at all.
    """
    said = "nonsense" if wrong else CONFIG
    before = everything(host)
    right = host.path(CONFIG).read_text(encoding="utf-8")
    if wrong:
        host.write(CONFIG, wrong)
    else:
        host.run("rm", CONFIG)
    assert said in install(host, newer, ok=100)
    untouched(host, before)
    host.run("systemctl", "restart", UNIT)
    found = host.wait_status(lambda status: status["node"]["config_error"], "it says what is wrong")
    assert said in found["node"]["config_error"]
    assert found["node"]["agent_version"] != "9.0"
    untouched(host, before, same_agent=False)
    host.write(CONFIG, right)
    host.wait_status(lambda status: status["node"]["config_error"] is None, "the right one is taken up")
    host.run("dpkg", "--configure", "--pending", bound_s=LONG_S)
    now_runs(host, "9.0")
    untouched(host, before, same_agent=False)


def test_the_old_version_is_whole_until_the_new_one_is(host: Machine, newer: Path) -> None:
    """An upgrade that is cut off after the unpacking leaves a node manager that starts, and commands that work."""
    before = everything(host)
    host.path("/root/package.deb").write_bytes(newer.read_bytes())
    host.run("dpkg", "--unpack", "/root/package.deb")
    host.run("kill", "-KILL", str(before[1]))
    host.wait_status(lambda status: status["node"]["agent_pid"] != before[1], "another agent is in charge")
    assert node(host)["agent_version"] != "9.0"
    untouched(host, before, same_agent=False)
    host.run("dpkg", "--configure", "--pending", bound_s=LONG_S)
    now_runs(host, "9.0")
    untouched(host, before, same_agent=False)


def test_removal_stops_and_purge_forgets(host: Machine) -> None:
    """A removal stops components, and leaves users' jobs and all files; a purge leaves what others wrote."""
    before = host.pids()
    running = job(host)
    logs = ("/var/log/xce/worker.log", "/var/log/xce/worker.log.1", "/var/log/xce/worker.log.2.gz")
    others = ("/etc/xce/roles/mine.yaml", "/var/lib/xce/apiserver/data", "/var/log/xce/mine/log")
    for path in (*logs, *others):
        host.write(path, "something\n")
    host.run("apt-get", "remove", "-y", "xce-node-manager", bound_s=LONG_S)
    assert not any(host.alive(pid) for pid in before.values())
    assert running == job(host)
    assert host.shell("ls /usr/lib/xce-node-manager 2>&1 || :").startswith("ls: cannot access")
    kept = (CONFIG, "/var/lib/xce/node-manager/facts.json", *logs, *others)
    assert [path for path in kept if not host.path(path).exists()] == []
    host.run("dpkg", "--purge", "xce-node-manager")
    drop_ins = f"/etc/systemd/system/{UNIT}.d"
    gone = (CONFIG, "/var/lib/xce/node-manager", "/run/xce/node-manager", drop_ins, *logs)
    assert [path for path in gone if host.path(path).exists()] == []
    assert [path for path in others if not host.path(path).exists()] == []
    assert host.run("systemctl", "list-units", "--failed", "--plain", "--no-legend").stdout == ""


def test_a_decommission_survives_reinstallation_and_reboot(host: Machine, package: Path) -> None:
    """What was put out of the cluster stays out: over a removal, an installation and a boot."""
    host.ctl("decommission", "--reason", "broken fan")
    host.wait_status(lambda found: worker(found)["state"] == "stopped", "the worker has stopped")
    host.run("apt-get", "remove", "-y", "xce-node-manager", bound_s=LONG_S)
    install(host, package)
    host.reboot()
    found = host.wait_status(lambda status: status["node"]["ready"], "the rest is ready")
    assert (worker(found)["state"], worker(found)["rule"]) == ("stopped", "decommissioned")
    assert "refused by rule decommissioned" in host.ctl("start", "worker", ok=1)


def test_an_image_of_a_decommissioned_host_is_another_host(host: Machine) -> None:
    """A new instance, of a cloned image and even of the same name, inherits nothing; the old one stays refused."""
    host.ctl("decommission", "--reason", "broken fan")
    host.wait_status(lambda found: worker(found)["state"] == "stopped", "the worker has stopped")
    configure(host, *EVERYTHING, instance_id="i-2")
    host.reboot()
    host.wait_status(lambda found: worker(found)["state"] == "running", "the new instance works")
    configure(host, *EVERYTHING, instance_id="i-1")
    host.reboot()
    found = host.wait_status(lambda status: status["node"]["ready"], "the rest is ready")
    assert found["host"]["state"] == "decommissioned"
