"""`xce-reference`: starts one of the reference components, or asks a controller (`ctl`)."""

import os
import sys
from collections.abc import Callable

from node_manager.reference.loop import EXIT_CONFIG, EXIT_UNAVAILABLE, EXIT_USAGE, Component, Context, run
from node_manager.reference.settings import SettingsError, UnresolvedError, read_settings

USAGE = """usage: xce-reference controller | scheduler | worker | apiserver | provisioner
       xce-reference lease-keeper NAME
       xce-reference ctl --help
Everything else is set by the environment: docs/reference/reference-components.md.
"""


def main() -> int:
    """Run what the command line names; returns the exit status."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["ctl"]:
        from node_manager.reference import ctl

        return ctl.main(arguments[1:])
    build = _builder(arguments)
    if build is None:
        wants_help = arguments in (["--help"], ["-h"])
        print(USAGE, end="", file=sys.stdout if wants_help else sys.stderr)
        return 0 if wants_help else EXIT_USAGE
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE if isinstance(error, UnresolvedError) else EXIT_CONFIG
    return run(arguments[0], settings, build)


def _builder(arguments: list[str]) -> Callable[[Context], Component] | None:
    """The component's constructor. Only its module is loaded."""
    match arguments:
        case ["controller"]:
            from node_manager.reference.controller import Controller

            return Controller
        case ["scheduler"]:
            from node_manager.reference.scheduler import Scheduler

            return Scheduler
        case ["worker"]:
            from node_manager.reference.worker import Worker

            return Worker
        case ["apiserver"]:
            from node_manager.reference.apiserver import ApiServer

            return ApiServer
        case ["provisioner"]:
            from node_manager.reference.provisioner import Provisioner

            return Provisioner
        case ["lease-keeper", name]:
            from node_manager.reference.keeper import Keeper

            return lambda context: Keeper(context, name)
        case _:
            return None


if __name__ == "__main__":
    sys.exit(main())
