"""Make the completion for bash of both commands, from their own parsers.

usage: python packaging/completion/make_completion.py DIRECTORY
Names of components are asked of the agent, in the moment that somebody wants them.
"""

import argparse
import sys
from pathlib import Path

from node_manager.cli import arguments, daemon

_SCRIPT = """\
# bash completion for {prog}; made from the command's own parser

_{function}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command= each words
    for each in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $each in
        {commands}) command=$each; break ;;
        esac
    done
    case $before in
{values}
    esac
    case $command in
{options}
    *) words="{top}" ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}}

_{function}_components() {{
    xce-nodectl --json status 2>/dev/null | tr -d '\\n ' | grep -o '"name":"[^"]*","role"' | cut -d'"' -f4
}}

complete -o default -F _{function} {prog}
"""


def script(parser: argparse.ArgumentParser) -> str:
    """The completion of one command."""
    function = parser.prog.replace("-", "_")
    children: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            children = {choice.dest: action.choices[choice.dest] for choice in action._choices_actions}  # noqa: SLF001
    options: list[str] = []
    values: dict[str, str] = {}
    for name, child in children.items():
        words: list[str] = []
        for action in child._actions:  # noqa: SLF001
            words += action.option_strings
            if action.choices is not None and not action.option_strings:
                words += list(action.choices)
            elif action.metavar == "COMPONENT":
                words.append(f"$(_{function}_components)")
            values |= {
                option: _values(action)
                for option in action.option_strings
                if action.nargs != 0 and option not in {"-h", "--help"}
            }
        options.append(f'    {name}) words="{" ".join(words)}" ;;')
    top = [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001
    return _SCRIPT.format(
        prog=parser.prog,
        function=function,
        commands="|".join(children),
        values="\n".join(f"    {option}) COMPREPLY=({found}); return ;;" for option, found in sorted(values.items())),
        options="\n".join(options),
        top=" ".join([*children, *top]),
    )


def _values(action: argparse.Action) -> str:
    """What completes the value of an option: a list of words, or nothing, and then files."""
    if action.dest == "goal":
        from node_manager.cli.waiting import GOALS

        return f'$(compgen -W "{" ".join(GOALS)} state=" -- "$word")'
    if action.choices is not None:
        return f'$(compgen -W "{" ".join(action.choices)}" -- "$word")'
    return ""


def main() -> None:
    """Write both."""
    for parser in (daemon.parser(), arguments.parser()):
        (Path(sys.argv[1]) / parser.prog).write_text(script(parser), encoding="utf-8")


if __name__ == "__main__":
    main()
