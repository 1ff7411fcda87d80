import errno
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node_manager.runtime.accounts import Account, AccountError, Accounts
from node_manager.runtime.procfs import ProcFs
from node_manager.runtime.spawn import NATIVE, LaunchError, LaunchPlan, begin, launch
from tests.unit.runtime.cgroups import delegated, needs_cgroups
from tests.unit.runtime.rig import BOUND_S, python, wait_stopped

pytestmark = pytest.mark.usefixtures("no_leaks")
BOTH_WAYS = pytest.mark.parametrize(
    "native", [pytest.param(True, marks=pytest.mark.skipif(not NATIVE, reason="the C half was not built")), False]
)
"""Every promise holds for both ways to make a child."""


def plan(*command: str, output_fd: int | None = None) -> LaunchPlan:
    return LaunchPlan(
        command=command, environment=(("PATH", "/usr/bin:/bin"),), account=Accounts().find(None), output_fd=output_fd
    )


def run(code: str, native: bool) -> subprocess.CompletedProcess[str]:
    """Run this as a program of its own."""
    command = [sys.executable, "-c", code, str(native)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)


def finish(pidfd: int) -> int:
    result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    os.close(pidfd)
    assert result is not None
    return result.si_status


@BOTH_WAYS
def test_launch_returns_a_running_process(native: bool) -> None:
    """The blocking form hands back the pid and a pidfd that is its own."""
    launched = launch(plan("sh", "-c", "exit 5"), native=native)
    fdinfo = Path(f"/proc/self/fdinfo/{launched.pidfd}").read_text()
    assert f"Pid:\t{launched.pid}\n" in fdinfo
    assert finish(launched.pidfd) == 5


@BOTH_WAYS
def test_launch_raises_with_errno_and_stage(native: bool) -> None:
    """LaunchError has the number and the stage for programs, and the sentence for people."""
    with pytest.raises(LaunchError, match=r"^cannot execute /nowhere: No such file or directory \(ENOENT\)$") as caught:
        launch(plan("/nowhere"), native=native)
    assert (caught.value.errno, caught.value.stage) == (2, "exec")


@BOTH_WAYS
def test_a_child_killed_before_its_command_is_cleaned_up(native: bool) -> None:
    """`kill` and `reap` leave neither process nor descriptor."""
    attempt = begin(plan("sleep", "1000"), native=native)
    os.kill(attempt.pid, signal.SIGSTOP)
    wait_stopped(attempt.pid)
    while attempt.settle():  # it was faster
        attempt.kill()
        finish(attempt.pidfd)
        attempt = begin(plan("sleep", "1000"), native=native)
        os.kill(attempt.pid, signal.SIGSTOP)
        wait_stopped(attempt.pid)
    attempt.kill()
    os.waitid(os.P_PIDFD, attempt.pidfd, os.WEXITED | os.WNOWAIT)
    assert attempt.reap()


@BOTH_WAYS
def test_a_signal_of_the_agent_handler_does_not_run_in_the_child(native: bool) -> None:
    """A signal that arrives between fork and exec acts by default; the agent's handler is not called in the child."""
    seen: list[int] = []
    read_fd, write_fd = os.pipe()
    before = signal.signal(signal.SIGUSR1, lambda *_: os.write(write_fd, b"x"))
    try:
        for _ in range(20):
            attempt = begin(plan("sleep", "1000"), native=native)
            os.kill(attempt.pid, signal.SIGUSR1)
            seen.append(finish(attempt.pidfd))
            os.close(attempt.report_fd)
    finally:
        signal.signal(signal.SIGUSR1, before)
        os.close(write_fd)
    assert os.read(read_fd, 1) == b""
    os.close(read_fd)
    assert seen == [signal.SIGUSR1] * 20


@BOTH_WAYS
@pytest.mark.parametrize("log_fd", [0, 1, 2])
def test_an_agent_without_standard_descriptors_starts_children(tmp_path: Path, log_fd: int, native: bool) -> None:
    """With 0, 1 and 2 closed in the agent, the child still has three and its own failure is still reported."""
    code = """
import os, sys
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.spawn import LaunchError, LaunchPlan, launch
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
out = os.dup2(out, 20)
os.closerange(0, 10)
for number in range(int(sys.argv[2])):
    os.open("/dev/null", os.O_RDONLY)
log = os.open(sys.argv[1] + ".log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
assert log == int(sys.argv[2])
account = Accounts().find(None)
plan = LaunchPlan(
    command=("/bin/sh", "-c", "cat; echo out; echo err >&2"), environment=(), account=account, output_fd=log
)
done = launch(plan, native=sys.argv[3] == "True")
os.waitpid(done.pid, 0)
try:
    plan = LaunchPlan(command=("/nowhere",), environment=(), account=account)
    launch(plan, native=sys.argv[3] == "True")
except LaunchError as error:
    os.write(out, str(error).encode())
"""
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out"), str(log_fd), str(native)], check=True, timeout=60
    )
    assert (tmp_path / "out.log").read_text() == "out\nerr\n"
    assert (tmp_path / "out").read_text() == "cannot execute /nowhere: No such file or directory (ENOENT)"


@BOTH_WAYS
@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_too_many_processes_is_a_failed_start(native: bool) -> None:
    """EAGAIN of fork says what it means (scenario 9's neighbour)."""
    code = """
import os, resource, sys
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.spawn import LaunchError, LaunchPlan, launch
os.setgid(54321); os.setuid(54321)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    plan = LaunchPlan(command=("/bin/true",), environment=(), account=Accounts().find(None))
    launch(plan, native=sys.argv[1] == "True")
except LaunchError as error:
    print(error.stage, error, len(os.listdir("/proc/self/fd")))
"""
    done = run(code, native)
    expected = "fork cannot start /bin/true, the host or the user has too many processes: Resource temporarily unavailable (EAGAIN) 4\n"  # noqa: E501
    assert expected == done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_an_agent_that_is_not_root_cannot_change_the_user() -> None:
    """The refusal says that only root can, and a uid without an account still works."""
    code = """
import os
from node_manager.runtime.accounts import AccountError, Accounts
os.setgid(54321); os.setuid(54321)
print(Accounts().find(None))
try:
    Accounts().find("nobody")
except AccountError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    own = Account(name="54321", uid=54321, gid=54321, home="/", login_shell="/bin/sh")
    refusal = "the agent runs with uid 54321; only an agent that is root can run another user's"
    assert f"{own}\n{refusal}\n" == done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run another user's component")
def test_an_unknown_user_is_asked_for_again() -> None:
    """The lookup of a user that is not there is not remembered; that of one that is there is."""
    accounts = Accounts()
    for _ in range(2):
        with pytest.raises(AccountError, match="no such user"):
            accounts.find("xce-unknown")
    assert accounts.find("nobody") is accounts.find("nobody")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="older versions do not warn")
def test_python_warns_of_nothing() -> None:
    """Starting a child with a second thread about gives no warning (they are errors here)."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert finish(launch(plan(*python(""))).pidfd) == 0
    finally:
        stop.set()
        thread.join()


@BOTH_WAYS
def test_a_child_that_has_not_executed_its_command_dies_with_the_agent(native: bool) -> None:
    """An agent killed between fork and exec leaves nothing that its successor could not see, and that starts later."""
    code = """
import os, signal, sys, time
sys.path[:0] = sys.argv[2:]
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.spawn import LaunchPlan, begin
from tests.unit.runtime.rig import wait_stopped
plan = LaunchPlan(command=("/bin/sleep", "1000"), environment=(), account=Accounts().find(None), output_fd=None)
while True:
    attempt = begin(plan, native=sys.argv[1] == "True")
    os.kill(attempt.pid, signal.SIGSTOP)
    wait_stopped(attempt.pid)
    if not attempt.settle():
        break
    attempt.kill()
    os.waitpid(attempt.pid, 0)
print(attempt.pid, flush=True)
time.sleep(1000)
"""
    root = str(Path(__file__).parents[3])
    agent = subprocess.Popen(
        [sys.executable, "-c", code, str(native), root, *sys.path], stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    pid = int(agent.stdout.readline())
    try:
        assert lives(pid)
        agent.kill()
        agent.wait()
        until_s = time.monotonic() + BOUND_S
        while lives(pid):
            os.kill(pid, signal.SIGCONT)
            assert command_of(pid) != "sleep", "it executed its command"
            assert time.monotonic() < until_s, "the child outlived its agent"
            time.sleep(0.01)
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()
        if lives(pid):
            os.kill(pid, signal.SIGKILL)


def lives(pid: int) -> bool:
    stat = ProcFs().stat(pid)
    return stat is not None and stat.living


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@BOTH_WAYS
def test_the_child_starts_from_scratch(native: bool, tmp_path: Path) -> None:
    """Its environment is the plan's and its pid; own session, no signal blocked or ignored, three descriptors."""
    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    ignored = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    log_fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT, 0o600)
    script = (
        "echo $$ $XCE_MAIN_PID $(ps -o sid= -p $$) $(umask) $PWD; grep -E 'Sig(Blk|Ign)' /proc/self/status; "
        "env; ls /proc/$$/fd"
    )
    before = LaunchPlan(
        command=("sh", "-c", script),
        environment=(("XCE_MAIN_PID", "0"), ("PATH", "/usr/bin:/bin"), ("ODD", "a=b c")),
        account=Accounts().find(None),
        output_fd=log_fd,
        own_pid_key="XCE_MAIN_PID",
        directory=str(tmp_path),
    )
    try:
        launched = launch(before, native=native)
    finally:
        os.close(log_fd)
        os.close(leaked)
        signal.signal(signal.SIGUSR2, ignored)
    assert finish(launched.pidfd) == 0
    lines = (tmp_path / "log").read_text().splitlines()
    pid = str(launched.pid)
    assert lines[0].split() == [pid, pid, pid, "0022", str(tmp_path)]
    assert lines[1] == "SigBlk:\t0000000000000000"
    # 32 and 33 are glibc's own: no program can change them, and GNU make hands them down ignored.
    assert int(lines[2].removeprefix("SigIgn:\t"), 16) & ~(1 << 31 | 1 << 32) == 0
    assert {f"XCE_MAIN_PID={pid}", "PATH=/usr/bin:/bin", "ODD=a=b c", f"PWD={tmp_path}"} <= set(lines[3:])
    assert lines[-3:] == ["0", "1", "2"]


@BOTH_WAYS
@pytest.mark.parametrize(
    ("fields", "stage", "number"),
    [
        ({"nofile": 1 << 40}, "limits", errno.EPERM),
        ({"oom_score_adj": 5000}, "oom_score_adj", errno.EINVAL),
        ({"directory": "/nowhere"}, "directory", errno.ENOENT),
        ({"not_after_ns": 1}, "deadline", errno.ETIME),
        ({"command": ("/bin/true", "x" * 200_000)}, "exec", errno.E2BIG),
        ({"command": ("/etc/passwd",)}, "exec", errno.EACCES),
        ({"command": ("passwd",), "environment": (("PATH", "/nowhere:/etc:/bin/true"),)}, "exec", errno.EACCES),
        ({"cgroup_fd": 0}, "cgroup", errno.ENOTDIR),
        ({"fuse_fd": 0}, "fuse", errno.ENOTSOCK),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_child_that_cannot_be_its_command_says_where_it_failed(
    native: bool, fields: dict[str, Any], stage: str, number: int
) -> None:
    """The stage and the errno are those of the first step that failed, and nothing of the child is left."""
    null_fd = os.open("/dev/null", os.O_RDONLY)
    fields = {key: null_fd if key.endswith("_fd") else value for key, value in fields.items()}
    try:
        with pytest.raises(LaunchError) as caught:
            launch(replace(plan("true"), **fields), native=native)
    finally:
        os.close(null_fd)
    assert (caught.value.stage, caught.value.errno) == (stage, number)


@BOTH_WAYS
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run another user's processes")
def test_the_user_is_the_childs_alone(native: bool, tmp_path: Path) -> None:
    """User, groups, limits and oom_score_adj are set in the child, and nothing of them in any thread of the agent."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    before = identity()
    log_fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT, 0o600)
    account = replace(Accounts().find("nobody"), groups=(7, 65534))
    try:
        made = replace(
            plan("sh", "-c", "id -u; id -g; id -G; ulimit -n; cat /proc/self/oom_score_adj", output_fd=log_fd),
            account=account,
            nofile=123,
            oom_score_adj=500,
        )
        assert finish(launch(made, native=native).pidfd) == 0
        assert before == identity()
    finally:
        stop.set()
        thread.join()
        os.close(log_fd)
    assert (tmp_path / "log").read_text().split() == ["65534", "65534", "65534", "7", "123", "500"]


@BOTH_WAYS
def test_a_limit_below_what_the_agent_has_open(native: bool, tmp_path: Path) -> None:
    """A component may have fewer descriptors than its agent holds: nothing is opened once the limit is set."""
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
    log_fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT, 0o600)
    fuse, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def take_in() -> None:
        _word, descriptors, _flags, _address = socket.recv_fds(fuse, 1, 1)
        fuse.send(struct.pack("=i", 0))
        for fd in descriptors:
            os.close(fd)

    fuse.settimeout(BOUND_S)
    guard = threading.Thread(target=take_in)
    guard.start()
    try:
        made = plan("sh", "-c", "ulimit -n", output_fd=log_fd)
        made = replace(made, nofile=32, oom_score_adj=500, fuse_fd=link.fileno())
        assert finish(launch(made, native=native).pidfd) == 0
    finally:
        link.close()
        guard.join()
        fuse.close()
        for fd in (*held, log_fd):
            os.close(fd)
    assert (tmp_path / "log").read_text().strip() == "32"


def identity() -> set[tuple[str, ...]]:
    """Users, groups and oom_score_adj of every thread of this process, and its limit; threads come and go."""
    found: set[tuple[str, ...]] = {
        (Path("/proc/self/oom_score_adj").read_text(), str(resource.getrlimit(resource.RLIMIT_NOFILE)))
    }
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            lines = (task / "status").read_text().splitlines()
            found.add(tuple(line for line in lines if line.split(":")[0] in {"Uid", "Gid", "Groups"}))
    return found


REFUSED = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
SYS, ERRNO = int(sys.argv[2]), int(sys.argv[3])
code = b"".join(struct.pack("HBBI", *one) for one in (
    (0x20, 0, 0, 0), (0x15, 0, 1, SYS), (6, 0, 0, 0x50000 | ERRNO), (6, 0, 0, 0x7FFF0000)))
buffer = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.spawn import LaunchPlan, launch
for _ in range(100):
    os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)
account = Accounts().find(None)
plan = LaunchPlan(command=("/bin/ls", "/proc/self/fd"), environment=(), account=account, output_fd=1, nofile=32)
done = launch(plan, native=sys.argv[1] == "True")
os.waitpid(done.pid, 0)
"""


@BOTH_WAYS
@pytest.mark.parametrize(
    ("call", "number"),
    [
        pytest.param(435, errno.ENOSYS, id="clone3"),  # with EPERM glibc cannot make threads: no agent runs there
        pytest.param(436, errno.ENOSYS, id="close_range"),
        pytest.param(436, errno.EPERM, id="close_range, by a container"),
    ],
)
def test_a_kernel_or_container_without_the_newer_calls_will_do(native: bool, call: int, number: int) -> None:
    """Where clone3 or close_range is refused, older calls make the same child."""
    command = [sys.executable, "-c", REFUSED, str(native), str(call), str(number)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["0", "1", "2", "3"]  # 3 is the listing itself


@BOTH_WAYS
def test_a_child_that_hangs_before_its_command_holds_nobody_up(native: bool) -> None:
    """`begin` returns, and other children are made, while one waits for an answer on its way to its command."""
    silent, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with silent, link:
        hanging = begin(replace(plan("true"), fuse_fd=link.fileno()), native=native)
        try:
            silent.recv(1)
            assert not hanging.settle()
            assert finish(launch(plan("true"), native=native).pidfd) == 0
            assert not hanging.settle()
        finally:
            hanging.kill()
            os.waitid(os.P_PIDFD, hanging.pidfd, os.WEXITED | os.WNOWAIT)
            assert hanging.reap()


@BOTH_WAYS
def test_a_child_that_hangs_before_its_command_keeps_nothing_of_the_agents(native: bool, tmp_path: Path) -> None:
    """Not even SIGKILL ends what hangs in a file system: the agent's lock must not live on with it."""
    silent, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with silent, link, (tmp_path / "lock").open("w"):
        hanging = begin(replace(plan("true"), fuse_fd=link.fileno()), native=native)
        try:
            silent.recv(1)
            kept = {str(path.readlink()) for path in Path(f"/proc/{hanging.pid}/fd").iterdir()}
        finally:
            hanging.kill()
            os.waitid(os.P_PIDFD, hanging.pidfd, os.WEXITED | os.WNOWAIT)
            assert hanging.reap()
    assert str(tmp_path / "lock") not in kept


@pytest.mark.skipif(not NATIVE, reason="the C half was not built")
def test_no_signal_of_the_agent_is_taken_by_a_thread_that_waits_for_a_child() -> None:
    """Every signal is blocked in that thread, and so in the child until it has default dispositions."""
    silent, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with silent, link:
        hanging = begin(replace(plan("true"), fuse_fd=link.fileno()), native=True)
        try:
            silent.recv(1)
            blocked = [
                int(line.split()[1], 16)
                for task in Path("/proc/self/task").iterdir()
                if task.name != str(os.getpid())
                for line in (task / "status").read_text().splitlines()
                if line.startswith("SigBlk:")
            ]
        finally:
            hanging.kill()
            os.waitid(os.P_PIDFD, hanging.pidfd, os.WEXITED | os.WNOWAIT)
            assert hanging.reap()
    never = {signal.SIGKILL, signal.SIGSTOP, 32, 33}  # glibc's own two
    assert sum(1 << number - 1 for number in range(1, 65) if number not in never) in blocked


FROZEN = """
import os, select, sys
from dataclasses import replace
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.spawn import LaunchPlan, begin
group = os.open(sys.argv[2], os.O_RDONLY | os.O_DIRECTORY)
plan = LaunchPlan(command=("true",), environment=(("PATH", "/usr/bin:/bin"),), account=Accounts().find(None))
frozen = begin(replace(plan, cgroup_fd=group), native=sys.argv[1] == "True")
assert not frozen.settle()
other = begin(plan, native=sys.argv[1] == "True")
assert os.waitid(os.P_PIDFD, other.pidfd, os.WEXITED).si_status == 0
while sys.argv[2].split("/")[-1] not in open(f"/proc/{frozen.pid}/cgroup").read():
    pass  # one that goes there by itself is on its way
assert not frozen.settle()
print(frozen.timeout_error())
frozen.kill()
select.select([frozen.pidfd], [], [])
assert frozen.reap()
"""


@needs_cgroups
@BOTH_WAYS
def test_a_child_in_a_frozen_cgroup_holds_nobody_up(native: bool) -> None:
    """It does not get its first turn, and `begin` returns all the same; the reason can be told, and SIGKILL ends it."""
    with delegated() as group:
        (group / "cgroup.freeze").write_text("1")
        command = [sys.executable, "-c", FROZEN, str(native), str(group)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=BOUND_S)
    assert f"its cgroup {group} is frozen" in done.stdout
