"""The configuration of this host: read, validated and frozen by a short-lived child; every problem at once.

This is the face of the package for the agent and the commands. It imports the standard library alone.
"""

from typing import Any

from node_manager.config.child import ChildError, talk, talk_async
from node_manager.config.codec import decode_spec
from node_manager.config.describe import describe
from node_manager.config.problems import ConfigInvalid, Problem
from node_manager.config.sources import Sources, signature
from node_manager.config.users import required_user, user_problem
from node_manager.core.spec import NodeSpec

__all__ = [
    "VALIDATION_TIMEOUT_S",
    "ConfigInvalid",
    "Problem",
    "Sources",
    "describe",
    "load",
    "load_async",
    "required_user",
    "signature",
    "user_problem",
]

VALIDATION_TIMEOUT_S = 10.0
"""A right configuration takes 0.3 s; 30 times that on a host that is busy booting."""


def load(sources: Sources, timeout_s: float = VALIDATION_TIMEOUT_S) -> NodeSpec:
    """The valid configuration; ConfigInvalid with every problem otherwise. Blocks, but never without a bound."""
    try:
        return _spec(talk(sources, timeout_s), sources)
    except ChildError as error:
        raise _no_answer(error, sources) from error


async def load_async(sources: Sources, timeout_s: float = VALIDATION_TIMEOUT_S) -> NodeSpec:
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
    problem = Problem(
        file=str(sources.config),
        line=0,
        field="",
        problem=f"cannot validate the configuration: {error}",
        remedy=(
            "see whether the file systems of the configuration and of the role files answer "
            "and whether a file in them is very large or deeply nested"
        ),
    )
    return ConfigInvalid((problem,))
