"""Where an agent lives: its sources, its directories, and whether systemd started it."""

from dataclasses import dataclass
from pathlib import Path

from node_manager.config.load import Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line decides. Every path is absolute."""

    sources: Sources
    log_dir: Path | None
    under_systemd: bool = False
    """Then a wrong configuration never ends the agent, and its own user has no special rights on the socket."""
    event_journal: Path | None = None
    """Where every step is recorded, or None."""

    @property
    def runtime_dir(self) -> Path:
        """Sockets, lock, nonce and runtime record."""
        return self.sources.runtime_dir

    @property
    def state_dir(self) -> Path:
        """What survives a reboot."""
        return self.sources.state_dir

    @property
    def status_socket(self) -> Path:
        """The status API."""
        return self.runtime_dir / "status.sock"

    @property
    def heartbeat_socket(self) -> Path:
        """The heartbeats."""
        return self.runtime_dir / "heartbeat.sock"

    @property
    def notify_dir(self) -> Path:
        """One sd_notify socket for each component."""
        return self.runtime_dir / "notify"

    @property
    def record_file(self) -> Path:
        """What runs, for the next agent of this boot."""
        return self.runtime_dir / "runtime.json"

    @property
    def last_good_file(self) -> Path:
        """The last good configuration."""
        return self.state_dir / "config.json"
