"""Load and memory as the kernel tells them."""

from pathlib import Path

import psutil
import pytest

from node_manager.runtime.vitals import vitals


def test_they_are_what_the_kernel_says() -> None:
    """In MiB, the total as another reader of the same host finds it."""
    found = dict(vitals())
    assert set(found) == {"LOAD1", "MEM_TOTAL_MIB", "MEM_AVAILABLE_MIB"}
    assert int(found["MEM_TOTAL_MIB"]) == psutil.virtual_memory().total // 1024**2
    assert 0 < int(found["MEM_AVAILABLE_MIB"]) <= int(found["MEM_TOTAL_MIB"])
    assert float(found["LOAD1"]) >= 0


def test_they_are_read_line_by_line(tmp_path: Path) -> None:
    """Whatever else the files hold, and in which order."""
    (tmp_path / "loadavg").write_text("1.5 0.7 0.5 2/300 4711\n")
    (tmp_path / "meminfo").write_text(
        "HugePages_Total:       0\nMemAvailable:    3072 kB\nMemFree: 9 kB\nMemTotal:    5119 kB\n"
    )
    assert vitals(tmp_path) == [("LOAD1", "1.50"), ("MEM_TOTAL_MIB", "4"), ("MEM_AVAILABLE_MIB", "3")]


@pytest.mark.parametrize("files", [{}, {"loadavg": "1 1 1\n"}, {"loadavg": "x\n", "meminfo": "MemTotal: 1 kB\n"}])
def test_what_the_kernel_does_not_tell_is_left_out(tmp_path: Path, files: dict[str, str]) -> None:
    """A heartbeat goes out without them."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert vitals(tmp_path) == []
