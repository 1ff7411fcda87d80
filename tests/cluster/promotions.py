"""Promote, demote, promote: a scripted authority before a real agent, at random instants, with loss and delay.

After each burst of words the last one counts: each dependant runs once under its term, or not at all. Dependants of
three kinds depend on the fact: one that ends at once, one that takes a while, and one that has to be killed.
"""

import contextlib
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node_manager.reference.clock import NS_PER_S, boottime_ns
from tests.faults.observer import Observer
from tests.faults.rig import witness
from tests.integration.host import Host, wait_until

AUTHORITY = Path(__file__).with_name("authority.py")
CONTROLLER = "controller"
STOP = {"timeout_s": 0.2, "kill_timeout_s": 0.2}
BUDGET_S = 0.9
"""What these stops take at worst, with the margin."""
LONG_S = 50.0
"""A lease that outlives whatever is checked under it."""
MAX_BURST = 12
PAUSES_S = (0.0, 0.0, 0.001, 0.003, 0.01, 0.03, 0.1)
"""Between two words: within one turn of the agent's loop, within a start, within a stop, after it."""
RESTATE_S = 2.0
RECORDS_PER_S = 40.0
"""Below what the agent takes for a flood; what it takes at once beyond that is for the bursts."""
DEPENDANTS: dict[str, str] = {
    "prompt": "exec sleep 1000",
    "slow": "trap 'sleep 0.05; exit 0' TERM; sleep 1000 & while :; do wait; done",
    "stubborn": "trap '' TERM; while :; do sleep 1000; done",
}


def role(base: Path) -> dict[str, Any]:
    """The role of the authority and its dependants."""
    components: dict[str, Any] = {
        CONTROLLER: {
            "command": [sys.executable, "-I", "-S", str(AUTHORITY), str(base / "control.sock")],
            "states": ["controller.primary"],
            "stop": {"timeout_s": 1},
        }
    }
    for name, then in DEPENDANTS.items():
        components[name] = {
            "command": witness(base, name, then),
            "run_while": ["controller.primary"],
            "restart_on_change": ["controller.primary.term"],
            "restart": {"initial_s": 0.02, "factor": 1, "cap_s": 0.02},
            "stop": STOP,
        }
    return {"role": "r", "user": "inherit", "components": components}


class Script:
    """A host with an authority that obeys. `seed` gives the words and pauses, not how the agent takes them."""

    def __init__(self, make_host: Callable[..., Host], place: Path, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 -- reproducible
        base = place / "h1"
        self.host = make_host("h1", roles=("r",), role_files={"r": role(base)})
        self._observer = Observer(base)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(base / "control.sock"))
        self._listener.listen()
        self._listener.settimeout(40)
        self.host.start()
        self._control, _address = self._listener.accept()
        self._control.settimeout(40)
        self._answers = self._control.makefile("r")
        self._controller = self._pid_of(CONTROLLER)
        self.term = 0
        self.said: Counter[str] = Counter()
        self.bursts = 0
        self._credit = 200.0
        self._credit_at = time.monotonic()
        self.order("connect")

    # --- what the authority does ------------------------------------------------------------------------------------

    def order(self, text: str) -> str:
        """Have the authority do one thing, and return its answer."""
        self._control.sendall(f"{text}\n".encode())
        answer = self._answers.readline().strip()
        assert answer, "the authority is gone"
        return answer

    def _speak(self, word: str, how: str = "say") -> None:
        self._credit += (time.monotonic() - self._credit_at) * RECORDS_PER_S
        self._credit, self._credit_at = min(self._credit, 200.0), time.monotonic()
        if self._credit < 1:
            time.sleep(1 / RECORDS_PER_S)
        self._credit -= 1
        self.order(f"{how} {word}")

    def _primary(self, valid_s: float) -> str:
        until_ns = boottime_ns() + int(valid_s * NS_PER_S)
        return f"LEADERSHIP=primary TERM={self.term} VALID_UNTIL_NS={until_ns}"

    def _standby(self) -> str:
        return f"LEADERSHIP=standby TERM={self.term}"

    def _word(self) -> None:
        """Say one of the things that an authority, or what becomes of one, can say."""
        draw = self._random
        kind = draw.choice(
            (
                "promote",
                "promote",
                "demote",
                "demote",
                "renew",
                "short",
                "past",
                "old",
                "lost",
                "again",
                "late",
                "garbage",
            )
        )
        self.said[kind] += 1
        match kind:
            case "promote":
                self.term += draw.randint(1, 3)
                self._speak(self._primary(LONG_S))
            case "renew":
                self._speak(self._primary(LONG_S))
            case "short":  # shorter than the stop budget, or hardly longer
                self.term += 1
                self._speak(self._primary(draw.uniform(0.1, BUDGET_S + 0.3)))
            case "past":
                self._speak(self._primary(-draw.uniform(0.001, 5)))
            case "old" if self.term > 1:
                until_ns = boottime_ns() + NS_PER_S
                self._speak(f"LEADERSHIP=primary TERM={self.term - 1} VALID_UNTIL_NS={until_ns}")
            case "demote":
                self._speak(self._standby())
            case "lost":  # the connection ends with the word under way, and another takes its place
                self._speak(draw.choice((self._primary(LONG_S), self._standby())))
                self.order("drop")
                self.order("connect")
                self._speak(self._standby(), "hello")
            case "again":
                self.order("connect")
                self._speak(self._primary(LONG_S), "hello")
            case "late":  # over the connection whose place another has taken
                self.order("connect")
                self._speak(self._standby(), "hello")
                self._speak(self._primary(LONG_S), "late")
            case "garbage":
                self.order("connect")
                self._speak("LEADERSHIP=perhaps", "hello")
                self.order("connect")

    # --- what becomes of it -----------------------------------------------------------------------------------------

    def burst(self, *, meanwhile: Callable[[], None] | None = None) -> None:
        """Some words at random instants, a last one, and then that one holds, and no other."""
        self.bursts += 1
        self.order("connect")
        self._speak(self._standby(), "hello")
        for _ in range(self._random.randint(1, MAX_BURST)):
            self._word()
            time.sleep(self._random.choice(PAUSES_S))
        if meanwhile is not None:
            meanwhile()
        primary = self._random.random() < 0.7
        self.term += 1
        last = self._primary(LONG_S) if primary else self._standby()
        self._restate(last)
        self.settles(self.term if primary else None, last)
        self._noise(primary, last)

    def _noise(self, primary: bool, last: str) -> None:
        """What comes too late, or is not believed, changes nothing: the very same processes run on, or none."""
        self._heard("before")  # over the newest connection: only then is the older one known to be over
        # Again, now that the last word is known to be heard: none may have run before only because none had begun yet.
        self.settles(self.term if primary else None, last)
        before = self._pids()
        contrary = f"LEADERSHIP={'standby' if primary else 'primary'}"
        until_ns = boottime_ns() + int(LONG_S * NS_PER_S)
        self._speak(f"{contrary} TERM={self.term + 5} VALID_UNTIL_NS={until_ns}", "late")
        self._speak(f"{contrary} TERM={self.term - 1} VALID_UNTIL_NS={until_ns}")
        self._speak(f"LEADERSHIP=primary TERM={self.term} VALID_UNTIL_NS={boottime_ns() - 1}")
        self._heard("after")
        assert before == self._pids(), f"{before}, then {self._pids()}\n{self.host.tail()}"

    def _heard(self, when: str) -> None:
        """The agent has taken everything that was said over the newest connection."""
        marker = f"{when}-{self.bursts}"
        self._speak(f"STATUS={marker}")
        wait_until(lambda: self.host.component(CONTROLLER)["status_text"] == marker, "the agent has heard all of it")

    def _pids(self) -> dict[str, list[int]]:
        mains = self._observer.mains()
        return {name: [seen.pid for seen in mains.get(name, [])] for name in DEPENDANTS}

    def _restate(self, last: str) -> None:
        self.order("connect")
        self._speak(last, "hello")

    def settles(self, term: int | None, last: str) -> None:
        """Each dependant runs once, under this term; None: none runs.

        The last word is said again from time to time, as every client restates what it says: an agent that takes what
        has piled up for a flood does not listen for a while.
        """
        again_s = time.monotonic() + RESTATE_S

        def look() -> bool:
            nonlocal again_s
            if time.monotonic() > again_s:
                again_s = time.monotonic() + RESTATE_S
                self._restate(last)
            mains = self._observer.mains()
            wanted = [] if term is None else [term]
            return all([_term_of(seen.pid) for seen in mains.get(name, [])] == wanted for name in DEPENDANTS)

        try:
            wait_until(look, f"every dependant under term {term}")
        except AssertionError as error:
            found = {
                name: [(one.pid, _term_of(one.pid)) for one in seen] for name, seen in self._observer.mains().items()
            }
            raise AssertionError(f"{error}: {found}\n{self.host.ctl('status', ok=None)}\n{self.host.tail()}") from None
        notes = self.host.base / "doubled"
        assert not notes.exists(), notes.read_text()
        assert self._pid_of(CONTROLLER) == self._controller

    def freeze(self) -> None:
        """The agent stands still, while the authority says more than its queue takes."""
        agent = self.host.agent
        assert agent is not None
        agent.send_signal(signal.SIGSTOP)
        try:
            self.order("connect")
            self.order(f"hello {self._standby()}")
            self.order(f"flood {self._primary(LONG_S)}")
        finally:
            agent.send_signal(signal.SIGCONT)
        self._credit = 0.0

    def deaf(self) -> None:
        """The authority stops reading what it is told, or begins again."""
        self.order("deaf")

    def lose_agent(self) -> None:
        """The agent is killed, and its socket with it; another one comes."""
        self.host.kill_agent()
        for _ in range(20):
            self.order(f"say {self._primary(LONG_S)}")
            self.order("connect")
        self.host.start()

    def undisturbed(self) -> tuple[float, int]:
        """The controller is the same process, and nobody has signalled it. Its longest send (ms), its full queues."""
        longest_ns, full, *signals = self.order("report").split()
        assert signals == []
        assert self._pid_of(CONTROLLER) == self._controller
        return int(longest_ns) / 1e6, int(full)

    def end(self) -> None:
        """Let go of the authority."""
        self._answers.close()
        self._control.close()
        self._listener.close()

    def _pid_of(self, name: str) -> int:
        found = wait_until(lambda: self._observer.mains().get(name), f"{name} runs")
        assert found
        return found[0].pid


def _term_of(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        return int(environment.split(b"XCE_TERM=", 1)[1].split(b"\0", 1)[0])
    return None
