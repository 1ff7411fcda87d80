"""Hosts in network namespaces of their own, joined by a bridge in ours.

No namespace has a name, and nothing is made outside: each vanishes with the processes in it. Whoever uses this runs in
a network namespace of its own already (`__main__` sees to it).
"""

import subprocess
from pathlib import Path

from tests.integration.host import wait_until

PREFIX = "10.77.0."
OURS = f"{PREFIX}254"
"""Our own address on the bridge."""
_IP = "/usr/sbin/ip"


def ip(*arguments: str, inside: "Net | None" = None) -> None:
    """Run the command of this name, perhaps in a host's namespace."""
    command = [_IP, *arguments]
    subprocess.run([*inside.enter, *command] if inside else command, check=True, stdin=subprocess.DEVNULL)


class Net:
    """The network of one host: its namespace, its address, and its link to the others."""

    def __init__(self, number: int) -> None:
        self.address = f"{PREFIX}{number}"
        self._port = f"host{number}"
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL)
        namespace = Path(f"/proc/{self._holder.pid}/ns/net")
        ours = Path("/proc/self/ns/net").readlink()
        wait_until(lambda: namespace.readlink() != ours, "a network namespace")
        self.enter = ["nsenter", f"--net={namespace}", "--"]
        self._others: set[str] = set()
        ip("link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(self._holder.pid))
        ip("link", "set", self._port, "master", "br0", "up")
        ip("address", "add", f"{self.address}/24", "dev", "eth0", inside=self)
        for device in ("lo", "eth0"):
            ip("link", "set", device, "up", inside=self)

    def cut(self) -> None:
        """Nothing reaches this host, and nothing leaves it."""
        ip("link", "set", self._port, "down")

    def cut_from(self, other: "Net") -> None:
        """Nothing reaches the other host from this one, while both see the third."""
        self._others.add(other.address)
        ip("route", "add", "blackhole", f"{other.address}/32", inside=self)

    def mend(self) -> None:
        """Undo every cut."""
        ip("link", "set", self._port, "up")
        while self._others:
            ip("route", "del", "blackhole", f"{self._others.pop()}/32", inside=self)

    def end(self) -> None:
        """Let the namespace go; it lives as long as something is in it."""
        self._holder.kill()
        self._holder.wait()


def make_bridge() -> None:
    """Join the hosts that are made after this, and ourselves."""
    ip("link", "set", "lo", "up")
    ip("link", "add", "br0", "type", "bridge")
    ip("address", "add", f"{OURS}/24", "dev", "br0")
    ip("link", "set", "br0", "up")
