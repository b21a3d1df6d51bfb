"""Inspects, verifies and repairs a checkpoint.

Inspecting changes nothing and is safe while a stream runs. Commands that make changes refuse to run
while a driver may be running.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence

from checkpoint.cli.command_parser import CommandParser
from checkpoint.cli.common import (
    FAILED,
    IN_USE,
    INTERRUPTED,
    MISUSED,
    STATUS,
    SUCCEEDED,
    TIMES,
    CommandResult,
    UsageError,
)
from checkpoint.cli.garbage import add_gc
from checkpoint.cli.progress_bar import painted
from checkpoint.cli.read import add_diff, add_read
from checkpoint.cli.rewind import add_rewind
from checkpoint.cli.savepoint import add_export, add_import
from checkpoint.cli.show import add_batches, add_list, add_show
from checkpoint.cli.sign import add_sign
from checkpoint.cli.verify_command import add_verify
from checkpoint.errors import COMMAND, CheckpointError, ConcurrentWriterError

__all__ = ["FAILED", "IN_USE", "MISUSED", "SUCCEEDED", "add_tools", "main", "tools_parser"]

_COMMANDS = (
    add_list,
    add_show,
    add_verify,
    add_read,
    add_diff,
    add_batches,
    add_rewind,
    add_export,
    add_import,
    add_gc,
    add_sign,
)


def main(argv: Sequence[str] | None = None, prog: str = "python -m checkpoint") -> int:
    """Run a command and return its exit status. Raises SystemExit for a usage error."""
    tools = tools_parser(prog)
    options = tools.parse_args(argv)
    if options.command is None:
        tools.print_help()
        return SUCCEEDED
    name = f"{prog} {options.command}"
    try:
        return _run(options, name)
    except KeyboardInterrupt:
        status, error = INTERRUPTED, "interrupted"
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except UsageError as usage:
        status, error = MISUSED, str(usage)
    except ConcurrentWriterError as in_use:
        status, error = IN_USE, str(in_use)
    except (CheckpointError, OSError, RecursionError, TypeError, ValueError) as failure:
        status, error = FAILED, str(failure) or type(failure).__name__
    lines = "\n".join(map(_printable, error.splitlines()))
    sys.stderr.write(f"{name}: {_as_called(lines, prog)}\n")
    return status


def _run(options: argparse.Namespace, name: str) -> int:
    result: CommandResult = options.run(options)
    for line in _shown(result, options.json):
        sys.stdout.write(f"{_as_called(line, options.program)}\n")
    sys.stdout.flush()
    if result.note is not None:
        sys.stderr.write(f"{name}: {_printable(result.note)}\n")
    return result.status


def _as_called(text: str, prog: str) -> str:
    """Return *text* with the command named as it was called."""
    return text.replace(COMMAND, prog)


def _shown(result: CommandResult, as_json: bool) -> Iterator[str]:
    if result.rows is not None and (as_json or result.lines is None):
        yield from map(json.dumps, result.rows)
    elif as_json or result.lines is None:
        yield json.dumps(result.data, indent=2)
    else:
        yield from map(_printable, result.lines)
        if result.verdict is not None:
            is_good = result.status == SUCCEEDED
            yield painted(_printable(result.verdict), "green" if is_good else "red", sys.stdout)
        yield from map(_printable, result.advice)


def _printable(line: str) -> str:
    """Return a line without control characters, which could change other lines of a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def tools_parser(prog: str = "python -m checkpoint") -> CommandParser:
    """Return the parser of the command and its subcommands."""
    tools = CommandParser(prog=prog)
    add_tools(tools)
    return tools


def add_tools(tools: CommandParser) -> None:
    """Add the subcommands and shared help to a parser."""
    tools.description = __doc__
    tools.add_below(["show /data/app", "verify /data/app"], f"{TIMES}\n{STATUS}")
    tools.set_defaults(program=tools.prog)
    commands = tools.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for add in _COMMANDS:
        add(commands)
