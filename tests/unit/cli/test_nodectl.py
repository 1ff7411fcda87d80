import json
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import node_manager
from node_manager import __version__
from node_manager.api.backend import CommandRequest, CommandResult
from node_manager.api.limits import MAX_DEADLINE_S
from node_manager.cli.arguments import parse_deadline_ns
from node_manager.cli.nodectl import main
from node_manager.core.events import Verb
from tests.unit.api.fake import BOUND_S, NOW_NS, S, Service, component, event, status_body, why_body
from tests.unit.cli.conftest import Run, spawn

BY = f"{pwd.getpwuid(os.getuid()).pw_name} (uid {os.getuid()})"


def test_status_says_whether_the_node_is_ready(service: Service, run: Run) -> None:
    """Exit 0 when ready, 1 when not: a script needs no parsing."""
    assert run("status").status == 0
    service.backend.body = status_body(node={"ready": False})
    outcome = run("status")
    assert outcome.status == 1
    assert "NOT READY" in outcome.out


def test_json_is_the_agents_body(service: Service, run: Run) -> None:
    """--json prints what the agent answers, before and after the command's name."""
    assert run("--json", "status").json == service.backend.body
    assert run("status", "--json").json == service.backend.body
    assert run("why", "worker", "--json").json == service.backend.why("worker")


def test_why_unknown_component(run: Run) -> None:
    """A wrong name is answered with the right ones."""
    outcome = run("why", "wroker")
    assert outcome.status == 1
    assert "there are: controller, worker" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("start", "worker"), CommandRequest(verb=Verb.START, component="worker", by=BY)),
        (
            ("stop", "worker", "--reason", "disk swap"),
            CommandRequest(verb=Verb.STOP, component="worker", by=BY, reason="disk swap"),
        ),
        (("restart", "worker"), CommandRequest(verb=Verb.RESTART, component="worker", by=BY)),
        (("drain",), CommandRequest(verb=Verb.DRAIN, by=BY)),
        (("drain", "--deadline", "1h30m"), CommandRequest(verb=Verb.DRAIN, by=BY, deadline_s=5400.0)),
        (("undrain",), CommandRequest(verb=Verb.UNDRAIN, by=BY)),
        (("decommission", "--reason", "old"), CommandRequest(verb=Verb.DECOMMISSION, by=BY, reason="old")),
        (("recommission",), CommandRequest(verb=Verb.RECOMMISSION, by=BY)),
        (("maintenance", "on"), CommandRequest(verb=Verb.MAINTENANCE, by=BY, enable=True)),
        (("maintenance", "off"), CommandRequest(verb=Verb.MAINTENANCE, by=BY, enable=False)),
    ],
)
def test_commands_ask_for_what_they_say(
    service: Service, run: Run, arguments: tuple[str, ...], expected: CommandRequest
) -> None:
    """Each command reaches the agent with who asked and why, and its answer is printed."""
    service.backend.result = CommandResult(ok=True, detail="as you wish")
    outcome = run(*arguments)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.endswith("as you wish\n")
    assert service.backend.requests == [expected]


def test_reload(service: Service, run: Run) -> None:
    """Reload asks for a reload."""
    assert run("reload").status == 0
    assert service.backend.reloads == [BY]


@pytest.mark.parametrize(("ok", "status"), [(True, 0), (False, 1)])
def test_reexec_waits_for_the_outcome(service: Service, run: Run, ok: bool, status: int) -> None:
    """What counts is which program is in charge in the end, not that one was asked for."""
    service.backend.body["node"]["reexec"] = {"count": 3, "ok": True, "detail": "an earlier one"}
    service.backend.outcome = {"count": 4, "ok": ok, "detail": "so it went"}
    outcome = run("reexec")
    assert (outcome.status, service.backend.reexecs) == (status, [BY])
    assert (outcome.out if ok else outcome.err).endswith("so it went\n")


def test_reexec_refused(service: Service, run: Run) -> None:
    """Where the agent refuses there is nothing to wait for."""
    service.backend.result = CommandResult(ok=False, detail="the installed program cannot take over")
    outcome = run("reexec")
    assert (outcome.status, outcome.err) == (1, "xce-nodectl: the installed program cannot take over\n")


def test_several_components(service: Service, run: Run) -> None:
    """Each named component is asked for; one that is refused does not keep the others from it."""
    outcome = run("restart", "nginx", "worker", "controller")
    assert outcome.status == 1
    assert [request.component for request in service.backend.requests] == ["worker", "controller"]
    assert outcome.out == "worker: done\ncontroller: done\n"
    assert "nginx: no component is called 'nginx'" in outcome.err


def test_behind_sudo_the_caller_is_named(service: Service, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root by sudo is somebody; the kernel's uid still stands beside the name."""
    if os.getuid() != 0:
        pytest.skip("sudo makes root")
    monkeypatch.setenv("SUDO_USER", "alice")
    run("undrain")
    assert service.backend.requests[0].by == "alice (uid 0)"


def test_refused_by_a_rule(service: Service, run: Run) -> None:
    """Exit 1, with the rule and its sentence on standard error."""
    service.backend.result = CommandResult(ok=False, detail="this host is decommissioned", rule="decommissioned")
    outcome = run("start", "worker")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == "xce-nodectl: worker: refused by rule decommissioned: this host is decommissioned\n"
    outcome = run("start", "worker", "--json")
    assert outcome.status == 1
    assert outcome.json["rule"] == "decommissioned"


def test_not_permitted(service: Service, run: Run) -> None:
    """Exit 4, saying who may."""
    service.backend.allowed = False
    outcome = run("decommission")
    assert outcome.status == 4
    assert "xce-admin" in outcome.err


def test_socket_that_may_not_be_opened(service: Service, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 4 also where the file system already says no."""
    if os.getuid() != 0:
        service.path.chmod(0)
        assert run("status").status == 4
        return
    monkeypatch.setenv("HOME", "/")
    service.path.chmod(0o600)
    service.path.parent.chmod(0o755)
    os.seteuid(65534)
    try:
        outcome = run("status")
    finally:
        os.seteuid(0)
    assert outcome.status == 4
    assert "Permission denied" in outcome.err


def test_agent_that_is_not_there(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3, naming the socket and what to look at, for a missing and for a dead socket."""
    path = directory / "status.sock"
    for command in (["status"], ["why", "x"], ["drain"], ["events"], ["events", "--follow"], ["reload"]):
        assert main(["--socket", str(path), *command]) == 3
        assert f"there is no socket {path}; is xce-node-manager running?" in capsys.readouterr().err
    with Service(directory) as service:
        pass
    os.close(os.open(service.path, os.O_CREAT))
    assert main(["--socket", str(path), "status"]) == 3


def test_default_socket_is_not_guessed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent of a source tree below the current directory is not taken for the host's."""
    if Path("/run/xce/node-manager/status.sock").exists():
        pytest.skip("an agent runs on this host")
    (directory / ".run" / "run").mkdir(parents=True)
    with Service(directory / ".run" / "run"):
        monkeypatch.chdir(directory)
        assert main(["status"]) == 3
    assert "/run/xce/node-manager/status.sock" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["status", "extra"],
        ["start"],
        ["why"],
        ["maintenance"],
        ["maintenance", "maybe"],
        ["drain", "--deadline", "soon"],
        ["drain", "--deadline", "0"],
        ["drain", "--deadline", "-5"],
        ["events", "--after", "-1"],
        ["wait"],
        ["wait", "--for", "lunch"],
        ["wait", "--for", "state=running"],
        ["wait", "--for", "state=happy", "worker"],
        ["wait", "--for", "drained", "worker"],
        ["wait", "--for", "ready", "--timeout", "1x"],
        ["status", "--js"],
    ],
)
def test_wrong_command_lines(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 with a sentence, without asking any agent."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_agent_calls_the_request_wrong(run: Run) -> None:
    """What only the agent can tell to be wrong is usage too."""
    assert run("drain", "--reason", "x" * 600).status == 2


def test_longest_deadline_is_the_agents(capsys: pytest.CaptureFixture[str]) -> None:
    """A deadline that the agent would not take is refused in the words of the option, and the longest is taken."""
    assert parse_deadline_ns("30d") == MAX_DEADLINE_S * S
    with pytest.raises(SystemExit) as ended:
        main(["drain", "--deadline", "40d"])
    assert ended.value.code == 2
    assert "argument --deadline: a deadline is at most 30d, not 40d" in capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Help has examples and exit statuses, every command has its own."""
    for arguments, expected in [
        (["--help"], "exit status:"),
        (["--help"], "xce-nodectl why worker"),
        (["--version"], __version__),
        (["wait", "--help"], "--timeout"),
        (["drain", "--help"], "--deadline"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        assert expected in capsys.readouterr().out


def test_events(service: Service, run: Run) -> None:
    """The history is shown in local time, of one component where asked, and as lines of JSON."""
    service.happen(
        event(1, old="starting", new="running", reason="it said so"),
        event(2, "node.config_loaded", component=None),
        event(3, component="controller", count=7),
    )
    assert run("events").out.splitlines() == [
        '2025-10-09 08:53:01  worker  component.state_changed  old=starting  new=running  reason="it said so"',
        "2025-10-09 08:53:02  -  node.config_loaded",
        "2025-10-09 08:53:03  controller  component.state_changed  (7 times)",
    ]
    assert run("events", "controller").out.count("\n") == 1
    assert run("events", "--after", "2").out.count("\n") == 1
    assert [json.loads(line)["seq"] for line in run("events", "--json").out.splitlines()] == [1, 2, 3]


def test_repeats_say_since_when(service: Service, run: Run) -> None:
    """When a row of equal events began is said in local time, with its date where that is another one."""
    service.happen(
        event(1, count=12, first_at="2025-10-09T08:34:07.000Z"), event(2, count=3, first_at="2025-10-08T23:59:59.000Z")
    )
    first, second = run("events").out.splitlines()
    assert first.endswith("component.state_changed  (12 times since 08:34:07)")
    assert second.endswith("component.state_changed  (3 times since 2025-10-08 23:59:59)")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "x=plain"),
        ("", 'x=""'),
        ('said "no" twice', r'x="said \"no\" twice"'),
        ('"', r'x="\""'),
        ("a=b", 'x="a=b"'),
        ("C:\\a b", r'x="C:\\a b"'),
        (True, "x=true"),
        (7, "x=7"),
    ],
)
def test_values_of_events_can_be_told_apart(service: Service, run: Run, value: object, shown: str) -> None:
    """Whatever a value holds, where it begins and where it ends can be seen."""
    service.happen(event(1, x=value))
    assert run("events").out.rstrip("\n").endswith(f"component.state_changed  {shown}")


@pytest.mark.parametrize("arguments", [("events", "nosuch"), ("events", "--follow", "nosuch")])
def test_events_of_a_wrong_name(run: Run, arguments: tuple[str, ...]) -> None:
    """Nobody follows a typing error."""
    outcome = run(*arguments)
    assert (outcome.status, outcome.out) == (1, "")
    assert "no component is called 'nosuch'; there are: controller, worker" in outcome.err


def test_events_of_a_component_that_was_removed(service: Service, run: Run) -> None:
    """What the history still tells of a component can still be read."""
    service.happen(event(1, component="gone"))
    assert run("events", "gone").out.count("\n") == 1


def test_why_of_several_components(run: Run) -> None:
    """The line `More:` of status can be used as it stands; a wrong name does not hide the others."""
    outcome = run("why", "worker", "nosuch", "controller")
    assert outcome.status == 1
    assert [line for line in outcome.out.splitlines() if " is running" in line] == [
        "worker is running: the configuration wants it",
        "controller is running: the configuration wants it",
    ]


def test_events_of_a_long_history(service: Service, run: Run) -> None:
    """Everything that the agent has is shown, however many pages that takes."""
    service.happen(*(event(seq) for seq in range(1, 1201)))
    assert len(run("events").out.splitlines()) == 1200


def test_events_follow(service: Service) -> None:
    """Events appear as they happen, over a restart of the agent, until Ctrl-C, which is a proper end."""
    service.happen(event(1))
    with spawn("--socket", str(service.path), "events", "--follow", "--json", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["seq"] == 1
        service.happen(event(2))
        assert json.loads(process.stdout.readline())["seq"] == 2
        # A new agent: its history begins anew.
        service.backend.history[:] = [event(1, "agent.started")]
        service.on_loop(service.server.close)
        service.on_loop(service.server.start)
        assert json.loads(process.stdout.readline())["event"] == "agent.started"
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND_S) == 0


def test_follow_takes_up_where_a_connection_broke(service: Service) -> None:
    """A lost connection to the same agent repeats nothing and loses nothing."""
    service.happen(event(1), event(2))
    with spawn("--socket", str(service.path), "events", "--follow", "--json", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline())["seq"] for _ in range(2)] == [1, 2]
        service.on_loop(service.server.close)
        service.happen(event(3))
        service.on_loop(service.server.start)
        assert json.loads(process.stdout.readline())["seq"] == 3
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND_S) == 0


def test_reader_that_has_enough(service: Service) -> None:
    """`events | head -1` ends without a traceback."""
    service.happen(*(event(seq, detail="x" * 1000) for seq in range(1, 1001)))
    with spawn("--socket", str(service.path), "events", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(BOUND_S) == 0
        assert process.stderr.read() == ""


def test_old_locale(service: Service) -> None:
    """A terminal whose locale lacks a character shows a replacement, not a traceback."""
    service.backend.body = status_body(component("worker", reason="größer als … " * 20))
    with spawn(
        "--socket", str(service.path), "status", stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii"}
    ) as process:
        assert process.wait(BOUND_S) == 0
        assert process.stdout is not None
        assert "gr??er" in process.stdout.read()


def test_why_tells_the_whole_story(service: Service, run: Run) -> None:
    """State, rule, who and when, what else holds, last exit, probes, next action, last events."""
    service.backend.reasons["worker"] = why_body(
        "worker",
        state="stopped",
        desired="down",
        ready=False,
        rule="operator-hold",
        reason="stopped by an operator: disk swap",
        since_ns=NOW_NS - 252 * S,
        next={"what": "look again", "at_ns": NOW_NS + 12 * S},
        claims=[
            {
                "rule": "operator-hold",
                "reason": "stopped by an operator: disk swap",
                "since_ns": NOW_NS - 252 * S,
                "by": "alice (uid 1000)",
                "at": "2025-10-09T08:49:08Z",
            },
            {"rule": "maintenance", "reason": "no starts", "since_ns": NOW_NS - 10 * S, "by": None, "at": None},
        ],
        last_exit="killed by SIGTERM",
        probes=[
            {
                "probe": "liveness",
                "state": "failed",
                "detail": "connection refused",
                "successes": 0,
                "failures": 2,
                "next_at_ns": NOW_NS + 4 * S,
            },
            {"probe": "startup", "state": "ok", "detail": None, "successes": 1, "failures": 0, "next_at_ns": None},
        ],
        history=[
            event(1, "component.exited", how="SIGSEGV"),
            event(2, "command.received", verb="restart"),
            event(3, "component.exited", how="SIGTERM"),
            event(4, "component.probe_failed", probe="liveness"),
            *(event(seq, new=f"state{seq}") for seq in range(5, 20)),
        ],
        log="/var/log/xce/worker.log",
        log_tail=["one", "two", "three", "Traceback:", "  File\t\x1b[31mx", "three\n", "y" * 5000],
    )
    outcome = run("why", "worker")
    assert outcome.status == 0
    assert outcome.out == (
        """\
worker is stopped: stopped by an operator: disk swap

  since     2025-10-09 08:49:08 (4m12s ago)
  wanted    down; not ready; role manager
  rule      operator-hold; by alice (uid 1000); since 2025-10-09 08:49:08
  also      maintenance: no starts; since 2025-10-09 08:53:10
  last exit killed by SIGTERM
  probes    liveness failed: connection refused; 2 failures in a row; next in 4s
            startup ok; 1 success in a row
  next      look again in 12s (2025-10-09 08:53:32)
  log       /var/log/xce/worker.log
            three
            Traceback:
              File  �[31mx
            three
            @
  history   2025-10-09 08:53:02  command.received  verb=restart
            2025-10-09 08:53:03  component.exited  how=SIGTERM
            2025-10-09 08:53:04  component.probe_failed  probe=liveness
            2025-10-09 08:53:15  component.state_changed  new=state15
            2025-10-09 08:53:16  component.state_changed  new=state16
            2025-10-09 08:53:17  component.state_changed  new=state17
            2025-10-09 08:53:18  component.state_changed  new=state18
            2025-10-09 08:53:19  component.state_changed  new=state19
""".replace("@", "y" * 399 + "…")
    )


def test_why_says_a_sentence_once(service: Service, run: Run) -> None:
    """What the headline says is not said again as the rule's reason or as the last exit; a state is said in words."""
    how = "exited with status 1 after 0.2s"
    claim = {"rule": "backoff", "reason": how, "since_ns": NOW_NS - S, "by": None, "at": None}
    service.backend.reasons["worker"] = why_body(
        "worker", state="backoff", ready=False, rule="backoff", reason=how, last_exit=how, claims=[claim]
    )
    out = run("why", "worker").out
    assert out.startswith(f"worker is waiting to restart (backoff): {how}\n")
    assert out.count(how) == 1
    assert "  rule      backoff; since 2025-10-09 08:53:19\n" in out
    service.backend.reasons["worker"]["last_exit"] = f"stopped by the agent: {how}; exited with status 0"
    assert "  last exit stopped by the agent; exited with status 0\n" in run("why", "worker").out


def test_why_says_what_the_process_does(service: Service, run: Run) -> None:
    """The verdict and what it rests on have a line, unless all is well or the headline says it."""
    for verdict, detail, reason, shown in (
        ("slow", "it is late", "configured", "  verdict   slow: it is late\n"),
        ("slow", None, "configured", "  verdict   slow\n"),
        ("frozen", "it is stopped", "silent; frozen: it is stopped", None),
        ("ok", None, "configured", None),
    ):
        service.backend.reasons["worker"] = why_body("worker", verdict=verdict, verdict_detail=detail, reason=reason)
        out = run("why", "worker").out
        assert (shown in out) if shown else ("  verdict" not in out)


def test_why_with_an_empty_log(service: Service, run: Run) -> None:
    """A file without lines is named all the same."""
    service.backend.reasons["worker"] = why_body("worker", log="/var/log/xce/worker.log")
    assert "  log       /var/log/xce/worker.log\n" in run("why", "worker").out


def test_why_of_an_uneventful_component(run: Run) -> None:
    """Where nothing else is known, nothing else is claimed."""
    assert run("why", "worker").out == (
        """\
worker is running: the configuration wants it

  since     2025-10-09 08:51:50 (1m30s ago)
  wanted    up; ready; role manager
  rule      configured; since 2025-10-09 08:51:50
  next      nothing happens by itself
"""
    )


def test_nothing_from_the_agent_drives_the_terminal(service: Service, run: Run) -> None:
    """Control characters, bidirectional overrides and line ends in any field come out harmless."""
    evil = "\x1b[2J\x9b31m\u202egnp\rfake\nworker running"
    service.backend.body = status_body(
        component("worker", reason=evil, role=evil, next={"what": evil, "at_ns": None}),
        node={"name": evil, "roles": [evil], "config_error": evil},
        host={"state": "draining", "by": evil, "reason": evil},
        warnings=[evil],
        facts=[
            {"name": evil, "value": None, "authority": evil, "term": 1, "valid_until_ns": None, "age_ms": None},
        ],
    )
    service.backend.reasons["worker"] = why_body(
        "worker", reason=evil, last_exit=evil, history=[event(1, evil, x=evil)], log=evil, log_tail=[evil]
    )
    service.backend.result = CommandResult(ok=False, detail=evil, rule=evil)
    service.happen(event(1, evil, component=evil, at=evil))
    for arguments in (["status"], ["status", "--json"], ["why", "worker"], ["events"], ["stop", "worker"], ["undrain"]):
        outcome = run(*arguments)
        text = outcome.out + outcome.err
        assert text
        assert all(char.isprintable() or char == "\n" for char in text)
        assert not any(line.startswith("worker running") for line in text.splitlines())


def test_watch_redraws_at_each_change(service: Service) -> None:
    """In a pipe, --watch prints the table at each change, and Ctrl-C ends it properly."""
    with spawn("--socket", str(service.path), "status", "--watch", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("node-0042")
        service.backend.body = status_body(component("worker", reason="something new"))
        service.happen(event(1))
        for line in process.stdout:
            if "something new" in line:
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND_S) == 0


def test_watch_survives_the_agent(service: Service) -> None:
    """--watch says that the agent is gone and goes on when it is back; as JSON, one status a line."""
    with spawn("--socket", str(service.path), "status", "--watch", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("node-0042")
        service.on_loop(service.server.close)
        for line in process.stdout:
            if line.startswith("cannot reach the agent"):
                break
        service.on_loop(service.server.start)
        for line in process.stdout:
            if line.startswith("node-0042"):
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND_S) == 0
    with spawn("--socket", str(service.path), "status", "--watch", "--json", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == service.backend.body
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND_S) == 0


def test_status_starts_quickly() -> None:
    """What a command imports is what an operator waits for: nothing that `status` can do without."""
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop()); import node_manager.cli.nodectl as n; "
        "n.main(['--socket', '/nonexistent', 'status']); print(*sys.modules)"
    )
    # Without site (-S): what it imports is not the command's choice.
    package = str(Path(node_manager.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code, package], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        modules = set(process.communicate(timeout=BOUND_S)[0].split())
    assert "node_manager.cli.status_view" in modules
    heavy = {"asyncio", "dataclasses", "datetime", "h11", "http.client", "inspect", "pathlib", "pydantic", "shutil"}
    assert modules & (heavy | {"structlog", "typing", "urllib.parse", "yaml"}) == set()


def test_reload_of_a_component(service: Service, run: Run) -> None:
    """With a name, it is the component that is to read its configuration again."""
    assert run("reload", "worker").status == 0
    assert service.backend.reloads == []
    assert [(request.verb, request.component) for request in service.backend.requests] == [
        (Verb.RELOAD_COMPONENT, "worker")
    ]


def test_why_without_a_beginning(service: Service, run: Run) -> None:
    """A rule that has always held is shown without a time."""
    claim = {"rule": "configured", "reason": "configured", "since_ns": None, "by": None, "at": None}
    service.backend.reasons["worker"] = why_body("worker", claims=[claim])
    assert "configured: configured\n" in run("why", "worker").out


def test_why_shows_the_end_of_the_log(service: Service, run: Run, tmp_path: Path) -> None:
    """The command reads the file itself; what it may not read, or is no file, it leaves out."""
    log = tmp_path / "worker.log"
    log.write_text("".join(f"line {n}\n" for n in range(2000)) + "cannot bind: \x1b[31maddress in use\n")
    service.backend.reasons["worker"] = why_body("worker", log=str(log))
    out = run("why", "worker").out
    assert "line 1999" in out
    assert "cannot bind: " in out
    assert "\x1b" not in out
    assert "line 1990\n" not in out
    service.backend.reasons["worker"] = why_body("worker", log=str(tmp_path))
    assert run("why", "worker").status == 0
    service.backend.reasons["worker"] = why_body("worker", log=str(tmp_path / "missing"))
    assert run("why", "worker").status == 0
