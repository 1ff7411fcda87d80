"""What the components of a simulated cluster do: controllers that elect, schedulers, workers with jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from node_manager.core.events import Beat, ExitStatus, HostState, Leadership
from tests.simulation.world import NS_PER_MS, NS_PER_S, Timer

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.processes import Process

BEAT_NS = 5 * NS_PER_S
"""Interval of the beats, which a component chooses itself: five seconds keep a simulated hour short."""
RENEW_NS = 5 * NS_PER_S
CLOCK_RATE_BOUND = 0.001
"""rho: what the authorities allow for the difference of two clocks' rates."""


class Component:
    """What all of them do: start up, say hello, beat, end on SIGTERM in their own time."""

    ends_for_good = False
    """Whether it may end with a status that its role file calls final."""

    def __init__(self, process: Process, cluster: Cluster) -> None:
        self.process = process
        self.cluster = cluster
        self.rng = cluster.world.rng(f"{process.host.name}/{process.component}")
        self.ready = False
        self.beats = 0
        self._timer: Timer | None = None

    def start(self) -> None:
        fate = self.rng.random()
        if fate < self.cluster.faults.crash_at_start or self.process.host.crash_loop:
            self.process.later(self.rng.randrange(200 * NS_PER_MS), self.crash)
            return
        fate -= self.cluster.faults.crash_at_start
        if fate < self.cluster.faults.hang_at_start:
            self.hang()
            return
        if fate < self.cluster.faults.hang_at_start + self.cluster.faults.end_for_good and self.ends_for_good:
            self.process.later(self.rng.randrange(200 * NS_PER_MS), lambda: self.end(78))
            return
        self.process.later(self.rng.randrange(1, 800 * NS_PER_MS), self._started)

    def _started(self) -> None:
        if not self.process.hangs:
            self.begin()

    def begin(self) -> None:
        self.ready = True
        self.say(hello=True)
        self.beat()

    def beat(self) -> None:
        self.beats += 1
        self.say()
        self._timer = self.process.later(BEAT_NS, self.beat)

    def say(self, *, hello: bool = False) -> None:
        """State everything: levels, not events."""
        process = self.process
        if self.ready:
            process.host.deliver(process, self.state(hello=hello))

    def state(self, *, hello: bool) -> Beat:
        process = self.process
        assert process.component is not None
        return Beat(
            component=process.component,
            generation=process.generation,
            hello=hello,
            interval_ns=BEAT_NS if hello else None,
            beat=self.beats,
            ready=True,
        )

    def agent_is_back(self) -> None:
        self.say(hello=True)

    def flood(self, records: int) -> None:
        """Say the same far too often."""
        for _ in range(records):
            self.say()

    def told(self, levels: dict[str, str]) -> None:
        """Take directives."""

    def hang(self) -> None:
        """Do nothing any more, and say nothing."""
        if not self.process.hangs:
            self.process.hangs, self.ready = True, False
            self.cluster.invariants.hangs(self.process)

    def finish(self) -> None:
        """End with a status that the role file calls final, where there is one."""
        if self.ends_for_good:
            self.end(78)

    def step_down(self) -> None:
        """Only a controller leads."""

    def terminate(self) -> None:
        fate = self.rng.random()
        if self.process.hangs or fate < self.cluster.faults.ignore_term:
            return
        slow = fate < self.cluster.faults.ignore_term + self.cluster.faults.slow_term
        bound_ns = 12 * NS_PER_S if slow else 300 * NS_PER_MS
        self.process.later(self.rng.randrange(1, bound_ns), lambda: self.end(0))

    def crash(self) -> None:
        self.process.die(ExitStatus(signal=11))

    def end(self, code: int) -> None:
        self.process.die(ExitStatus(code=code))


class Controller(Component):
    """Elects through the lease store and states what DESIGN 5 lets it state."""

    def __init__(self, process: Process, cluster: Cluster) -> None:
        super().__init__(process, cluster)
        self.term = 0
        self.valid_until_ns = 0
        self.has_read = False
        self.leads = False
        self.stepped_down = False

    def begin(self) -> None:
        super().begin()
        self.renew()

    def renew(self) -> None:
        """Ask the store; both ways through the network, which may lose or delay."""
        asked_ns = self.process.host.clock()
        name = self.process.host.name
        if not self.stepped_down:
            self.cluster.network(
                name,
                "store",
                lambda: self.cluster.ask_store(name, lambda g: self.process.run(lambda: self.heard(asked_ns, g))),
            )
        self.process.later(RENEW_NS + self.rng.randrange(200 * NS_PER_MS), self.renew)
        self.look_at_clock()

    def heard(self, asked_ns: int, grant: object) -> None:
        granted, term = grant.granted, grant.term  # type: ignore[attr-defined]
        if self.stepped_down or term < self.term:
            return
        self.has_read = True
        self.term = term
        if granted:
            ttl_ns = int(self.cluster.store.ttl_ns * (1 - 2 * CLOCK_RATE_BOUND))
            self.valid_until_ns = max(self.valid_until_ns, asked_ns + ttl_ns)
            self.leads = self.process.host.clock() < self.valid_until_ns
        else:
            self.leads = False
        self.say()

    def look_at_clock(self) -> None:
        if self.leads and self.process.host.clock() >= self.valid_until_ns:
            self.leads = False
            self.say()

    def step_down(self) -> None:
        """Say standby and stop renewing; nobody waits for anybody."""
        self.stepped_down, self.leads = True, False
        self.say()
        self.process.later(30 * NS_PER_S, self.stand)

    def stand(self) -> None:
        self.stepped_down = False

    def state(self, *, hello: bool) -> Beat:
        beat = super().state(hello=hello)
        if not self.has_read:
            return beat
        leads = self.leads and self.process.host.clock() < self.valid_until_ns
        return Beat(
            component=beat.component,
            generation=beat.generation,
            hello=beat.hello,
            interval_ns=beat.interval_ns,
            beat=beat.beat,
            ready=True,
            leadership=Leadership.PRIMARY if leads else Leadership.STANDBY,
            term=self.term,
            valid_until_ns=self.valid_until_ns if leads else None,
        )


class Scheduler(Component):
    """Lives. It does not fence itself here: the agent and the fuse must be enough."""


class Worker(Component):
    """Joins the cluster, runs jobs, drains, leaves."""

    ends_for_good = True

    def __init__(self, process: Process, cluster: Cluster) -> None:
        super().__init__(process, cluster)
        self.epoch = 0
        self.host_state = HostState.ACTIVE
        self.draining = False
        self.drained = False
        self.seen_epoch = 0
        self.refused = False

    def begin(self) -> None:
        super().begin()
        self.process.later(self.rng.randrange(500 * NS_PER_MS), self.join)
        self.process.later(NS_PER_S, self.work)

    def join(self) -> None:
        """Ask the controller, where one can be reached; again and again."""
        host = self.process.host
        self.cluster.network(
            host.name,
            "store",
            lambda: self.process.run(lambda: self.registered(*self.cluster.register(host.name, host.instance))),
        )
        self.process.later(10 * NS_PER_S + self.rng.randrange(NS_PER_S), self.join)

    def registered(self, state: HostState, epoch: int) -> None:
        self.epoch, self.host_state = epoch, state
        # One that was refused may end before it has said in so many words why.
        self.refused = state is HostState.DECOMMISSIONED and self.rng.random() < 0.5
        self.say()
        if state is HostState.DECOMMISSIONED:
            self.process.later(100 * NS_PER_MS, lambda: self.end(79))

    def work(self) -> None:
        """Start a job now and then; see whether a drain is over."""
        host = self.process.host
        jobs = [process for process in host.jobs() if process.alive]
        leaving = self.draining or self.host_state is not HostState.ACTIVE
        self.drained = leaving and not jobs
        if not leaving and len(jobs) < 3 and self.rng.random() < 0.2:
            job = host.spawn_job(self.process)
            job.later(self.rng.randrange(NS_PER_S, 120 * NS_PER_S), lambda: job.die(ExitStatus(code=0)))
        self.process.later(5 * NS_PER_S, self.work)

    def told(self, levels: dict[str, str]) -> None:
        self.draining = levels.get("DRAIN") == "1"
        self.seen_epoch = int(levels.get("SEEN_EPOCH", "0"))
        if not self.draining:
            self.drained = False

    def state(self, *, hello: bool) -> Beat:
        beat = super().state(hello=hello)
        # Its own progress comes after the controller's word: first the agent has to have taken that.
        drained = self.drained and self.epoch <= self.seen_epoch and self.host_state is not HostState.DECOMMISSIONED
        said = HostState.DRAINED if drained else self.host_state
        return Beat(
            component=beat.component,
            generation=beat.generation,
            hello=beat.hello,
            interval_ns=beat.interval_ns,
            beat=beat.beat,
            ready=True,
            jobs=len(self.process.host.jobs()),
            host_state=said if self.epoch and not self.refused else None,
            epoch=self.epoch or None,
        )
