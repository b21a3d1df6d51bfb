"""Tools that inspect, verify and repair a checkpoint, and the parser and progress of commands."""

# ruff: noqa: PLC0415 - the tools are imported when they are called
from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from checkpoint.cli.command_parser import CommandParser
from checkpoint.cli.progress_bar import (
    SILENT,
    Progress,
    ProgressBar,
    ProgressLines,
    StageProgress,
    is_terminal,
    painted,
    progress_on,
)

if TYPE_CHECKING:
    from checkpoint.cli.common import UsageError as UsageError
    from checkpoint.cli.common import time_ms as time_ms
    from checkpoint.cli.differences import row_differences as row_differences
    from checkpoint.cli.differences import shown_rows as shown_rows
    from checkpoint.cli.differences import state_differences as state_differences
    from checkpoint.cli.fork import Fork as Fork
    from checkpoint.cli.fork import fork_stream as fork_stream
    from checkpoint.cli.read import states_after as states_after
    from checkpoint.cli.savepoint import needed_files as needed_files

__all__ = [
    "SILENT",
    "CommandParser",
    "Fork",
    "Progress",
    "ProgressBar",
    "ProgressLines",
    "StageProgress",
    "UsageError",
    "add_tools",
    "fork_stream",
    "is_terminal",
    "needed_files",
    "painted",
    "progress_on",
    "row_differences",
    "run_tools",
    "shown_rows",
    "state_differences",
    "states_after",
    "time_ms",
]


def run_tools(argv: Sequence[str], prog: str) -> int:
    """Run the tools as the command *prog*, and return the exit status."""
    from checkpoint.cli.main import main

    return main(argv, prog)


def add_tools(parser: CommandParser) -> None:
    """Add the commands of the tools to a parser."""
    from checkpoint.cli.main import add_tools

    add_tools(parser)


_LATER = {
    "Fork": "checkpoint.cli.fork",
    "UsageError": "checkpoint.cli.common",
    "fork_stream": "checkpoint.cli.fork",
    "needed_files": "checkpoint.cli.savepoint",
    "row_differences": "checkpoint.cli.differences",
    "shown_rows": "checkpoint.cli.differences",
    "state_differences": "checkpoint.cli.differences",
    "states_after": "checkpoint.cli.read",
    "time_ms": "checkpoint.cli.common",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
