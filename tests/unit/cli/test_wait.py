import subprocess
from pathlib import Path

import pytest

from tests.unit.api.fake import BOUND_S, NOW_NS, S, Service, component, event, status_body
from tests.unit.cli.conftest import Run, spawn

UP = status_body(component("controller"), component("worker"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("ready",),
        ("ready", "worker"),
        ("running",),
        ("running", "worker"),
        ("state=running", "worker"),
    ],
)
def test_what_is_so_already(run: Run, arguments: tuple[str, ...]) -> None:
    """A goal that is reached is answered at once with 0 and no words."""
    outcome = run("wait", "--timeout", "0", "--for", *arguments)
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (("stopped",), "node is not stopped after 0s: controller is running (the configuration wants it)"),
        (
            ("stopped", "worker"),
            "worker is not stopped after 0s: worker is waiting to restart (backoff), not ready (exited)",
        ),
        (
            ("running", "worker"),
            "worker is not running after 0s: worker is waiting to restart (backoff), not ready (exited)",
        ),
        (("running",), "node is not running after 0s: worker is waiting to restart (backoff), not ready (exited)"),
        (("ready",), "node is not ready after 0s: configuration: roles: unknown; worker is waiting to restart"),
        (("ready", "worker"), "worker is not ready after 0s"),
        (("state=stopping", "worker"), "worker is not state=stopping after 0s: worker is waiting to restart"),
        (
            ("drained",),
            "node is not drained after 0s: host is draining, 1 job left, deadline 2025-10-09 09:03:20 (in 10m00s)",
        ),
        (("decommissioned",), "host is draining"),
    ],
)
def test_what_is_still_missing(service: Service, run: Run, arguments: tuple[str, ...], missing: str) -> None:
    """A wait in vain ends with 1 and says what stands in the way."""
    service.backend.body = status_body(
        component("controller"),
        component("worker", state="backoff", ready=False, reason="exited"),
        component("probe", state="stopped", desired="down", ready=None, reason=""),
        node={"ready": False, "config_error": "roles: unknown"},
        host={"state": "draining", "jobs_left": 1, "deadline_ns": NOW_NS + 600 * S},
    )
    outcome = run("wait", "--timeout", "0", "--for", *arguments)
    assert (outcome.status, outcome.out) == (1, "")
    assert missing in outcome.err
    outcome = run("wait", "--timeout", "0", "--json", "--for", *arguments)
    assert outcome.status == 1
    assert outcome.json["ok"] is False
    assert outcome.json["missing"]


def test_a_deadline_that_has_passed_says_so(service: Service, run: Run) -> None:
    """Who waits for a drain learns that its time is over."""
    service.backend.body = status_body(host={"state": "draining", "deadline_ns": NOW_NS - 60 * S})
    assert "deadline 2025-10-09 08:52:20 (1m00s ago)" in run("wait", "--timeout", "0", "--for", "drained").err


def test_waiting_for_a_wrong_name_ends_at_once(run: Run) -> None:
    """An agent that has its configuration knows that no such component will come: nobody waits for a typing error."""
    outcome = run("wait", "--for", "ready", "--timeout", "1h", "nosuch")
    assert (outcome.status, outcome.out) == (1, "")
    assert outcome.err == "xce-nodectl: cannot wait: no component is called 'nosuch'; there are: controller, worker\n"
    outcome = run("wait", "--for", "ready", "--timeout", "1h", "--json", "nosuch")
    assert outcome.status == 1
    assert outcome.json == {"ok": False, "missing": ["no component is called 'nosuch'; there are: controller, worker"]}


def test_a_name_may_still_come_with_the_configuration(service: Service, run: Run) -> None:
    """Before there is a configuration no name is wrong."""
    service.backend.body = status_body(node={"state": "waiting-config", "ready": False})
    outcome = run("wait", "--for", "ready", "--timeout", "0", "worker")
    assert outcome.err == "xce-nodectl: worker is not ready after 0s: node is waiting-config\n"


@pytest.mark.parametrize("state", ["drained", "decommissioned"])
def test_decommissioned_is_past_drained(service: Service, run: Run, state: str) -> None:
    """Who waits for a drain is not left waiting on a host that went further."""
    service.backend.body = status_body(host={"state": state})
    assert run("wait", "--timeout", "0", "--for", "drained").status == 0


@pytest.mark.parametrize("state", ["stopped", "exited", "failed"])
def test_stopped_means_that_no_process_is_left(service: Service, run: Run, state: str) -> None:
    """Every state without a process that stays so counts as stopped."""
    service.backend.body = status_body(component("worker", state=state))
    assert run("wait", "--timeout", "0", "--for", "stopped").status == 0


def test_agent_that_waits_for_its_configuration_runs_nothing(service: Service, run: Run) -> None:
    """No components is not the same as all of them running."""
    service.backend.body = status_body(node={"state": "waiting-config", "ready": False})
    outcome = run("wait", "--timeout", "0", "--for", "running")
    assert outcome.status == 1
    assert "node is waiting-config" in outcome.err
    assert "node is waiting-config" in run("wait", "--timeout", "0", "--for", "ready").err


def test_wait_ends_when_it_becomes_so(service: Service) -> None:
    """A change that happens during the wait ends it."""
    service.backend.body = status_body(component("worker", ready=False), node={"ready": False})
    with spawn("--socket", str(service.path), "wait", "--for", "ready") as process:
        service.until(lambda: len(service.backend.wakes) == 1)
        service.backend.body = UP
        service.happen(event(1))
        assert process.wait(BOUND_S) == 0


def test_wait_for_an_agent_that_is_only_starting(directory: Path) -> None:
    """The agent's own start is waited for too."""
    path = directory / "status.sock"
    with spawn("--socket", str(path), "wait", "--for", "ready", stderr=subprocess.PIPE) as process:
        with Service(directory) as service:
            assert process.wait(BOUND_S) == 0
            assert service.backend.status_calls > 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_agent_that_never_comes(directory: Path) -> None:
    """A wait for an agent that does not start ends with 1 and says so."""
    path = directory / "status.sock"
    with spawn(
        "--socket", str(path), "wait", "--for", "ready", "--timeout", "300ms", stderr=subprocess.PIPE
    ) as process:
        assert process.wait(BOUND_S) == 1
        assert process.stderr is not None
        assert (
            f"node is not ready after 0.3s: cannot reach the agent: there is no socket {path}" in process.stderr.read()
        )
