"""Leases and who states them: authorities that misbehave in every way or change their mind, agents that stop."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.ledger import Ledger
from tests.faults.rig import QUICK, Field, python, witness
from tests.integration.host import Host, wait_until

Make = Callable[..., Host]

LEASE_S = 9.0
"""Everything has to run before it ends, on a busy machine too."""
WAYS = ("garbage", "eof", "silence", "version", "oversize", "exit", "regress", "too-long")
_AUTHORITY = """
import json, os, random, select, signal, socket, sys, time
# Holds a lease, says so once as the protocol has it, then misbehaves for ever in one way.
way, name, until_file, lease_s = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
def speak():
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(os.environ["XCE_HEARTBEAT_SOCKET"])
    return link
def say(link, **words):
    link.send("".join(f"{key}={value}\\n" for key, value in words.items()).encode())
def lease(until, term):
    return {f"LEASE.{name}": "held", f"LEASE.{name}.TOKEN": term, f"LEASE.{name}.VALID_UNTIL_NS": until}
def hello(link):
    say(link, XCE_HEARTBEAT=1, COMPONENT=os.environ["XCE_COMPONENT"], INTERVAL_MS=60000)
if os.path.exists(until_file):  # it was ended, and started again: it says nothing of what it does not know
    link = speak()
    hello(link)
    while True:
        signal.pause()
link = speak()
hello(link)
until = now() + int(lease_s * 1e9)
say(link, BEAT=1, READY=1, **lease(until, 7))
with open(until_file + ".new", "w") as file:
    file.write(str(until))
os.rename(until_file + ".new", until_file)
later = until + int(60e9)
while True:
    try:
        if way == "garbage":
            link.send(os.urandom(200))
        elif way == "eof":
            link.close()
        elif way == "version":
            say(link, XCE_HEARTBEAT=2, COMPONENT=os.environ["XCE_COMPONENT"], INTERVAL_MS=1000, **lease(later, 9))
        elif way == "oversize":
            say(link, BEAT=2, STATUS="x" * 9000, **lease(later, 9))
        elif way == "exit":
            os._exit(1)
        elif way == "regress":
            say(link, BEAT=2, **lease(until + int(20e9), 6))
        elif way == "too-long":
            say(link, BEAT=2, **lease(until + int(7200e9), 8))
        elif way == "silence":
            signal.pause()
    except OSError:
        pass
    time.sleep(0.5)
    if way in ("garbage", "eof", "version", "oversize"):
        try:
            link = speak()
            hello(link)
        except OSError:
            pass
"""
"""Every wrong record that names a later end must not make the lease longer."""
_FICKLE = """
import os, random, socket, sys, time
# Is primary and standby in turn, each time under the next term, at random; at the end primary.
seed, turns, lock = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dice = random.Random(seed)
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect(os.environ["XCE_HEARTBEAT_SOCKET"])
def say(**words):
    link.send("".join(f"{key}={value}\\n" for key, value in words.items()).encode())
say(XCE_HEARTBEAT=1, COMPONENT="authority", INTERVAL_MS=60000)
term = 0
for turn in range(turns):
    term += 1
    say(BEAT=turn, READY=1, LEADERSHIP="primary", TERM=term, VALID_UNTIL_NS=now() + int(50e9))
    time.sleep(dice.uniform(0, 0.15))
    if turn < turns - 1 and dice.random() < 0.7:
        say(BEAT=turn, LEADERSHIP="standby", TERM=term)
        time.sleep(dice.uniform(0, 0.15))
open(lock, "w").write(str(term))
while True:
    say(BEAT=turns, LEADERSHIP="primary", TERM=term, VALID_UNTIL_NS=now() + int(50e9))
    time.sleep(0.5)
"""
TURNS = 40


def _boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _leased(base: Path, way: str) -> dict[str, dict[str, Any]]:
    """Return an authority that misbehaves and what depends on it."""
    lease = f"lease.{way}"
    return {
        f"keeper-{way}": {
            "command": python(_AUTHORITY, way, way, f"{base}/{way}.until", str(LEASE_S)),
            "states": [lease],
            "restart": QUICK,
        },
        way: {
            "command": witness(base, way),
            "run_while": [lease],
            "stop": {"timeout_s": 0.5, "kill_timeout_s": 0.5},
        },
    }


@pytest.mark.parametrize("agent", ["runs", "is killed", "is stopped"])
def test_whatever_an_authority_says_its_lease_ends_when_it_said(
    make_host: Make, place: Path, ledger: Ledger, agent: str
) -> None:
    """Garbage, end of file, silence, another version, an older term: what was stated holds to its end, no longer.

    The same while the agent is killed, and the next one takes over; and while it is stopped beyond the lease
    (scenarios 5 and 6).
    """
    base = place / "h1"
    components: dict[str, Any] = {"steady": {"command": witness(base, "steady")}}
    for way in WAYS:
        components |= _leased(base, way)
    field = Field(make_host, ledger, components)
    field.launch()
    untils = {way: wait_until(lambda way=way: _until(base, way), f"the lease of {way}") for way in WAYS}  # type: ignore[misc]
    wait_until(lambda: set(WAYS) <= set(field.observer.mains()), "everything runs")
    ledger.inject(len(WAYS))
    field.recorded(*WAYS)
    if agent != "runs":
        field.host.agent.send_signal(signal.SIGSTOP if agent == "is stopped" else signal.SIGKILL)  # type: ignore[union-attr]
        ledger.inject()
    if agent == "is killed":
        field.agent.wait()
        field.launch()
    seen: dict[str, int] = {}
    last = max(untils.values())
    while (now := _boottime_ns()) < last:
        running = field.observer.mains()
        seen |= dict.fromkeys((way for way in WAYS if way in running), now)
    field.agent.send_signal(signal.SIGCONT)
    late = [way for way in WAYS if seen.get(way, 0) > untils[way]]
    ledger.harm("components doubled", [f"{way} ran on after its lease" for way in late])
    assert set(field.observer.mains()) & set(WAYS) == set()
    # Nothing but the end of the lease ended it: it was there until its stop had to begin.
    early = [way for way in WAYS if untils[way] - seen[way] > 4_000_000_000]
    assert early == []
    field.kept("steady")
    field.end()


def _until(base: Path, way: str) -> int:
    path = base / f"{way}.until"
    return int(path.read_text()) if path.exists() else 0


def test_an_authority_that_changes_its_mind_converges(
    make_host: Make, place: Path, ledger: Ledger, dice: random.Random
) -> None:
    """Primary, standby, primary at any point of a start or stop: never two, and at last one under the newest term."""
    base = place / "h1"
    seed = dice.randrange(1_000_000)
    # Slow to stop, now and then beyond its time.
    then = f"echo $XCE_TERM >>{base}/terms; trap 'sleep 0.$(( $$ % 4 )); exit' TERM; while :; do sleep 0.02; done"
    components: dict[str, Any] = {
        "authority": {
            "command": python(_FICKLE, str(seed), str(TURNS), f"{base}/last"),
            "states": ["controller.primary"],
        },
        "leased": {
            "command": witness(base, "leased", then),
            "run_while": ["controller.primary"],
            "restart_on_change": ["controller.primary.term"],
            "stop": {"timeout_s": 0.2, "kill_timeout_s": 0.5},
            "restart": QUICK,
        },
        "steady": {"command": witness(base, "steady")},
    }
    field = Field(make_host, ledger, components)
    field.launch()
    last = int(wait_until(lambda: (base / "last").exists() and (base / "last").read_text(), "the last term"))
    ledger.inject(TURNS)
    terms = base / "terms"  # on a busy machine nothing may have been started before the last turn
    wait_until(lambda: terms.exists() and terms.read_text().split()[-1:] == [str(last)], "the newest term")
    field.settled()
    told = [int(term) for term in terms.read_text().split()]
    assert told == sorted(told)
    field.kept("steady")
    field.end()
