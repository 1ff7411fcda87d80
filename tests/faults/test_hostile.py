"""Components that make supervision hard: they hide, they are deaf, they flood; and agents that are stopped."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.ledger import Ledger
from tests.faults.observer import start_time
from tests.faults.rig import QUICK, Field, kill, python, replaced, witness
from tests.integration.host import Host, wait_until

Make = Callable[..., Host]

_HIDING = """
import ctypes, os, signal, sys
# A new name, no descriptors, deaf to everything; and a child in a session of its own that is the same.
ready = sys.argv[1]
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    try:
        signal.signal(number, signal.SIG_IGN)
    except OSError:
        pass
prctl = ctypes.CDLL(None).prctl
if os.fork() == 0:
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
prctl(15, b"[kworker/0:1]", 0, 0, 0)
os.umask(0)
os.chdir("/")
open(ready, "a").write("ready\\n")
os.closerange(0, 1024)
while True:
    signal.pause()
"""
_STATUS = """
import os, sys
# Notes what it was born with, and ends with 7.
ignored = next(line for line in open("/proc/self/status") if line.startswith("SigIgn"))
open(sys.argv[1], "a").write(ignored)
os._exit(7)
"""
_FLOOD = """
import os, socket
# As fast as it can, for ever: datagrams that each become an event.
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.connect(os.environ["NOTIFY_SOCKET"])
number = 0
while True:
    number += 1
    sender.send(b"READY=1\\nWATCHDOG=1\\nSTATUS=%d" % number)
"""
FLOODS = 3
"""Components that flood at once."""


def test_a_component_that_hides_is_kept_adopted_and_ended(
    make_host: Make, place: Path, ledger: Ledger, fenced: Callable[[Host], str]
) -> None:
    """No descriptors, a new name, deaf to signals, a child in its own session: adopted as it is, and ended in time."""
    base = place / "h1"
    hiding = python(_HIDING, f"{base}/hidden")
    components: dict[str, Any] = {
        "hiding": {"command": hiding, "stop": {"timeout_s": 0.2}, "restart": QUICK},
        "other": {"command": witness(base, "other")},
    }
    field = Field(make_host, ledger, components, fenced)
    field.launch()
    hidden = base / "hidden"
    wait_until(lambda: hidden.exists() and hidden.read_text().count("ready") == 2, "both of them hide")
    before = field.settled()["hiding"]
    ledger.inject(2)
    for _ in range(3):
        field.answers()
        field.host.kill_agent()
        ledger.inject()
        field.launch()
    field.answers()
    assert field.settled()["hiding"] == before
    # Its end clears the child that left it.
    replaced(field, "hiding")
    wait_until(lambda: hidden.read_text().count("ready") == 4, "both of them hide again")
    assert sum(seen.component == "hiding" for seen in field.observer.look()) == 2
    field.host.ctl("stop", "hiding")
    field.host.wait_for("hiding", state="stopped")
    left = [seen for seen in field.observer.look() if seen.component == "hiding"]
    ledger.harm("processes orphaned", [str(seen) for seen in left])
    field.kept("other")
    field.end()


def test_an_agent_born_with_sigchld_ignored_sees_every_end(make_host: Make, place: Path, ledger: Ledger) -> None:
    """Its parent ignored SIGCHLD: exit statuses are right, no zombie stays, and no component inherits it."""
    base = place / "h1"
    components: dict[str, Any] = {
        "ends": {"command": python(_STATUS, f"{base}/born"), "exit_status": {7: "hold"}},
        "victim": {"command": witness(base, "victim"), "restart": QUICK},
    }
    field = Field(make_host, ledger, components)
    field.launch("sh", "-c", "trap '' CHLD; exec \"$@\"", "sh")
    ledger.inject()
    field.answers()
    assert "7" in field.host.wait_for("ends", state="exited")["last_exit"]
    for _ in range(3):
        replaced(field, "victim")
    born = (base / "born").read_text().split()
    assert int(born[1], 16) & (1 << (signal.SIGCHLD - 1)) == 0
    field.end()


def test_a_flood_of_events_delays_nobody(make_host: Make, place: Path, ledger: Ledger) -> None:
    """Components send as fast as they can: others are replaced, operators are answered, memory stays bounded."""
    base = place / "h1"
    flood = {"command": python(_FLOOD), "probes": {"readiness": {"notify": {}}}}
    components: dict[str, Any] = {f"flood{number}": flood for number in range(FLOODS)}
    components["victim"] = {"command": witness(base, "victim"), "restart": QUICK}
    components["steady"] = {"command": witness(base, "steady")}
    field = Field(make_host, ledger, components)
    field.launch()
    field.answers()
    for number in range(FLOODS):
        field.host.wait_for(f"flood{number}", ready=True)
    ledger.inject(FLOODS)
    for _ in range(5):
        replaced(field, "victim")
    assert _resident_kib(field.agent.pid) < 200 * 1024
    field.host.ctl("stop", "flood0")
    field.host.wait_for("flood0", state="stopped")
    field.kept("steady")
    field.end()


def _resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_an_agent_that_is_stopped_catches_up(make_host: Make, place: Path, ledger: Ledger, dice: random.Random) -> None:
    """SIGSTOP of the agent while components die or are stopped: continued, it replaces each once, and hurts none."""
    base = place / "h1"
    names = [f"victim{number}" for number in range(4)]
    components: dict[str, Any] = {name: {"command": witness(base, name), "restart": QUICK} for name in names}
    components["steady"] = {"command": witness(base, "steady")}
    field = Field(make_host, ledger, components)
    field.launch()
    field.answers()
    for _ in range(10):
        mains = field.settled()
        field.agent.send_signal(signal.SIGSTOP)
        ledger.inject()
        for name in dice.sample(names, dice.randint(1, 4)):
            assert kill(mains[name])
            ledger.inject()
        if dice.random() < 0.5:
            os.kill(mains["steady"].pid, signal.SIGSTOP)
            ledger.inject()
        field.agent.send_signal(signal.SIGCONT)
        field.settled()
        os.kill(mains["steady"].pid, signal.SIGCONT)
    field.kept("steady")
    field.end()


def test_a_stopped_component_is_ended_in_time(make_host: Make, place: Path, ledger: Ledger) -> None:
    """SIGSTOP of a component: it is left alone until it is to stop, and then SIGKILL ends what SIGTERM cannot."""
    base = place / "h1"
    components: dict[str, Any] = {"frozen": {"command": witness(base, "frozen"), "stop": {"timeout_s": 0.2}}}
    field = Field(make_host, ledger, components)
    field.launch()
    field.answers()
    seen = field.settled()["frozen"]
    os.kill(seen.pid, signal.SIGSTOP)
    ledger.inject()
    field.host.kill_agent()
    ledger.inject()
    field.launch()
    field.answers()
    assert field.settled()["frozen"] == seen
    field.host.ctl("stop", "frozen")
    field.host.wait_for("frozen", state="stopped")
    assert start_time(seen.pid) is None
    field.end()
