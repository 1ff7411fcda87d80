"""The conformance kit: right programs conform, and each wrong one is found at its point."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from node_manager.conformance.points import POINTS, Role
from tests.integration.test_c_components import SOURCE

ROOT = Path(__file__).parents[2]
COMPONENT = Path(__file__).with_name("component.py")
KIT = "import sys; from node_manager.cli.daemon import main; sys.exit(main())"
PYTHON = f"{sys.executable} -P"
BOUND_S = 400.0
WIDTH = 6
"""Judgements at a time: they sleep for most of theirs."""

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


FLAWS = [
    (point.name, role.value)
    for point in POINTS
    for role in sorted(point.roles, key=lambda role: ("worker", "scheduler", "controller").index(role.value))[:1]
]
"""Each point with the role that is judged quickest."""
ALSO = [("after-a-pause", "controller")]
QUICK = ("hello", "speaker", "statements")
"""Points that `make test` looks at; the others take some minutes together."""


@pytest.mark.parametrize("point", QUICK)
def test_a_wrong_program_is_found(point: str, tmp_path: Path) -> None:
    """The report names the point that is broken, and the exit status says that the program does not conform."""
    status, words, report = small("worker", point, tmp_path, "--only", point)
    assert (1, {point: "BROKEN"}) == (status, words), report


@pytest.mark.slow
@pytest.mark.parametrize("role", [role.value for role in Role])
def test_each_wrong_program_is_found_at_its_point(role: str, tmp_path: Path) -> None:
    """For each point there is a program that breaks it, and the kit says so; one that must not makes the kit fail."""

    def judge(point: str) -> tuple[str, tuple[int, dict[str, str]]]:
        place = tmp_path / point
        place.mkdir()
        return point, small(role, point, place, "--only", point)[:2]

    points = [point for point, of in FLAWS + ALSO if of == role]
    expected = {point: (1 if is_mandatory(point) else 0, {point: "BROKEN"}) for point in points}
    with ThreadPoolExecutor(WIDTH) as pool:
        assert expected == dict(pool.map(judge, points))


def is_mandatory(name: str) -> bool:
    return next(point for point in POINTS if point.name == name).mandatory


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


def reference(place: Path) -> str:
    """A command for the reference components, from the source tree."""
    path = place / "xce-reference"
    program = "from node_manager.reference.__main__ import main; sys.exit(main())"
    path.write_text(f'#!/bin/sh\nexec {PYTHON} -c \'import sys; sys.path.insert(0, "{ROOT}"); {program}\' "$@"\n')
    path.chmod(0o755)
    return str(path)


def candidates(down: Path, rival: str) -> list[str]:
    """The options for a controller whose lease of two seconds is in a file."""
    store = ["--store-down", f"mkdir -p {down.parent}; echo broken >{down}", "--store-up", f"rm -f {down}"]
    return [*store, "--lease-s", "2", "--rival", rival]


@pytest.mark.slow
def test_right_programs_conform(tmp_path: Path) -> None:
    """The small component without a flaw, the reference components and the examples in C keep every point."""
    command = reference(tmp_path)
    runs: dict[str, Callable[[], tuple[int, dict[str, str], str]]] = {}
    for role in (role.value for role in Role):
        place = tmp_path / role
        place.mkdir()
        lease = place / "controller.lease"
        options = candidates(lease, f"env XCE_REF_HOLDER=two {command} {role}") if role == "controller" else []
        environment = {"XCE_REF_STATE": str(place), "XCE_REF_HOLDER": "one"}
        runs[f"small {role}"] = partial(small, role, "none", tmp_path)
        runs[f"reference {role}"] = partial(run, role, *options, program=[command, role], **ALONE, **environment)
    if shutil.which("make") and shutil.which("cc") and SOURCE.is_dir():
        build, lease = tmp_path / "build", tmp_path / "c.lease"
        subprocess.run(["make", "--quiet", f"BUILD={build}", "all"], cwd=SOURCE, check=True, timeout=100)
        options = candidates(lease, f"env XCE_REF_HOLDER=two {build}/controller {lease}")
        program = [str(build / "controller"), str(lease)]
        runs["C controller"] = partial(run, "controller", *options, program=program, **ALONE)
        program = [str(build / "scheduler"), str(tmp_path / "scheduler.log")]
        runs["C scheduler"] = partial(run, "scheduler", program=program, **ALONE)
    with ThreadPoolExecutor(WIDTH) as pool:
        done = {name: pool.submit(judge) for name, judge in runs.items()}
        reports = {name: future.result() for name, future in done.items()}
    assert {name: report for name, (status, _words, report) in reports.items() if status != 0} == {}


ALONE = {"XCE_REF_LISTEN": "127.0.0.1:0", "XCE_REF_CONTROLLERS": "127.0.0.1:9", "XCE_REF_LEASE_S": "2"}
"""Reference components that have nobody to speak to but the agent."""
