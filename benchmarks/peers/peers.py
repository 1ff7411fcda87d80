# ruff: noqa: D102 - what each method is stands in adapter.py
"""The daemons with one configuration for all components: supervisord, circus, monit, pm2."""

import json
import shlex
import subprocess
import time
from pathlib import Path

from benchmarks.peers import procfs
from benchmarks.peers.adapter import (
    PROGRAMS,
    Command,
    Places,
    Supervisor,
    asker,
    debian_version,
    first_line,
    own_python,
)

_MONIT_STOP_BOUND_S = 120.0


class Supervisord(Supervisor):
    """supervisord; its components count as started at once, and it keeps no log of theirs."""

    name = "supervisord"
    settled_s = 1.2

    @classmethod
    def version(cls, places: Places) -> str:
        return first_line([places.installed / "venv/bin/supervisord", "--version"])

    def configure(self) -> None:
        where = self.directory
        lines = [
            f"[unix_http_server]\nfile={where}/socket",
            f"[supervisord]\nnodaemon=true\nlogfile={where}/log\npidfile={where}/pid\nchildlogdir={where}\nminfds=8192",
            "[rpcinterface:supervisor]",
            "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
            f"[supervisorctl]\nserverurl=unix://{where}/socket",
        ]
        for name in self.names:
            lines += [
                f"[program:{name}]\ncommand={shlex.join(self.component_command(name))}",
                "startsecs=0\nautorestart=true\nstdout_logfile=NONE\nstderr_logfile=NONE",
            ]
        (where / "conf").write_text("\n".join(lines) + "\n")

    def start_command(self) -> Command:
        return [self._bin("supervisord"), "-c", self.directory / "conf"]

    def status_command(self) -> Command:
        return [self._bin("supervisorctl"), "-c", self.directory / "conf", "status"]

    def asker(self, queries: int, rate: float, bound_s: float) -> Command:
        place = self.directory / "socket"
        return asker(self.session.places.python, "supervisord", place, self.names, queries, rate, bound_s)

    def change_commands(self) -> list[Command]:
        return [[self._bin("supervisorctl"), "-c", self.directory / "conf", "update"]]

    def _bin(self, command: str) -> Path:
        return self.session.places.installed / "venv" / "bin" / command


class Circus(Supervisor):
    """circus, which looks for the dead every 0.1 s (its default is 5 s)."""

    name = "circus"
    settled_s = 0.5

    @classmethod
    def version(cls, places: Places) -> str:
        return first_line([places.installed / "venv/bin/circusd", "--version"])

    def configure(self) -> None:
        where = self.directory
        lines = [f"[circus]\nendpoint = ipc://{where}/e\npubsub_endpoint = ipc://{where}/p\nstatsd = false"]
        lines.append("check_delay = 0.1")
        commands = {name: shlex.join(self.component_command(name)) for name in self.names}
        lines += [f"[watcher:{name}]\ncmd = {command}\nnumprocesses = 1" for name, command in commands.items()]
        (where / "ini").write_text("\n".join(lines) + "\n")

    def start_command(self) -> Command:
        return [self._bin("circusd"), "--log-level", "warning", self.directory / "ini"]

    def status_command(self) -> Command:
        return self._ctl("status")

    def asker(self, queries: int, rate: float, bound_s: float) -> Command:
        return asker(self.session.places.python, "circus", self.directory / "e", self.names, queries, rate, bound_s)

    def change_commands(self) -> list[Command]:
        return [self._ctl("reloadconfig")]

    def _ctl(self, *arguments: str) -> Command:
        return [self._bin("circusctl"), "--endpoint", f"ipc://{self.directory}/e", "--timeout", "60", *arguments]

    def _bin(self, command: str) -> Path:
        return self.session.places.installed / "venv" / "bin" / command


class Monit(Supervisor):
    """monit in cycles of 1 s (Debian's are 120 s), whose components detach and write a pidfile."""

    name = "monit"
    settled_s = 1.3
    start_bound_s = 600.0
    restart_bound_s = 150.0
    slow = True

    @classmethod
    def version(cls, places: Places) -> str:  # noqa: ARG003 - the system's
        return debian_version("monit", "monit")

    def configure(self) -> None:
        where = self.directory
        lines = [
            f"set daemon 1\nset log {where}/log\nset idfile {where}/id\nset statefile {where}/state",
            f"set pidfile {where}/pid\nset httpd unixsocket {where}/socket\n  allow u:p",
        ]
        for name in self.names:
            pidfile = where / f"{name}.pid"
            command = " ".join(self.component_command(name, "-d", "-p", str(pidfile)))
            lines += [
                f'check process {name} with pidfile {pidfile}\n  start program = "{command}"',
                f"  stop program = \"/bin/sh -c 'kill $(cat {pidfile})'\"",
            ]
        (where / "monitrc").write_text("\n".join(lines) + "\n")
        (where / "monitrc").chmod(0o600)

    def start_command(self) -> Command:
        return ["monit", "-I", "-c", self.directory / "monitrc"]

    def status_command(self) -> Command:
        return self._ctl("-B", "summary")

    def asker(self, queries: int, rate: float, bound_s: float) -> Command:
        return asker(own_python(), "monit", self.directory / "socket", self.names, queries, rate, bound_s)

    def begin_stop(self) -> list[subprocess.Popen[bytes]]:
        """SIGTERM would leave the components: stop them, wait for them, then end monit."""
        pids = list(self.component_pids().values())
        self.spawn(self._ctl("stop", "all")).wait(_MONIT_STOP_BOUND_S)
        until = time.monotonic() + _MONIT_STOP_BOUND_S
        while any(map(procfs.living, pids)) and time.monotonic() < until:
            procfs.pause(0.005)
        return [self.spawn(self._ctl("quit"))]

    def _ctl(self, *arguments: str) -> Command:
        return ["monit", "-c", self.directory / "monitrc", *arguments]


class Pm2(Supervisor):
    """pm2; its command leaves a daemon behind, which is the supervisor."""

    name = "pm2"
    settled_s = 0.5
    start_bound_s = 300.0

    @classmethod
    def version(cls, places: Places) -> str:
        about = json.loads((_pm2_of(places) / "package.json").read_text())
        return f"{about['version']} on node {first_line(['node', '--version'])}"

    def environment(self) -> dict[str, str]:
        return {
            "PM2_HOME": str(self.directory / "home"),
            "PM2_DISCRETE_MODE": "1",
            "PM2_DISABLE_VERSION_CHECK": "1",
            "NO_COLOR": "1",
        }

    def configure(self) -> None:
        apps = []
        for name in self.names:
            program, *arguments = self.component_command(name)
            app = {"name": name, "script": program, "args": arguments, "interpreter": "none", "exec_mode": "fork"}
            quiet = {"out_file": "/dev/null", "error_file": "/dev/null", "vizion": False, "pmx": False}
            apps.append(app | quiet | {"min_uptime": 0, "max_restarts": 10**6})
        (self.directory / "apps.json").write_text(json.dumps({"apps": apps}))

    def start_command(self) -> Command:
        return self._ctl("start", str(self.directory / "apps.json"), "--silent")

    def start(self) -> float:
        took_ms = super().start()
        assert self.process is not None
        self.process.wait(self.start_bound_s)
        self.pids()
        return took_ms

    def roots(self) -> list[int]:
        try:
            pid = int((self.directory / "home" / "pm2.pid").read_text())
            return [pid] if b"God" in Path(f"/proc/{pid}/cmdline").read_bytes() else []
        except (OSError, ValueError):
            return []

    def status_command(self) -> Command:
        return self._ctl("jlist")

    def asker(self, queries: int, rate: float, bound_s: float) -> Command:
        return ["node", PROGRAMS / "asker.js", _pm2_of(self.session.places), str(queries), str(rate), str(bound_s)]

    def begin_stop(self) -> list[subprocess.Popen[bytes]]:
        return [self.spawn(self._ctl("kill"))]

    def _ctl(self, *arguments: str) -> Command:
        return ["node", _pm2_of(self.session.places) / "bin" / "pm2", *arguments]


def _pm2_of(places: Places) -> Path:
    return places.installed / "npm" / "node_modules" / "pm2"
