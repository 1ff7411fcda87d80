import json
from pathlib import Path
from typing import Any

import pytest

from node_manager.core.events import Found, KeptHold, KeptLease
from node_manager.runtime import files
from node_manager.runtime.record import MAX_RECORD_BYTES, Encoder, Kept, RuntimeRecord, decode, read

FULL = RuntimeRecord(
    boot_id="boot",
    nonce="nonce",
    agent_pid=12,
    processes=(
        Kept(found=Found(component="a", pid=5, generation=2, started_ns=9), start_ticks=77),
        Kept(
            found=Found(
                component="b",
                pid=6,
                generation=1,
                started_ns=10,
                started_before=True,
                ready=True,
                restarts=3,
                failures=1,
                terms=(("controller.primary", 4),),
                lease_until_ns=99,
                spec_digest="d",
                stop_signal=2,
                stop_timeout_ns=5,
                stop_tree=True,
            ),
            start_ticks=78,
        ),
    ),
    leases=(KeptLease(fact="controller.primary", authority="controller", value=True, term=4, valid_until_ns=99),),
    holds=(KeptHold(component="c", reason="exit 78", since_ns=1, generation=4),),
    highest_terms=(("controller.primary", 4),),
)


def changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(Encoder().encode(FULL)) | changes).encode()


def process(**changes: Any) -> bytes:
    body = json.loads(Encoder().encode(FULL))
    body["processes"][0] |= changes
    return json.dumps(body).encode()


def test_what_was_encoded_is_decoded() -> None:
    """Every field of the record survives, also with an encoder that wrote before."""
    encoder = Encoder()
    encoder.encode(FULL)
    assert decode(encoder.encode(FULL)) == FULL
    empty = RuntimeRecord(boot_id="b", nonce="n")
    assert empty == decode(encoder.encode(empty))
    assert decode(encoder.encode(FULL)) == FULL


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "not complete JSON"),
        (Encoder().encode(FULL)[:-20], "not complete JSON"),
        (b"[" * 100_000, "not complete JSON"),
        (b"\xff", "not complete JSON"),
        (b"[]", "another format"),
        (changed(version=2), "another format"),
        (changed(boot_id=3), "boot_id has a value of the wrong kind"),
        (changed(processes={}), "processes is not a list"),
        (changed(processes=[1]), "processes is not a list"),
        (changed(highest_terms=[["a", True]]), "highest_terms has a value"),
        (changed(highest_terms=[["a"]]), "highest_terms has a value"),
        (changed(leases=[{}]), "leases has no fact"),
        (process(pid=True), "processes.pid has"),
        (process(pid="5"), "processes.pid has"),
        (process(ready=0), "processes.ready has"),
        (process(component="x" * 5000), "processes.component has"),
        (process(start_ticks=None), "processes.start_ticks has"),
        (b" " * (MAX_RECORD_BYTES + 1), "larger than"),
    ],
)
def test_anything_else_is_refused(data: bytes, expected: str) -> None:
    """A torn, hostile or wrong record is a ValueError that says where, never half a record."""
    with pytest.raises(ValueError, match=expected):
        decode(data)


def test_a_record_of_another_version_is_adopted_from() -> None:
    """A missing field takes its default, an unknown one is ignored: an upgrade or a fall-back keeps processes."""
    body = json.loads(Encoder().encode(FULL))
    del body["processes"][1]["stop_tree"]
    body["processes"][1]["invented_later"] = 1
    body["also"] = []
    decoded = decode(json.dumps(body).encode())
    assert not decoded.processes[1].found.stop_tree
    assert FULL.processes[0] == decoded.processes[0]


def test_reading_gives_an_empty_record_with_a_reason(tmp_path: Path) -> None:
    """Absent, torn, another boot's: empty, and the sentence says which."""
    path = tmp_path / "runtime.json"
    empty = RuntimeRecord(boot_id="boot", nonce="nonce")
    assert (empty, None) == read(path, boot_id="boot", nonce="nonce")
    files.replace(path, Encoder().encode(FULL))
    assert read(path, boot_id="boot", nonce="nonce") == (FULL, None)
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"{path} is of another boot" == read(path, boot_id="next", nonce="nonce")[1]
    path.write_bytes(b"{")
    assert (read(path, boot_id="boot", nonce="nonce")[1] or "").startswith(f"cannot use {path}: it is not complete")
    path.unlink()
    path.mkdir()
    assert "EISDIR" in (read(path, boot_id="boot", nonce="nonce")[1] or "")


def test_a_record_of_this_boot_counts_whatever_the_nonce_is_now(tmp_path: Path) -> None:
    """A host whose nonce file was lost still adopts: pid and start time prove its processes."""
    path = tmp_path / "runtime.json"
    files.replace(path, Encoder().encode(FULL))
    assert read(path, boot_id="boot", nonce="another") == (FULL, None)
