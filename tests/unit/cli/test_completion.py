"""The completion for bash, as the package makes it of the commands' own parsers."""

import subprocess
import sys
from pathlib import Path

from tests.unit.api.fake import Service
from tests.unit.cli.conftest import ROOT


def complete(directory: Path, service: Service, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    make = [sys.executable, "packaging/completion/make_completion.py", str(directory)]
    subprocess.run(make, check=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, timeout=60)
    command = directory / "bin" / "xce-nodectl"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m node_manager.cli.nodectl "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    script = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _xce_nodectl; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script, "complete", directory / "xce-nodectl", *words],
        check=True,
        cwd=ROOT,
        env={"PATH": f"{command.parent}:/usr/bin:/bin", "XCE_STATUS_SOCKET": str(service.path)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return done.stdout.split()


def test_components_are_asked_of_the_agent(service: Service, tmp_path: Path) -> None:
    """Names that exist now, beside the options of the command."""
    offered = complete(tmp_path, service, "xce-nodectl", "logs", "")
    assert {"controller", "worker", "--follow", "-n"} <= set(offered)
    assert "node-0042" not in offered


def test_commands_are_completed(service: Service, tmp_path: Path) -> None:
    """Each by its beginning."""
    assert complete(tmp_path, service, "xce-nodectl", "lo") == ["logs"]
