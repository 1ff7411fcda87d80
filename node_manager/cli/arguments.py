"""The command line of xce-nodectl."""

from __future__ import annotations

import argparse
import os
import re
import sys

from node_manager import __version__
from node_manager.cli.terminal import Screen
from node_manager.cli.waiting import GOALS, goal_error

DEFAULT_SOCKET = "/run/xce/node-manager/status.sock"
SOCKET_VARIABLE = "XCE_STATUS_SOCKET"
NS_PER_S = 1_000_000_000
DEFAULT_LINES = 100
"""Of a component's output: what happened last, on a few screens."""
_HELP_WIDTH = 100
"""Wider lines of help are hard to read."""
_MAX_DEADLINE_D = 30
"""What the status API takes (`api.limits.MAX_DEADLINE_S`, whose module would take longer to load than the rest)."""
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(?:\d{1,9}(?:ms|s|m|h|d))+|\d{1,9}")
_PART = re.compile(r"(\d+)(ms|s|m|h|d)")
_EXAMPLES = """\
examples:
  xce-nodectl status                     what runs here, and what is wrong
  xce-nodectl status --watch             the same, redrawn at each change
  xce-nodectl why worker                 who decided what about worker, and what comes next
  xce-nodectl drain --deadline 2h --reason "new kernel"
  xce-nodectl wait --for drained --timeout 2h
  xce-nodectl stop worker --reason "disk swap"
  xce-nodectl events --follow worker
  xce-nodectl logs --follow worker       what worker prints
  xce-nodectl --json status | jq .node.ready

exit status:
  0  done
  1  not so: a rule refused it, a wait timed out, the node is not ready
  2  the command line is wrong
  3  the agent is not reachable
  4  not permitted
"""
_COMPONENT_VERBS = {
    "start": "start components; lifts a hold, overrides backoff and maintenance",
    "stop": "stop components and hold them until they are started",
    "restart": "stop components and start them again",
}
_HOST_VERBS = {
    "undrain": "take work again",
    "decommission": "stop for good what depends on it; survives a reboot",
    "recommission": "release the latches of drain and decommission",
}


def parse_duration_ns(text: str) -> int:
    """Read `90`, `90s`, `500ms`, `2m`, `1h30m`, `2d`; a bare number is seconds."""
    if not _DURATION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration such as 90s, 2m, 1h30m")
    parts = _PART.findall(text) or [(text, "s")]
    return sum(int(number) * _UNITS_MS[unit] for number, unit in parts) * (NS_PER_S // 1000)


def parse_deadline_ns(text: str) -> int:
    """Read a duration above zero that the agent takes."""
    value = parse_duration_ns(text)
    if value == 0:
        raise argparse.ArgumentTypeError("a deadline must be above 0")
    if value > _MAX_DEADLINE_D * _UNITS_MS["d"] * (NS_PER_S // 1000):
        raise argparse.ArgumentTypeError(f"a deadline is at most {_MAX_DEADLINE_D}d, not {text}")
    return value


def parser() -> argparse.ArgumentParser:
    """Build the parser; `command` in its result names the command."""
    width = min(_HELP_WIDTH, Screen(sys.stdout, os.environ).size()[0])

    def formatter(prog: str) -> argparse.HelpFormatter:
        # argparse makes one for each argument; left alone it would import shutil and ask for the width each time.
        return argparse.RawDescriptionHelpFormatter(prog, width=width, max_help_position=24)

    # SUPPRESS: the same options are taken before and after the command, and neither place resets the other.
    common = argparse.ArgumentParser(add_help=False, formatter_class=formatter, argument_default=argparse.SUPPRESS)
    common.add_argument(
        "--socket", metavar="PATH", help=f"status socket (default ${SOCKET_VARIABLE} or {DEFAULT_SOCKET})"
    )
    common.add_argument("--json", action="store_true", help="print what the agent answers, for programs")
    reason = argparse.ArgumentParser(add_help=False, formatter_class=formatter)
    reason.add_argument("--reason", default="", metavar="TEXT", help="why, for whoever looks later")

    main = argparse.ArgumentParser(
        prog="xce-nodectl",
        description="Ask and direct the node manager of this host.",
        epilog=_EXAMPLES,
        formatter_class=formatter,
        parents=[common],
        allow_abbrev=False,
    )
    main.add_argument("--version", action="version", version=f"xce-nodectl {__version__}")
    commands = main.add_subparsers(dest="command", metavar="COMMAND", required=True, prog=main.prog)

    def command(name: str, summary: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", parents=[common, *parents],
            formatter_class=formatter, allow_abbrev=False,
        )  # fmt: skip

    status = command("status", "show the node, its components and facts")
    status.add_argument("--watch", action="store_true", help="redraw at each change, until Ctrl-C")
    why = command("why", "explain why a component is as it is and what comes next")
    why.add_argument("component", metavar="COMPONENT", nargs="+")
    events = command("events", "show the history, oldest first")
    events.add_argument("component", metavar="COMPONENT", nargs="?", help="only events of this component")
    events.add_argument("--after", type=_sequence, default=0, metavar="SEQ", help="only newer events than this")
    events.add_argument("--follow", action="store_true", help="stay and show events as they happen, until Ctrl-C")
    logs = command("logs", "show what a component has printed, from its file or from the journal")
    logs.add_argument("component", metavar="COMPONENT")
    logs.add_argument(
        "-n", "--lines", type=_line_count, default=DEFAULT_LINES, metavar="N",
        help=f"the last N lines; default {DEFAULT_LINES}",
    )  # fmt: skip
    logs.add_argument("-f", "--follow", action="store_true", help="stay and show further lines, until Ctrl-C")
    for name, summary in _COMPONENT_VERBS.items():
        command(name, summary, reason).add_argument("component", metavar="COMPONENT", nargs="+")
    drain = command("drain", "take no more work and let what runs end", reason)
    drain.add_argument(
        "--deadline",
        type=parse_deadline_ns,
        metavar="TIME",
        help=f"when it must be over, such as 2h; at most {_MAX_DEADLINE_D}d",
    )
    for name, summary in _HOST_VERBS.items():
        command(name, summary, reason)
    maintenance = command("maintenance", "keep the node manager from starting and killing by itself", reason)
    maintenance.add_argument(
        "switch",
        choices=["on", "off"],
        help="on: nothing is started by itself and no probe kills; facts, leases and your own words still start and "
        "stop. off: the node manager looks after its components again",
    )
    wait = command("wait", "wait until something is so; also for the agent itself")
    wait.add_argument("--for", dest="goal", required=True, metavar="GOAL", help=f"{', '.join(GOALS)} or state=NAME")
    wait.add_argument("--timeout", type=parse_duration_ns, default="60s", metavar="TIME", help="default 60s")
    wait.add_argument("component", metavar="COMPONENT", nargs="?", help="the whole node where it is left out")
    reload = command("reload", "have the node manager, or a component, read its configuration again")
    reload.add_argument(
        "component", metavar="COMPONENT", nargs="?", help="as its role file says; else the node manager"
    )
    command("reexec", "replace the running node manager by the installed one; components run on untouched")
    return main


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse a command line; a wrong one ends the program with status 2 and a sentence."""
    main = parser()
    arguments = main.parse_args(argv)
    if arguments.command == "wait" and (wrong := goal_error(arguments.goal, arguments.component)):
        main.error(f"cannot wait: {wrong}")
    return arguments


def _line_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):  # noqa: PLR2004  journalctl reads 32 bits
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)


def _sequence(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):  # noqa: PLR2004  fits 64 bits
        raise argparse.ArgumentTypeError(f"{text!r} is not a sequence number")
    return int(text)
