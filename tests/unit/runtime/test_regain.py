"""The script that takes controllers away before systemd starts an agent, and the agent that gives them back.

On files that look like a cgroup's; on a real tree: tests/system/test_full_v2.py.
"""

import os
import subprocess
from pathlib import Path

import pytest

from node_manager.runtime import regain

RELEASE = Path(__file__).parents[3] / "units" / "release-controllers"
DEFAULTS = {
    "cgroup.events": "populated 1",
    "cgroup.subtree_control": "",
    "memory.max": "max",
    "memory.swap.max": "max",
    "cpu.weight": "100",
}


def group(path: Path, files: dict[str, str]) -> None:
    path.mkdir(parents=True)
    for name, value in (DEFAULTS | files).items():
        (path / name).write_text(f"{value}\n" if value else "")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A worker whose jobs have limits of its own making."""
    if not RELEASE.exists():
        pytest.skip("only in the source tree")
    root = tmp_path / "unit"
    group(root, {"cgroup.subtree_control": "cpu memory"})
    group(root / "agent", {})
    group(root / "worker", {"cgroup.subtree_control": "memory"})
    group(root / "worker" / "main", {"memory.max": "4096"})
    group(root / "worker" / "jobs", {"cgroup.subtree_control": "memory"})
    group(root / "worker" / "jobs" / "a b", {"memory.max": "8192", "cpu.weight": "7"})
    return root


def release(root: Path, runtime_dir: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "RUNTIME_DIRECTORY": str(runtime_dir)}
    subprocess.run(["sh", RELEASE, root], check=True, env=environment, timeout=60)


def test_what_a_worker_set_for_its_jobs_is_written_down_and_set_again(tree: Path, tmp_path: Path) -> None:
    """Each limit that is not the kernel's default, and the controllers it needs, from the top down; once."""
    release(tree, tmp_path)
    record = tmp_path / regain.RECORD
    lines = record.read_text().splitlines()
    assert lines[:2] == [".\tcgroup.subtree_control\t+cpu +memory", "./worker\tcgroup.subtree_control\t+memory"]
    jobs = ["./worker/jobs\tcgroup.subtree_control\t+memory"]
    job = ["./worker/jobs/a b\tmemory.max\t8192", "./worker/jobs/a b\tcpu.weight\t7"]
    assert [line for line in lines[2:] if "jobs" in line] == jobs + job
    assert [line for line in lines[2:] if "jobs" not in line] == ["./worker/main\tmemory.max\t4096"]
    for path in tree.rglob("memory.max"):
        path.write_text("max\n")
    assert list(regain.set_again(tree, record)) == []
    assert (tree / "worker" / "jobs" / "a b" / "memory.max").read_text().startswith("8192")
    assert (tree / "worker" / "jobs" / "cgroup.subtree_control").read_text().strip() == "+memory"
    assert not record.exists()
    assert list(regain.set_again(tree, record)) == []


def test_a_second_end_before_the_record_was_read_does_not_lose_it(tree: Path, tmp_path: Path) -> None:
    """An agent that is killed while it starts: the script runs again, and finds everything disabled."""
    release(tree, tmp_path)
    record = (tmp_path / regain.RECORD).read_text()
    for path in tree.rglob("cgroup.subtree_control"):
        path.write_text("\n")
    release(tree, tmp_path)
    assert record == (tmp_path / regain.RECORD).read_text()


def test_where_nothing_is_left_nothing_is_kept(tree: Path, tmp_path: Path) -> None:
    """After a stop there are no components, and what stood there before is no use."""
    (tmp_path / regain.RECORD).write_text("./worker/jobs/gone\tmemory.max\t1\n")
    subprocess.run(["rm", "-r", tree / "worker"], check=True)
    release(tree, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["unit"]


def test_nothing_is_set_where_nothing_lives_any_more(tree: Path, tmp_path: Path) -> None:
    """Jobs that have ended between two agents need no limits, and the unit's group no controllers for them."""
    release(tree, tmp_path)
    for path in tree.rglob("cgroup.events"):
        path.write_text("populated 0\n")
    (tree / "cgroup.subtree_control").write_text("")
    assert list(regain.set_again(tree, tmp_path / regain.RECORD)) == []
    assert (tree / "cgroup.subtree_control").read_text() == ""
    assert not (tmp_path / regain.RECORD).exists()


def test_what_cannot_be_set_again_is_said_and_what_is_gone_is_not(tree: Path, tmp_path: Path) -> None:
    """A limit that the kernel refuses: a sentence. A job that has ended, and lines that nobody wrote: nothing."""
    untouched = [tmp_path / "memory.max", tree / "worker" / "main" / "cgroup.procs"]
    for path in untouched:
        path.write_text("7")
    record = tmp_path / regain.RECORD
    record.write_text(
        "./worker/jobs/gone\tmemory.max\t1\n"
        "./agent/../..\tmemory.max\t1\n"
        "./worker/main\tcgroup.procs\t1\n"
        "nonsense\n"
        "./worker/ma\0in\tmemory.max\t1\n"
        "./worker/main\tmemory.high\t4096\n"
    )
    said = list(regain.set_again(tree, record))
    where = tree / "worker" / "main"
    assert said == [f"cannot set memory.high of {where} to 4096 again: No such file or directory (ENOENT)"]
    assert [path.read_text() for path in untouched] == ["7", "7"]
