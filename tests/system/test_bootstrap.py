"""`xce-node-manager bootstrap` on a machine with a real systemd."""

from typing import Any

import yaml

from tests.system.hosts import boot_configuration, run_controller
from tests.system.machine import CONFIG, UNIT, Machine

DROP_IN = f"/etc/systemd/system/{UNIT}.d/50-root.conf"


def bootstrap(machine: Machine, *roles: str, ok: int = 0, **changes: Any) -> str:
    """Run it with a configuration on standard input; return what it says."""
    text = yaml.safe_dump(boot_configuration(*roles, **changes))
    done = machine.run("xce-node-manager", "bootstrap", "--stdin", ok=ok, stdin=text)
    return done.stdout + done.stderr


def test_one_command_from_the_package_to_ready(machine: Machine) -> None:
    """The file has the right owner and mode, the unit is enabled and runs, as xce."""
    assert f"{UNIT} is active" in bootstrap(machine, "manager")
    machine.ready()
    assert machine.shell(f"stat -c '%U %G %a' {CONFIG}").strip() == "root xce 640"
    assert machine.run("systemctl", "is-enabled", UNIT).stdout == "enabled\n"
    assert machine.shell(f"stat -c %U /proc/{machine.agent_pid()}").strip() == "xce"


def test_again_and_again_without_harm(machine: Machine) -> None:
    """The same configuration again changes nothing; another one is taken up by the agent that runs."""
    bootstrap(machine, "manager")
    machine.running()
    before, agent = machine.pids(), machine.agent_pid()
    written = machine.shell(f"stat -c %Y.%i {CONFIG}")
    bootstrap(machine, "manager")
    assert (before, agent, written) == (machine.pids(), machine.agent_pid(), machine.shell(f"stat -c %Y.%i {CONFIG}"))
    bootstrap(machine, "manager", "apiserver")
    machine.wait_status(lambda found: len(found["components"]) == len(before) + 1, "the new role is there")
    assert agent == machine.agent_pid()
    assert before == {name: pid for name, pid in machine.pids().items() if name in before}


def test_a_role_that_needs_root(machine: Machine) -> None:
    """The drop-in comes with such a role and goes with it; what runs under the other user runs on.

    But for a leased component: a fuse obeys its own user alone, and so another one has to guard another run.
    """
    bootstrap(machine, "manager")
    machine.running()
    before = machine.pids()
    assert "runs as root" in bootstrap(machine, "manager", "worker")
    machine.wait_status(lambda found: len(found["components"]) == 3 and found["node"]["ready"], "the worker is ready")
    assert machine.shell(f"readlink {DROP_IN}").strip() == "/usr/share/xce/units/root.conf"
    assert machine.shell(f"stat -c %U /proc/{machine.agent_pid()}").strip() == "root"
    assert before["controller"] == machine.pids()["controller"]
    bootstrap(machine, "manager")
    assert machine.run("test", "-e", DROP_IN, ok=1).stdout == ""


def test_a_wrong_configuration_changes_nothing(machine: Machine) -> None:
    """Everything that is wrong is said with the place that it was given in; the one in force stays."""
    bootstrap(machine, "manager")
    before = machine.path(CONFIG).read_text(encoding="utf-8")
    said = bootstrap(machine, "nonsense", ok=78)
    assert "standard input:" in said
    assert "nonsense" in said
    assert before == machine.path(CONFIG).read_text(encoding="utf-8")


def test_a_provided_host_must_know_which_instance_it_is(machine: Machine) -> None:
    """Without an id a host that returns under an old name could not be told from the old one: refused."""
    said = bootstrap(machine, "manager", ok=1, host={"template": "spot"})
    assert "host.instance_id" in said
    assert machine.run("test", "-e", CONFIG, ok=1).stdout == ""


def test_an_image_is_prepared(machine: Machine) -> None:
    """Where systemd does not run, everything but the start is done: what an image builder wants."""
    text = yaml.safe_dump(boot_configuration("worker"))
    done = machine.run(
        *("unshare", "--mount", "sh", "-ec", "umount -R /run; xce-node-manager bootstrap --stdin"), stdin=text
    )
    assert "it starts at the next boot" in done.stdout
    machine.reboot()
    run_controller(machine)
    machine.ready()
