"""``drill``: a driver is killed again and again, and what it has promised is checked."""

from __future__ import annotations

import argparse
import sys

from dstreams.cli.common import (
    FAILED,
    MISUSED,
    SUCCEEDED,
    Commands,
    add_kafka,
    add_quiet,
    count,
    file,
    seed,
)
from dstreams.cli.drill.command import DrillOptions, run_drill
from dstreams.cli.drill.steps import RUNTIME_STEPS, Step, step_named
from dstreams.common.clock import SystemClock

_STATUS = """\
An application of yours is a Python file with four functions, each of which gets the directory of
the drill:
  setup(directory)         returns a StreamingContext; its checkpoint directory is
                           directory + "/checkpoint"; called once, by the first driver
  start(directory)         in its place, for a structured query: starts it with that checkpoint
                           location, and returns its StreamSession; called by each driver
  feed(directory, number)  gives it more input; called with 0, 1, 2, ...
  is_done(directory)       says whether all input has been through
  check(directory)         returns what is wrong with the outputs: a list of texts

The steps of a batch, in order, are plan.start, begin.start, begin.done, job.submit, state.start,
state.done, out.start, out.done, commit.start, commit.done, clean.start and clean.done; those of a
restart are rec.fence, rec.load and rec.replay. Between out.done and commit.start all outputs have
run, and nothing says so yet.

exit status:
  0    all promises held: nothing lost, nothing twice, all state equal
  1    they did not; the directory of the drill is kept
  2    the command was used wrongly
  3    Java, Spark or, with --kafka, the client of Kafka is missing here
  130  interrupted by Ctrl-C
"""


_KILLS = 20


def add_drill(commands: Commands) -> None:
    """Add the command to a parser."""
    drill = commands.add_parser(
        "drill",
        help="kill a driver again and again, and check that nothing is lost",
        description=(
            "Runs a job with updateStateByKey, a window, mapWithState and files written exactly "
            "once, or a structured query; kills its driver at random moments, and once at each "
            "step of a batch, restarts it from its checkpoint, and compares all outputs with an "
            "oracle."
        ),
        examples=[
            "--kills 5",
            "--app app.py --kills 3 --seed 1",
            "--app app.py --step commit.start",
        ],
        epilog=_STATUS,
    )
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
        help="as many drivers lose their Python workers before (default: %(default)s)",
    )
    drill.add_argument(
        "--seed", type=seed, metavar="N", help="of the random moments (default: another each time)"
    )
    drill.add_argument(
        "--no-steps", action="store_true", help="do not kill at each step of a batch as well"
    )
    drill.add_argument(
        "--step",
        type=_step,
        action="append",
        default=[],
        metavar="NAME",
        help="kill at this step, and at no other; may be given more than once",
    )
    what = drill.add_mutually_exclusive_group()
    what.add_argument("--app", type=file, metavar="app.py", help="an application of yours")
    what.add_argument(
        "--query", action="store_true", help="drill a structured query with state by key instead"
    )
    add_kafka(
        what,
        "drill a job that reads and writes topics of these brokers, where it makes its own",
    )
    drill.add_argument(
        "--interval",
        type=count,
        metavar="SECONDS",
        help="between two batches of the drill's own job; more on a slow machine (default: 2)",
    )
    drill.add_argument("--json", action="store_true", help="for programs: the result, alone")
    add_quiet(drill)
    drill.add_argument("--keep", action="store_true", help="keep the directory of the drill")
    drill.set_defaults(run=_drill, invalid_status=MISUSED)


def _drill(options: argparse.Namespace) -> int:
    chosen: int = SystemClock().now_ms() % 10**6 if options.seed is None else options.seed
    drill = DrillOptions(
        _kills(options),
        chosen,
        options.app,
        at_steps=not options.no_steps,
        as_json=options.json,
        keep=options.keep,
        interval_s=options.interval,
        query=options.query,
        kafka=options.kafka,
        worker_kills=options.worker_kills,
        is_quiet=options.quiet,
        steps=tuple(options.step),
    )
    return SUCCEEDED if run_drill(drill, sys.stdout) else FAILED


def _kills(options: argparse.Namespace) -> int:
    if options.kills is not None or not options.step:
        return options.kills or _KILLS
    return int(any(step.in_restart for step in options.step))  # a restart needs a death before it


def _step(text: str) -> Step:
    try:
        return step_named(text)
    except KeyError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no step; those of a batch and of a restart are {', '.join(RUNTIME_STEPS)}"
        ) from None
