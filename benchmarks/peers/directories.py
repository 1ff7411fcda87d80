# ruff: noqa: D102 - what each method is stands in adapter.py
"""The supervisors with a process and a directory for each component: runit and s6."""

import shlex
import signal
from pathlib import Path

from benchmarks.peers.adapter import Command, Places, Supervisor, asker, debian_version, own_python


class _Directories(Supervisor):
    """One directory each, whose run file is the probe itself; changed, it is the usual script."""

    def environment(self) -> dict[str, str]:
        life = {} if self.session.life_ms is None else {"PEERS_LIFE_MS": str(self.session.life_ms)}
        return {"PEERS_LOG": str(self.log.path), **life}

    def configure(self) -> None:
        for name in self.names:
            directory = self.scanned / name
            directory.mkdir(parents=True, exist_ok=True)
            run = directory / "run"
            if name in self.session.changed:
                new = directory / "run.new"
                new.write_text(f"#!/bin/sh\nexec {shlex.join(self.component_command(name))}\n")
                new.chmod(0o755)
                new.replace(run)
            elif not run.exists():
                run.symlink_to(self.session.places.probe)

    @property
    def scanned(self) -> Path:
        """The directory of directories."""
        return self.directory / "scan"

    def asker(self, queries: int, rate: float, bound_s: float) -> Command:
        return asker(own_python(), "files", self.scanned, self.names, queries, rate, bound_s)


class Runit(_Directories):
    """runit. It restarts at once what ran for a second, else after one."""

    name = "runit"
    settled_s = 1.3
    stop_signal = signal.SIGHUP
    """runsvdir(8): HUP ends every runsv and itself; TERM leaves them."""

    @classmethod
    def version(cls, places: Places) -> str:  # noqa: ARG003 - the system's
        return debian_version("runit", "runsvdir")

    def start_command(self) -> Command:
        return ["runsvdir", "-P", self.scanned]

    def status_command(self) -> Command:
        return ["/bin/sh", "-c", f"exec sv status {self.scanned}/*"]

    def change_commands(self) -> list[Command]:
        return [["sv", "restart", self.scanned / name] for name in self.session.changed]


class S6(_Directories):
    """s6. It waits for a second after every end; for all components it has no command but a loop."""

    name = "s6"
    settled_s = 1.2

    @classmethod
    def version(cls, places: Places) -> str:  # noqa: ARG003 - the system's
        return debian_version("s6", "s6-svscan")

    def start_command(self) -> Command:
        return ["s6-svscan", "-c", str(max(1000, 2 * self.session.count)), self.scanned]

    def status_command(self) -> Command:
        return ["/bin/sh", "-c", f"for d in {self.scanned}/*; do s6-svstat $d; done"]

    def change_commands(self) -> list[Command]:
        return [["s6-svc", "-r", self.scanned / name] for name in self.session.changed]
