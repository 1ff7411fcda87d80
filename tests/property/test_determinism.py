"""Identical events give identical actions, also in another process."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from node_manager.core.events import Verb
from tests.property.hosts import HOSTS
from tests.unit.core.build import S
from tests.unit.core.world import World


def fingerprint() -> str:
    """Digest of every action of a long life with all verbs, crashes and reloads in it."""
    world = World(HOSTS[0])
    for round_, verb in enumerate((*Verb, *Verb)):
        world.kindly()
        world.command(verb, "worker" if round_ % 2 else None)
        world.advance(S)
        if round_ % 5 == 4:
            world.crash()
        if round_ % 7 == 6:
            world.reload(HOSTS[round_ % len(HOSTS)])
    actions = [repr(actions) for life in world.past for _event, _now, actions in life]
    return hashlib.sha256("\n".join(actions).encode()).hexdigest()


def test_same_in_every_process() -> None:
    """Actions do not depend on the seed with which Python hashes strings."""
    found = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", "from tests.property.test_determinism import fingerprint; print(fingerprint())"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        found.add(done.stdout)
    assert len(found) == 1
