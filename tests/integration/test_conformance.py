"""The conformance kit: right programs conform, and each wrong one is found at its point."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from node_manager.conformance.points import POINTS, Role
from tests.integration.test_c_components import SOURCE

ROOT = Path(__file__).parents[2]
COMPONENT = Path(__file__).with_name("component.py")
KIT = "import sys; from node_manager.cli.daemon import main; sys.exit(main())"
PYTHON = f"{sys.executable} -P"
BOUND_S = 400.0

pytestmark = pytest.mark.timeout(BOUND_S + 20)


def run(role: str, *options: str, program: list[str], **environment: str) -> tuple[int, dict[str, str], str]:
    """Judge a program; returns the exit status, the word for each point, and the report."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-P", "-c", KIT, "conformance", "--as", role, *options, "--", *program],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND_S,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    words = {line[1]: line[0] for line in lines if line and line[0] in {"kept", "BROKEN", "unjudged"}}
    assert words, done.stderr
    return done.returncode, words, done.stdout


def small(role: str, flaw: str, place: Path, *options: str) -> tuple[int, dict[str, str], str]:
    """Judge the small component with this flaw."""
    lease = place / "lease"
    program = [sys.executable, "-P", str(COMPONENT), role, flaw, str(lease)]
    if role == "controller":
        options = (
            *("--store-down", f"echo broken >{lease}", "--store-up", f"rm -f {lease}", "--lease-s", "1.5"),
            *("--rival", f"env RIVAL=2 {PYTHON} {COMPONENT} {role} {flaw} {lease}"),
            *options,
        )
    return run(role, *options, program=program)


@pytest.mark.slow
@pytest.mark.parametrize("role", [role.value for role in Role])
def test_a_right_program_conforms(role: str, tmp_path: Path) -> None:
    """The small component without a flaw keeps every point: what the wrong ones break is their flaw's."""
    status, words, report = small(role, "none", tmp_path)
    assert status == 0, report
    assert {"kept"} == set(words.values())


FLAWS = [
    (point.name, role.value)
    for point in POINTS
    for role in sorted(point.roles, key=lambda role: ("worker", "scheduler", "controller").index(role.value))[:1]
]
"""Each point with the role that is judged quickest."""
ALSO = [("after-a-pause", "controller")]
FAST = {"hello", "records", "statements", "speaker"}


@pytest.mark.parametrize(
    ("point", "role"),
    [pytest.param(*flaw, marks=[] if flaw[0] in FAST else pytest.mark.slow) for flaw in FLAWS + ALSO],
)
def test_a_wrong_program_is_found_at_its_point(point: str, role: str, tmp_path: Path) -> None:
    """For each point there is a program that breaks it, and the kit says so; one that must not makes the kit fail."""
    status, words, report = small(role, point, tmp_path, "--only", point)
    assert words == {point: "BROKEN"}, report
    mandatory = next(one for one in POINTS if one.name == point).mandatory
    assert status == (1 if mandatory else 0)


def test_a_program_that_says_nothing_is_not_taken_for_right(tmp_path: Path) -> None:
    """What could not be judged is named, and the program does not conform."""
    status, words, report = run("worker", "--only", "unasked", "--only", "hello", program=["false"])
    assert (status, words) == (1, {"hello": "BROKEN", "unasked": "unjudged"})
    assert "it ended with 1" in report
    assert tmp_path.exists()


def test_a_controller_without_a_rival_is_not_judged_whole(tmp_path: Path) -> None:
    """Points that need the store or a rival say which option is missing."""
    program = [sys.executable, "-P", str(COMPONENT), "controller", "none", str(tmp_path / "lease")]
    status, words, report = run("controller", "--only", "reads-first", "--only", "kept-at-death", program=program)
    assert (status, set(words.values())) == (1, {"unjudged"})
    assert "give --store-down and --store-up" in report
    assert "give --rival" in report


def test_a_point_that_does_not_exist_is_wrong_usage() -> None:
    """A misspelt point is told apart from one that holds."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", KIT, "conformance", "--as", "worker", "--only", "helo", "--", "true"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND_S,
    )
    assert done.returncode == 2
    assert "no point of a worker is called helo" in done.stderr


@pytest.fixture
def reference(tmp_path: Path) -> str:
    """A command for the reference components, from the source tree."""
    path = tmp_path / "xce-reference"
    path.write_text(f"#!/bin/sh\nexec {PYTHON} -c 'import sys; sys.path.insert(0, \"{ROOT}\"); "
                    "from node_manager.reference.__main__ import main; sys.exit(main())' \"$@\"\n")  # fmt: skip
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("role", [role.value for role in Role])
def test_the_reference_components_conform(role: str, reference: str, tmp_path: Path) -> None:
    """The models for real components keep what they are models of."""
    lease = tmp_path / "controller.lease"
    options = []
    if role == "controller":
        options = [
            *("--store-down", f"echo broken >{lease}", "--store-up", f"rm -f {lease}", "--lease-s", "2"),
            *("--rival", f"env XCE_REF_HOLDER=two {reference} {role}"),
        ]
    status, _words, report = run(
        role,
        *options,
        program=[reference, role],
        XCE_REF_STATE=str(tmp_path),
        XCE_REF_LISTEN="127.0.0.1:0",
        XCE_REF_CONTROLLERS="127.0.0.1:9",
        XCE_REF_LEASE_S="2",
        XCE_REF_HOLDER="one",
    )
    assert status == 0, report


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("make") is None or shutil.which("cc") is None or not SOURCE.is_dir(),
    reason="the sources of libxce, make and a C compiler are needed",
)
@pytest.mark.parametrize("role", ["controller", "scheduler"])
def test_the_examples_in_c_conform(role: str, tmp_path: Path) -> None:
    """What is shown to authors of real components keeps the protocol."""
    build, lease = tmp_path / "build", tmp_path / "c.lease"
    subprocess.run(["make", "--quiet", f"BUILD={build}", "all"], cwd=SOURCE, check=True, timeout=100)
    options = []
    if role == "controller":
        options = [
            *("--store-down", f"echo broken >{lease}", "--store-up", f"rm -f {lease}", "--lease-s", "2"),
            *("--rival", f"env XCE_REF_HOLDER=two {build}/controller {lease}"),
        ]
    program = [str(build / role), str(lease if role == "controller" else tmp_path / "scheduler.log")]
    status, _words, report = run(role, *options, program=program, XCE_REF_LEASE_S="2")
    assert status == 0, report
