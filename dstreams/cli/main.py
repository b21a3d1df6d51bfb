"""The command ``dstreams``."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

import pyspark

from checkpoint.cli.command_parser import CommandParser
from dstreams.cli.check import add_check
from dstreams.cli.checkpoint import add_checkpoint, run_checkpoint
from dstreams.cli.common import FAILED, INTERRUPTED, NOT_READY, SUCCEEDED, Commands, complain
from dstreams.cli.completion import add_completion
from dstreams.cli.demo_command import add_demo
from dstreams.cli.drill_command import add_drill
from dstreams.cli.kafka_command import add_kafka_offsets
from dstreams.cli.run import add_run
from dstreams.errors import EnvironmentNotReadyError, InvalidStreamError, StreamError

_COMMANDS: tuple[Callable[[Commands], None], ...] = (
    add_run,
    add_check,
    add_demo,
    add_drill,
    add_kafka_offsets,
    add_checkpoint,
    lambda commands: add_completion(commands, parser),
)
"""Each adds a parser with the default ``run``, which takes the options and returns the status."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        argv: arguments. None: those of the process.

    Raises:
        SystemExit: with 2 after a usage error, with 0 after ``--help`` or ``--version``.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["checkpoint"]:  # all that follows is its own
        return run_checkpoint(words[1:])
    commands = parser()
    options = commands.parse_args(words)
    command: str | None = options.command
    if command is None:
        commands.print_help()
        return SUCCEEDED
    try:
        status: int = options.run(options)
    except BrokenPipeError:
        status = _mute()
    except (EnvironmentNotReadyError, OSError) as error:
        status = complain(command, error, NOT_READY)
    except InvalidStreamError as error:
        status = complain(command, error, getattr(options, "invalid_status", FAILED))
    except StreamError as error:
        status = complain(command, error, FAILED)
    except KeyboardInterrupt:
        status = complain(command, "interrupted", INTERRUPTED)
    return status


def parser() -> CommandParser:
    """Return the parser of the command, with those of all commands below it."""
    commands = CommandParser(
        prog="dstreams",
        description="Stateful stream processing in Python on Apache Spark RDDs.",
        examples=["demo", "checkpoint show /data/app"],
    )
    commands.add_argument("--version", action="version", version=_version())
    below = commands.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for add in _COMMANDS:
        add(below)
    return commands


def _mute() -> int:
    """Nobody reads what we print, for example after ``| head``: end without a word."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _version() -> str:
    try:
        installed = version("dstreams")
    except PackageNotFoundError:
        installed = "(not installed)"
    return (
        f"dstreams {installed}, PySpark {pyspark.__version__}, Python {platform.python_version()}"
    )
