"""Load and memory of the host."""

import psutil
import pytest

from node_manager.runtime.vitals import vitals


def test_they_are_what_the_kernel_says() -> None:
    """In MiB."""
    found = dict(vitals())
    assert set(found) == {"LOAD1", "MEM_TOTAL_MIB", "MEM_AVAILABLE_MIB"}
    assert int(found["MEM_TOTAL_MIB"]) == psutil.virtual_memory().total // 1024**2
    assert 0 < int(found["MEM_AVAILABLE_MIB"]) <= int(found["MEM_TOTAL_MIB"])
    assert float(found["LOAD1"]) >= 0


def test_what_the_kernel_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat goes out without them."""

    def refuse() -> None:
        raise PermissionError

    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    assert vitals() == []
