# ruff: noqa: D102 - what each method is stands in adapter.py
"""xce-node-manager with one role for each 250 components; its delays as short as they can be, no probes."""

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.adapter import (
    Command,
    NotStartedError,
    Places,
    Session,
    Supervisor,
    asker,
    first_line,
    own_python,
)
from node_manager.api.client import Client, NotReachable

_ROLE_SIZE = 250
"""A role file has at most 256 components."""
_SHORTEST_S = 0.001
_LOOK_S = 0.001


class NodeManager(Supervisor):
    """The installed commands, as a user runs them from a source tree."""

    name = "xce"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._run = self.directory / "run"
        for name in ("state", "log", "roles"):
            (self.directory / name).mkdir()

    @classmethod
    def version(cls, places: Places) -> str:
        return first_line([places.ours / "xce-node-manager", "--version"]).rpartition(" ")[2]

    def environment(self) -> dict[str, str]:
        return {"XCE_STATUS_SOCKET": str(self.socket)}

    @property
    def socket(self) -> Path:
        """The status socket."""
        return self._run / "status.sock"

    def configure(self) -> None:
        delays = {"initial_s": _SHORTEST_S, "factor": 1, "cap_s": _SHORTEST_S, "reset_after_s": _SHORTEST_S}
        roles = []
        for first in range(0, self.session.count, _ROLE_SIZE):
            roles.append(f"bench{first}")
            components = {
                name: {"command": self.component_command(name), "restart": delays, "log": "inherit"}
                for name in self.names[first : first + _ROLE_SIZE]
            }
            body = {"role": roles[-1], "user": "inherit", "components": components}
            _write(self.directory / "roles" / f"{roles[-1]}.yaml", body)
        boot = {"version": 1, "roles": roles, "host": {"name": "bench", "instance_id": "i-bench"}}
        _write(self.directory / "boot.yaml", boot)

    def start_command(self) -> Command:
        return [
            self.session.places.ours / "xce-node-manager",
            "run",
            f"--config={self.directory}/boot.yaml",
            f"--roles-dir={self.directory}/roles",
            f"--runtime-dir={self._run}",
            f"--state-dir={self.directory}/state",
            f"--log-dir={self.directory}/log",
        ]

    def status_command(self) -> Command:
        return self._ctl("status")

    def asker(self, queries: int, rate: float, bound_s: float) -> Command:
        return asker(own_python(), "xce", self.socket, self.names, queries, rate, bound_s)

    def change_commands(self) -> list[Command]:
        return [self._ctl("reload")]

    def adopt(self, bound_s: float) -> float:
        """Start a successor of a killed agent; milliseconds from its exec until it has all components in charge.

        In charge: the status shows each as running with the pid that it had. Raises NotStartedError.
        """
        pids = self.component_pids()
        begun_ns = time.monotonic_ns()
        self.launch()
        client = Client(str(self.socket))
        until_ns = begun_ns + int(bound_s * 1e9)
        while time.monotonic_ns() < until_ns:
            try:
                body = client.get("/v1/status").body
            except NotReachable:  # the socket is the predecessor's still
                time.sleep(_LOOK_S)
                continue
            took_ms = (time.monotonic_ns() - begun_ns) / 1e6
            if {item["name"]: item["pid"] for item in body["components"] if item["state"] == "running"} == pids:
                self.pids()
                return took_ms
            time.sleep(_LOOK_S)
        raise NotStartedError(f"the successor has not all components in charge: {self.tail()}")

    def _ctl(self, command: str) -> Command:
        return [self.session.places.ours / "xce-nodectl", command]


def _write(path: Path, body: dict[str, Any]) -> None:
    """JSON is YAML. Written aside first, as the agent may be reading."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(body))
    new.replace(path)
