"""Two structured queries over files that run until they are killed; a child of the drill.

python -m tests.drills.query_job DIRECTORY PIPE go-on|finish|STEP

It tells of each batch through the pipe, as a driver of ``dstreams drill`` does. To finish, it takes
what input there is and writes the state of both queries to ``DIRECTORY/states.json``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from dstreams import GroupState, tuned_context
from dstreams.cli.drill.steps import KillStep, arm, step_named
from dstreams.structured import StreamingQueryListener, StreamSession, window
from tests.support.jvms import OF_SPARK

QUERIES = ("counts", "sums")
WINDOW_S, DELAY_S, IDLE_S = 5, 10, 30


def key_of(line: str) -> str:
    """Return the key of a record, which is text: key, time of the event in seconds, value."""
    return line.split(maxsplit=1)[0]


def event_ms(line: str) -> int:
    """Return when a record happened."""
    return int(line.split()[1]) * 1000


def add_up(key: str, lines: Iterator[str], state: GroupState[Any]) -> Iterator[str]:
    """Tell how many records a key has and their sum, in each batch, and when its timer is due."""
    count, total, last_ms = state.getOption or (0, 0, 0)
    if state.hasTimedOut:
        state.remove()
        yield f"{key}:ended:{count}:{total}"
        return
    for line in lines:
        count, total = count + 1, total + int(line.split()[2])
        last_ms = max(last_ms, event_ms(line))
    state.update((count, total, last_ms))
    state.setTimeoutTimestamp(last_ms, f"{IDLE_S} seconds")
    yield f"{key}:{count}:{total}"


class Teller(StreamingQueryListener):
    """Tells of each batch, and waits for a step after the first one.

    Args:
        pipe: where to.
        step: the driver is killed there; None for nowhere.
    """

    def __init__(self, pipe: int, step: KillStep | None) -> None:
        self._pipe = pipe
        self._step = step

    def onQueryProgress(self, event: Any) -> None:
        """Tell its number."""
        os.write(self._pipe, f"batch {event.progress.batchId}\n".encode())
        if self._step is not None:
            arm(self._step)
            self._step = None


def run(spark: SparkContext, directory: Path, pipe: int, step: KillStep | None, ends: bool) -> None:
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.dstreams.state.localDirectory": str(directory / "local"),
    }
    session = StreamSession(spark, conf)
    session.streams.addListener(Teller(pipe, step))
    lines = session.readStream.text(str(directory / "inputs"), maxFilesPerTrigger=1)
    timed = lines.withWatermark(event_ms, f"{DELAY_S} seconds")
    counts = (
        timed.groupByKey(window(event_ms, f"{WINDOW_S} seconds"))
        .count()
        .map(lambda row: f"{row[0].start_ms // 1000}:{row[1]}")
    )
    sums = timed.groupByKey(key_of).flatMapGroupsWithState(add_up, "append", "EventTimeTimeout")
    queries = []
    for name, rows in zip(QUERIES, (counts, sums), strict=True):
        writer = rows.writeStream.format("text")
        writer = writer.trigger(availableNow=True) if ends else writer
        checkpoint = str(directory / "checkpoints" / name)
        queries.append(writer.start(str(directory / name), checkpointLocation=checkpoint))
    if not ends:
        session.streams.awaitAnyTermination()
        return
    for query in queries:
        query.awaitTermination()
    states = {}
    for name in QUERIES:
        rows = session.readState(str(directory / "checkpoints" / name)).rows()
        states[name] = rows.map(lambda row: [row.key, row.value, row.timeoutMs]).collect()
    (directory / "states.json").write_text(json.dumps(states))


def main() -> None:
    """Run as the command line says."""
    target = sys.argv[3]
    step = None if target in ("go-on", "finish") else step_named(target)
    if step is not None and step.in_restart:
        arm(step)
        step = None
    settings = {"spark.driver.extraJavaOptions": OF_SPARK, "spark.ui.enabled": "false"}
    context = tuned_context("queries", "local[2,4]", settings)
    try:
        run(context, Path(sys.argv[1]), int(sys.argv[2]), step, ends=target == "finish")
    finally:
        context.stop()


if __name__ == "__main__":
    main()
