"""What a test run leaves behind when it is killed itself: agents, their components, and users' jobs of these.

A process of its own holds one end of a pipe. When the other one is closed, by whatever end of the test run, it kills
all that names the directory of a test that has not ended in its environment or its command.
"""

import os
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import os, signal, sys, time
if os.fork():  # nobody's child: tests look at their own
    os._exit(0)
os.setsid()
places = set()
for line in sys.stdin.buffer:
    if line.startswith(b"+"):
        places.add(line[1:-1] + b"/")
    else:
        places.discard(line[1:-1] + b"/")
def text(pid):
    found = b""
    for name in ("environ", "cmdline"):
        try:
            found += open(f"/proc/{pid}/{name}", "rb").read()
        except OSError:
            pass
    return found
for _ in range(300 if places else 0):  # again and again: what is killed may have started something just before
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        data = text(pid)
        found += [pid] if any(place in data for place in places) else []
    if not found:
        break
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.1)
"""


class Leftovers:
    """Told of the directories of tests; `close` does nothing to what is left of tests that have ended."""

    def __init__(self) -> None:
        reading, self._fd = os.pipe()
        with open(reading, "rb") as end:  # noqa: PTH123 - a descriptor
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=end, stdout=subprocess.DEVNULL, check=True, cwd="/"
            )

    def begin(self, place: Path) -> None:
        """From now on processes that name this directory are to be killed if the test run is."""
        os.write(self._fd, b"+%s\n" % os.fsencode(place))

    def end(self, place: Path) -> None:
        """The test has seen to its processes itself."""
        os.write(self._fd, b"-%s\n" % os.fsencode(place))

    def close(self) -> None:
        """The test run ends."""
        os.close(self._fd)
