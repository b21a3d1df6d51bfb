"""The process to kill: a driver that resumes from its checkpoint and reports its progress.

It writes a line for each event to a pipe: ``batch TIME_MS`` after each completed batch,
``failed TEXT`` after a batch that failed, ``step NAME`` when it comes to a step.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from dstreams import StreamingContext, StreamingListener
from dstreams.cli.drill.application import load
from dstreams.cli.drill.oracle import CHECKPOINT
from dstreams.cli.drill.steps import OPENED, RUNS, STARTED, Step, arm, die, step_named
from dstreams.common import faults
from dstreams.structured import StreamingQueryListener, StreamSession

_LOOK_S = 0.1


class Telling:
    """Writes a line to a pipe for each batch, and waits for a step after the first one."""

    def __init__(self, pipe: int, step: Step | None) -> None:
        self._pipe = pipe
        self._step = step

    def completed(self, time_ms: int) -> None:
        """Report a completed batch."""
        tell(self._pipe, f"batch {time_ms}")
        if self._step is not None:
            arm(self._step)
            self._step = None

    def failed(self, reason: str) -> None:
        """Report a failed batch."""
        tell(self._pipe, f"failed {' '.join(reason.split())[:300]}")


class TellingOfStream(Telling, StreamingListener):
    """Reports the batches of a stream."""

    def onBatchCompleted(self, batchCompleted: Any) -> None:  # noqa: N802, N803 - as Spark calls it
        """Report a batch."""
        info = batchCompleted.batchInfo()
        if info.outcome() == "cancelled":
            return  # by a stop whose time was up; the next driver runs it
        failure = info.failureReason()
        if failure is None:
            self.completed(info.batchTime().milliseconds())
        else:
            self.failed(failure)


class TellingOfQuery(Telling, StreamingQueryListener):
    """Reports the batches of a query; a failed batch ends the query and the process."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - as Spark calls it
        """Report a batch."""
        time = datetime.fromisoformat(event.progress.timestamp.replace("Z", "+00:00"))
        self.completed(round(1000 * time.timestamp()))


def tell(pipe: int, line: str) -> None:
    """Write a line to the drill, and end with it."""
    try:
        os.write(pipe, f"{line}\n".encode())
    except BrokenPipeError:
        die()  # the drill itself is gone


def run_driver(argv: list[str] | None = None) -> int:
    """Run the application until it is stopped, or killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--pipe", type=int, required=True)
    parser.add_argument("--step")
    parser.add_argument("--app", type=Path)
    parser.add_argument("--query", action="store_true")
    options = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("dstreams").setLevel(logging.INFO)
    pipe: int = options.pipe
    tell(pipe, f"step {STARTED}")
    faults.watch(lambda name: tell(pipe, f"step {name}"))
    application = load(options.app, query=options.query)
    step = None if options.step is None else step_named(options.step)
    if step is not None and step.in_restart:
        arm(step)
        step = None
    directory: str = options.directory
    if application.start is not None:
        _run_query(partial(application.start, directory), pipe, step)
    elif application.setup is not None:
        _run_stream(partial(application.setup, directory), directory, pipe, step)
    return 0


def _run_stream(
    setup: Callable[[], StreamingContext], directory: str, pipe: int, step: Step | None
) -> None:
    ssc = StreamingContext.getOrCreate(f"{directory}/{CHECKPOINT}", setup)
    ssc.addStreamingListener(TellingOfStream(pipe, step))
    tell(pipe, f"step {OPENED}")
    ssc.start()
    tell(pipe, f"step {RUNS}")
    ssc.awaitTermination()


def _run_query(start: Callable[[], StreamSession], pipe: int, step: Step | None) -> None:
    is_asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: is_asked.set())
    tell(pipe, f"step {OPENED}")
    session = start()
    session.streams.addListener(TellingOfQuery(pipe, step))
    tell(pipe, f"step {RUNS}")
    (query,) = session.streams.active
    while not query.awaitTermination(_LOOK_S):
        if is_asked.is_set():
            query.stop()


if __name__ == "__main__":
    sys.exit(run_driver())
