"""What may hang is tried beside the loop."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from node_manager.core.actions import CancelPreStart, CancelSpawn, EndRun, RunHelper, RunPreStart, RunProbe, Spawn
from node_manager.core.events import Event, HelperDone, Outcome, PreStartDone, ProbeDone, SpawnFailed
from node_manager.core.spec import CommandSpec, ComponentSpec, ExecCheck, LogSink, ProbeKind, ProbeSpec
from node_manager.runtime import preflight
from node_manager.runtime.accounts import Account, Accounts
from node_manager.runtime.preflight import MAX_HANGING, Preflight
from tests.unit.core.build import TCP, S, spec
from tests.unit.heartbeat.support import MovableLoop
from tests.unit.runtime.rig import BOUND_S

COMMAND = CommandSpec(command=("true",))


class Desk:
    """A preflight; `gone` are the actions that it cleared, `posted` the answers that it gave instead."""

    def __init__(self, log_dir: Path, *, accounts: "Nss | None" = None) -> None:
        self.accounts = accounts or Nss()
        if accounts is None:
            self.accounts.answers.set()
        self.loop = MovableLoop()
        self.posted: list[Event] = []
        self.gone: list[object] = []
        self.preflight = Preflight(
            self.loop,
            log_dir=log_dir,
            post=self._post,
            jitter=lambda: 5,
            accounts=self.accounts,
            answer_s=BOUND_S,
        )

    def _post(self, event: Event) -> None:
        self.posted.append(event)
        if self.loop.is_running():
            self.loop.stop()

    def clear(self, action: Spawn | RunPreStart | RunHelper | RunProbe) -> None:
        self.preflight.clear(action, partial(self._go, action))

    def _go(self, action: object) -> None:
        self.gone.append(action)
        self.loop.stop()

    def wait_in_vain(self) -> None:
        """Have what is under way wait for as long as an answer may take."""
        self.loop.advance(BOUND_S)
        self.run()

    def run(self) -> None:
        """Until something is cleared or answered."""
        bound = self.loop.call_later(BOUND_S, self.loop.stop)
        self.loop.run_forever()
        bound.cancel()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    found = Desk(tmp_path)
    yield found
    found.preflight.close()
    found.loop.close()


def local(**changes: object) -> ComponentSpec:
    return replace(spec("c"), user=None, log=LogSink.INHERIT, **changes)  # type: ignore[arg-type]


def spawn(found: ComponentSpec, generation: int = 1) -> Spawn:
    return Spawn(component="c", generation=generation, spec=found)


def test_what_cannot_hang_is_not_kept(desk: Desk) -> None:
    """Once the user is known, a start that needs no file is carried out at once."""
    desk.clear(spawn(local()))
    desk.run()
    desk.clear(spawn(local(), 2))
    assert [spawn(local()), spawn(local(), 2)] == desk.gone
    probe = RunProbe(
        component="c", generation=2, probe=ProbeKind.READINESS, spec=local(environment_file="/x"), check=TCP
    )
    desk.clear(probe)  # it makes no child
    assert probe == desk.gone[-1]
    assert desk.posted == []


def test_what_answers_is_carried_out(desk: Desk, tmp_path: Path) -> None:
    """A file that is there, one that is not, one that is wrong: whoever makes the child says what is wrong."""
    (tmp_path / "right").write_text("A=1\n")
    (tmp_path / "wrong").write_text("nonsense\n")
    for name in ("right", "wrong", "missing"):
        action = spawn(local(environment_file=str(tmp_path / name)))
        desk.clear(action)
        desk.run()
        assert action == desk.gone[-1]
    action = spawn(replace(local(), log=LogSink.FILE))
    desk.clear(action)
    assert action != desk.gone[-1]
    desk.run()
    assert action == desk.gone[-1]
    assert (tmp_path / "c.log").exists()


class Nss(Accounts):
    """Accounts of a directory service that answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def ask_for(self, name: str | None) -> Account:
        self.answers.wait(BOUND_S)
        return super().ask_for(name)


@pytest.fixture
def nss(tmp_path: Path) -> Iterator[Desk]:
    """A desk whose directory service hangs; `accounts.answers` ends that."""
    found = Desk(tmp_path, accounts=Nss())
    yield found
    found.accounts.answers.set()
    found.preflight.close()
    found.loop.close()


CHECK = RunPreStart(component="c", generation=1, spec=local(), command=COMMAND)
HELPER = RunHelper(component="c", generation=1, purpose="drain", spec=local(), command=COMMAND)
EXEC = ProbeSpec(check=ExecCheck(command=("true",)), period_ns=1 * S)
PROBE = RunProbe(component="c", generation=1, probe=ProbeKind.READINESS, spec=local(), check=EXEC)
SILENT = f"the user None does not answer within {BOUND_S:g} s"


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        (spawn(local()), SpawnFailed(component="c", generation=1, reason=f"cannot start c: {SILENT}", jitter=5)),
        (CHECK, PreStartDone(component="c", generation=1, ok=False, detail=SILENT, jitter=5)),
        (HELPER, HelperDone(component="c", generation=1, purpose="drain", ok=False, detail=SILENT)),
        (
            PROBE,
            ProbeDone(component="c", generation=1, probe=ProbeKind.READINESS, outcome=Outcome.UNKNOWN, detail=SILENT),
        ),
    ],
)
def test_what_hangs_fails_that_one_action(nss: Desk, action: Spawn, answer: Event) -> None:
    """The loop goes on, the action is answered within its bound and named, and an answer that comes late is nothing."""
    nss.clear(action)
    nss.wait_in_vain()
    assert ([answer], []) == (nss.posted, nss.gone)
    nss.accounts.answers.set()
    nss.clear(spawn(local(), 2))
    nss.run()
    assert nss.gone == [spawn(local(), 2)]


def test_what_is_not_wanted_any_more_is_answered(nss: Desk) -> None:
    """A start and a check that are taken back while they hang are answered at once, and never carried out."""
    nss.clear(spawn(local()))
    nss.clear(CHECK)
    assert not nss.preflight.cancel(CancelSpawn(component="c", generation=2))
    assert nss.preflight.cancel(CancelSpawn(component="c", generation=1))
    assert nss.preflight.cancel(CancelPreStart(component="c", generation=1))
    assert not nss.preflight.cancel(CancelSpawn(component="c", generation=1))
    assert [type(event) for event in nss.posted] == [SpawnFailed, PreStartDone]
    nss.accounts.answers.set()
    nss.clear(spawn(local(), 2))
    nss.run()
    assert nss.gone == [spawn(local(), 2)]


def test_what_is_let_go_can_be_asked_for_again(nss: Desk) -> None:
    """A check and a probe that a successor begins again get no answer here; without one they are begun anew."""
    for action in (CHECK, PROBE):
        nss.clear(action)
    nss.preflight.let_go()
    for action in (CHECK, PROBE):
        nss.clear(action)
    assert nss.posted == []
    nss.accounts.answers.set()
    while len(nss.gone) < 2 and not nss.posted:  # both may come in one run
        nss.run()
    assert nss.gone == [CHECK, PROBE]


def test_the_end_of_a_run_ends_what_was_to_be_done_beside_it(nss: Desk) -> None:
    """Its probe needs no answer, its command gets one; another run's probe is left alone."""
    later = replace(PROBE, generation=2, probe=ProbeKind.LIVENESS)
    for action in (PROBE, HELPER, later):
        nss.clear(action)
    nss.preflight.end(EndRun(component="c", generation=1))
    assert [type(event) for event in nss.posted] == [HelperDone]
    nss.accounts.answers.set()
    nss.run()
    assert nss.gone == [later]


def test_threads_that_hang_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where everything hangs, what is asked for later is told so instead of hanging in yet another thread."""
    monkeypatch.setattr(preflight, "MAX_HANGING", 2)
    nss = Desk(tmp_path, accounts=Nss())
    try:
        for generation in (1, 2, 3):
            nss.clear(spawn(local(), generation))
            nss.wait_in_vain()
        reasons = [answer.reason for answer in nss.posted if isinstance(answer, SpawnFailed)]
        assert ["the user None does not answer" in reason for reason in reasons] == [True, True, False]
        assert "earlier attempts hang" in reasons[2]
        assert sum(thread.name == "xce-preflight" for thread in threading.enumerate()) == 2
    finally:
        nss.accounts.answers.set()
        nss.preflight.close()
        nss.loop.close()


def test_any_number_of_starts_at_once_is_cleared(desk: Desk) -> None:
    """Also more than may hang: they wait for each other, and nothing that answers is refused."""
    actions = [replace(spawn(local()), component=f"c{number}") for number in range(3 * MAX_HANGING)]
    for action in actions:
        desk.clear(action)
    while len(desk.gone) + len(desk.posted) < len(actions):
        desk.run()
    assert (set(desk.gone), desk.posted) == (set(actions), [])


def test_a_host_without_threads_fails_the_start(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, like every start that cannot be."""

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    desk.clear(spawn(local()))
    (answer,) = desk.posted
    assert isinstance(answer, SpawnFailed)
    assert "the host has no more threads" in answer.reason
    monkeypatch.undo()
    desk.clear(spawn(local(), 2))
    desk.run()
    assert desk.gone == [spawn(local(), 2)]
