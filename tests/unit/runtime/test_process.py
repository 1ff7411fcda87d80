import os
import resource
import signal
import stat
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from node_manager.core.actions import CancelPreStart, CancelSpawn, KillTree, RunHelper, RunPreStart, Signal
from node_manager.core.events import (
    Exited,
    ExitStatus,
    HelperDone,
    PreStartDone,
    Spawned,
    SpawnFailed,
    TreeEmpty,
)
from node_manager.core.spec import CommandSpec, LimitsSpec, LogSink
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.marks import marked
from node_manager.runtime.procfs import ProcFs
from tests.unit.runtime.rig import Rig, alive, kill, python, shell, stranger, wait_stopped

NS = 1_000_000_000
DOUBLE_FORK = """
import os, time
if os.fork():
    os.wait()
    print("main", flush=True)
    time.sleep(1000)
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
time.sleep(1000)
"""
"""A daemon that leaves the session and loses its parent."""


def test_a_component_gets_its_environment_from_scratch(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the agent's environment but PATH, LANG and TZ goes on, and XCE_MAIN_PID is the child's own pid."""
    monkeypatch.setenv("SECRET", "agent's")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("LANG", raising=False)
    pid = rig.start(
        ("/usr/bin/env",),
        environment=(("XCE_SLOTS", "16"), ("XCE_COMPONENT", "forged")),
        term=4,
        lease_valid_until_ns=12,
        generation=3,
    )
    rig.exited()
    variables = dict(line.split("=", 1) for line in rig.log().splitlines())
    expected = {
        "XCE_COMPONENT": "comp",
        "XCE_GENERATION": "3",
        "XCE_MAIN_PID": str(pid),
        "XCE_NODE_NONCE": rig.nonce,
        "XCE_HEARTBEAT_SOCKET": str(rig.runtime_dir / "heartbeat.sock"),
        "NOTIFY_SOCKET": str(rig.runtime_dir / "notify" / "comp.sock"),
        "XCE_TERM": "4",
        "XCE_LEASE_VALID_UNTIL_NS": "12",
        "XCE_SLOTS": "16",
        "TZ": "UTC",
        "PATH": os.environ["PATH"],
    }
    assert expected == {key: variables[key] for key in expected}
    assert {"HOME", "USER", "LOGNAME", "SHELL"} == set(variables) - set(expected)


def test_a_component_starts_with_a_clean_process(rig: Rig) -> None:
    """Own session, no signal blocked or ignored, no descriptor but its three, umask 022, working directory /."""
    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        code = (
            "import os\n"
            "print(os.getsid(0) == os.getpid(), sorted(os.listdir('/proc/self/fd')), os.getcwd(), oct(os.umask(0)))\n"
            "print([l.split()[1] for l in open('/proc/self/status') if l[:6] in ('SigBlk', 'SigIgn')])"
        )
        # Python itself ignores SIGPIPE (13) and SIGXFSZ (25); the shell in between shows what came from us
        rig.start((*shell("grep -E 'Sig(Blk|Ign)' /proc/self/status; exec \"$@\""), "sh", *python(code)))
        rig.exited()
    finally:
        os.close(leaked)
    lines = rig.log().splitlines()
    assert lines[0] == "SigBlk:\t0000000000000000"
    # 32 and 33 are glibc's own: no program can change them, and GNU make hands them down ignored.
    assert int(lines[1].removeprefix("SigIgn:\t"), 16) & ~(1 << 31 | 1 << 32) == 0
    assert lines[2] == "True ['0', '1', '2', '3'] / 0o22"  # 3 is the listing itself


def test_limits_and_oom_score_reach_the_child(rig: Rig) -> None:
    """`limits.nofile` and `oom_score_adj` of the role are the child's."""
    rig.start(shell("ulimit -n; cat /proc/self/oom_score_adj"), limits=LimitsSpec(nofile=123), oom_score_adj=500)
    rig.exited()
    assert rig.log().splitlines() == ["123", "500"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run another user's processes")
def test_root_drops_to_the_user_of_the_role(rig: Rig) -> None:
    """uid, gid, groups and HOME are the user's, and the log stays the agent's."""
    rig.start(shell("id -un; id -gn; id -Gn; echo $HOME; umask"), user="nobody")
    rig.exited()
    assert rig.log().splitlines() == ["nobody", "nogroup", "nogroup", "/nonexistent", "0022"]
    assert stat.S_IMODE((rig.log_dir / "comp.log").stat().st_mode) == 0o640


def test_the_exit_is_reported_with_code_or_signal(rig: Rig) -> None:
    """Exited carries the code of an exit and the number of a fatal signal, and the jitter that was drawn."""
    rig.start(shell("exit 79"))
    first = rig.exited()
    assert (ExitStatus(code=79), 0, 7) == (first.status, first.left, first.jitter)
    pid = rig.start(shell("sleep 1000"), generation=2)
    kill(pid)
    assert ExitStatus(signal=9) == rig.exited(2).status


def test_a_signal_reaches_the_main_process_of_that_generation_alone(rig: Rig) -> None:
    """A signal for another generation is not delivered."""
    pid = rig.start(shell("sleep 1000 & echo forked; wait"), generation=5)
    rig.lines(1)
    rig.processes.signal(Signal(component="comp", generation=4, signal=signal.SIGKILL))
    rig.processes.signal(Signal(component="nobody", generation=4, signal=signal.SIGKILL))
    assert alive(pid)
    rig.processes.signal(Signal(component="comp", generation=5, signal=signal.SIGTERM))
    done = rig.exited()
    assert (ExitStatus(signal=15), 1) == (done.status, done.left)
    rig.processes.signal(Signal(component="comp", generation=5, signal=signal.SIGTERM))


@pytest.mark.parametrize(
    ("command", "fields", "expected"),
    [
        (("/usr/bin/xce-worker",), {}, "cannot execute /usr/bin/xce-worker: No such file or directory (ENOENT)"),
        (("xce-worker",), {"environment": (("PATH", "/a:/b"),)}, "cannot execute xce-worker, looked for in /a:/b: No"),
        (("/etc/passwd",), {}, "cannot execute /etc/passwd: Permission denied (EACCES)"),
        (("/",), {}, "cannot execute /: Permission denied (EACCES)"),
        (("",), {}, "cannot execute an empty command; give `command` a program: Invalid argument (EINVAL)"),
        (("/bin/true", "a\0b"), {}, "cannot execute '/bin/true': command or environment has a zero byte: Invalid"),
        (("/bin/true", "x" * 200_000), {}, "cannot execute /bin/true, its arguments and environment are too large"),
        (("/bin/true",), {"working_directory": "/nowhere"}, "cannot enter the working directory /nowhere as "),
        (("/bin/true",), {"user": "xce-unknown"}, "cannot run comp as user xce-unknown: this host has no such user"),
        (("/bin/true",), {"environment_file": "/nowhere"}, "cannot read the environment_file /nowhere: No such file"),
        (("/bin/true",), {"not_after_ns": 1}, "cannot execute /bin/true: the lease it needs would end before"),
        (("/bin/true",), {"oom_score_adj": 5000}, "cannot set oom_score_adj of /bin/true to 5000: Invalid argument"),
    ],
)  # fmt: skip
def test_a_failed_start_says_why_and_leaves_nothing(
    rig: Rig, command: tuple[str, ...], fields: dict[str, Any], expected: str
) -> None:
    """SpawnFailed has the errno's meaning and what it concerns; no process and no descriptor is left."""
    rig.spawn(command, **fields)
    failed = rig.wait_for(SpawnFailed)
    assert failed.reason.startswith(expected)
    assert (failed.generation, failed.jitter) == (1, 7)
    assert not rig.of(Spawned)
    assert rig.processes.snapshot() == ()


def test_a_missing_interpreter_is_told_from_a_missing_program(rig: Rig) -> None:
    """ENOENT for a script that exists says that its interpreter is missing; no #! line at all says that."""
    for name, first_line in (("lost", "#!/nowhere/python\n"), ("bare", "echo hello\n")):
        script = rig.directory / name
        script.write_text(first_line)
        script.chmod(0o755)
        rig.spawn((str(script),), name=name)
    rig.wait_for(SpawnFailed, 2)
    assert sorted((event.component for event in rig.of(SpawnFailed)), reverse=True) == ["lost", "bare"]
    reasons = {event.component: event.reason for event in rig.of(SpawnFailed)}
    assert "exists but the interpreter that it names does not: No such file" in reasons["lost"]
    assert "neither a program of this machine nor a script with a #! line: Exec format error" in reasons["bare"]


def test_a_deadline_ahead_lets_the_command_run(rig: Rig) -> None:
    """`not_after_ns` in the future does not stop a start."""
    rig.start(("/bin/true",), not_after_ns=boottime_ns() + 60 * NS)
    assert ExitStatus(code=0) == rig.exited().status


def test_no_descriptors_left_is_a_failed_start(rig: Rig) -> None:
    """EMFILE answers SpawnFailed and nothing runs; the next start works."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
    try:
        rig.spawn(("/bin/true",), log=LogSink.INHERIT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert rig.wait_for(SpawnFailed).reason == "cannot start /bin/true: Too many open files (EMFILE)"
    rig.start(("/bin/true",), generation=2)
    rig.exited()


def test_a_second_start_over_a_living_process_is_refused(rig: Rig) -> None:
    """There is never a second main process of a component."""
    pid = rig.start(shell("sleep 1000"))
    rig.spawn(shell("sleep 1000"), generation=2)
    assert f"cannot start comp: pid {pid} of an earlier start still runs" == rig.wait_for(SpawnFailed).reason
    assert alive(pid)


def test_descendants_that_left_the_session_are_in_the_tree(rig: Rig) -> None:
    """A setsid, double-forked grandchild is counted at the exit and killed by KillTree (scenario 10)."""
    main = rig.start(python(DOUBLE_FORK))
    daemon = next(int(line) for line in rig.lines(2) if line != "main")
    rig.run_until(lambda: (found := ProcFs().stat(daemon)) and found.ppid == os.getpid(), "the orphan")
    assert rig.processes.member(daemon) == "comp"
    assert rig.processes.identify(main) == ("comp", 1)
    assert rig.processes.identify(daemon) is None
    kill(main)
    assert rig.exited().left == 1
    assert alive(daemon)
    assert rig.processes.member(daemon) == "comp"
    assert rig.kill_tree().generation == 1
    assert not alive(daemon)
    assert len(rig.of(TreeEmpty)) == 1


def test_an_orphan_without_environment_is_known_by_its_session(rig: Rig) -> None:
    """An orphan that cleared its environment but stays in the session belongs to the component."""
    rig.start(shell("(exec env -i sleep 1000) & exec env -i sleep 0.01"))
    assert rig.exited().left == 1
    rig.kill_tree()


def test_kill_tree_ends_what_ignores_sigterm_and_forks(rig: Rig) -> None:
    """SIGTERM ignored everywhere and children made all the time: still nothing is left."""
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    os.fork()
print("up", flush=True)
while True:
    if os.fork() == 0:
        os.setsid()
        time.sleep(0.2)
        os._exit(0)
    time.sleep(0.005)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
    rig.start(python(code))
    rig.lines(8)
    rig.processes.signal(Signal(component="comp", generation=1, signal=signal.SIGTERM))
    for _ in range(3):
        rig.processes.kill_tree(KillTree(component="comp", generation=1))
    rig.wait_for(TreeEmpty)
    assert ExitStatus(signal=9) == rig.exited().status
    rig.turn()
    assert len(rig.of(TreeEmpty)) == 1
    sockets = [marks.get("XCE_HEARTBEAT_SOCKET") for _found, marks in marked(ProcFs())]
    assert rig.markers.heartbeat_socket not in sockets


def test_kill_tree_of_an_empty_tree_answers(rig: Rig) -> None:
    """TreeEmpty comes for a component that never ran."""
    assert rig.kill_tree("ghost", 9).component == "ghost"


def test_kill_tree_touches_no_other_component_and_no_stranger(rig: Rig) -> None:
    """Only the component's own processes are killed: not another component's, not an unmarked child of ours."""
    other = rig.start(python(DOUBLE_FORK), name="other")
    other_daemon = next(int(line) for line in rig.lines(2, "other") if line != "main")
    bystander = stranger("/bin/sleep", "1000")
    rig.start(shell("sleep 1000 & wait"))
    rig.kill_tree()
    assert (alive(other), alive(other_daemon), alive(bystander)) == (True, True, True)
    assert rig.processes.member(bystander) is None
    assert rig.processes.member(os.getpid()) is None


def test_kill_tree_spares_a_newer_generation(rig: Rig) -> None:
    """A kill asked for generation 1 leaves the main process of generation 2 and its children alone."""
    main = rig.start(shell("sleep 1000 & echo $!; wait"), generation=2)
    child = int(rig.lines(1)[0])
    rig.kill_tree(generation=1)
    assert (alive(main), alive(child)) == (True, True)


def test_zombies_do_not_count(rig: Rig) -> None:
    """A zombie that its parent does not reap is not living: KillTree ends, `left` is 0."""
    code = (
        "import os, time\nif os.fork() == 0: os._exit(0)\n"
        "os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT); print('up', flush=True); time.sleep(1000)"
    )
    pid = rig.start(python(code))
    rig.lines(1)
    kill(pid)
    assert rig.exited().left == 0


def test_a_changed_process_title_changes_nothing(rig: Rig) -> None:
    """A process that overwrites its name with parentheses is still found and killed."""
    code = (
        "import ctypes, os, time\n"
        "ctypes.CDLL(None).prctl(15, b') Z 1 (', 0, 0, 0)\n"
        "if os.fork() == 0: time.sleep(1000)\n"
        "print('up', flush=True); time.sleep(1000)"
    )
    pid = rig.start(python(code))
    rig.lines(1)
    kill(pid)
    assert rig.exited().left == 1
    rig.kill_tree()


def test_closed_standard_descriptors_do_not_reach_the_child(rig: Rig) -> None:
    """A component that closes all its descriptors is watched all the same."""
    rig.start(python("import os, time\nos.closerange(0, 64)\ntime.sleep(0.05)\nos._exit(3)"))
    assert ExitStatus(code=3) == rig.exited().status


def test_orphans_are_reaped_and_never_a_main_process(rig: Rig) -> None:
    """Zombies of orphans go; the status of a main process that ended at the same time is its own."""
    mains = [f"main{number}" for number in range(10)]
    for number, name in enumerate(mains):
        rig.start(shell(f"(sh -c 'exit 9' & sh -c 'exit 8' &) ; exit {number}"), name=name)
    rig.run_until(lambda: sum(type(event).__name__ == "Exited" for event in rig.events) == 10, "all exits")
    codes = {event.component: event.status.code for event in rig.events if type(event).__name__ == "Exited"}  # type: ignore[union-attr]
    assert {name: number for number, name in enumerate(mains)} == codes
    rig.run_until(_no_zombie_child, "reaped orphans")


def _no_zombie_child() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return True


def test_identify_posts_spawned_before_it_answers(rig: Rig) -> None:
    """A component that beats at once is known, and Spawned is already posted then."""
    rig.spawn(shell("sleep 1000"))
    (record,) = rig.processes.snapshot()
    deadline = time.monotonic() + 30
    while rig.processes.identify(record.pid) is None:
        assert time.monotonic() < deadline
    assert [Spawned(component="comp", generation=1, pid=record.pid)] == rig.events
    rig.turn()
    rig.turn()
    assert len(rig.events) == 1


def test_the_snapshot_names_the_process_with_its_start_time(rig: Rig) -> None:
    """The record of a process has what adoption needs to prove it."""
    before_ns = boottime_ns()
    pid = rig.start(shell("sleep 1000"), generation=4)
    (record,) = rig.processes.snapshot()
    found = ProcFs().stat(pid)
    assert found is not None
    assert ("comp", 4, pid, found.start_ticks) == (record.component, record.generation, record.pid, record.start_ticks)
    assert before_ns <= record.started_ns <= boottime_ns()


@pytest.mark.usefixtures("no_leaks")
def test_the_end_is_told_while_the_process_is_still_known(short_dir: Path) -> None:
    """What a process sent before its end can be read and attributed before Exited is posted."""
    told: list[object] = []

    def ending(component: str, generation: int) -> None:
        told.append((component, generation, rig.processes.identify(pid), list(rig.of(Exited))))

    rig = Rig(short_dir, ending=ending)
    pid = rig.start(shell("sleep 1000"), generation=3)
    kill(pid)
    rig.exited()
    assert told == [("comp", 3, ("comp", 3), [])]
    assert rig.processes.identify(pid) is None
    rig.close()


def test_closing_leaves_processes_alone(rig: Rig) -> None:
    """After close the components run on and no event comes."""
    pid = rig.start(shell("sleep 1000"))
    rig.spawn(shell("sleep 1000"), name="in-flight")
    rig.processes.close()
    rig.turn()
    assert alive(pid)


def test_a_log_that_cannot_be_opened_does_not_stop_a_start(rig: Rig) -> None:
    """A link in the log's place is not followed; the component runs and the agent is told."""
    (rig.log_dir / "comp.log").symlink_to(rig.directory / "elsewhere")
    rig.start(shell("echo to-stderr-of-the-agent >/dev/null"))
    rig.exited()
    assert not (rig.directory / "elsewhere").exists()
    assert "cannot open the log" in rig.warnings[0]


def pre_start(rig: Rig, command: tuple[str, ...], timeout_ns: int = 30 * NS) -> PreStartDone:
    helper = CommandSpec(command=command, timeout_ns=timeout_ns)
    rig.processes.run_pre_start(
        RunPreStart(component="comp", generation=1, spec=rig.spec(("/bin/true",)), command=helper)
    )
    return rig.wait_for(PreStartDone, len(rig.of(PreStartDone)) + 1)


def test_pre_start_answers_for_success_failure_and_a_missing_command(rig: Rig) -> None:
    """PreStartDone always comes; the detail of a failure is the status and the tail of its output."""
    done = pre_start(rig, ("/bin/true",))
    assert (done.ok, done.detail, done.jitter) == (True, "", 7)
    failed = pre_start(rig, shell("yes ......... | head -c 100000; printf 'nginx:\\n\\033[2Jbad' >&2; exit 1"))
    assert not failed.ok
    assert failed.detail.startswith("exited with status 1: .")
    assert failed.detail.endswith("nginx: ?[2Jbad")
    assert len(failed.detail) < 600
    assert pre_start(rig, ("/nowhere",)).detail == "cannot execute /nowhere: No such file or directory (ENOENT)"


def test_pre_start_is_killed_with_its_tree_at_its_timeout(rig: Rig) -> None:
    """A check that hangs, and the daemon it made, die; the answer says so."""
    done = pre_start(rig, python(DOUBLE_FORK), timeout_ns=2 * NS)
    assert not done.ok
    assert done.detail.startswith("not finished within 2 s, killed: ")
    daemon = next(int(word) for word in done.detail.split() if word.isdigit() and word != "2")
    assert not alive(daemon)


def test_what_a_check_leaves_behind_is_killed(rig: Rig) -> None:
    """A check that exits 0 and leaves a process has that killed before it counts as done."""
    done = pre_start(rig, shell(f"setsid sleep 1000 & echo $! >{rig.directory}/left"))
    assert done.ok
    assert not alive(int((rig.directory / "left").read_text()))


class Executing(ProcFs):
    """Of each process nothing can be read at first, as while it executes its command."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: Counter[int] = Counter()
        self.looks_without = 4
        """More than a search takes that finds nobody."""

    def markers(self, pid: int) -> dict[str, str] | None:
        self.looks[pid] += 1
        return None if self.looks[pid] <= self.looks_without else super().markers(pid)


def leave_somebody(rig: Rig) -> int:
    """Have a check end that leaves a process in a session of its own: its pid."""
    left = rig.directory / "left"
    deserts = f"setsid sh -c 'echo $$ >{left}; exec sleep 1000' & while ! [ -s {left} ]; do sleep 0.01; done"
    assert pre_start(rig, shell(deserts)).ok
    return int(left.read_text())


def test_what_a_check_leaves_behind_is_killed_while_it_executes(short_dir: Path) -> None:
    """A leftover that is just executing a command of its own shows no markers yet: nobody counts as gone for that."""
    rig = Rig(short_dir, procfs=Executing())
    assert not alive(leave_somebody(rig))
    rig.close()


def test_who_shows_nothing_for_long_is_a_stranger(short_dir: Path) -> None:
    """What stays without environment and arguments is not ours: the search ends, after it had time to execute."""
    procfs = Executing()
    procfs.looks_without = sys.maxsize
    rig = Rig(short_dir, procfs=procfs)
    left = leave_somebody(rig)
    assert alive(left)
    kill(left)
    rig.close()


def test_a_cancelled_check_answers(rig: Rig) -> None:
    """CancelPreStart ends the check at once; PreStartDone follows and is not ok; a second cancel is harmless."""
    helper = CommandSpec(command=shell("sleep 1000"), timeout_ns=100 * NS)
    action = RunPreStart(component="comp", generation=1, spec=rig.spec(("/bin/true",)), command=helper)
    rig.processes.run_pre_start(action)
    rig.processes.cancel_pre_start(CancelPreStart(component="comp", generation=1))
    rig.processes.cancel_pre_start(CancelPreStart(component="comp", generation=1))
    done = rig.wait_for(PreStartDone)
    assert (done.ok, done.detail) == (False, "cancelled")
    rig.processes.cancel_pre_start(CancelPreStart(component="comp", generation=1))


def test_a_reload_command_knows_the_main_pid_and_is_not_taken_for_it(rig: Rig) -> None:
    """XCE_MAIN_PID of a reload command is the component's; its signal reaches it; its session is its own."""
    pid = rig.start(shell("trap 'echo reloaded' HUP; echo up; while :; do sleep 0.05; done"))
    rig.lines(1)
    command = CommandSpec(command=shell("kill -HUP $XCE_MAIN_PID; test $$ != $XCE_MAIN_PID"), timeout_ns=30 * NS)
    rig.processes.run_helper(
        RunHelper(component="comp", generation=1, purpose="reload", spec=rig.spec(("/bin/true",)), command=command)
    )
    done = rig.wait_for(HelperDone)
    assert (done.purpose, done.ok, done.detail) == ("reload", True, "")
    assert rig.lines(2) == ["up", "reloaded"]
    assert alive(pid)


def test_kill_tree_leaves_a_running_check_to_its_own_bound(rig: Rig) -> None:
    """A helper under way is no member of the component's own tree."""
    command = CommandSpec(command=shell("sleep 0.5; echo done; exit 4"), timeout_ns=30 * NS)
    rig.processes.run_helper(
        RunHelper(component="comp", generation=1, purpose="drain", spec=rig.spec(("/bin/true",)), command=command)
    )
    rig.kill_tree()
    assert rig.wait_for(HelperDone).detail == "exited with status 4: done"


def test_closing_lets_go_of_what_is_being_cleared(rig: Rig) -> None:
    """A check that has exited, while what it left is being killed, holds nothing after close."""
    helper = CommandSpec(
        command=shell("sleep 1000 & echo $$ $! >pids; until test -e gate; do sleep 0.01; done"), timeout_ns=100 * NS
    )
    rig.processes.run_pre_start(
        RunPreStart(
            component="comp",
            generation=1,
            spec=rig.spec(("/bin/true",), working_directory=str(rig.directory)),
            command=helper,
        )
    )
    pids = rig.directory / "pids"
    rig.run_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    own, left = map(int, pids.read_text().split())
    (rig.directory / "gate").touch()
    while rig.processes.helpers.owns(own):
        rig.turn()
    rig.processes.close()
    rig.run_until(lambda: not alive(left))
    assert not rig.of(PreStartDone)


def test_closing_kills_helpers(rig: Rig) -> None:
    """A check under way does not outlive the agent: nobody would read its result."""
    helper = CommandSpec(command=shell(f"echo $$ >{rig.directory}/pid; sleep 1000"), timeout_ns=100 * NS)
    action = RunPreStart(component="comp", generation=1, spec=rig.spec(("/bin/true",)), command=helper)
    rig.processes.run_pre_start(action)
    pid_file = Path(rig.directory / "pid")
    rig.run_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    rig.processes.close()
    rig.run_until(lambda: not alive(int(pid_file.read_text())))


def test_what_a_check_left_in_its_session_is_killed(rig: Rig) -> None:
    """Without its environment it is known by its session, because it was seen there while the check was not reaped."""
    done = pre_start(rig, shell(f"env -i sleep 1000 & echo $! >{rig.directory}/left"))
    assert done.ok
    assert not alive(int((rig.directory / "left").read_text()))


def spawn_that_hangs(rig: Rig, marker: Path) -> int:
    """Start `touch marker`, stopped before it executes its command as if a file system hung; return its generation."""
    for generation in range(1, 200):
        rig.spawn(("/usr/bin/touch", str(marker)), generation=generation)
        os.kill(rig.processes.snapshot()[0].pid, signal.SIGSTOP)
        wait_stopped(rig.processes.snapshot()[0].pid)
        if not rig.processes.identify(rig.processes.snapshot()[0].pid):
            return generation
        os.kill(rig.processes.snapshot()[0].pid, signal.SIGCONT)  # it was faster
        rig.run_until(lambda: not rig.processes.snapshot())
        marker.unlink(missing_ok=True)
    raise AssertionError("every child was faster")


def test_a_spawn_that_is_cancelled_never_runs_its_command(rig: Rig) -> None:
    """What is not wanted any more is killed between fork and exec, and the answer is a failed start."""
    marker = rig.directory / "ran"
    generation = spawn_that_hangs(rig, marker)
    pid = rig.processes.snapshot()[0].pid
    rig.processes.cancel_spawn(CancelSpawn(component="comp", generation=generation))
    failed = rig.wait_for(SpawnFailed)
    assert (failed.generation, failed.reason) == (generation, "not wanted any more before it was started")
    rig.run_until(lambda: not alive(pid))
    assert not marker.exists()


def test_cancelling_what_runs_already_changes_nothing(rig: Rig) -> None:
    """Once the command is executed the stop ladder is the way; another generation is not meant."""
    pid = rig.start(("/bin/sleep", "1000"))
    for generation in (1, 2):
        rig.processes.cancel_spawn(CancelSpawn(component="comp", generation=generation))
    rig.turn()
    assert rig.of(SpawnFailed) == []
    assert alive(pid)


def test_a_child_that_hangs_before_its_command_is_killed(rig: Rig) -> None:
    """A start that does not get to its command within the bound fails, and that child never runs it."""
    marker = rig.directory / "ran"
    spawn_that_hangs(rig, marker)
    pid = rig.processes.snapshot()[0].pid
    failed = rig.wait_for(SpawnFailed)
    rig.run_until(lambda: not alive(pid))
    assert failed.reason.startswith("cannot execute /usr/bin/touch: not begun within 5 s, a file system hangs")
    rig.start(("/bin/true",), generation=1000)
    assert not marker.exists()
