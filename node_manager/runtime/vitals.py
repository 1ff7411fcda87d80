"""Load and memory of the host, as heartbeats carry them."""

from pathlib import Path

KIB_PER_MIB = 1024


def vitals(root: Path = Path("/proc")) -> list[tuple[str, str]]:
    """Return the one-minute load average and the memory in MiB; empty where the kernel does not tell.

    proc_loadavg(5), proc_meminfo(5). A library for these three numbers costs every agent a MiB and ten milliseconds of
    its start.
    """
    try:
        load = float((root / "loadavg").read_text(encoding="ascii").split()[0])
        lines = (line.split() for line in (root / "meminfo").read_text(encoding="ascii").splitlines())
        memory = {words[0]: int(words[1]) for words in lines if len(words) > 1}
        total, available = memory["MemTotal:"], memory["MemAvailable:"]
    except (OSError, ValueError, LookupError):
        return []
    return [
        ("LOAD1", f"{load:.2f}"),
        ("MEM_TOTAL_MIB", str(total // KIB_PER_MIB)),
        ("MEM_AVAILABLE_MIB", str(available // KIB_PER_MIB)),
    ]
