"""Passing trouble and changed minds: storms of failed starts, probes that hang, stops given in the middle of things."""

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.faults.ledger import Ledger
from tests.faults.rig import QUICK, Field, replaced, witness
from tests.integration.host import Host, free_port, wait_until

Make = Callable[..., Host]

STORM = 300
"""Failed starts of each component in a storm."""
_SLOW = "trap 'sleep 0.3; exit' TERM; while :; do sleep 0.02; done"


def test_a_storm_of_failed_starts_starves_nobody(make_host: Make, place: Path, ledger: Ledger) -> None:
    """Missing programs without a pause: others are replaced, the log stays short, the history keeps what led to it."""
    base = place / "h1"
    storm = {"command": ["/nonexistent/program"], "restart": {"initial_s": 0.001, "factor": 1, "cap_s": 0.001}}
    components: dict[str, Any] = {f"storm{number}": storm for number in range(5)}
    components["dies"] = {"command": ["/bin/false"], "restart": storm["restart"]}
    components["victim"] = {"command": witness(base, "victim"), "restart": QUICK}
    components["steady"] = {"command": witness(base, "steady")}
    field = Field(make_host, ledger, components)
    field.launch()
    field.answers()
    for name in ("storm0", "dies"):
        wait_until(lambda name=name: field.host.component(name)["generation"] > STORM, "the storm")  # type: ignore[misc]
    ledger.inject(STORM * 6)
    for _ in range(3):
        replaced(field, "victim")
    events = field.host.events()
    first = next(event for event in events if event["component"] == "steady")
    assert first["event"] == "component.state_changed"
    assert max(event.get("count", 1) for event in events) > STORM // 2
    assert field.host.agent_log.read_text().count("\n") < STORM * 3
    field.kept("steady")
    field.end()


def test_stops_and_starts_in_the_middle_of_anything_hold(
    make_host: Make, place: Path, ledger: Ledger, dice: random.Random
) -> None:
    """An operator's last word holds, whether it comes in a start, a backoff, a stop or an adoption (scenario 7)."""
    base = place / "h1"
    components: dict[str, Any] = {
        "slow": {"command": witness(base, "slow", _SLOW), "restart": QUICK},
        "failing": {
            "command": witness(base, "failing", "exec sleep 0.05"),
            "restart": {"initial_s": 0.1, "factor": 1, "cap_s": 0.1},
        },
        "waiting": {
            "command": witness(base, "waiting"),
            "probes": {"startup": {"exec": {"command": ["/bin/false"]}, "period_s": 0.1, "failure_threshold": 5}},
            "restart": QUICK,
        },
        "steady": {"command": witness(base, "steady")},
    }
    field = Field(make_host, ledger, components)
    field.launch()
    field.answers()
    for _ in range(12):
        name = dice.choice(["slow", "failing", "waiting"])
        words = [dice.choice(["start", "stop", "restart"]) for _ in range(dice.randint(1, 3))]
        for word in words:
            field.host.ctl(word, name)
            ledger.inject()
        if dice.random() < 0.3:
            field.host.kill_agent()
            ledger.inject()
            field.launch()
            field.answers()
        found = field.host.component(name)
        assert found["desired"] == ("down" if words[-1] == "stop" else "up"), (name, words)
        if words[-1] == "stop":
            wait_until(lambda name=name: not field.observer.mains().get(name), "it is down")  # type: ignore[misc]
            starts = len(field.starts(name))
            field.host.wait_for(name, state="stopped")
            assert len(field.starts(name)) == starts
        else:
            wait_until(lambda name=name: field.observer.mains().get(name), "it is up")  # type: ignore[misc]
        field.not_doubled()
    for name in components:
        field.host.ctl("start", name)
    field.settled(["slow", "steady"])
    field.kept("steady")
    field.end()


@contextmanager
def _deaf_port(port: int) -> Iterator[None]:
    """A port that answers no connection: the queue of its listener is full, so that the kernel drops what comes."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield


def test_probes_that_get_no_answer_delay_nobody(make_host: Make, place: Path, ledger: Ledger) -> None:
    """Dozens of connections that are dropped, and commands that hang: others are replaced, no probe is left over."""
    base, port = place / "h1", free_port()
    hang = ["/bin/sh", "-c", f"setsid sleep 1000 & echo hung >>{base}/hung; sleep 1000"]
    probes: dict[str, dict[str, Any]] = {
        "tcp": {"tcp": {"port": port}},
        "http": {"http": {"port": port, "path": "/"}},
        "exec": {"exec": {"command": hang}},
    }
    components: dict[str, Any] = {
        f"{kind}{number}": {
            "command": witness(base, f"{kind}{number}"),
            "probes": {"readiness": {**check, "period_s": 0.2, "timeout_s": 0.2}},
        }
        for kind, check in probes.items()
        for number in range(10)
    }
    probed = list(components)
    components["victim"] = {"command": witness(base, "victim"), "restart": QUICK}
    field = Field(make_host, ledger, components)
    with _deaf_port(port):
        field.launch()
        field.answers()
        hung = base / "hung"
        wait_until(lambda: hung.exists() and hung.read_text().count("hung") > 60, "many hung probes")
        ledger.inject(60)
        for _ in range(5):
            replaced(field, "victim")
        for name in probed:
            assert field.host.component(name)["ready"] is not True
        # No more than those that run now, each with a child of its own session and a shell's.
        helpers = [seen for seen in field.observer.look() if not seen.main and seen.component.startswith("exec")]
        assert len(helpers) < 10 * 4
        field.kept(*probed)
        field.end()


def test_components_outlive_a_long_absence_of_what_they_serve(make_host: Make, ledger: Ledger) -> None:
    """The controller is gone, then the agent too: the worker and its jobs run on, and all is taken up again (17)."""
    host = make_host()
    host.up()
    host.reference("submit", host.name, "--seconds", "300", "--count", "2")
    host.wait_for("worker", jobs=2)
    worker = host.pids()["worker"]
    host.ctl("stop", "controller")
    ledger.inject()
    wait_until(lambda: host.pids()["controller"] is None, "no controller")
    host.kill_agent()
    ledger.inject()
    host.start()
    for name, ready in (("controller", False), ("worker", True)):
        host.wait_for(name, state="running" if ready else "stopped")
    jobs = [pid for pid in host.processes() if Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"]
    ledger.harm("processes wrongly signalled", [] if len(jobs) == 2 else [f"of two jobs {jobs} are left"])
    assert host.pids()["worker"] == worker
    host.ctl("start", "controller")
    host.ctl("wait", "--for", "ready", "--timeout", "40s")
    assert host.pids()["worker"] == worker
    host.wait_for("worker", jobs=2)


def test_only_complete_files_of_the_right_name_are_configuration(make_host: Make, place: Path, ledger: Ledger) -> None:
    """An editor's swap file, a backup, half a file: what runs runs on, and the next right file counts (15)."""
    base = place / "h1"
    field = Field(make_host, ledger, {"steady": {"command": witness(base, "steady")}})
    field.launch()
    field.answers()
    whole = field.host.config.read_text()
    drop_ins = field.host.config.with_name("node-manager.d")
    drop_ins.mkdir()
    for name, text in ((".10.yaml.swp", "\0\0"), ("10.yaml~", "roles: []"), ("20.yml", "roles: []"), ("notes", "x")):
        (drop_ins / name).write_text(text)
        ledger.inject()
    field.host.ctl("reload")
    for cut in range(1, len(whole), max(1, len(whole) // 8)):
        field.host.config.write_text(whole[:cut])
        ledger.inject()
        field.host.ctl("reload", ok=None)
        field.kept("steady")
    field.host.config.write_text(whole)
    field.host.ctl("reload")
    assert field.host.status()["node"]["config_error"] is None
    field.kept("steady")
    field.end()
