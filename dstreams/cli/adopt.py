"""The command ``adopt``: what a checkpoint of pyspark.streaming holds, and what a program takes."""

# ruff: noqa: PLC0415 - a command loads only what it runs
from __future__ import annotations

import argparse
import sys
from typing import Any

from checkpoint.cli import CommandParser
from dstreams.cli.common import FAILED, SUCCEEDED, add_states, complain, file, number_type
from dstreams.errors import StreamError

_STATUS = """\
exit status:
  0    the contents were listed, or the program can adopt the checkpoint
  1    the checkpoint cannot be read, others can write to it, or the program cannot adopt it
  2    usage error
  3    Java, Spark or javaobj (the extra adopt) is missing on this machine
  130  interrupted by Ctrl-C
"""


def configure_adopt(command: CommandParser) -> None:
    """Add the arguments of ``dstreams adopt``."""
    command.description = (
        "Lists what a checkpoint of pyspark.streaming holds (--list), or what a program would take "
        "over from it: states with their keys and batch times, files, and what cannot be taken "
        "(--app). The program runs up to the start of its streams, as under dstreams run. Nothing "
        "is changed. Keys and states are unpickled, which runs code: name only what you trust. "
        "dstreams run --adopt CHECKPOINT app.py takes it over."
    )
    command.add_below(
        ["--list /data/spark-checkpoint", "--app app.py /data/spark-checkpoint"], _STATUS
    )
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="list the contents")
    what.add_argument("--app", type=file, metavar="app.py", help="the program, a Python file")
    command.add_argument("url", metavar="CHECKPOINT", help="the directory that Spark writes to")
    command.add_argument(
        "arguments", nargs="*", metavar="args", help="arguments of the program, after --"
    )
    command.add_argument(
        "--samples",
        type=number_type(0, "pairs", int),
        default=3,
        metavar="N",
        help="pairs of each state to list (default: 3)",
    )
    command.add_argument(
        "--allow-removed",
        action="append",
        default=[],
        metavar="UID",
        help="a state or input of Spark that the program may leave out; can be repeated",
    )
    add_states(command)
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.list:
        return _list(options)
    from dstreams.compat.run import run_program
    from dstreams.engine.recovery.adoption import adopt
    from dstreams.engine.recovery.spark_checkpoint import state_directories
    from dstreams.engine.replay import taking

    def take(context: Any) -> None:
        try:
            report = adopt(
                options.url,
                None,
                context._program,
                context._clock.now_ms(),
                tuple(options.allow_removed),
                dict(options.state),
            )
        except StreamError as error:
            raise SystemExit(complain("adopt", error, FAILED)) from error
        sys.stdout.write(f"{report}\n")
        raise SystemExit(FAILED if report.refusals else SUCCEEDED)

    state_directories(options.url)  # before the program runs
    with taking(take):
        status = run_program(options.app, options.arguments, {}, is_quiet=True)
    if status:
        return status
    return complain("adopt", f"{options.app} starts no stream; call ssc.start()", FAILED)


def _list(options: argparse.Namespace) -> int:
    from dstreams.engine.recovery.adoption import contents_of
    from dstreams.engine.recovery.spark_checkpoint import state_directories
    from dstreams.spark.spark_context import tuned_context

    compressed = set(state_directories(options.url).values()) or {True}
    conf = {"spark.checkpoint.compress": str(max(compressed)).lower()}
    with tuned_context("dstreams adopt", conf=conf) as spark:
        for line in contents_of(options.url, spark, options.samples):
            sys.stdout.write(f"{line}\n")
    return SUCCEEDED
