"""Tools that inspect, verify and repair a checkpoint, and the parser and progress of commands."""

# ruff: noqa: PLC0415 - the tools are imported when they are called
from __future__ import annotations

from collections.abc import Sequence

from checkpoint.cli.command_parser import CommandParser
from checkpoint.cli.progress import (
    SILENT,
    Progress,
    ProgressBar,
    ProgressLines,
    StageProgress,
    is_terminal,
    painted,
    progress_on,
)

__all__ = [
    "SILENT",
    "CommandParser",
    "Progress",
    "ProgressBar",
    "ProgressLines",
    "StageProgress",
    "add_tools",
    "is_terminal",
    "painted",
    "progress_on",
    "run_tools",
]


def run_tools(argv: Sequence[str], prog: str) -> int:
    """Run the tools as the command *prog*, and return the exit status."""
    from checkpoint.cli.main import main

    return main(argv, prog)


def add_tools(parser: CommandParser) -> None:
    """Add the commands of the tools to a parser."""
    from checkpoint.cli.main import add_tools

    add_tools(parser)
