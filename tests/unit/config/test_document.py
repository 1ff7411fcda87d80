"""Files that are no configuration, or meant to do harm: a problem each, never a crash, a hang or a lot of memory."""

import os
from pathlib import Path

import pytest

from node_manager.config.document import MAX_DEPTH, MAX_VALUES, Located, read
from node_manager.config.problems import Problem
from node_manager.config.sources import MAX_FILE_BYTES

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10)
)


def read_text(directory: Path, text: str | bytes) -> tuple[Located | None, list[Problem]]:
    path = directory / "x.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    problems: list[Problem] = []
    return read(path, problems), problems


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (LAUGHS, 0, f"more than {MAX_VALUES} values, aliases included"),
        ("a: " + "[" * 500_000, 1, f"nested deeper than {MAX_DEPTH} levels"),
        ("a: " + "{a: " * 100_000, 1, f"nested deeper than {MAX_DEPTH} levels"),
        ("".join(f"{' ' * level}a:\n" for level in range(1000)), MAX_DEPTH, f"nested deeper than {MAX_DEPTH} levels"),
        ("a: [" + "1," * 150_000 + "]", 1, f"more than {MAX_VALUES} keys or values"),
        ("a: &x [1, *x]", 1, "an alias stands inside of what it refers to"),
        ("a: &x {b: *x}", 1, "an alias stands inside of what it refers to"),
        ("a: &x\n  <<: *x\n", 1, "an alias stands inside of what it refers to"),
        ("a: *x", 1, "found undefined alias 'x'"),
        ("a: !!python/object/apply:os.system [id]", 1, "the tag 'tag:yaml.org,2002:python/object/apply:os.system' has"),
        ("a: !mine x", 1, "the tag '!mine' has no meaning here"),
        ("a: !!binary aGk=", 1, "the tag 'tag:yaml.org,2002:binary' has no meaning here"),
        ("x: 1\n? [a]\n: 1", 2, "a key must be text"),
        ("<<: 1", 1, "only mappings can be merged"),
        (b"a: 1\nb: \xff\xfe", 2, "byte 0xff is not UTF-8"),
        ("a: 1".encode("utf-16"), 1, "byte 0xff is not UTF-8"),
        ("a: 1\nb: \x07", 2, "the character U+0007 may not stand in YAML"),
        ("a: 1\nb: \x00", 2, "the character U+0000 may not stand in YAML"),
        ('a: "\\0"', 1, "the text holds a NUL or half of a surrogate pair"),
        ('a: "\\ud800"', 1, "the text holds a NUL or half of a surrogate pair"),
        ("a: " + "9" * 100_000, 1, "as a number"),
        ("a: 1" + ":1" * 100_000, 1, "as a number"),
        ("a: 12345678901234567890", 1, "YAML reads 12345678901234567890 as 12345678901234567890"),
        ("a: 1.0e+999", 1, "YAML reads 1.0e+999 as inf"),
        ("a: .nan", 1, "YAML reads .nan as nan"),
        ("a: 1_000", 1, "YAML reads 1_000 as 1000"),
        ("a: 0x1F", 1, "YAML reads 0x1F as 31"),
        ("a: !!int x", 1, "YAML reads x as a number"),
        ("null: 1", 1, "YAML reads the key null as null"),
        ("1.5: 1", 1, "YAML reads the key 1.5 as 1.5"),
        ("%YAML 9.9\n---\na: 1", 1, "cannot read the YAML"),
    ],
)
def test_harmful_and_broken_files_are_problems(tmp_path: Path, text: str | bytes, line: int, problem: str) -> None:
    """The line is where it stands, and the sentence is bounded however long the file is."""
    _, [found] = read_text(tmp_path, text)
    assert line == found.line
    assert problem in found.problem
    assert len(found.problem) + len(found.remedy) < 400


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    """The bound is on what is read, whatever the file's size says."""
    found, [problem] = read_text(tmp_path, "#" * (MAX_FILE_BYTES + 1))
    assert found is None
    assert f"longer than {MAX_FILE_BYTES} bytes" in problem.problem


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    """Opening a FIFO would wait for ever."""
    os.mkfifo(tmp_path / "x.yaml")
    problems: list[Problem] = []
    assert read(tmp_path / "x.yaml", problems) is None
    assert [problem.problem for problem in problems] == ["cannot read it: it is no regular file"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (".", "cannot read it: it is a directory"),
        ("absent.yaml", "the file does not exist"),
        ("link.yaml", "cannot read it: Too many levels of symbolic links"),
        ("plain/x.yaml", "cannot read it: Not a directory"),
        ("x" * 300, "cannot read it: File name too long"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, name: str, problem: str) -> None:
    """The errno's meaning is the sentence."""
    (tmp_path / "link.yaml").symlink_to("link.yaml")
    (tmp_path / "plain").write_text("")
    problems: list[Problem] = []
    assert read(tmp_path / name, problems) is None
    assert [found.problem for found in problems] == [problem]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_says_how_to_give_it(tmp_path: Path) -> None:
    """Permission is the usual reason, so that it has a remedy of its own."""
    path = tmp_path / "x.yaml"
    path.write_text("a: 1")
    path.chmod(0)
    problems: list[Problem] = []
    assert read(path, problems) is None
    assert problems[0].remedy.startswith("let the node manager's user read it: chmod a+r")


def test_values_know_their_lines(tmp_path: Path) -> None:
    """A value under a key has the key's line, an item of a list its own, comments and blank lines counted."""
    found, problems = read_text(tmp_path, "# one\n\na:\n  - x\n  -\n    b: 2\nc: {d:\n  e}\n")
    assert found is not None
    assert problems == []
    lines = {path: located.line for path in (("a",), ("a", 0), ("a", 1), ("a", 1, "b"), ("c", "d"))
             if (located := found.at(path)) is not None}  # fmt: skip
    assert lines == {("a",): 3, ("a", 0): 4, ("a", 1): 6, ("a", 1, "b"): 6, ("c", "d"): 7}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 0", 0),
        ("a: -5", -5),
        ("a: 1.5", 1.5),
        ("a: 1.5e+3", 1500.0),
        ("a: true", True),
        ("a: No", False),
        ("a: ~", None),
        ("a: '010'", "010"),
        ("a: !!str 010", "010"),
        ("a: 1e3", "1e3"),
        ("a: mgr1:7011", "mgr1:7011"),
        ("a: =", "="),
        ("\ufeffa: 1", 1),
        ("a: |\n  x\n  y\n", "x\ny\n"),
    ],
)
def test_ordinary_values_are_what_yaml_says(tmp_path: Path, text: str, value: object) -> None:
    """Strictness is about traps alone."""
    found, problems = read_text(tmp_path, text)
    assert problems == []
    assert found is not None
    assert found.unlocated() == {"a": value}
