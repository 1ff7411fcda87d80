"""Load and memory of the host, as heartbeats carry them."""

import psutil

MIB = 1024 * 1024


def vitals() -> list[tuple[str, str]]:
    """Return the one-minute load average and the memory in MiB; empty where the kernel does not tell."""
    try:
        load = psutil.getloadavg()[0]
        memory = psutil.virtual_memory()
    except OSError:
        return []
    return [
        ("LOAD1", f"{load:.2f}"),
        ("MEM_TOTAL_MIB", str(memory.total // MIB)),
        ("MEM_AVAILABLE_MIB", str(memory.available // MIB)),
    ]
