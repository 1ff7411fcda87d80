"""The short-lived child: reads the request from its argument, answers on standard output, ends.

The request is JSON with the paths of `Sources`; the answer is `{"spec": ...}`, or `{"problems": [...], "absent": ...}`.
pydantic and the YAML parser are loaded here and nowhere else. The limits below are a second line behind the agent's
time limit: they hold also when the agent is gone.
"""

import gc
import json
import resource
import signal
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from node_manager.config.codec import encode_spec
from node_manager.config.problems import ConfigInvalid, Problem
from node_manager.config.sources import Sources

MEMORY_BYTES = 512 * 1024 * 1024
"""Address space: an ordinary run takes a fifth of it."""
CPU_S = 20
"""Processor time: an ordinary run takes 0.3 s."""
WALL_S = 60
"""Time at all, hanging reads included, for a validator whose agent died."""


def main(request: str) -> None:
    """Validate what `request` names and write the answer."""
    gc.disable()  # it ends before what it leaves behind counts, and searching for that takes a tenth of its time
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(WALL_S)
    asked = json.loads(request)
    sources = Sources(
        config=Path(asked["config"]),
        roles_dirs=tuple(Path(directory) for directory in asked["roles_dirs"]),
        runtime_dir=Path(asked["runtime_dir"]),
        state_dir=Path(asked["state_dir"]),
    )
    sys.stdout.write(json.dumps(answer(sources)))


def answer(sources: Sources) -> dict[str, Any]:
    """The answer, whatever happens to validation."""
    try:
        from node_manager.config.assemble import assemble

        return {"spec": encode_spec(assemble(sources))}
    except ConfigInvalid as invalid:
        return {"problems": [_encoded(problem) for problem in invalid.problems], "absent": invalid.absent}
    except (MemoryError, RecursionError) as error:
        what = f"cannot validate the configuration: it needs too much memory ({type(error).__name__})"
        remedy = "no configuration needs that; look for a file that is very large or deeply nested"
        return {"problems": [_encoded(Problem(str(sources.config), 0, "", what, remedy))]}
    except Exception as error:  # noqa: BLE001  the top of the process: the agent must be told whatever it was
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"cannot validate the configuration: {type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        remedy = "this is a fault of the node manager or of its installation: reinstall it, or report this line"
        return {"problems": [_encoded(Problem(str(sources.config), 0, "", what, remedy))]}


def _encoded(problem: Problem) -> dict[str, Any]:
    """As JSON, fit to be printed: names of files need not be UTF-8."""
    return {
        name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for name, value in asdict(problem).items()
    }
