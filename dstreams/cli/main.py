"""The command ``dstreams``. The module of a command is imported when the command is called."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Collection, Sequence
from importlib import import_module

from checkpoint.cli import CommandParser, add_tools, run_tools
from dstreams.cli.common import FAILED, INTERRUPTED, NOT_READY, SUCCEEDED, complain
from dstreams.errors import EnvironmentNotReadyError, InvalidStreamError, StreamError

_COMMANDS = {
    "run": ("commands", "run a program written for pyspark.streaming, unchanged"),
    "check": ("commands", "list the uses of pyspark.streaming in a program, and what to change"),
    "demo": ("demo", "count words over a socket or through Kafka, and check the counts"),
    "drill": ("drill.command", "kill a driver repeatedly, and check that nothing is lost"),
    "replay": ("replay", "run recorded batches again with a new version of a program"),
    "adopt": ("adopt", "list what a checkpoint of pyspark.streaming holds"),
    "pack": ("pack", "archive this Python environment for the workers of a cluster"),
    "kafka": ("commands", "compare the offsets of a checkpoint with those of the brokers; lag"),
    "checkpoint": (None, "inspect a checkpoint, verify it, rewind it, export it"),
    "completion": ("commands", "print the script that completes commands in a shell"),
}
"""Module in this package, which has ``configure_NAME(parser)``, and help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        argv: arguments. None: those of the process.

    Raises:
        SystemExit: with 2 after a usage error, with 0 after ``--help`` or ``--version``.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["checkpoint"]:
        return run_tools(words[1:], prog="dstreams checkpoint")
    commands = parser(words[:1])
    options = commands.parse_args(words)
    command: str | None = options.command
    if command is None:
        commands.print_help()
        return SUCCEEDED
    try:
        status: int = options.run(options)
    except BrokenPipeError:  # such as after ``| head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = FAILED
    except (EnvironmentNotReadyError, OSError) as error:
        status = complain(command, error, NOT_READY)
    except InvalidStreamError as error:
        status = complain(command, error, getattr(options, "invalid_status", FAILED))
    except StreamError as error:
        status = complain(command, error, FAILED)
    except KeyboardInterrupt:
        status = complain(command, "interrupted", INTERRUPTED)
    return status


def parser(complete: Collection[str] = tuple(_COMMANDS)) -> CommandParser:
    """Return the parser of all commands; only those in *complete* have their arguments."""
    commands = CommandParser(
        prog="dstreams",
        description="Stateful stream processing in Python on Apache Spark RDDs.",
        examples=["demo", "checkpoint show /data/app"],
    )
    commands.add_argument("--version", action=_Version, nargs=0, help="print versions and exit")
    below = commands.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (module, text) in _COMMANDS.items():
        command = below.add_parser(name, help=text)
        if name in complete and module is None:
            add_tools(command)
        elif name in complete:
            getattr(import_module(f"dstreams.cli.{module}"), f"configure_{name}")(command)
    return commands


class _Version(argparse.Action):
    """Prints the versions; their look-up takes as long as the rest of ``--help``."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        try:
            installed = version("dstreams")
        except PackageNotFoundError:
            installed = "(not installed)"
        python = platform.python_version()
        sys.stdout.write(f"dstreams {installed}, PySpark {version('pyspark')}, Python {python}\n")
        parser.exit()
