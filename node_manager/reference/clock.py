"""The clock of leases, CLOCK_BOOTTIME, and the boot that it belongs to."""

import time
from pathlib import Path

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")


def boottime_ns() -> int:
    """Now on CLOCK_BOOTTIME, nanoseconds. It advances through suspend, and no one can set it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def read_boot_id() -> str:
    """The kernel's name of this boot: a CLOCK_BOOTTIME value means nothing in another one."""
    return BOOT_ID_PATH.read_text(encoding="ascii").strip()
