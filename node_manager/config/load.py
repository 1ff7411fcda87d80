"""The configuration of this host: read, validated and frozen by a short-lived child; every problem at once.

This is the face of the package for the agent and the commands. It imports the standard library alone.
"""

from typing import Any

from node_manager.config.child import ChildError, UnheardError, talk, talk_async
from node_manager.config.codec import decode_spec
from node_manager.config.describe import describe
from node_manager.config.problems import ConfigInvalid, ConfigUnreadError, Problem
from node_manager.config.sources import Sources, signature
from node_manager.config.users import required_user, user_problem
from node_manager.core.spec import NodeSpec

__all__ = [
    "ConfigInvalid",
    "ConfigUnreadError",
    "Problem",
    "Sources",
    "describe",
    "load",
    "load_async",
    "required_user",
    "signature",
    "user_problem",
]

COMMAND_TIMEOUT_S = 45.0
"""A right configuration takes 0.3 s. A person who waits for a command on a starved host would rather wait than be told
nothing; whatever takes longer hangs."""
AGENT_TIMEOUT_S = 10.0
"""An agent that has yet to take charge goes on with the last good configuration then."""


def load(sources: Sources, timeout_s: float = COMMAND_TIMEOUT_S) -> NodeSpec:
    """The valid configuration; ConfigInvalid with every problem otherwise, ConfigUnreadError where nobody could tell.

    Blocks, but never without a bound.
    """
    try:
        return _spec(talk(sources, timeout_s), sources)
    except ChildError as error:
        raise _no_answer(error, sources) from error


async def load_async(sources: Sources, timeout_s: float = AGENT_TIMEOUT_S) -> NodeSpec:
    """Like `load`, for the agent's loop: nothing blocks and no thread is started."""
    try:
        return _spec(await talk_async(sources, timeout_s), sources)
    except ChildError as error:
        raise _no_answer(error, sources) from error


def _spec(answer: dict[str, Any], sources: Sources) -> NodeSpec:
    try:
        if "spec" in answer:
            return decode_spec(answer["spec"])
        problems = tuple(Problem(**problem) for problem in answer["problems"])
    except (ValueError, TypeError, KeyError) as error:
        # The validator's code is read from the disk now, the agent's was read when it started.
        raise ConfigInvalid(
            (
                Problem(
                    file=str(sources.config),
                    line=0,
                    field="",
                    problem=f"cannot understand the validator's answer: {error}",
                    remedy="the installed version is not the running one: restart the node manager",
                ),
            )
        ) from error
    raise ConfigInvalid(problems, absent=answer.get("absent") is True)


def _no_answer(error: ChildError, sources: Sources) -> ConfigInvalid:
    unheard = isinstance(error, UnheardError)
    if unheard:
        remedy = (
            "nothing is known to be wrong with it: the host is short of processor time or memory, or a file system of "
            "the configuration or of the role files does not answer; try again when that is over"
        )
    else:
        remedy = "see whether a file of the configuration or a role file is very large or deeply nested"
    problem = Problem(
        file=str(sources.config),
        line=0,
        field="",
        problem=f"cannot validate the configuration: {error}",
        remedy=remedy,
    )
    return ConfigUnreadError((problem,)) if unheard else ConfigInvalid((problem,))
