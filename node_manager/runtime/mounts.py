"""Whether a directory is on a file system of this host's own, where opening a file waits for no other host."""

import errno
import os
import select
import threading
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
LOCAL = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"})
"""What hangs where one of these does is the disk, and then the whole host does."""
_DEVICE, _SEPARATOR = 2, b"-"
"""proc_pid_mountinfo(5): the field with major:minor, and the mark before the type."""


class LocalDirectories:
    """What is known to be local, until the mounts of this host change. `look` may hang, the rest does not."""

    def __init__(self, mountinfo: Path = MOUNTINFO) -> None:
        self._mountinfo = mountinfo
        self._known: dict[Path, int] = {}
        """At which epoch a directory was found to be local."""
        self._epoch = 0
        self._poller = select.poll()
        self._asks = threading.Lock()
        """The loop and several threads ask, and a poll object refuses whoever asks beside another."""
        self._fd = -1
        self._closed = False

    def knows(self, directory: Path) -> bool:
        """Whether it was found to be local, and no mount has changed since."""
        return directory in self._known and self._known[directory] == self._now()

    def look(self, directory: Path) -> None:
        """Find it out, in a thread."""
        try:
            epoch = self._now()
            if _is_local(directory, self._mountinfo.read_bytes()) and epoch == self._now():
                self._known[directory] = epoch
        except (OSError, ValueError, IndexError):
            return  # it stays unknown

    def close(self) -> None:
        """Let go."""
        self._known.clear()
        with self._asks:
            self._closed = True
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _now(self) -> int:
        """A number that is another one whenever the mounts have changed. Raises OSError where nobody tells."""
        with self._asks:
            if self._closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            if self._fd < 0:
                self._fd = os.open(self._mountinfo, os.O_RDONLY | os.O_CLOEXEC)
                self._poller.register(self._fd, select.POLLPRI)
            if self._poller.poll(0):  # the kernel tells each change once
                self._epoch += 1
            return self._epoch


def _is_local(directory: Path, mountinfo: bytes) -> bool:
    device = directory.stat().st_dev
    wanted = b"%d:%d" % (os.major(device), os.minor(device))
    types = set()
    for line in mountinfo.splitlines():
        fields = line.split()
        if fields[_DEVICE] == wanted:
            types.add(fields[fields.index(_SEPARATOR) + 1].decode())
    return bool(types) and types <= LOCAL
