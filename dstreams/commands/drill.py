"""``drill``: a driver is killed again and again, and what it has promised is checked."""

from __future__ import annotations

import argparse
import sys

from dstreams.clock import SystemClock
from dstreams.commands.common import (
    FAILED,
    SUCCEEDED,
    Commands,
    add_kafka,
    add_quiet,
    count,
    file,
    seed,
)
from dstreams.drill.command import DrillOptions, run_drill

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

exit status:
  0    all promises held: nothing lost, nothing twice, all state equal
  1    they did not; the directory of the drill is kept
  2    the command was used wrongly
  3    Java, Spark or, with --kafka, the client of Kafka is missing here
  130  interrupted by Ctrl-C
"""


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
        examples=["--kills 5", "--app app.py --kills 3 --seed 1"],
        epilog=_STATUS,
    )
    drill.add_argument(
        "--kills",
        type=count,
        default=20,
        metavar="N",
        help="kills at random moments (default: %(default)s)",
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
    drill.set_defaults(run=_drill)


def _drill(options: argparse.Namespace) -> int:
    chosen: int = SystemClock().now_ms() % 10**6 if options.seed is None else options.seed
    drill = DrillOptions(
        options.kills,
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
    )
    return SUCCEEDED if run_drill(drill, sys.stdout) else FAILED
