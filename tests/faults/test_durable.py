"""What is durable, on real disks: writers ended and failed at every system call; full, read-only and hanging disks."""

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from node_manager.api.client import Client, NotReachable
from node_manager.runtime.store import Store
from tests.faults.ledger import Ledger
from tests.faults.mounts import ext4, tmpfs
from tests.faults.rig import Field, witness
from tests.faults.writer import LAST, SECOND, facts
from tests.integration.host import BOUND_S, Host, wait_until

Make = Callable[..., Host]

CALLS = ("openat", "fallocate", "pwrite64", "fsync", "renameat2", "rename", "close", "unlink")
_ROOT = Path(__file__).parents[2]
ROUNDS = 12
INSTANTS_S = (0.02, 0.1, 0.5)
"""A kill comes within one of these after the word: an answer takes milliseconds, and far longer on a busy machine."""


def _trace(directory: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the writer under strace."""
    return subprocess.run(
        ["strace", "-qq", *options, sys.executable, "-m", "tests.faults.writer", str(directory)],
        cwd=_ROOT,
        env={"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


def _steps(place: Path) -> list[tuple[str, int]]:
    """The system calls of the last write, each with its number among those of its name since the program began."""
    log, directory = place / "log", place / "dry"
    directory.mkdir()
    _trace(directory, f"--trace={','.join((*CALLS, 'getsid'))}", f"--output={log}")
    counts: Counter[str] = Counter()
    steps: list[tuple[str, int]] = []
    within = False
    for line in log.read_text().splitlines():
        name = line.partition("(")[0]
        counts[name] += 1
        if name == "getsid":
            within = not within
        elif within:
            steps.append((name, counts[name]))
    return steps


@pytest.mark.skipif(
    shutil.which("strace") is None
    or subprocess.run(["strace", "-qq", "true"], check=False, capture_output=True).returncode != 0,
    reason="needs strace, and the right to trace",
)
def test_a_writer_is_killed_or_fails_at_every_system_call(place: Path, ledger: Ledger) -> None:
    """Kill -9 at each call of a write, then each call failing: old or new facts, no doubt; the next write succeeds."""
    steps = _steps(place)
    assert {"pwrite64", "fsync", "renameat2"} <= {name for name, _number in steps}
    faults = [(name, number, "signal=KILL") for name, number in steps]
    for error in ("ENOSPC", "EIO", "EROFS"):
        faults += [(name, number, f"error={error}") for name, number in steps if name != "close"]
    for index, (name, number, what) in enumerate(faults):
        directory = place / str(index)
        directory.mkdir()
        done = _trace(directory, f"--trace={name}", "--output=/dev/null", f"--inject={name}:{what}:when={number}")
        ledger.inject()
        said = done.stdout.split("\n")
        assert said[0] == str(SECOND), (done, name, number)
        if what == "signal=KILL":
            assert done.returncode == -signal.SIGKILL
        acknowledged = str(LAST) in said
        store = Store(directory)
        loaded = store.load("me")
        allowed = {LAST} if acknowledged else {SECOND, LAST}
        assert (loaded.unreadable, loaded.facts.epoch_seen in allowed) == (None, True), (name, number, what, said)
        store.write(facts(100))
        assert Store(directory).load("me").facts == facts(100)


def _field(make_host: Make, place: Path, ledger: Ledger) -> Field:
    base = place / "h1"
    components: dict[str, Any] = {
        "held": {"command": witness(base, "held"), "stop": {"timeout_s": 0.3}},
        "worker": {
            "command": witness(base, "worker"),
            "stop": {"timeout_s": 0.3},
            "stop_when": ["host.decommissioned"],
        },
        "steady": {"command": witness(base, "steady")},
    }
    return Field(make_host, ledger, components)


@pytest.mark.parametrize("disk", ["ample", "full"])
def test_an_acknowledged_word_outlives_any_kill(
    make_host: Make, place: Path, ledger: Ledger, dice: random.Random, disk: str
) -> None:
    """The agent is killed while operators decide: what was acknowledged holds in the next one (scenarios 4 and 7)."""
    field = _field(make_host, place, ledger)
    with tmpfs(field.host.state_dir, "512k" if disk == "ample" else "60k") as made:
        if made is None:
            pytest.skip("needs the right to mount")
        field.launch(*made.enter)
        field.answers()
        field.settled()
        if disk == "full":
            made.run("dd", "if=/dev/zero", f"of={field.host.state_dir}/ballast", "bs=1k", "count=64")
            ledger.inject()
        down = {"held": False, "worker": False}
        for _ in range(ROUNDS):
            name = dice.choice(["held", "worker"])
            word = {
                ("held", False): "components/held/stop",
                ("held", True): "components/held/start",
                ("worker", False): "host/decommission",
                ("worker", True): "host/recommission",
            }[name, down[name]]
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(_acknowledged, field.host, word)
                time.sleep(dice.choice(INSTANTS_S) * dice.random())  # the random instant that is the fault
                field.host.kill_agent()
                ledger.inject()
                acknowledged = asked.result(BOUND_S)
            field.launch(*made.enter)
            field.answers()
            wanted = {item["name"]: item["desired"] == "up" for item in field.host.status()["components"]}
            if acknowledged:
                assert wanted[name] is down[name], f"{word} was acknowledged\n{field.host.tail()}"
            down = {each: not wanted[each] for each in down}
            _is_so(field, down)
        field.kept("steady")
        field.end()


def _acknowledged(host: Host, word: str) -> bool:
    """Give the agent an operator's word; whether it says that it is so before it is killed."""
    try:
        return Client(str(host.socket)).post(f"/v1/{word}", {"by": "operator"}, BOUND_S).ok
    except NotReachable:
        return False


def _is_so(field: Field, down: dict[str, bool]) -> None:
    """Wait until what is down is gone, and what is not runs."""
    wait_until(lambda: not any(field.observer.mains().get(name) for name in down if down[name]), f"down: {down}")
    field.settled([name for name in field.names if not down.get(name)])


def test_a_read_only_disk_holds_nothing_up(make_host: Make, place: Path, ledger: Ledger) -> None:
    """An agent starts over a read-only state directory; a stop acts at once and is acknowledged once it is durable."""
    field = _field(make_host, place, ledger)
    state = field.host.state_dir
    with ext4(state, place / "image") as made:
        if made is None:
            pytest.skip("needs the right to mount, and loop devices")
        assert made.run("mount", "-o", "remount,ro", str(state)).returncode == 0
        ledger.inject()
        field.launch(*made.enter)
        field.answers()
        field.settled()
        with field.ask("stop", "held") as asked:
            _is_so(field, {"held": True})
            warnings = wait_until(lambda: field.host.status()["warnings"], "a warning")
            assert re.search(r"Read-only file system", " ".join(warnings))
            assert asked.poll() is None
            assert made.run("mount", "-o", "remount,rw", str(state)).returncode == 0
            assert asked.wait(BOUND_S) == 0
        field.host.kill_agent()
        ledger.inject()
        field.launch(*made.enter)
        field.answers()
        _is_so(field, {"held": True})
        field.end()


@pytest.mark.parametrize("how", ["torn", "emptied", "exchanged for another"])
def test_an_unreadable_latch_file_holds_what_it_could_forbid(
    make_host: Make, place: Path, ledger: Ledger, how: str
) -> None:
    """The latch file was damaged while no agent ran: the worker stays down until an operator says otherwise (23)."""
    field = _field(make_host, place, ledger)
    field.launch()
    field.answers()
    field.host.ctl("decommission")
    field.host.wait_for("worker", state="stopped")
    field.host.kill_agent()
    for path in field.host.state_dir.glob("facts.json*"):
        text = path.read_bytes()
        path.write_bytes({"torn": text[: len(text.rstrip()) // 2], "emptied": b""}.get(how, b'{"latches": []}'))
        ledger.inject()
    field.launch()
    field.answers()
    _is_so(field, {"worker": True})
    assert any(
        "it is not known whether this host is decommissioned" in text for text in field.host.status()["warnings"]
    )
    field.host.ctl("recommission")
    _is_so(field, {"worker": False})
    field.kept("steady")
    field.end()


def test_a_process_beyond_sigkill_is_named_and_not_doubled(make_host: Make, place: Path, ledger: Ledger) -> None:
    """Its file system hangs (D state): the agent answers, says so, starts nothing over it, and goes on afterwards."""
    disk, base = place / "disk", place / "h1"
    disk.mkdir()
    with ext4(disk, place / "image") as made:
        if made is None:
            pytest.skip("needs the right to mount, and loop devices")
        hangs = witness(base, "hangs", f"while :; do echo x >{disk}/file; done")
        components: dict[str, Any] = {
            "hangs": {"command": hangs, "stop": {"timeout_s": 0.3, "kill_timeout_s": 0.3}},
            "steady": {"command": witness(base, "steady")},
        }
        field = Field(make_host, ledger, components)
        field.launch(*made.enter)
        field.answers()
        seen = field.settled()["hangs"]
        assert made.run("fsfreeze", "--freeze", str(disk)).returncode == 0
        ledger.inject()
        wait_until(lambda: _state(seen.pid) == "D", "it hangs")
        with field.ask("restart", "hangs") as asked:
            found = field.host.wait_for("hangs", state="killing")
            wait_until(lambda: "unkillable" in field.host.component("hangs")["reason"], "it is said")
            assert field.starts("hangs") == [seen.pid], found
            field.kept("steady")
            made.run("fsfreeze", "--unfreeze", str(disk))
            asked.wait(BOUND_S)
        wait_until(lambda: len(field.starts("hangs")) > 1, "it is started again")
        field.settled()
        field.end()


def _state(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2]
