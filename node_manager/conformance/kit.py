"""What the scenes share: the program that is judged, where it runs, and what it is told at first."""

import contextlib
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from node_manager.conformance.agent import Agent, Stage, now_ns
from node_manager.conformance.judge import Judge
from node_manager.conformance.points import Role, Verdicts
from node_manager.conformance.program import Program
from node_manager.core.spec import NS_PER_S

FIRST_WORD_S = 20.0
"""How long a program may take from its start to its hello: an interpreter on a busy machine."""
MAX_LEASE_NS = 60 * NS_PER_S
"""`max_lease_s` of a role file where it does not say another."""
TERM = 7
HOOK_BOUND_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is to be judged. The hooks are commands for a shell."""

    role: Role
    command: tuple[str, ...]
    rival: str | None = None
    store_down: str | None = None
    store_up: str | None = None
    lease_s: float | None = None
    stop_timeout_s: float = 10.0


class Missing(Exception):  # noqa: N818  it is no error
    """A scene cannot be played; the text says what is missing."""


class Kit:
    """One judgement. `scene` gives a stage and clears it; nothing that was started outlives it."""

    def __init__(self, settings: Settings, verdicts: Verdicts) -> None:
        self.settings = settings
        self.verdicts = verdicts
        self._directory = Path(tempfile.mkdtemp(prefix="xce-"))
        self._made = 0

    def close(self) -> None:
        """Remove what was made."""
        shutil.rmtree(self._directory, ignore_errors=True)

    @contextlib.contextmanager
    def scene(self) -> Iterator[Stage]:
        """A stage, cleared at the end."""
        stage = Stage()
        try:
            yield stage
        finally:
            stage.close()

    def agent(self, stage: Stage) -> Agent:
        """A new agent that listens, for a program to be started."""
        self._made += 1
        lease_s = self.settings.lease_s
        judge = Judge(
            self.verdicts,
            max_lease_ns=MAX_LEASE_NS,
            lease_ns=None if lease_s is None else int(lease_s * NS_PER_S),
        )
        name = self.settings.role.value
        agent = Agent(stage, self._directory / f"{self._made}.sock", name, judge)
        agent.levels[f"COMPONENT.{name}"] = "running"
        if self.settings.role is Role.CONTROLLER:
            agent.levels["COMPONENT.scheduler"] = "running"
        agent.listen()
        return agent

    def start(self, agent: Agent, environment: Mapping[str, str] | None = None, *, rival: bool = False) -> Program:
        """Start the program, or its rival, under this agent; the one before it has ended."""
        command = self.settings.command
        if rival:
            if self.settings.rival is None:
                raise Missing("give --rival: a command that starts a second candidate for the same lease")
            command = ("/bin/sh", "-c", f"exec {self.settings.rival}")
        if agent.program is not None:
            agent.program.end()
        agent.hang_up()
        agent.interval_ns = 0
        if environment is None:
            environment = self.environment(agent)
        agent.program = Program(command, environment, self._directory / "output")
        return agent.program

    def begin(self, stage: Stage, environment: Mapping[str, str] | None = None) -> tuple[Agent, Program]:
        """An agent and the program, which has said hello and was answered. Missing where it does not come to that."""
        agent = self.agent(stage)
        program = self.start(agent, environment)
        self.greeted(agent)
        return agent, program

    def greeted(self, agent: Agent) -> None:
        """Wait for the hello of a program that was started. Missing, and the point fails, where none comes."""
        assert agent.program is not None
        program = agent.program
        agent.stage.until(lambda: agent.interval_ns > 0 or not program.running, FIRST_WORD_S)
        agent.stage.turn()
        if not agent.interval_ns:
            self.verdicts.fail("hello", f"no hello; {program.why_ended()}")
            raise Missing("it does not say hello")

    def environment(self, agent: Agent, *, lease_s: float = 50.0, **more: str) -> dict[str, str]:
        """What an agent gives a component; a scheduler with a lease, which the levels tell as well."""
        found = {
            "XCE_HEARTBEAT_SOCKET": str(agent.path),
            "XCE_COMPONENT": agent.component,
            "XCE_GENERATION": "1",
        }
        if self.settings.role is Role.SCHEDULER:
            until = str(now_ns() + int(lease_s * NS_PER_S))
            found |= {"XCE_TERM": str(TERM), "XCE_LEASE_VALID_UNTIL_NS": until}
            agent.levels |= {
                "FACT.controller.primary": "true",
                "FACT.controller.primary.TERM": str(TERM),
                "FACT.controller.primary.VALID_UNTIL_NS": until,
            }
        return found | more

    def hook(self, command: str) -> None:
        """Run a hook of the user. Missing where it fails."""
        done = subprocess.run(  # noqa: S603  the user's own command
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=HOOK_BOUND_S,
        )
        if done.returncode != 0:
            raise Missing(f"{shlex.quote(command)} ended with {done.returncode}: {done.stderr.strip()[-200:]}")
