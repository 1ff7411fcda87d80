"""The scenes that every role plays."""

import os
import select
import signal
import socket
from collections.abc import Iterable

from node_manager.conformance.agent import Agent, Heard, now_ns
from node_manager.conformance.judge import SLACK_NS
from node_manager.conformance.kit import Kit
from node_manager.core.spec import NS_PER_S

RECONNECT_WITHIN_S = 7.0
"""The longest delay of the protocol, and what a busy machine adds."""
FULL_WITHIN_S = 11.0
MAX_ATTEMPTS = 20
"""In four seconds: delays from 0.1 s, doubling, come to six."""
ATTEMPTS_S = 4.0
ALONE_S = 3.0
FILLED_WITHIN_S = 60.0
UNKNOWN = {"FUTURE": "x", "COMPONENT.other": "dreaming", "COMPONENT.other.NEW": "1", "NEW.thing.ATTRIBUTE": "y"}
GARBAGE = (
    b"\xff\xfe\x00",
    b"no equals sign\n",
    b"DRAIN=0\x01\n",
    b"DECOMMISSIONED=1\nDRAIN=1\nbroken\n",
    b"A=1\nA=2\n",
    b"PART=9/2\nDECOMMISSIONED=1\n",
    b"XCE_HEARTBEAT=2\nDECOMMISSIONED=1\n",
    b"DECOMMISSIONED=1\nA=" + 9000 * b"x",
    b"",
)
_NOT_LEVELS = frozenset({"XCE_HEARTBEAT", "COMPONENT", "INTERVAL_MS", "TEMPLATE", "BEAT", "PART"})
_OF_STATEMENTS = frozenset({"TERM", "VALID_UNTIL_NS", "EPOCH", "DRAIN_DEADLINE_NS"})


def levels_in(heard: Iterable[Heard]) -> set[str]:
    """The levels that these records state, by their heads: a statement may lose a key when it changes."""
    keys = {key for one in heard for key in one.fields} - _NOT_LEVELS - _OF_STATEMENTS
    return {key for key in keys if not key.endswith((".TOKEN", ".VALID_UNTIL_NS"))}


def greeting(kit: Kit) -> None:
    """The first connection: an agent that does not answer at first, then one that says little."""
    with kit.scene() as stage:
        agent = kit.agent(stage)
        agent.answering = False
        program = kit.start(agent)
        kit.greeted(agent)
        count, three_s = len(agent.heard), 3 * agent.interval_s + 1.0
        heard = stage.until(lambda: len(agent.heard) > count + 1, three_s)
        kit.verdicts.judge("unasked", f"nothing for {three_s:.1f} s after its hello", holds=heard)
        agent.answering, agent.beating = True, False
        agent.answer()
        stage.play(agent.interval_s)
        hello_ns, said = now_ns(), levels_in(agent.heard)
        count = len(agent.heard)
        watched_s = three_s + SLACK_NS / NS_PER_S  # so long that a broken promise is seen by its silence
        stage.play(watched_s)
        kit.verdicts.judge(
            "idle-beats", f"{len(agent.heard) - count} records in {watched_s:.1f} s", holds=len(agent.heard) > count + 1
        )
        agent.beating = True
        _unknown_keys(kit, agent)
        _full_state(kit, agent, said, hello_ns)
        program.signal(signal.SIGTERM)
        _ends(kit, agent)


def _unknown_keys(kit: Kit, agent: Agent) -> None:
    assert agent.program is not None
    before, count = agent.connections, len(agent.heard)
    agent.say(UNKNOWN)
    agent.stage.play(2 * agent.interval_s + 0.5)
    kept = agent.program.running and agent.connections == before and len(agent.heard) > count
    kit.verdicts.judge("unknown-keys", f"the connection did not last; {agent.program.why_ended()}", holds=kept)


def _full_state(kit: Kit, agent: Agent, said: set[str], since_ns: int) -> None:
    """Wait until everything that was said before `since_ns` was said again."""

    def missing() -> set[str]:
        return said - levels_in(one for one in agent.heard if one.at_ns > since_ns)

    if not kit.verdicts.wants("full-state"):
        return
    agent.stage.until(lambda: not missing(), FULL_WITHIN_S + agent.interval_s - (now_ns() - since_ns) / NS_PER_S)
    left = missing()
    kit.verdicts.judge("full-state", f"{', '.join(sorted(left))[:80]} said once and not again", holds=not left)


def _ends(kit: Kit, agent: Agent) -> None:
    program, bound_s = agent.program, kit.settings.stop_timeout_s
    assert program is not None
    ended = agent.stage.until(lambda: not program.running, bound_s)
    kit.verdicts.judge("ends", f"it runs {bound_s:g} s after SIGTERM", holds=ended)


def reconnecting(kit: Kit) -> None:
    """Connections that end, a socket that is gone, and one that closes on whoever comes."""
    with kit.scene() as stage:
        agent, _ = kit.begin(stage)
        stage.play(2 * agent.interval_s)
        agent.hang_up()
        if not _comes_back(kit, agent, "after its connection was closed"):
            return
        agent.leave()
        stage.play(2.0)
        agent.listen()
        if not _comes_back(kit, agent, "after the socket was gone"):
            return
        if not kit.verdicts.wants("patience"):
            return
        agent.welcoming = False
        agent.hang_up()
        before = agent.connections
        stage.play(ATTEMPTS_S)
        attempts = agent.connections - before
        detail = f"{attempts} attempts in {ATTEMPTS_S:g} s"
        kit.verdicts.judge("patience", detail, holds=attempts <= MAX_ATTEMPTS)
        agent.welcoming = True
        _comes_back(kit, agent, "after it had been turned away")


def _comes_back(kit: Kit, agent: Agent, when: str) -> bool:
    """Wait for a new connection whose first records say all that had been said."""
    program, said, count = agent.program, levels_in(agent.heard), len(agent.heard)
    assert program is not None
    back = agent.stage.until(lambda: len(agent.heard) > count, RECONNECT_WITHIN_S)
    if not kit.verdicts.judge("reconnect", f"not within {RECONNECT_WITHIN_S:g} s {when}", holds=back):
        return False
    agent.stage.until(lambda: said <= levels_in(agent.since(count)), 0.5)
    left = said - levels_in(agent.since(count))
    detail = f"{', '.join(sorted(left))[:80]} not stated again at once {when}"
    return kit.verdicts.judge("reconnect", detail, holds=not left)


def garbage(kit: Kit) -> None:
    """Records that break the protocol, some of which would be orders."""
    with kit.scene() as stage:
        agent, program = kit.begin(stage)
        for record in GARBAGE:
            stage.until(lambda: agent.connection is not None and agent.connection.answered, RECONNECT_WITHIN_S)
            connections, count = agent.connections, len(agent.heard)
            agent.say_raw(record)
            heard = stage.until(
                lambda before=count: len(agent.heard) > before + 1 or not program.running,  # type: ignore[misc]
                RECONNECT_WITHIN_S + 2 * agent.interval_s,
            )
            shown = repr(record[:30])
            detail = f"after {shown}: {program.why_ended()}, and is not heard"
            if not kit.verdicts.judge("garbage", detail, holds=heard and program.running):
                return
            closed = agent.connections > connections
            kit.verdicts.judge("garbage-closes", f"after {shown} the connection stood", holds=closed)


def standstill(kit: Kit) -> None:
    """An agent that does not read, and a queue to it that is full."""
    with kit.scene() as stage:
        agent, program = kit.begin(stage)
        copy = program.heartbeat_socket(str(agent.path))
        if copy is None:
            kit.verdicts.cannot("never-blocks", "the kernel does not let the kit shorten the program's send queue")
            return
        with copy:
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's least: some records
            agent.read(on=False)
            full = stage.until(lambda: not select.select([], [copy], [], 0)[1], FILLED_WITHIN_S)
        if not full:
            kit.verdicts.cannot("never-blocks", f"its send queue was not full after {FILLED_WITHIN_S:g} s")
            return
        stage.play(agent.interval_s + 0.5)
        before, bound_s = program.waits(), 4 * agent.interval_s + 1.0
        stage.play(bound_s)
        moved = program.waits() - before
        detail = f"it did nothing for {bound_s:.1f} s while its heartbeat could not be sent"
        if kit.verdicts.judge("never-blocks", detail, holds=moved > 0 or not program.running):
            program.signal(signal.SIGTERM)
            ended = stage.until(lambda: not program.running, kit.settings.stop_timeout_s)
            kit.verdicts.judge(
                "never-blocks", "SIGTERM did not end it while its heartbeat could not be sent", holds=ended
            )


def environment(kit: Kit) -> None:
    """The environment of another process, and none at all."""
    with kit.scene() as stage:
        agent = kit.agent(stage)
        kit.start(agent, kit.environment(agent, XCE_MAIN_PID=str(os.getppid())))
        stage.play(ALONE_S)
        kit.verdicts.judge("inherited", "it spoke, and $XCE_MAIN_PID was another process", holds=not agent.heard)
    if not kit.verdicts.wants("runs-alone"):
        return
    with kit.scene() as stage:
        agent = kit.agent(stage)
        program = kit.start(agent, {})
        stage.play(ALONE_S)
        fine = program.running or program.status == 0
        kit.verdicts.judge("runs-alone", f"without $XCE_HEARTBEAT_SOCKET {program.why_ended()}", holds=fine)
