"""``completion``: what a shell completes after ``dstreams``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

from checkpoint.cli.command_parser import CommandParser
from dstreams.cli.common import SUCCEEDED, Commands

_TEXT = """\
Prints a script by which a shell completes commands, options and files after Tab. It has to be made
again after an update of dstreams.

bash reads it from a directory of its own:
  DIR=~/.local/share/bash-completion/completions
  mkdir -p $DIR
  dstreams completion bash > $DIR/dstreams

zsh reads it from a directory of its fpath:
  mkdir -p ~/.zfunc
  dstreams completion zsh > ~/.zfunc/_dstreams
  and in ~/.zshrc, above compinit: fpath+=~/.zfunc
"""
_FILES, _DIRECTORIES = ("FILE", "app.py"), ("CHECKPOINT", "DIR")
"""How arguments are shown for which paths are completed."""


def add_completion(commands: Commands, whole: Callable[[], CommandParser]) -> None:
    """Add the command to a parser; *whole* returns that of all commands."""
    completion = commands.add_parser(
        "completion",
        help="print what a shell needs to complete commands and options",
        description=_TEXT,
        examples=["bash"],
    )
    completion.add_argument("shell", choices=["bash", "zsh"], help="for which shell")

    def run(options: argparse.Namespace) -> int:
        sys.stdout.write(script(whole(), options.shell))
        return SUCCEEDED

    completion.set_defaults(run=run)


def script(parser: CommandParser, shell: str) -> str:
    """Return the script by which a shell completes the commands of a parser."""
    import shtab  # noqa: PLC0415  # which no other command needs

    for action in _actions(parser):
        if action.metavar in (*_FILES, *_DIRECTORIES):
            is_file = action.metavar in _FILES
            action.complete = shtab.FILE if is_file else shtab.DIR  # type: ignore[attr-defined]
        if isinstance(action, argparse._SubParsersAction):
            for row in action._choices_actions:  # a line is enough beside a word
                action.choices[row.dest].description = row.help
    return f"{shtab.complete(parser, shell).rstrip()}\n"


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
