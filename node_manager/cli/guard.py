"""Going back to the old program where a new one fails before it is in charge (re-exec).

The standard library alone, and imported before everything else: what fails first in a broken installation is an
import. The predecessor left two variables: the descriptor of the state, and how it was started itself. As long as the
second is in the environment, whatever ends `guarded` starts the predecessor again, in the same process, with the very
same state: nothing was acted on yet. What ends the process without Python (a fatal signal) is not caught: then systemd
starts the agent anew, and that one adopts what runs.
"""

import contextlib
import json
import os
import signal
from collections.abc import Callable
from types import FrameType

STATE = "XCE_NODE_MANAGER_HANDOVER"
"""Descriptor of the state."""
BACK = "XCE_NODE_MANAGER_BACK"
"""JSON list: the path of the predecessor's program, then its arguments."""
FAILED = "XCE_NODE_MANAGER_FAILED"
"""Set for a predecessor that was started again: why."""
IN_CHARGE_S = 20.0
"""How long a successor may take before it is in charge; it takes a fraction of a second."""
_MAX_WHY = 500
_FIRST_PASSED = 3
"""SD_LISTEN_FDS_START."""
_MAX_PASSED = 64
"""Far above what the agent stores."""


def guarded(run: Callable[[], int]) -> int:
    """Run; where that ends in any way before `in_charge`, become the predecessor again."""
    environment = dict(os.environ)
    if BACK not in environment:
        return run()
    signal.signal(signal.SIGALRM, _too_slow)
    signal.setitimer(signal.ITIMER_REAL, IN_CHARGE_S)
    try:
        status = run()
    except BaseException as error:
        _go_back(environment, f"{type(error).__name__}: {error}")
        raise
    _go_back(environment, f"it ended with status {status}")
    return status


def keep_from_children() -> None:
    """Have no child inherit the descriptors that systemd passes (sd_listen_fds(3)): one that hangs would keep them."""
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and count.isdecimal():
        for fd in range(_FIRST_PASSED, _FIRST_PASSED + min(int(count), _MAX_PASSED)):
            with contextlib.suppress(OSError):
                os.set_inheritable(fd, False)


def in_charge() -> None:
    """There is no way back any more, nor a need for one."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for name in (STATE, BACK, FAILED):
        os.environ.pop(name, None)


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"it was not in charge after {IN_CHARGE_S:g} s")


def _go_back(environment: dict[str, str], why: str) -> None:
    """Become the predecessor; returns only where it is too late for that, or it cannot be."""
    if BACK not in os.environ:
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    path, *arguments = json.loads(environment.pop(BACK))
    environment[FAILED] = " ".join(why.split())[:_MAX_WHY].replace("\0", "")
    try:
        os.execve(path, arguments, environment)  # noqa: S606 - no shell is what is wanted
    except OSError as error:
        os.write(2, f"cannot go back to {path}: {error}\n".encode())
