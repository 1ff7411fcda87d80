"""The short-lived child: the same result as in process, within a bound, leaving nothing behind."""

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from node_manager.config import child as validator
from node_manager.config.load import ConfigInvalid, ConfigUnreadError, Problem, Sources, load, load_async, signature
from node_manager.core.spec import NodeSpec
from tests.unit.config.site import BOOT, PLAIN_BOOT, Site
from tests.unit.config.test_document import LAUGHS

TRIES = 200
"""Bound on waits for the kernel to end a killed process."""
_OTHERS: set[int] = set()


def invalid(sources: Sources, timeout_s: float = 30.0) -> ConfigInvalid:
    with pytest.raises(ConfigInvalid) as raised:
        load(sources, timeout_s)
    return raised.value


def invalid_async(sources: Sources, timeout_s: float = 30.0) -> ConfigInvalid:
    with pytest.raises(ConfigInvalid) as raised:
        asyncio.run(load_async(sources, timeout_s))
    return raised.value


@pytest.fixture(autouse=True)
def others() -> set[int]:
    """The children that this process had before the test: what other tests keep is not looked at here."""
    _OTHERS.clear()
    _OTHERS.update(child.pid for child in psutil.Process().children())
    return _OTHERS


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.pid not in _OTHERS]


def no_child_left(sources: Sources) -> bool:
    """Whether no validator is left, zombies included; each further run reaps what an earlier one had to leave."""
    for _ in range(TRIES):
        if not children():
            return True
        with suppress(ConfigInvalid):
            load(sources, timeout_s=0.0)
    return False


def test_the_child_gives_the_very_specification(site: Site) -> None:
    """Nothing is lost on the way through the child, blocking or not."""
    expected = site.spec()
    assert load(site.sources, timeout_s=30) == expected
    assert asyncio.run(load_async(site.sources, timeout_s=30)) == expected


def test_the_child_gives_every_problem(site: Site) -> None:
    """Problems arrive as they were found, blocking or not."""
    site.write(BOOT, PLAIN_BOOT + "rolls: []\nhots: {}\n")
    expected = site.problems()
    assert len(expected) == 2
    assert invalid(site.sources).problems == expected
    assert not invalid(site.sources).absent
    assert invalid_async(site.sources).problems == expected


def test_a_missing_boot_configuration_is_absent(site: Site) -> None:
    """The agent waits for a file that is yet to come, which is another state than a wrong one."""
    (site.root / BOOT).unlink()
    error = invalid(site.sources)
    assert error.absent
    remedy = "write it, or give the path of another one with --config"
    assert error.problems == (Problem(str(site.root / BOOT), 0, "", "the boot configuration does not exist", remedy),)


def test_a_fifo_does_not_hang(site: Site) -> None:
    """A FIFO in place of the boot configuration is refused, not waited for."""
    (site.root / BOOT).unlink()
    os.mkfifo(site.root / BOOT)
    assert [problem.problem for problem in invalid(site.sources).problems] == ["cannot read it: it is no regular file"]


def test_a_hostile_file_is_a_problem(site: Site) -> None:
    """The "billion laughs" costs the child a little, the agent nothing."""
    site.write("roles/web.yaml", LAUGHS)
    [problem] = invalid(site.sources).problems
    assert (problem.file, problem.line) == (str(site.root / "roles/web.yaml"), 0)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_validator_that_takes_too_long_is_killed(
    site: Site, asynchronous: bool, hanging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time-out is told as one, nothing is called wrong, and no process is left."""
    monkeypatch.setattr(sys, "executable", hanging)
    error = invalid_async(site.sources, 0.001) if asynchronous else invalid(site.sources, 0.001)
    [problem] = error.problems
    assert problem.file == str(site.root / BOOT)
    assert problem.problem.endswith("the validator took longer than 0.001 s and was killed")
    assert isinstance(error, ConfigUnreadError)
    assert problem.remedy.startswith("nothing is known to be wrong with it: ")
    assert no_child_left(site.sources)


def test_a_validator_that_dies_is_a_problem(site: Site, hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever kills the child, the agent has a sentence and lives on."""
    monkeypatch.setattr(sys, "executable", hanging)

    async def kill_it() -> None:
        task = asyncio.ensure_future(load_async(site.sources, timeout_s=30))
        await asyncio.sleep(0)
        [child] = children()
        child.kill()
        await task

    with pytest.raises(ConfigInvalid) as raised:
        asyncio.run(kill_it())
    [problem] = raised.value.problems
    assert problem.problem.endswith("the validator ended without an answer (signal SIGKILL)")
    assert not isinstance(raised.value, ConfigUnreadError)


def test_the_loop_goes_on_and_no_thread_is_started(site: Site) -> None:
    """Supervision is not held up by a validation."""
    threads = threading.active_count()

    async def beside() -> tuple[NodeSpec, int]:
        task = asyncio.ensure_future(load_async(site.sources, timeout_s=30))
        turns = 0
        while not task.done():
            turns += 1
            assert threading.active_count() == threads
            await asyncio.sleep(0)
        return await task, turns

    spec, turns = asyncio.run(beside())
    assert spec.roles == ("web",)
    assert turns > 1


def test_cancelling_ends_the_validator(site: Site, hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that stops does not leave a validator behind."""
    monkeypatch.setattr(sys, "executable", hanging)

    async def cancel() -> None:
        task = asyncio.ensure_future(load_async(site.sources, timeout_s=30))
        await asyncio.sleep(0)
        assert len(children()) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert no_child_left(site.sources)


def test_no_descriptor_is_left(site: Site, hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever way a run ends, it closes what it opened."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    load(site.sources, timeout_s=30)
    monkeypatch.setattr(sys, "executable", hanging)
    invalid(site.sources, timeout_s=0.001)
    assert no_child_left(site.sources)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_environment_cannot_change_the_validator(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONPATH and the current directory are not where a daemon takes its code from."""
    site.write("evil/yaml.py", "raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", str(site.root / "evil"))
    monkeypatch.chdir(site.root / "evil")
    assert load(site.sources, timeout_s=30).roles == ("web",)


def test_the_agent_never_loads_the_parser_or_pydantic(site: Site) -> None:
    """What is imported once stays for the life of the agent: the memory of pydantic and of the YAML parser does not."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from node_manager.config.load import Sources, load\n"
        "root = Path(sys.argv[1])\n"
        "load(Sources(root / 'node-manager.yaml', (root / 'roles',), root, root))\n"
        "print([name for name in ('yaml', 'pydantic', 'pydantic_core') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(site.root)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout == "[]\n"


# --- noticing a change


def test_the_signature_changes_with_every_file_that_counts(site: Site) -> None:
    """An agent that waits for its configuration looks at nothing else."""
    seen = [signature(site.sources)]
    for change in (
        lambda: site.write(BOOT, PLAIN_BOOT + "# longer\n"),
        lambda: site.write("node-manager.d/10.yaml", "host: {name: a}\n"),
        lambda: site.write("roles/web.yaml", "role: web\n"),
        lambda: site.write("vendor/new.yaml", ""),
        (site.root / BOOT).unlink,
    ):
        change()
        seen.append(signature(site.sources))
    assert all(before != after for before, after in pairwise(seen))
    assert signature(site.sources) == seen[-1]


def test_replacing_a_file_by_an_equal_one_is_a_change(site: Site) -> None:
    """A new inode tells a file that was moved into place, whatever its size and age."""
    path = site.root / BOOT
    before, times = signature(site.sources), path.stat()
    copy = site.write("copy", path.read_bytes())
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
    copy.rename(path)
    assert signature(site.sources) != before


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_validator_that_was_begun_early_is_the_one_that_answers(site: Site, asynchronous: bool) -> None:
    """An agent's start has it read while the agent imports: one process, and the next reading gets its answer."""
    expected = site.spec()
    validator.begin(site.sources)
    [begun] = children()
    found = asyncio.run(load_async(site.sources, 30)) if asynchronous else load(site.sources, 30)
    assert found == expected
    assert not begun.is_running()
    assert children() == []
    site.write(BOOT, PLAIN_BOOT + "rolls: []\n")
    assert len(invalid(site.sources).problems) == 1  # the one after that reads anew


def test_a_validator_that_was_begun_for_other_sources_is_ended(site: Site) -> None:
    """Its answer is not taken for another one's."""
    validator.begin(replace(site.sources, config=site.root / "other.yaml"))
    assert len(children()) == 1
    assert load(site.sources, 30) == site.spec()
    assert no_child_left(site.sources)
