"""Components that testify against the agent, and a host of them.

A component of `witness` holds a lock for as long as it lives: a second one of the same name, at any instant and however
short, leaves a line in `doubled`. Each start leaves a line in `starts`. A bystander is a process that nobody may
signal: it notes every signal that it gets, and its death is noticed.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from tests.faults.ledger import Ledger
from tests.faults.observer import Observer, Seen, start_time
from tests.integration.host import BOUND_S, Host, wait_until

SLEEP = "exec sleep 1000"
QUICK = {"initial_s": 0.02, "factor": 1, "cap_s": 0.02}
"""A restart that never grows slower: a fault is over soon, and the next can come."""
BYSTANDER = """
import os, signal, sys
notes = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, lambda number, _: os.write(notes, b"%d " % number))
os.write(notes, b"%d ready\\n" % os.getpid())
while True:
    signal.pause()
"""
"""Writes its pid and `ready`, then the number of every signal that it gets."""


def python(code: str, *arguments: str) -> list[str]:
    """Return a command that runs this code."""
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


class Field:
    """One host whose components are witnesses, in one directory."""

    def __init__(
        self,
        make_host: Callable[..., Host],
        ledger: Ledger,
        components: dict[str, dict[str, Any]],
        fenced: Callable[[Host], str] = lambda _host: "session",
        name: str = "h1",
    ) -> None:
        body = {name: {"log": "file", **component} for name, component in components.items()}
        roles = {"r": {"role": "r", "user": "inherit", "components": body}}
        self.host = make_host(name=name, roles=("r",), role_files=roles)
        self.mode = fenced(self.host)
        self.names = list(components)
        self.ledger = ledger
        self.observer = Observer(self.host.base)
        self._bystanders: list[tuple[int, int, Path]] = []
        self._numbers = count()

    @property
    def agent(self) -> "subprocess.Popen[bytes]":
        """The agent that was started last."""
        assert self.host.agent is not None
        return self.host.agent

    def launch(self, *prefix: str) -> None:
        """Start an agent and wait for nothing; `prefix` is a command that executes it."""
        host = self.host
        with host.agent_log.open("ab") as log:
            host.agent = subprocess.Popen(
                [
                    *prefix,
                    str(host.base / "bin" / "xce-node-manager"),
                    "run",
                    *host.options(),
                    f"--log-dir={host.log_dir}",
                ],
                env=host.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )

    def bystander(self, **environment: str) -> int:
        """Start a process that nobody may signal, in a session of its own; return its pid."""
        notes = self.host.base / f"bystander-{next(self._numbers)}"
        made = subprocess.Popen(
            python(BYSTANDER, str(notes)), env=environment, start_new_session=True, stdin=subprocess.DEVNULL
        )
        self.watch(notes)
        return made.pid

    def watch(self, notes: Path) -> None:
        """Watch the bystander that keeps these notes; it may have been started by a component."""
        line = wait_until(lambda: _first_line(notes), f"the bystander of {notes}")
        pid = int(line.split()[0])
        start = start_time(pid)
        assert start is not None
        self._bystanders.append((pid, start, notes))

    def release(self, *, keep: int) -> None:
        """End the oldest bystanders, so that at most `keep` are left."""
        for pid, _start, _notes in self._bystanders[: max(0, len(self._bystanders) - keep)]:
            os.kill(pid, signal.SIGKILL)
        self._bystanders = self._bystanders[-keep:]

    # --- the verdict ------------------------------------------------------------------------------------------------

    def settled(self, names: list[str] | None = None) -> dict[str, Seen]:
        """Wait until each of these components (all) has its one main process; what has none is lost."""
        wanted = self.names if names is None else names
        found: dict[str, list[Seen]] = {}

        def look() -> bool:
            found.clear()
            found.update(self.observer.mains())
            return all(len(found.get(name, ())) == 1 for name in wanted)

        with contextlib.suppress(AssertionError):
            wait_until(look, "every component has one main process")
        self.ledger.harm("components lost", [f"{name} does not run" for name in wanted if not found.get(name)])
        self.not_doubled(found)
        return {name: found[name][0] for name in wanted}

    def recorded(self, *names: str) -> None:
        """Wait until the agent has recorded these components' processes, and so every fact that they were started for.

        A killed agent's successor knows what was recorded, which comes a moment after it is seen.
        """
        mains = self.observer.mains()
        self.host.wait_for_record(*(f'"pid": {mains[name][0].pid},' for name in names))

    def not_doubled(self, mains: dict[str, list[Seen]] | None = None) -> None:
        """No component has two main processes, now or (by the locks) ever."""
        mains = self.observer.mains() if mains is None else mains
        seen = [f"{name} is {[one.pid for one in several]}" for name, several in mains.items() if len(several) > 1]
        notes = self.host.base / "doubled"
        told = notes.read_text().splitlines() if notes.exists() else []
        self.ledger.harm("components doubled", seen + told)

    def untouched(self) -> None:
        """No bystander was signalled."""
        harmed = []
        for pid, start, notes in self._bystanders:
            signals = notes.read_text().splitlines()[1:]
            if signals:
                harmed.append(f"bystander {pid} got signal {signals[0]}")
            if start_time(pid) != start:
                harmed.append(f"bystander {pid} is dead")
        self.ledger.harm("processes wrongly signalled", harmed)

    def starts(self, name: str) -> list[int]:
        """Return the pids of a component's main processes so far."""
        path = self.host.base / f"{name}.starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def kept(self, *names: str) -> None:
        """These components were started once, and that process lives: nobody ended it."""
        harmed = []
        for name in names:
            with contextlib.suppress(AssertionError):  # its testimony comes a while after its process
                wait_until(lambda name=name: self.starts(name), f"{name} has begun")  # type: ignore[misc]
            pids = self.starts(name)
            if len(pids) != 1 or start_time(pids[0]) is None:
                harmed.append(f"{name} did not end by itself, and has run as {pids}")
        self.ledger.harm("processes wrongly signalled", harmed)

    def answers(self) -> None:
        """Wait until the agent answers."""
        try:
            wait_until(self.host.answers, "the agent answers")
        except AssertionError as error:
            raise AssertionError(f"{error}; it has ended with {self.agent.poll()}\n{self.host.tail()}") from None

    def ask(self, *words: str) -> "subprocess.Popen[bytes]":
        """Begin an operator's command."""
        return subprocess.Popen(
            [str(self.host.base / "bin" / "xce-nodectl"), *words],
            env=self.host.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end(self) -> None:
        """Stop the agent as a user would: nothing of its components may be left."""
        self.answers()
        assert self.host.status()["node"]["cgroup_mode"] == {"session": "session", "cgroup": "delegated"}[self.mode]
        self.untouched()
        assert self.host.stop() == 0
        spared = {pid for pid, _start, _notes in self._bystanders}
        left = [seen for seen in self.observer.look() if seen.pid not in spared]
        self.ledger.harm("processes orphaned", [f"{seen.component} left {seen.pid}" for seen in left])
        self.not_doubled()
        self.untouched()
        for pid, _start, _notes in self._bystanders:
            os.kill(pid, signal.SIGKILL)


def witness(host_base: Path | str, name: str, then: str = SLEEP) -> list[str]:
    """Return the command of a component that testifies, and then runs `then` (of the shell)."""
    script = (
        f"exec 9>>{host_base}/{name}.lock; flock -n 9 || echo {name} $$ was a second one >>{host_base}/doubled; "
        f"echo $$ >>{host_base}/{name}.starts; {then}"
    )
    return ["/bin/sh", "-c", script]


def kill(seen: Seen) -> bool:
    """SIGKILL what was seen, and wait for its death; False: it has ended before."""
    try:
        pidfd = os.pidfd_open(seen.pid)
    except ProcessLookupError:
        return False
    try:
        if start_time(seen.pid) != seen.start:
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        assert poller.poll(BOUND_S * 1000), f"{seen.component} does not die"
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)


def replaced(field: Field, name: str) -> None:
    """Kill a component, and wait for its successor: the agent does its work."""
    seen = field.settled([name])[name]
    assert kill(seen)
    field.ledger.inject()
    field.settled([name])


def _first_line(path: Path) -> str:
    if not path.exists():
        return ""
    text = path.read_text()
    return text.splitlines()[0] if "\n" in text else ""
