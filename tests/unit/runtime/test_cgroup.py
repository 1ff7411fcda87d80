import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node_manager.core.actions import KillTree
from node_manager.core.events import Exited, ExitStatus, SpawnFailed
from node_manager.core.spec import NS_PER_S, ComponentSpec, HostSpec, KillScope, LimitsSpec, NodeSpec, StopSpec
from node_manager.runtime import cgroupfs
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.cgroup import OOM_FRESH_S, Groups
from node_manager.runtime.helpers import HelperPlan, HelperResult
from node_manager.runtime.procfs import ProcFs, Stat
from node_manager.runtime.spawn import NATIVE, LaunchPlan, launch
from tests.unit.runtime.cgroups import delegated, needs_cgroups
from tests.unit.runtime.rig import Rig, alive, kill, python, shell

ESCAPE = """
import os, time
if os.fork():
    os.wait()
    time.sleep(1000)
os.setsid()
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.001)
os.execve("/bin/sleep", ["hidden", "1000"], {})
"""
"""A daemon that leaves its session, loses its parent and its environment: no marker of it is left.

Once it is called `hidden` nobody else is there but the main process.
"""
LEASED = ("controller.primary",)
COMPONENT = ComponentSpec(name="comp", role="test", command=("/bin/true",))
PROCESS = StopSpec(kill_scope=KillScope.PROCESS)


@pytest.fixture
def root() -> Iterator[Path]:
    with delegated() as made:
        yield made


@pytest.fixture
def fenced(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[Rig]:
    """A rig whose components have cgroups."""
    request.getfixturevalue("no_leaks")
    root = request.getfixturevalue("root")
    made = Rig(short_dir, groups=Groups(root))
    yield made
    made.close()


def groups_of(rig: Rig) -> Groups:
    groups = rig.processes.groups
    assert groups is not None
    return groups


def group_of(rig: Rig, pid: int) -> str | None:
    """Where a process is, below the delegated group."""
    return groups_of(rig).relative(cgroupfs.group_of(pid))


# --- which part of the tree is ours -----------------------------------------------------------------------------------


def proc(directory: Path, group: str, mountinfo: str) -> Path:
    (directory / "cgroup").write_text(f"4:memory:/elsewhere\n0::{group}\n" if group else "4:memory:/elsewhere\n")
    (directory / "mountinfo").write_text(mountinfo)
    return directory


@pytest.mark.parametrize(
    ("group", "mountinfo", "reason"),
    [
        ("", "", "there is no cgroup v2 tree"),
        ("/x", "30 1 0:1 / /sys rw - sysfs sysfs rw\n", "there is no cgroup v2 tree"),
        ("/", "30 1 0:1 / TOP rw - cgroup2 cgroup2 rw\n", "the agent is in the root group"),
        ("/../x", "30 1 0:1 /y TOP rw - cgroup2 cgroup2 rw\n", "the agent is in the root group"),
        ("/x", "30 1 0:1 / TOP rw - cgroup2 cgroup2 rw\n", "the agent's group /x is not delegated to it"),
    ],
)
def test_what_is_not_delegated_is_left_alone(tmp_path: Path, group: str, mountinfo: str, reason: str) -> None:
    """Being able to write is not enough: without the mark of delegation there are no groups, and it says why."""
    (tmp_path / "top" / "x").mkdir(parents=True)
    found = cgroupfs.find(proc(tmp_path, group, mountinfo.replace("TOP", str(tmp_path / "top"))))
    assert found.path is None
    assert found.reason.startswith(reason)


def test_a_delegated_group_is_found_from_within_it_and_from_the_agents_own(tmp_path: Path) -> None:
    """A fresh agent is in the delegated group; one that was there before is in `agent` below it."""
    group = tmp_path / "top" / "unit name"
    (group / "agent").mkdir(parents=True)
    for name in ("cgroup.procs", "cgroup.subtree_control"):
        (group / name).touch()
    os.setxattr(group, "user.delegate", b"1")
    mountinfo = f"30 1 0:1 /a\\040b {tmp_path}/top rw - cgroup2 cgroup2 rw\n"
    for name in ("/a b/unit name", "/a b/unit name/agent"):
        assert group == cgroupfs.find(proc(tmp_path, name, mountinfo)).path


@needs_cgroups
def test_the_agent_goes_into_a_group_of_its_own(root: Path) -> None:
    """After `enter` the delegated group itself has no process, and the agent finds it again from where it is.

    No process at all: a child that was started before goes along, or no controller could be enabled.
    """
    code = """
import os, subprocess, sys
from pathlib import Path
from node_manager.runtime import cgroupfs
from node_manager.runtime.cgroup import Groups
root = Path(sys.argv[1])
cgroupfs.write(root, "cgroup.procs", str(os.getpid()))
child = subprocess.Popen(["sleep", "1000"])
for _ in range(2):
    assert cgroupfs.find().path == root, cgroupfs.find()
    groups = Groups(root)
    groups.enter()
    print(repr(cgroupfs.read(root, "cgroup.procs")), groups.relative(cgroupfs.group_of(os.getpid())))
child.kill()
child.wait()
"""
    done = subprocess.run([sys.executable, "-c", code, str(root)], check=True, capture_output=True, text=True)
    assert done.stdout == "'' agent\n'' agent\n"


# --- being born there -------------------------------------------------------------------------------------------------

JOIN = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
if sys.argv[3] == "True":
    code = b"".join(struct.pack("HBBI", *one) for one in (
        (0x20, 0, 0, 0), (0x15, 0, 1, 435), (6, 0, 0, 0x50026), (6, 0, 0, 0x7FFF0000)))
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer))
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.spawn import LaunchPlan, launch
fd = os.open(sys.argv[1], os.O_RDONLY)
command = ("/bin/cat", "/proc/self/cgroup")
plan = LaunchPlan(command=command, environment=(), account=Accounts().find(None), output_fd=1, cgroup_fd=fd)
os.waitpid(launch(plan, native=sys.argv[2] == "True").pid, 0)
"""


@needs_cgroups
@pytest.mark.parametrize(
    ("native", "refused"),
    [
        pytest.param(True, False, marks=pytest.mark.skipif(not NATIVE, reason="the C half was not built")),
        pytest.param(True, True, marks=pytest.mark.skipif(not NATIVE, reason="the C half was not built")),
        (False, False),
    ],
    ids=["C", "C without clone3", "Python"],
)
def test_every_way_to_make_a_child_puts_it_into_its_group(root: Path, native: bool, refused: bool) -> None:
    """The child is in its group before its command runs, whichever system calls there are."""
    command = [sys.executable, "-c", JOIN, str(root), str(native), str(refused)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert f"0::/{root.name}" in done.stdout.splitlines()


@needs_cgroups
def test_a_group_that_is_gone_is_a_failed_start(root: Path) -> None:
    """A group removed behind the agent's back fails the start with that reason; nothing runs outside its group."""
    (root / "gone").mkdir()
    fd = os.open(root / "gone", os.O_RDONLY)
    (root / "gone").rmdir()
    try:
        plan = LaunchPlan(command=("/bin/true",), environment=(), account=Accounts().find(None), cgroup_fd=fd)
        with pytest.raises(Exception, match="cannot put /bin/true into its cgroup"):
            launch(plan)
    finally:
        os.close(fd)


@needs_cgroups
def test_a_component_has_a_group_of_its_own(fenced: Rig) -> None:
    """A component is in NAME, a leased one in NAME.GENERATION, one of kill scope process in NAME/main."""
    plain = fenced.start(shell("sleep 1000"))
    leased = fenced.start(shell("sleep 1000"), name="leased", generation=7, run_while=LEASED)
    worker = fenced.start(shell("sleep 1000"), name="worker", stop=PROCESS)
    reserved = fenced.start(shell("sleep 1000"), name="agent")
    assert group_of(fenced, plain) == "comp"
    assert group_of(fenced, leased) == "leased.7"
    assert group_of(fenced, worker) == "worker/main"
    assert group_of(fenced, reserved) == "agent_"


@needs_cgroups
def test_nothing_that_a_component_starts_escapes(fenced: Rig) -> None:
    """A daemon without session, parent and markers is counted at the exit, known, and killed with the tree."""
    main = fenced.start(python(ESCAPE))
    groups = groups_of(fenced)
    fenced.run_until(lambda: any(_command(pid) == "hidden" for pid in groups.members("comp", 1)), "the daemon")
    hidden = next(pid for pid in groups.members("comp", 1) if _command(pid) == "hidden")
    assert fenced.processes.member(hidden) == "comp"
    kill(main)
    assert fenced.exited().left == 1
    fenced.kill_tree()
    assert not alive(hidden)
    assert not groups.populated("comp", 1)


class Slippery(ProcFs):
    """What is called `hidden` forks and exits behind each look: of the pids that were listed none is there."""

    def stat(self, pid: int) -> Stat | None:
        return None if _command(pid) == "hidden" else super().stat(pid)


@needs_cgroups
@pytest.mark.usefixtures("no_leaks")
def test_what_hides_from_a_look_is_not_nobody(short_dir: Path, root: Path) -> None:
    """Where the kernel says that somebody lives in the group and nobody was met, it is unknown who is left, never 0."""
    rig = Rig(short_dir, groups=Groups(root), procfs=Slippery())
    main = rig.start(python(ESCAPE))
    groups = groups_of(rig)
    rig.run_until(lambda: any(_command(pid) == "hidden" for pid in groups.members("comp", 1)), "the daemon")
    kill(main)
    assert rig.exited().left is None
    cgroupfs.write(root, "cgroup.kill", "1")
    rig.run_until(lambda: not groups.populated("comp", 1), "its end")
    kill(rig.start(("/bin/sleep", "1000"), generation=2))
    assert rig.exited(2).left == 0
    rig.close()


@needs_cgroups
@pytest.mark.parametrize("ends", ["by itself", "by its time"])
def test_nothing_that_a_check_or_probe_starts_escapes(fenced: Rig, ends: str) -> None:
    """What leaves its session, its parent and its markers dies with the command, whose group is gone then too."""
    told = fenced.directory / "told"
    script = f"{sys.executable} -S -c '{ESCAPE}' & "
    script += "sleep 1000" if ends == "by its time" else f"while ! test -e {told}; do sleep 0.02; done"
    results: list[HelperResult] = []
    gone: list[bool] = []
    plan = HelperPlan(spec=COMPONENT, generation=1, command=shell(script), timeout_ns=NS_PER_S // 2, answer_first=True)
    if ends == "by itself":
        plan = replace(plan, timeout_ns=600 * NS_PER_S)
    fenced.processes.helpers.run(plan, results.append, lambda: gone.append(True))
    beside = groups_of(fenced).root / "beside"

    def hidden() -> list[int]:
        return [pid for pid in cgroupfs.processes(beside) if _command(pid) == "hidden"]

    if ends == "by itself":
        fenced.run_until(hidden, "it hides")
        (escaped,) = hidden()
        assert fenced.processes.member(escaped) == "comp"
        told.touch()
    fenced.run_until(lambda: gone, "nothing of it lives")
    assert ["exited with status 0" if ends == "by itself" else "not finished within 0.5 s, killed"] == [
        result.detail for result in results
    ]
    assert hidden_orphans() == []
    assert [path for path in beside.iterdir() if path.is_dir()] == []


@needs_cgroups
def test_nothing_is_begun_in_a_frozen_group(root: Path) -> None:
    """A child that never gets its first turn would outlive a killed agent with its lock: no probe, no fuse there."""
    groups = Groups(root)
    groups.fuse_fd()
    with subprocess.Popen(["/bin/sleep", "1000"]) as fuse:
        try:
            (root / "fuse" / "cgroup.procs").write_text(str(fuse.pid))
            (root / "beside").mkdir()
            for name in ("beside", "fuse"):
                (root / name / "cgroup.freeze").write_text("1")
            assert groups.beside.begin("comp", "1.1") is None
            with pytest.raises(OSError, match="is frozen; write 0 to"):
                groups.fuse_fd()
            for name in ("beside", "fuse"):
                (root / name / "cgroup.freeze").write_text("0")
            assert groups.beside.begin("comp", "1.2") is not None
            assert groups.fuse_fd() >= 0
        finally:
            fuse.kill()
    groups.close()


def test_a_successor_ends_what_an_earlier_agents_probe_left(root: Path) -> None:
    """Nobody waits for it any more, and its group is not left over."""
    fd = Groups(root).beside.begin("comp", "1.1")
    done = launch(
        LaunchPlan(command=("/bin/sleep", "1000"), environment=(), account=Accounts().find(None), cgroup_fd=fd)
    )
    assert fd is not None
    os.close(fd)
    later = Groups(root)
    later.beside.clear()
    result = os.waitid(os.P_PIDFD, done.pidfd, os.WEXITED)
    os.close(done.pidfd)
    assert result is not None
    assert result.si_status == signal.SIGKILL
    later.beside.close()
    assert not (root / "beside").exists()


def hidden_orphans() -> list[int]:
    """Processes that hide, and came to the agent as orphans."""
    table = ProcFs().table().values()
    return [one.pid for one in table if one.living and one.ppid == os.getpid() and _command(one.pid) == "hidden"]


BOMB_PROCESSES = 1000
"""However late the kill comes: the machine of the tests must live through them."""
BOMB = f"""
import os, signal
tokens, end = os.pipe()
os.write(end, bytes({BOMB_PROCESSES}))
os.close(end)
print("up", flush=True)
while os.read(tokens, 1):
    os.fork() or os.setsid()
signal.pause()
"""


@needs_cgroups
def test_a_fork_bomb_dies_at_once(fenced: Rig) -> None:
    """A tree that makes processes faster than anybody could look at them is empty after one kill."""
    fenced.start(python(BOMB))
    fenced.lines(1)
    groups = groups_of(fenced)
    fenced.run_until(lambda: len(list(groups.members("comp", 1))) > 50, "the bomb")
    fenced.kill_tree()
    assert list(groups.members("comp", 1)) == []
    assert ExitStatus(signal=9) == fenced.exited().status


class OldKernel(Groups):
    """As before Linux 5.14, which has no cgroup.kill."""

    def kill(self, component: str, newest: int, mark: str = "") -> None:
        raise FileNotFoundError(f"{component} {newest} {mark}")


@needs_cgroups
def test_a_kernel_that_cannot_kill_a_group_has_its_processes_killed_one_by_one(short_dir: Path, root: Path) -> None:
    """Without cgroup.kill the members of the group are found in it and killed all the same."""
    rig = Rig(short_dir, groups=OldKernel(root))
    try:
        main = rig.start(python(ESCAPE))
        groups = groups_of(rig)
        rig.run_until(lambda: any(_command(pid) == "hidden" for pid in groups.members("comp", 1)), "the daemon")
        kill(main)
        rig.exited()
        rig.kill_tree()
        assert not groups.populated("comp", 1)
    finally:
        rig.close()


@needs_cgroups
def test_the_end_of_a_tree_is_told_by_its_group(fenced: Rig) -> None:
    """What enters the group after every look is killed too, and the tree is empty only when the kernel says so."""
    fenced.start(shell("sleep 1000"))
    group = groups_of(fenced).of("comp", 1)[0]
    stranger = subprocess.Popen(["sleep", "1000"])
    fenced.processes.kill_tree(KillTree(component="comp", generation=1))
    cgroupfs.write(group.path, "cgroup.procs", str(stranger.pid))
    fenced.run_until(lambda: stranger.poll() is not None, "its death")
    fenced.kill_tree()
    assert not cgroupfs.populated(group.path)


@needs_cgroups
def test_jobs_that_a_worker_put_into_their_group_are_its_own(fenced: Rig) -> None:
    """They may be put there by the worker's user, outlive the worker and its next start, and are no part of it."""
    script = (
        "jobs=ROOT$(sed -n 's,^0::.*/worker/main$,/worker/jobs/one,p' /proc/self/cgroup); mkdir $jobs; "
        "sh -c 'echo $$ >$0/cgroup.procs; echo $$; exec sleep 1000' $jobs & wait"
    )
    groups = groups_of(fenced)
    main = fenced.start(shell(script.replace("ROOT", str(groups.root))), name="worker", stop=PROCESS, user="nobody")
    job = int(fenced.lines(1, "worker")[0])
    assert group_of(fenced, job) == "worker/jobs/one"
    assert groups.component_of(job) is None
    assert groups.component_of(main) == "worker"
    kill(main)
    assert fenced.exited().left == 1
    fenced.start(shell("sleep 1000"), name="worker", generation=2, stop=PROCESS)
    assert alive(job)
    assert group_of(fenced, job) == "worker/jobs/one"


@needs_cgroups
@pytest.mark.parametrize("stop", [StopSpec(), PROCESS], ids=["tree", "process"])
def test_a_start_after_a_kill_lives(fenced: Rig, stop: StopSpec) -> None:
    """Whoever killed the group before, the agent or an operator: the next child is not killed with it (Linux 6.14)."""
    for generation in range(1, 4):
        pid = fenced.start(shell("echo up; sleep 1000"), generation=generation, stop=stop)
        fenced.lines(generation)
        assert alive(pid)
        group = groups_of(fenced).of("comp", generation)[0]
        cgroupfs.write(group.path, "cgroup.kill", "1")
        fenced.exited(generation)
        if generation == 2:
            fenced.kill_tree(generation=generation)


@needs_cgroups
@pytest.mark.parametrize("stop", [StopSpec(), PROCESS], ids=["tree", "process"])
def test_a_start_after_a_kill_lives_where_the_group_cannot_be_made_anew(fenced: Rig, stop: StopSpec) -> None:
    """What was killed with the group may still be dying at the next start, so that it stays as it is."""
    fenced.start(shell("sleep 1000"), stop=stop)
    group = groups_of(fenced).of("comp", 1)[0]
    cgroupfs.write(group.path, "cgroup.kill", "1")
    fenced.exited()
    dying = subprocess.Popen(["sleep", "1000"])
    try:
        cgroupfs.write(group.inner, "cgroup.procs", str(dying.pid))
        pid = fenced.start(shell("echo $$; sleep 1000"), generation=2, stop=stop)
        fenced.run_until(lambda: fenced.log() or fenced.of(Exited)[1:], "a sign of it")
        assert fenced.of(Exited)[1:] == []
        assert fenced.lines(1) == [str(pid)]
        assert group_of(fenced, pid) == group_of(fenced, dying.pid)
    finally:
        dying.kill()
        dying.wait()


@needs_cgroups
def test_a_fuse_after_a_kill_of_all_fuses_lives(root: Path) -> None:
    """Their group was killed, by an operator perhaps: the next one is born in a new one, and others beside it."""
    groups = Groups(root)
    for _ in range(2):
        for _ in range(2):
            assert says_up(groups.fuse_fd())
        cgroupfs.write(root / "fuse", "cgroup.kill", "1")
        while cgroupfs.populated(root / "fuse"):
            os.waitpid(-1, 0)
    groups.close()


def says_up(cgroup_fd: int) -> bool:
    """Whether a child that is born there gets to its command; it lives on."""
    reading, writing = os.pipe()
    command = shell("echo up; exec sleep 1000 >&- 2>&-")
    account = Accounts().find(None)
    os.close(
        launch(
            LaunchPlan(command=command, environment=(), account=account, output_fd=writing, cgroup_fd=cgroup_fd)
        ).pidfd
    )
    os.close(writing)
    with open(reading) as said:  # noqa: PTH123 - a descriptor
        return said.read() == "up\n"


@needs_cgroups
def test_an_agent_whose_group_was_killed_before_has_children_that_live(root: Path) -> None:
    """A successor of an agent that was killed with its whole group goes into a new one."""
    (root / "agent").mkdir()
    cgroupfs.write(root / "agent", "cgroup.kill", "1")
    code = """
import os, sys
from pathlib import Path
from node_manager.core.spec import ComponentSpec
from node_manager.runtime import cgroupfs
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.cgroup import Groups
from node_manager.runtime.spawn import LaunchPlan, launch
groups = Groups(Path(sys.argv[1]))
groups.enter()
group = groups.open(ComponentSpec(name="comp", role="test", command=("/bin/true",)), 1)
plan = LaunchPlan(command=("/bin/true",), environment=(), account=Accounts().find(None), cgroup_fd=group.fd)
print(os.waitpid(launch(plan).pid, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", code, str(root)], check=True, capture_output=True, text=True)
    assert done.stdout == "0\n"


@needs_cgroups
def test_a_leased_components_group_goes_with_its_generation(fenced: Rig) -> None:
    """Each start has a new group, so that what guards one can never reach the next; the empty one is removed."""
    groups = groups_of(fenced)
    for generation in (1, 2):
        pid = fenced.start(shell("sleep 1000"), generation=generation, run_while=LEASED)
        assert [path.name for path in groups.root.iterdir() if path.is_dir()] == [f"comp.{generation}"]
        kill(pid)
        fenced.exited(generation)
        fenced.kill_tree(generation=generation)
    assert [path for path in groups.root.iterdir() if path.is_dir()] == []


@needs_cgroups
def test_a_group_says_which_process_was_started_in_it(fenced: Rig) -> None:
    """Component, generation, pid and start time stand on the group itself: a record that is lost with nothing."""
    pid = fenced.start(shell("sleep 1000"), generation=3, run_while=LEASED, lease_valid_until_ns=1 << 60)
    worker = fenced.start(shell("sleep 1000"), name="worker", generation=5, stop=PROCESS)
    births = {birth.component: birth for birth in Groups(groups_of(fenced).root).births()}
    stat = ProcFs().stat(pid)
    assert stat is not None
    found = births["comp"]
    assert (3, pid, stat.start_ticks, 1 << 60) == (
        found.generation,
        found.pid,
        found.start_ticks,
        found.lease_until_ns,
    )
    assert (5, worker, None) == (births["worker"].generation, births["worker"].pid, births["worker"].lease_until_ns)


@needs_cgroups
def test_what_an_earlier_agent_left_is_found_in_its_group(short_dir: Path, root: Path) -> None:
    """A successor that is told of a component without a main process finds everything of it, markers or not."""
    first = Rig(short_dir, groups=Groups(root))
    main = first.start(python(ESCAPE))
    groups = groups_of(first)
    first.run_until(lambda: any(_command(pid) == "hidden" for pid in groups.members("comp", 1)), "the daemon")
    hidden = next(pid for pid in groups.members("comp", 1) if _command(pid) == "hidden")
    kill(main)
    first.exited()
    first.processes.close()
    second = Rig(short_dir, groups=Groups(root))
    try:
        second.processes.look_everywhere("comp")
        second.kill_tree()
        assert not alive(hidden)
    finally:
        second.close()
        first.close()


@needs_cgroups
def test_limits_that_the_tree_has_no_controller_for_are_said_not_to_be_enforced(fenced: Rig) -> None:
    """Beside v1 controllers the component runs, fenced but unlimited, and a warning names what is missing."""
    present = cgroupfs.read(groups_of(fenced).root, "cgroup.controllers").split()
    if "memory" in present:
        pytest.skip("this host has the memory controller in its v2 tree")
    fenced.start(shell("sleep 1000"), limits=LimitsSpec(memory_max=1 << 30))
    assert groups_of(fenced).unenforced == {"comp": "the controllers memory are not in the cgroup v2 tree here"}


def test_a_group_that_cannot_be_made_is_a_failed_start(short_dir: Path) -> None:
    """The reason names the place; nothing runs outside a group where groups are in force."""
    rig = Rig(short_dir, groups=Groups(Path("/proc/absent")))
    try:
        rig.spawn(shell("sleep 1000"))
        assert rig.wait_for(SpawnFailed).reason.startswith("cannot make a cgroup for comp below /proc/absent: No such")
    finally:
        rig.close()


# --- limits and their consequences, on files that look like a cgroup's ------------------------------------------------


def control_files(path: Path, controllers: str) -> None:
    path.mkdir(exist_ok=True)
    (path / "cgroup.controllers").write_text(controllers)
    (path / "cgroup.subtree_control").write_text("")


def test_limits_are_set_and_controllers_enabled_for_them_alone(tmp_path: Path) -> None:
    """Of the controllers that are there those are enabled that a limit needs; a reload changes and lifts limits."""
    control_files(tmp_path, "cpu io memory pids")
    groups = Groups(tmp_path)
    spec = NodeSpec(host=HostSpec(name="h"), roles=(), components=())
    path = tmp_path / "comp"
    control_files(path, "memory pids")
    for name in ("memory.max", "pids.max"):
        (path / name).write_text("")
    component = replace(COMPONENT, limits=LimitsSpec(memory_max=4096, pids_max=7))
    groups.open(component, 1)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert [(path / name).read_text() for name in ("memory.max", "pids.max")] == ["4096", "7"]
    lifted = replace(component, limits=LimitsSpec(pids_max=9))
    groups.configure(replace(spec, components=(lifted,)))
    assert [(path / name).read_text()[:3] for name in ("memory.max", "pids.max")] == ["max", "9"]
    assert groups.unenforced == {}
    groups.close()


@pytest.mark.usefixtures("no_leaks")
def test_a_kill_for_want_of_memory_is_told_from_another(short_dir: Path) -> None:
    """The kernel's own count of this generation decides: SIGKILL from elsewhere is not named an OOM kill."""
    root = short_dir / "groups"
    root.mkdir()
    groups = Groups(root)
    group = groups.open(COMPONENT, 4)
    count_oom_kills(group.inner, 2)
    groups.configure(NodeSpec(host=HostSpec(name="h"), roles=(), components=(COMPONENT,)))
    assert not groups.oom_killed("comp", 4)
    count_oom_kills(group.inner, 3)
    assert not groups.oom_killed("comp", 3)
    assert groups.oom_killed("comp", 4)
    assert not groups.oom_killed("comp", 4)
    groups.open(COMPONENT, 5)
    assert not groups.oom_killed("comp", 5)
    groups.close()


@pytest.mark.usefixtures("no_leaks")
def test_without_a_limit_the_kernel_counts_for_all_components_together(short_dir: Path) -> None:
    """No memory controller below the delegated group: its own count tells, and each kill is one component's end."""
    root = short_dir / "groups"
    root.mkdir()
    count_oom_kills(root, 7)
    groups = Groups(root)
    other = replace(COMPONENT, name="other")
    groups.open(COMPONENT, 1)
    groups.open(other, 1)
    assert not groups.oom_killed("comp", 1)
    count_oom_kills(root, 8)
    assert groups.oom_killed("comp", 1)
    assert not groups.oom_killed("other", 1)
    groups.close()


@pytest.mark.usefixtures("no_leaks")
def test_a_job_that_was_killed_for_want_of_memory_names_nobody_later(short_dir: Path) -> None:
    """What is counted for all together is told of an end that comes soon, and not of one that comes much later."""
    root = short_dir / "groups"
    root.mkdir()
    count_oom_kills(root, 7)
    groups = Groups(root)
    groups.open(COMPONENT, 1)
    groups.age(1000.0)
    count_oom_kills(root, 8)
    groups.age(1000.0 + OOM_FRESH_S)
    assert groups.oom_killed("comp", 1)
    count_oom_kills(root, 9)
    groups.age(1000.0 + 2 * OOM_FRESH_S)
    groups.age(1000.0 + 3 * OOM_FRESH_S)
    assert not groups.oom_killed("comp", 1)
    groups.close()


def count_oom_kills(group: Path, number: int) -> None:
    """Play the kernel's part."""
    (group / "memory.events").write_text(f"oom {number + 1}\noom_kill {number}\n")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return ""
