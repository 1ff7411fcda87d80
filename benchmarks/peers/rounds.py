"""Sessions of all supervisors, interleaved: in each round every one is measured in every stretch of time."""

import random
import subprocess
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.peers import measures, procfs
from benchmarks.peers.adapter import NotStartedError, Places, Session, Supervisor
from benchmarks.peers.directories import S6, Runit
from benchmarks.peers.floors import FloorC, FloorPopen, FloorSpawn, FloorVfork
from benchmarks.peers.measures import Extent, Measure
from benchmarks.peers.ours import NodeManager
from benchmarks.peers.peers import Circus, Monit, Pm2, Supervisord
from benchmarks.peers.results import Sample
from benchmarks.peers.services import SystemdUser

SUPERVISORS: dict[str, type[Supervisor]] = {
    kind.name: kind
    for kind in (
        NodeManager,
        Supervisord,
        Circus,
        Runit,
        S6,
        Monit,
        Pm2,
        SystemdUser,
        FloorC,
        FloorVfork,
        FloorSpawn,
        FloorPopen,
    )
}
METRICS = (
    "start",
    "memory",
    "idle",
    "restart",
    "status-command",
    "status-kept",
    "mass-crash",
    "adoption",
    "change",
    "stop",
    "storm",
    "leadership",
)
_MEASURES: dict[str, Measure] = {
    "memory": measures.memory,
    "idle": measures.idle,
    "restart": measures.restart,
    "status-command": measures.status_command,
    "status-kept": measures.status_kept,
    "mass-crash": measures.mass_crash,
    "adoption": measures.adoption,
    "change": measures.change,
    "stop": measures.stop,
    "storm": measures.storm,
}
"""In the order in which a session takes them."""
_FAILURES = (NotStartedError, RuntimeError, OSError, ValueError, KeyError, subprocess.SubprocessError)


@dataclass(frozen=True, slots=True)
class Stage:
    """A kind of session: so many components, these metrics. `life_ms`: they end by themselves."""

    count: int
    metrics: tuple[str, ...]
    life_ms: int | None = None


STAGES = (
    Stage(1, ("start", "memory", "restart")),
    Stage(10, ("start", "memory")),
    Stage(
        100, ("start", "memory", "idle", "restart", "status-command", "status-kept", "mass-crash", "adoption", "stop")
    ),
    Stage(500, ("start", "memory", "change")),
    Stage(100, ("storm",), life_ms=1000),
)
SHORT_STAGES = (
    Stage(3, ("start", "memory", "idle", "restart", "status-command", "status-kept", "mass-crash", "adoption", "stop")),
    Stage(3, ("change",)),
    Stage(3, ("storm",), life_ms=200),
)
Keep = Callable[[Sample], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run measures."""

    peers: Sequence[str]
    metrics: frozenset[str]
    stages: Sequence[Stage]
    extent: Extent
    settle_s: float = 2.0
    """From the start to the first measurement: a supervisor's own start is over."""


def run(plan: Plan, places: Places, rounds: int, keep: Keep) -> None:
    """Measure; every sample goes to `keep` at once."""
    for number in range(rounds):
        for stage in plan.stages:
            wanted = [metric for metric in stage.metrics if metric in plan.metrics]
            order = list(plan.peers)
            random.shuffle(order)
            for peer in order:
                kind = SUPERVISORS[peer]
                if wanted and not (kind.slow and (stage.count > 100 or number > 0)):  # noqa: PLR2004 - see `slow`
                    for sample in _session(
                        plan, Stage(stage.count, tuple(wanted), stage.life_ms), kind, places, number
                    ):
                        keep(sample)


def _session(plan: Plan, stage: Stage, kind: type[Supervisor], places: Places, number: int) -> Iterator[Sample]:
    peer = kind(Session(places, stage.count, stage.life_ms))

    def sample(metric: str, values: list[float], load: float | None, notes: dict[str, object]) -> Sample:
        rounded = tuple(round(value, 4) for value in values)
        return Sample(
            round=number,
            peer=peer.name,
            count=stage.count,
            metric=metric,
            values=rounded,
            load_percent=load,
            notes=notes,
        )

    doing = "start"
    try:
        with procfs.load() as load:
            took_ms = peer.start()
        if "start" in stage.metrics:
            yield sample("start_ms", [took_ms], load.percent, {})
        procfs.pause(plan.settle_s)
        for doing, measure in _MEASURES.items():
            if doing not in stage.metrics:
                continue
            with procfs.load() as load:
                found = list(measure(peer, plan.extent))
            for metric, values, notes in found:
                yield sample(metric, values, load.percent, notes)
    except _FAILURES as error:
        where = traceback.format_exc().splitlines()[-3:]
        yield sample("error", [], None, {"metric": doing, "error": repr(error)[:500], "where": where})
    finally:
        peer.end()
