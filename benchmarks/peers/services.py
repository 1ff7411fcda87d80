# ruff: noqa: D102 - what each method is stands in adapter.py
"""systemd as a user's manager: without PAM and D-Bus, in a cgroup and a mount namespace of its own; not as PID 1."""

import os
import shlex
import shutil
from contextlib import suppress
from pathlib import Path

from benchmarks.peers.adapter import (
    PROGRAMS,
    Command,
    Places,
    Session,
    Supervisor,
    asker,
    debian_version,
    own_python,
)

_UNITS = Path("/usr/lib/systemd/user")
_STANDARD_UNITS = (
    *("basic.target", "exit.target", "paths.target", "shutdown.target", "sockets.target", "timers.target"),
    *("systemd-exit.service", "app.slice", "background.slice", "session.slice"),
)
_TREES = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")


class SystemdUser(Supervisor):
    """`RestartSec=0`, no limit of starts."""

    name = "systemd"
    settled_s = 0.5

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._units = self.directory / "units"
        self._runtime = self.directory / "x"
        self._group = f"peers-{self.directory.name}"

    @classmethod
    def version(cls, places: Places) -> str:  # noqa: ARG003 - the system's
        if os.geteuid() != 0:
            raise PermissionError("only root can give it a cgroup and a mount namespace")
        return f"{debian_version('systemd', '/lib/systemd/systemd')}, user manager"

    def environment(self) -> dict[str, str]:
        quiet = {"SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}
        return {"XDG_RUNTIME_DIR": str(self._runtime), "DBUS_SESSION_BUS_ADDRESS": "", **quiet}

    def configure(self) -> None:
        if not self._units.exists():
            self._units.mkdir()
            self._runtime.mkdir(mode=0o700)
            for unit in _STANDARD_UNITS:
                shutil.copy(_UNITS / unit, self._units / unit)
            wanted = " ".join(f"{name}.service" for name in self.names)
            target = "[Unit]\nDescription=d\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n"
            (self._units / "default.target").write_text(f"{target}Wants={wanted}\n")
        for name in self.names:
            command = shlex.join(self.component_command(name))
            unit = f"[Unit]\nDescription={name}\nStartLimitIntervalSec=0\n"
            service = f"[Service]\nExecStart={command}\nRestart=always\nRestartSec=0\n"
            (self._units / f"{name}.service").write_text(unit + service)

    def start_command(self) -> Command:
        return [PROGRAMS / "systemd-user.sh", self._group, self._runtime, self._units]

    def status_command(self) -> Command:
        return ["systemctl", "--user", "list-units", "--no-legend", "--all", "svc*.service"]

    def asker(self, queries: int, rate: float, bound_s: float) -> Command:
        return asker(own_python(), "systemd", self._runtime / "systemd" / "private", self.names, queries, rate, bound_s)

    def change_commands(self) -> list[Command]:
        changed = [f"{name}.service" for name in self.session.changed]
        return [["systemctl", "--user", "daemon-reload"], ["systemctl", "--user", "restart", "--no-block", *changed]]

    def end(self) -> None:
        super().end()
        for tree in _TREES:
            for directory, _, _ in os.walk(f"{tree}/{self._group}", topdown=False):
                with suppress(OSError):
                    Path(directory).rmdir()
