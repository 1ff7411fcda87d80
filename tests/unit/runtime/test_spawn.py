import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from node_manager.runtime.accounts import Account, AccountError, Accounts
from node_manager.runtime.procfs import ProcFs
from node_manager.runtime.spawn import LaunchError, LaunchPlan, begin, launch
from tests.unit.runtime.rig import BOUND_S, python, wait_stopped

pytestmark = pytest.mark.usefixtures("no_leaks")


def plan(*command: str, output_fd: int | None = None) -> LaunchPlan:
    return LaunchPlan(
        command=command, environment=(("PATH", "/usr/bin:/bin"),), account=Accounts().find(None), output_fd=output_fd
    )


def finish(pidfd: int) -> int:
    result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    os.close(pidfd)
    assert result is not None
    return result.si_status


def test_launch_returns_a_running_process() -> None:
    """The blocking form hands back the pid and a pidfd that is its own."""
    launched = launch(plan("sh", "-c", "exit 5"))
    fdinfo = Path(f"/proc/self/fdinfo/{launched.pidfd}").read_text()
    assert f"Pid:\t{launched.pid}\n" in fdinfo
    assert finish(launched.pidfd) == 5


def test_launch_raises_with_errno_and_stage() -> None:
    """LaunchError has the number and the stage for programs, and the sentence for people."""
    with pytest.raises(LaunchError, match=r"^cannot execute /nowhere: No such file or directory \(ENOENT\)$") as caught:
        launch(plan("/nowhere"))
    assert (caught.value.errno, caught.value.stage) == (2, "exec")


def test_a_child_killed_before_its_command_is_cleaned_up() -> None:
    """`kill` and `reap` leave neither process nor descriptor."""
    attempt = begin(plan("sleep", "1000"))
    os.kill(attempt.pid, signal.SIGSTOP)
    wait_stopped(attempt.pid)
    while attempt.settle():  # it was faster
        attempt.kill()
        finish(attempt.pidfd)
        attempt = begin(plan("sleep", "1000"))
        os.kill(attempt.pid, signal.SIGSTOP)
        wait_stopped(attempt.pid)
    attempt.kill()
    os.waitid(os.P_PIDFD, attempt.pidfd, os.WEXITED | os.WNOWAIT)
    assert attempt.reap()


def test_a_signal_of_the_agent_handler_does_not_run_in_the_child() -> None:
    """A signal that arrives between fork and exec acts by default; the agent's handler is not called in the child."""
    seen: list[int] = []
    read_fd, write_fd = os.pipe()
    before = signal.signal(signal.SIGUSR1, lambda *_: os.write(write_fd, b"x"))
    try:
        for _ in range(20):
            attempt = begin(plan("sleep", "1000"))
            os.kill(attempt.pid, signal.SIGUSR1)
            seen.append(finish(attempt.pidfd))
            os.close(attempt.report_fd)
    finally:
        signal.signal(signal.SIGUSR1, before)
        os.close(write_fd)
    assert os.read(read_fd, 1) == b""
    os.close(read_fd)
    assert seen == [signal.SIGUSR1] * 20


@pytest.mark.parametrize("log_fd", [0, 1, 2])
def test_an_agent_without_standard_descriptors_starts_children(tmp_path: Path, log_fd: int) -> None:
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
done = launch(plan)
os.waitpid(done.pid, 0)
try:
    launch(LaunchPlan(command=("/nowhere",), environment=(), account=Accounts().find(None)))
except LaunchError as error:
    os.write(out, str(error).encode())
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out"), str(log_fd)], check=True, timeout=60)
    assert (tmp_path / "out.log").read_text() == "out\nerr\n"
    assert (tmp_path / "out").read_text() == "cannot execute /nowhere: No such file or directory (ENOENT)"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_too_many_processes_is_a_failed_start() -> None:
    """EAGAIN of fork says what it means (scenario 9's neighbour)."""
    code = """
import os, resource
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.spawn import LaunchError, LaunchPlan, launch
os.setgid(54321); os.setuid(54321)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    launch(LaunchPlan(command=("/bin/true",), environment=(), account=Accounts().find(None)))
except LaunchError as error:
    print(error.stage, error, len(os.listdir("/proc/self/fd")))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
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


def test_a_child_that_has_not_executed_its_command_dies_with_the_agent() -> None:
    """An agent killed between fork and exec leaves nothing that its successor could not see, and that starts later."""
    code = """
import os, signal, sys, time
sys.path[:0] = sys.argv[1:]
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.spawn import LaunchPlan, begin
from tests.unit.runtime.rig import wait_stopped
plan = LaunchPlan(command=("/bin/sleep", "1000"), environment=(), account=Accounts().find(None), output_fd=None)
while True:
    attempt = begin(plan)
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
    agent = subprocess.Popen([sys.executable, "-c", code, root, *sys.path], stdout=subprocess.PIPE, text=True)
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
