"""The scheduler follows the primary controller, and two schedulers never live at once."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.integration.host import Host, free_port, wait_until


def test_standby_stops_the_scheduler_and_primary_starts_it_under_a_new_term(host: Host) -> None:
    """A controller that steps down loses its scheduler at once; primary again it gets one under a newer term."""
    host.up()
    first = host.status()["facts"][0]["term"]
    host.reference("standby")
    host.wait_for("scheduler", state="stopped", desired="down", rule="condition")
    assert "controller.primary is false" in host.component("scheduler")["reason"]
    host.reference("primary")
    host.wait_for("scheduler", state="running", ready=True)
    assert host.status()["facts"][0]["term"] > first
    _assert_terms_never_interleave([host])


def test_a_controller_that_comes_back_inside_its_lease_leaves_the_scheduler_alone(
    make_host: Callable[..., Host],
) -> None:
    """Killed and restarted inside the lease, the controller is primary again under the same term."""
    host = make_host()
    host.up()
    before, term = host.pids(), host.status()["facts"][0]["term"]
    assert before["controller"] is not None
    os.kill(before["controller"], signal.SIGKILL)
    wait_until(lambda: host.pids()["controller"] not in {before["controller"], None}, "a new controller")
    host.wait_for("controller", ready=True)
    wait_until(lambda: host.status()["facts"][0]["age_ms"] < 1000, "the new controller states its lease")
    assert host.pids()["scheduler"] == before["scheduler"]
    assert host.status()["facts"][0]["term"] == term


def test_an_agent_that_comes_back_inside_the_lease_leaves_the_scheduler_alone(make_host: Callable[..., Host]) -> None:
    """The lease is in the runtime record: an adopted scheduler is not stopped for the agent's restart."""
    host = make_host()
    host.up()
    before = host.pids()
    host.kill_agent()
    host.up()
    assert host.pids() == before
    assert host.status()["facts"][0]["value"] is True


def test_a_stopped_controller_takes_its_scheduler_along_before_the_lease_ends(make_host: Callable[..., Host]) -> None:
    """SIGSTOP of the controller beyond its lease: the scheduler is dead before the lease that it ran under ends."""
    host = make_host(lease_s=5.0)
    host.up()
    pid = host.pids()["controller"]
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        host.wait_for("scheduler", state="stopped", pid=None)
        status = host.status()
        fact = status["facts"][0]
        last_sign_of_life = max(at for _term, at in host.trace())
        assert last_sign_of_life < fact["valid_until_ns"]
        stopped = next(item for item in status["components"] if item["name"] == "scheduler")
        assert stopped["since_ns"] < fact["valid_until_ns"]
        assert "not renewed in time" in stopped["reason"]
        # The controller is silent, but it is not killed for that: its liveness only reports.
        assert host.pids()["controller"] == pid
    finally:
        os.kill(pid, signal.SIGCONT)
    host.wait_for("scheduler", state="running", ready=True)
    _assert_terms_never_interleave([host])


def test_a_lease_shorter_than_the_stop_budget_is_refused(make_host: Callable[..., Host]) -> None:
    """Under a lease that leaves no time to stop, the scheduler is not started, and says why."""
    host = make_host(lease_s=3.0, components={"scheduler": {"stop": {"timeout_s": 4, "kill_timeout_s": 1}}})
    host.start()
    host.wait_for("controller", ready=True)
    found = host.wait_for("scheduler", state="stopped", rule="condition")
    wait_until(lambda: "too short for the stop budget" in host.component("scheduler")["reason"], str(found))


def test_two_controllers_never_have_two_schedulers(make_host: Callable[..., Host], place: Path) -> None:
    """A graceful stop of the primary passes the lead on; the two schedulers' signs of life never interleave."""
    lease = place / "controller.lease"
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    hosts = [
        make_host(
            name,
            roles=("manager",),
            lease=lease,
            lease_s=5.0,
            controllers=addresses,
            instance_id=f"i-{name}",
            components={
                "controller": {
                    "environment": {"XCE_REF_LISTEN": address},
                    "probes": {"readiness": {"tcp": {"port": int(address.rpartition(":")[2])}}},
                }
            },
        )
        for name, address in zip(("m1", "m2"), addresses, strict=True)
    ]
    for host in hosts:
        host.start()
    for _round in range(2):
        primary = wait_until(lambda: _primary(hosts), "one host is primary and has a scheduler")
        assert primary is not None
        assert primary.stop() == 0
        assert primary.processes() == []
        other = next(host for host in hosts if host is not primary)
        other.wait_for("scheduler", state="running", ready=True)
        primary.start()
        primary.wait_for("controller", ready=True)
    _assert_terms_never_interleave(hosts)


def test_the_provisioner_runs_under_the_lease_of_its_keeper(make_host: Callable[..., Host]) -> None:
    """The keeper states `lease.provisioner` with its token; a keeper that is stopped takes the provisioner along."""
    host = make_host(roles=("provisioner",))
    host.up()
    fact = next(item for item in host.status()["facts"] if item["name"] == "lease.provisioner")
    assert fact["value"] is True
    assert fact["term"] >= 1
    keeper = fact["authority"]
    host.ctl("stop", keeper)
    host.wait_for("provisioner", state="stopped", rule="condition")
    host.ctl("start", keeper)
    host.wait_for("provisioner", state="running", ready=True)


def _primary(hosts: list[Host]) -> Host | None:
    for host in hosts:
        if host.ctl("status", ok=None) and host.socket.exists():
            scheduler = host.component("scheduler")
            if scheduler["state"] == "running" and scheduler["ready"]:
                return host
    return None


def _assert_terms_never_interleave(hosts: list[Host]) -> None:
    """Order all signs of life by time: a term, once followed by a newer one, never shows again."""
    signs = sorted((at, term) for host in hosts for term, at in host.trace())
    assert signs, "the schedulers left a trace"
    terms = [term for _at, term in signs]
    assert terms == sorted(terms)
