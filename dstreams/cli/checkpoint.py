"""``checkpoint``: the tools of the package ``checkpoint``, under the name of this command."""

from __future__ import annotations

from collections.abc import Sequence

from checkpoint.cli.main import add_tools, main
from dstreams.cli.common import Commands

_NAME = "dstreams checkpoint"


def add_checkpoint(commands: Commands) -> None:
    """Add the command to a parser."""
    tools = commands.add_parser(
        "checkpoint", help="look into a checkpoint, verify it, go back, export it"
    )
    add_tools(tools)


def run_checkpoint(words: Sequence[str]) -> int:
    """Run the command *words* of it, and return its exit status."""
    return main(words, prog=_NAME)
