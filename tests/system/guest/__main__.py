"""Carry all checks out in order, one line a check on the second serial line, and power off.

usage: python3 -m guest REPORT_DEVICE CONSOLE_DEVICE
"""

import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

from . import host
from .checks import CHECKS


def main() -> None:
    """See the module."""
    # The check of a host without memory must not end this.
    Path("/proc/self/oom_score_adj").write_text("-1000", encoding="ascii")
    report, console = (os.open(path, os.O_WRONLY | os.O_NOCTTY) for path in sys.argv[1:])
    os.write(report, f"1..{len(CHECKS)}\n".encode())
    for number, check in enumerate(CHECKS, 1):
        begun = time.monotonic()
        why = ""
        try:
            check()
        except Exception as error:  # noqa: BLE001 - the report is for that
            where = traceback.extract_tb(error.__traceback__)[-1]
            why = f": {' '.join(f'{where.line}: {type(error).__name__} {error}'.split())}"
            os.write(console, f"\n=== {check.__name__}\n{traceback.format_exc()}\n{_state()}\n".encode())
        verdict = "not ok" if why else "ok"
        os.write(report, f"{verdict} {number} {check.__name__}{why} # {time.monotonic() - begun:.1f} s\n".encode())
    os.write(report, b"done\n")
    os.sync()
    subprocess.run(["systemctl", "poweroff", "--force", "--force"], check=True)


def _state() -> str:
    """What helps to understand a failure."""
    commands = (
        ("journalctl", "--no-pager", "-o", "short-monotonic", "--lines=150"),
        ("systemd-cgls", "--no-pager", str(host.ROOT)),
        ("xce-nodectl", "status"),
    )
    return "\n".join(
        subprocess.run(command, check=False, capture_output=True, text=True, errors="replace").stdout
        for command in commands
    )


main()
