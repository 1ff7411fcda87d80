"""File systems of a test, in a mount namespace of their own that ends with the test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLD = "set -e; {mount}; echo mounted; read -r _ || :"


class Mounted:
    """A mount namespace in which `path` is a file system of its own."""

    def __init__(self, holder: "subprocess.Popen[str]") -> None:
        self.enter = ("nsenter", f"--target={holder.pid}", "--mount", "--wdns=/")
        """Prefix of a command that is to run there."""

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command there."""
        return subprocess.run([*self.enter, *command], check=False, capture_output=True, text=True, timeout=60)


@contextmanager
def mounted(command: str) -> Iterator[Mounted | None]:
    """A namespace after this shell command has mounted something in it; None: that is not allowed here."""
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", _HOLD.format(mount=command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        yield Mounted(holder) if holder.stdout.readline() == "mounted\n" else None
        holder.stdin.close()


@contextmanager
def tmpfs(path: Path, size: str) -> Iterator[Mounted | None]:
    """A small file system at `path`."""
    with mounted(f"mount -t tmpfs -o size={size} xce-test '{path}'") as made:
        yield made


@contextmanager
def ext4(path: Path, image: Path) -> Iterator[Mounted | None]:
    """A real disk's file system at `path`, from a file."""
    with mounted(f"truncate -s 8M '{image}'; mkfs.ext4 -q '{image}'; mount -o loop '{image}' '{path}'") as made:
        yield made
        if made is not None:
            made.run("fsfreeze", "--unfreeze", str(path))
            made.run("umount", str(path))
