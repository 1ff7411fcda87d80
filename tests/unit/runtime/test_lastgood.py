"""The last good configuration."""

import json
import os
from pathlib import Path

import pytest

from node_manager.core.spec import ComponentSpec, HostSpec, NodeSpec
from node_manager.runtime import lastgood

SPEC = NodeSpec(
    host=HostSpec(name="h", instance_id="i"),
    roles=("r",),
    components=(ComponentSpec(name="c", role="r", command=("sleep", "1")),),
)


def test_what_was_good_is_read_back(tmp_path: Path) -> None:
    """The whole configuration survives."""
    path = tmp_path / "config.json"
    path.write_bytes(lastgood.encode(SPEC))
    assert lastgood.read(path) == SPEC


def test_another_machines_copy_is_not_used(tmp_path: Path) -> None:
    """A cloned image does not come up as the host that it was cloned from."""
    path = tmp_path / "config.json"
    body = json.loads(lastgood.encode(SPEC)) | {"machine": "another/one"}
    path.write_text(json.dumps(body))
    assert lastgood.read(path) is None


def test_garbage_is_not_used(tmp_path: Path) -> None:
    """Absent, torn, huge or of another version: there is no last good copy."""
    path = tmp_path / "config.json"
    assert lastgood.read(path) is None
    for text in (b"", b"{", b"[]", b"{}", lastgood.encode(SPEC)[:-9], b" " * (lastgood.MAX_BYTES + 1), b"\xff"):
        path.write_bytes(text)
        assert lastgood.read(path) is None


@pytest.mark.parametrize("kind", ["FIFO", "directory", "link to a device", "link to a file"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    """The loop reads this: a FIFO without a writer or an endless device must not hold it up. No link is followed."""
    path = tmp_path / "config.json"
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "link to a device":
            path.symlink_to("/dev/zero")
        case _:
            (tmp_path / "elsewhere").write_bytes(lastgood.encode(SPEC))
            path.symlink_to(tmp_path / "elsewhere")
    assert lastgood.read(path) is None
