"""Every action that makes a child, from the core to whoever carries it out, by way of what may hang before."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from node_manager.core.actions import (
    CancelPreStart,
    CancelSpawn,
    EndRun,
    KillTree,
    RunHelper,
    RunPreStart,
    RunProbe,
    Signal,
    Spawn,
)
from node_manager.core.events import Event, SpawnFailed
from node_manager.core.spec import ComponentSpec
from node_manager.runtime.preflight import Preflight
from node_manager.runtime.probers import Probers
from node_manager.runtime.process import Processes

ChildAction = Spawn | CancelSpawn | Signal | KillTree | RunPreStart | CancelPreStart | RunHelper | RunProbe | EndRun


class Children:
    """See the module. `listen` opens a component's notify socket for a generation; `spawned` notes a start."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        processes: Processes,
        *,
        log_dir: Path | None,
        listen: Callable[[ComponentSpec, int], None],
        spawned: Callable[[Spawn], None],
        post: Callable[[Event], None],
        jitter: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._processes = processes
        self._listen = listen
        self._spawned = spawned
        self._post = post
        self._jitter = jitter
        self._preflight = Preflight(
            loop,
            log_dir=log_dir,
            post=post,
            jitter=jitter,
            accounts=processes.accounts,
            environment_files=processes.environment_files,
        )
        self._probers = Probers(loop, post=post, helpers=processes.helpers)

    def carry_out(self, action: ChildAction) -> None:
        """Carry one out; what comes of it is posted."""
        match action:
            case Spawn():
                self._preflight.clear(action, partial(self._spawn, action))
            case CancelSpawn():
                if not self._preflight.cancel(action):
                    self._processes.cancel_spawn(action)
            case Signal():
                self._processes.signal(action)
            case KillTree():
                self._processes.kill_tree(action)
            case RunPreStart():
                self._preflight.clear(action, partial(self._processes.run_pre_start, action))
            case CancelPreStart():
                if not self._preflight.cancel(action):
                    self._processes.cancel_pre_start(action)
            case RunHelper():
                self._preflight.clear(action, partial(self._processes.run_helper, action))
            case RunProbe():
                self._preflight.clear(action, partial(self._probers.run, action))
            case EndRun():
                self._preflight.end(action)
                self._probers.end(action.component, action.generation)

    def let_go(self) -> None:
        """Kill the probes and checks that are under way, for a successor in this process to begin them again."""
        self._preflight.let_go()
        self._probers.close()
        self._processes.helpers.close()
        self._probers = Probers(self._loop, post=self._post, helpers=self._processes.helpers)

    def close(self) -> None:
        """Carry nothing out any more. What runs is for `Processes.close`."""
        self._preflight.close()
        self._probers.close()

    def _spawn(self, action: Spawn) -> None:
        try:
            self._listen(action.spec, action.generation)
        except OSError as error:
            self._post(
                SpawnFailed(
                    component=action.component,
                    generation=action.generation,
                    reason=str(error),
                    jitter=self._jitter(),
                )
            )
            return
        self._spawned(action)
        self._processes.spawn(action)
