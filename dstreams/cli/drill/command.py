"""The command ``dstreams drill``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

from checkpoint.cli import CommandParser, is_terminal, progress_on
from dstreams.cli.common import FAILED, MISUSED, SUCCEEDED, add_quiet, brokers, file, number_type
from dstreams.cli.drill import kafka_job
from dstreams.cli.drill.application import INTERVAL, KAFKA, load
from dstreams.cli.drill.campaign import Campaign, DrillPlan
from dstreams.cli.drill.results import DrillReport
from dstreams.cli.drill.steps import (
    RUNTIME_STEPS,
    STEPS,
    STEPS_OF_A_QUERY,
    STEPS_WITH_KAFKA,
    KillStep,
    step_named,
)
from dstreams.common.clock import SystemClock
from dstreams.kafka import client
from dstreams.spark.spark_context import require_java, require_spark

_STATUS = """\
An application (--app) is a Python file with four functions. Each gets the directory of the drill:
  setup(directory)         returns a StreamingContext; its checkpoint directory is
                           directory + "/checkpoint"; called once, by the first driver
  start(directory)         for a structured query, instead of setup: starts the query with that
                           checkpoint location and returns its StreamSession; called by each driver
  feed(directory, number)  adds input; called with 0, 1, 2, ...
  is_done(directory)       returns whether all input has been processed
  check(directory)         returns a list of problems of the outputs, as texts

The steps of a batch, in order, are plan.start, begin.start, begin.done, job.submit, state.start,
state.done, out.start, out.done, commit.start, commit.done, clean.start and clean.done; those of a
restart are rec.fence, rec.load and rec.replay. Between out.done and commit.start all outputs have
run, and no record says so yet.

exit status:
  0    all promises held: nothing lost, nothing duplicated, all state equal
  1    a promise was broken; the directory of the drill is kept
  2    usage error
  3    Java, Spark or, with --bootstrap-server, the Kafka client is missing
  130  interrupted by Ctrl-C
"""

_KILLS = 20


def configure_drill(drill: CommandParser) -> None:
    """Add the arguments of the command."""
    drill.description = (
        "Runs a job with updateStateByKey, a window, mapWithState and files written exactly once, "
        "or a structured query. Kills its driver at random moments and once at each step of a "
        "batch, restarts it from its checkpoint, and compares all outputs with an oracle."
    )
    drill.add_below(
        ["--kills 5", "--app app.py --kills 3 --seed 1", "--app app.py --step commit.start"],
        _STATUS,
    )
    count = number_type(1, "kills", int)
    drill.add_argument(
        "--kills",
        type=count,
        metavar="N",
        help=(
            f"kills at random moments (default: {_KILLS}; with --step none, or one before a "
            "restart)"
        ),
    )
    drill.add_argument(
        "--worker-kills",
        type=count,
        default=0,
        metavar="N",
        help="also kill the Python workers of N drivers (default: %(default)s)",
    )
    drill.add_argument(
        "--seed",
        type=number_type(0, "seed", int),
        metavar="N",
        help="seed of the random moments (default: a new one)",
    )
    drill.add_argument(
        "--no-steps", action="store_true", help="do not kill at the steps of a batch"
    )
    drill.add_argument(
        "--step",
        type=_step,
        action="append",
        default=[],
        metavar="NAME",
        help="kill at this step only; can be repeated",
    )
    what = drill.add_mutually_exclusive_group()
    what.add_argument("--app", type=file, metavar="app.py", help="drill your application")
    what.add_argument(
        "--query", action="store_true", help="drill a structured query with state by key"
    )
    what.add_argument(
        "--bootstrap-server",
        type=brokers,
        metavar="HOST:PORT",
        help="drill a job between topics of these brokers, which it creates and deletes",
    )
    drill.add_argument(
        "--interval",
        type=number_type(1, "seconds", int),
        metavar="SECONDS",
        help="batch interval of the drill's own job; longer on a slow machine (default: 2)",
    )
    drill.add_argument("--json", action="store_true", help="machine-readable (JSON)")
    add_quiet(drill)
    drill.add_argument("--keep", action="store_true", help="keep the directory of the drill")
    drill.set_defaults(run=run, invalid_status=MISUSED)


def run(options: argparse.Namespace) -> int:
    """Run a drill, and return its exit status."""
    require_spark()
    require_java()
    if options.interval is not None:
        os.environ[INTERVAL] = str(options.interval)  # drivers inherit the environment
    if options.bootstrap_server is not None:
        client.confluent_kafka()
        os.environ[KAFKA] = options.bootstrap_server
    application = load(options.app, query=options.query)
    directory = Path(mkdtemp(prefix="dstreams-drill-"))
    has_lines = not options.json and not is_terminal(sys.stderr)  # which already show progress
    with ExitStack() as stack:
        progress = stack.enter_context(
            progress_on(
                sys.stderr,
                "dstreams drill",
                as_json=options.json,
                is_quiet=options.quiet or has_lines,
            )
        )
        out = progress.above(sys.stdout)
        report = DrillReport(out, as_json=options.json, is_quiet=options.quiet)
        if not options.keep:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            if options.bootstrap_server is not None:
                stack.callback(kafka_job.clean, str(directory))
        plan = _plan(options, directory)
        total = plan.kills + len(plan.steps)
        kills = "1 kill" if total == 1 else f"{total} kills"
        report.progress(f"{kills}, seed {plan.seed}, in {directory}")
        result = Campaign(plan, application, SystemClock(), report.progress, progress).run()
        progress.close()
        report.end(result)
        if not result.is_passed and not options.keep:
            stack.pop_all()
            report.add(f"the directory of the drill is kept: {directory}")
    return SUCCEEDED if result.is_passed else FAILED


def _plan(options: argparse.Namespace, directory: Path) -> DrillPlan:
    own = STEPS if options.bootstrap_server is None else STEPS_WITH_KAFKA
    own = STEPS_OF_A_QUERY if options.query else own
    steps: Sequence[KillStep] = () if options.no_steps or options.app is not None else own
    kills = options.kills or _KILLS
    if options.step:
        steps = options.step
        # A restart needs a kill before it.
        kills = options.kills or int(any(step.in_restart for step in steps))
    return DrillPlan(
        directory,
        options.app,
        kills,
        steps,
        SystemClock().now_ms() % 10**6 if options.seed is None else options.seed,
        query=options.query,
        worker_kills=options.worker_kills,
    )


def _step(text: str) -> KillStep:
    try:
        return step_named(text)
    except KeyError:
        raise argparse.ArgumentTypeError(
            f"unknown step {text!r}; the steps are {', '.join(RUNTIME_STEPS)}"
        ) from None
