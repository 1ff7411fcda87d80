"""What the daemon's very first steps do, before anything of the agent is imported."""

import os
import subprocess
import sys

PASSED = """
import os
from node_manager.cli import guard
os.environ["LISTEN_PID"] = str(os.getpid() + {of})
guard.keep_from_children()
print([os.get_inheritable(fd) for fd in (3, 4)])
"""


def inherited(count: str, *, of: int = 0) -> str:
    """What a process with two passed descriptors, of which systemd names `count`, would still hand on."""
    # As systemd passes them: 3 and 4, open and inherited.
    return subprocess.run(
        ["/bin/sh", "-c", 'exec 3</dev/null 4</dev/null; exec "$@"', "sh", sys.executable, "-c", PASSED.format(of=of)],
        env={**os.environ, "LISTEN_FDS": count},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_a_validator_inherits_nothing_that_systemd_passed() -> None:
    """One that hangs would keep the agent's sockets; what systemd meant for another process is left alone."""
    assert inherited("2") == "[False, False]"
    assert inherited("1") == "[False, True]"
    assert inherited("many") == "[True, True]"
    assert inherited("99") == "[False, False]"
    assert inherited("2", of=1) == "[True, True]"
