"""``check``: list what a program uses of ``pyspark.streaming``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dstreams.cli.common import Commands
from dstreams.compat.check import as_json, check, report

_STATUS = """\
exit status:
  0    the program runs as it is; differences are listed
  1    something must be changed or set
  2    a file cannot be read, or wrong usage
  130  interrupted by Ctrl-C
"""


def add_check(commands: Commands) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "check",
        help="list what a program uses of pyspark.streaming and what to change",
        description=(
            "Reads programs written for pyspark.streaming without running them, and lists by line "
            "what to change or to set, and what behaves differently."
        ),
        examples=["app.py", "--json src/"],
        epilog=_STATUS,
    )
    command.add_argument("--json", action="store_true", help="machine-readable (JSON)")
    command.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a file, or a directory for all files *.py below it",
    )
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    checked = check([Path(path) for path in options.paths])
    sys.stdout.write((as_json if options.json else report)(checked, options.paths))
    return checked.status
