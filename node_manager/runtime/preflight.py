"""What may hang before a child is made, tried in a thread of its own first.

A user's look-up asks whatever NSS is set up to ask, an `environment_file` or a log may lie on a server that is gone.
Tried on the loop, one of them would hold up every component of the host, and the watchdog with it. So the loop goes on
meanwhile; what was found of a user and of a file is known when it goes on with the start. A log is opened once more
then: it has answered a moment ago. Only what was found to be on a disk of this host's own is opened there at once.
What does not answer fails that one start, with its name. Errors are no matter here: they are found, and explained, by
whoever makes the child.
"""

import asyncio
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from pathlib import Path

from node_manager.core.actions import CancelPreStart, CancelSpawn, EndRun, RunHelper, RunPreStart, RunProbe, Spawn
from node_manager.core.events import Event, HelperDone, Outcome, PreStartDone, ProbeDone, SpawnFailed
from node_manager.core.spec import ComponentSpec, ExecCheck
from node_manager.runtime import output
from node_manager.runtime.accounts import AccountError, Accounts
from node_manager.runtime.crew import Crew
from node_manager.runtime.environment import EnvironmentFiles
from node_manager.runtime.mounts import LocalDirectories
from node_manager.runtime.output import OutputError

ANSWER_S = 5.0
"""How long one of these may take, as long as a launch may."""
MAX_HANGING = 64
"""Threads that may hang in the kernel at once; beyond it nothing that needs one is started."""
_MAX_WAITING = 10_000
"""A host that starts everything at once has a few for each component, and one thread soon does them all."""

Childmaking = Spawn | RunPreStart | RunHelper | RunProbe


class _Flight:
    """One action on its way. `at` names what is being asked; nothing yet while it waits for a thread."""

    def __init__(self, action: Childmaking, go: Callable[[], None]) -> None:
        self.action = action
        self.go = go
        self.at = ""
        self.landed = False
        self.timer: asyncio.TimerHandle | None = None


class Preflight:
    """Clears actions. `post` gets the event that answers an action which is not carried out."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        log_dir: Path | None,
        post: Callable[[Event], None],
        jitter: Callable[[], int],
        accounts: Accounts | None = None,
        environment_files: EnvironmentFiles | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._loop = loop
        self._log_dir = log_dir
        self._post = post
        self._jitter = jitter
        self._answer_s = answer_s
        self._accounts = accounts or Accounts()
        self._environment_files = environment_files or EnvironmentFiles()
        self._flights: dict[Hashable, _Flight] = {}
        self._local = LocalDirectories()
        self._crew = Crew(loop, "xce-preflight", size=MAX_HANGING, max_waiting=_MAX_WAITING)

    def clear(self, action: Childmaking, go: Callable[[], None]) -> None:
        """Call `go` as soon as nothing can hang any more, perhaps at once."""
        if not _makes_a_child(action) or not self._may_hang(action.spec):
            go()
            return
        flight = _Flight(action, go)
        if _key(action) in self._flights:
            self._refuse(action, "an earlier one is still under way")
            return
        if not self._crew.do(partial(self._try, flight), self._answered):
            self._refuse(action, "the host has no more threads")
            return
        self._flights[_key(action)] = flight
        flight.timer = self._loop.call_later(self._answer_s, self._too_late, flight)

    def cancel(self, action: CancelSpawn | CancelPreStart) -> bool:
        """Answer the action that this takes back, where it is under way here; False: it is not."""
        kind = Spawn if isinstance(action, CancelSpawn) else RunPreStart
        flight = self._flights.get((kind, action.component, ""))
        if flight is None or flight.action.generation != action.generation:
            return False
        self._land(flight)
        self._refuse(flight.action, "not wanted any more")
        return True

    def end(self, action: EndRun) -> None:
        """Forget what was to be done beside a run that is over; its probes need no answer."""
        for flight in list(self._flights.values()):
            late = flight.action
            if (late.component, late.generation) != (action.component, action.generation):
                continue
            if isinstance(late, RunProbe | RunHelper):
                self._land(flight)
            if isinstance(late, RunHelper):
                self._refuse(late, "the component has ended")

    def let_go(self) -> None:
        """Forget checks and probes without an answer: they are begun again, by a successor in this process or here."""
        for flight in list(self._flights.values()):
            if isinstance(flight.action, RunPreStart | RunProbe):
                self._land(flight)

    def close(self) -> None:
        """Carry nothing out any more."""
        self._crew.close()
        self._local.close()
        for flight in list(self._flights.values()):
            self._land(flight)

    def _may_hang(self, spec: ComponentSpec) -> bool:
        log = output.log_file(spec.log, spec.name, self._log_dir)
        may = log is not None and not self._local.knows(log.parent)
        return spec.environment_file is not None or may or not self._accounts.knows(spec.user)

    def _try(self, flight: _Flight) -> _Flight:
        """In the thread."""
        if flight.landed:
            return flight  # not wanted any more: nobody has to hang for it
        spec = flight.action.spec
        flight.at = f"the user {spec.user}"
        with suppress(AccountError):
            self._accounts.ask_for(spec.user)
        if spec.environment_file is not None:
            flight.at = f"the environment_file {spec.environment_file.removeprefix('-')}"
            self._environment_files.look(spec.environment_file)
        path = output.log_file(spec.log, spec.name, self._log_dir)
        if path is not None:
            flight.at = f"the log {path}"
            with suppress(OutputError):
                output.try_file(path)
            self._local.look(path.parent)
        return flight

    def _answered(self, flight: _Flight) -> None:
        if not flight.landed:
            self._land(flight)
            flight.go()

    def _too_late(self, flight: _Flight) -> None:
        self._land(flight)
        if flight.at:
            why = f"{flight.at} does not answer within {self._answer_s:g} s"
        else:
            why = f"earlier attempts hang for {self._answer_s:g} s: a file system or a directory service is gone"
        self._refuse(flight.action, why)

    def _land(self, flight: _Flight) -> None:
        flight.landed = True
        del self._flights[_key(flight.action)]
        if flight.timer is not None:
            flight.timer.cancel()

    def _refuse(self, action: Childmaking, why: str) -> None:
        name, generation = action.component, action.generation
        match action:
            case Spawn():
                text = f"cannot start {name}: {why}"
                self._post(SpawnFailed(component=name, generation=generation, reason=text, jitter=self._jitter()))
            case RunPreStart():
                done = PreStartDone(component=name, generation=generation, ok=False, detail=why, jitter=self._jitter())
                self._post(done)
            case RunHelper():
                purpose = action.purpose
                self._post(HelperDone(component=name, generation=generation, purpose=purpose, ok=False, detail=why))
            case RunProbe():
                unknown = Outcome.UNKNOWN
                self._post(
                    ProbeDone(component=name, generation=generation, probe=action.probe, outcome=unknown, detail=why)
                )


def _makes_a_child(action: Childmaking) -> bool:
    return not isinstance(action, RunProbe) or isinstance(action.check.check, ExecCheck)


def _key(action: Childmaking) -> Hashable:
    """There is one of each kind at a time."""
    match action:
        case RunHelper():
            return RunHelper, action.component, action.purpose
        case RunProbe():
            return RunProbe, action.component, action.probe
        case _:
            return type(action), action.component, ""
