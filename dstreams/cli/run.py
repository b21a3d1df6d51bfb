"""``dstreams run``: run a program written for ``pyspark.streaming``, unchanged."""

from __future__ import annotations

import argparse
import os

from checkpoint.cli import CommandParser
from dstreams.cli.common import MISUSED, complain, file
from dstreams.compat.run import run_program
from dstreams.spark.context import DEFAULT_MASTER

_STATUS = """\
exit status:
  that of the program, if it calls sys.exit; otherwise
  0    the program ended; Ctrl-C and SIGTERM stop streams, and the program continues after them
  1    the program failed
  2    usage error
  3    Java or Spark is missing on this machine
  130  interrupted by Ctrl-C while no stream was running
"""


def configure(command: CommandParser) -> None:
    """Add the arguments of the command."""
    command.description = (
        "Runs a Python program in which pyspark.streaming is dstreams. A SparkContext that the "
        "program creates uses the settings of dstreams.tuned_conf, overridden by "
        "spark-defaults.conf, then by these options, then by the program's own."
    )
    command.add_below(
        ["app.py", "--spark-defaults app.py", "--master local[4] app.py /data/app"], _STATUS
    )
    command.add_argument(
        "--quiet",
        action="store_true",
        help="print no restart progress, no address of the live page and no changed defaults",
    )
    command.add_argument(
        "--spark-defaults",
        action="store_true",
        help="keep Spark's defaults, and turn the live page off",
    )
    command.add_argument(
        "--master", metavar="URL", help=f"Spark master (default: {DEFAULT_MASTER})"
    )
    command.add_argument(
        "--name", metavar="NAME", help="name of the application (default: that of the file)"
    )
    command.add_argument(
        "--conf",
        type=_setting,
        action="append",
        default=[],
        metavar="K=V",
        help="a Spark setting; can be repeated",
    )
    command.add_argument(
        "program", nargs="?", type=file, metavar="app.py", help="the program, a Python file"
    )
    command.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="args", help="arguments of the program"
    )
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.program is None:
        return complain("run", "which program? dstreams run app.py", MISUSED)
    submitted = dict(options.conf)
    if options.master is not None:
        submitted["spark.master"] = options.master
    if options.name is not None:
        submitted["spark.app.name"] = options.name
    if submitted and "PYSPARK_GATEWAY_PORT" in os.environ:
        return complain("run", "give --master, --name and --conf to spark-submit", MISUSED)
    return run_program(
        options.program,
        options.arguments,
        submitted,
        is_quiet=options.quiet,
        is_as_spark=options.spark_defaults,
    )


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{text!r} must be spark.KEY=VALUE")
    return key, value
