"""``dstreams check``: list the uses of ``pyspark.streaming`` in a program, and what to change."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from checkpoint.cli import CommandParser
from dstreams.compat.check import as_json, check, report

_STATUS = """\
exit status:
  0    nothing to change; differences are listed
  1    a change or a setting is needed
  2    a file cannot be read, or usage error
  130  interrupted by Ctrl-C
"""


def configure(command: CommandParser) -> None:
    """Add the arguments of the command."""
    command.description = (
        "Reads programs written for pyspark.streaming without running them, and lists by line "
        "what to change or configure, what behaves differently, and what stays the same."
    )
    command.add_below(["app.py", "--json src/"], _STATUS)
    command.add_argument("--json", action="store_true", help="machine-readable (JSON)")
    command.add_argument(
        "paths", nargs="+", metavar="PATH", help="a file, or a directory for all *.py files in it"
    )
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    checked = check([Path(path) for path in options.paths])
    sys.stdout.write((as_json if options.json else report)(checked, options.paths))
    return checked.status
