"""A command or an agent that asks for its own name is not held up by a directory service that hangs."""

import os
import pwd
import threading

from node_manager.cli.own_name import own_name
from node_manager.config.users import user_problem
from node_manager.core.spec import ComponentSpec, HostSpec, NodeSpec

BOUND_S = 30.0


def test_a_user_has_a_name_or_none() -> None:
    """The host's answer, and an empty name for a container's arbitrary user."""
    assert pwd.getpwuid(os.geteuid()).pw_name == own_name(os.geteuid(), answer_s=BOUND_S)
    assert own_name(4_000_000_000, answer_s=BOUND_S) == ""


def test_a_directory_that_hangs_is_waited_for_within_a_bound() -> None:
    """Then the name is not known: none is made up."""
    answers = threading.Event()

    def ask(uid: int) -> pwd.struct_passwd:
        answers.wait(BOUND_S)
        return pwd.getpwuid(uid)

    try:
        assert own_name(0, ask=ask, answer_s=0.01) is None
    finally:
        answers.set()


def test_an_agent_whose_name_nobody_tells_is_not_called_the_wrong_one() -> None:
    """Whether it can run a component as its user is told by the start, which compares numbers."""
    component = ComponentSpec(name="web", role="r", command=("/bin/true",), user="www")
    spec = NodeSpec(host=HostSpec(name="h"), roles=(), components=(component,))
    assert user_problem(spec, None, is_root=False) is None
    assert "the agent runs as xce" in (user_problem(spec, "xce", is_root=False) or "")
