"""`xce-reference ctl`: one question to a controller, one JSON answer on standard output.

Ends with 0 done, 1 refused, 2 usage, 3 no controller reachable.
"""

import argparse
import json
import os
import socket
import sys

from node_manager.reference.lines import LineBuffer, LineError, Message, encode
from node_manager.reference.link import code_of, is_ok
from node_manager.reference.loop import EXIT_CONFIG, EXIT_OK
from node_manager.reference.settings import DEFAULT_CONTROLLER, Address, SettingsError, parse_addresses

TIMEOUT_S = 5.0
EXIT_REFUSED = 1
EXIT_UNREACHABLE = 3
READ_SIZE = 64 * 1024
ONE_CONTROLLER = frozenset({"status", "standby", "primary"})
"""Commands for a certain controller; the others look for the primary."""
ORDERS = ("drain", "undrain", "decommission", "recommission")


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args(arguments)
    question = _question(options)
    text = options.controller or os.environ.get("XCE_REF_CONTROLLERS") or DEFAULT_CONTROLLER
    try:
        controllers = parse_addresses(text)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    if question["op"] in ONE_CONTROLLER:
        controllers = controllers[:1]
    answer: Message | None = None
    for address in controllers:
        try:
            answer = ask(address, question)
        except (OSError, LineError) as error:
            print(f"cannot ask controller {address}: {error}", file=sys.stderr)
            continue
        if code_of(answer) != "not-primary":
            break
    if answer is None:
        return EXIT_UNREACHABLE
    if not is_ok(answer):
        print(answer.get("error", "refused"), file=sys.stderr)
        return EXIT_REFUSED
    shown = {key: value for key, value in answer.items() if key not in {"ok", "reply"}}
    print(json.dumps(shown, indent=2, sort_keys=True))
    return EXIT_OK


def ask(address: Address, question: Message, *, timeout_s: float = TIMEOUT_S) -> Message:
    """Send one question and wait for its answer. Raises OSError or LineError."""
    with socket.create_connection(address, timeout=timeout_s) as sock:
        sock.sendall(encode(question))
        buffer = LineBuffer()
        while data := sock.recv(READ_SIZE):
            for message in buffer.feed(data):
                return message
    raise ConnectionError("it closed the connection without an answer")


def _question(options: argparse.Namespace) -> Message:
    match options.command:
        case "submit":
            return {
                "op": "submit",
                "host": options.host,
                "seconds": options.seconds,
                "count": options.count,
                "ignore_term": options.ignore_term,
            }
        case verb if verb in ORDERS:
            deadline_s = getattr(options, "deadline", None)
            return {"op": "order", "verb": verb, "host": options.host, "deadline_s": deadline_s}
        case command:
            return {"op": command}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="xce-reference ctl", description="Ask a reference controller.")
    parser.add_argument("--controller", metavar="IP:PORT[,…]", help="default: XCE_REF_CONTROLLERS, 127.0.0.1:7011")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("status", help="who this controller is and whether it leads")
    commands.add_parser("standby", help="step down, and do not stand again until told")
    commands.add_parser("primary", help="stand again")
    commands.add_parser("hosts", help="the host register")
    commands.add_parser("jobs", help="all jobs, the newest first")
    for verb in ORDERS:
        order = commands.add_parser(verb, help=f"{verb} a host")
        order.add_argument("host", metavar="HOST")
        if verb == "drain":
            order.add_argument("--deadline", type=float, metavar="S", help="seconds from now")
    submit = commands.add_parser("submit", help="queue jobs for a host; the scheduler assigns them")
    submit.add_argument("host", metavar="HOST")
    submit.add_argument("--seconds", type=float, required=True, metavar="N", help="how long each job runs")
    submit.add_argument("--count", type=int, default=1, metavar="N")
    submit.add_argument("--ignore-term", action="store_true", help="assign at once, without a scheduler or its term")
    return parser
