import errno
import os
import subprocess
import sys

import pytest

from node_manager.core.events import ExitStatus
from node_manager.runtime import kernel

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.parametrize("way", ["close_from", "close_listed"])
def test_descriptors_are_closed_from_a_number_up(way: str) -> None:
    """Both ways close what is at or above the number, but what is kept, and nothing below it."""
    code = (
        "import os, sys\n"
        "from node_manager.runtime import kernel\n"
        "while os.open('/dev/null', os.O_RDONLY) < 9:\n"
        "    pass\n"
        f"kernel.{way}(5, frozenset({{4, 6, 7}}))\n"
        "print(*sorted(int(name) for name in os.listdir('/proc/self/fd')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["0", "1", "2", "3", "4", "5", "6", "7"]  # 5 is the listing itself


def test_an_errno_is_explained() -> None:
    """The meaning and the name; an unknown number still says something."""
    assert kernel.describe(errno.ENOENT) == "No such file or directory (ENOENT)"
    assert "(4095)" in kernel.describe(4095)
    assert kernel.explain(OSError("no number")) == "no number"


def test_wait_statuses_are_told_apart() -> None:
    """Code, signal and core dump as wait(2) encodes them."""
    assert kernel.exit_status(79 << 8) == ExitStatus(code=79)
    assert kernel.exit_status(11 | 0x80) == ExitStatus(signal=11, core_dumped=True)


def test_a_living_process_has_no_exit_status() -> None:
    """Neither has a descriptor that is no pidfd."""
    pidfd = os.pidfd_open(os.getpid())
    assert kernel.foreign_exit_status(pidfd) is None
    os.close(pidfd)
    null_fd = os.open("/dev/null", os.O_RDONLY)
    assert kernel.foreign_exit_status(null_fd) is None
    os.close(null_fd)
