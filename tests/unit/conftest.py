"""Fixtures of several areas."""

from pathlib import Path

import pytest


@pytest.fixture
def hanging(tmp_path: Path) -> str:
    """An interpreter that stops itself before it reads anything: however slow the test, it gives no answer."""
    path = tmp_path / "hanging"
    path.write_text("#!/bin/sh\nkill -STOP $$\n")
    path.chmod(0o755)
    return str(path)
