"""xce-node-manager: the daemon, and the commands that need no agent.

It begins with what every command needs; `run` starts the validator, and only then imports the agent.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from node_manager import __version__
from node_manager.cli import bootstrap_parser, guard
from node_manager.cli.conformance import add_parser
from node_manager.cli.own_name import own_name
from node_manager.config import child
from node_manager.config.problems import ConfigInvalid, ConfigUnreadError, Problem
from node_manager.config.sources import Sources

TYPE_CHECKING = False  # what `typing` costs is a part of every start
if TYPE_CHECKING:
    from collections.abc import Sequence

    from node_manager.core.spec import NodeSpec

EX_OK = 0
EX_NOT_SO = 1
EX_CONFIG = 78
"""sysexits.h: the configuration is wrong."""

DEFAULT_CONFIG = Path("/etc/xce/node-manager.yaml")
DEFAULT_RUNTIME_DIR = Path("/run/xce/node-manager")
DEFAULT_STATE_DIR = Path("/var/lib/xce/node-manager")
DEFAULT_LOG_DIR = Path("/var/log/xce")
SYSTEM_ROLES_DIRS = (Path("/usr/share/xce/roles"), Path("/etc/xce/roles"))

_OWN_DIGESTS = (
    "_md5",
    "_sha1",
    "_sha3",
    "_blake2",
    *(("_sha2",) if sys.version_info >= (3, 12) else ("_sha256", "_sha512")),
)
"""What hashlib falls back on: it complains of each that is missing."""

EPILOG = """\
exit status: 0 done; 1 not so; 2 wrong usage; 78 the configuration is wrong

examples:
  xce-node-manager check --config node-manager.yaml      everything that is wrong with it, at once
  xce-node-manager plan                                   what would run, in which order, as whom
  xce-node-manager run --roles-dir roles/reference        run in the foreground
  xce-node-manager schema boot > node-manager.schema.json for editors
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    _leave_archivers_out()
    args = parser().parse_args(argv)
    match args.command:
        case "run":
            return guard.guarded(lambda: _run(args))
        case "self-check":
            from node_manager.cli.self_check import self_check

            return self_check(_sources(args))
        case "check":
            return check(_sources(args), plan=False)
        case "plan":
            return check(_sources(args), plan=True)
        case "replay":
            from node_manager.cli.replay import replay

            return replay(args.file)
        case "bootstrap":
            from node_manager.cli.bootstrap import Places, bootstrap

            return bootstrap(args, _sources(args), Places())
        case "conformance":
            from node_manager.cli.conformance import conformance

            return conformance(args)
        case _:
            from node_manager.config.schema import schema_text

            print(schema_text(args.kind))
            return EX_OK


def _run(args: argparse.Namespace) -> int:
    sources = _sources(args)
    if guard.STATE not in os.environ:  # a successor in the same process is told the configuration
        guard.keep_from_children()
        child.begin(sources)
    _leave_out()
    from node_manager.cli.running import run

    journal = args.record_events
    return run(sources, args.log_dir.absolute(), None if journal is None else journal.absolute())


def _leave_archivers_out() -> None:
    """Have shutil, which argparse takes along, do without bz2 and lzma: nobody here packs anything."""
    for name in ("bz2", "lzma"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # to importers: there is none


def _leave_out() -> None:
    """Have importers do without OpenSSL, which is a MiB and some milliseconds in every agent.

    asyncio takes its TLS along where there is one, and the agent speaks over Unix sockets alone. hashlib prefers its
    digests where Python has the very same of its own; some distributions build Python without those.
    """
    sys.modules["ssl"] = None  # type: ignore[assignment]  # to importers: there is none
    try:
        for name in _OWN_DIGESTS:
            __import__(name)
    except ImportError:
        return
    sys.modules["_hashlib"] = None  # type: ignore[assignment]


def check(sources: Sources, *, plan: bool) -> int:
    """Read and validate the configuration with the very code of `run`; say everything that is wrong."""
    from node_manager.config.load import describe, load, user_problem

    try:
        spec = load(sources)
    except ConfigInvalid as error:
        return print_problems(error)
    if plan:
        print(describe(spec))
        return EX_OK
    limits = _limits(spec, sources)
    if limits:
        return print_problems(ConfigInvalid(limits))
    names = ", ".join(component.name for component in spec.components)
    print(f"{sources.config}: right. Roles: {', '.join(spec.roles)}. Components: {names}.")
    problem = user_problem(spec, user_name(), is_root=os.geteuid() == 0)
    if problem is not None:
        print(f"note: {problem}", file=sys.stderr)
    return EX_OK


def _limits(spec: NodeSpec, sources: Sources) -> tuple[Problem, ...]:
    """Return what this very host cannot enforce; an agent runs all the same, and warns."""
    from node_manager.runtime.limits import refused

    return tuple(
        Problem(
            file=str(sources.config),
            line=0,
            field=f"components.{component}.limits.{name}",
            problem=f"cannot be enforced on this host: its {controller} controller is bound to cgroup v1",
            remedy="boot with a unified tree (systemd.unified_cgroup_hierarchy=1), or take the limit out",
        )
        for component, name, controller in refused(spec)
    )


def print_problems(error: ConfigInvalid) -> int:
    """Print every problem of a configuration to standard error; return the exit status.

    One that nobody could read is not called wrong: a script that waits for a right one would give up.
    """
    for problem in error.problems:
        print(problem, file=sys.stderr)
    if isinstance(error, ConfigUnreadError):
        print("the configuration could not be read; it may be right", file=sys.stderr)
        return EX_NOT_SO
    count = len(error.problems)
    print(f"the configuration is wrong: {count} problem{'s' if count != 1 else ''}", file=sys.stderr)
    return EX_CONFIG


def user_name() -> str | None:
    """Return the name of the user that this process runs as, or its number where it has none; None: nobody tells."""
    if os.geteuid() == 0:
        return "root"  # whatever it is called: it may run everybody's
    name = own_name(os.geteuid())
    return str(os.geteuid()) if name == "" else name


def roles_dirs() -> tuple[Path, ...]:
    """Return where role files are looked for by default: of the installation, of the system, of the operator."""
    own = Path(sys.prefix) / "share" / "xce" / "roles"
    return tuple(dict.fromkeys((own, *SYSTEM_ROLES_DIRS)))


def _sources(args: argparse.Namespace) -> Sources:
    given: list[Path] | None = args.roles_dir
    return Sources(
        config=args.config.absolute(),
        roles_dirs=tuple(path.absolute() for path in given) if given else roles_dirs(),
        runtime_dir=args.runtime_dir.absolute(),
        state_dir=args.state_dir.absolute(),
    )


def parser() -> argparse.ArgumentParser:
    """Build the parser; `command` in its result names the command."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", type=Path, default=DEFAULT_CONFIG, metavar="FILE", help=f"[{DEFAULT_CONFIG}]")
    common.add_argument(
        "--roles-dir",
        type=Path,
        action="append",
        metavar="DIR",
        help="where role files are; may be given again, a later one wins [share/xce/roles, /etc/xce/roles]",
    )
    common.add_argument(
        "--runtime-dir", type=Path, default=DEFAULT_RUNTIME_DIR, metavar="DIR", help=f"[{DEFAULT_RUNTIME_DIR}]"
    )
    common.add_argument(
        "--state-dir", type=Path, default=DEFAULT_STATE_DIR, metavar="DIR", help=f"[{DEFAULT_STATE_DIR}]"
    )
    main_parser = argparse.ArgumentParser(
        prog="xce-node-manager",
        description="Supervisor of one host of an XCE cluster.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main_parser.add_argument("--version", action="version", version=f"xce-node-manager {__version__}")
    commands = main_parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    running = argparse.ArgumentParser(add_help=False, parents=[common])
    running.add_argument(
        "--log-dir",
        type=Path,
        default=DEFAULT_LOG_DIR,
        metavar="DIR",
        help=f"components' output, where there is no journal [{DEFAULT_LOG_DIR}]",
    )
    running.add_argument(
        "--record-events",
        type=Path,
        metavar="FILE",
        help="append every event and decision to FILE, for `replay`; at most 256 MiB, without environment values",
    )
    commands.add_parser("run", parents=[running], help="run the agent in the foreground")
    commands.add_parser("self-check", parents=[running])  # for `reexec`: with the options of the agent that asks
    commands.add_parser("check", parents=[common], help="say everything that is wrong with the configuration")
    commands.add_parser("plan", parents=[common], help="check, and print what would run")
    bootstrap_parser.add_parser(commands, common)
    replay = commands.add_parser("replay", help="make the decisions of a recorded journal again, and compare them")
    replay.add_argument("file", type=Path, metavar="FILE", help="what `run --record-events` wrote")
    add_parser(commands)
    schema = commands.add_parser("schema", help="print JSON Schema for editors")
    schema.add_argument("kind", choices=["boot", "role"], help="of the boot configuration, or of a role file")
    return main_parser
