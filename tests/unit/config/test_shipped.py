"""The role files, examples and schemas that are installed."""

import json
import shutil
import subprocess
from itertools import combinations
from pathlib import Path

import pytest

from node_manager.config.assemble import assemble
from node_manager.config.load import Sources, describe, required_user, user_problem
from node_manager.config.schema import KINDS, json_schema, schema_text
from node_manager.core.spec import (
    ExitMeaning,
    HeartbeatCheck,
    KillScope,
    NodeSpec,
    OnFailure,
    ProbeSpec,
    stop_budget_ns,
)
from tests.unit.config.site import EXAMPLES, SHIPPED_ROLES

ROLES = ("manager", "worker", "apiserver", "reverse-proxy", "provisioner")
COMBINATIONS = [roles for count in range(1, len(ROLES) + 1) for roles in combinations(ROLES, count)]
PROFILES = {"xce": (SHIPPED_ROLES,), "reference": (SHIPPED_ROLES / "reference",)}
PROFILE = pytest.mark.parametrize("roles_dirs", PROFILES.values(), ids=PROFILES.keys())


def on_host(roles: tuple[str, ...], roles_dirs: tuple[Path, ...], directory: Path) -> NodeSpec:
    config = directory / "boot.yaml"
    config.write_text(
        f"version: 1\nroles: [{', '.join(roles)}]\nhost: {{name: h, instance_id: i}}\n"
        "controllers: ['127.0.0.1:7011']\ncontroller: {host_loss_grace_s: 120}\n"
    )
    return assemble(Sources(config, roles_dirs, directory / "run", directory / "state"))


@PROFILE
@pytest.mark.parametrize("roles", COMBINATIONS, ids="+".join)
def test_every_combination_of_roles_is_valid(
    roles: tuple[str, ...], roles_dirs: tuple[Path, ...], tmp_path: Path
) -> None:
    """Any host may have any roles: no names clash, every fact has its authority."""
    assert on_host(roles, roles_dirs, tmp_path).roles == roles


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
@PROFILE
def test_every_example_is_valid(example: Path, roles_dirs: tuple[Path, ...]) -> None:
    """Examples are copied: none of them may be refused, with either profile."""
    spec = assemble(Sources(example, (SHIPPED_ROLES, *roles_dirs), Path("/run/x"), Path("/state/x")))
    assert describe(spec).startswith("host ")


@PROFILE
def test_the_roles_keep_what_the_design_promises(roles_dirs: tuple[Path, ...], tmp_path: Path) -> None:
    """The lines of the role files on which a cluster's safety rests."""
    spec = on_host(ROLES, roles_dirs, tmp_path)
    named = {component.name: component for component in spec.components}
    controller, scheduler, worker = named["controller"], named["scheduler"], named["worker"]
    assert controller.states == ("controller.primary",)
    assert controller.liveness == ProbeSpec(check=HeartbeatCheck(), on_failure=OnFailure.REPORT)
    assert controller.startup is None
    assert (scheduler.run_while, scheduler.restart_on_change) == (
        ("controller.primary",),
        ("controller.primary.term",),
    )
    assert worker.stop.kill_scope is KillScope.PROCESS
    assert worker.stop_when == ("host.decommissioned",)
    assert dict(worker.exit_status) == {79: ExitMeaning.DECOMMISSIONED, 78: ExitMeaning.HOLD}
    assert named["provisioner"].run_while == ("lease.provisioner",)
    assert named["provisioner-lease"].states == ("lease.provisioner",)
    assert named["reverse-proxy"].pre_start is not None
    for name in ("scheduler", "worker"):
        startup = named[name].startup
        assert startup is not None
        assert isinstance(startup.check, HeartbeatCheck)


def test_the_reference_dependants_stop_within_the_reference_leases(tmp_path: Path) -> None:
    """A lease of ten seconds leaves a dependant time to run."""
    spec = on_host(ROLES, PROFILES["reference"], tmp_path)
    named = {component.name: component for component in spec.components}
    for authority, dependant in (("controller", "scheduler"), ("provisioner-lease", "provisioner")):
        lease_s = int(dict(named[authority].environment)["XCE_REF_LEASE_S"])
        assert stop_budget_ns(named[dependant]) <= lease_s * 1_000_000_000 // 2


def test_the_reference_profile_runs_as_anyone(tmp_path: Path) -> None:
    """A newcomer tries it as himself."""
    spec = on_host(ROLES, PROFILES["reference"], tmp_path)
    assert required_user(spec) is None
    assert user_problem(spec, "anyone", is_root=False) is None


def test_a_host_of_several_users_needs_root(tmp_path: Path) -> None:
    """An agent that is not root runs everything as itself: the sentence says which user it must have."""
    spec = on_host(("manager", "worker"), PROFILES["xce"], tmp_path)
    assert required_user(spec) == "root"
    assert user_problem(spec, "root", is_root=True) is None
    assert user_problem(spec, "xce", is_root=False) == (
        "cannot run worker as root: the agent runs as xce, and only root can start components as another user; "
        "run the agent as root"
    )


def test_a_host_of_one_user_needs_that_user_or_root(tmp_path: Path) -> None:
    """A manager host needs no root at all."""
    spec = on_host(("manager",), PROFILES["xce"], tmp_path)
    assert required_user(spec) == "xce"
    assert user_problem(spec, "xce", is_root=False) is None
    assert user_problem(spec, "bob", is_root=False) == (
        "cannot run controller as xce: the agent runs as bob, and only root can start components as another user; "
        "run the agent as root or xce"
    )


def test_the_plan_has_components_in_the_order_of_their_start(tmp_path: Path) -> None:
    """`plan` shows what would be started, as whom and on which conditions."""
    lines = describe(on_host(("worker", "manager"), PROFILES["xce"], tmp_path)).splitlines()
    assert lines[:4] == [
        "host         h (instance i)",
        "roles        worker, manager",
        "agent's user root",
        "controllers  127.0.0.1:7011",
    ]
    assert [line for line in lines if line[:1].isdigit()] == [
        "1. worker (role worker)",
        "2. controller (role manager)",
        "3. scheduler (role manager)",
    ]
    assert "   runs while   controller.primary" in lines
    assert "   command      xce-scheduler --foreground" in lines
    assert "   stop         SIGTERM, after 10 s SIGKILL to the main process alone" in lines


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_example_of_nginx_is_one_that_nginx_takes(tmp_path: Path) -> None:
    """As any user, with everything below its prefix: the very check of the reference role."""
    prefix = tmp_path / "state" / "reverse-proxy"
    prefix.mkdir(parents=True)
    shutil.copy(EXAMPLES / "nginx.conf", prefix)
    [component] = on_host(("reverse-proxy",), PROFILES["reference"], tmp_path).components
    assert component.pre_start is not None
    done = subprocess.run(component.pre_start.command, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


# --- schemas


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_printed_as_json(kind: str) -> None:
    """Editors read them as files."""
    schema = json.loads(schema_text(kind))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["additionalProperties"] is False


def test_every_reference_in_a_schema_leads_somewhere() -> None:
    """A schema with a loose end is refused by editors as a whole."""
    for kind, schema in json_schema().items():
        text = json.dumps(schema)
        names = {part.split('"')[0] for part in text.split('"$ref": "#/$defs/')[1:]}
        assert names <= schema["$defs"].keys(), kind
        assert "#/$defs/" not in text.replace('"$ref": "#/$defs/', "")


def test_an_override_needs_no_field_in_the_schema() -> None:
    """In a role file a command is required, in an override it is not; both refuse unknown fields."""
    schemas = json_schema()
    role, override = (schemas[kind]["$defs"]["ComponentModel"] for kind in ("role", "boot"))
    assert role["required"] == ["command"]
    assert "required" not in override
    assert role["additionalProperties"] is override["additionalProperties"] is False
    assert role["properties"].keys() == override["properties"].keys()


def test_an_unknown_kind_of_schema_is_refused() -> None:
    """The sentence says which there are."""
    with pytest.raises(ValueError, match="cannot print the schema of 'rolle': the kinds are boot, role"):
        schema_text("rolle")
