import errno
import os

import pytest

from node_manager.core.events import ExitStatus
from node_manager.runtime import kernel

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.parametrize("mark", [kernel.close_on_exec_from, kernel.close_on_exec_listed])
def test_descriptors_are_marked_from_a_number_up(mark: object) -> None:
    """Both ways mark what is at or above the number, and nothing below it."""
    assert callable(mark)
    low, high = os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(low, True)
    os.set_inheritable(high, True)
    mark(max(low, high))
    assert (os.get_inheritable(min(low, high)), os.get_inheritable(max(low, high))) == (True, False)
    os.close(low)
    os.close(high)


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
