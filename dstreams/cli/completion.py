"""``dstreams completion``: print the script that completes commands, options and files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from checkpoint.cli import CommandParser
from dstreams.cli.common import SUCCEEDED

_TEXT = """\
Prints a script that completes commands, options and files when you press Tab. Print it again after
updating dstreams.

bash:
  DIR=~/.local/share/bash-completion/completions
  mkdir -p $DIR
  dstreams completion bash > $DIR/dstreams

zsh:
  mkdir -p ~/.zfunc
  dstreams completion zsh > ~/.zfunc/_dstreams
  and in ~/.zshrc, above compinit: fpath+=~/.zfunc
"""
_FILES, _DIRECTORIES = ("FILE", "app.py"), ("CHECKPOINT", "DIR")
"""Metavars of arguments that are completed with paths."""


def configure(command: CommandParser) -> None:
    """Add the arguments of the command."""
    command.description = _TEXT
    command.add_below(["bash"], None)
    command.add_argument("shell", choices=["bash", "zsh"], help="the shell")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from dstreams.cli.main import parser  # noqa: PLC0415 - main imports this module

    sys.stdout.write(script(parser(), options.shell))
    return SUCCEEDED


def script(parser: CommandParser, shell: str) -> str:
    """Return the completion script of a parser."""
    import shtab  # noqa: PLC0415 - no other command needs it

    for action in _actions(parser):
        if action.metavar in (*_FILES, *_DIRECTORIES):
            is_file = action.metavar in _FILES
            action.complete = shtab.FILE if is_file else shtab.DIR  # type: ignore[attr-defined]
        if isinstance(action, argparse._SubParsersAction):
            for row in action._choices_actions:
                action.choices[row.dest].description = row.help
    return f"{shtab.complete(parser, shell).rstrip()}\n"


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
