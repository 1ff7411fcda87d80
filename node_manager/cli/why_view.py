"""`xce-nodectl why` and `events` for people: who decided what, since when, and what comes next."""

from __future__ import annotations

from node_manager.api.text import printable
from node_manager.cli.table import cut
from node_manager.cli.terminal import (
    BOLD,
    GREEN,
    NS_PER_S,
    RED,
    YELLOW,
    Moments,
    Screen,
    clock,
    one_line,
    state_words,
)

TYPE_CHECKING = False  # typing itself costs some milliseconds at each start of a command
if TYPE_CHECKING:
    from typing import Any

HISTORY_SHOWN = 8
"""Events shown: what fits a screen beside the rest."""
LOG_TAIL_BYTES = 8192
"""What is read of a log: more than a few lines of any length that a person reads."""
LOG_SHOWN = 5
"""Last lines of the component's output shown: where a program that cannot start says why."""
LOG_LINE_CHARS = 400
"""Of one line of output: some programs print a page on one line."""
_TELLING = ("component.exited", "component.probe_failed", "component.evidence", "command.")
"""Names, or their beginnings, of events of which the newest is always shown: what happened, and who wanted it."""
_LABEL_WIDTH = 10
_READY = {True: "ready", False: "not ready", None: "readiness unknown"}
_EVENT_FIELDS = ("seq", "at", "event", "component", "count", "first_at")
_QUOTED = frozenset(' "=')
"""A value with one of these stands in quotes, or it could be taken for several."""


def render(body: dict[str, Any], screen: Screen) -> list[str]:
    """Render a clean explanation for this screen."""
    moments = Moments(body)
    colour = GREEN if body["state"] == "running" and body["ready"] else YELLOW if body["state"] == "running" else RED
    state = screen.paint(state_words(body["state"]), colour, BOLD)
    return [
        f"{screen.paint(one_line(body['component']), BOLD)} is {state}: {one_line(body['reason'])}",
        "",
        *_labelled("since", [f"{moments.clock(body['since_ns'])} ({moments.ago(body['since_ns'])})"]),
        *_labelled("wanted", [f"{one_line(body['desired'])}; {_READY[body['ready']]}; role {one_line(body['role'])}"]),
        *_labelled("verdict", _verdict(body)),
        *_labelled("rule", _ruling(body, moments)),
        *_labelled("also", [_claim(claim, moments) for claim in _others(body)]),
        *_labelled("last exit", _last_exit(body)),
        *_labelled("probes", [_probe(probe, moments) for probe in body["probes"]]),
        *_labelled("next", [_next(body["next"], moments)]),
        *_labelled("log", _log(body)),
        *_labelled("history", [event_line(event, with_component=False) for event in _history(body["history"])]),
    ]


def tail(path: str | None) -> list[str]:
    """Read the last lines of a component's log; empty without the right to. Not in the agent: the disk may hang."""
    if path is None:
        return []
    import os
    import stat

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return []
        data = os.pread(descriptor, LOG_TAIL_BYTES, max(0, found.st_size - LOG_TAIL_BYTES))
        return data.decode(errors="replace").splitlines()[-LOG_SHOWN:]
    except OSError:
        return []
    finally:
        os.close(descriptor)


def event_line(event: dict[str, Any], *, with_component: bool = True) -> str:
    """Render one event: local time, component, name, its fields, and how often it was repeated."""
    parts = [_local(event["at"])]
    if with_component:
        parts.append(one_line(event.get("component")) or "-")
    parts.append(one_line(event["event"]))
    parts += [
        f"{one_line(key)}={_value(value)}"
        for key, value in event.items()
        if key not in _EVENT_FIELDS and value is not None
    ]
    if event.get("count", 1) > 1:
        since = f" since {_time_of_day(event['first_at'], event['at'])}" if event.get("first_at") else ""
        parts.append(f"({event['count']} times{since})")
    return "  ".join(parts)


def _history(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Choose what is shown: the newest of each telling kind, however old, then the latest; in their order."""
    chosen: set[int] = set()
    for kind in _TELLING:
        places = [place for place, event in enumerate(events) if one_line(event["event"]).startswith(kind)]
        chosen.update(places[-1:])
    for place in reversed(range(len(events))):
        if len(chosen) >= HISTORY_SHOWN:
            break
        chosen.add(place)
    return [events[place] for place in sorted(chosen)]


def _verdict(body: dict[str, Any]) -> list[str]:
    """What is said of its process, where that is not all well and the headline does not say it already."""
    verdict, detail = body.get("verdict"), one_line(body.get("verdict_detail"))
    if verdict in {None, "ok"} or (detail and detail in one_line(body["reason"])):
        return []
    return [f"{one_line(verdict)}: {detail}" if detail else one_line(verdict)]


def _last_exit(body: dict[str, Any]) -> list[str]:
    """How the last run ended, less what the headline says."""
    text, said = one_line(body["last_exit"]), one_line(body["reason"])
    return [text.replace(f": {said}", "")] if text and text not in said else []


def _log(body: dict[str, Any]) -> list[str]:
    """Where its output goes and how that ends, where the agent says so."""
    if body.get("journal"):
        return [f"in the journal: xce-nodectl logs {one_line(body['component'])}"]
    if not body.get("log"):
        return []
    # Not `one_line`: the indentation of a traceback is worth keeping.
    tail = [cut(printable(line.rstrip()), LOG_LINE_CHARS) for line in body.get("log_tail") or []]
    return [one_line(body["log"]), *tail[-LOG_SHOWN:]]


def _labelled(label: str, texts: list[str]) -> list[str]:
    """Put a label before the first of several lines; nothing where there are none."""
    labels = [label] + [""] * len(texts)
    return [f"  {name:<{_LABEL_WIDTH}}{text}".rstrip() for name, text in zip(labels, texts, strict=False)]


def _ruling(body: dict[str, Any], moments: Moments) -> list[str]:
    """The rule that decides, with who stated it and when, where somebody did."""
    for claim in body["claims"]:
        if claim["rule"] == body["rule"]:
            return [_claim(claim, moments, said=body["reason"])]
    return [one_line(body["rule"])]


def _others(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything that holds beside the ruling claim."""
    found = list(body["claims"])
    for claim in body["claims"]:
        if claim["rule"] == body["rule"]:
            found.remove(claim)
            break
    return found


def _claim(claim: dict[str, Any], moments: Moments, *, said: str | None = None) -> str:
    """A rule with its reason, but for one that was `said` already."""
    text = one_line(claim["rule"])
    if claim["reason"] != said:
        text += f": {one_line(claim['reason'])}"
    if claim["by"]:
        text += f"; by {one_line(claim['by'])}"
    if claim["at"]:
        return f"{text}; since {_local(claim['at'])}"
    return text if claim["since_ns"] is None else f"{text}; since {moments.clock(claim['since_ns'])}"


def _probe(probe: dict[str, Any], moments: Moments) -> str:
    text = f"{one_line(probe['probe'])} {one_line(probe['state'])}"
    if probe["detail"]:
        text += f": {one_line(probe['detail'])}"
    failures, successes = probe["failures"], probe["successes"]
    if failures:
        text += f"; {failures} failure{'' if failures == 1 else 's'} in a row"
    elif successes:
        text += f"; {successes} success{'' if successes == 1 else 'es'} in a row"
    if probe["next_at_ns"] is not None:
        text += f"; next {moments.ahead(probe['next_at_ns'])}"
    return text


def _next(following: dict[str, Any] | None, moments: Moments) -> str:
    if following is None:
        return "nothing happens by itself"
    text = moments.next(following)
    return text if following["at_ns"] is None else f"{text} ({moments.clock(following['at_ns'])})"


def _time_of_day(at: str, beside: str) -> str:
    """Local time, without the date where that is the one of the time `beside` it."""
    text, other = _local(at), _local(beside)
    day, _, time_of_day = text.partition(" ")
    return time_of_day if time_of_day and other.startswith(f"{day} ") else text


def _local(at: str) -> str:
    """Turn ISO 8601 into local time; what is not a time is shown as it came."""
    from datetime import datetime

    try:
        return clock(int(datetime.fromisoformat(at).timestamp()) * NS_PER_S)
    except (ValueError, OverflowError):
        return one_line(at)


def _value(value: object) -> str:
    text = one_line(str(value).lower() if isinstance(value, bool) else value)
    if text and _QUOTED.isdisjoint(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
