"""Three manager hosts on a real etcd, hurt: a few rounds of what `python -m tests.cluster` does at length."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import missing

SOURCE = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("components", "rounds"), [("python", "4"), ("mixed", "1"), ("c", "2")])
def test_never_two_schedulers_and_one_again(components: str, rounds: str) -> None:
    """Whatever is killed, stopped, frozen or cut off: never two schedulers at once, and one again after it.

    How soon is for a machine with nothing else to do: the command judges it, this test does not.
    """
    why = missing(c=components != "python")
    if why:
        pytest.skip(why)
    command = [
        sys.executable,
        "-m",
        "tests.cluster",
        "--rounds",
        rounds,
        "--components",
        components,
        "--reaction",
        "60",
    ]
    result = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "overlaps: 0" in result.stdout
