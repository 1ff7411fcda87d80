"""The scenes of a controller: its store, and a rival for its lease."""

import signal

from node_manager.conformance.agent import Agent, Heard, Stage, now_ns
from node_manager.conformance.kit import MAX_LEASE_NS, Kit, Missing
from node_manager.core.events import Leadership
from node_manager.core.spec import NS_PER_S

IN_FLIGHT_S = 1.0
"""What was asked of the store before it went may be answered and stated within this time."""
TAKE_OVER_S = 20.0
"""How long after the end of a lease another may take to lead: its next look at the store, on a busy machine."""
_AT_ITS_END = ("standby-at-the-end", "not-given-up-early")


def primaries(heard: list[Heard]) -> list[Heard]:
    """The records that say primary."""
    return [one for one in heard if one.beat.leadership is Leadership.PRIMARY]


def greatest_validity(agent: Agent) -> int:
    """The end of the last lease that was stated on this agent's socket; 0: none was."""
    return max((one.beat.valid_until_ns or 0 for one in primaries(agent.heard)), default=0)


def leads(agent: Agent) -> bool:
    """Whether the last word was primary, and still holds."""
    words = [one.beat for one in agent.heard if one.beat.leadership is not None]
    return bool(words) and words[-1].leadership is Leadership.PRIMARY and (words[-1].valid_until_ns or 0) > now_ns()


def _comes_to_lead(stage: Stage, agent: Agent, free_ns: int) -> bool:
    """Wait until the program leads, which it may from `free_ns` on."""
    return stage.until(lambda: leads(agent), max(0, free_ns - now_ns()) / NS_PER_S + TAKE_OVER_S)


def store(kit: Kit) -> None:
    """A store that cannot be used at first, then can, and then cannot again."""
    down, up = kit.settings.store_down, kit.settings.store_up
    if down is None or up is None:
        raise Missing("give --store-down and --store-up: commands that make the store unusable, and usable again")
    kit.hook(down)
    try:
        with kit.scene() as stage:
            agent, _ = kit.begin(stage)
            stage.play(max(2.0, 3 * agent.interval_s))
            said = [one for one in agent.heard if one.beat.leadership is not None]
            detail = "it spoke of leadership while its store could not be read"
            kit.verdicts.judge("reads-first", detail, holds=not said)
            kit.hook(up)
            led = _comes_to_lead(stage, agent, now_ns() + MAX_LEASE_NS if said else now_ns())
            if not kit.verdicts.judge("leads", f"not primary {TAKE_OVER_S:g} s after its store was there", holds=led):
                return
            kit.hook(down)
            stage.play(IN_FLIGHT_S)
            until_ns = greatest_validity(agent)
            stage.play(max(0.0, (until_ns - now_ns()) / NS_PER_S) + 2 * agent.interval_s)
            later_s = (greatest_validity(agent) - until_ns) / NS_PER_S
            detail = f"its validity grew by {later_s:.1f} s while the store could not be used"
            kit.verdicts.judge("no-blind-renewal", detail, holds=later_s == 0)
    finally:
        kit.hook(up)


def succession(kit: Kit) -> None:
    """Two candidates for one lease: the leader is killed, stands still, and is stopped in order."""
    with kit.scene() as stage:
        first, second = kit.agent(stage), kit.agent(stage)
        kit.start(first)
        kit.greeted(first)
        led = _comes_to_lead(stage, first, now_ns())
        if not kit.verdicts.judge("leads", f"not primary {TAKE_OVER_S:g} s after its start", holds=led):
            return
        kit.start(second, rival=True)
        kit.greeted(second)
        stage.play(2.0)
        if not _alone(kit, second) or not _killed(kit, stage, first, second):
            return
        if not kit.verdicts.wants("ends-when-stopped", "after-a-pause", *_AT_ITS_END):
            return
        kit.start(first)
        kit.greeted(first)
        stage.play(1.0)
        if not _alone(kit, first) or not _paused(kit, stage, second, first) or not kit.verdicts.wants(*_AT_ITS_END):
            return
        _ended(kit, stage, first, second)
        second.levels["COMPONENT.scheduler"] = "stopped"
        second.answer()
        kit.start(first)
        kit.greeted(first)
        stage.play(1.0)
        _ended(kit, stage, second, first)


def _alone(kit: Kit, other: Agent) -> bool:
    detail = "two programs said primary at one time"
    return kit.verdicts.judge("one-leader", detail, holds=not leads(other))


def _killed(kit: Kit, stage: Stage, leader: Agent, other: Agent) -> bool:
    assert leader.program is not None
    until_ns, count = greatest_validity(leader), len(other.heard)
    leader.program.signal(signal.SIGKILL)
    led = _comes_to_lead(stage, other, until_ns)
    if not led:
        kit.verdicts.cannot("kept-at-death", f"nobody led within {TAKE_OVER_S:g} s after the lease of the dead")
        return False
    _judge_successor(kit, "kept-at-death", other, count, until_ns)
    old, new = primaries(leader.heard)[-1].beat.term or 0, primaries(other.heard)[-1].beat.term or 0
    kit.verdicts.judge("terms", f"the next leader has TERM={new}, the one before had {old}", holds=new > old)
    return True


def _judge_successor(kit: Kit, point: str, other: Agent, count: int, until_ns: int) -> None:
    first = primaries(other.since(count))[0]
    early_s = (until_ns - first.at_ns) / NS_PER_S
    detail = f"another was primary {early_s:.2f} s before the validity that it had stated was over"
    kit.verdicts.judge(point, detail, holds=first.at_ns >= until_ns)


def _paused(kit: Kit, stage: Stage, leader: Agent, other: Agent) -> bool:
    assert leader.program is not None
    before_ns = greatest_validity(leader)
    # Just after a renewal: a program that stands still in the middle of one may keep a lock of its store's.
    stage.until(lambda: greatest_validity(leader) > before_ns, TAKE_OVER_S)
    leader.program.signal(signal.SIGSTOP)
    stage.play(0.1)
    until_ns, count = greatest_validity(leader), len(other.heard)
    led = _comes_to_lead(stage, other, until_ns)
    detail = f"nobody else led within {TAKE_OVER_S:g} s after its lease was over"
    if not kit.verdicts.judge("ends-when-stopped", detail, holds=led):
        return False
    _judge_successor(kit, "one-leader", other, count, until_ns)
    count = len(leader.heard)
    leader.forgive()
    leader.program.signal(signal.SIGCONT)
    stage.until(lambda: len(leader.heard) > count, 5.0)
    stage.play(2 * leader.interval_s)
    said = primaries(leader.since(count))
    detail = "it said primary when it went on, and another led"
    kit.verdicts.judge("after-a-pause", detail, holds=not said and len(leader.heard) > count)
    return True


def _ended(kit: Kit, stage: Stage, leader: Agent, other: Agent) -> None:
    program = leader.program
    assert program is not None
    if not _comes_to_lead(stage, leader, greatest_validity(other)):
        kit.verdicts.cannot("not-given-up-early", "it did not lead again")
        return
    until_ns, count = greatest_validity(leader), len(other.heard)
    program.signal(signal.SIGTERM)
    stage.until(lambda: not program.running, kit.settings.stop_timeout_s)
    stage.turn()
    words = [one.beat.leadership for one in leader.heard if one.beat.leadership is not None]
    detail = "its last word before its end was primary"
    kit.verdicts.judge("standby-at-the-end", detail, holds=words[-1] is Leadership.STANDBY)
    until_ns = max(until_ns, greatest_validity(leader))
    if _comes_to_lead(stage, other, until_ns):
        _judge_successor(kit, "not-given-up-early", other, count, until_ns)
    else:
        kit.verdicts.cannot("not-given-up-early", f"nobody led within {TAKE_OVER_S:g} s after its lease was over")
