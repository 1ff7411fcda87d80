"""`xce-node-manager self-check`: whether this program could take over from a running one. It acts on nothing.

For `reexec` alone: the state comes on standard input, the answer is one line of JSON, the last of standard output.
"""

import json
import os

from node_manager import __version__
from node_manager.cli.daemon import EX_NOT_SO, EX_OK, user_name
from node_manager.config.load import ConfigInvalid, ConfigUnreadError, Sources, load, user_problem
from node_manager.runtime import handover
from node_manager.runtime.clock import boot_id

READING_S = 15.0
"""Less than the check as a whole may take, so that its answer says what it was that took so long."""


def self_check(sources: Sources) -> int:
    """Read the state and the configuration; print whether both are understood."""
    from node_manager.cli import running  # noqa: F401 - everything that the agent needs must be there

    problem = _problem(sources)
    print(json.dumps({"version": __version__, "problem": problem}))
    return EX_OK if problem is None else EX_NOT_SO


def _problem(sources: Sources) -> str | None:
    try:
        handed = handover.read(0)
    except handover.HandoverError as error:
        return f"{error}; use `systemctl restart` instead, components run on"
    node = handed.agent.node
    if node.boot_id not in {"", boot_id()}:
        return "the state is of another boot"
    if node.config_error is not None:
        return None  # the running program does without the file as well
    try:
        spec = load(sources, READING_S)
    except ConfigUnreadError as error:
        return f"nobody could read the configuration, which may be right: {error}"
    except ConfigInvalid as error:
        problems = "; ".join(str(problem) for problem in error.problems)
        return f"it refuses the configuration: {problems}"
    return user_problem(spec, user_name(), is_root=os.geteuid() == 0)
