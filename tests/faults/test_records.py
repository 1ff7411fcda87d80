"""The runtime record: lost, torn, of another time, beyond writing; and several agents that want the same one."""

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.ledger import Ledger
from tests.faults.rig import Field, kill, replaced, witness
from tests.faults.test_killed import STEADY, busy
from tests.integration.host import Host, wait_until

Make = Callable[..., Host]

RIVALS = 4
RACES = 3
LIFE_S = 0.5


def _of_another_boot(now: bytes, _first: bytes) -> bytes:
    return json.dumps(json.loads(now) | {"boot_id": "00000000-0000-0000-0000-000000000000"}).encode()


DAMAGE: dict[str, Callable[[bytes, bytes], bytes | None]] = {
    "lost": lambda _now, _first: None,
    "emptied": lambda _now, _first: b"",
    "torn": lambda now, _first: now[: len(now) // 2],
    "garbage": lambda now, _first: bytes(byte ^ 0x55 for byte in now),
    "of another boot": _of_another_boot,
    "an old one": lambda _now, first: first,
}
"""From the record as the agent left it, and the first one of this host, to what the next agent finds."""


def test_whatever_became_of_the_record_everything_is_found_again(
    make_host: Make, place: Path, ledger: Ledger, dice: random.Random, fenced: Callable[[Host], str]
) -> None:
    """The record is damaged after a kill, while components end and jobs carry their markers: none is mistaken (2)."""
    field = Field(make_host, ledger, busy(place / "h1"), fenced)
    field.launch()
    for number in range(3):
        field.watch(place / "h1" / f"jobs-{number}")
    field.settled()
    field.answers()
    record = field.host.run_dir / "runtime.json"
    wait_until(lambda: _is_of(record, field.agent.pid), "the first record")
    first = record.read_bytes()
    for kind in dice.sample([*DAMAGE], len(DAMAGE)):
        wait_until(lambda: _is_of(record, field.agent.pid), "the agent has written its record")
        at_s = time.monotonic() + dice.uniform(0, LIFE_S)
        wait_until(lambda at_s=at_s: time.monotonic() >= at_s, "the instant has come")  # type: ignore[misc]
        field.host.kill_agent()
        damaged = DAMAGE[kind](record.read_bytes(), first)
        record.unlink()
        if damaged is not None:
            record.write_bytes(damaged)
        ledger.inject(2)
        field.launch()
        field.answers()
        field.settled()
        field.kept(*STEADY)
        field.untouched()
    field.end()


def _is_of(record: Path, agent: int) -> bool:
    try:
        return bool(json.loads(record.read_bytes())["agent_pid"] == agent)
    except (OSError, ValueError, KeyError):
        return False


def test_a_record_that_cannot_be_written_stops_nothing(
    make_host: Make, place: Path, ledger: Ledger, fenced: Callable[[Host], str]
) -> None:
    """The record on the disk grows old: components are replaced, it is said, and the next agent mistakes nothing."""
    field = Field(
        make_host, ledger, busy(place / "h1") | {"victim": {"command": witness(place / "h1", "victim")}}, fenced
    )
    field.launch()
    for number in range(3):
        field.watch(place / "h1" / f"jobs-{number}")
    field.settled()
    field.answers()
    in_the_way = field.host.run_dir / "runtime.json.new"
    while not in_the_way.is_dir():  # the agent may be writing just now
        in_the_way.unlink(missing_ok=True)
        in_the_way.mkdir(exist_ok=True)
    ledger.inject()
    for _ in range(2):
        replaced(field, "victim")
        later = field.settled(["victim"])
        wait_until(lambda: "runtime.json" in " ".join(field.host.status()["warnings"]), "it is said")
        field.host.kill_agent()
        ledger.inject()
        field.launch()
        field.answers()
        assert later["victim"] == field.settled()["victim"], "what is newer than the record is adopted too"
        field.kept(*STEADY)
        field.untouched()
    in_the_way.rmdir()
    wait_until(lambda: "runtime.json" not in " ".join(field.host.status()["warnings"]), "it can be written again")
    field.end()


def test_what_an_unknown_agent_started_is_not_started_again(make_host: Make, place: Path, ledger: Ledger) -> None:
    """Nobody knows what runs, for the whole runtime directory is gone: it is left alone, and no second one started."""
    names = ("one", "two")
    field = Field(make_host, ledger, {name: {"command": witness(place / "h1", name)} for name in names})
    field.launch()
    field.answers()
    before = field.settled()
    field.host.kill_agent()
    shutil.rmtree(field.host.run_dir)
    ledger.inject(2)
    field.launch()
    field.answers()
    for name in names:
        assert str(before[name].pid) in field.host.wait_for(name, state="exited", rule="exit-hold")["reason"]
        field.host.ctl("start", name, ok=1)
    field.kept(*names)
    for name in names:
        assert kill(before[name])
        field.host.ctl("start", name)
    assert {name: len(field.starts(name)) for name in field.settled()} == dict.fromkeys(names, 2)
    field.end()


def test_of_many_agents_at_once_one_supervises(
    make_host: Make, place: Path, ledger: Ledger, fenced: Callable[[Host], str]
) -> None:
    """Several agents are started at once over what a killed one left: one takes it, the others end and say why."""
    field = Field(make_host, ledger, busy(place / "h1"), fenced)
    field.launch()
    for number in range(3):
        field.watch(place / "h1" / f"jobs-{number}")
    field.settled()
    for _ in range(RACES):
        field.host.kill_agent()
        ledger.inject(RIVALS)
        rivals = []
        for _ in range(RIVALS):
            field.launch()
            rivals.append(field.agent)
        wait_until(lambda rivals=rivals: sum(one.poll() is None for one in rivals) == 1, "one is left")  # type: ignore[misc]
        assert sorted(one.poll() is None for one in rivals) == [False] * (RIVALS - 1) + [True]
        assert all(one.poll() not in {0, None} for one in rivals if one.poll() is not None)
        field.host.agent = next(one for one in rivals if one.poll() is None)
        field.answers()
        field.settled()
        field.kept(*STEADY)
        field.untouched()
    assert "another node manager" in field.host.agent_log.read_text(errors="replace")
    field.end()
