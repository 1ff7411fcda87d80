"""xce-nodectl: the operator's command. It asks the agent over the status socket and never touches anything else."""

from __future__ import annotations

import json
import os
import sys

from node_manager.api.client import Answer, Client, NotPermitted, NotReachable
from node_manager.cli import status_view
from node_manager.cli.arguments import DEFAULT_SOCKET, NS_PER_S, SOCKET_VARIABLE, parse
from node_manager.cli.changes import Changes, follow
from node_manager.cli.terminal import Screen, clean, error, one_line

TYPE_CHECKING = False  # typing itself costs some milliseconds at each start of a command
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import Any

DONE, NOT_SO, USAGE, UNREACHABLE, FORBIDDEN = 0, 1, 2, 3, 4
INTERRUPTED = 130
"""128 + SIGINT, as a shell reports it."""
_COMMAND_TIMEOUT_S = 35.0
"""Above the 30 s after which the agent itself says that a command is not confirmed yet."""
_REDRAW_S = 2.0
"""Longest age of what `status --watch` shows."""
_EVENTS_PAGE = 500
"""Events asked for at once."""
_FORBIDDEN_STATUS, _WRONG_STATUS = 403, 400


class Nodectl:
    """One run of the command: what was asked, whom to ask, and where to say it."""

    def __init__(self, arguments: argparse.Namespace, screen: Screen) -> None:
        path = getattr(arguments, "socket", None) or os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET
        self._arguments = arguments
        self._json = getattr(arguments, "json", False)
        self._screen = screen
        self._client = Client(path)

    def run(self) -> int:
        """Carry the command out; the result is the exit status."""
        arguments = self._arguments
        match arguments.command:
            case "status":
                return self._watch() if arguments.watch else self._status()
            case "why":
                return self._each(arguments.component, self._why)
            case "events":
                return self._events()
            case "logs":
                return self._logs()
            case "start" | "stop" | "restart" as verb:
                return self._each(
                    arguments.component, lambda name: self._change(f"/v1/components/{_quoted(name)}/{verb}", name)
                )
            case "drain":
                deadline = arguments.deadline
                return self._change("/v1/host/drain", deadline_s=None if deadline is None else deadline / NS_PER_S)
            case "maintenance":
                return self._change("/v1/maintenance", enable=arguments.switch == "on")
            case "wait":
                return self._wait()
            case "reload" if arguments.component:
                return self._change(f"/v1/components/{_quoted(arguments.component)}/reload", arguments.component)
            case "reload":
                return self._change("/v1/reload")
            case "reexec":
                return self._reexec()
            case verb:
                return self._change(f"/v1/host/{verb}")

    def _each(self, names: list[str], what: Callable[[str], int]) -> int:
        """Do it for every name, also after one that failed; the result is the greatest exit status."""
        return max(what(name) for name in names)

    # --- reading ------------------------------------------------------------------------------------------------

    def _status(self) -> int:
        answer = self._client.get("/v1/status")
        if not answer.ok:
            return self._refused(answer)
        if self._json:
            self._print_json(answer.body)
        else:
            self._screen.print(*status_view.render(clean(answer.body), self._screen))
        return DONE if answer.body["node"]["ready"] else NOT_SO

    def _watch(self) -> int:
        """Show the status again and again, over restarts of the agent, until Ctrl-C."""
        try:
            with Changes(self._client) as changes:
                while True:
                    self._draw()
                    changes.wait(_REDRAW_S)
        except KeyboardInterrupt:
            return DONE

    def _draw(self) -> None:
        try:
            answer = self._client.get("/v1/status")
            lines = self._status_lines(answer)
        except NotReachable as absent:
            lines = [] if self._json else [one_line(absent), "Trying again."]
        if self._screen.terminal and not self._json:
            _, height = self._screen.size()
            if height and len(lines) >= height:
                lines = [*lines[: height - 2], f"({len(lines) - height + 2} more lines)"]
            # Home, each line with the rest of it erased, then what is below: nothing flickers.
            self._screen.out.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
            self._screen.out.flush()
        elif lines:
            self._screen.print(*lines, *([] if self._json else [""]))

    def _status_lines(self, answer: Answer) -> list[str]:
        if self._json:
            return [json.dumps(answer.body)]
        if not answer.ok:
            return [_detail(answer)]
        return status_view.render(clean(answer.body), self._screen)

    def _why(self, component: str) -> int:
        from node_manager.cli import why_view

        answer = self._client.get(f"/v1/components/{_quoted(component)}/why")
        if not answer.ok:
            return self._refused(answer)
        if self._json:
            self._print_json(answer.body)
        else:
            body = {"log_tail": why_view.tail(answer.body.get("log"))} | answer.body
            self._screen.print(*why_view.render(clean(body), self._screen))
        return DONE

    def _events(self) -> int:
        after, component = self._arguments.after, self._arguments.component
        if component is not None and (unknown := self._unknown(component)):
            error(f"cannot show events: {unknown}")
            return NOT_SO
        if self._arguments.follow:
            try:
                for event in follow(self._client, after):
                    self._print_event(event)
            except KeyboardInterrupt:
                return DONE
        while True:
            answer = self._client.get(f"/v1/events?after={after}&limit={_EVENTS_PAGE}")
            if not answer.ok:
                return self._refused(answer)
            events = _events_of(answer)
            for event in events:
                self._print_event(event)
            if len(events) < _EVENTS_PAGE:
                return DONE
            after = events[-1]["seq"]

    def _logs(self) -> int:
        from node_manager.cli import component_log

        component = self._arguments.component
        try:
            answer = self._client.get(f"/v1/components/{_quoted(component)}/why")
        except NotReachable as absent:
            error(str(absent))
            error(f"without it: `journalctl -t {component}`, or its file in the log directory (/var/log/xce)")
            return UNREACHABLE
        if not answer.ok:
            return self._refused(answer)
        return component_log.show(
            clean(answer.body),
            self._screen,
            lines=self._arguments.lines,
            follow=self._arguments.follow,
            as_json=self._json,
        )

    def _unknown(self, component: str) -> str:
        """Say that there is no such component, neither now nor in the history; empty: there is, or may be."""
        from node_manager.cli.waiting import UnknownComponent, check_known

        answer = self._client.get("/v1/status")
        if not answer.ok:
            return ""
        try:
            check_known(clean(answer.body), component)
        except UnknownComponent as unknown:
            after = 0
            while events := _events_of(self._client.get(f"/v1/events?after={after}&limit={_EVENTS_PAGE}")):
                if any(event.get("component") == component for event in events):
                    return ""
                after = events[-1]["seq"]
            return str(unknown)
        return ""

    def _print_event(self, event: dict[str, Any]) -> None:
        from node_manager.cli import why_view

        if self._arguments.component in {None, event.get("component")}:
            self._screen.print(json.dumps(event) if self._json else why_view.event_line(clean(event)))

    def _wait(self) -> int:
        from node_manager.cli.waiting import UnknownComponent, timed_out, wait

        goal, component, timeout_ns = self._arguments.goal, self._arguments.component, self._arguments.timeout
        try:
            lacking = wait(self._client, goal, component, timeout_ns)
            sentence = timed_out(goal, component, timeout_ns, lacking)
        except UnknownComponent as unknown:
            lacking = [str(unknown)]
            sentence = f"cannot wait: {unknown}"
        if self._json:
            self._print_json({"ok": not lacking, "missing": lacking})
        elif lacking:
            error(sentence)
        return NOT_SO if lacking else DONE

    # --- changing -----------------------------------------------------------------------------------------------

    def _change(self, target: str, subject: str | None = None, **fields: Any) -> int:
        """Ask for one change and say what the agent answers."""
        fields["by"] = _user()
        if getattr(self._arguments, "reason", ""):
            fields["reason"] = self._arguments.reason
        answer = self._client.post(target, fields, _COMMAND_TIMEOUT_S)
        if not answer.ok:
            return self._refused(answer, subject)
        if self._json:
            self._print_json(answer.body)
        else:
            detail = one_line(answer.body["detail"]) or "done"
            self._screen.print(f"{subject}: {detail}" if subject else detail)
        return DONE

    def _reexec(self) -> int:
        """Have the agent replaced by the installed program, and say how it went."""
        from node_manager.cli.reexec import OUTCOME_TIMEOUT_S, reexec

        answer, outcome = reexec(self._client, _user())
        if not answer.ok:
            return self._refused(answer)
        if outcome is None:
            error(
                f"the program was to be replaced, and nothing is known of the outcome after {OUTCOME_TIMEOUT_S:g} s; "
                "look at `xce-nodectl status` and the agent's log"
            )
            return NOT_SO
        if self._json:
            self._print_json(outcome)
        elif outcome["ok"]:
            self._screen.print(one_line(outcome["detail"]))
        if not outcome["ok"]:
            error(one_line(outcome["detail"]))
        return DONE if outcome["ok"] else NOT_SO

    def _refused(self, answer: Answer, subject: str | None = None) -> int:
        """Say what the agent refuses and which rule does; choose the exit status."""
        if self._json:
            self._print_json(answer.body)
        rule = answer.body.get("rule") if isinstance(answer.body, dict) else None
        text = _detail(answer)
        if rule:
            text = f"refused by rule {one_line(rule)}: {text}"
        error(f"{subject}: {text}" if subject else text)
        return {_FORBIDDEN_STATUS: FORBIDDEN, _WRONG_STATUS: USAGE}.get(answer.status, NOT_SO)

    def _print_json(self, body: Any) -> None:
        # ASCII only: what a component says cannot drive the terminal here either.
        self._screen.print(json.dumps(body, indent=2))


def main(argv: Sequence[str] | None = None) -> int:
    """Run xce-nodectl; the result is its exit status."""
    _tolerate_encoding()
    try:
        arguments = parse(sys.argv[1:] if argv is None else list(argv))
        return Nodectl(arguments, Screen(sys.stdout, os.environ)).run()
    except NotReachable as absent:
        error(f"{absent}; is xce-node-manager running? --socket or {SOCKET_VARIABLE} names another socket")
        return UNREACHABLE
    except NotPermitted as denied:
        error(str(denied))
        return FORBIDDEN
    except BrokenPipeError:
        # Whoever read has enough, such as head(1). Nothing may be written at the interpreter's end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED


def _tolerate_encoding() -> None:
    """Show a replacement where the locale has no such character, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _user() -> str:
    """Name who asks; behind sudo that is whoever called it. The agent adds the uid that the kernel knows."""
    uid = os.getuid()
    if uid == 0 and os.environ.get("SUDO_USER"):
        return os.environ["SUDO_USER"]
    from node_manager.cli.own_name import own_name

    return own_name(uid) or ""


def _quoted(component: str) -> str:
    from urllib.parse import quote

    return quote(component, safe="")


def _events_of(answer: Answer) -> list[dict[str, Any]]:
    """The events of a page; none where it is no page."""
    return [json.loads(line) for line in answer.body.splitlines()] if isinstance(answer.body, bytes) else []


def _detail(answer: Answer) -> str:
    """The sentence of a problem, or what can be said about an answer that is none."""
    detail = answer.body.get("detail") if isinstance(answer.body, dict) else None
    return one_line(detail) or f"the agent answers {answer.status}"


if __name__ == "__main__":
    sys.exit(main())
