"""A pid names nobody: the kernel gives it to a stranger as soon as its owner is gone."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.ledger import HARM, Ledger
from tests.integration.host import BOUND_S

_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.mark.skipif(
    subprocess.run(
        [*_NAMESPACE, "test", "-w", "/proc/sys/kernel/ns_last_pid"], check=False, capture_output=True
    ).returncode
    != 0,
    reason="needs the right to make a pid namespace, and CONFIG_CHECKPOINT_RESTORE",
)
def test_a_stranger_under_a_components_pid_is_never_signalled(place: Path, ledger: Ledger, dice: random.Random) -> None:
    """Pids of dead components are given to strangers, while the agent lives and while none does (scenario 1)."""
    base = place / "h1"
    seed = str(dice.randrange(1_000_000))
    # The shell is the namespace's init and reaps; the scenario must not take its own children for orphans.
    script = '"$@"; exit $?'
    done = subprocess.run(
        [*_NAMESPACE, "sh", "-c", script, "sh", sys.executable, "-m", "tests.faults.reuse"],
        input=str(base),  # not an argument: what names this directory is ended with the host
        cwd=Path(__file__).parents[2],
        env=os.environ | {"XCE_FAULTS_SEED": seed},
        capture_output=True,
        text=True,
        timeout=BOUND_S * 10,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    ledger.counts.update(json.loads(lines[-1]))
    assert done.returncode == 0, f"XCE_FAULTS_SEED={seed}\n{done.stderr}"
    assert [ledger.counts[kind] for kind in HARM] == [0] * len(HARM)
    assert ledger.counts["faults injected"] > 40
