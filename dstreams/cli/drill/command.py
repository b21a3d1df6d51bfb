"""``dstreams drill``: from its options to its exit status."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TextIO

from checkpoint.cli.progress import is_terminal, progress_on
from dstreams.cli.drill import kafka_job
from dstreams.cli.drill.application import INTERVAL, KAFKA, load
from dstreams.cli.drill.campaign import Campaign, DrillPlan
from dstreams.cli.drill.results import DrillReport
from dstreams.cli.drill.steps import STEPS, STEPS_OF_A_QUERY, STEPS_WITH_KAFKA, Step
from dstreams.common.clock import SystemClock
from dstreams.kafka import client
from dstreams.spark.context import require_java, require_spark


@dataclass(frozen=True)
class DrillOptions:
    """Options of the command."""

    kills: int
    seed: int
    app: Path | None = None
    at_steps: bool = True
    as_json: bool = False
    keep: bool = False
    interval_s: int | None = None
    query: bool = False
    kafka: str | None = None
    worker_kills: int = 0
    is_quiet: bool = False
    steps: tuple[Step, ...] = ()
    """Those to be killed at; none: all of the drill's own job, unless *at_steps* is false."""


def run_drill(options: DrillOptions, out: TextIO) -> bool:
    """Run a drill, and return whether all promises held.

    Raises:
        InvalidStreamError: the application cannot be drilled.
        EnvironmentNotReadyError: Java or Spark is missing on this machine, or the client of Kafka.
    """
    require_spark()
    require_java()
    if options.interval_s is not None:
        os.environ[INTERVAL] = str(options.interval_s)  # the drivers are to have it too
    if options.kafka is not None:
        client.confluent_kafka()
        os.environ[KAFKA] = options.kafka
    application = load(options.app, query=options.query)
    directory = Path(mkdtemp(prefix="dstreams-drill-"))
    # Where lines are printed, they say how far it is.
    has_lines = not options.as_json and not is_terminal(sys.stderr)
    with ExitStack() as stack:
        progress = stack.enter_context(
            progress_on(
                sys.stderr,
                "dstreams drill",
                as_json=options.as_json,
                is_quiet=options.is_quiet or has_lines,
            )
        )
        report = DrillReport(
            out, options.as_json, is_quiet=options.is_quiet, above=progress.above(out)
        )
        if not options.keep:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            if options.kafka is not None:
                stack.callback(kafka_job.clean, str(directory))
        own = STEPS if options.kafka is None else STEPS_WITH_KAFKA
        own = STEPS_OF_A_QUERY if options.query else own
        steps: Sequence[Step] = own if options.at_steps and options.app is None else ()
        steps = options.steps or steps
        plan = DrillPlan(
            directory,
            options.app,
            options.kills,
            steps,
            options.seed,
            query=options.query,
            worker_kills=options.worker_kills,
        )
        total = options.kills + len(steps)
        kills = "1 kill" if total == 1 else f"{total} kills"
        report.tell(f"{kills}, seed {options.seed}, in {directory}")
        result = Campaign(plan, application, SystemClock(), report.tell, progress).run()
        progress.close()
        report.end(result)
        if not result.is_passed and not options.keep:
            stack.pop_all()
            report.add(f"the directory of the drill is kept: {directory}")
        return result.is_passed
