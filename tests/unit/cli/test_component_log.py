"""`xce-nodectl logs`: from a file over its rotations, and from the journal by journalctl."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node_manager.cli.component_log import MAX_LINE_BYTES
from tests.unit.api.fake import Service, why_body
from tests.unit.cli.conftest import Run, spawn


@pytest.fixture
def log(service: Service, tmp_path: Path) -> Path:
    """The file of worker's output, empty."""
    path = tmp_path / "worker.log"
    path.touch()
    service.backend.reasons["worker"] = why_body("worker", log=str(path))
    return path


def say(path: Path, *lines: str) -> None:
    """Append, as a component does."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


class Follower:
    """A running `logs --follow`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self._out = process.stdout

    def line(self) -> str:
        """The next line, without its end; waits for it."""
        return self._out.readline().removesuffix("\n")

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C; return the exit status and what was not read."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(), self._out.read()


@contextmanager
def following(service: Service, *arguments: str) -> Iterator[Follower]:
    """Start `logs --follow worker`; it is gone afterwards."""
    command = ("logs", "--follow", "worker", "--socket", str(service.path), *arguments)
    with spawn(*command, stdout=subprocess.PIPE) as process:
        try:
            yield Follower(process)
        finally:
            process.kill()


def test_the_last_lines_of_a_file(log: Path, run: Run) -> None:
    """As many as wanted, the one without an end too, and harmless whatever the component wrote."""
    say(log, *(f"line {n}" for n in range(200)))
    assert run("logs", "worker").out.splitlines() == [f"line {n}" for n in range(100, 200)]
    with log.open("ab") as file:
        file.write(b"\x1b[31mred\tit is \xff")
    outcome = run("logs", "worker", "-n", "2")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == "line 199\n\N{REPLACEMENT CHARACTER}[31mred        it is \N{REPLACEMENT CHARACTER}\n"
    assert run("logs", "worker", "-n", "1", "--json").json == {"MESSAGE": "\x1b[31mred\tit is \ufffd"}
    assert run("logs", "worker", "-n", "0").out == ""


def test_lines_over_blocks(log: Path, run: Run) -> None:
    """Lines longer than what is read at once are found whole."""
    lines = [letter * 3 * MAX_LINE_BYTES for letter in "abc"]
    say(log, *lines)
    assert run("logs", "worker", "-n", "2").out.splitlines() == lines[1:]
    assert run("logs", "worker", "-n", "9").out.splitlines() == lines


def test_just_after_a_rotation(log: Path, run: Run) -> None:
    """What the new file has too few of is taken from the one before it."""
    say(log.with_name("worker.log.1"), "one", "two", "three")
    say(log, "four")
    assert run("logs", "worker", "-n", "3").out.splitlines() == ["two", "three", "four"]


def test_following_over_a_file_emptied_in_place(service: Service, log: Path) -> None:
    """Logrotate's copytruncate: nothing is shown twice or left out, though the file is soon as long as before."""
    say(log, "one", "two")
    with following(service, "-n", "1") as follower:
        assert follower.line() == "two"
        say(log, "three")
        assert follower.line() == "three"
        say(log, "four")  # perhaps not seen before the file is empty
        log.with_name("worker.log.1").write_bytes(log.read_bytes())
        os.truncate(log, 0)
        say(log, "five", "six six six six six six six", "seven")
        assert [follower.line() for _ in range(4)] == ["four", "five", "six six six six six six six", "seven"]
        assert follower.interrupt() == (0, "")


def test_following_over_a_renamed_file(service: Service, log: Path) -> None:
    """What is said into the old file is shown, then the new one from its beginning, whenever that comes."""
    say(log, "one")
    with following(service) as follower:
        assert follower.line() == "one"
        log.rename(log.with_name("worker.log.1"))
        say(log.with_name("worker.log.1"), "two")
        assert follower.line() == "two"
        say(log, "three")
        assert follower.line() == "three"
        say(log, "four")
        assert follower.line() == "four"
        assert follower.interrupt() == (0, "")


def test_a_line_that_never_ends_is_followed_in_parts(service: Service, log: Path) -> None:
    """The memory of a follower is bounded, whether the line was there before it or not."""
    with log.open("a", encoding="ascii", buffering=1) as file:
        file.write("x" * 3 * MAX_LINE_BYTES)
        with following(service) as follower:
            assert follower.line() == "x" * 3 * MAX_LINE_BYTES
            file.write("y" * 3 * MAX_LINE_BYTES)
            assert set(follower.line()) == {"y"}


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ({"log": "/nonexistent/worker.log"}, "cannot read /nonexistent/worker.log: No such file or directory"),
        ({"log": "/dev/null"}, "cannot read /dev/null: it is not a regular file"),
        ({"log": None}, "cannot show the output of worker: it goes to the standard error of the agent"),
    ],
)
def test_output_that_cannot_be_shown(service: Service, run: Run, where: dict[str, str | None], sentence: str) -> None:
    """Exit 1, saying where the output is."""
    service.backend.reasons["worker"] = why_body("worker", **where)
    outcome = run("logs", "worker")
    assert (outcome.status, outcome.out, outcome.err) == (1, "", f"xce-nodectl: {sentence}\n")


def test_logs_of_an_unknown_component(run: Run) -> None:
    """A wrong name is answered with the right ones."""
    outcome = run("logs", "wroker")
    assert outcome.status == 1
    assert "there are: controller, worker" in outcome.err


def test_without_the_agent_it_says_where_to_look(service: Service, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 3 as always, with the command that does without the agent."""
    monkeypatch.setenv("XCE_STATUS_SOCKET", f"{service.path}.not")
    outcome = run("logs", "worker")
    assert outcome.status == 3
    assert "journalctl -t worker" in outcome.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["--no-pager", "--lines=100"]),
        (("-n", "7", "-f"), ["--no-pager", "--lines=7", "--follow"]),
        (("--json",), ["--no-pager", "--lines=100", "--output=json"]),
    ],
)
def test_the_journal_is_journalctls(
    service: Service, tmp_path: Path, options: tuple[str, ...], expected: list[str]
) -> None:
    """Journalctl takes over, with the matches that the agent names; no shell reads them."""
    matches = ["SYSLOG_IDENTIFIER=worker", "_SYSTEMD_UNIT=$(reboot).service", "+", "_UID=0"]
    service.backend.reasons["worker"] = why_body("worker", log=None, journal=matches)
    program = tmp_path / "journalctl"
    program.write_text('#!/bin/sh\nfor each; do echo "$each"; done\nexit 7\n', encoding="ascii")
    program.chmod(0o755)
    command = ("logs", "worker", "--socket", str(service.path), *options)
    with spawn(*command, stdout=subprocess.PIPE, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}) as process:
        out, _ = process.communicate()
    assert (process.returncode, out.splitlines()) == (7, [*expected, "--", *matches])


def test_without_journalctl_it_says_what_to_look_for(
    service: Service, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with a journal and without the command."""
    service.backend.reasons["worker"] = why_body("worker", log=None, journal=["_UID=0"])
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = run("logs", "worker")
    assert outcome.status == 1
    assert "cannot run journalctl: No such file or directory; the output is in the journal: _UID=0" in outcome.err


def test_why_says_that_the_output_is_in_the_journal(service: Service, run: Run) -> None:
    """With the command that shows it."""
    service.backend.reasons["worker"] = why_body("worker", log=None, journal=["_UID=0"])
    assert "log       in the journal: xce-nodectl logs worker\n" in run("why", "worker").out
    assert json.loads(run("why", "worker", "--json").out)["journal"] == ["_UID=0"]
