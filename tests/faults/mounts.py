"""File systems of a test, in a mount namespace of their own that ends with the test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLD = "set -e; {mount}; echo mounted; read -r _ || :; {clean}"
"""Standard input ends with the test, however that ends."""


class Mounted:
    """A mount namespace in which something is mounted."""

    def __init__(self, holder: "subprocess.Popen[str]") -> None:
        self.enter = ("nsenter", f"--target={holder.pid}", "--mount", "--wdns=/")
        """Prefix of a command that is to run there."""

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command there."""
        return subprocess.run([*self.enter, *command], check=False, capture_output=True, text=True, timeout=60)


@contextmanager
def _mounted(mount: str, clean: str) -> Iterator[Mounted | None]:
    """A namespace after one shell command and until another; None: that is not allowed here."""
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", _HOLD.format(mount=mount, clean=clean)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        yield Mounted(holder) if holder.stdout.readline() == "mounted\n" else None


@contextmanager
def tmpfs(path: Path, size: str) -> Iterator[Mounted | None]:
    """A small file system at `path`."""
    with _mounted(f"mount -t tmpfs -o size={size} xce-test '{path}'", ":") as made:
        yield made


@contextmanager
def ext4(path: Path, image: Path) -> Iterator[Mounted | None]:
    """A real disk's file system at `path`, from a file. It may be frozen: at the end it is not."""
    mount = f"truncate -s 8M '{image}'; mkfs.ext4 -q '{image}'; mount -o loop '{image}' '{path}'"
    with _mounted(mount, f"fsfreeze --unfreeze '{path}' || :; umount --lazy '{path}'") as made:
        yield made
