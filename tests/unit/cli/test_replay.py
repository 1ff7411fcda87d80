"""`xce-node-manager replay`: what it says of files that are no journal, or a damaged one."""

import json
from pathlib import Path

import pytest

from node_manager.cli.daemon import main

HEADER = {"xce_event_journal": 1, "agent_version": "0", "pid": 1}
TICK = {"step": 1, "now_ns": 5, "event": {"kind": "Tick"}, "actions": []}
CASES: dict[str, tuple[list[object], str]] = {
    "another file": (["version: 1"], "cannot replay FILE: it does not begin like an event journal"),
    "an empty file": ([], "cannot replay FILE: it does not begin like an event journal"),
    "no header": ([TICK], "cannot replay FILE: it does not begin like an event journal"),
    "another format": ([HEADER | {"xce_event_journal": 2}], "FILE:1: ValueError('it has format 2"),
    "a gap": ([HEADER, TICK | {"step": 3}], "cannot replay FILE:2: step 3 stands there, step 1 is missing"),
    "a damaged line": ([HEADER, "{", TICK], "cannot replay FILE:2: "),
    "no object": ([HEADER, [1]], "cannot replay FILE:2: it is no object"),
    "an unknown event": ([HEADER, TICK | {"event": {"kind": "Tock"}}], "'Tock' is not a kind"),
    "another outcome": ([HEADER, TICK | {"actions": [{"kind": "Finish"}]}], "FILE:2: step 1 of life 1"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_replayed_is_said(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, and a sentence that names the file, the line and what is wrong with it."""
    rows, said = CASES[name]
    path = tmp_path / "journal"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    assert main(["replay", str(path)]) == 1
    assert said.replace("FILE", str(path)) in capsys.readouterr().err


def test_a_file_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, and the system's reason."""
    assert main(["replay", str(tmp_path / "none")]) == 1
    assert f"cannot replay {tmp_path / 'none'}: No such file" in capsys.readouterr().err
