"""Journals of simulated agents: whatever can happen to an agent can be recorded, read back and decided again."""

from pathlib import Path

from node_manager.cli.replay import Replay
from node_manager.core.actions import Action
from node_manager.core.events import Event
from node_manager.core.nodestate import NodeState
from node_manager.runtime.journal import EventJournal
from tests.simulation.agent import Agent
from tests.simulation.cluster import Cluster
from tests.simulation.faults import schedule
from tests.simulation.invariants import Invariants
from tests.simulation.world import NS_PER_S

UNTIL_NS = 120 * NS_PER_S
HOSTS = (1, 2)


class Recording(Invariants):
    """Checks what is always checked, and records each agent's life in a file of its own."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        super().__init__(cluster)
        self.directory = directory
        self.lives: dict[Agent, tuple[Path, EventJournal]] = {}
        self.stops: list[str] = []

    def stepped(
        self, agent: Agent, before: NodeState, event: Event, after: NodeState, actions: tuple[Action, ...], now: int
    ) -> None:
        if agent not in self.lives:
            path = self.directory / f"life{len(self.lives)}"
            self.lives[agent] = path, EventJournal(path, stopped=self.stops.append)
        assert (after, actions) == self.lives[agent][1].step(before, event, now)
        super().stepped(agent, before, event, after, actions, now)

    def close(self) -> None:
        for _, journal in self.lives.values():
            journal.close()


def test_every_simulated_life_replays(tmp_path: Path) -> None:
    """Crashes, commands, decommissions, adoptions under random faults: each event survives the file, each step too."""
    cluster = Cluster(3, managers=HOSTS[0], workers=HOSTS[1])
    recording = Recording(cluster, tmp_path)
    cluster.invariants = recording
    cluster.world.after_event = recording.check
    try:
        cluster.run(schedule(3, sum(HOSTS), UNTIL_NS, 4 * NS_PER_S), UNTIL_NS)
    finally:
        recording.close()
    assert recording.stops == []
    steps = 0
    for path, _ in recording.lives.values():
        found = Replay(path.name)
        with path.open("rb") as file:
            found.run(file)
        steps += found.steps
    assert len(recording.lives) > sum(HOSTS)
    assert steps == recording.steps
