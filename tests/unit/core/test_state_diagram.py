"""The page with the state diagram."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_it_is_what_the_tables_say() -> None:
    """docs/explanation/component-states.md is generated from the tables that the program runs on, and up to date."""
    script = [sys.executable, "docs/generate_states.py", "--check"]
    done = subprocess.run(script, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
