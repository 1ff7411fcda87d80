import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from node_manager.core.events import ExitStatus, TreeEmpty
from node_manager.runtime.environment import COMPONENT, GENERATION, NONCE
from node_manager.runtime.kill import TreeKill, kill_exactly
from node_manager.runtime.procfs import ProcFs, Stat
from node_manager.runtime.tree import Owner, Root, Trees
from tests.unit.runtime.rig import BOUND_S, Rig, alive, kill, python, shell, stranger
from tests.unit.runtime.test_process import DOUBLE_FORK


class ListedChildren(ProcFs):
    """The real /proc with the `children` files of a kernel that has CONFIG_PROC_CHILDREN."""

    def __init__(self) -> None:
        super().__init__()
        self.lists_children = True
        self.tables = 0

    def children(self, pid: int) -> list[int]:
        return [found.pid for found in super().scan() if found.ppid == pid]

    def scan(self) -> Iterator[Stat]:
        self.tables += 1
        return super().scan()


def write_process(root: Path, pid: int, stat: str, children: str = "") -> None:
    task = root / str(pid) / "task" / str(pid)
    task.mkdir(parents=True)
    (root / str(pid) / "stat").write_text(stat)
    (task / "children").write_text(children)


def stat_line(pid: int, state: str, name: str = "x", threads: int = 1, flags: int = 0) -> str:
    return f"{pid} ({name}) {state} 1 {pid} {pid} 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 {threads} 0 777 0 0\n"


@pytest.mark.parametrize(
    ("flags", "threads", "status", "dying"),
    [
        pytest.param(0, 1, "SigPnd:\t0\nShdPnd:\t4000\n", False, id="SIGTERM pending"),
        pytest.param(0, 1, "SigPnd:\t100\nShdPnd:\t0\n", True, id="SIGKILL pending"),
        pytest.param(0, 3, "SigPnd:\t0\nShdPnd:\t0000000000000101\n", True, id="SIGKILL pending for all threads"),
        pytest.param(0, 1, "SigPnd:\t100\nShdPnd:\t100\nCoreDumping:\t1\n", False, id="writes its core"),
        pytest.param(4, 1, "SigPnd:\t0\nShdPnd:\t0\n", True, id="on its way out"),
        pytest.param(4, 2, "SigPnd:\t0\nShdPnd:\t0\n", False, id="its first thread alone"),
        pytest.param(0, 1, "", False, id="gone"),
    ],
)
def test_what_is_as_good_as_dead_is_known(
    tmp_path: Path, flags: int, threads: int, status: str, *, dying: bool
) -> None:
    """SIGKILL that was sent, to a thread or to all, and an end that has begun; a core may be written to its end."""
    write_process(tmp_path, 5, stat_line(5, "D", threads=threads, flags=flags))
    (tmp_path / "5" / "status").write_text(status)
    procfs = ProcFs(tmp_path)
    found = procfs.stat(5)
    assert found is not None
    assert dying == procfs.dying(found)


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

        def scan(self) -> Iterator[Stat]:
            if self.blind:
                raise OSError(24, "Too many open files")
            return super().scan()

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


EXTRA = Owner("extra")
KERNEL_THREAD = 0x0020_8040
"""The flags of kthreadd's children."""


class Asked(ProcFs):
    """Notes whose markers are read."""

    def __init__(self, root: Path, asked: list[int]) -> None:
        super().__init__(root)
        self._asked = asked

    def markers(self, pid: int) -> dict[str, str] | None:
        self._asked.append(pid)
        return super().markers(pid)


class Host:
    """A host of written processes: below the agent unless said otherwise, without markers."""

    def __init__(self, root: Path, loop: asyncio.AbstractEventLoop, *, lists_children: bool = True) -> None:
        self.root = root
        self.children: list[int] = []
        (root / "self").symlink_to(str(os.getpid()))
        self.begin(os.getpid(), session=1, start=1, ppid=1)
        self.asked: list[int] = []
        """Whose markers were read."""
        procfs = Asked(root, self.asked)
        procfs.lists_children = lists_children
        self.trees = Trees(loop, nonce="ours", subreaper=True, procfs=procfs)

    def begin(
        self, pid: int, *, session: int, start: int, ppid: int | None = None, state: str = "S", flags: int = 0
    ) -> None:
        stat = f"{pid} (x) {state} {ppid or os.getpid()} {pid} {session} 0 0 {flags} {'0 ' * 10} 1 0 {start} 0 0\n"
        self.end(pid)
        write_process(self.root, pid, stat)
        (self.root / str(pid) / "environ").write_text("")
        (self.root / str(pid) / "cmdline").write_text("x\0")
        (self.root / str(pid) / "status").write_text("Uid:\t0\t0\t0\t0\n")
        if ppid is None:
            self.children.append(pid)
            self._list_children()

    def end(self, pid: int) -> None:
        directory = self.root / str(pid)
        if directory.exists():
            (directory / "task" / str(pid) / "children").unlink()
            (directory / "task" / str(pid)).rmdir()
            (directory / "task").rmdir()
            for name in ("stat", "environ", "cmdline", "status"):
                (directory / name).unlink()
            directory.rmdir()
        if pid in self.children:
            self.children.remove(pid)
            self._list_children()

    def _list_children(self) -> None:
        own = str(os.getpid())
        (self.root / own / "task" / own / "children").write_text(" ".join(map(str, self.children)))

    def members(self) -> list[int]:
        self.trees._drop_table()  # noqa: SLF001 - as the next turn of the loop does
        return sorted(found.pid for found in self.trees.members(EXTRA, 1))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture(params=["children", "table", "everywhere"])
def host(request: pytest.FixtureRequest, tmp_path: Path, loop: asyncio.AbstractEventLoop) -> Host:
    """A host on each of the three ways of looking."""
    made = Host(tmp_path, loop, lists_children=request.param != "table")
    if request.param == "everywhere":
        made.trees.look_everywhere("extra")
    return made


def test_a_failed_start_leaves_no_session_behind(host: Host) -> None:
    """The number is given to a user's job, whose shell has ended: the job is nobody's here."""
    host.trees.plant(Root(EXTRA, 1, 500, 100))
    host.trees.fell(500)
    host.begin(600, session=500, start=900)
    assert host.members() == []
    assert host.trees.owner_of(600) is None


def test_a_session_counts_as_long_as_a_proven_member_lives(host: Host) -> None:
    """What was seen in it before its leader was reaped keeps the number; once that is gone, it is a stranger's."""
    host.begin(500, session=500, start=100, state="Z")
    host.trees.plant(Root(EXTRA, 1, 500, 100))
    host.begin(501, session=500, start=110)
    assert host.members() == [501]
    host.end(500)
    host.trees.fell(500)
    host.begin(502, session=500, start=120)  # 501 made it
    assert host.members() == [501, 502]
    assert host.trees.owner_of(502) == EXTRA
    host.end(501)
    host.begin(503, session=500, start=130)
    assert host.members() == [502, 503]
    for pid in (502, 503):
        host.end(pid)
    host.begin(600, session=500, start=900)
    assert host.members() == []
    assert host.trees.owner_of(600) is None


@pytest.mark.parametrize(("session", "start"), [(500, 900), (501, 110), (501, 900)])
def test_a_witness_is_the_very_process_and_still_in_the_session(host: Host, session: int, start: int) -> None:
    """A proven member's pid that was given anew, or a member that left, keeps no number."""
    host.begin(500, session=500, start=100, state="Z")
    host.trees.plant(Root(EXTRA, 1, 500, 100))
    host.begin(501, session=500, start=110)
    assert host.members() == [501]
    host.end(500)
    host.trees.fell(500)
    host.begin(501, session=session, start=start)
    host.begin(600, session=500, start=900)
    assert host.members() == []
    assert host.trees.owner_of(600) is None


def test_another_leader_of_the_same_number_is_a_stranger(host: Host) -> None:
    """An adopted process was reaped by init before its end was heard: who leads that session now is another."""
    host.trees.plant(Root(EXTRA, 1, 500, 100))
    host.begin(500, session=500, start=900)
    host.begin(600, session=500, start=910)
    assert host.members() == []
    host.end(500)
    assert host.members() == []
    assert host.trees.owner_of(600) is None


def test_neither_the_dead_nor_threads_of_the_kernel_are_looked_into(host: Host) -> None:
    """Of hundreds of those on a host none can be somebody's orphan: an exit does not open a file of each."""
    host.begin(500, session=500, start=100, state="Z")
    host.trees.plant(Root(EXTRA, 1, 500, 100))
    host.begin(600, session=0, start=10, flags=KERNEL_THREAD)
    host.begin(601, session=601, start=200, state="Z")
    host.begin(602, session=602, start=200)
    assert host.trees.left(EXTRA, 1, 500) == 0
    assert host.asked == [602]


def test_who_descends_from_whom_is_looked_at_anew_in_each_turn(host: Host) -> None:
    """What a main process starts later is found, in whichever way is looked."""
    host.begin(500, session=500, start=100)
    host.trees.plant(Root(EXTRA, 1, 500, 100))
    assert host.members() == [500]
    host.begin(501, session=501, start=110, ppid=500)
    (host.root / "500" / "task" / "500" / "children").write_text("501 ")
    assert host.members() == [500, 501]


def test_an_exit_beside_many_orphans_takes_a_short_look(host: Host) -> None:
    """The newest orphans come first, and where they are too many it is unknown, never 0, what else there is."""
    host.begin(500, session=500, start=100, state="Z")
    host.trees.plant(Root(EXTRA, 1, 500, 100))
    assert host.trees.left(EXTRA, 1, 500) == 0
    for pid in range(1000, 1600):
        host.begin(pid, session=pid, start=200)
    host.trees._drop_table()  # noqa: SLF001 - as the next turn of the loop does
    assert host.trees.left(EXTRA, 1, 500) is None
    host.begin(2000, session=500, start=300)
    host.trees._drop_table()  # noqa: SLF001
    assert host.trees.left(EXTRA, 1, 500) == 1
    host.end(500)
    host.trees.fell(500)
    assert host.trees.owner_of(2000) == EXTRA


class SlowProcFs(ProcFs):
    """The real /proc where everything takes a while, and much is read."""

    def __init__(self, *, lists_children: bool) -> None:
        super().__init__()
        self.lists_children = lists_children
        self.reads = 0

    def stat(self, pid: int) -> Stat | None:
        self.reads += 1
        time.sleep(0.001)  # not a wait: the cost of a look
        return super().stat(pid)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("lists_children", [True, False])
def test_killing_a_large_tree_leaves_the_loop_time_for_the_rest(short_dir: Path, *, lists_children: bool) -> None:
    """However many processes are looked at and killed, no turn of the loop has more than its share of them."""
    if lists_children and not ProcFs().lists_children:
        pytest.skip("this kernel does not list children")
    procfs = SlowProcFs(lists_children=lists_children)
    rig = Rig(short_dir, procfs=procfs)
    try:
        rig.start(shell("for i in $(seq 150); do sleep 1000 & done"))
        assert rig.exited().left == 150
        most, before = 0, procfs.reads

        def turn() -> None:
            nonlocal most, before
            most, before = max(most, procfs.reads - before), procfs.reads
            if not rig.of(TreeEmpty):
                rig.loop.call_soon(turn)

        seen = procfs.reads
        rig.loop.call_soon(turn)
        rig.kill_tree()
        assert procfs.reads - seen > 150
        assert most < 100
    finally:
        rig.close()


class Growing(Trees):
    """Trees whose looks meet what a test says, one look after the other; then nothing. `met` gets each of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, looks: list[list[int]], met: Callable[[int], None]) -> None:
        super().__init__(loop, nonce="ours", subreaper=True)
        self._looks = looks
        self._met = met
        self.number = 0

    def look(self, owner: Owner, newest: int) -> Iterator[Stat | None]:
        del owner, newest
        pids = self._looks[self.number] if self.number < len(self._looks) else []
        self._met(self.number)
        self.number += 1
        return (self.procfs.stat(pid) for pid in pids)


def test_what_a_tree_grows_while_it_is_killed_is_stopped_before_any_of_it_is_killed(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """A bomb of processes outruns its killer as long as deaths make room: so none dies before none can fork."""
    first, child, grandchild = pids = [stranger("/bin/sleep", "1000") for _ in range(3)]
    states: dict[int, str] = {}

    def met(number: int) -> None:
        if number == 3:
            until_s = time.monotonic() + BOUND_S
            while states != {child: "T", grandchild: "T"} and time.monotonic() < until_s:
                found = {pid: ProcFs().stat(pid) for pid in (child, grandchild)}
                states.update({pid: stat.state for pid, stat in found.items() if stat is not None})

    # At once; then two that were not there: stopped, looked at again, killed when there is nobody new.
    trees = Growing(loop, [[first], [child], [child, grandchild], [child, grandchild]], met)
    done = loop.create_future()
    TreeKill(loop, trees, EXTRA, newest=1, done=lambda: done.set_result(None))
    try:
        loop.run_until_complete(asyncio.wait_for(done, BOUND_S))
        assert states == {child: "T", grandchild: "T"}
        ends = [os.WTERMSIG(os.waitpid(pid, 0)[1]) for pid in pids]
        assert all(end == signal.SIGKILL for end in ends)
    finally:
        for pid in pids:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def test_who_is_just_executing_makes_a_look_incomplete(short_dir: Path) -> None:
    """No arguments and no environment: it cannot be told whose it is. With arguments it was given no environment."""
    loop = asyncio.new_event_loop()
    host = Host(short_dir, loop)
    host.begin(500, session=500, start=5)
    assert (host.members(), host.trees.untold) == ([], 0)
    host.begin(501, session=501, start=6)
    (short_dir / "501" / "cmdline").write_text("")
    assert (host.members(), host.trees.untold) == ([], 1)
    (short_dir / "501" / "environ").write_text(f"{NONCE}=ours\0{COMPONENT}=extra\0{GENERATION}=1\0")
    assert (host.members(), host.trees.untold) == ([501], 1)
    loop.close()
