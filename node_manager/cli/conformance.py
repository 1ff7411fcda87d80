"""`xce-node-manager conformance`: judge whether a program keeps the heartbeat protocol."""

import argparse
import sys
from collections.abc import Sequence

EX_OK = 0
EX_NOT_SO = 1
EX_USAGE = 2
_ROLES = ("controller", "scheduler", "worker")
_MAX_LEASE_S = 60.0

_DESCRIPTION = """\
Run a program against a scripted agent and say, point by point, which parts of the heartbeat protocol it keeps. It takes
one to two minutes. The program gets this command's environment, without an agent's variables; what it prints is shown
where it ends when it should not.
"""
_EPILOG = """\
A controller has a store, and a rival for its lease, of which the kit knows nothing:
  --store-down, --store-up   make the store unusable, and usable again; run before the program's first start as well
  --rival                    starts a second candidate for the same lease
Use a short lease, of 2 or 3 seconds.

exit status: 0 every mandatory point was seen kept; 1 not so; 2 wrong usage

example:
  xce-node-manager conformance --as controller --lease-s 2 \\
    --store-down 'cp /dev/null L/lease; echo broken >L/lease' --store-up 'rm -f L/lease' \\
    --rival 'env XCE_REF_HOLDER=two libxce/build/controller L/lease' -- libxce/build/controller L/lease
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to those of xce-node-manager."""
    parser = commands.add_parser(
        "conformance",
        help="judge whether a program keeps the heartbeat protocol",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--as", dest="role", required=True, choices=_ROLES, help="what the program is to be")
    parser.add_argument(
        "--only", action="append", default=[], metavar="POINT", help="judge this point; may be repeated"
    )
    parser.add_argument("--store-down", metavar="SHELL", help="makes a controller's store unusable")
    parser.add_argument("--store-up", metavar="SHELL", help="makes it usable again")
    parser.add_argument("--rival", metavar="SHELL", help="starts a second candidate for a controller's lease")
    parser.add_argument(
        "--lease-s", type=_lease_s, metavar="S", help="the length of its lease: a longer validity is then a fault"
    )
    parser.add_argument("program", nargs="+", metavar="-- COMMAND", help="the program with its arguments")


def conformance(args: argparse.Namespace) -> int:
    """Judge and report; returns the exit status."""
    from node_manager.conformance.kit import Settings
    from node_manager.conformance.points import Role, points_of
    from node_manager.conformance.session import judge, report

    role = Role(args.role)
    unknown = set(args.only) - {point.name for point in points_of(role)}
    if unknown:
        names = ", ".join(point.name for point in points_of(role))
        print(f"no point of a {role.value} is called {', '.join(sorted(unknown))}; there are: {names}", file=sys.stderr)
        return EX_USAGE
    program: Sequence[str] = args.program
    settings = Settings(
        role=role,
        command=tuple(program),
        rival=args.rival,
        store_down=args.store_down,
        store_up=args.store_up,
        lease_s=args.lease_s,
    )
    verdicts = judge(settings, frozenset(args.only))
    for line in report(verdicts):
        print(line)
    return EX_OK if verdicts.conforms else EX_NOT_SO


def _lease_s(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= _MAX_LEASE_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to {_MAX_LEASE_S:g}")
    return value
