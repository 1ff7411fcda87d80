"""A test run that is killed itself."""

import subprocess
import sys
from pathlib import Path

from tests.integration.host import wait_until

_RUN = """
import os, sys, time
from pathlib import Path
from tests.integration.leftovers import Leftovers
place, other = sys.argv[1:]
made = Leftovers()
for path in (place, other):
    made.begin(Path(path))
    for command in (["sh", "-c", "trap '' TERM; while :; do sleep 1; done", path + "/x"], ["sleep", "1000"]):
        print(os.spawnvpe(os.P_NOWAIT, command[0], command, {"PATH": os.environ["PATH"], "PLACE": path + "/x"}))
made.end(Path(other))
print(flush=True)
time.sleep(1000)
"""


def test_a_killed_test_run_leaves_nothing_of_its_tests(tmp_path: Path) -> None:
    """Deaf processes that name the directory of a test that has not ended are killed; nothing else is."""
    ours, other = tmp_path / "ours", tmp_path / "other"
    with subprocess.Popen(
        [sys.executable, "-c", _RUN, str(ours), str(other)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        pids = [int(line) for line in iter(run.stdout.readline, "\n")]
        run.kill()
    try:
        wait_until(lambda: [_lives(pid) for pid in pids[:2]] == [False, False], "they are killed")
        assert [_lives(pid) for pid in pids[2:]] == [True, True]
    finally:
        for pid in pids:
            subprocess.run(["kill", "-9", str(pid)], check=False)


def _lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"
