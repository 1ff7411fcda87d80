"""The command line of `xce-node-manager bootstrap`. Apart from the command, of which the agent loads nothing."""

import argparse
from pathlib import Path

_DESCRIPTION = """\
Make this host run the node manager: take the boot configuration, say everything that is wrong with it, write it, and
enable and start the service. Without a source the configuration that stands at --config already is taken. May be run
again at any time: what is right already is left alone, and components run on.
"""
_EPILOG = """\
The instance's id is taken from cloud-init's metadata where the configuration does not name one. A host that a provider
made (it has such metadata, or `host.template`) is refused without one: a host that returns under an old name must be
told from the old one.

exit status: 0 done; 1 not so; 2 wrong usage; 78 the configuration is wrong, nothing was changed

examples:
  xce-node-manager bootstrap                          after cloud-init's write_files
  xce-node-manager bootstrap --file worker.yaml
  generate-configuration | xce-node-manager bootstrap --stdin
  xce-node-manager bootstrap --metadata               from the key xce-node-manager of the instance's metadata
"""


def add_parser(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser
) -> None:
    """Add the command to those of xce-node-manager. `common`: the options of all that read a configuration."""
    parser = commands.add_parser(
        "bootstrap",
        parents=[common],
        help="a boot script's one command: write the configuration, enable and start the service",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--file", type=Path, metavar="FILE", help="take the configuration from this file")
    source.add_argument("--stdin", action="store_true", help="take it from standard input")
    source.add_argument(
        "--identity",
        action="store_true",
        help="do no more than name this instance in 10-instance.yaml; xce-node-manager-identity.service, at each boot",
    )
    source.add_argument(
        "--metadata", action="store_true", help="take it from the instance's metadata, as it is on disk"
    )
