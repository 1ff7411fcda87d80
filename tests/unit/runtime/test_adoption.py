import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node_manager.core.actions import KillTree, Signal
from node_manager.core.events import Exited, ExitStatus, Found, Past, SpawnFailed, TreeEmpty
from node_manager.runtime import inheritance
from node_manager.runtime.adoption import Findings, find
from node_manager.runtime.environment import Markers
from node_manager.runtime.procfs import ProcFs
from node_manager.runtime.record import Kept, RuntimeRecord
from tests.unit.runtime.hung import silent_directory
from tests.unit.runtime.rig import Rig, alive, kill, python, shell, stranger
from tests.unit.runtime.test_marks import Executing
from tests.unit.runtime.test_process import DOUBLE_FORK

AGENT = """
import os, sys, time
from pathlib import Path
from node_manager.runtime.process import Processes
from tests.unit.runtime.rig import Rig, stranger
rig = Rig(Path(sys.argv[1]))
pid = rig.start(tuple(sys.argv[3:]), name=sys.argv[2], generation=6)
record = rig.processes.snapshot()[0]
print(os.getpid(), pid, record.start_ticks, record.started_ns, flush=True)
time.sleep(1000)
"""
"""An agent that starts one component and is then killed."""


INIT = """
import os, subprocess, sys
from node_manager.runtime.kernel import become_subreaper
become_subreaper()
subprocess.Popen(sys.argv[1:])
while True:
    os.wait()
"""
"""What reaps the orphans of a killed agent on a host: not us, but init."""


@contextmanager
def killed_agent(
    directory: Path, command: tuple[str, ...] = ("/bin/sleep", "1000"), name: str = "comp", *, ours: bool = False
) -> Iterator[Kept]:
    """What an agent that was killed with -9 has left: a process that still runs, and its record.

    `ours`: its orphans become this process's children, as after an agent that was replaced in place.
    """
    agent_command = (sys.executable, "-c", AGENT, str(directory), name, *command)
    outer = agent_command if ours else (sys.executable, "-c", INIT, *agent_command)
    with subprocess.Popen(outer, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            agent_pid, pid, start_ticks, started_ns = map(int, process.stdout.readline().split())
            kill(agent_pid)
            found = Found(component=name, pid=pid, generation=6, started_ns=started_ns, restarts=3)
            yield Kept(found=found, start_ticks=start_ticks)
        finally:
            process.kill()


def search(
    rig: Rig,
    *kept: Kept,
    uid: int | None = None,
    past: int | None = None,
    nonce: str | None = None,
    procfs: ProcFs | None = None,
) -> Findings:
    """What is found with a record of these processes; `past`: the generation that it knows of `comp`."""
    record = RuntimeRecord(
        boot_id="b",
        nonce=rig.nonce,
        processes=kept,
        past=() if past is None else (Past(component="comp", generation=past),),
    )
    markers = Markers(nonce=nonce or rig.nonce, runtime_dir=rig.runtime_dir)
    return find(record, markers, lambda _component: os.getuid() if uid is None else uid, procfs)


def test_a_recorded_process_is_adopted_and_watched(rig: Rig) -> None:
    """The same process, proven by pid and start time; its end is noticed though it is not our child (scenario 2)."""
    with killed_agent(rig.directory, shell("sleep 1000 & wait")) as kept:
        findings = search(rig, kept)
        assert ((kept.found,), (), ()) == (findings.found, findings.gone, findings.ambiguous)
        assert rig.processes.adopt(findings.proven[0])
        assert rig.processes.identify(kept.found.pid) == ("comp", 6)
        assert alive(kept.found.pid)
        assert kept.start_ticks == rig.processes.snapshot()[0].start_ticks
        kill(kept.found.pid)
        assert rig.exited().left == 1
        rig.kill_tree(generation=6)
        assert rig.processes.identify(kept.found.pid) is None


@pytest.mark.usefixtures("no_leaks")
def test_the_last_words_of_an_adopted_process_are_its_own(short_dir: Path) -> None:
    """Also a process that somebody else reaped is still known when its end is told."""
    told: list[object] = []

    def ending(component: str, generation: int) -> None:
        told.append((component, generation, rig.processes.identify(rig.processes.snapshot()[0].pid)))

    rig = Rig(short_dir, ending=ending)
    with killed_agent(short_dir) as kept:
        rig.processes.adopt(search(rig, kept).proven[0])
        kill(kept.found.pid)
        rig.exited()
    assert told == [("comp", 6, ("comp", 6))]
    rig.close()


def test_the_status_of_an_adopted_process_is_the_kernels_word(rig: Rig) -> None:
    """Code or signal where the kernel (6.15) tells, else unknown; never a guess."""
    told = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 15)
    with killed_agent(rig.directory, shell("trap 'exit 79' TERM; echo up; while :; do sleep 0.05; done")) as kept:
        rig.lines(1)
        rig.processes.adopt(search(rig, kept).proven[0])
        rig.processes.signal(Signal(component="comp", generation=6, signal=15))
        assert (ExitStatus(code=79) if told else ExitStatus()) == rig.exited().status


def test_after_a_replacement_in_place_the_child_is_reaped(rig: Rig) -> None:
    """An adopted process that is our child has its status taken and leaves no zombie."""
    with killed_agent(rig.directory, ours=True) as kept:
        rig.run_until(lambda: (found := ProcFs().stat(kept.found.pid)) and found.ppid == os.getpid())
        assert rig.processes.adopt(search(rig, kept).proven[0])
        kill(kept.found.pid)
        assert ExitStatus(signal=9) == rig.exited().status
        assert ProcFs().stat(kept.found.pid) is None


def test_what_ended_between_two_programs_is_taken_with_its_end(rig: Rig) -> None:
    """A pidfd that was held all along tells how a process ended that is long reaped by somebody else."""
    told = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) >= (6, 15)
    with killed_agent(rig.directory) as kept:
        (proven,) = search(rig, kept).proven
        kill(kept.found.pid)
        rig.run_until(lambda: not Path(f"/proc/{kept.found.pid}").exists())
        assert rig.processes.adopt(proven, ended=True)
        assert (ExitStatus(signal=9) if told else ExitStatus()) == rig.exited().status


@pytest.mark.usefixtures("no_leaks")
def test_without_exit_info_the_status_is_unknown(short_dir: Path) -> None:
    """The fallback for kernels before 6.15: neither code nor signal."""
    rig = Rig(short_dir, exit_info=False)
    with killed_agent(short_dir) as kept:
        rig.processes.adopt(search(rig, kept).proven[0])
        kill(kept.found.pid)
        assert ExitStatus() == rig.exited().status
    rig.close()


def test_a_stranger_with_the_recorded_pid_is_never_taken(rig: Rig) -> None:
    """Pid given anew: another start time, so the component counts as gone (scenario 1)."""
    bystander = stranger("/bin/sleep", "1000")
    found = ProcFs().stat(bystander)
    assert found is not None
    kept = Kept(
        found=Found(component="comp", pid=bystander, generation=1, started_ns=0), start_ticks=found.start_ticks - 5
    )
    findings = search(rig, kept)
    assert findings.proven == ()
    assert findings.gone[0].reason == "its pid belongs to another process now"
    rig.kill_tree()
    assert alive(bystander)


def test_a_process_that_ended_is_gone(rig: Rig) -> None:
    """No process, or a zombie, is not adopted; a process that ends between find and adopt is refused."""
    with killed_agent(rig.directory) as kept:
        findings = search(rig, kept)
        kill(kept.found.pid)
        rig.run_until(lambda: not alive(kept.found.pid))
        assert not rig.processes.adopt(findings.proven[0])
        assert search(rig, kept).gone[0].reason == "it has ended"
    zombie = stranger("/bin/true")
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    found = ProcFs().stat(zombie)
    assert found is not None
    kept = Kept(found=Found(component="z", pid=zombie, generation=1, started_ns=0), start_ticks=found.start_ticks)
    assert search(rig, kept).gone[0].reason == "it has ended"


def test_without_a_record_the_markers_find_it(rig: Rig) -> None:
    """A lost record: the main process is known by its markers, its children are not taken for it."""
    with killed_agent(rig.directory, shell("sleep 1000 & sleep 1000 & wait")) as kept:
        findings = search(rig)
        (found,) = findings.found
        assert (kept.found.pid, "comp", 6) == (found.pid, found.component, found.generation)
        assert abs(found.started_ns - kept.found.started_ns) < 10_000_000_000
        assert (findings.ambiguous, findings.leftovers) == ((), ())
        assert kept.start_ticks == findings.proven[0].start_ticks
        findings.proven[0].close()


def test_without_a_record_it_is_found_while_it_executes_its_command(rig: Rig) -> None:
    """A wrapper that just becomes the component shows no markers at that moment: a second one would be started."""
    with killed_agent(rig.directory) as kept:
        (found,) = search(rig, procfs=Executing(kept.found.pid, 2)).proven
        assert kept.found.pid == found.found.pid
        found.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_users_process_is_not_taken_by_its_markers(rig: Rig) -> None:
    """A user's job that puts its own pid into XCE_MAIN_PID is not the worker: the user is not the role's."""
    with killed_agent(rig.directory) as kept:
        findings = search(rig, uid=65534)
        assert (findings.proven, findings.leftovers) == ((), (("comp", kept.found.generation),))
        assert alive(kept.found.pid)


def test_two_candidates_are_ambiguous_and_none_is_taken(rig: Rig) -> None:
    """Two processes that could be the main process: reported, neither adopted nor touched."""
    with killed_agent(rig.directory) as one, killed_agent(rig.directory) as two:
        findings = search(rig)
        assert findings.proven == ()
        assert tuple(sorted((one.found.pid, two.found.pid))) == findings.ambiguous[0].pids
        assert findings.leftovers == ()
        # the record decides where it proves one
        findings = search(rig, one)
        assert ((one.found,), ()) == (findings.found, findings.ambiguous)
        findings.proven[0].close()


@pytest.mark.parametrize(("past", "adopted"), [(5, True), (6, False), (7, False)])
def test_beside_a_record_a_marker_proves_a_later_run_alone(rig: Rig, past: int, *, adopted: bool) -> None:
    """A job that copied the worker's markers is not the worker once that is dead or stopped: it is a leftover."""
    with killed_agent(rig.directory) as kept:
        findings = search(rig, past=past)
        assert ((kept.found.pid,) if adopted else ()) == tuple(found.pid for found in findings.found)
        assert (() if adopted else (("comp", 6),)) == findings.leftovers
        assert findings.ambiguous == ()
        for proven in findings.proven:
            proven.close()
        assert alive(kept.found.pid)


def test_the_run_of_a_recorded_process_that_died_is_nobody_elses(rig: Rig) -> None:
    """The record names the process of the last run, it is dead: another one of the same run is only a leftover."""
    with killed_agent(rig.directory) as kept, killed_agent(rig.directory) as pretender:
        kill(kept.found.pid)
        rig.run_until(lambda: not alive(kept.found.pid))
        findings = search(rig, kept)
        assert (findings.proven, findings.ambiguous) == ((), ())
        assert findings.leftovers == (("comp", pretender.found.generation),)


def test_nothing_is_started_over_what_a_lost_nonce_leaves(rig: Rig) -> None:
    """Nonce and record lost: what speaks on our socket is ambiguous, neither adopted nor killed, nor started anew."""
    with killed_agent(rig.directory) as kept:
        findings = search(rig, nonce="f" * 32)
        assert ("comp", (kept.found.pid,)) == (findings.ambiguous[0].component, findings.ambiguous[0].pids)
        assert (findings.proven, findings.leftovers) == ((), ())
        # another user's process holds nothing up
        findings = search(rig, nonce="f" * 32, uid=65534)
        assert findings.ambiguous == ()
        assert alive(kept.found.pid)


def test_one_of_each_nonce_is_ambiguous(rig: Rig) -> None:
    """A process with this host's nonce and one with another, both main by their markers: none is taken."""
    with killed_agent(rig.directory) as ours:
        code = (
            "import os, sys; os.setsid(); env = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
            "os.execve('/bin/sleep', ['sleep', '1000'], env | {'XCE_MAIN_PID': str(os.getpid())})"
        )
        marks = dict(Markers(nonce="e" * 32, runtime_dir=rig.runtime_dir).of("comp", 9))
        with subprocess.Popen(python(code, *(word for pair in marks.items() for word in pair))) as other:
            rig.run_until(lambda: Path(f"/proc/{other.pid}/comm").read_text() == "sleep\n")
            findings = search(rig)
            assert tuple(sorted((ours.found.pid, other.pid))) == findings.ambiguous[0].pids
            assert findings.proven == ()
            other.kill()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("XCE_NODE_NONCE", "f" * 32),
        ("XCE_MAIN_PID", "1"),
        ("XCE_HEARTBEAT_SOCKET", "/run/other/heartbeat.sock"),
        ("XCE_HELPER", "1.1"),
        ("XCE_GENERATION", "x"),
        ("session", "another's"),
        ("", ""),
    ],
)
def test_every_marker_counts(rig: Rig, key: str, value: str) -> None:
    """One wrong marker and a process is no main process; all right and it is one."""
    code = """
import os, sys
if os.environ["KEY"] != "session":
    os.setsid()
env = dict(zip(sys.argv[1::2], sys.argv[2::2])) | {"XCE_MAIN_PID": str(os.getpid())}
env |= {os.environ["KEY"]: os.environ["VALUE"]} if os.environ["KEY"] else {}
os.execve("/bin/sleep", ["sleep", "1000"], env)
"""
    marks = [word for pair in rig.markers.of("comp", 2) for word in pair]
    with subprocess.Popen([*python(code), *marks], env={"KEY": key, "VALUE": value}) as process:
        rig.run_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        findings = search(rig)
        assert (not key) == bool(findings.proven)
        for proven in findings.proven:
            proven.close()
        process.kill()


def test_daemons_left_without_a_main_process_are_reported_and_killed(rig: Rig) -> None:
    """The main process died with its agent: what it left is counted, and KillTree finds it though not our child."""
    with killed_agent(rig.directory, python(DOUBLE_FORK)) as kept:
        daemon = next(int(line) for line in rig.lines(2) if line != "main")
        kill(kept.found.pid)
        rig.run_until(lambda: not alive(kept.found.pid))
        findings = search(rig, kept)
        assert (findings.proven, findings.leftovers) == ((), (("comp", kept.found.generation),))
        rig.processes.look_everywhere("comp")
        assert rig.processes.member(daemon) == "comp"
        rig.kill_tree(generation=1)  # a successor that lost the record counts from 1 again
        assert not alive(daemon)


def test_what_ends_between_the_search_and_its_adoption_may_have_left_something(rig: Rig) -> None:
    """The main process was there when the host was searched: nothing is started before what it left is gone."""
    with killed_agent(rig.directory, python(DOUBLE_FORK)) as kept:
        daemon = next(int(line) for line in rig.lines(2) if line != "main")
        findings = search(rig, kept)
        assert (len(findings.proven), findings.leftovers) == (1, ())
        kill(kept.found.pid)
        rig.run_until(lambda: not alive(kept.found.pid))
        adopted, left = inheritance.take(findings, rig.processes.adopt, rig.processes.look_everywhere)
        assert (adopted, left) == ((), {"comp": kept.found.generation})
        (past,) = inheritance.past(RuntimeRecord(boot_id="", nonce=""), findings, left)
        assert (past.left, past.generation) == (True, kept.found.generation)
        rig.kill_tree(generation=kept.found.generation)
        assert not alive(daemon)


def test_what_is_as_good_as_dead_is_adopted_as_such(rig: Rig, short_dir: Path) -> None:
    """SIGKILL is sent and a file system does not answer: it lives, has to be waited for, and is never well again."""
    place = short_dir / "silent"
    place.mkdir()
    with silent_directory(place) as silent, killed_agent(rig.directory, ("/bin/cat", str(place / "x"))) as kept:
        silent.take()
        (proven,) = search(rig, kept).proven
        assert not proven.found.dying
        proven.close()
        kill(kept.found.pid)
        (proven,) = search(rig).proven  # by its markers, too
        assert (proven.found.pid, proven.found.dying) == (kept.found.pid, True)
        proven.close()
        (proven,) = search(rig, kept).proven
        assert proven.found.dying
        assert rig.processes.adopt(proven)
        rig.processes.kill_tree(KillTree(component="comp", generation=6))
        rig.spawn(("/bin/true",), generation=7)
        assert "of an earlier start still runs" in rig.wait_for(SpawnFailed).reason
        assert rig.of(TreeEmpty) == []
        silent.fail()
        rig.wait_for(TreeEmpty)
        assert len(rig.of(Exited)) == 1


def test_an_adopted_tree_is_killed_whole(rig: Rig) -> None:
    """Orphans of an adopted component are found wherever they went."""
    with killed_agent(rig.directory, python(DOUBLE_FORK)) as kept:
        daemon = next(int(line) for line in rig.lines(2) if line != "main")
        assert rig.processes.adopt(search(rig, kept).proven[0])
        rig.kill_tree(generation=6)
        assert (alive(kept.found.pid), alive(daemon)) == (False, False)
        assert sorted(type(event).__name__ for event in rig.events) == ["Exited", "TreeEmpty"]
        assert isinstance(rig.of(Exited)[0], Exited)
        assert rig.of(TreeEmpty)[0].generation == 6


def test_a_place_that_is_taken_is_not_given_twice(rig: Rig) -> None:
    """Adopting into a component that already has a main process is refused and closes the descriptor."""
    with killed_agent(rig.directory) as kept:
        first, second = search(rig, kept), search(rig, kept)
        assert rig.processes.adopt(first.proven[0])
        assert not rig.processes.adopt(second.proven[0])
        rig.kill_tree(generation=6)
