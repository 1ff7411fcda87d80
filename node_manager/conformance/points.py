"""What is judged, by name. The order is that of the report."""

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What a program is to be judged as."""

    CONTROLLER = "controller"
    SCHEDULER = "scheduler"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Point:
    """One part of the protocol. `says` completes "the program …"."""

    name: str
    says: str
    roles: frozenset[Role] = frozenset(Role)
    mandatory: bool = True


_CONTROLLER = frozenset({Role.CONTROLLER})
_SCHEDULER = frozenset({Role.SCHEDULER})
_WORKER = frozenset({Role.WORKER})

POINTS = (
    Point("hello", "says hello first, within 5 s of connecting, with its name and its promise"),
    Point("records", "sends only records that keep the grammar and the ranges"),
    Point("statements", "makes each statement whole, in one record"),
    Point("speaker", "speaks through its main process alone"),
    Point("promise", "sends a record in each interval that it promised"),
    Point("unasked", "beats without waiting for the agent's hello"),
    Point("idle-beats", "beats while nothing happens"),
    Point("full-state", "states everything again within 10 s"),
    Point("unknown-keys", "ignores keys and words that it does not know"),
    Point("reconnect", "reconnects within 7 s and states everything that it had stated"),
    Point("patience", "waits between attempts to connect"),
    Point("garbage", "survives garbage and is heard again"),
    Point("garbage-closes", "closes a connection on which garbage came", mandatory=False),
    Point("never-blocks", "does not wait for an agent that does not read"),
    Point("inherited", "is silent with the environment of another process"),
    Point("runs-alone", "runs without an agent", frozenset({Role.CONTROLLER, Role.WORKER})),
    Point("ends", "ends at SIGTERM in time"),
    Point("reads-first", "says nothing about leadership before it has read the store", _CONTROLLER),
    Point("leads", "says primary once it has the lease", _CONTROLLER),
    Point("terms", "never states a lower term, and a higher one for each new leadership", _CONTROLLER),
    Point("validity", "states a validity that has not passed and is within its lease", _CONTROLLER),
    Point("no-blind-renewal", "states no new validity while the store cannot be used", _CONTROLLER),
    Point("one-leader", "says primary only while nobody else leads", _CONTROLLER),
    Point("kept-at-death", "leaves the lease alone when it is killed", _CONTROLLER),
    Point("ends-when-stopped", "loses its lease when it stands still", _CONTROLLER),
    Point("after-a-pause", "does not act on what it knew before a pause", frozenset({Role.CONTROLLER, Role.SCHEDULER})),
    Point("standby-at-the-end", "says standby before it ends", _CONTROLLER),
    Point("not-given-up-early", "gives up no lease whose dependant was not reported stopped afterwards", _CONTROLLER),
    Point("heeds-renewal", "goes on when its lease is renewed", _SCHEDULER),
    Point("outlives-the-agent", "goes on without the agent as long as its lease lasts", _SCHEDULER),
    Point("ends-with-lease", "stops by itself no later than its lease", _SCHEDULER),
    Point("heeds-term", "stops when the term has changed", _SCHEDULER),
    Point("heeds-false", "stops when the fact is false", _SCHEDULER),
    Point("refuses-without-lease", "does not start without a lease", _SCHEDULER, mandatory=False),
    Point("obeys-drain", "states that it drains, or ends, when told to drain", _WORKER),
    Point("keeps-directives", "holds to a directive while the agent is away", _WORKER),
    Point("obeys-decommission", "states it, or ends, when told that its host is decommissioned", _WORKER),
)


def points_of(role: Role) -> tuple[Point, ...]:
    """The points of one role, in the order of the report."""
    return tuple(point for point in POINTS if role in point.roles)


class Verdicts:
    """What is known of each point. A point that failed once stays failed."""

    def __init__(self, points: tuple[Point, ...]) -> None:
        self.points = {point.name: point for point in points}
        self._held: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._unjudged: dict[str, str] = {}

    def hold(self, name: str) -> None:
        """It was seen kept."""
        if name in self.points:
            self._held.setdefault(name, "")

    def fail(self, name: str, detail: str) -> None:
        """It was seen broken; the first time is what is reported."""
        if name in self.points:
            self._failed.setdefault(name, detail)

    def judge(self, name: str, detail: str, *, holds: bool) -> bool:
        """Either; `detail` is what was seen where it does not hold. Returns whether it holds."""
        if holds:
            self.hold(name)
        else:
            self.fail(name, detail)
        return holds

    def cannot(self, name: str, why: str) -> None:
        """It could not be judged."""
        if name in self.points:
            self._unjudged.setdefault(name, why)

    def wants(self, *names: str) -> bool:
        """Whether one of these points is asked about: a scene need not be played on for nothing."""
        return any(name in self.points for name in names)

    def of(self, name: str) -> tuple[bool | None, str]:
        """Whether the point holds, None: not judged; and what was seen."""
        if name in self._failed:
            return False, self._failed[name]
        if name in self._held:
            return True, ""
        return None, self._unjudged.get(name, "nothing of it was seen")

    @property
    def conforms(self) -> bool:
        """Whether every mandatory point was seen kept and never broken."""
        return all(self.of(name)[0] is True for name, point in self.points.items() if point.mandatory)
