"""The benchmarks are of the source tree: where a built wheel is tested there are none."""

from pathlib import Path

if not Path(__file__).parents[3].joinpath("benchmarks").is_dir():
    collect_ignore_glob = ["test_*.py"]
