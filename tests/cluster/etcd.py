"""A real member of etcd, and questions to it over its own gateway."""

import base64
import http.client
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.host import free_port, wait_until

PROGRAM = shutil.which("etcd")
MISSING = "etcd is not installed (the package etcd-server)"
TIMEOUT_S = 5.0
ELECTION_MS = 1000
HEARTBEAT_MS = 100
"""etcd's own defaults."""


class Member:
    """One member of a cluster of etcd, with its data below `directory`. `prefix`: a command that executes it."""

    def __init__(self, directory: Path, name: str, address: str, *, client: int, peer: int) -> None:
        self.name = name
        self.client = f"{address}:{client}"
        self.peer = f"http://{address}:{peer}"
        self.prefix: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._directory = directory / name
        self._log = directory / f"{name}.log"

    def start(self, members: "list[Member]") -> None:
        """Start it, or start it again; return at once."""
        assert PROGRAM is not None, MISSING
        cluster = ",".join(f"{member.name}={member.peer}" for member in members)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.prefix,
                    PROGRAM,
                    f"--name={self.name}",
                    f"--data-dir={self._directory}",
                    f"--listen-client-urls=http://{self.client}",
                    f"--advertise-client-urls=http://{self.client}",
                    f"--listen-peer-urls={self.peer}",
                    f"--initial-advertise-peer-urls={self.peer}",
                    f"--initial-cluster={cluster}",
                    f"--heartbeat-interval={HEARTBEAT_MS}",
                    f"--election-timeout={ELECTION_MS}",
                    "--logger=zap",
                    "--log-level=error",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> None:
        """Kill it, whatever state it is in."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None


def granted(server: str) -> set[str]:
    """Return the ids of all leases."""
    return {lease["ID"] for lease in ask(server, "/v3/lease/leases", {})["leases"]}


def ask(address: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a member; OSError: it does not answer. An error of etcd's is an answer without `header`."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(str(error)) from None
    finally:
        connection.close()
    return answer


def code(text: str) -> str:
    """The gateway has keys and values in base64."""
    return base64.b64encode(text.encode()).decode()


def healthy(address: str) -> bool:
    """Whether a member answers a question that needs the others' agreement."""
    try:
        return "header" in ask(address, "/v3/kv/range", {"key": code("health")})
    except OSError:
        return False


@contextmanager
def alone(directory: Path) -> Iterator[Member]:
    """A cluster of one, healthy, which ends with the block."""
    member = Member(directory, "e1", "127.0.0.1", client=free_port(), peer=free_port())
    member.start([member])
    try:
        wait_until(lambda: healthy(member.client), "etcd answers")
        yield member
    finally:
        member.end()


def leader(addresses: list[str]) -> str | None:
    """The address of the member that leads, as one of them says."""
    for address in addresses:
        try:
            said = ask(address, "/v3/maintenance/status", {})
        except OSError:
            continue
        if said.get("leader", "0") != "0" and said.get("leader") == said.get("header", {}).get("member_id"):
            return address
    return None
