# ruff: noqa: D102 - what each method is stands in adapter.py
"""What supervising costs at least: a loop in C, and the barest loops in Python."""

import sys
from pathlib import Path

from benchmarks.peers.adapter import PROGRAMS, Command, Places, Supervisor, first_line, own_python


class FloorC(Supervisor):
    """fork, exec, waitid, again."""

    name = "floor-c"
    floor = True
    how = "fork"

    @classmethod
    def version(cls, places: Places) -> str:  # noqa: ARG003 - the compiler is the system's
        return first_line(["cc", "-dumpfullversion"])

    def configure(self) -> None:
        """Everything stands in the command."""

    def start_command(self) -> Command:
        return [self.session.places.built / "floor", self.how, *self._what()]

    def _what(self) -> list[str]:
        program, log, _name, *more = self.component_command("svc")
        return [str(self.session.count), "svc%04d", program, log, *more]


class FloorVfork(FloorC):
    """The same by vfork."""

    name = "floor-c-vfork"
    how = "vfork"


class FloorSpawn(FloorC):
    """asyncio, a pidfd each, os.posix_spawn."""

    name = "floor-asyncio-spawn"
    how = "spawn"

    @classmethod
    def version(cls, places: Places) -> str:  # noqa: ARG003 - the harness's own
        return f"CPython {sys.version.split()[0]}"

    def start_command(self) -> Command:
        return [own_python(), Path(PROGRAMS / "floor.py"), self.how, *self._what()]


class FloorPopen(FloorSpawn):
    """asyncio, a pidfd each, subprocess.Popen."""

    name = "floor-asyncio-popen"
    how = "popen"
