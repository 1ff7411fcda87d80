"""What `xce-node-manager bootstrap` makes of a configuration and of an instance's metadata, without a systemd."""

import argparse
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from node_manager.cli import bootstrap, daemon
from node_manager.cli.bootstrap import INSTANCE_FILE, BootstrapError, Given, Metadata, Places
from node_manager.config.load import ConfigInvalid, Sources

ROLE = "role: r\nuser: inherit\ncomponents: {c: {command: [sleep, '60'], log: inherit}}\n"
PLAIN = b"version: 1\nroles: [r]\n"


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """An empty host with one role file."""
    (tmp_path / "roles").mkdir()
    (tmp_path / "roles" / "r.yaml").write_text(ROLE)
    config = tmp_path / "etc" / "node-manager.yaml"
    return Sources(config=config, roles_dirs=(tmp_path / "roles",), runtime_dir=tmp_path, state_dir=tmp_path)


def given(text: bytes) -> Given:
    """A configuration from somewhere."""
    return Given(text=text, origin="somewhere")


def written(sources: Sources) -> dict[str, str]:
    """What stands in the place of the configuration."""
    root = sources.config.parent
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def put(sources: Sources, text: bytes, instance_id: str | None = None, *, provided: bool = False) -> bool:
    """Complete and write; return whether anything was changed."""
    _spec, identity = bootstrap.complete(sources, given(text), instance_id, provided=provided)
    return bootstrap.write(sources, text, identity, gid=os.getegid())


def test_written_once(sources: Sources) -> None:
    """The same configuration again touches no file; its owner and mode are put right."""
    assert put(sources, PLAIN)
    before = sources.config.stat()
    assert not put(sources, PLAIN)
    assert before.st_ino == sources.config.stat().st_ino
    assert before.st_mode & 0o7777 == 0o640
    sources.config.chmod(0o666)
    assert put(sources, PLAIN)
    assert sources.config.stat().st_mode & 0o7777 == 0o640
    assert list(written(sources)) == ["node-manager.yaml"]


def test_the_instance_is_named_where_nobody_else_does(sources: Sources) -> None:
    """The id of the metadata goes into a drop-in, follows the instance, and yields to what the operator wrote."""
    put(sources, PLAIN, "i-1", provided=True)
    assert '"i-1"' in written(sources)[f"node-manager.d/{INSTANCE_FILE}"]
    put(sources, PLAIN, "i-2", provided=True)
    assert '"i-2"' in written(sources)[f"node-manager.d/{INSTANCE_FILE}"]
    put(sources, PLAIN + b"host: {instance_id: mine}\n", "i-2", provided=True)
    assert list(written(sources)) == ["node-manager.yaml"]


def test_a_boot_of_a_cloned_image_names_the_new_instance(sources: Sources) -> None:
    """Before an agent starts the drop-in of the image is made right, even while there is no configuration to read."""
    put(sources, PLAIN, "i-1", provided=True)
    bootstrap.refresh_identity(sources, "i-2")
    assert '"i-2"' in written(sources)[f"node-manager.d/{INSTANCE_FILE}"]
    sources.config.write_bytes(b"nonsense")
    bootstrap.refresh_identity(sources, "i-3")
    assert '"i-3"' in written(sources)[f"node-manager.d/{INSTANCE_FILE}"]
    bootstrap.refresh_identity(sources, None)
    assert '"i-3"' in written(sources)[f"node-manager.d/{INSTANCE_FILE}"]


def test_an_image_without_an_identity_gets_one(sources: Sources) -> None:
    """An image that was prepared elsewhere has none; where the operator names one, none is added."""
    put(sources, PLAIN)
    bootstrap.refresh_identity(sources, "i-1")
    assert '"i-1"' in written(sources)[f"node-manager.d/{INSTANCE_FILE}"]
    sources.config.write_bytes(PLAIN + b"host: {instance_id: mine}\n")
    bootstrap.refresh_identity(sources, "i-1")
    assert list(written(sources)) == ["node-manager.yaml"]


@pytest.mark.parametrize(("text", "provided"), [(PLAIN, True), (PLAIN + b"host: {template: spot}\n", False)])
def test_a_provided_host_without_an_identity_is_refused(sources: Sources, text: bytes, provided: bool) -> None:
    """Its successor of the same name could not be told from it."""
    with pytest.raises(BootstrapError, match=r"host\.instance_id"):
        bootstrap.complete(sources, given(text), None, provided=provided)


def test_a_drop_in_is_part_of_the_trial(sources: Sources) -> None:
    """Problems name it and the origin of the configuration, neither of them as the trial has it."""
    sources.drop_in_dir.mkdir(parents=True)
    (sources.drop_in_dir / "50-site.yaml").write_text("rolse: []\n")
    with pytest.raises(ConfigInvalid) as wrong:
        bootstrap.complete(sources, given(b"version: 1\nroles: [r, s]\n"), None, provided=False)
    assert {"somewhere", str(sources.drop_in_dir / "50-site.yaml")} == {
        problem.file for problem in wrong.value.problems
    }


WRONG = "version: 1\nroles: [r]\nhots: {}\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="the command is root's")
@pytest.mark.parametrize("origin", ["file", "standard input", "metadata", "metadata, a mapping", "in place"])
def test_what_is_wrong_is_wrong_where_it_was_given(
    sources: Sources,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    origin: str,
) -> None:
    """With the file that the operator named, its line and its field; not with the one that it would become."""
    file, metadata = tmp_path / "mine.yaml", tmp_path / "instance-data.json"
    args = argparse.Namespace(
        file=None, stdin=origin == "standard input", metadata="metadata" in origin, identity=False
    )
    place = {
        "file": f"{file}:3",
        "standard input": "standard input:3",
        "metadata": f"{metadata}, xce-node-manager:3",
        "metadata, a mapping": f"{metadata}, xce-node-manager",
        "in place": f"{sources.config}:3",
    }[origin]
    if origin == "file":
        args.file = file
    file.write_text(WRONG)
    value = yaml.safe_load(WRONG) if "mapping" in origin else WRONG
    metadata.write_text(json.dumps({"ds": {"meta_data": {"xce-node-manager": value}}}))
    if origin == "in place":
        sources.config.parent.mkdir()
        sources.config.write_text(WRONG)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(WRONG.encode())))
    assert bootstrap.bootstrap(args, sources, Places(instance_data=(metadata,))) == 78
    said = capsys.readouterr().err
    assert f"{place}: hots: unknown field" in said
    assert "xce-bootstrap-" not in said
    assert (origin == "in place") == (str(sources.config) in said) == sources.config.exists()


@pytest.mark.parametrize(
    "metadata",
    [
        {"ds": {"meta_data": {"xce-node-manager": {"version": 1, "roles": ["r"]}}}},
        {"ds": {"meta_data": {"attributes": {"xce-node-manager": PLAIN.decode()}}}},
        {"ds": {"meta_data": {"tags": {"xce-node-manager": PLAIN.decode()}}}},
    ],
)
def test_metadata_carry_a_configuration(sources: Sources, metadata: dict[str, Any]) -> None:
    """As text or as a mapping, where providers put what a user adds."""
    found = bootstrap.configuration_of(Metadata(path=Path("instance-data.json"), content=metadata))
    spec, _identity = bootstrap.complete(sources, found, None, provided=False)
    assert spec.roles == ("r",)


@pytest.mark.parametrize("metadata", [None, {}, {"ds": None}, {"ds": {"meta_data": {"xce-node-manager": 5}}}])
def test_metadata_without_a_configuration(metadata: dict[str, Any] | None) -> None:
    """A sentence, whatever shape they have."""
    with pytest.raises(BootstrapError, match="cannot take the configuration from metadata"):
        bootstrap.configuration_of(
            None if metadata is None else Metadata(path=Path("instance-data.json"), content=metadata)
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="the command is root's")
def test_the_command_line(sources: Sources) -> None:
    """The unit's own call does nothing on a host without metadata, and nothing else; a missing file is a sentence."""
    options = ["--config", str(sources.config), "--roles-dir", str(sources.roles_dirs[0])]
    assert daemon.main(["bootstrap", "--identity", *options]) == 0
    assert daemon.main(["bootstrap", *options]) == 1
    assert not sources.config.parent.exists()
