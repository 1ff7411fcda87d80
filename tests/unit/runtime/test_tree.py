import os
import subprocess
import sys
from pathlib import Path

import pytest

from node_manager.core.events import ExitStatus
from node_manager.runtime.kill import kill_exactly
from node_manager.runtime.procfs import ProcFs, Stat
from tests.unit.runtime.rig import Rig, alive, kill, python, shell, stranger
from tests.unit.runtime.test_process import DOUBLE_FORK


class ListedChildren(ProcFs):
    """The real /proc with the `children` files of a kernel that has CONFIG_PROC_CHILDREN."""

    def __init__(self) -> None:
        super().__init__()
        self.lists_children = True
        self.tables = 0

    def children(self, pid: int) -> list[int]:
        return [found.pid for found in super().table().values() if found.ppid == pid]

    def table(self) -> dict[int, Stat]:
        self.tables += 1
        return super().table()


def write_process(root: Path, pid: int, stat: str, children: str = "") -> None:
    task = root / str(pid) / "task" / str(pid)
    task.mkdir(parents=True)
    (root / str(pid) / "stat").write_text(stat)
    (task / "children").write_text(children)


def stat_line(pid: int, state: str, name: str = "x", threads: int = 1) -> str:
    return f"{pid} ({name}) {state} 1 {pid} {pid} 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 777 0 0\n"


def test_stat_is_read_whatever_the_name(tmp_path: Path) -> None:
    """Spaces and parentheses in a process's name do not shift the fields."""
    write_process(tmp_path, 5, stat_line(5, "S", ") Z 9 9 ("), "6 7 ")
    write_process(tmp_path, 6, stat_line(6, "Z"))
    write_process(tmp_path, 7, stat_line(7, "Z", threads=3))
    (tmp_path / "self").symlink_to("5")
    procfs = ProcFs(tmp_path)
    assert procfs.lists_children
    assert sorted(procfs.children(5)) == [6, 7]
    assert procfs.children(99) == []
    assert procfs.stat(99) is None
    found = procfs.stat(5)
    assert found is not None
    assert (found.ppid, found.session, found.state, found.start_ticks) == (1, 5, "S", 777)
    assert {pid: one.living for pid, one in procfs.table().items()} == {5: True, 6: False, 7: True}


def test_a_zombie_tells_how_it_ended() -> None:
    """Code and signal of an unreaped child are read without reaping it; a living or another process tells nothing."""
    procfs = ProcFs()
    for command, expected in (
        (shell("exit 0"), 0),
        (shell("exit 79"), 79 << 8),
        (shell("kill -9 $$"), 9),
    ):
        pid = stranger(*command)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        found = procfs.stat(pid)
        assert found is not None
        assert expected == procfs.zombie_status(pid, found.start_ticks)
        assert procfs.zombie_status(pid, found.start_ticks - 1) is None
        os.waitpid(pid, 0)
        assert procfs.zombie_status(pid, found.start_ticks) is None
    own = procfs.stat(os.getpid())
    assert own is not None
    assert procfs.zombie_status(os.getpid(), own.start_ticks) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_status_that_we_may_not_know_is_not_guessed() -> None:
    """The kernel says 0 to those who may not know: another user's zombie has no status, one's own has."""
    code = (
        "import os, sys; from node_manager.runtime.procfs import ProcFs\n"
        "os.setgroups([]); os.setgid(54321); os.setuid(54321); procfs = ProcFs()\n"
        "print(procfs.zombie_status(int(sys.argv[1]), int(sys.argv[2])))\n"
        "pid = os.spawnv(os.P_NOWAIT, '/bin/true', ['true']); os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\n"
        "print(procfs.zombie_status(pid, procfs.stat(pid).start_ticks))"
    )
    pid = stranger("/bin/true")
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    found = ProcFs().stat(pid)
    assert found is not None
    command = [sys.executable, "-c", code, str(pid), str(found.start_ticks)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "None\n0\n"
    os.waitpid(pid, 0)


def test_cannot_look_is_not_gone(tmp_path: Path) -> None:
    """An error other than "no such process" is raised: it must never be read as an empty tree."""
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "stat").mkdir()
    (tmp_path / "self" / "task").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        ProcFs(tmp_path).stat(5)


def test_a_pid_that_was_given_anew_is_never_signalled() -> None:
    """A member whose start time does not match is left alone (scenario 1)."""
    pid = stranger("/bin/sleep", "1000")
    procfs = ProcFs()
    found = procfs.stat(pid)
    assert found is not None
    stale = Stat(pid, found.ppid, found.session, "S", found.start_ticks - 1, 1)
    assert kill_exactly(procfs, stale) is None
    assert alive(pid)
    pidfd = kill_exactly(procfs, found)
    assert pidfd is not None
    os.close(pidfd)
    os.waitpid(pid, 0)
    assert kill_exactly(procfs, found) is None


@pytest.mark.usefixtures("no_leaks")
def test_with_listed_children_the_whole_host_is_not_read(short_dir: Path) -> None:
    """Where the kernel lists children, exit and kill of a component read no process table."""
    procfs = ListedChildren()
    rig = Rig(short_dir, procfs=procfs)
    main = rig.start(python(DOUBLE_FORK))
    daemon = next(int(line) for line in rig.lines(2) if line != "main")
    kill(main)
    assert rig.exited().left == 1
    rig.kill_tree()
    assert not alive(daemon)
    assert procfs.tables == 0
    rig.close()


@pytest.mark.usefixtures("no_leaks")
def test_without_a_subreaper_orphans_are_found_by_their_markers(short_dir: Path) -> None:
    """Orphans that went to somebody else are searched in the whole table."""
    rig = Rig(short_dir, subreaper=False)
    main = rig.start(python(DOUBLE_FORK))
    daemon = next(int(line) for line in rig.lines(2) if line != "main")
    kill(main)
    assert rig.exited().left == 1
    found = ProcFs().stat(daemon)
    assert found is not None
    assert os.getpid() != found.ppid
    assert rig.processes.member(daemon) == "comp"
    rig.kill_tree()
    assert not alive(daemon)
    rig.close()


@pytest.mark.usefixtures("no_leaks")
def test_members_cannot_be_told_without_descriptors(short_dir: Path) -> None:
    """An exit while /proc cannot be read says `left` None, never 0."""

    class Blind(ProcFs):
        blind = False

        def table(self) -> dict[int, Stat]:
            if self.blind:
                raise OSError(24, "Too many open files")
            return super().table()

    procfs = Blind()
    procfs.lists_children = False
    rig = Rig(short_dir, procfs=procfs)
    pid = rig.start(shell("sleep 1000 & wait"))
    procfs.blind = True
    kill(pid)
    exited = rig.exited()
    assert (ExitStatus(signal=9), None) == (exited.status, exited.left)
    procfs.blind = False
    rig.kill_tree()
    rig.close()
