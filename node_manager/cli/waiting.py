"""`xce-nodectl wait`: what can be waited for, and what is still missing."""

from __future__ import annotations

import time

from node_manager.cli.changes import Changes
from node_manager.cli.terminal import Moments, clean, duration, jobs, one_line, state_words

TYPE_CHECKING = False  # typing itself costs some milliseconds at each start of a command
if TYPE_CHECKING:
    from typing import Any

    from node_manager.api.client import Client

STATES = ("stopped", "starting", "running", "stopping", "killing", "backoff", "exited", "failed")
_WITHOUT_PROCESS = ("stopped", "exited", "failed")
_HOST_STATES = {"drained": ("drained", "decommissioned"), "decommissioned": ("decommissioned",)}
"""A decommissioned host is past being drained."""
_STATE = "state="
_WAITING_CONFIG = "waiting-config"
GOALS = ("ready", "running", "stopped", *_HOST_STATES)
_LOOK_AGAIN_S = 2.0
"""A status is looked at so often even if no event says that it changed."""
_NS_PER_S = 1_000_000_000


class UnknownComponent(Exception):  # noqa: N818  it is what the caller named, not a fault of ours
    """The agent has its configuration and no component of this name; the sentence names those that it has."""


def check_known(body: dict[str, Any], component: str | None) -> None:
    """Raise UnknownComponent where waiting for this component would be in vain, by this (clean) status."""
    known = [one_line(entry["name"]) for entry in body["components"]]
    # Without a configuration nothing is known yet, and every name may still come.
    if component is None or component in known or body["node"]["state"] == _WAITING_CONFIG:
        return
    raise UnknownComponent(f"no component is called {component!r}; there are: {', '.join(known) or 'none'}")


def goal_error(goal: str, component: str | None) -> str | None:
    """Say what is wrong with a goal, None where it can be waited for."""
    if goal in _HOST_STATES and component is not None:
        return f"{goal} is about the host: name no component"
    if goal in GOALS:
        return None
    if not goal.startswith(_STATE):
        return f"unknown goal {goal!r}: use {', '.join(GOALS)} or state=NAME"
    if goal.removeprefix(_STATE) not in STATES:
        return f"unknown state {goal.removeprefix(_STATE)!r}: use one of {', '.join(STATES)}"
    if component is None:
        return "state=NAME needs a component"
    return None


def missing(body: dict[str, Any], goal: str, component: str | None) -> list[str]:
    """Say what still stands between this (clean) status and the goal, a sentence each; nothing: it is reached."""
    if goal in _HOST_STATES:
        return [] if body["host"]["state"] in _HOST_STATES[goal] else [_host_sentence(body)]
    components = body["components"]
    if component is not None:
        components = [known for known in components if known["name"] == component]
        if not components:
            return [f"node is {one_line(body['node']['state'])}"]
    elif goal == "ready":
        return [] if body["node"]["ready"] else _node_not_ready(body)
    elif goal == "running":
        components = [known for known in components if known["desired"] == "up"]
        if body["node"]["state"] != "running":
            return [f"node is {one_line(body['node']['state'])}"]
    return [_sentence(known) for known in components if not _reached(known, goal)]


def wait(client: Client, goal: str, component: str | None, timeout_ns: int) -> list[str]:
    """Wait until nothing is missing, at most `timeout_ns`; what is missing then. An absent agent is waited for too.

    Raises UnknownComponent as soon as the agent says that it knows no such component.
    """
    from node_manager.api.client import NotReachable

    deadline_s = time.monotonic() + timeout_ns / _NS_PER_S
    with Changes(client) as changes:
        while True:
            try:
                answer = client.get("/v1/status")
                lacking = [f"agent says {answer.status}"]
                if answer.ok:
                    body = clean(answer.body)
                    check_known(body, component)
                    lacking = missing(body, goal, component)
            except NotReachable as error:
                lacking = [str(error)]
            left_s = deadline_s - time.monotonic()
            if not lacking or left_s <= 0:
                return lacking
            changes.wait(min(left_s, _LOOK_AGAIN_S))


def timed_out(goal: str, component: str | None, timeout_ns: int, lacking: list[str]) -> str:
    """Say that the wait was in vain, and why."""
    subject = "node" if component is None else component
    return f"{subject} is not {goal} after {duration(timeout_ns)}: {'; '.join(lacking)}"


def _reached(component: dict[str, Any], goal: str) -> bool:
    if goal == "ready":
        return component["ready"] is True
    if goal == "running":
        return bool(component["state"] == "running")
    if goal == "stopped":
        return component["state"] in _WITHOUT_PROCESS
    return bool(component["state"] == goal.removeprefix(_STATE))


def _host_sentence(body: dict[str, Any]) -> str:
    """Where the host stands, and what a drain still waits for."""
    host = body["host"]
    parts = [f"host is {one_line(host['state'])}"]
    if host["jobs_left"] is not None:
        parts.append(jobs(host["jobs_left"], " left", old=host.get("jobs_left_last_known")))
    if host["deadline_ns"] is not None:
        parts.append(Moments(body).deadline(host["deadline_ns"]))
    return ", ".join(parts)


def _node_not_ready(body: dict[str, Any]) -> list[str]:
    node = body["node"]
    lacking = [] if node["state"] == "running" else [f"node is {one_line(node['state'])}"]
    if node["config_error"]:
        lacking.append(f"configuration: {one_line(node['config_error'])}")
    lacking += [_sentence(known) for known in body["components"] if known["desired"] == "up" and not known["ready"]]
    return lacking or ["node is not ready"]


def _sentence(component: dict[str, Any]) -> str:
    ready = {True: "", False: ", not ready", None: ", readiness unknown"}[component["ready"]]
    reason = f" ({one_line(component['reason'])})" if component["reason"] else ""
    return f"{one_line(component['name'])} is {state_words(component['state'])}{ready}{reason}"
