# ruff: noqa: ASYNC110, ASYNC220, ASYNC221, ASYNC222, ASYNC240 - what blocks are files and processes, for an instant
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from node_manager.core.spec import ComponentSpec
from node_manager.runtime.procfs import ProcFs
from node_manager.supervision import (
    ExecCheck,
    KillScope,
    Probe,
    ServiceSpec,
    ServiceStatus,
    SupervisionError,
    Supervisor,
    TcpCheck,
)
from tests.unit.runtime.hung import hung_directory
from tests.unit.runtime.rig import BOUND_S, alive, kill, reap_all, shell

pytestmark = pytest.mark.usefixtures("no_leaks")

SLEEP = ("/bin/sleep", "300")


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await test

    asyncio.run(bounded())


def service(name: str = "web", command: tuple[str, ...] = SLEEP, **more: Any) -> ServiceSpec:
    more.setdefault("restart_initial_s", 0.02)
    return ServiceSpec(name=name, command=command, **more)


async def until(supervisor: Supervisor, condition: Callable[[], object]) -> None:
    """Look after each event."""
    async for _ in supervisor.events():
        if condition():
            return


def of(supervisor: Supervisor, name: str = "web") -> ServiceStatus:
    return next(one for one in supervisor.status() if one.name == name)


async def pid_of(supervisor: Supervisor, name: str = "web") -> int:
    """Wait until it runs, and return its pid."""
    await until(supervisor, lambda: of(supervisor, name).pid)
    pid = of(supervisor, name).pid
    assert pid is not None
    return pid


async def line_of(path: Path) -> str:
    """Wait until a service has written a line."""
    while not path.exists() or not path.read_text().endswith("\n"):
        await asyncio.sleep(0.01)
    return path.read_text().splitlines()[-1]


def test_a_service_that_dies_is_started_again_and_events_say_so() -> None:
    """Kill -9 brings a new process; the events tell of the end and of both starts, in order."""

    async def test() -> None:
        async with Supervisor([service()]) as supervisor:
            pid = await pid_of(supervisor)
            kill(pid)
            await until(supervisor, lambda: of(supervisor).pid not in {None, pid})
            assert (of(supervisor).restarts, of(supervisor).generation) == (1, 2)
            seen = []
            async for event in supervisor.events():
                if event.kind in {"spawned", "exited"}:
                    seen.append((event.kind, event.service, event.details["generation"]))
                if len(seen) == 3:
                    break
            assert seen == [("spawned", "web", 1), ("exited", "web", 1), ("spawned", "web", 2)]

    run(test())


def test_the_end_of_the_block_stops_everything_in_order(tmp_path: Path) -> None:
    """What is started after another is stopped before it; nothing lives afterwards, and the events end."""
    notes = tmp_path / "notes"
    script = f"trap 'echo $0 >>{notes}; exit' TERM; : >{tmp_path}/$0; while :; do sleep 0.05; done"

    def told(name: str, **more: Any) -> ServiceSpec:
        ready = Probe(check=ExecCheck(command=("test", "-e", str(tmp_path / name))), period_s=0.1)
        return service(name, ("/bin/sh", "-c", script, name), readiness=ready, **more)

    async def test() -> None:
        async with Supervisor([told("first"), told("second", after=("first",))]) as supervisor:
            await until(supervisor, lambda: of(supervisor, "second").ready)
            pids = [await pid_of(supervisor, name) for name in ("first", "second")]
            reader = asyncio.create_task(_last(supervisor))
        assert [alive(pid) for pid in pids] == [False, False]
        assert notes.read_text().split() == ["second", "first"]
        assert await reader == "stopped"

    async def _last(supervisor: Supervisor) -> object:
        state: object = None
        async for event in supervisor.events():
            state = event.details.get("new", state)
        return state

    run(test())


def test_stop_holds_until_start() -> None:
    """When `stop` returns nothing lives, and nothing starts it but `start`; `restart` brings another process."""

    async def test() -> None:
        async with Supervisor([service(command=shell("setsid sleep 300 & exec sleep 300"))]) as supervisor:
            pid = await pid_of(supervisor)
            await supervisor.stop("web")
            assert not alive(pid)
            assert (of(supervisor).state, of(supervisor).wanted) == ("stopped", False)
            await supervisor.start("web")
            again = await pid_of(supervisor)
            await supervisor.restart("web")
            await until(supervisor, lambda: of(supervisor).pid not in {None, again})

    run(test())


def test_services_come_and_go() -> None:
    """`add` starts one more, `remove` ends it for good; what cannot be is refused with a sentence."""

    async def test() -> None:
        async with Supervisor([service("one")]) as supervisor:
            await supervisor.add(service("two", after=("one",)))
            pid = await pid_of(supervisor, "two")
            for refused, sentence in (
                (supervisor.add(service("two")), "cannot add two: there is one already; remove it first"),
                (
                    supervisor.add(service("x", after=("y",))),
                    "cannot add x: it is after y, which must be added before it",
                ),
                (supervisor.remove("one"), "cannot remove one: two is after it; remove that first"),
                (supervisor.stop("three"), "cannot find the service three (known: one, two)"),
            ):
                with pytest.raises(SupervisionError) as error:
                    await refused
                assert sentence == str(error.value)
            await supervisor.remove("two")
            assert not alive(pid)
            assert [one.name for one in supervisor.status()] == ["one"]
            await supervisor.add(service("two"))
            assert of(supervisor, "two").generation > 1
        with pytest.raises(SupervisionError, match="after its end"):
            supervisor.status()

    run(test())


def test_probes_mean_what_they_mean_for_components(tmp_path: Path) -> None:
    """Not ready, then ready; a failed liveness probe restarts; a dependant waits for readiness."""
    ready, broken = tmp_path / "ready", tmp_path / "broken"

    async def test() -> None:
        probed = service(
            "probed",
            readiness=Probe(check=ExecCheck(command=("test", "-e", str(ready))), period_s=0.1),
            liveness=Probe(
                check=ExecCheck(command=("test", "!", "-e", str(broken))), period_s=0.1, failure_threshold=2
            ),
        )
        async with Supervisor([probed, service("next", after=("probed",))]) as supervisor:
            pid = await pid_of(supervisor, "probed")
            await until(supervisor, lambda: of(supervisor, "probed").ready is False)
            assert of(supervisor, "next").pid is None
            ready.touch()
            await until(supervisor, lambda: of(supervisor, "probed").ready and of(supervisor, "next").pid)
            broken.touch()
            await until(supervisor, lambda: of(supervisor, "probed").pid not in {None, pid})
            broken.unlink()

    run(test())


def test_a_final_exit_is_final_until_start() -> None:
    """An exit status that the spec calls final is not followed by a start; another one is."""

    async def test() -> None:
        async with Supervisor([service(command=shell("exit 3"), final_exits=frozenset({3}))]) as supervisor:
            await until(supervisor, lambda: of(supervisor).state == "exited")
            assert "3" in (of(supervisor).last_exit or "")
            await supervisor.start("web")
            await until(supervisor, lambda: of(supervisor).generation == 2 and of(supervisor).state == "exited")

    run(test())


def test_two_supervisors_never_touch_each_others_services(tmp_path: Path) -> None:
    """The same names, trees with children in sessions of their own: stopping one's leaves the other's alone."""

    async def test() -> None:
        for directories in ((None, None), (tmp_path / "a", tmp_path / "b"), (tmp_path / "a", None)):
            first, second = (
                Supervisor(
                    [service(command=shell(f"setsid sleep 300 & echo $! >{tmp_path}/{name}; exec sleep 300"))],
                    runtime_dir=directory,
                )
                for name, directory in zip(("1", "2"), directories, strict=True)
            )
            async with first:
                async with second:
                    ours, theirs = await pid_of(first), await pid_of(second)
                    children = [int(await line_of(tmp_path / name)) for name in ("1", "2")]
                    await second.stop("web")
                    assert [alive(pid) for pid in (theirs, children[1], ours, children[0])] == [
                        False,
                        False,
                        True,
                        True,
                    ]
                # and a new one there starts its own, in spite of a process of that name elsewhere
                async with Supervisor([service()], runtime_dir=directories[1]) as third:
                    await pid_of(third)
                    assert alive(ours)
            for name in ("1", "2"):
                (tmp_path / name).unlink()

    run(test())


def test_a_service_sees_neither_sockets_nor_the_markers_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is a node's component itself hands nothing of that on: its jobs are not the node's."""
    for name in ("XCE_NODE_NONCE", "XCE_COMPONENT", "XCE_HEARTBEAT_SOCKET", "NOTIFY_SOCKET", "SECRET"):
        monkeypatch.setenv(name, "the node's")

    async def test() -> None:
        async with Supervisor([service(environment={"A": "1"})]) as supervisor:
            pid = await pid_of(supervisor)
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"the node's" not in environment
        assert b"SOCKET" not in environment
        assert b"\0A=1\0" in environment
        assert b"XCE_COMPONENT=web\0" in environment

    run(test())


def test_nothing_around_a_supervisor_changes() -> None:
    """The program's own children keep their statuses, its SIGCHLD handler stays, it does not become a subreaper."""
    heard: list[int] = []
    before = signal.signal(signal.SIGCHLD, lambda number, _: heard.append(number))

    async def test() -> None:
        async with Supervisor([service(command=shell("exit 1"))]) as supervisor:
            ours = subprocess.Popen(["/bin/sh", "-c", "exit 42"])
            os.waitid(os.P_PID, ours.pid, os.WEXITED | os.WNOWAIT)
            await until(supervisor, lambda: of(supervisor).restarts > 2)
            assert ours.wait() == 42
            orphan = subprocess.run(
                ["/bin/sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo $!"],
                capture_output=True,
                text=True,
                check=True,
            )
            found = ProcFs().stat(int(orphan.stdout))
            assert found is not None
            assert found.ppid != os.getpid()
            kill(int(orphan.stdout))

    try:
        run(test())
        assert heard
    finally:
        signal.signal(signal.SIGCHLD, before)


_PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.unit.runtime.test_supervision import service
from node_manager.supervision import Supervisor
async def main():
    async with Supervisor([service("kept"), service("dropped")], runtime_dir=Path(sys.argv[1])) as supervisor:
        async for event in supervisor.events():
            if event.kind == "spawned":
                print(event.service, event.details["pid"], flush=True)
asyncio.run(main())
"""


def test_services_outlive_a_program_that_is_killed(tmp_path: Path) -> None:
    """With a directory, the next supervisor adopts the same processes, and stops what it is not given."""
    directory = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(directory)], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        pids = {name: int(pid) for name, pid in (program.stdout.readline().split() for _ in range(2))}

        async def refused() -> None:
            with pytest.raises(
                SupervisionError, match=f"^cannot supervise in {directory}: process {program.pid} does so"
            ):
                async with Supervisor(runtime_dir=directory):
                    pass

        run(refused())
        program.kill()
    assert [alive(pid) for pid in pids.values()] == [True, True]

    async def test() -> None:
        async with Supervisor([service("kept")], runtime_dir=directory) as supervisor:
            assert await pid_of(supervisor, "kept") == pids["kept"]
            await until(supervisor, lambda: not alive(pids["dropped"]))
            assert of(supervisor, "kept").restarts == 0
        assert not alive(pids["kept"])

    run(test())


_PROBING = """
import asyncio, sys
from pathlib import Path
from tests.unit.runtime.test_supervision import probed
from node_manager.supervision import Supervisor
async def main():
    async with Supervisor([probed(Path(sys.argv[1]))], runtime_dir=Path(sys.argv[1]) / "run"):
        await asyncio.sleep(1000)
asyncio.run(main())
"""


def probed(place: Path) -> ServiceSpec:
    """A service with a probe that writes its pid and hangs."""
    check = ExecCheck(command=shell(f"echo $$ >> {place}/probes; exec sleep 300"))
    return service(liveness=Probe(check=check, period_s=0.1, timeout_s=900))


def test_a_probe_that_hangs_when_its_program_is_killed_is_ended_by_the_next_one(tmp_path: Path) -> None:
    """Its service runs on, and is probed anew."""
    with subprocess.Popen([sys.executable, "-c", _PROBING, str(tmp_path)]) as program:

        async def begun() -> None:
            await line_of(tmp_path / "probes")

        run(begun())
        program.kill()
    first = int((tmp_path / "probes").read_text())
    assert alive(first)

    async def test() -> None:
        async with Supervisor([probed(tmp_path)], runtime_dir=tmp_path / "run") as supervisor:
            while alive(first):
                await asyncio.sleep(0.01)
            while len((tmp_path / "probes").read_text().splitlines()) < 2:
                await asyncio.sleep(0.01)
            assert of(supervisor).restarts == 0

    run(test())


def test_release_leaves_services_to_the_next_supervisor(tmp_path: Path) -> None:
    """A supervisor that is released ends its events and touches nothing; the next one has the same process."""

    async def test() -> None:
        async with Supervisor([service()], runtime_dir=tmp_path / "run") as supervisor:
            pid = await pid_of(supervisor)
            supervisor.release()
        assert alive(pid)
        async with Supervisor([service()], runtime_dir=tmp_path / "run") as supervisor:
            assert await pid_of(supervisor) == pid

    run(test())
    reap_all()  # the first one's child, which the second could not reap


def test_a_final_exit_is_remembered_in_the_directory(tmp_path: Path) -> None:
    """Finished work does not run again because another program supervises it."""
    once = service(command=shell("exit 3"), final_exits=frozenset({3}))

    async def test() -> None:
        async with Supervisor([once], runtime_dir=tmp_path / "run") as supervisor:
            await until(supervisor, lambda: of(supervisor).state == "exited")
            supervisor.release()
        async with Supervisor([once, service("other")], runtime_dir=tmp_path / "run") as supervisor:
            await pid_of(supervisor, "other")
            assert (of(supervisor).state, of(supervisor).generation) == ("exited", 1)

    run(test())


def test_a_supervision_that_fails_itself_says_so() -> None:
    """Our own bug, brought about by a value of a wrong type: nobody waits for ever, and nothing is left running."""

    async def test() -> None:
        broken = service("broken", ("/bin/sleep", 300), after=("other",))  # type: ignore[arg-type]
        pids = []

        async def body() -> None:
            async with Supervisor([service("other"), broken]) as supervisor:
                async for event in supervisor.events():
                    pids.extend([event.details["pid"]] if event.kind == "spawned" else [])

        with pytest.raises(SupervisionError, match="it has failed itself"):
            await body()
        assert [alive(int(pid)) for pid in pids if pid is not None] == [False]

    run(test())


def test_an_end_that_is_interrupted_kills(tmp_path: Path) -> None:
    """A service that is slow to stop is not left behind by a program that is in a hurry."""
    script = f"trap '' TERM; : >{tmp_path}/deaf; while kill -0 $PPID; do sleep 0.05; done"
    deaf = Probe(check=ExecCheck(command=("test", "-e", f"{tmp_path}/deaf")), period_s=0.1)

    async def test() -> None:
        pids: asyncio.Queue[int] = asyncio.Queue()

        async def body() -> None:
            async with Supervisor([service(command=shell(script), readiness=deaf, stop_timeout_s=1000)]) as supervisor:
                await until(supervisor, lambda: of(supervisor).ready)
                pids.put_nowait(await pid_of(supervisor))

        task = asyncio.create_task(body())
        pid = await pids.get()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not alive(pid)

    run(test())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"name": "Web"}, "cannot use the service name 'Web'"),
        ({"command": ()}, "cannot use web: its command is empty"),
        ({"command": ("bin/x",)}, "'bin/x' is a relative path"),
        ({"stop_signal": 9}, "a program cannot handle the stop signal 9"),
        ({"stop_timeout_s": -1}, "cannot use stop_timeout_s -1"),
        ({"stop_timeout_s": float("nan")}, "cannot use stop_timeout_s nan"),
        ({"restart_cap_s": 0.01}, "cannot use restart_cap_s 0.01"),
        ({"restart_factor": 0}, "cannot use restart_factor 0"),
        ({"liveness": Probe(check=TcpCheck(port=1), success_threshold=2)}, "its liveness probe must be 1"),
    ],
)
def test_a_wrong_service_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    """What cannot be is refused where it is written, with a sentence."""
    with pytest.raises(ValueError, match=sentence):
        service(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"period_s": 0.01}, {"timeout_s": 0}, {"failure_threshold": 0}, {"initial_delay_s": 1e9}]
)
def test_a_wrong_probe_is_refused(wrong: dict[str, Any]) -> None:
    """A probe's figures are within the bounds of a role file's."""
    with pytest.raises(ValueError, match=f"cannot use {next(iter(wrong))} "):
        Probe(check=TcpCheck(port=1), **wrong)


def test_kill_scope_process_leaves_what_a_service_started(tmp_path: Path) -> None:
    """The main process alone is ended; its children are nobody's business here."""

    async def test() -> None:
        command = shell(f"setsid sleep 300 & echo $! >{tmp_path}/child; exec sleep 300")
        async with Supervisor([service(command=command, kill_scope=KillScope.PROCESS)]) as supervisor:
            child = int(await line_of(tmp_path / "child"))
            await supervisor.stop("web")
            assert alive(child)
        kill(child)

    run(test())


def test_a_log_that_hangs_holds_up_no_other_service(tmp_path: Path) -> None:
    """The program's loop goes on, the start that hangs fails with a sentence, and comes when the disk answers again."""
    logs = tmp_path / "log"
    logs.mkdir()

    async def test() -> None:
        with hung_directory(logs) as fail:
            async with Supervisor([service("hangs")], log_dir=logs) as hanging, Supervisor([service()]) as other:
                kill(await pid_of(other))
                await until(other, lambda: of(other).pid and of(other).restarts)
                assert of(hanging, "hangs").pid is None
                await until(hanging, lambda: "does not answer within" in of(hanging, "hangs").reason)
                assert f"the log {logs / 'hangs.log'}" in of(hanging, "hangs").reason
                fail()
                await pid_of(hanging, "hangs")

    run(test())


def test_every_field_of_a_component_was_thought_of() -> None:
    """A new field of the core's spec is either offered to services or left out on purpose."""
    left_out = {
        "role", "environment_file", "pre_start", "reload", "run_while", "stop_when", "restart_on_change", "states",
        "max_lease_ns", "drain", "notify_access", "oom_score_adj",
    }  # fmt: skip
    offered = {
        "name", "command", "user", "environment", "working_directory", "stop", "restart", "startup", "readiness",
        "liveness", "after", "exit_status", "limits", "log",
    }  # fmt: skip
    assert left_out | offered == {field.name for field in fields(ComponentSpec)}
