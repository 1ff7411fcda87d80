"""The comparison itself, in its short form: real supervisors, real figures, no aim to miss on a busy machine."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import tools
from benchmarks.peers.adapter import Places

ROOT = Path(__file__).parents[3]
PEERS = ["xce", "floor-c", "floor-asyncio-popen"]
"""Ours and the floors: they need nothing that is not here already. Others take part where they are installed."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_short_form_measures_every_metric_of_every_peer(tmp_path: Path) -> None:
    """No session fails, each peer has its figures, and the ratios are printed. The times themselves are not judged."""
    installed = [name for name, program in (("runit", "runsvdir"), ("s6", "s6-svscan")) if shutil.which(program)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.peers", "--short"),
            *(f"--out={tmp_path}/out", f"--tools={tmp_path}/tools", f"--peers={','.join((*PEERS, *installed))}"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    samples = [json.loads(line) for line in (tmp_path / "out" / "raw.jsonl").read_text().splitlines()]
    assert [sample for sample in samples if sample["metric"] == "error"] == []
    figures = {(sample["peer"], sample["metric"]) for sample in samples if sample["values"]}
    of_all = {"start_ms", "pss_mib", "uss_mib", "idle_cpu_percent", "idle_wakeups_per_s", "restart_ms", "mass_crash_ms"}
    of_all |= {"stop_ms"}
    of_ours = {"status_command_ms", "status_kept_ms", "adoption_ms", "change_ms", "storm_status_ms"}
    of_ours |= {"primary_to_exec_ms", "standby_to_sigterm_ms"}
    expected = {(peer, metric) for peer in (*PEERS, *installed) for metric in of_all}
    expected |= {(peer, "storm_restart_ms") for peer in PEERS}  # runit and s6 wait for longer than the short storm
    expected |= {("xce", metric) for metric in of_ours}
    assert expected - figures == set()
    adopted = [sample for sample in samples if sample["metric"] == "adoption_ms"]
    assert [sample["notes"]["started_anew"] for sample in adopted] == [0]
    changed = [sample for sample in samples if sample["metric"] == "change_ms" and sample["peer"] == "xce"]
    assert [sample["notes"]["others_started"] for sample in changed] == [0]
    assert "ours by it" in (tmp_path / "out" / "report.md").read_text()
    assert (tmp_path / "out" / "performance.svg").read_text().startswith("<svg")


def test_a_missing_peer_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    """Nothing is measured in its place, and nobody has to look for how to get it."""
    places = Places(built=tmp_path, installed=tmp_path / "none", ours=tmp_path)
    found = tools.missing(["supervisord", "pm2", "xce", "floor-asyncio-popen"], places)
    assert {"supervisord", "pm2", "xce"} == set(found)
    assert found["pm2"].endswith(f"install it with: packaging/bench-setup.sh {tmp_path}/none")
    assert found["xce"].endswith("install it with: make .venv/.package")
