"""``run``: a program that was written for ``pyspark.streaming`` runs as it is."""

from __future__ import annotations

import argparse
import os

from dstreams.cli.common import MISUSED, Commands, complain, file, setting
from dstreams.compat.run import run_program
from dstreams.spark.context import DEFAULT_MASTER

_STATUS = """\
exit status:
  that of the program, if it ends by sys.exit; else
  0    it ended; Ctrl-C and SIGTERM stop streams, and it goes on from there
  1    the program failed
  2    the command was used wrongly
  3    Java or Spark is missing on this machine
  130  interrupted by Ctrl-C while no stream was running
"""


def add_run(commands: Commands) -> None:
    """Add the command to a parser."""
    run = commands.add_parser(
        "run",
        help="run a program that was written for pyspark.streaming, as it is",
        description=(
            "Runs a Python program in which pyspark.streaming is dstreams. A SparkContext that it "
            "makes has the settings of dstreams.tuned_conf, then those of spark-defaults.conf and "
            "of these options, then its own: the later ones win."
        ),
        examples=["app.py", "--as-spark app.py", "--master local[4] app.py /data/app"],
        epilog=_STATUS,
    )
    run.add_argument(
        "--quiet",
        action="store_true",
        help="print neither how far a restart is, nor where the page is, nor changed defaults",
    )
    run.add_argument(
        "--as-spark",
        action="store_true",
        help="change none of Spark's defaults; the page of dstreams is off as well",
    )
    run.add_argument("--master", metavar="URL", help=f"Spark master (default: {DEFAULT_MASTER})")
    run.add_argument("--name", metavar="NAME", help="name of the application (default: the file's)")
    run.add_argument(
        "--conf",
        type=setting,
        action="append",
        default=[],
        metavar="K=V",
        help="a setting of Spark; may be given more than once",
    )
    run.add_argument("program", type=file, metavar="app.py", help="the program, a Python file")
    run.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="args", help="arguments of the program"
    )
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
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
        is_as_spark=options.as_spark,
    )
