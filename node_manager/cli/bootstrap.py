"""`xce-node-manager bootstrap`: what a boot script runs once, or as often as it likes.

Takes the boot configuration, validates it with the very code of `run`, writes it where the agent reads it, completes
it by the instance's identity, gives the service root where a role needs it, enables the unit and starts it. Each step
leaves alone what is right already. Nothing is changed before everything was found right.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from node_manager.cli.daemon import print_problems
from node_manager.config.load import ConfigInvalid, Sources, load, user_problem
from node_manager.config.sources import MAX_FILE_BYTES, yaml_files
from node_manager.core.spec import NodeSpec
from node_manager.runtime import files, kernel

EX_OK = 0
EX_NOT_SO = 1

UNIT = "xce-node-manager.service"
AGENT_USER = "xce"
"""User and group of the service where no role needs root (units/xce-node-manager.service)."""
INSTANCE_FILE = "10-instance.yaml"
"""The drop-in with the instance's identity. It is this command's own: written anew on each new instance."""
METADATA_KEY = "xce-node-manager"
"""Under this name an instance's metadata may carry the boot configuration, as text or as a mapping."""
UP_S = 60.0
"""How long the agent may take to be in charge, as systemd lets it (TimeoutStartSec=); on an idle host one second."""
_LOOK_S = 0.2
_COMMAND_S = 60.0
_MODE = 0o640
"""The group of the agent reads it, and nobody else: environments may hold secrets."""
_SHARED_MODE = 0o644
_MAX_METADATA_BYTES = 16 * 1024 * 1024
_NO_INSTANCES = frozenset({"iid-datasource-none", "nocloud", "iid-datasource"})
"""What cloud-init calls an instance of which it knows nothing: every host would be the same."""


class BootstrapError(Exception):
    """It cannot be done; the text begins with "cannot" and says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the parts of a host are, but for what the agent itself is told."""

    root_drop_in: Path = Path("/usr/share/xce/units/root.conf")
    unit_drop_ins: Path = Path(f"/etc/systemd/system/{UNIT}.d")
    instance_data: tuple[Path, ...] = (
        Path("/run/cloud-init/instance-data-sensitive.json"),
        Path("/run/cloud-init/instance-data.json"),
    )
    systemd: Path = Path("/run/systemd/system")

    @property
    def installed_drop_in(self) -> Path:
        """The link that gives the service root."""
        return self.unit_drop_ins / "50-root.conf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A boot configuration, and where it is from: what is wrong with it is wrong there."""

    text: bytes
    origin: str
    has_lines: bool = True
    """Whether its lines are those of its origin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What cloud-init knows of this instance."""

    path: Path
    content: dict[str, Any]


def bootstrap(args: argparse.Namespace, sources: Sources, places: Places) -> int:
    """Run the command; return its exit status."""
    if os.geteuid() != 0:
        print("cannot bootstrap this host: run as root", file=sys.stderr)
        return EX_NOT_SO
    try:
        metadata = _metadata(places)
        if args.identity:
            refresh_identity(sources, _instance_id(metadata))
            return EX_OK
        given = _given(args, sources, metadata)
        spec, identity = complete(sources, given, _instance_id(metadata), provided=metadata is not None)
        changed = write(sources, given.text, identity, gid=_gid())
        return _service(spec, places, changed=changed)
    except ConfigInvalid as error:
        status = print_problems(error)
        print("nothing was changed", file=sys.stderr)
        return status
    except BootstrapError as error:
        print(error, file=sys.stderr)
        return EX_NOT_SO
    except OSError as error:
        print(f"cannot bootstrap this host: {kernel.explain(error)}: {error.filename}", file=sys.stderr)
        return EX_NOT_SO


# --- the configuration ----------------------------------------------------------------------------------------------


def _given(args: argparse.Namespace, sources: Sources, metadata: Metadata | None) -> Given:
    """Return the boot configuration as it is given. Raises BootstrapError."""
    if args.stdin:
        text: bytes = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise BootstrapError(f"cannot take the configuration from standard input: more than {MAX_FILE_BYTES} bytes")
        return Given(text=text, origin="standard input")
    if args.metadata:
        return configuration_of(metadata)
    path: Path = args.file or sources.config
    try:
        return Given(text=files.read(path, MAX_FILE_BYTES), origin=str(path))
    except OSError as error:
        hint = "" if args.file else "; write it first, or give it with --file, --stdin or --metadata"
        raise BootstrapError(f"cannot read the configuration {path}: {kernel.explain(error)}{hint}") from error


def configuration_of(metadata: Metadata | None) -> Given:
    """Return the boot configuration that the instance's metadata carry. Raises BootstrapError."""
    if metadata is None:
        raise BootstrapError("cannot take the configuration from metadata: cloud-init has left none on this host")
    origin = f"{metadata.path}, {METADATA_KEY}"
    found = _below(metadata.content, "ds", "meta_data")
    for holder in (found, found.get("attributes"), found.get("tags")):
        value = holder.get(METADATA_KEY) if isinstance(holder, dict) else None
        if isinstance(value, str):
            return Given(text=value.encode(), origin=origin)
        if isinstance(value, dict):
            return Given(text=json.dumps(value, indent=1).encode(), origin=origin, has_lines=False)  # which is YAML
    raise BootstrapError(f"cannot take the configuration from metadata: they have no key {METADATA_KEY}")


def complete(sources: Sources, given: Given, instance_id: str | None, *, provided: bool) -> tuple[NodeSpec, str | None]:
    """Validate this text together with the drop-ins; return it, and the instance id that is to be added to it.

    `provided`: a provider made this host. Raises ConfigInvalid, BootstrapError.
    """
    with tempfile.TemporaryDirectory(prefix="xce-bootstrap-") as place:
        trial = replace(sources, config=Path(place) / sources.config.name)
        trial.config.write_bytes(given.text)
        trial.drop_in_dir.mkdir()
        for drop_in in yaml_files(sources.drop_in_dir):
            if drop_in.name != INSTANCE_FILE:
                shutil.copyfile(drop_in, trial.drop_in_dir / drop_in.name)
        spec = _load(trial, sources, given)
        if spec.host.instance_id is not None:
            return spec, None
        if instance_id is None:
            if provided or spec.host.template is not None:
                raise BootstrapError(
                    "cannot bootstrap this host: a provider made it, and neither the configuration (host.instance_id) "
                    "nor cloud-init's metadata say which instance it is; add `host: {instance_id: ...}`"
                )
            return spec, None
        (trial.drop_in_dir / INSTANCE_FILE).write_text(_identity_text(instance_id), encoding="utf-8")
        return _load(trial, sources, given), instance_id


def refresh_identity(sources: Sources, instance_id: str | None) -> None:
    """Have the drop-in name this instance, before an agent binds the host to another. Raises OSError.

    A configuration that is not there yet, or wrong, may name an instance itself: then only what is there is corrected.
    """
    if instance_id is None:
        return
    drop_in = sources.drop_in_dir / INSTANCE_FILE
    try:
        given = Given(text=files.read(sources.config, MAX_FILE_BYTES), origin=str(sources.config))
        _spec, missing = complete(sources, given, instance_id, provided=True)
        wanted = missing is not None
    except (ConfigInvalid, BootstrapError, OSError):
        wanted = drop_in.exists()
    if wanted:
        sources.drop_in_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        _write(drop_in, _identity_text(instance_id).encode(), _SHARED_MODE, 0)
    else:
        drop_in.unlink(missing_ok=True)


def _load(trial: Sources, sources: Sources, given: Given) -> NodeSpec:
    """Validate, and name in every problem the file that the operator knows."""
    try:
        return load(trial)
    except ConfigInvalid as error:
        place, meant = str(trial.config.parent), str(sources.config.parent)

        def known(text: str) -> str:
            return text.replace(str(trial.config), given.origin).replace(place, meant)

        problems = [
            replace(
                problem,
                file=known(problem.file),
                line=problem.line if given.has_lines or problem.file != str(trial.config) else 0,
                problem=known(problem.problem),
                remedy=known(problem.remedy),
            )
            for problem in error.problems
        ]
        raise type(error)(tuple(problems)) from error


def write(sources: Sources, text: bytes, identity: str | None, *, gid: int) -> bool:
    """Write what differs, at once or not at all; return whether anything did. Raises OSError."""
    sources.config.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    drop_in = sources.drop_in_dir / INSTANCE_FILE
    changed = False
    if identity is not None:
        sources.drop_in_dir.mkdir(mode=0o755, exist_ok=True)
        changed = _write(drop_in, _identity_text(identity).encode(), _SHARED_MODE, 0)
    elif drop_in.exists():
        drop_in.unlink()
        changed = True
    return _write(sources.config, text, _MODE, gid) or changed


def _write(path: Path, data: bytes, mode: int, gid: int) -> bool:
    with suppress(OSError):
        found = path.stat(follow_symlinks=False)
        right = (found.st_mode & 0o7777, found.st_uid, found.st_gid) == (mode, os.geteuid(), gid)
        if right and files.read(path, MAX_FILE_BYTES) == data:
            return False
    # Owner and mode first: an agent that looks at the very moment must neither fail to read it nor read half of it.
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(data)
            os.fchown(fd, os.geteuid(), gid)
            os.fchmod(fd, mode)
            file.flush()
            os.fsync(fd)
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return True


def _identity_text(instance_id: str) -> str:
    return (
        "# Written by `xce-node-manager bootstrap` from this instance's metadata.\n"
        f"host: {{instance_id: {json.dumps(instance_id)}}}\n"
    )


def _gid() -> int:
    import grp

    try:
        return grp.getgrnam(AGENT_USER).gr_gid
    except KeyError as error:
        raise BootstrapError(
            f"cannot bootstrap this host: there is no group {AGENT_USER}; install the package, or run "
            "`systemd-sysusers xce-node-manager.conf`"
        ) from error


# --- metadata -------------------------------------------------------------------------------------------------------


def _metadata(places: Places) -> Metadata | None:
    """Return what cloud-init knows of this instance, None where there is no cloud-init. Raises BootstrapError."""
    for path in places.instance_data:
        try:
            found = json.loads(files.read(path, _MAX_METADATA_BYTES))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise BootstrapError(f"cannot read the instance's metadata {path}: {error}") from error
        if isinstance(found, dict):
            return Metadata(path=path, content=found)
    return None


def _instance_id(metadata: Metadata | None) -> str | None:
    found = _below(metadata.content if metadata is not None else {}, "v1").get("instance_id")
    return str(found) if found and str(found).lower() not in _NO_INSTANCES else None


def _below(metadata: dict[str, Any], *keys: str) -> dict[str, Any]:
    found: Any = metadata
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


# --- the service ----------------------------------------------------------------------------------------------------


def _service(spec: NodeSpec, places: Places, *, changed: bool) -> int:
    """Give the service the user that it needs, enable it, and have it run with this configuration."""
    why = user_problem(spec, AGENT_USER, is_root=False)
    other_user = _give_root(places, wanted=why is not None)
    _systemctl("enable", "--quiet", UNIT)
    print(f"{UNIT} is enabled, and runs as {'root' if why is not None else AGENT_USER}")
    if not places.systemd.is_dir():
        print("systemd does not run here: it starts at the next boot")
        return EX_OK
    if other_user:
        _systemctl("daemon-reload")
    active = _show("ActiveState")[0] in {"active", "activating", "reloading"}
    # Never waited for: called from a stage of the boot that the service is ordered after, it would wait for itself.
    if not active:
        _systemctl("start", "--no-block", UNIT)
    elif other_user:
        _systemctl("restart", "--no-block", UNIT)
    elif changed:
        _systemctl("reload", "--no-block", UNIT)
    return _wait_up()


def _give_root(places: Places, *, wanted: bool) -> bool:
    """Install the drop-in for root, or take it away; return whether anything changed."""
    link = places.installed_drop_in
    there = link.is_symlink() or link.exists()
    if not wanted:
        if not there:
            return False
        link.unlink()
        return True
    if not places.root_drop_in.is_file():
        raise BootstrapError(f"cannot give the service root: {places.root_drop_in} is not installed")
    if there and link.resolve() == places.root_drop_in.resolve():
        return False
    link.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(places.root_drop_in)
    return True


def _wait_up() -> int:
    """Wait until the agent is in charge, or it is certain that it has to wait for the boot."""
    until_s = time.monotonic() + UP_S
    while time.monotonic() < until_s:
        state, job = _show("ActiveState", "Job")
        if state == "active":
            print(f"{UNIT} is active; components: xce-nodectl wait --for ready")
            return EX_OK
        if state == "inactive" and job and _booting():
            print(f"{UNIT} is queued: it starts once the boot has come so far")
            return EX_OK
        time.sleep(_LOOK_S)
    raise BootstrapError(f"cannot see {UNIT} become active within {UP_S:g} s: look at `systemctl status {UNIT}`")


def _booting() -> bool:
    """Whether the service is ordered after something that is under way, such as the stage that called this."""
    return _run("systemctl", "is-system-running").stdout.strip() in {"initializing", "starting"}


def _show(*names: str) -> tuple[str, ...]:
    found = dict(
        line.partition("=")[::2] for line in _systemctl("show", f"--property={','.join(names)}", UNIT).splitlines()
    )
    return tuple(found.get(name, "") for name in names)


def _systemctl(*arguments: str) -> str:
    done = _run("systemctl", *arguments)
    if done.returncode != 0:
        said = " ".join(done.stderr.split())
        raise BootstrapError(f"cannot {arguments[0]} {UNIT}: systemctl says: {said}")
    return done.stdout


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=_COMMAND_S)  # noqa: S603
    except FileNotFoundError as error:
        raise BootstrapError(f"cannot bootstrap this host: there is no {command[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise BootstrapError(
            f"cannot bootstrap this host: {' '.join(command)} took more than {_COMMAND_S:g} s"
        ) from error
