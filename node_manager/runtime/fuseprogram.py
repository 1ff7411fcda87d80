"""The fuse in Python, for where native/fuse.c was not built: for development, because it is ten times as large.

usage: python -I -S fuseprogram.py COMPONENT NONCE, its standard output a listening SEQPACKET socket. It imports nothing
of the package, so that it starts fast and stays small; native/fuse.c says what it does, and why.
"""

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import time

LISTENER = 1
LOOK_AGAIN_MS = 20
LOOK_AT_LEAST_MS = 320
FIRST_WORD_MS = 10_000
CLEAN_LOOKS = 2
MAX_ENVIRON = 64 * 1024
ORDER = struct.Struct("=IIQq")
ANSWER = struct.Struct("=iIQqIi")
ARM_GROUP, ARM_LINK, RENEW, RELEASE, ASK, RETIRE, LISTEN = range(1, 8)
BLOWN, OCCUPIED = 1, 16
_CREDENTIALS = struct.Struct("iII")
_NS = 1_000_000_000

_libc = ctypes.CDLL(None, use_errno=True)


class Fuse:
    """See native/fuse.c; the names are the same."""

    def __init__(self, component: str, nonce: str) -> None:
        self.markers = {f"XCE_COMPONENT={component}".encode(), f"XCE_NODE_NONCE={nonce}".encode()}
        self.listener = socket.socket(fileno=LISTENER)
        self.listener.setblocking(False)
        self.control: socket.socket | None = None
        self.link: socket.socket | None = None
        self.timer: int = _libc.timerfd_create(time.CLOCK_BOOTTIME, os.O_NONBLOCK | os.O_CLOEXEC)
        self.group = False
        self.kill_fd = self.events_fd = self.main_pidfd = -1
        self.whole_tree = False
        self.generation = self.deadline_ns = 0
        self.blown = False
        self.clean_looks = 0

    def run(self) -> int:
        """Until nobody needs it."""
        met = False
        wait_ms = LOOK_AGAIN_MS
        while True:
            again = self.blown and self.keep_empty()
            wait_ms = min(wait_ms * 2, LOOK_AT_LEAST_MS) if again else LOOK_AGAIN_MS
            idle = self.blown or self.deadline_ns == 0
            if met and self.control is None and not again and idle and not self.occupied():
                return 0
            ready = self.wait(wait_ms if again else None if met else FIRST_WORD_MS)
            if not ready and not met:
                return 1
            if self.timer in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.timer, 8)
            if not self.blown and self.deadline_ns != 0 and now_ns() >= self.deadline_ns:
                self.blow()
            elif LISTENER in ready:
                self.greet()
                met = met or self.control is not None
            elif self.control is not None and self.control.fileno() in ready:
                if self.hear(self.control):
                    return 0
            elif self.link is not None and self.link.fileno() in ready:
                self.enlist(self.link)

    def wait(self, timeout_ms: int | None) -> set[int]:
        """What is ready."""
        poller = select.poll()
        poller.register(LISTENER, select.POLLIN)
        poller.register(self.timer, select.POLLIN)
        for one in (self.control, self.link):
            if one is not None:
                poller.register(one, select.POLLIN)
        if self.blown and self.events_fd >= 0:
            poller.register(self.events_fd, select.POLLPRI)
        return {fd for fd, _events in poller.poll(timeout_ms)}

    # --- what is guarded ----------------------------------------------------------------------------------------------

    def populated(self) -> bool:
        """Whether anything lives in the guarded cgroup."""
        try:
            return self.events_fd >= 0 and b"populated 1" in os.pread(self.events_fd, 256, 0)
        except OSError:
            self.events_fd, self.kill_fd = close(self.events_fd), close(self.kill_fd)
            return False

    def occupied(self) -> bool:
        """Whether anything lives of what is guarded."""
        return self.populated() if self.group else not ended(self.main_pidfd)

    def keep_empty(self) -> bool:
        """SIGKILL what is there. Whether to look again soon."""
        if self.group:
            if not self.populated():
                return False
            with contextlib.suppress(OSError):
                os.write(self.kill_fd, b"1")
            return True
        if not ended(self.main_pidfd):
            send(self.main_pidfd, signal.SIGKILL)
            self.clean_looks = 0
        if not self.whole_tree:
            return not ended(self.main_pidfd)
        if self.clean_looks < CLEAN_LOOKS:
            self.clean_looks = 0 if self.sweep() else self.clean_looks + 1
        return self.clean_looks < CLEAN_LOOKS

    def sweep(self) -> bool:
        """SIGKILL everything that belongs to the component. Whether there was anything."""
        session = pid_of(self.main_pidfd) if self.main_pidfd >= 0 and send(self.main_pidfd, 0) else 0
        found = False
        for name in os.listdir("/proc"):  # noqa: PTH208 - nothing is imported that is not needed
            pid = int(name) if name.isdigit() else 0
            seen = look_at(pid) if pid > 1 and pid != os.getpid() else None
            if seen is None or seen[0] in "ZXx":
                continue
            if (session > 0 and seen[1] == session) or self.marked(pid):
                found = True
                kill_exactly(pid, seen[2])
        return found

    def marked(self, pid: int) -> bool:
        """Whether its environment names this component of this host, and no later generation."""
        entries = read(f"/proc/{pid}/environ").split(b"\0")
        numbers = [entry[15:] for entry in entries if entry.startswith(b"XCE_GENERATION=")]
        return self.markers <= set(entries) and any(
            number.isdigit() and int(number) <= self.generation for number in numbers
        )

    def blow(self) -> None:
        """The lease is over."""
        self.blown = True
        self.clean_looks = 0
        self.drop_link()

    # --- what the agent says ------------------------------------------------------------------------------------------

    def greet(self) -> None:
        """The newest connection of the same user counts."""
        try:
            made, _address = self.listener.accept()
        except OSError:
            return
        _pid, uid, _gid = _CREDENTIALS.unpack(made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid():
            made.close()
            return
        if self.control is not None:
            self.control.close()
        made.setblocking(False)
        self.control = made

    def hear(self, control: socket.socket) -> bool:
        """One order. Whether it was to go, and it may."""
        try:
            data, fd = take(control, ORDER.size)
        except BlockingIOError:
            return False
        if not data:
            control.close()
            self.control = None
            return False
        kind, number = 0, errno.EINVAL
        if len(data) == ORDER.size:
            kind, tree, generation, deadline_ns = ORDER.unpack(data)
            if kind in {ARM_GROUP, ARM_LINK}:
                number, fd = self.arm(kind, bool(tree), generation, deadline_ns, fd), -1
            elif kind == RENEW:
                number = self.renew(generation, deadline_ns)
            elif kind == RELEASE:
                number = self.release(generation)
            elif kind == ASK:
                number = 0
            elif kind == LISTEN:
                number = listen_at(fd)
            elif kind == RETIRE:
                number = errno.EBUSY if self.occupied() else 0
        close(fd)
        marks = (BLOWN if self.blown else 0) | (OCCUPIED if self.occupied() else 0)
        answer = ANSWER.pack(number, kind, self.generation, self.deadline_ns, marks, os.getpid())
        with contextlib.suppress(OSError):
            control.send(answer, socket.MSG_NOSIGNAL)
        return kind == RETIRE and number == 0

    def arm(self, kind: int, tree: bool, generation: int, deadline_ns: int, fd: int) -> int:
        """Guard something new, unless something lives of the old."""
        if fd < 0:
            return errno.EBADF
        if deadline_ns <= now_ns() or self.occupied():
            close(fd)
            return errno.EBUSY if self.occupied() else errno.ETIME
        kill_fd = events_fd = -1
        if kind == ARM_GROUP:
            try:
                kill_fd = os.open("cgroup.kill", os.O_WRONLY | os.O_CLOEXEC, dir_fd=fd)
                events_fd = os.open("cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=fd)
            except OSError:
                close(kill_fd)
                return errno.EOPNOTSUPP
            finally:
                fd = close(fd)
        close(self.kill_fd)
        close(self.events_fd)
        self.main_pidfd = close(self.main_pidfd)
        self.drop_link()
        self.group = kind == ARM_GROUP
        self.kill_fd, self.events_fd, self.whole_tree = kill_fd, events_fd, tree
        if fd >= 0:
            self.link = socket.socket(fileno=fd)
            self.link.setblocking(False)
        self.generation, self.deadline_ns, self.blown = generation, deadline_ns, False
        set_timer(self.timer, deadline_ns)
        return 0

    def renew(self, generation: int, deadline_ns: int) -> int:
        """The lease holds longer."""
        if generation != self.generation or self.deadline_ns == 0:
            return errno.ESTALE
        if self.blown:
            return errno.ETIME
        if deadline_ns > self.deadline_ns:
            self.deadline_ns = deadline_ns
            set_timer(self.timer, deadline_ns)
        return 0

    def release(self, generation: int) -> int:
        """There is no lease any more."""
        if generation != self.generation:
            return errno.ESTALE
        if self.blown:
            return errno.ETIME
        self.deadline_ns = 0
        set_timer(self.timer, 0)
        return 0

    def enlist(self, link: socket.socket) -> None:
        """The child is about to become the command."""
        try:
            data, fd = take(link, 1)
        except BlockingIOError:
            return
        if len(data) == 1 and fd >= 0 and not self.blown and ended(self.main_pidfd):
            close(self.main_pidfd)
            self.main_pidfd, fd = fd, -1
            with contextlib.suppress(OSError):
                link.send(struct.pack("=i", 0), socket.MSG_NOSIGNAL)
        close(fd)
        self.drop_link()

    def drop_link(self) -> None:
        """Whoever waits there for an answer gets none."""
        if self.link is not None:
            self.link.close()
            self.link = None


def listen_at(fd: int) -> int:
    """Somebody removed the path: agents connect to this socket from now on. The caller closes it."""
    if fd < 0:
        return errno.EBADF
    made = socket.socket(fileno=os.dup(fd))
    listening = made.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    made.close()
    if not listening:
        return errno.EINVAL
    os.set_blocking(fd, False)
    os.dup2(fd, LISTENER, inheritable=False)
    return 0


def now_ns() -> int:
    """CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def set_timer(fd: int, at_ns: int) -> None:
    """Let it expire at this instant; 0: never."""
    spec = (ctypes.c_long * 4)(0, 0, at_ns // _NS, at_ns % _NS)
    _libc.timerfd_settime(fd, 1, spec, None)


def close(fd: int) -> int:
    """Close it, if there is one; what is left of it."""
    if fd >= 0:
        os.close(fd)
    return -1


def ended(pidfd: int) -> bool:
    """Whether a process has ended; nobody has."""
    if pidfd < 0:
        return True
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def send(pidfd: int, number: int) -> bool:
    """Whether the process was there to be signalled."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    return True


def read(path: str) -> bytes:
    """A small file, empty where it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, MAX_ENVIRON)
    except OSError:
        return b""
    finally:
        os.close(fd)


def look_at(pid: int) -> tuple[str, int, int] | None:
    """State, session, start time."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[3]), int(fields[19])) if len(fields) > 19 else None  # noqa: PLR2004 - proc(5)


def kill_exactly(pid: int, start_ticks: int) -> None:
    """SIGKILL the very process that was seen, if it is still that one."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    seen = look_at(pid)
    if seen is not None and seen[2] == start_ticks:
        send(fd, signal.SIGKILL)
    os.close(fd)


def pid_of(pidfd: int) -> int:
    """Whose descriptor this is; 0: cannot be told."""
    for line in read(f"/proc/self/fdinfo/{pidfd}").splitlines():
        if line.startswith(b"Pid:"):
            return int(line.split()[1])
    return 0


def take(link: socket.socket, size: int) -> tuple[bytes, int]:
    """One record and the descriptor that came with it (-1: none); b"": closed."""
    try:
        data, fds, _flags, _address = socket.recv_fds(link, size, 2)
    except BlockingIOError:
        raise
    except OSError:
        return b"", -1
    for fd in fds[:-1]:
        os.close(fd)
    if fds:
        os.set_inheritable(fds[-1], False)
    return data, fds[-1] if fds else -1


def main() -> int:
    """See the module."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write("-1000")
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
    return Fuse(sys.argv[1], sys.argv[2]).run()


if __name__ == "__main__":
    sys.exit(main())
