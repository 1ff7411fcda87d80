"""A full queue of events."""

import json
import subprocess
import sys
from pathlib import Path

from tests.faults.crowded import MORE
from tests.faults.ledger import Ledger
from tests.integration.host import BOUND_S


def test_a_full_queue_drops_heartbeats_and_nothing_else(place: Path, ledger: Ledger) -> None:
    """Beyond its bound heartbeats are dropped and counted; the death of a component and an operator are not."""
    (place / "state").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.crowded", str(place)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=BOUND_S * 2,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    ledger.inject(MORE)
    assert found["replaced"] is True
    assert MORE <= found["dropped"] <= MORE + 10
