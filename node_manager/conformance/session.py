"""A whole judgement: which scenes are played, and the report."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from node_manager.conformance import common, controller, scheduler, worker
from node_manager.conformance.kit import Kit, Missing, Settings
from node_manager.conformance.points import Point, Role, Verdicts, points_of

ALWAYS = frozenset({"hello", "records", "statements", "speaker", "promise"})
"""Points that every scene judges."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is played, and the points that nothing else judges."""

    play: Callable[[Kit], None]
    points: frozenset[str]


_COMMON = (
    Scene(common.greeting, frozenset({"unasked", "idle-beats", "unknown-keys", "full-state", "ends"})),
    Scene(common.reconnecting, frozenset({"reconnect", "patience"})),
    Scene(common.garbage, frozenset({"garbage", "garbage-closes"})),
    Scene(common.standstill, frozenset({"never-blocks"})),
    Scene(common.environment, frozenset({"inherited", "runs-alone"})),
)
_SCENES = {
    Role.CONTROLLER: (
        Scene(controller.store, frozenset({"reads-first", "leads", "validity", "no-blind-renewal"})),
        Scene(
            controller.succession,
            frozenset({
                *("leads", "terms", "validity", "one-leader", "kept-at-death", "ends-when-stopped", "after-a-pause"),
                *("standby-at-the-end", "not-given-up-early"),
            }),
        ),
    ),
    Role.SCHEDULER: (
        Scene(scheduler.lease, frozenset({"heeds-renewal", "ends-with-lease"})),
        Scene(scheduler.agent_away, frozenset({"outlives-the-agent", "ends-with-lease"})),
        Scene(scheduler.told, frozenset({"heeds-term", "heeds-false"})),
        Scene(scheduler.pause, frozenset({"after-a-pause"})),
        Scene(scheduler.no_lease, frozenset({"refuses-without-lease"})),
    ),
    Role.WORKER: (
        Scene(worker.drain, frozenset({"obeys-drain", "keeps-directives"})),
        Scene(worker.decommission, frozenset({"obeys-decommission"})),
    ),
}  # fmt: skip


def scenes_of(role: Role) -> tuple[Scene, ...]:
    """All scenes of a role, in the order in which they are played."""
    return (*_COMMON, *_SCENES[role])


def judge(settings: Settings, only: frozenset[str] = frozenset()) -> Verdicts:
    """Play the scenes of a role, or those that judge one of `only`, and return what was seen."""
    points = tuple(point for point in points_of(settings.role) if not only or point.name in only)
    verdicts = Verdicts(points)
    kit = Kit(settings, verdicts)
    wanted = {point.name for point in points}
    scenes = [scene for scene in scenes_of(settings.role) if scene.points & wanted]
    try:
        for scene in scenes or [_COMMON[0]]:
            try:
                scene.play(kit)
            except Missing as why:
                for name in scene.points:
                    verdicts.cannot(name, str(why))
    finally:
        kit.close()
    return verdicts


def report(verdicts: Verdicts) -> Iterator[str]:
    """The lines of a report: a point each, then the sum."""
    words = {True: "kept", False: "BROKEN", None: "unjudged"}
    broken = unjudged = 0
    for point in verdicts.points.values():
        holds, detail = verdicts.of(point.name)
        broken += holds is False and point.mandatory
        unjudged += holds is None and point.mandatory
        yield f"{words[holds]:8}  {point.name:21}  {_sentence(point)}"
        if detail:
            yield f"{'':8}  {'':21}    {detail}"
    if verdicts.conforms:
        yield f"the program conforms: {len(verdicts.points)} points"
    else:
        yield f"the program does not conform: {broken} points broken, {unjudged} not judged"


def _sentence(point: Point) -> str:
    return point.says if point.mandatory else f"{point.says} (recommended)"
