"""The worker as a program: jobs that outlive it, drains, and the ways out of the cluster."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from node_manager.reference.jobs import Jobs
from node_manager.reference.journal import Journal
from node_manager.reference.loop import Loop
from tests.unit.reference.conftest import Bench, FakeAgent


class Site:
    """A leading controller and a worker that has joined it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.agent: FakeAgent = bench.agent()
        self.controller, self.address = bench.leader()
        self.worker = self.start_worker()
        self.joined()

    def start_worker(self) -> "subprocess.Popen[bytes]":
        return self.bench.start(
            "worker",
            agent=self.agent,
            XCE_REF_CONTROLLERS=f"127.0.0.1:1,{self.address}",
            XCE_REF_INSTANCE_ID="i-1",
        )

    def joined(self) -> None:
        self.bench.wait(lambda: self.host().get("connected") is True, self.worker)
        self.bench.wait(lambda: self.agent.said.get("READY") == "1", self.worker)

    def host(self) -> dict[str, object]:
        hosts = self.bench.ask(self.address, op="hosts").get("hosts", [])
        return dict(hosts[0]) if hosts else {}

    def order(self, verb: str) -> None:
        assert self.bench.ask(self.address, op="order", verb=verb, host="h1")["ok"] is True

    def run_jobs(self, how_many: int) -> list[int]:
        """Start long jobs; their pids."""
        self.bench.ask(self.address, op="submit", host="h1", seconds=600, count=how_many, ignore_term=True)
        self.bench.wait(lambda: self.agent.said.get("JOBS") == str(how_many), self.worker)
        pids = self.bench.job_pids()
        assert len(pids) == how_many
        return pids

    def states(self) -> list[str]:
        return [str(job["state"]) for job in self.bench.ask(self.address, op="jobs")["jobs"]]

    def says(self, state: str) -> None:
        self.bench.wait(lambda: self.agent.said.get("HOST_STATE") == state, self.worker)

    def beaten(self, times: int) -> None:
        """The worker has gone through its loop and told the agent, more than so many times."""
        heard = len(self.agent.history)
        self.bench.wait(lambda: len(self.agent.history) > heard + times, self.worker)

    def epoch(self) -> int:
        return int(self.agent.said["EPOCH"])


@pytest.fixture
def site(bench: Bench) -> Site:
    return Site(bench)


def test_it_joins_and_states_the_controllers_epoch(site: Site) -> None:
    """A joined worker is ready and states its host active under the epoch it was given."""
    site.says("active")
    assert site.epoch() == site.host()["epoch"] == 1
    assert site.agent.said["JOBS"] == "0"


def test_jobs_outlive_a_killed_worker_and_are_taken_over(site: Site) -> None:
    """After kill -9 the same job processes run, the next worker counts them, and their end is reported."""
    pids = site.run_jobs(2)
    site.worker.kill()
    site.bench.ended(site.worker)
    assert sorted(pids) == sorted(site.bench.job_pids())
    site.agent.said.clear()
    site.worker = site.start_worker()
    site.joined()
    assert site.agent.said["JOBS"] == "2"
    assert site.states() == ["running", "running"]
    os.kill(pids[0], signal.SIGKILL)
    site.bench.wait(lambda: sorted(site.states()) == ["ended", "running"], site.worker)
    assert site.bench.job_pids() == [pids[1]]


def test_jobs_know_nothing_of_the_agent(site: Site) -> None:
    """A job has its own session and no XCE_* or NOTIFY_SOCKET in its environment."""
    (pid,) = site.run_jobs(1)
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"XCE_" not in environ
    assert b"NOTIFY_SOCKET" not in environ
    assert os.getsid(pid) == pid


def test_sigterm_leaves_the_jobs(site: Site) -> None:
    """Told to stop, the worker says so and ends with 0; its jobs run on."""
    pids = site.run_jobs(1)
    site.worker.terminate()
    assert site.bench.ended(site.worker) == 0
    assert site.agent.said["STOPPING"] == "1"
    assert site.bench.job_pids() == pids


def test_a_job_that_ended_while_no_worker_ran_is_not_run_again(site: Site) -> None:
    """The controller learns its end at the next join; nothing starts twice."""
    (pid,) = site.run_jobs(1)
    site.worker.kill()
    site.bench.ended(site.worker)
    os.kill(pid, signal.SIGKILL)
    site.agent.said.clear()
    site.worker = site.start_worker()
    site.joined()
    site.bench.wait(lambda: site.states() == ["ended"], site.worker)
    assert site.bench.job_pids() == []


def test_a_drain_ordered_on_the_host(site: Site) -> None:
    """DRAIN=1: draining under a higher epoch, no new jobs, drained when the last one has ended, and alive after it."""
    (pid,) = site.run_jobs(1)
    site.agent.tell(DRAIN="1")
    site.says("draining")
    assert site.epoch() == 2
    assert (site.host()["state"], site.host()["by"]) == ("draining", "host")
    site.bench.ask(site.address, op="submit", host="h1", seconds=600, count=1, ignore_term=True)
    assert site.states() == ["queued", "running"]
    assert "drained" not in {said.get("HOST_STATE") for said in site.agent.history}
    os.kill(pid, signal.SIGKILL)
    site.says("drained")
    assert site.epoch() == 3
    assert site.host()["state"] == "drained"
    site.agent.tell(DRAIN="0", UNDRAIN="1", EPOCH=str(site.epoch()))
    site.says("active")
    assert site.epoch() == 4
    assert site.host()["state"] == "active"


def test_a_drain_ordered_at_the_controller(site: Site) -> None:
    """The order reaches the worker at once, with its deadline; an empty host is drained at once; undrain ends it."""
    (pid,) = site.run_jobs(1)
    site.bench.ask(site.address, op="order", verb="drain", host="h1", deadline_s=600)
    site.says("draining")
    assert "DRAIN_DEADLINE_NS" in site.agent.said
    os.kill(pid, signal.SIGKILL)
    site.says("drained")
    site.order("undrain")
    site.says("active")
    assert site.epoch() == 4


def test_the_agents_echo_of_a_drain_is_not_an_operators_drain(site: Site) -> None:
    """The controller's drain comes back as DRAIN=1: taken back there, it is over, unless the agent insists."""
    site.order("drain")
    site.says("drained")
    site.agent.takes = False
    site.agent.tell(DRAIN="1", DRAIN_DEADLINE_NS="0")
    site.order("undrain")
    site.says("active")
    epoch = site.epoch()
    site.agent.tell(BEAT="3")
    site.beaten(2)
    assert site.host()["state"] == "active"
    site.agent.tell(SEEN_EPOCH=str(epoch))  # the agent has taken that the host is active: this is an operator's
    site.says("drained")
    assert site.host()["by"] == "host"
    assert site.epoch() > epoch


def test_a_job_that_is_refused_waits_in_the_queue(site: Site) -> None:
    """The host drains by its agent's word only: what is sent to it comes back, and is not offered without end."""
    site.agent.tell(BEAT="1")
    site.order("drain")
    site.says("drained")
    site.agent.takes = False
    site.agent.tell(DRAIN="1", BEAT="2")
    site.order("undrain")
    site.says("active")
    site.bench.ask(site.address, op="submit", host="h1", seconds=600, count=1, ignore_term=True)
    site.bench.wait(lambda: site.states() == ["queued"], site.worker)
    assert site.agent.said["JOBS"] == "0"


def test_no_job_is_begun_while_the_node_is_being_stopped(site: Site) -> None:
    """Told before its SIGTERM, the worker takes no job any more; its host's state stays what it is."""
    (pid,) = site.run_jobs(1)
    site.agent.tell(NODE_STOPPING="1")
    site.beaten(2)
    site.bench.ask(site.address, op="submit", host="h1", seconds=600, count=1, ignore_term=True)
    site.bench.wait(lambda: sorted(site.states()) == ["queued", "running"], site.worker)
    assert site.agent.said["JOBS"] == "1"
    assert site.host()["state"] == "active"
    site.worker.terminate()
    assert site.bench.ended(site.worker) == 0
    assert site.bench.job_pids() == [pid]


def test_a_drain_without_a_controller_is_complete_all_the_same(site: Site) -> None:
    """With no controller to ask, the worker says how far the drain has come under the last epoch it knows."""
    (pid,) = site.run_jobs(1)
    site.controller.kill()
    site.bench.wait(lambda: site.agent.said.get("READY") == "0", site.worker)
    site.agent.tell(DRAIN="1")
    site.says("draining")
    os.kill(pid, signal.SIGKILL)
    site.says("drained")
    assert site.epoch() == 1


def test_decommissioned_on_the_host(site: Site) -> None:
    """DECOMMISSIONED=1: reported, stated under the controller's epoch, 0 at SIGTERM; a rejoin is refused with 79."""
    pids = site.run_jobs(2)
    site.agent.tell(DECOMMISSIONED="1")
    site.says("decommissioned")
    assert site.epoch() == site.host()["epoch"] == 2
    assert site.host()["by"] == "host"
    site.worker.terminate()
    assert site.bench.ended(site.worker) == 0
    assert sorted(site.bench.job_pids()) == sorted(pids)
    site.agent.said.clear()
    site.agent.tell(DECOMMISSIONED="0")
    worker = site.start_worker()
    assert site.bench.ended(worker) == 79
    assert (site.agent.said["HOST_STATE"], site.epoch()) == ("decommissioned", 2)


def test_what_an_operator_released_on_the_host_may_rejoin(site: Site) -> None:
    """The agent says UNDRAIN=1 with the epoch that was released: the controller accepts, under a higher epoch."""
    site.agent.tell(DECOMMISSIONED="1")
    site.says("decommissioned")
    assert site.bench.ended(site.worker) == 79
    site.agent.tell(DECOMMISSIONED="0", UNDRAIN="1", EPOCH="2")
    site.worker = site.start_worker()
    site.says("active")
    assert site.epoch() == 3


def test_decommissioned_at_the_controller(site: Site) -> None:
    """The worker states it, ends with 79 where nobody stops it, and the host cannot release it by itself."""
    site.order("decommission")
    site.says("decommissioned")
    assert site.bench.ended(site.worker) == 79
    site.agent.said.clear()
    site.agent.tell(UNDRAIN="1", EPOCH="2")
    assert site.bench.ended(site.start_worker()) == 79
    assert site.agent.said["HOST_STATE"] == "decommissioned"
    assert site.epoch() > 2
    site.order("recommission")
    site.worker = site.start_worker()
    site.says("active")


def test_the_directive_that_comes_with_the_sigterm_is_reported(site: Site) -> None:
    """The agent decommissions and stops at once: the controller still learns it."""
    site.agent.tell(DECOMMISSIONED="1")
    site.worker.terminate()
    assert site.bench.ended(site.worker) == 0
    assert (site.host()["state"], site.host()["by"]) == ("decommissioned", "host")


def test_a_lost_controller_changes_nothing_on_the_host(site: Site) -> None:
    """Without a controller worker and jobs run on; when it is back, the worker rejoins with what it runs."""
    pids = site.run_jobs(1)
    site.controller.kill()
    site.bench.wait(lambda: site.agent.said.get("READY") == "0", site.worker)
    assert site.bench.job_pids() == pids
    site.controller, address = site.bench.leader(XCE_REF_LISTEN=str(site.address))
    assert address == site.address
    site.joined()
    assert site.states() == ["running"]
    assert {said["HOST_STATE"] for said in site.agent.history if "HOST_STATE" in said} == {"active"}


def test_it_waits_for_the_agents_first_word(bench: Bench) -> None:
    """A host that is out does not join first and leave then."""
    _controller, address = bench.leader()
    agent = bench.agent()
    agent.tell(DECOMMISSIONED="1")
    worker = bench.start("worker", agent=agent, XCE_REF_CONTROLLERS=str(address))
    assert bench.ended(worker) == 79
    assert agent.said.get("HOST_STATE") == "decommissioned"


class Ends:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, job: str, outcome: str) -> None:
        self.seen.append((job, outcome))


@pytest.mark.parametrize("damage", ["intent", "torn", "other boot", "stranger"])
def test_jobs_are_found_or_given_up_never_mistaken(directory: Path, damage: str) -> None:
    """A torn file, or one that lacks the pid, leads to the marker; another boot's job, or a reused pid, has ended."""
    loop, ends, journal = Loop(), Ends(), Journal("test")
    first = Jobs(loop, directory, journal, on_ended=ends)
    assert first.start("job-1", 600) == ""
    path = directory / "worker-jobs.json"
    value = json.loads(path.read_text())
    pid = value["jobs"][0]["pid"]
    first.close()
    try:
        match damage:
            case "intent":
                value["jobs"][0]["pid"] = None
            case "other boot":
                value["boot_id"] = "another"
            case "stranger":
                value["jobs"][0]["start_ticks"] -= 1
        path.write_text("{torn" if damage == "torn" else json.dumps(value))
        second = Jobs(loop, directory, journal, on_ended=ends)
        second.take_over()
        if damage in {"intent", "torn"}:
            assert second.living == ("job-1",)
            assert second.start("job-1", 600) == ""
            assert json.loads(path.read_text())["jobs"][0]["pid"] == pid
        else:
            assert second.living == ()
            assert list(second.ended) == ["job-1"]
        second.close()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        loop.close()


def test_ended_jobs_are_kept_until_they_are_acknowledged(directory: Path) -> None:
    """A job's end survives the worker that saw it, and a job that has ended is not started again."""
    loop, ends = Loop(), Ends()
    jobs = Jobs(loop, directory, Journal("test"), on_ended=ends)
    jobs.start("job-1", 0)
    for _ in range(2000):
        if ends.seen:
            break
        loop.turn(0.02)
    assert ends.seen == [("job-1", "exit 0")]
    jobs.close()
    again = Jobs(loop, directory, Journal("test"), on_ended=ends)
    again.take_over()
    assert again.ended == {"job-1": "exit 0"}
    assert again.start("job-1", 600) == ""
    assert again.living == ()
    again.acknowledged("job-1")
    assert json.loads((directory / "worker-jobs.json").read_text())["ended"] == {}
    again.close()
    loop.close()


def test_a_job_that_cannot_be_recorded_is_not_started(directory: Path) -> None:
    """Where its entry cannot be written, a successor would not find the job: it is refused with the reason."""
    loop, ends = Loop(), Ends()
    jobs = Jobs(loop, directory / "absent", Journal("test"), on_ended=ends)
    assert "No such file" in jobs.start("job-1", 600)
    assert jobs.living == ()
    loop.close()
