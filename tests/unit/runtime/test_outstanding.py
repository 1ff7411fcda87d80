"""What is under way when the program is to be replaced."""

from node_manager.core.actions import (
    Action,
    CancelPreStart,
    EndRun,
    KillTree,
    LookAt,
    RunHelper,
    RunPreStart,
    RunProbe,
    Spawn,
    TakeEvidence,
    WriteFacts,
)
from node_manager.core.durable import DurableFacts
from node_manager.core.events import (
    Event,
    EvidenceTaken,
    FactsWriteFailed,
    FactsWritten,
    HelperDone,
    Looked,
    Outcome,
    PreStartDone,
    ProbeDone,
    Spawned,
    SpawnFailed,
    TreeEmpty,
)
from node_manager.core.spec import CommandSpec, ProbeKind
from node_manager.runtime.outstanding import Outstanding
from tests.unit.core.build import TCP, spec

COMMAND = CommandSpec(command=("true",))
SPAWN = Spawn(component="c", generation=2, spec=spec("c"))
HELPER = RunHelper(component="c", generation=2, purpose="drain", spec=spec("c"), command=COMMAND)
CHECK = RunPreStart(component="c", generation=2, spec=spec("c"), command=COMMAND)
PROBE = RunProbe(component="c", generation=2, probe=ProbeKind.READINESS, spec=spec("c"), check=TCP)
KILL = KillTree(component="c", generation=2)


def write(seq: int) -> WriteFacts:
    return WriteFacts(seq=seq, facts=DurableFacts())


def after(*happened: Action | Event) -> Outstanding:
    outstanding = Outstanding()
    for one in happened:
        if isinstance(one, Action):
            outstanding.issued(one)
        else:
            outstanding.answered(one)
    return outstanding


def test_what_changes_something_is_waited_for() -> None:
    """Nobody may be replaced between fork and exec, during a write, or in a command to a component."""
    assert after(SPAWN, HELPER, write(1)).to_wait_for() == (
        "the start of c",
        "the drain command of c",
        "a write to the state directory",
    )
    done = HelperDone(component="c", generation=2, purpose="drain", ok=True)
    for spawned in (
        Spawned(component="c", generation=2, pid=5),
        SpawnFailed(component="c", generation=2, reason="no"),
    ):
        assert after(SPAWN, HELPER, write(1), spawned, done, FactsWritten(seq=1)).to_wait_for() == ()
    assert after(write(1), FactsWriteFailed(seq=1, error="full")).to_wait_for() == ()


def test_an_older_write_answers_no_newer_one() -> None:
    """A write is over when it, or a later one, is answered."""
    assert after(write(1), write(2), FactsWritten(seq=1)).to_wait_for() == ("a write to the state directory",)
    assert after(write(1), write(2), FactsWritten(seq=2)).to_wait_for() == ()


def test_what_changes_nothing_is_begun_again() -> None:
    """A check, a probe and the kill of a tree are repeated by the successor, as long as nothing has answered them."""
    assert after(CHECK, PROBE, KILL).to_wait_for() == ()
    assert after(CHECK, PROBE, KILL).to_repeat() == (CHECK, PROBE, KILL)
    assert (
        after(
            CHECK,
            PROBE,
            KILL,
            PreStartDone(component="c", generation=2, ok=True),
            ProbeDone(component="c", generation=2, probe=ProbeKind.READINESS, outcome=Outcome.OK),
            TreeEmpty(component="c", generation=2),
        ).to_repeat()
        == ()
    )


def test_a_check_that_was_called_off_is_waited_for() -> None:
    """It ends at once; begun again it would run on for nothing."""
    cancel = CancelPreStart(component="c", generation=2)
    assert after(CHECK, cancel).to_wait_for() == ("the end of the check before the start of c",)
    assert after(CHECK, cancel, PreStartDone(component="c", generation=2, ok=False)).to_wait_for() == ()


def test_a_probe_of_a_run_that_is_over_is_not_repeated() -> None:
    """The end of a run ends its probes, and the late answer of an older one answers no newer one."""
    assert after(PROBE, EndRun(component="c", generation=2)).to_repeat() == ()
    assert after(PROBE, EndRun(component="c", generation=1)).to_repeat() == (PROBE,)
    late = ProbeDone(component="c", generation=1, probe=ProbeKind.READINESS, outcome=Outcome.OK)
    assert after(PROBE, late).to_repeat() == (PROBE,)


def test_looks_and_evidence_are_begun_again() -> None:
    """A look at a late component, and evidence, are taken by the successor, unless they came or the run is over."""
    look = LookAt(component="c", generation=2, tree=True)
    evidence = TakeEvidence(component="c", generation=2, spec=spec("c"), said=())
    assert after(look, evidence).to_wait_for() == ()
    assert after(look, evidence).to_repeat() == (look, evidence)
    looked = Looked(component="c", generation=2, sample=None)
    taken = EvidenceTaken(component="c", generation=2, path=None)
    assert after(look, evidence, looked, taken).to_repeat() == ()
    assert after(look, evidence, EndRun(component="c", generation=2)).to_repeat() == ()
