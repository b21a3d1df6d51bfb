"""The process that is killed: a driver that goes on from its checkpoint, and tells how it goes.

It writes a line for each thing to a pipe: ``batch TIME_MS`` after each completed batch,
``failed TEXT`` after a batch that failed, ``step NAME`` when it comes to a step.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any

from dstreams import StreamingContext, StreamingListener, faults
from dstreams.drill.application import load
from dstreams.drill.checkpoints import CHECKPOINT
from dstreams.drill.phases import OPENED, RUNS, STARTED
from dstreams.drill.steps import Step, arm, die, step_named


class Telling(StreamingListener):
    """Writes a line to a pipe for each batch, and waits for a step after the first one."""

    def __init__(self, pipe: int, step: Step | None) -> None:
        self._pipe = pipe
        self._step = step

    def onBatchCompleted(self, batchCompleted: Any) -> None:  # noqa: N802, N803 - as Spark calls it
        """Tell of a batch."""
        info = batchCompleted.batchInfo()
        if info.outcome() == "cancelled":
            return  # by a stop whose time was up; the next driver runs it
        failure = info.failureReason()
        if failure is None:
            line = f"batch {info.batchTime().milliseconds()}"
        else:
            line = f"failed {' '.join(failure.split())[:300]}"
        tell(self._pipe, line)
        if self._step is not None and failure is None:
            arm(self._step)
            self._step = None


def tell(pipe: int, line: str) -> None:
    """Write a line to the drill, and end with it."""
    try:
        os.write(pipe, f"{line}\n".encode())
    except BrokenPipeError:
        die()  # the drill itself is gone


def main(argv: list[str] | None = None) -> int:
    """Run the application until it is stopped, or killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--pipe", type=int, required=True)
    parser.add_argument("--step")
    parser.add_argument("--app", type=Path)
    options = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("dstreams").setLevel(logging.INFO)
    pipe: int = options.pipe
    tell(pipe, f"step {STARTED}")
    faults.watch(lambda name: tell(pipe, f"step {name}"))
    application = load(options.app)
    step = None if options.step is None else step_named(options.step)
    if step is not None and step.in_restart:
        arm(step)
        step = None
    directory: str = options.directory
    ssc = StreamingContext.getOrCreate(
        f"{directory}/{CHECKPOINT}", lambda: application.setup(directory)
    )
    ssc.addStreamingListener(Telling(pipe, step))
    tell(pipe, f"step {OPENED}")
    ssc.start()
    tell(pipe, f"step {RUNS}")
    ssc.awaitTermination()
    return 0


if __name__ == "__main__":
    sys.exit(main())
