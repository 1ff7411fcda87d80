import os
from pathlib import Path

import pytest

from node_manager.runtime.environment import read_environment_file
from node_manager.runtime.spawn import LaunchError


def test_the_simple_form_of_systemd_is_understood(tmp_path: Path) -> None:
    """Comments, quotes, spaces and empty values mean what systemd.exec(5) says."""
    path = tmp_path / "env"
    path.write_text("# a\n; b\n\nA=1\n B = two words \nC=\"x # y\"\nD='z'\nE=\nF=a=b\nA=2\n")
    expected = {"A": "2", "B": "two words", "C": "x # y", "D": "z", "E": "", "F": "a=b"}
    assert expected == read_environment_file(str(path))


@pytest.mark.parametrize("line", ["export A=1", "no equals", "1A=2", "=x", "A-B=1"])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    """The error has the file and the line."""
    path = tmp_path / "env"
    path.write_text(f"OK=1\n{line}\n")
    with pytest.raises(LaunchError, match=f"^cannot read {path}, line 2: expected NAME=VALUE, got '{line}'$"):
        read_environment_file(str(path))


def test_an_optional_file_may_be_absent() -> None:
    """A leading `-` allows the file to be missing, as in systemd."""
    assert read_environment_file("-/nowhere") == {}


def test_what_is_no_bounded_text_is_refused(tmp_path: Path) -> None:
    """Too large, binary, a directory, a FIFO without a writer: an answer at once, no stall."""
    large, binary, fifo = tmp_path / "large", tmp_path / "binary", tmp_path / "fifo"
    large.write_text("A=1\n" * 20_000)
    binary.write_bytes(b"A=\0\n")
    os.mkfifo(fifo)
    for path, expected in ((large, "EFBIG"), (binary, "EILSEQ"), (tmp_path, "EISDIR")):
        with pytest.raises(LaunchError, match=expected):
            read_environment_file(str(path))
    assert read_environment_file(str(fifo)) == {}
