"""Three manager hosts: each with a network, a part of the cgroup tree, an agent, and a member of etcd."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.etcd import Member, healthy
from tests.cluster.network import Net
from tests.integration.host import BOUND_S, Host, wait_until

CLIENT_PORT, PEER_PORT = 2379, 2380
TRACE_MS = 3
STOP_S, KILL_S, MARGIN_S = 0.5, 0.5, 0.5
"""What the role file gives a scheduler to stop, and what the agent keeps back of each lease."""
STOP_BUDGET_S = STOP_S + KILL_S + MARGIN_S
C_CONTROLLERS = {"python": (), "mixed": (2,), "c": (1, 2, 3)}
"""Which hosts have the controller of libxce."""


class Manager(Host):
    """One manager host. `programs`: where the components in C are; `members`: where its controller finds etcd."""

    def __init__(
        self,
        base: Path,
        *,
        name: str,
        net: Net,
        group: Path | None,
        members: list[str],
        lease_s: float,
        log: Path,
        c_controller: Path | None = None,
        c_scheduler: Path | None = None,
        faults: str = "",
    ) -> None:
        self.net = net
        self._group = group
        controller: dict[str, Any] = {"stop": {"timeout_s": 3}}
        if c_controller is not None:
            controller["command"] = [str(c_controller), f"etcd:{','.join(members)}"]
            controller["environment"] = {"XCE_REF_HOLDER": f"{name}/c"}
        else:
            controller["environment"] = {"XCE_REF_ETCD": ",".join(members)}
        scheduler: dict[str, Any] = {
            "environment": {
                "XCE_REF_STATE": str(log.parent),
                "XCE_REF_TRACE": "1",
                "XCE_REF_TRACE_MS": str(TRACE_MS),
                "XCE_REF_FAULT": faults,
            },
            "stop": {"timeout_s": STOP_S, "kill_timeout_s": KILL_S},
        }
        if c_scheduler is not None:
            scheduler["command"] = [str(c_scheduler), str(log)]
        components = {"controller": controller, "scheduler": scheduler}
        super().__init__(base, name=name, roles=("manager",), lease_s=lease_s, components=components)
        if c_controller is not None:  # it listens nowhere
            probes = {"readiness": {"heartbeat": {}, "period_s": 0.2}}
            self.write_config(
                yaml.safe_dump({**self.boot, "components": _with_probes(self.boot["components"], probes)})
            )

    def _write_entries(self) -> None:
        super()._write_entries()
        entry = self.base / "bin" / "xce-node-manager"
        python = entry.rename(entry.with_suffix(".py"))
        join = "" if self._group is None else f"echo $$ >{self._group}/cgroup.procs\n"
        entry.write_text(f'#!/bin/sh\n{join}exec {" ".join(self.net.enter)} {python} "$@"\n')
        entry.chmod(0o755)

    # --- what can be done to it -------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the agent, as systemd does after every end of it; return at once."""
        with self.agent_log.open("ab") as log:
            self.agent = subprocess.Popen(
                [str(self.base / "bin" / "xce-node-manager"), "run", *self.options(), f"--log-dir={self.log_dir}"],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )

    def signal_agent(self, number: int) -> None:
        """Send the agent a signal."""
        assert self.agent is not None
        self.agent.send_signal(number)

    def reap_agent(self) -> None:
        """Wait for the agent's end."""
        assert self.agent is not None
        self.agent.wait(BOUND_S)

    def main_pid(self, component: str) -> int | None:
        """The main process of a component, by the process table."""
        marks = (f"XCE_COMPONENT={component}\0".encode(), f"{self.base}/".encode())
        for pid in self.processes():
            with contextlib.suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                if all(mark in environment for mark in marks) and f"XCE_MAIN_PID={pid}\0".encode() in environment:
                    return pid
        return None

    def signal_component(self, component: str, number: int) -> None:
        """Send the main process of a component a signal, if there is one."""
        pid = self.main_pid(component)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def well(self) -> bool:
        """Whether the agent answers and the controller is ready."""
        try:
            found = self.run("xce-nodectl", "status", "--json", ok=None)
        except subprocess.TimeoutExpired:  # a busy machine
            return False
        return found.returncode in {0, 1} and self.component("controller")["ready"] is True

    def end(self) -> None:
        """See Host: stopped processes have to be woken first."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        super().end()
        self.net.end()


def _with_probes(components: Any, probes: dict[str, Any]) -> dict[str, Any]:
    return {**components, "controller": {**components["controller"], "probes": probes}}


class Cluster:
    """Three hosts below `base`, and below the cgroup `group`. `programs`: where those of libxce are, if any."""

    def __init__(
        self,
        base: Path,
        *,
        group: Path | None,
        lease_s: float,
        components: str,
        programs: Path | None,
    ) -> None:
        self.log = base / "log" / "scheduler.log"
        self.log.parent.mkdir()
        self.lease_s = lease_s
        self.nets = [Net(number) for number in (1, 2, 3)]
        self.members: list[Member] = []
        for number, net in enumerate(self.nets, 1):
            member = Member(base / "etcd", f"e{number}", net.address, client=CLIENT_PORT, peer=PEER_PORT)
            member.prefix = net.enter
            self.members.append(member)
        (base / "etcd").mkdir()
        addresses = [member.client for member in self.members]
        self.hosts = [
            Manager(
                base / f"m{number}",
                name=f"m{number}",
                net=net,
                # The third has no part of the cgroup tree: its fuse guards a process, not a group.
                group=None if group is None or number == len(self.nets) else _delegate(group / f"m{number}"),
                members=addresses[number - 1 :] + addresses[: number - 1],
                lease_s=lease_s,
                log=self.log,
                c_controller=programs / "controller" if programs and number in C_CONTROLLERS[components] else None,
                c_scheduler=programs / "scheduler" if programs else None,
                # No second line: only the agents and their fuses end it. The second host's does not heed SIGTERM.
                faults="unfenced,ignore-term" if number == 2 else "unfenced",
            )
            for number, net in enumerate(self.nets, 1)
        ]

    def up(self) -> None:
        """Start everything."""
        for member in self.members:
            member.start(self.members)
        wait_until(lambda: all(healthy(member.client) for member in self.members), "etcd is healthy")
        for host in self.hosts:
            host.start()

    def well(self) -> bool:
        """Whether every host and every member of etcd is in order."""
        return all(healthy(member.client) for member in self.members) and all(host.well() for host in self.hosts)

    def end(self) -> None:
        """End everything that this made, in whatever state it is."""
        for net in self.nets:
            with contextlib.suppress(subprocess.CalledProcessError):
                net.mend()
        for host in self.hosts:
            host.end()
        for member in self.members:
            member.end()


def _delegate(group: Path) -> Path:
    """A part of the cgroup tree, as systemd delegates one."""
    group.mkdir()
    os.setxattr(group, "user.delegate", b"1")
    return group
