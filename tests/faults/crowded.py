"""What `test_crowded` runs as a program: an agent in this process, whose queue is filled from within.

From outside it cannot be: what components may send is bounded for each, so that the queue has room for all of it. Its
argument is a directory. It prints what became of it as JSON.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from node_manager.config.sources import Sources
from node_manager.core.events import Beat, Command, Verb
from node_manager.core.spec import ComponentSpec, HostSpec, LogSink, NodeSpec, RestartSpec
from node_manager.runtime.agent import MAX_QUEUE, Agent
from node_manager.runtime.settings import Settings

MORE = 10_000
"""Heartbeats beyond what the queue takes."""
BOUND_S = 60.0


def main() -> int:
    """Run the scenario."""
    base = Path(sys.argv[1])
    loop = asyncio.new_event_loop()
    sources = Sources(
        config=base / "config.yaml", roles_dirs=(base,), runtime_dir=base / "run", state_dir=base / "state"
    )
    agent = Agent(loop, Settings(sources=sources, log_dir=None), user="", finished=loop.stop)

    def until(condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < end_s
            loop.call_later(0.005, loop.stop)
            loop.run_forever()

    def pid() -> int | None:
        member = agent.state.members.get("victim")
        return None if member is None or member.state.run is None else member.state.run.pid

    restart = RestartSpec(initial_ns=1_000_000, cap_ns=1_000_000)
    victim = ComponentSpec(
        name="victim", role="r", command=("/bin/sleep", "1000"), restart=restart, log=LogSink.INHERIT
    )
    agent.start(NodeSpec(host=HostSpec(name="h"), roles=("r",), components=(victim,)))
    until(pid)
    first = pid()
    assert first is not None
    for number in range(MAX_QUEUE + MORE):
        agent.post(Beat(component="victim", generation=1, beat=number))
    os.kill(first, signal.SIGKILL)
    answers: list[bool] = []
    command_id = agent.expect(lambda reply: answers.append(reply.ok))
    agent.ask(Command(id=command_id, verb=Verb.RELOAD_COMPONENT, by="test", component="victim"))
    until(lambda: answers and pid() not in {None, first})
    second = pid()
    agent.stop("the test is over")
    loop.run_forever()
    agent.close()
    print(json.dumps({"dropped": agent.dropped, "replaced": second != first}))  # noqa: T201 - the answer
    return 0


if __name__ == "__main__":
    sys.exit(main())
