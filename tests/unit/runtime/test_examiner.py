"""Looks and evidence are taken beside the loop: whatever hangs, the loop turns and others are looked at."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from node_manager.core.actions import LookAt, TakeEvidence
from node_manager.core.events import EvidenceTaken, Looked
from node_manager.core.spec import ComponentSpec, LogSink
from node_manager.runtime.examiner import MAX_THREADS, MAX_WAITING, Examiner
from tests.unit.runtime.rig import Rig, python
from tests.unit.runtime.specimens import FUTEX

SPEC = ComponentSpec(name="web", role="test", command=("true",), log=LogSink.FILE)


def look(name: str = "web", generation: int = 1) -> LookAt:
    return LookAt(component=name, generation=generation, tree=True)


def evidence(name: str = "web", generation: int = 1) -> TakeEvidence:
    return TakeEvidence(component=name, generation=generation, spec=SPEC, said=("why: it is silent",))


def examiner(rig: Rig, **options: Any) -> Examiner:
    return Examiner(rig.loop, rig.events.append, rig.processes.snapshot, rig.directory, rig.log_dir, **options)


def threads() -> int:
    return sum(thread.name.startswith("xce-") for thread in threading.enumerate())


def test_a_look_and_evidence_come_as_events(rig: Rig) -> None:
    """A component that runs is looked at and described in a file, and no thread is left when that is done."""
    rig.start(python(FUTEX), name="web")
    rig.lines(1, "web")
    made = examiner(rig)
    made.carry_out(look())
    made.carry_out(evidence())
    sample = rig.wait_for(Looked).sample
    taken = rig.wait_for(EvidenceTaken)
    rig.run_until(lambda: threads() == 0, "the end of the threads")
    made.close()
    assert sample is not None
    assert sample.state in {"S", "R"}
    assert taken.path is not None
    text = Path(taken.path).read_text()
    assert "why: it is silent" in text
    assert text.endswith(f"== the end of {rig.log_dir / 'web.log'}\nup\n")


def test_what_does_not_run_cannot_be_looked_at(rig: Rig) -> None:
    """Another generation than the running one is not looked at, and that is said."""
    rig.start(python(FUTEX), name="web")
    made = examiner(rig)
    made.carry_out(look(generation=2))
    made.carry_out(evidence(generation=2))
    assert Looked(component="web", generation=2, sample=None, trouble="it is not known to run") == rig.wait_for(Looked)
    assert rig.wait_for(EvidenceTaken).trouble == "it is not known to run"
    made.close()


def test_evidence_that_cannot_be_written_is_answered(rig: Rig) -> None:
    """A state directory that is not there fails the evidence with a sentence."""
    rig.start(python(FUTEX), name="web")
    made = examiner(rig)
    (rig.directory / "evidence").write_text("no directory")
    made.carry_out(evidence())
    taken = rig.wait_for(EvidenceTaken)
    made.close()
    assert taken.path is None
    assert taken.trouble.startswith("cannot write it: ")


@contextmanager
def hanging(directory: Path, pid: int, name: str = "stat") -> Iterator[Path]:
    """A proc file system in which whoever opens this file of this process hangs."""
    root = directory / "proc"
    (root / "self").mkdir(parents=True)
    (root / "self" / "mountinfo").write_text("")
    (root / str(pid)).mkdir()
    (root / str(pid) / "stat").write_bytes(Path(f"/proc/{pid}/stat").read_bytes())
    fifo = root / str(pid) / name
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)
    yield root
    # Whoever waits for a writer gets one, and then the end of the file.
    fd = os.open(fifo, os.O_RDWR)
    fifo.unlink()
    fifo.touch()
    os.close(fd)


def test_looks_that_hang_hold_up_nobody_but_themselves(rig: Rig) -> None:
    """Hanging reads take a bounded number of threads; what waits is bounded, and the loop answers all the while."""
    pid = rig.start(python(FUTEX), name="web")
    mine = rig.processes.snapshot()[0]
    everyone = tuple(replace(mine, component=f"c{number}") for number in range(MAX_THREADS + MAX_WAITING + 1))
    before = threads()
    with hanging(rig.directory, pid) as root:
        made = Examiner(rig.loop, rig.events.append, lambda: everyone, rig.directory, rig.log_dir, root=root)
        for one in everyone[:MAX_THREADS]:
            made.carry_out(look(one.component))
        rig.run_until(lambda: threads() == before + MAX_THREADS, "hanging threads")
        for one in everyone[:-1]:
            made.carry_out(look(one.component))
        assert before + MAX_THREADS == threads()
        assert rig.of(Looked) == []
        made.carry_out(look(everyone[-1].component))
        assert rig.wait_for(Looked).trouble == "too many looks at others hang"
        made.close()
    rig.run_until(lambda: threads() == before, "the end of the threads")
    rig.turn()
    assert len(rig.of(Looked)) == 1, "nothing is posted after the end"


def test_one_process_that_hangs_takes_one_thread(rig: Rig) -> None:
    """However often it is asked for, a process is looked at once at a time; then it can be looked at again."""
    pid = rig.start(python(FUTEX), name="web")
    before = threads()
    with hanging(rig.directory, pid) as root:
        made = examiner(rig, root=root)
        for _ in range(MAX_THREADS + 1):
            made.carry_out(look())
            made.carry_out(evidence())
        assert threads() <= before + 2
    rig.wait_for(Looked)
    rig.run_until(lambda: threads() == before, "the end of the threads")
    rig.turn()
    assert len(rig.of(Looked)) == 1
    made.carry_out(look())
    rig.wait_for(Looked, 2)
    made.close()


def test_what_is_not_understood_is_answered(rig: Rig) -> None:
    """Files in /proc that make no sense are no reason to be silent, and cost no thread."""
    pid = rig.start(python(FUTEX), name="web")
    root = rig.directory / "proc"
    (root / "self").mkdir(parents=True)
    (root / "self" / "mountinfo").write_text("")
    (root / str(pid)).mkdir()
    (root / str(pid) / "stat").write_text("nonsense")
    made = examiner(rig, root=root)
    made.carry_out(look())
    assert rig.wait_for(Looked).trouble.startswith("cannot look at it: its files in /proc are not understood")
    rig.run_until(lambda: threads() == 0, "the end of the threads")
    made.close()


def test_evidence_that_hangs_leaves_what_was_written_so_far(rig: Rig) -> None:
    """A read that hangs holds up neither the loop nor looks; the file ends with the heading of what did not answer."""
    pid = rig.start(python(FUTEX), name="web")
    before = threads()
    with hanging(rig.directory, pid, "wchan") as root:
        made = examiner(rig, root=root)
        made.carry_out(evidence())
        file = rig.directory / "evidence"
        rig.run_until(lambda: file.exists() and any(one.read_text().endswith("== wchan\n") for one in file.iterdir()))
        made.carry_out(look())
        assert rig.wait_for(Looked).sample is not None
        assert not rig.of(EvidenceTaken)
        made.close()
    rig.run_until(lambda: threads() == before, "the end of the threads")
