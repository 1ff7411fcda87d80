import os
import socket
from pathlib import Path

import pytest

from node_manager.core.spec import LogSink
from node_manager.runtime.output import OutputError, journal_matches, log_file, open_output, own_unit

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_the_journal_gets_the_header_of_its_protocol(short_dir: Path) -> None:
    """The stream begins with identifier, unit, priority, level prefix and forwards; then comes the output.

    The unit is for the last words of what is gone before journald looks.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as journal:
        journal.bind(str(short_dir / "stdout"))
        journal.listen()
        fd = open_output(LogSink.JOURNAL, "worker", None, short_dir / "stdout")
        assert fd is not None
        assert os.get_blocking(fd)
        os.write(fd, b"hello\n")
        os.close(fd)
        peer, _ = journal.accept()
        with peer, peer.makefile("rb") as stream:
            assert stream.read().decode() == f"worker\n{own_unit()}\n6\n1\n0\n0\n0\nhello\n"


def test_without_a_journal_the_file_serves(short_dir: Path) -> None:
    """No journal: the component's file; no log directory either: the agent's standard error."""
    fd = open_output(LogSink.JOURNAL, "worker", short_dir, short_dir / "absent")
    assert fd is not None
    os.close(fd)
    assert (short_dir / "worker.log").exists()
    assert open_output(LogSink.JOURNAL, "worker", None, short_dir / "absent") is None
    assert open_output(LogSink.INHERIT, "worker", short_dir) is None


def test_a_journal_that_does_not_answer_is_an_error_at_once(short_dir: Path) -> None:
    """A dead or stalled journal never blocks the agent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as journal:
        journal.bind(str(short_dir / "stdout"))
        with pytest.raises(OutputError, match="cannot log to the journal: Connection refused"):
            open_output(LogSink.JOURNAL, "worker", None, short_dir / "stdout")
        journal.listen(0)
        opened: list[int] = []
        with pytest.raises(OutputError, match="temporarily unavailable"):
            fill(opened, short_dir / "stdout")
        for fd in opened:
            os.close(fd)


def fill(opened: list[int], journal: Path) -> None:
    """Open streams until the journal's backlog is full."""
    for _ in range(10):
        fd = open_output(LogSink.JOURNAL, "worker", None, journal)
        assert fd is not None
        opened.append(fd)


def test_what_is_not_a_file_is_not_written(short_dir: Path) -> None:
    """A FIFO or a link in the log's place is refused without waiting."""
    os.mkfifo(short_dir / "a.log")
    (short_dir / "b.log").symlink_to(short_dir / "elsewhere")
    for name in ("a", "b"):
        with pytest.raises(OutputError, match=r"cannot open the log .*\.log"):
            open_output(LogSink.FILE, name, short_dir)
    reader = os.open(short_dir / "a.log", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OutputError, match="not a regular file"):
        open_output(LogSink.FILE, "a", short_dir)
    os.close(reader)


def test_the_file_of_a_component_is_named(tmp_path: Path) -> None:
    """`why` tells where the output went: a file only where there is neither journal nor standard error for it."""
    journal = tmp_path / "journal"
    assert log_file(LogSink.FILE, "c", tmp_path, journal) == tmp_path / "c.log"
    assert log_file(LogSink.JOURNAL, "c", tmp_path, journal) == tmp_path / "c.log"
    assert log_file(LogSink.INHERIT, "c", tmp_path, journal) is None
    assert log_file(LogSink.FILE, "c", None, journal) is None
    journal.touch()
    assert log_file(LogSink.JOURNAL, "c", tmp_path, journal) is None


def test_what_is_in_the_journal_is_selected(tmp_path: Path) -> None:
    """By the component's name, from this service or from the agent's user; nothing where the output goes elsewhere."""
    journal = tmp_path / "journal"
    assert journal_matches(LogSink.JOURNAL, "c", journal) is None
    journal.touch()
    assert journal_matches(LogSink.FILE, "c", journal) is None
    assert journal_matches(LogSink.INHERIT, "c", journal) is None
    by_user = ["SYSLOG_IDENTIFIER=c", f"_UID={os.geteuid()}"]
    by_unit = ["SYSLOG_IDENTIFIER=c", f"_SYSTEMD_UNIT={own_unit()}", "+"] if own_unit() else []
    assert journal_matches(LogSink.JOURNAL, "c", journal) == by_unit + by_user
