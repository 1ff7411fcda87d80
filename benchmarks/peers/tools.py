"""What has to be there before anything is measured: programs that are built, supervisors that are installed."""

import subprocess
from pathlib import Path

from benchmarks.peers.adapter import PROGRAMS, Places
from benchmarks.peers.rounds import SUPERVISORS


def build(directory: Path) -> None:
    """Compile the programs in C. Raises OSError, CalledProcessError."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("probe", "floor"):
        source, program = PROGRAMS / f"{name}.c", directory / name
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(["cc", "-O2", "-Wall", "-o", str(program), str(source)], check=True)


def missing(peers: list[str], places: Places) -> dict[str, str]:
    """Return what is not installed, and the command that installs it."""
    found = {}
    for peer in peers:
        try:
            SUPERVISORS[peer].version(places)
        except OSError as error:
            ours = peer == "xce"
            how = "make .venv/.package" if ours else f"packaging/bench-setup.sh {places.installed}"
            found[peer] = f"{peer} is missing ({error}); install it with: {how}"
    return found
