"""The leased programs, scheduler and provisioner, and the keeper that holds a lease for the latter."""

import json
import time

from tests.unit.reference.conftest import Bench, in_seconds


def test_the_scheduler_registers_and_assigns(bench: Bench) -> None:
    """Under the controller's term it registers, is ready, and assigns what a worker then runs."""
    agent = bench.agent()
    controller, address = bench.leader()
    worker = bench.start("worker", XCE_REF_CONTROLLERS=str(address))
    scheduler = bench.start(
        "scheduler",
        agent=agent,
        XCE_TERM="1",
        XCE_LEASE_VALID_UNTIL_NS=in_seconds(300),
        XCE_REF_CONTROLLERS=f"127.0.0.1:1,{address}",
    )
    bench.wait(lambda: agent.said.get("READY") == "1", scheduler)
    bench.wait(lambda: bench.ask(address, op="submit", host="h1", seconds=0.1).get("ok") is True, worker)
    bench.wait(lambda: bench.ask(address, op="jobs")["jobs"][0]["state"] == "ended", controller, worker, scheduler)
    job = bench.ask(address, op="jobs")["jobs"][0]
    assert (job["term"], job["outcome"]) == (1, "exit 0")
    scheduler.terminate()
    assert bench.ended(scheduler) == 0


def test_the_scheduler_ends_when_a_newer_term_leads(bench: Bench) -> None:
    """Refused under its old term it does not try again: it ends with its own status."""
    controller, address = bench.leader()
    environ = {"XCE_REF_CONTROLLERS": str(address), "XCE_LEASE_VALID_UNTIL_NS": in_seconds(300)}
    scheduler = bench.start("scheduler", agent=None, XCE_TERM="1", **environ)
    bench.wait(lambda: bench.ask(address, op="status").get("scheduler"), scheduler)
    bench.ask(address, op="standby")
    bench.ask(address, op="primary")
    bench.wait(lambda: bench.ask(address, op="status").get("stance") == "primary", controller)
    assert bench.ended(scheduler) == 75
    assert "refused" in bench.logs()


def test_the_scheduler_fences_itself_without_a_controller_or_an_agent(bench: Bench) -> None:
    """With nobody to stop it, it ends when the validity it was started with has passed; idle, it has beaten."""
    agent = bench.agent()
    until_ns = int(in_seconds(2.5))
    scheduler = bench.start(
        "scheduler",
        agent=agent,
        XCE_TERM="1",
        XCE_LEASE_VALID_UNTIL_NS=str(until_ns),
        XCE_REF_CONTROLLERS="127.0.0.1:1",
        XCE_REF_TRACE="1",
    )
    assert bench.ended(scheduler) == 75
    assert "validity of controller.primary has passed" in bench.logs()
    assert int(agent.said["BEAT"]) >= 1
    lines = [json.loads(line) for line in (bench.directory / "scheduler.log").read_text().splitlines()]
    assert lines
    assert all(line["term"] == 1 and line["boottime_ns"] < until_ns for line in lines)
    assert time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= until_ns


def test_the_scheduler_heeds_renewals_and_the_end_of_the_fact(bench: Bench) -> None:
    """The agent's word moves the end of its validity; the fact turning false ends it."""
    agent = bench.agent()
    first_ns = int(in_seconds(4))
    agent.tell(
        FACT__controller__primary="true",
        FACT__controller__primary__TERM="1",
        FACT__controller__primary__VALID_UNTIL_NS=in_seconds(300),
    )
    scheduler = bench.start(
        "scheduler",
        agent=agent,
        XCE_TERM="1",
        XCE_LEASE_VALID_UNTIL_NS=str(first_ns),
        XCE_REF_CONTROLLERS="127.0.0.1:1",
    )
    bench.wait(lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) > first_ns + 5 * 10**8, scheduler)
    agent.tell(FACT__controller__primary="false")
    assert bench.ended(scheduler) == 75
    assert "no longer true" in bench.logs()


def test_leased_programs_do_not_start_without_their_lease(bench: Bench) -> None:
    """Started by hand they say what is missing, with the status of a wrong configuration."""
    for name in ("scheduler", "provisioner"):
        assert bench.ended(bench.start(name)) == 78
    assert "cannot start without XCE_TERM" in bench.logs()


def test_the_keeper_holds_its_lease_and_the_provisioner_ends_with_it(bench: Bench) -> None:
    """The keeper states the lease with token and validity; a second one waits; the dependant ends by itself."""
    first, second = bench.agent(), bench.agent()
    lease = {"XCE_REF_LEASE_S": "3", "XCE_REF_RENEW_S": "0.3"}
    keeper = bench.start("lease-keeper", "provisioner", agent=first, **lease)
    bench.wait(lambda: first.said.get("LEASE.provisioner") == "held", keeper)
    assert int(first.said["LEASE.provisioner.TOKEN"]) >= 1
    other = bench.start("lease-keeper", "provisioner", agent=second, XCE_REF_HOLDER="k2", **lease)
    bench.wait(lambda: second.said.get("LEASE.provisioner") == "lost", keeper, other)
    provisioner = bench.start(
        "provisioner", XCE_TERM="1", XCE_LEASE_VALID_UNTIL_NS=first.said["LEASE.provisioner.VALID_UNTIL_NS"]
    )
    keeper.terminate()
    assert bench.ended(keeper) == 0
    assert first.said["LEASE.provisioner"] == "lost"
    bench.wait(lambda: second.said.get("LEASE.provisioner") == "held", other)
    assert int(second.said["LEASE.provisioner.TOKEN"]) > int(first.history[-1].get("LEASE.provisioner.TOKEN", "0"))
    acquired_ns = int(second.said["LEASE.provisioner.VALID_UNTIL_NS"]) - 3 * 10**9
    stated = [
        int(said["LEASE.provisioner.VALID_UNTIL_NS"]) for said in first.history if "LEASE.provisioner.TOKEN" in said
    ]
    assert acquired_ns + 3_000_000 >= max(stated)
    assert bench.ended(provisioner) == 75
