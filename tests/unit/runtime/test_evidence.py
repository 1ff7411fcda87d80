"""The evidence file: what stands in it, what never does, and its bounds."""

import os
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node_manager.core.wedge import Verdict
from node_manager.runtime import evidence
from node_manager.runtime.evidence import Case, capture
from tests.unit.runtime.specimens import FUTEX, Specimen, running

WALL_S = 1_800_000_000.0
MANY = (
    "import os, threading\n"
    "for _ in range(300): os.dup(0)\n"
    "for _ in range(80): threading.Thread(target=threading.Event().wait).start()\n"
    f"{FUTEX}"
)


def case(specimen: Specimen, name: str = "web", generation: int = 3, **fields: object) -> Case:
    base = {"said": ("why: it is silent",), "log": None, "start_ticks": specimen.start_ticks}
    return Case(component=name, generation=generation, pid=specimen.pid, **base | fields)  # type: ignore[arg-type]


def test_it_says_what_the_process_was_doing(tmp_path: Path) -> None:
    """The file names the lock that is waited for, its threads, its descriptors and the end of its log."""
    log = tmp_path / "web.log"
    log.write_text("first\n" + "x" * evidence.LOG_TAIL_BYTES + "\x1b[2J\nlast words\n")
    with running(FUTEX) as specimen:
        specimen.verdict(until=lambda found: found.verdict is Verdict.DEADLOCKED)
        path = capture(tmp_path, case(specimen, log=log), specimen.looks, WALL_S)
        text = path.read_text()
    assert tmp_path / "evidence" / "web-3-20270115T080000Z.txt" == path
    assert text.startswith(f"component web, generation 3, pid {specimen.pid}, at 2027-01-15T08:00:00Z\n")
    for expected in ("why: it is silent\n", "== status\nName:", "futex", f"thread {specimen.pid}, state S", "-> pipe:"):
        assert expected in text
    assert text.endswith("last words\n")
    assert "first" not in text
    assert "\x1b" not in text, "nothing that steers a terminal"


def test_it_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Nobody but the agent's user can read the file or list the directory."""
    with running(FUTEX) as specimen:
        path = capture(tmp_path, case(specimen), specimen.looks, WALL_S)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_no_secret_gets_into_it(tmp_path: Path) -> None:
    """Neither its environment nor its command line stands in the file."""
    with running(FUTEX, "--password=in-the-arguments", env={"SECRET": "in-the-environment"}) as specimen:
        text = capture(tmp_path, case(specimen), specimen.looks, WALL_S).read_text()
    assert "in-the-arguments" not in text
    assert "in-the-environment" not in text


def test_a_large_process_makes_no_large_file(tmp_path: Path) -> None:
    """Threads and descriptors are told up to a bound, and how many more there are."""
    with running(MANY) as specimen:
        path = capture(tmp_path, case(specimen, said=("y" * 3 * evidence.MAX_FILE_BYTES,)), specimen.looks, WALL_S)
        small = capture(tmp_path, case(specimen, generation=4), specimen.looks, WALL_S).read_text()
    assert path.stat().st_size == evidence.MAX_FILE_BYTES
    assert f"and {81 - evidence.MAX_THREADS} more" in small
    assert "and 4" in small[small.index("== descriptors") :]


def test_the_oldest_files_go_first(tmp_path: Path) -> None:
    """A component that loops keeps its newest files and leaves those of others; what is not ours is left alone."""
    (tmp_path / "evidence").mkdir()
    foreign = tmp_path / "evidence" / "notes.txt"
    foreign.write_text("mine")
    with running(FUTEX) as specimen:

        def take(name: str, generation: int) -> Path:
            path = capture(tmp_path, case(specimen, name, generation), specimen.looks, WALL_S)
            os.utime(path, (generation, generation))
            return path

        other = take("web-a", 1)
        mine = [take("web", generation) for generation in range(2, 9)]
        assert [path.exists() for path in mine] == [False] * 3 + [True] * 4
        assert other.exists()
        for number in range(evidence.MAX_FILES):
            take(f"c{number}", 10 + number)
    left = {path.name for path in (tmp_path / "evidence").iterdir()} - {foreign.name}
    assert len(left) == evidence.MAX_FILES
    assert not other.exists()
    assert foreign.exists()


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """No file can grow beyond this size."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """What cannot be written in full is removed again."""
    with running(FUTEX) as specimen, full_after(200), pytest.raises(OSError, match="File too large"):
        capture(tmp_path, case(specimen), specimen.looks, WALL_S)
    assert list((tmp_path / "evidence").iterdir()) == []


def test_it_follows_no_link(tmp_path: Path) -> None:
    """Neither the directory nor the log is taken for what a link points to."""
    secret = tmp_path / "secret"
    secret.write_text("not for you")
    log = tmp_path / "web.log"
    log.symlink_to(secret)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "evidence").symlink_to(elsewhere)
    with running(FUTEX) as specimen:
        text = capture(tmp_path, case(specimen, log=log), specimen.looks, WALL_S).read_text()
        with pytest.raises(NotADirectoryError):
            capture(tmp_path / "linked", case(specimen), specimen.looks, WALL_S)
    assert "not for you" not in text
    assert list(elsewhere.iterdir()) == []


def test_nothing_is_told_of_a_stranger(tmp_path: Path) -> None:
    """A process that has the number by now is not described as the component."""
    with running(FUTEX) as specimen:
        path = capture(tmp_path, case(specimen, start_ticks=specimen.start_ticks + 1), specimen.looks, WALL_S)
        gone = capture(tmp_path, case(specimen, "gone", log=None), specimen.looks, WALL_S, tmp_path)
    assert path.read_text().endswith("== process\n(it is gone)\n")
    assert "cannot look at it: No such file or directory" in gone.read_text()
