"""``check``: what a program uses of ``pyspark.streaming``, and what there is to do."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dstreams.cli.common import Commands
from dstreams.compat.check.check import check
from dstreams.compat.check.report import as_json, report

_STATUS = """\
exit status:
  0    nothing to do: what it uses runs, and what differs is listed
  1    something has to be changed or set
  2    a file cannot be read, or the command was used wrongly
  130  interrupted by Ctrl-C
"""


def add_check(commands: Commands) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "check",
        help="say what a program uses of pyspark.streaming, and what to change",
        description=(
            "Reads programs that were written for pyspark.streaming, without running them, and "
            "lists by line what has to be changed or set, what differs, and what stays the same."
        ),
        examples=["app.py", "--json src/"],
        epilog=_STATUS,
    )
    command.add_argument("--json", action="store_true", help="for programs")
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
