import asyncio
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from node_manager.core.spec import ComponentSpec, HostSpec, KillScope, NodeSpec, StopSpec
from node_manager.runtime import cgroupfs, kernel
from node_manager.runtime.accounts import Accounts
from node_manager.runtime.cgroup import Group, Groups
from node_manager.runtime.clock import boottime_ns
from node_manager.runtime.fuse import ANSWER, ANSWER_S, ARM_GROUP, ASK, BLOWN, FALLBACK, ORDER, PROGRAM, RENEW, Fuses
from node_manager.runtime.procfs import ProcFs
from node_manager.runtime.spawn import Launch, LaunchError, LaunchPlan, begin
from tests.unit.runtime.cgroups import delegated, needs_cgroups
from tests.unit.runtime.rig import BOUND_S, alive, kill, reap_all, shell

NS = 1_000_000_000
SOON_NS = NS // 5
FAR_NS = 600 * NS
SPEC = ComponentSpec(name="sched", role="test", command=("/bin/true",), run_while=("controller.primary",))
PROGRAMS = {"C": (str(PROGRAM),), "Python": (sys.executable, "-I", "-S", str(FALLBACK))}


class Host:
    """A loop with fuses, and the children that they guard."""

    def __init__(self, directory: Path, program: tuple[str, ...], root: Path | None) -> None:
        self.loop = asyncio.new_event_loop()
        self.directory = directory
        self.nonce = os.urandom(8).hex()  # tests run side by side, and a fuse kills what carries its markers
        self.program = program
        self.groups = None if root is None else Groups(root)
        self.lost: list[tuple[str, int, str]] = []
        self.warnings: list[str] = []
        self.deadline_ns = 0
        """The last one that a fuse was armed with."""
        self.fuses = self.make()
        self.children: list[Launch] = []

    def make(self) -> Fuses:
        return Fuses(
            self.loop,
            self.directory / "fuse",
            nonce=self.nonce,
            groups=self.groups,
            lost=lambda *what: self.lost.append(what),
            warn=self.warnings.append,
            program=self.program,
        )

    def run_until(self, condition: Callable[[], object], what: str) -> None:
        until_s = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < until_s, f"{what} did not come; lost: {self.lost}"
            self.loop.run_until_complete(asyncio.sleep(0.005))

    def arm(self, generation: int, in_ns: int, spec: ComponentSpec = SPEC) -> tuple[str | None, int, Group | None]:
        """What the fuse says, the link for the child, and the group that is guarded."""
        self.warm_up()
        answers: list[tuple[str | None, int]] = []
        group = None if self.groups is None else self.groups.open(spec, generation)
        self.deadline_ns = boottime_ns() + in_ns
        self.fuses.arm(spec, generation, self.deadline_ns, group, lambda *what: answers.append(what))
        assert not answers
        self.run_until(lambda: answers, "the fuse's word")
        return *answers[0], group

    def warm_up(self) -> None:
        """Have the fuse run before its time is counted."""
        with suppress(OSError, LaunchError):
            fuse = self.fuses._fuse(SPEC.name)  # noqa: SLF001 - as `configure` does
            if fuse.generation == 0:
                fuse.attach(0)
                self.run_until(lambda: not fuse._pending or fuse._socket is None, "its first word")  # noqa: SLF001 - likewise

    def arm_soon(self) -> tuple[int, int, Group | None, int]:
        """Armed, however slow the machine: generation, link, group and deadline."""
        for generation, factor in enumerate((1, 5, 25, 125), start=1):
            problem, link_fd, group = self.arm(generation, factor * SOON_NS)
            if problem is None:
                return generation, link_fd, group, self.deadline_ns
        raise AssertionError("this machine is too slow")

    def start(self, generation: int, in_ns: int, command: tuple[str, ...], spec: ComponentSpec = SPEC) -> int:
        """A guarded child that runs its command; its pid."""
        problem, link_fd, group = self.arm(generation, in_ns, spec)
        assert problem is None
        launch = self.launch(generation, command, link_fd, group)
        assert launch.settle()
        return launch.pid

    def start_before(
        self, command: tuple[str, ...], prepare: Callable[[int], object], spec: ComponentSpec = SPEC
    ) -> tuple[int, int]:
        """A guarded child, all of it prepared before its deadline, however slow the machine; its pid, and that."""
        for generation, factor in enumerate((1, 5, 25, 125), start=1):
            problem, link_fd, group = self.arm(generation, factor * SOON_NS, spec)
            deadline_ns = self.deadline_ns
            if problem is not None:
                continue
            launch = self.launch(generation, command, link_fd, group)
            try:
                assert launch.settle()
            except LaunchError:  # it came too late to its exec
                self.children.pop()
                continue
            pid = launch.pid
            prepare(deadline_ns)
            if boottime_ns() < deadline_ns:
                return pid, deadline_ns
            kill(pid)  # perhaps it was renewed in time
            self.wait_dead(pid)
        raise AssertionError("this machine is too slow")

    def told(self) -> None:
        """The fuse has answered everything, or is gone: on a slow machine the lease was over first."""
        self.run_until(lambda: not getattr(self.fuses._fuses.get(SPEC.name), "_pending", None), "its answer")  # noqa: SLF001 - see `keep`

    def keep(self, deadline_ns: int | None) -> None:
        """As the agent does when it sees another end of the lease in its state."""
        fuse = self.fuses._fuses.get(SPEC.name)  # noqa: SLF001 - it reads the state of a whole node
        if fuse is not None:
            fuse.keep(deadline_ns)

    def launch(self, generation: int, command: tuple[str, ...], link_fd: int, group: Group | None) -> Launch:
        marks = {"XCE_COMPONENT": SPEC.name, "XCE_NODE_NONCE": self.nonce, "XCE_GENERATION": str(generation)}
        made = LaunchPlan(
            command=command,
            environment=tuple(marks.items()),
            account=Accounts().find(None),
            cgroup_fd=None if group is None else group.fd,
            fuse_fd=None if link_fd < 0 else link_fd,
        )
        launch = begin(made)
        self.children.append(launch)
        if link_fd >= 0:
            os.close(link_fd)
        poller = select.poll()
        poller.register(launch.report_fd, select.POLLIN)
        assert poller.poll(BOUND_S * 1000)
        return launch

    def wait_dead(self, pid: int) -> int:
        """When it was seen dead."""
        self.run_until(lambda: not alive(pid), f"the death of {pid}")
        return boottime_ns()

    def fuse_pid(self) -> int:
        """The fuse that listens now."""
        found = [pid for pid in ProcFs().table() if self._is_fuse(pid)]
        assert len(found) == 1
        return found[0]

    def fuse_ended(self) -> bool:
        reap_all()
        return not [pid for pid in ProcFs().table() if self._is_fuse(pid)]

    def _is_fuse(self, pid: int) -> bool:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            parent = ProcFs().stat(pid)
        except OSError:
            return False
        ours = parent is not None and parent.ppid == os.getpid() and parent.living
        return ours and words[-3:-1] == [SPEC.name.encode(), self.nonce.encode()]

    def ask(self, kind: int = ASK, generation: int = 0, deadline_ns: int = 0) -> tuple[int, ...]:
        """A fuse's answer over a connection of its own, which takes the agent's place."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(BOUND_S)
            link.connect(str(self.fuses.path(SPEC.name)))
            link.send(ORDER.pack(kind, 0, generation, deadline_ns))
            return ANSWER.unpack(link.recv(ANSWER.size))

    def close(self) -> None:
        self.fuses.close()
        self.loop.close()
        for launch in self.children:
            launch.kill()
            launch.forget()
        until_s = time.monotonic() + BOUND_S
        while True:
            reap_all()
            left = [one.pid for one in ProcFs().table().values() if one.ppid == os.getpid()]
            if not left:
                break
            assert time.monotonic() < until_s, left
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        if self.groups is not None:
            self.groups.close()
        kernel.become_subreaper(on=False)


@pytest.fixture(params=["C", "Python"])
def program(request: pytest.FixtureRequest) -> tuple[str, ...]:
    if request.param == "C" and not PROGRAM.exists():
        pytest.skip("the fuse in C was not built")
    return PROGRAMS[str(request.param)]


@pytest.fixture(params=["group", "session"])
def host(request: pytest.FixtureRequest, short_dir: Path, program: tuple[str, ...]) -> Iterator[Host]:
    request.getfixturevalue("no_leaks")
    root = request.getfixturevalue("root") if request.param == "group" else None
    kernel.become_subreaper()
    made = Host(short_dir, program, root)
    yield made
    made.close()


@pytest.fixture
def root() -> Iterator[Path]:
    if needs_cgroups.args[0]:
        pytest.skip("needs root and a cgroup v2 tree that can be written to")
    with delegated() as made:
        yield made


def nothing(_deadline_ns: int) -> None:
    """No more is to be prepared."""


def test_it_kills_when_the_lease_is_over_and_not_before(host: Host) -> None:
    """The component lives until its deadline, and is killed at it without anybody's doing."""
    pid, deadline_ns = host.start_before(("/bin/sleep", "1000"), nothing)
    assert host.wait_dead(pid) >= deadline_ns
    assert host.ask()[4] & BLOWN


def test_a_renewed_lease_does_not_kill(host: Host) -> None:
    """The last deadline that it was told counts; one that is earlier changes nothing."""

    def renew(_deadline_ns: int) -> None:
        host.keep(boottime_ns() + FAR_NS)
        host.keep(boottime_ns() + 1)
        host.told()

    pid, deadline_ns = host.start_before(("/bin/sleep", "1000"), renew)
    host.run_until(lambda: boottime_ns() > deadline_ns + SOON_NS, "the old deadline")
    assert alive(pid)
    generation = host.ask()[2]
    assert host.ask(RENEW, generation, boottime_ns() + 1)[3] > boottime_ns() + FAR_NS // 2


def test_a_component_without_a_lease_any_more_is_left_alone(host: Host) -> None:
    """When nothing depends on a lease any more, its old end kills nobody."""

    def release(_deadline_ns: int) -> None:
        host.keep(None)
        host.told()

    pid, deadline_ns = host.start_before(("/bin/sleep", "1000"), release)
    host.run_until(lambda: boottime_ns() > deadline_ns + SOON_NS, "the old deadline")
    assert alive(pid)
    assert host.ask()[3] == 0


def pid_of_the_other(directory: Path) -> int:
    """What a child wrote there, if it lives; else 0."""
    try:
        pid = int((directory / "pid").read_text())
    except (FileNotFoundError, ValueError):
        return 0
    return pid if alive(pid) else 0


def wait_for_the_other(host: Host, directory: Path) -> Callable[[int], None]:
    """Until it lives, or its time is over."""

    def wait(deadline_ns: int) -> None:
        host.run_until(lambda: pid_of_the_other(directory) or boottime_ns() >= deadline_ns, "the other process")

    return wait


def test_its_whole_tree_dies(host: Host, tmp_path: Path) -> None:
    """What a component started dies with it, in another session and without its parent too."""
    script = f"setsid sh -c 'echo $$ >{tmp_path}/pid; exec sleep 1000' & wait"
    main, _deadline_ns = host.start_before(shell(script), wait_for_the_other(host, tmp_path))
    daemon = int((tmp_path / "pid").read_text())
    host.wait_dead(main)
    host.wait_dead(daemon)


def test_of_a_component_of_kill_scope_process_the_main_process_dies_alone(host: Host, tmp_path: Path) -> None:
    """What its role leaves alone at a stop, the fuse leaves alone too."""
    spec = replace(SPEC, stop=StopSpec(kill_scope=KillScope.PROCESS))
    jobs = (
        "true"
        if host.groups is None
        else f"for f in {host.groups.root}/sched.*/jobs; do echo $$ >$f/cgroup.procs; done"
    )
    script = f"setsid sh -c '{jobs}; echo $$ >{tmp_path}/pid; exec sleep 1000' & exec sleep 1000"
    main, _deadline_ns = host.start_before(shell(script), wait_for_the_other(host, tmp_path), spec)
    host.wait_dead(main)
    looked_ns = boottime_ns() + SOON_NS
    host.run_until(lambda: boottime_ns() > looked_ns, "its looks")
    assert alive(int((tmp_path / "pid").read_text()))


def test_a_blown_fuse_keeps_what_it_guards_empty(host: Host) -> None:
    """A child that comes to its exec after the deadline, because all stood still, is not let through."""
    generation, link_fd, group, deadline_ns = host.arm_soon()
    host.run_until(lambda: boottime_ns() > deadline_ns, "the deadline")
    launch = host.launch(generation, ("/bin/sleep", "1000"), link_fd, group)
    if group is None:
        with pytest.raises(LaunchError, match="its fuse, which guards the end of its lease, does not take it"):
            launch.settle()
        host.children.remove(launch)
    else:
        host.wait_dead(launch.pid)


@needs_cgroups
def test_whoever_enters_the_group_later_dies_too(short_dir: Path, program: tuple[str, ...], root: Path) -> None:
    """Again and again, until it is armed anew with a later deadline."""
    host = Host(short_dir, program, root)
    try:
        _generation, _link_fd, group, deadline_ns = host.arm_soon()
        assert group is not None
        host.run_until(lambda: boottime_ns() > deadline_ns, "the deadline")
        for _ in range(3):
            with subprocess.Popen(["sleep", "1000"]) as stranger:
                cgroupfs.write(group.path, "cgroup.procs", str(stranger.pid))
                assert stranger.wait(BOUND_S) == -signal.SIGKILL
    finally:
        host.close()


def test_the_next_generation_is_guarded_by_the_same_fuse(host: Host) -> None:
    """After it has blown it is armed again, for another start with a later deadline, and no renewal revives the old."""
    pid, _deadline_ns = host.start_before(("/bin/sleep", "1000"), nothing)
    host.wait_dead(pid)
    fuse_pid = host.fuse_pid()
    second = host.start(9, FAR_NS, ("/bin/sleep", "1000"))
    assert fuse_pid == host.fuse_pid()
    assert alive(second)
    assert host.ask(RENEW, 1, boottime_ns() + FAR_NS)[0] != 0


def test_it_is_not_armed_for_another_while_something_lives(host: Host) -> None:
    """A fuse never lets go of what it guards: another start is refused as long as the first one lives."""
    pid = host.start(1, FAR_NS, ("/bin/sleep", "1000"))
    problem, link_fd, _group = host.arm(2, FAR_NS)
    assert (problem, link_fd) == ("Device or resource busy (EBUSY)", -1)
    assert alive(pid)


def test_a_deadline_that_has_passed_is_refused(host: Host) -> None:
    """Nothing is started under a lease that has ended."""
    assert host.arm(1, -1)[:2] == ("Timer expired (ETIME)", -1)


def test_it_outlives_the_agent_and_kills(host: Host) -> None:
    """An agent that is gone, with the connection closed, changes nothing; afterwards nobody needs the fuse."""
    pid, _deadline_ns = host.start_before(("/bin/sleep", "1000"), nothing)
    host.fuses.close()
    host.wait_dead(pid)
    host.run_until(host.fuse_ended, "its end")


def test_a_successor_renews_it(host: Host) -> None:
    """The next agent finds the fuse by its socket, and what it says counts."""

    def succeed(_deadline_ns: int) -> None:
        generation = host.fuses._fuses[SPEC.name].generation  # noqa: SLF001 - the record would tell
        host.fuses.close()
        host.fuses = host.make()
        host.fuses.attach(SPEC.name, generation)
        host.keep(boottime_ns() + FAR_NS)
        host.told()
        host.told()

    pid, deadline_ns = host.start_before(("/bin/sleep", "1000"), succeed)
    host.run_until(lambda: boottime_ns() > deadline_ns + SOON_NS, "the old deadline")
    assert alive(pid)
    assert host.lost == []


def test_a_path_that_somebody_removed_is_made_anew(host: Host) -> None:
    """A fuse whose socket is gone from the directory listens there again: the next agent finds it, and renews."""

    def succeed(_deadline_ns: int) -> None:
        host.told()
        generation = host.fuses._fuses[SPEC.name].generation  # noqa: SLF001 - the record would tell
        shutil.rmtree(host.directory / "fuse")
        host.fuses.restore()
        host.told()
        host.fuses.restore()
        host.fuses.close()
        host.fuses = host.make()
        host.fuses.attach(SPEC.name, generation)
        host.keep(boottime_ns() + FAR_NS)
        host.told()
        host.told()

    pid, deadline_ns = host.start_before(("/bin/sleep", "1000"), succeed)
    host.run_until(lambda: boottime_ns() > deadline_ns + SOON_NS, "the old deadline")
    assert alive(pid)
    assert host.lost == []
    assert {"somebody removed the socket of the fuse of sched; it listens there again"} == set(host.warnings)


def test_a_fuse_of_an_older_version_is_said_to_be_lost_to_the_next_agent(host: Host, tmp_path: Path) -> None:
    """What it cannot do is said once, and it goes on guarding."""
    old = tmp_path / "old.py"
    old.write_text(FALLBACK.read_text().replace("elif kind == LISTEN:", "elif kind == 99:"))
    host.fuses.program = (sys.executable, "-I", "-S", str(old))

    def remove(_deadline_ns: int) -> None:
        host.told()
        shutil.rmtree(host.directory / "fuse", ignore_errors=True)  # it may have been removed for an earlier start
        host.fuses.restore()
        host.told()
        host.fuses.restore()

    pid, deadline_ns = host.start_before(("/bin/sleep", "1000"), remove)
    assert "that fuse, of an older version" in host.warnings[-1]
    assert deadline_ns <= host.wait_dead(pid)


def test_a_fuse_on_its_way_is_known_to_be(host: Host) -> None:
    """From its fork to its exec it dies with an exec of the agent, who therefore has to know; then no longer."""
    assert not host.fuses.launching
    host.fuses.configure(NodeSpec(host=HostSpec(name="h"), roles=(), components=(SPEC,)))
    assert host.fuses.launching
    host.run_until(lambda: not host.fuses.launching, "its exec")
    host.fuses.configure(NodeSpec(host=HostSpec(name="h"), roles=(), components=()))
    host.run_until(host.fuse_ended, "its end")


def test_a_process_whose_fuse_is_gone_is_not_taken_for_guarded(host: Host) -> None:
    """A successor that finds no fuse, or one that guards another start, hears of it as of one that was lost."""
    host.fuses.attach(SPEC.name, 3)
    host.run_until(lambda: host.lost, "the loss")
    host.start(4, FAR_NS, ("/bin/sleep", "1000"))
    host.fuses.close()
    host.fuses = host.make()
    host.fuses.attach(SPEC.name, 3)
    host.run_until(lambda: len(host.lost) > 1, "the loss")
    assert host.lost == [(SPEC.name, 3, "it is gone"), (SPEC.name, 3, "it guards another start")]


def test_its_death_is_noticed(host: Host) -> None:
    """A fuse that is killed is reported with what it guarded, and the next start has another."""
    pid = host.start(1, FAR_NS, ("/bin/sleep", "1000"))
    os.kill(host.fuse_pid(), signal.SIGKILL)
    host.run_until(lambda: host.lost, "the loss")
    assert host.lost[0][:2] == (SPEC.name, 1)
    os.kill(pid, signal.SIGKILL)
    host.wait_dead(pid)
    reap_all()
    assert alive(host.start(2, FAR_NS, ("/bin/sleep", "1000")))


def test_one_that_does_not_answer_is_lost(host: Host) -> None:
    """A fuse that is stopped cannot kill: it is no guard, and is replaced."""
    host.start(1, FAR_NS, ("/bin/sleep", "1000"))
    stopped = host.fuse_pid()
    os.kill(stopped, signal.SIGSTOP)
    host.keep(boottime_ns() + 2 * FAR_NS)
    host.run_until(lambda: host.lost, "the loss")
    assert host.lost == [(SPEC.name, 1, f"no answer within {ANSWER_S:g} s")]


def test_another_user_is_not_obeyed(host: Host) -> None:
    """Even where the socket's permissions would let it, a process of another user is not listened to."""
    if os.geteuid() != 0:
        pytest.skip("needs another user")
    pid = host.start(1, FAR_NS, ("/bin/sleep", "1000"))
    path = host.fuses.path(SPEC.name)
    for each in (path, path.parent, host.directory):
        each.chmod(0o777)
    code = f"""
import os, socket
os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
    link.connect({str(path)!r})
    try:
        link.send(bytes.fromhex({ORDER.pack(ARM_GROUP, 1, 9, boottime_ns() + 1).hex()!r}))
        print(len(link.recv(100)))
    except OSError:
        print(0)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n"
    assert alive(pid)
    assert host.ask()[2] == 1


def test_garbage_is_refused(host: Host) -> None:
    """A record of another size or kind is answered with an error, and changes nothing."""
    host.start(1, FAR_NS, ("/bin/sleep", "1000"))
    before = host.ask()
    for garbage in (b"x", b"\xff" * ORDER.size, b"\xff" * 200):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(BOUND_S)
            link.connect(str(host.fuses.path(SPEC.name)))
            link.send(garbage)
            assert ANSWER.unpack(link.recv(ANSWER.size))[0] != 0
    assert before == host.ask()


def test_a_program_that_cannot_be_executed_is_no_fuse(short_dir: Path) -> None:
    """Then the component is not started, and the reason is said."""
    host = Host(short_dir, ("/nowhere/xce-fuse",), None)
    try:
        problem, link_fd, _group = host.arm(1, FAR_NS)
        assert problem is not None
        assert link_fd == -1
        assert host.lost == []
    finally:
        host.close()


def test_a_stranger_with_the_same_number_is_not_killed(short_dir: Path, program: tuple[str, ...]) -> None:
    """Without a group, what carries the markers of a later generation or of another component is left alone."""
    host = Host(short_dir, program, None)
    others = [
        {"XCE_COMPONENT": "sched", "XCE_NODE_NONCE": host.nonce, "XCE_GENERATION": "5"},
        {"XCE_COMPONENT": "other", "XCE_NODE_NONCE": host.nonce, "XCE_GENERATION": "1"},
        {"XCE_COMPONENT": "sched", "XCE_NODE_NONCE": "another", "XCE_GENERATION": "1"},
    ]
    strangers = [subprocess.Popen(["/bin/sleep", "1000"], env=marks, start_new_session=True) for marks in others]
    ours = subprocess.Popen(["/bin/sleep", "1000"], env=others[0] | {"XCE_GENERATION": "1"}, start_new_session=True)
    try:
        pid, _deadline_ns = host.start_before(("/bin/sleep", "1000"), nothing)
        host.wait_dead(pid)
        assert ours.wait(BOUND_S) == -signal.SIGKILL
        assert [stranger.poll() for stranger in strangers] == [None] * 3
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.wait()
        with suppress(ProcessLookupError):
            ours.kill()
        ours.wait()
        host.close()
