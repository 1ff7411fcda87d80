"""Components' output in files: rotated by the real logrotate as the package sets it up, and shown meanwhile."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.host import Host, wait_until

LOGROTATE = shutil.which("logrotate", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
CONFIGURATION = Path(__file__).parents[2] / "packaging" / "logrotate" / "xce-node-manager"


@pytest.fixture
def echo(make_host: Callable[..., Host], place: Path) -> Host:
    """A host that runs a component which prints each line that is written into the FIFO `in`."""
    os.mkfifo(place / "in")
    script = f'while read -r line; do echo "$line"; done <>{place / "in"}'
    component = {"command": ["sh", "-c", script], "log": "file"}
    body = {"role": "r", "user": "inherit", "components": {"echo": component}}
    host = make_host(roles=("r",), role_files={"r": body})
    host.start()
    host.wait_for("echo", state="running")
    return host


def say(host: Host, *lines: str) -> None:
    """Have the component print lines; return once they are in its file."""
    with (host.base.parent / "in").open("w", encoding="ascii") as pipe:
        pipe.write("".join(f"{line}\n" for line in lines))
    log = host.log_dir / "echo.log"
    wait_until(lambda: log.read_text(encoding="ascii").endswith(f"{lines[-1]}\n"), f"{lines[-1]} is printed")


def rotate(host: Host, configuration: Path) -> None:
    """Run logrotate as if its day had come."""
    assert LOGROTATE is not None
    command = [LOGROTATE, "--force", "--state", str(host.base / "rotated"), str(configuration)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout + done.stderr == ""


@pytest.mark.skipif(LOGROTATE is None, reason="logrotate is not installed: run packaging/dev-setup.sh")
def test_rotation_of_a_running_components_file(echo: Host) -> None:
    """The component writes on at the new beginning; a follower shows every line once, and `logs` the older ones too."""
    configuration = echo.base / "logrotate.conf"
    text = CONFIGURATION.read_text(encoding="ascii")
    assert text.count("/var/log/xce/*.log") == 1
    configuration.write_text(text.replace("/var/log/xce", str(echo.log_dir)), encoding="ascii")
    configuration.chmod(0o644)
    log = echo.log_dir / "echo.log"
    before = echo.pids()

    say(echo, "one", "two")
    command = [str(echo.base / "bin" / "xce-nodectl"), "logs", "--follow", "echo"]
    with subprocess.Popen(command, env=echo.environment(), stdout=subprocess.PIPE, text=True) as follower:
        try:
            assert follower.stdout is not None
            assert [follower.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
            rotate(echo, configuration)
            assert log.read_bytes() == b""
            say(echo, "three")
            assert log.read_bytes() == b"three\n"  # at the beginning, not after a hole
            assert follower.stdout.readline() == "three\n"
            say(echo, "four")
            rotate(echo, configuration)
            say(echo, "five")
            assert [follower.stdout.readline() for _ in range(2)] == ["four\n", "five\n"]
        finally:
            follower.kill()
    assert sorted(path.name for path in echo.log_dir.iterdir()) == ["echo.log", "echo.log.1", "echo.log.2.gz"]
    assert echo.ctl("logs", "echo", "-n", "2").splitlines() == ["four", "five"]
    assert before == echo.pids()
