"""Make the manual pages: of the commands from their own parsers, of the files from docs/reference.

usage: python packaging/man/make_pages.py DIRECTORY
So a page says what the program of this very version does. Needs the package to be importable.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from node_manager import __version__
from node_manager.cli import arguments, daemon

_DOCS = Path(__file__).parent.parent.parent / "docs" / "reference"
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MARK = re.compile(r"`([^`]*)`|\*\*([^*]*)\*\*")
_FILES = """\
.SH FILES
.TP
/etc/xce/node\\-manager.yaml, /etc/xce/node\\-manager.d/*.yaml
The boot configuration, node\\-manager.yaml(5).
.TP
/usr/share/xce/roles, /etc/xce/roles
Role files, xce\\-role(5).
.TP
/usr/share/xce/units/root.conf
The drop\\-in for hosts whose roles need root; \\fBbootstrap\\fR links to it.
.TP
/run/xce/node\\-manager
Sockets and what runs.
.TP
/var/lib/xce/node\\-manager
What survives a reboot: latches, holds, the last good configuration.
"""
_ALSO = ("xce\\-node\\-manager(8)", "xce\\-nodectl(1)", "node\\-manager.yaml(5)", "xce\\-role(5)")


def text(line: str) -> str:
    """One line of running text in roff."""
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def prose(line: str) -> str:
    """One line of Markdown in roff: links become their words, code and emphasis bold."""
    return _MARK.sub(lambda found: f"\\fB{found[1] or found[2]}\\fR", text(_LINK.sub(r"\1", line)))


def page(name: str, section: int, summary: str, body: Iterator[str], extra: str = "") -> str:
    """A whole page."""
    title = text(name)
    also = ", ".join(item for item in _ALSO if not item.startswith(f"{title}("))
    head = f'\'\\" t\n.TH {title.upper()} {section} "" "xce\\-node\\-manager {__version__}" XCE\n'
    lines = "\n".join(body)
    return f"{head}.SH NAME\n{title} \\- {text(summary)}\n{lines}\n{extra}.SH SEE ALSO\n{also}\n"


# --- commands ---------------------------------------------------------------------------------------------------------


def command(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The page of a command with subcommands, from its parser."""
    yield f".SH SYNOPSIS\n.nf\n\\fB{text(parser.prog)}\\fR [options] COMMAND ...\n.fi"
    yield f".SH DESCRIPTION\n{text(parser.description or '')}"
    yield ".SH OPTIONS"
    yield from options(parser)
    yield ".SH COMMANDS"
    for name, child, summary in commands(parser):
        usage = " ".join(child.format_usage().split()).removeprefix("usage: ")
        yield f".SS {text(name)}\n{text(summary)}.\n.PP\n{text(usage)}"
        if child.description and child.description.rstrip(".").lower() != summary.lower():
            yield f".PP\n{text(' '.join(child.description.split()))}"
        yield from options(child)
        if child.epilog:
            yield from literal(child.epilog)
    yield ".SH NOTES"
    yield from literal(parser.epilog or "")


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """The subcommands that are shown to users: name, parser, summary."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for choice in action._choices_actions:  # noqa: SLF001
                yield choice.dest, action.choices[choice.dest], choice.help or ""


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Options and arguments, each with its help."""
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):  # noqa: SLF001
            continue
        value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
        if action.choices is not None:
            value = "|".join(action.choices)
        names = ", ".join(f"\\fB{text(name)}\\fR" for name in action.option_strings)
        yield f".TP\n{names} {text(str(value))}".replace("\n ", "\n").rstrip()
        yield text(action.help or "")


def literal(block: str) -> Iterator[str]:
    """Text whose lines stay as they are."""
    yield ".PP\n.nf"
    yield from (text(line) for line in block.rstrip().splitlines())
    yield ".fi"


# --- files ------------------------------------------------------------------------------------------------------------


def document(source: str) -> Iterator[str]:
    """A page's body from Markdown as docs/reference uses it: headings, paragraphs, lists, tables, code."""
    lines = iter([*source.splitlines()[1:], ""])  # the title is the page's
    yield ".SH DESCRIPTION"
    table: list[str] = []
    for line in lines:
        if line.startswith("|"):
            table.append(line)
            continue
        if table:
            yield from rows(table)
            table = []
        if line.startswith("```"):
            yield ".PP\n.RS 4\n.nf"
            while not (code := next(lines)).startswith("```"):
                yield text(code)
            yield ".fi\n.RE"
        elif line.startswith("    ") and line.strip():
            yield f".PP\n.RS 4\n{text(line.strip())}\n.RE\n.PP"
        elif line.startswith("#"):
            level, _, title = line.partition(" ")
            yield f".S{'H' if len(level) == len('##') else 'S'} {prose(title)}"
        elif line.startswith("- "):
            yield f".IP \\(bu 2\n{prose(line[2:])}"
        elif not line.strip():
            yield ".PP"
        else:
            yield prose(line.strip())


def rows(table: list[str]) -> Iterator[str]:
    """A table for tbl(1), whose cells wrap; the line of dashes is Markdown's own."""
    cells = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    cells = [row for row in cells if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
    if not any(cells[0]):
        del cells[0]  # a table without headings
    yield ".TS\nallbox;"
    yield " ".join(["lx" if place == len(cells[0]) - 1 else "l" for place in range(len(cells[0]))]) + "."
    for row in cells:
        yield "\t".join(f"T{{\n{prose(cell)}\nT}}" for cell in row)
    yield ".TE"


def main() -> None:
    """Write all pages."""
    place = Path(sys.argv[1])
    pages = {
        "xce-node-manager.8": page(
            "xce-node-manager", 8, "supervisor of one host of an XCE cluster", command(daemon.parser()), _FILES
        ),
        "xce-nodectl.1": page("xce-nodectl", 1, "ask and direct the node manager", command(arguments.parser())),
        "node-manager.yaml.5": page(
            "node-manager.yaml", 5, "boot configuration of the XCE node manager",
            document((_DOCS / "configuration.md").read_text(encoding="utf-8")),
        ),
        "xce-role.5": page(
            "xce-role", 5, "role files of the XCE node manager",
            document((_DOCS / "role-files.md").read_text(encoding="utf-8")),
        ),
    }  # fmt: skip
    for name, content in pages.items():
        (place / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
