"""A machine with a kernel of its own, emulated by qemu: what a container on the tests' host cannot show.

The host may have its cgroup controllers bound to v1; this machine has Debian's kernel 6.1 and nothing but cgroup v2. It
boots once, does by itself what it is to do, reports on its second serial line, and powers off.
"""

import shutil
import subprocess
import threading
from collections.abc import Generator
from pathlib import Path

PROGRAM = "qemu-system-x86_64"
BOUND_S = 2400.0
"""From power on to power off: four minutes on an idle machine."""
MEMORY_MIB = 768
SIZE_MIB = 900
_HERE = Path(__file__).parent
_GUEST = "/usr/local/lib/xce-checks"
_SERVICE = f"""\
[Unit]
Description=Checks of the node manager
After=multi-user.target

[Service]
WorkingDirectory={_GUEST}
ExecStart=/usr/bin/python3 -m guest /dev/ttyS1 /dev/ttyS0
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
"""
_BUILD = """
mount -t overlay overlay -o "lowerdir=$1:$2" "$3"
mke2fs -q -t ext4 -O ^has_journal -d "$3" "$4" "$5"
"""


class Emulator:
    """See the module. `root` is what make-vm.sh made, `upper` the layer above it in which the package is installed."""

    def __init__(self, root: Path, upper: Path, place: Path) -> None:
        self._boot = root / "boot"
        self._disk = place / "disk"
        self._report = place / "report"
        self._console = place / "console"
        place.mkdir()
        _plant(upper)
        mount = place / "mount"
        mount.mkdir()
        subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _BUILD, "build"]
            + [str(word) for word in (upper, root, mount, self._disk, f"{SIZE_MIB}M")],
            check=True, stdout=subprocess.DEVNULL, timeout=900,
        )  # fmt: skip

    def lines(self) -> Generator[str, None, None]:
        """Boot, and yield each line of the report as it comes, to the end."""
        with subprocess.Popen(
            self._command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None, "a pipe was asked for"
            bound = threading.Timer(BOUND_S, process.kill)
            bound.start()
            try:
                yield from (line.strip() for line in process.stdout)
            finally:
                bound.cancel()
                process.kill()

    def console(self) -> str:
        """What the kernel and failing checks said, its end."""
        return self._console.read_text(encoding="utf-8", errors="replace")[-60_000:]

    def _command(self) -> list[str]:
        (kernel,) = self._boot.glob("vmlinuz-*")
        (initial,) = self._boot.glob("initrd.img-*")
        # The machine's clock counts instructions, a nanosecond each, and goes on by itself while there are none to
        # carry out: a tests' host that is busy makes the machine late, and not the machine's time-outs early.
        return [
            *(PROGRAM, "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", str(MEMORY_MIB)),
            *("-icount", "shift=0,align=off,sleep=on", "-rtc", "clock=vm"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-nic", "none", "-no-reboot"),
            *("-serial", f"file:{self._console}", "-serial", "stdio"),
            *("-kernel", str(kernel), "-initrd", str(initial)),
            *("-append", "root=/dev/vda rw console=ttyS0 panic=-1 loglevel=4 mitigations=off edd=off"),
            *("-drive", f"file={self._disk},format=raw,if=virtio,cache=unsafe"),
        ]


def _plant(upper: Path) -> None:
    """Put the checks into the machine, to be carried out at its boot."""
    shutil.copytree(_HERE / "guest", upper / _GUEST.lstrip("/") / "guest", ignore=shutil.ignore_patterns("__pycache__"))
    units = upper / "etc" / "systemd" / "system"
    (units / "multi-user.target.wants").mkdir(parents=True, exist_ok=True)
    (units / "xce-checks.service").write_text(_SERVICE, encoding="ascii")
    (units / "multi-user.target.wants" / "xce-checks.service").symlink_to("../xce-checks.service")
    (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
