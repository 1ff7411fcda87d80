import io
import os
import pty
import subprocess
from typing import Any

import pytest

from node_manager.cli.status_view import render
from node_manager.cli.terminal import Screen, clean
from tests.unit.api.fake import BOUND_S, NOW_NS, S, Service, component, status_body
from tests.unit.cli.conftest import command_line

BUSY = status_body(
    component("controller", pid=71234, uptime_ns=93784 * S),
    component(
        "scheduler",
        state="backoff",
        ready=False,
        pid=None,
        uptime_ns=None,
        restarts=12,
        rule="backoff",
        reason="exited with status 1 after 0.2s",
        next={"what": "start", "at_ns": NOW_NS + 12 * S},
    ),
    component(
        "worker",
        role="worker",
        state="stopped",
        desired="down",
        ready=False,
        pid=None,
        uptime_ns=None,
        rule="drained",
        reason="drained",
    ),
    component(
        "nginx",
        role="reverse-proxy",
        state="starting",
        ready=None,
        uptime_ns=2 * S,
        reason="waits for its first successful probe",
        next={"what": "startup probe", "at_ns": NOW_NS - S},
    ),
    node={"ready": False, "roles": ["manager", "worker"], "config_error": "node-manager.yaml:3: wrong\n  use manager"},
    host={
        "state": "draining",
        "by": "alice (uid 1000)",
        "reason": "new kernel",
        "deadline_ns": NOW_NS + 600 * S,
        "jobs_left": 1,
    },
    warnings=["the state directory is full"],
    facts=[
        {
            "name": "controller.primary",
            "value": True,
            "authority": "controller",
            "term": 41,
            "valid_until_ns": NOW_NS + 9 * S,
            "age_ms": 900,
        },
        {
            "name": "lease.provisioner",
            "value": None,
            "authority": "keeper",
            "term": 3,
            "valid_until_ns": NOW_NS - S,
            "age_ms": 9000,
        },
        {
            "name": "node.maintenance",
            "value": True,
            "authority": None,
            "term": None,
            "valid_until_ns": None,
            "age_ms": 4,
        },
        {
            "name": "component.worker.ready",
            "value": False,
            "authority": None,
            "term": None,
            "valid_until_ns": None,
            "age_ms": 4,
        },
    ],
)
HEADER = """\
node-0042  running  NOT READY  host draining  maintenance  roles manager, worker
host is draining, deadline 2025-10-09 09:03:20 (in 10m00s), 1 job left, by alice (uid 1000): new kernel
CONFIGURATION ERROR
  node-manager.yaml:3: wrong
  use manager
WARNING the state directory is full

"""
UNABRIDGED = """\

scheduler: exited with status 1 after 0.2s; next start in 12s
nginx: waits for its first successful probe; next startup probe now

"""
TABLE_100 = """\
COMPONENT   STATE     READY    PID  UPTIME  RESTARTS  REASON                       NEXT
controller  running   yes    71234    1d2h         0  the configuration wants it
scheduler   backoff   no         -       -        12  exited with status 1 after…  start in 12s
worker      stopped   no         -       -         0  drained
nginx       starting  ?       4711      2s         0  waits for its first succes…  startup probe now
"""
FACTS_100 = """\
FACT                VALUE    AUTHORITY   TERM  VALID FOR
controller.primary  true     controller    41         9s
lease.provisioner   unknown  keeper         3    expired
node.maintenance    true     -              -          -

More: xce-nodectl why scheduler nginx
"""
TABLE_60 = """\
COMPONENT   STATE     READY  UPTIME  REASON        NEXT
controller  running   yes      1d2h  the configuration want…
scheduler   backoff   no          -  exited with…  start in…
worker      stopped   no          -  drained
nginx       starting  ?          2s  waits for i…  startup …
"""


class Terminal(io.StringIO):
    """An output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def text(body: dict[str, Any], **environment: str) -> str:
    """Render as into a pipe."""
    return "".join(f"{line}\n" for line in render(clean(body), Screen(io.StringIO(), environment)))


def test_table_in_a_pipe_is_a_hundred_columns_wide() -> None:
    """Without a terminal the table fits 100 columns, and what it cut is said in full below it."""
    assert text(BUSY) == HEADER + TABLE_100 + UNABRIDGED + FACTS_100
    assert max(map(len, TABLE_100.splitlines())) <= 100


def test_table_at_sixty_columns() -> None:
    """A narrow terminal loses the columns that matter least, and no line of the table wraps."""
    assert text(BUSY, COLUMNS="60") == HEADER + TABLE_60 + UNABRIDGED + FACTS_100
    assert max(map(len, TABLE_60.splitlines())) <= 60


@pytest.mark.parametrize("columns", range(40, 200, 7))
def test_table_fits_every_width(columns: int) -> None:
    """Whatever the width, the table keeps within it and keeps name, state and reason."""
    body = status_body(*(component("c" * length, reason="r" * 200, role="x" * 40) for length in (3, 12, 30)))
    table = text(body, COLUMNS=str(columns)).splitlines()[2:]
    assert max(map(len, table)) <= columns
    assert {"COMPONENT", "STATE", "READY", "REASON"} <= set(table[0].split())


def test_healthy_node_is_short() -> None:
    """A node that is well takes a headline and a line for each component."""
    assert (
        text(status_body(component("controller")))
        == """\
node-0042  running  ready  host active  roles manager, worker

COMPONENT   ROLE     STATE    READY   PID  UPTIME  RESTARTS  REASON
controller  manager  running  yes    4711   1m30s         0  the configuration wants it
"""
    )


def test_a_column_without_a_cell_is_left_out_and_its_room_used() -> None:
    """Nothing is cut for the sake of NEXT where nobody has one, nor for ROLE, which the headline has too."""
    said = "joined 127.0.0.1:7011, active, for long"
    shown = text(status_body(component("worker", role="worker", status_text=said, jobs=2)))
    assert "NEXT" not in shown
    assert f"2 jobs; {said}\n" in shown
    following = {"what": "start when controller.primary is true", "at_ns": None}
    waiting = component("scheduler", state="stopped", desired="down", ready=False, reason="waits", next=following)
    shown = text(status_body(component("worker", role="worker", status_text=said, jobs=1), waiting))
    assert f"1 job; {said}\n" in shown
    assert "start when controller.primary is true\n" in shown


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"jobs": 0, "reason": "as it is"}, "0 jobs; as it is"),
        ({"jobs": 2, "reason": "told to drain; 2 jobs left"}, "told to drain; 2 jobs left"),
        ({"jobs": 2, "reason": "12 jobs ago"}, "2 jobs; 12 jobs ago"),
        ({"jobs": 1, "reason": ""}, "1 job"),
        ({"jobs": 3, "jobs_last_known": True, "reason": "exited"}, "3 jobs (last known); exited"),
        ({"jobs": 0, "jobs_last_known": True, "reason": "exited"}, "exited"),
    ],
)
def test_jobs_are_said_once(changes: dict[str, Any], shown: str) -> None:
    """The number of jobs stands in the worker's row, also while it is down, and not twice."""
    line = next(line for line in text(status_body(component("worker", **changes))).splitlines() if " 4711 " in line)
    assert line.endswith(f"  {shown}")


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"verdict": "ok"}, "as it is"),
        ({"verdict": None}, "as it is"),
        ({"verdict": "slow"}, "slow; as it is"),
        ({"verdict": "frozen", "reason": "probe failed; frozen: stopped"}, "probe failed; frozen: stopped"),
    ],
)
def test_what_is_said_of_a_process_is_said_once(changes: dict[str, Any], shown: str) -> None:
    """A verdict that is not all well stands in the component's row, and not twice."""
    body = status_body(component("worker", **({"reason": "as it is"} | changes)))
    line = next(line for line in text(body).splitlines() if " 4711 " in line)
    assert line.endswith(f"  {shown}")


def test_headline_says_which_agent_and_what_is_held() -> None:
    """A node can be ready with something stopped by hand, and under maintenance: whoever looks is told."""
    held = component("worker", state="stopped", desired="down", ready=False, rule="operator-hold", reason="stopped")
    node = {"agent_pid": 123, "agent_version": "0.1.0", "maintenance": "alice (uid 1000): disk swap"}
    headline, maintenance, *_ = text(status_body(component("controller"), held, node=node)).splitlines()
    assert (
        headline
        == "node-0042  running  ready  1 held  host active  maintenance  roles manager, worker  agent 0.1.0 pid 123"
    )
    assert maintenance == "maintenance by alice (uid 1000): disk swap"


def test_causes_are_named_before_what_they_bring() -> None:
    """Who reads the story of the first component that is named reads of the trouble itself."""
    waiting = component("apiserver", state="stopped", ready=False, rule="dependency", reason="waits for controller")
    broken = component("controller", state="backoff", ready=False, rule="backoff", reason="exited")
    assert text(status_body(waiting, broken)).endswith("\nMore: xce-nodectl why controller apiserver\n")


@pytest.mark.parametrize("state", ["drained", "decommissioned"])
def test_a_drain_that_is_over_has_no_deadline(state: str) -> None:
    """A deadline is shown for as long as something must be over by then."""
    shown = text(status_body(host={"state": state, "deadline_ns": NOW_NS + S, "by": "alice"}))
    assert f"host is {state}, by alice\n" in shown


def test_latched_facts_are_shown_while_they_are_true() -> None:
    """What nobody has latched is no news; a leased fact is news either way."""
    rest = {"authority": None, "term": None, "valid_until_ns": None, "age_ms": None}
    facts = [
        {"name": name, "value": value} | rest
        for name, value in (
            ("host.draining", False),
            ("operator.hold.worker", True),
            ("node.maintenance", False),
            ("lease.x", False),
        )
    ]
    shown = text(status_body(facts=facts)).splitlines()
    assert [line.split()[0] for line in shown[-2:]] == ["operator.hold.worker", "lease.x"]


def test_node_without_configuration_says_so() -> None:
    """Before there is a configuration the errors are all there is to show."""
    body = status_body(node={"ready": False, "state": "waiting-config", "config_error": "no file", "roles": []})
    assert text(body) == "node-0042  waiting-config  NOT READY  host active\nCONFIGURATION ERROR\n  no file\n"


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colour_on_a_terminal_only(environment: dict[str, str], coloured: bool) -> None:
    """A terminal gets colour unless it or its user does not want it; a pipe never does; the text is the same."""
    environment = {"TERM": "xterm", "COLUMNS": "100"} | environment
    shown = "".join(f"{line}\n" for line in render(clean(BUSY), Screen(Terminal(), environment)))
    assert coloured == ("\x1b[31m" in shown)
    plain = shown
    for code in ("0", "1", "2", "31", "32", "33", "31;1", "33;1"):
        plain = plain.replace(f"\x1b[{code}m", "")
    assert text(BUSY) == plain
    assert "\x1b" not in text(BUSY, TERM="xterm")


def test_watch_on_a_real_terminal(service: Service) -> None:
    """On a terminal --watch draws in place, in its width and height, and ends at Ctrl-C typed there."""
    service.backend.body = status_body(*(component(f"c{number}") for number in range(40)))
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "70", "LINES": "20"}
    command = command_line("--socket", str(service.path), "status", "--watch")
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    ) as process:
        os.close(theirs)
        shown = b""
        while b"more lines)" not in shown or not shown.endswith(b"\x1b[J"):
            shown += os.read(ours, 65536)
        process.send_signal(2)
        assert process.wait(BOUND_S) == 0
    os.close(ours)
    frame = shown.split(b"\x1b[H")[1]
    assert frame.count(b"\n") == 19
    assert b"\x1b[1mnode-0042\x1b[0m" in frame


def test_a_healthy_component_is_quiet() -> None:
    """Where all is well the table shows what the component says of itself, and no next probe or lease."""
    routine = {"what": "stop, unless the lease is renewed", "at_ns": NOW_NS + S}
    healthy = component("scheduler", next=routine, status_text="12 jobs queued")
    line = next(line for line in text(status_body(healthy)).splitlines() if line.startswith("scheduler"))
    assert line.endswith("12 jobs queued")
    unready = component("scheduler", next=routine, status_text="12 jobs queued", ready=False)
    assert "stop, unless the lease is renewed" in text(status_body(unready))
