"""`xce-nodectl status` for people: a header, what is wrong, the components, the facts."""

from __future__ import annotations

import re

from node_manager.cli.table import FIRST, Column, layout
from node_manager.cli.terminal import BOLD, DIM, GREEN, RED, YELLOW, Moments, Screen, duration, jobs, one_line

TYPE_CHECKING = False  # typing itself costs some milliseconds at each start of a command
if TYPE_CHECKING:
    from typing import Any

COMPONENTS = (
    Column("COMPONENT", shrink=12),
    Column("ROLE", shrink=6, drop=FIRST),
    Column("STATE"),
    Column("READY"),
    Column("PID", right=True, drop=3),
    Column("UPTIME", right=True, drop=4),
    Column("RESTARTS", right=True, drop=2),
    Column("REASON", shrink=12),
    Column("NEXT", shrink=8, drop=5),
)
FACTS = (
    Column("FACT", shrink=12),
    Column("VALUE"),
    Column("AUTHORITY", shrink=10, drop=1),
    Column("TERM", right=True),
    Column("VALID FOR", right=True),
)
_STATE_COLOURS = {
    "running": GREEN,
    "starting": YELLOW,
    "stopping": YELLOW,
    "killing": RED,
    "backoff": RED,
    "failed": RED,
    "stopped": DIM,
    "exited": DIM,
}
_YES_NO = {True: "yes", False: "no", None: "?"}
_COMPONENT_FACTS = "component."
"""Facts that the table of components shows already."""
_LATCHED_FACTS = ("host.", "node.", "operator.")
"""Facts that are news only where they are not false."""
_MAINTENANCE = "node.maintenance"
_HOLD = "operator-hold"
_CONSEQUENCES = ("dependency", "node-stopping", "maintenance")
"""Rules under which a component is not the trouble itself: another one, or somebody's word, is."""
_UNREMARKABLE = "the configuration wants it"
"""The reason that says nothing more than that all is well: what the component says of itself is worth more."""
_ROUTINE = ("probe", "stop, unless the lease is renewed")
"""What comes next again and again as long as all is well: `why` shows it, the table would only be noisy."""


def render(body: dict[str, Any], screen: Screen) -> list[str]:
    """Render a clean status body for this screen."""
    width, _ = screen.size()
    moments = Moments(body)
    lines = [
        _headline(body, screen),
        *_host(body["host"], moments, screen),
        *_maintenance(body["node"], screen),
        *_troubles(body, screen),
    ]
    components = body["components"]
    if components:
        lines += ["", *_components(components, moments, screen, width)]
    facts = [fact for fact in body["facts"] if _worth_showing(fact)]
    if facts:
        lines += ["", *_facts(facts, moments, screen, width)]
    troubled = [component for component in components if _troubled(component)]
    if troubled:
        troubled.sort(key=lambda component: component["rule"] in _CONSEQUENCES)
        lines += ["", f"More: xce-nodectl why {' '.join(one_line(component['name']) for component in troubled)}"]
    return lines


def _headline(body: dict[str, Any], screen: Screen) -> str:
    node = body["node"]
    ready = screen.paint("ready", GREEN) if node["ready"] else screen.paint("NOT READY", RED, BOLD)
    parts = [screen.paint(one_line(node["name"]), BOLD), one_line(node["state"]), ready]
    held = sum(component["rule"] == _HOLD for component in body["components"])
    if held:
        # A component that was stopped by hand does not make the node unready: somebody must be told all the same.
        parts.append(screen.paint(f"{held} held", YELLOW, BOLD))
    parts.append(f"host {one_line(body['host']['state'])}")
    if node.get("maintenance") or any(f["name"] == _MAINTENANCE and f["value"] is True for f in body["facts"]):
        parts.append(screen.paint("maintenance", YELLOW, BOLD))
    if node["roles"]:
        parts.append(f"roles {', '.join(one_line(role) for role in node['roles'])}")
    if node.get("agent_pid") is not None:
        version = one_line(node.get("agent_version"))
        parts.append(f"agent {f'{version} ' if version else ''}pid {one_line(node['agent_pid'])}")
    return "  ".join(parts)


def _host(host: dict[str, Any], moments: Moments, screen: Screen) -> list[str]:
    """Say who took the host out of use, why, and how long it still has."""
    if host["state"] == "active":
        return []
    parts = [f"host is {one_line(host['state'])}"]
    if host["deadline_ns"] is not None and host["state"] == "draining":
        parts.append(moments.deadline(host["deadline_ns"]))
    old = host.get("jobs_left_last_known")
    if host["jobs_left"] or (host["jobs_left"] is not None and not old):
        parts.append(jobs(host["jobs_left"], " left", old=old))
    if host["by"]:
        parts.append(f"by {one_line(host['by'])}")
    sentence = ", ".join(parts)
    if host["reason"]:
        sentence += f": {one_line(host['reason'])}"
    return [screen.paint(sentence, YELLOW)]


def _maintenance(node: dict[str, Any], screen: Screen) -> list[str]:
    """Say who switched automatic starts and kills off, and why."""
    said = one_line(node.get("maintenance"))
    return [screen.paint(f"maintenance by {said}", YELLOW)] if said else []


def _troubles(body: dict[str, Any], screen: Screen) -> list[str]:
    """Show in full what is wrong with the configuration, and every warning."""
    lines = []
    if body["node"]["config_error"]:
        lines.append(screen.paint("CONFIGURATION ERROR", RED, BOLD))
        lines += [f"  {one_line(line)}" for line in body["node"]["config_error"].splitlines()]
    lines += [f"{screen.paint('WARNING', YELLOW, BOLD)} {one_line(warning)}" for warning in body.get("warnings", [])]
    return lines


def _components(components: list[dict[str, Any]], moments: Moments, screen: Screen, width: int) -> list[str]:
    rows = [
        [
            one_line(component["name"]),
            one_line(component["role"]),
            one_line(component["state"]),
            _YES_NO[component["ready"]],
            one_line(component["pid"]) or "-",
            "-" if component.get("uptime_ns") is None else duration(component["uptime_ns"]),
            one_line(component["restarts"]),
            _reason(component),
            _next(component, moments),
        ]
        for component in components
    ]

    def paint(text: str, title: str, number: int) -> str:
        if number < 0:
            return screen.paint(text, BOLD)
        component = components[number]
        if title == "STATE":
            return screen.paint(text, _STATE_COLOURS.get(component["state"], YELLOW))
        if title == "READY" and component["desired"] == "up":
            return screen.paint(text, *{True: (GREEN,), False: (RED,), None: (YELLOW,)}[component["ready"]])
        return text

    table = layout(COMPONENTS, rows, width, paint)
    unabridged = [
        f"{one_line(component['name'])}: {'; next '.join(filter(None, texts))}"
        for component, line, *texts in zip(components, table[1:], *_reason_and_next(rows), strict=True)
        if component["ready"] is not True and any(text not in line for text in texts)
    ]
    return [*table, *([""] if unabridged else []), *unabridged]


def _reason(component: dict[str, Any]) -> str:
    """Why it is so; where all is as configured, what the component itself says. Its jobs come first, said once."""
    text = one_line(component["reason"])
    if component["ready"] and text == _UNREMARKABLE:
        text = one_line(component.get("status_text")) or text
    verdict = component.get("verdict")
    if verdict not in {None, "ok"} and not re.search(rf"\b{re.escape(verdict)}: ", text):
        text = f"{one_line(verdict)}; {text}"
    count = component.get("jobs")
    old = component.get("jobs_last_known")
    if count is None or (old and not count) or re.search(rf"\b{re.escape(jobs(count))}\b", text):
        return text
    return "; ".join(filter(None, [jobs(count, old=old), text]))


def _next(component: dict[str, Any], moments: Moments) -> str:
    following = component["next"]
    if component["ready"] and following is not None and following["what"] in _ROUTINE:
        return ""
    return moments.next(following)


def _reason_and_next(rows: list[list[str]]) -> tuple[list[str], list[str]]:
    """The two columns that are repeated in full below the table where it had no room for them."""
    titles = [column.title for column in COMPONENTS]
    reason, following = titles.index("REASON"), titles.index("NEXT")
    return [row[reason] for row in rows], [row[following] for row in rows]


def _facts(facts: list[dict[str, Any]], moments: Moments, screen: Screen, width: int) -> list[str]:
    rows = []
    for fact in facts:
        until = fact["valid_until_ns"]
        held = "-" if until is None else duration(until - moments.now_ns) if until > moments.now_ns else "expired"
        value = {True: "true", False: "false", None: "unknown"}[fact["value"]]
        term = "-" if fact["term"] is None else one_line(fact["term"])
        rows.append([one_line(fact["name"]), value, one_line(fact["authority"]) or "-", term, held])
    return layout(FACTS, rows, width, lambda text, _, number: screen.paint(text, BOLD) if number < 0 else text)


def _worth_showing(fact: dict[str, Any]) -> bool:
    if fact["name"].startswith(_COMPONENT_FACTS):
        return False
    return fact["value"] is not False or not fact["name"].startswith(_LATCHED_FACTS)


def _troubled(component: dict[str, Any]) -> bool:
    """It should be ready and is not: its whole story is worth reading."""
    return component["desired"] == "up" and component["ready"] is not True
