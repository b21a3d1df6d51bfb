"""A query over files that kills its own process at a step of a batch.

python -m tests.dstreams.structured.killed_program DIRECTORY STEP BATCH
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from dstreams import tuned_context
from dstreams.kernel.state_versions import StateVersions
from dstreams.structured import StreamSession, window
from dstreams.structured.query_checkpoint import QueryCheckpoint
from dstreams.structured.sinks.file_sink import FileSink

STEPS: dict[str, tuple[type, str, bool]] = {
    "before the offsets": (QueryCheckpoint, "begin", True),
    "after the offsets": (QueryCheckpoint, "begin", False),
    "before the state": (StateVersions, "make", True),
    "after the state": (StateVersions, "make", False),
    "before the sink": (FileSink, "add_batch", True),
    "after the sink": (FileSink, "add_batch", False),
    "before the commit": (QueryCheckpoint, "commit", True),
    "after the commit": (QueryCheckpoint, "commit", False),
}


def kill_at(step: str, batch: int) -> None:
    """Let this process be killed at a step of the batch that it runs as its n-th."""
    owner, name, before = STEPS[step]
    original = getattr(owner, name)
    calls = 0

    def act(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if before and calls > batch:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(self, *arguments)
        if calls > batch:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, act)


def event_ms(line: str) -> int:
    """Return when a line happened."""
    return int(line) * 1000


def run(spark: SparkContext, directory: Path) -> None:
    """Count what there is, file by file, until there is nothing to do."""
    session = StreamSession(
        spark,
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.dstreams.state.localDirectory": str(directory / "local"),
        },
    )
    counted = (
        session.readStream.text(str(directory / "inputs"), maxFilesPerTrigger=1)
        .withWatermark(event_ms, "10 seconds")
        .groupByKey(window(event_ms, "5 seconds"))
        .count()
        .map(lambda row: f"{row[0].start_ms // 1000}:{row[1]}")
    )
    writer = counted.writeStream.format("text").trigger(availableNow=True)
    query = writer.start(
        str(directory / "output"), checkpointLocation=str(directory / "checkpoint")
    )
    query.awaitTermination()


if __name__ == "__main__":
    if sys.argv[2] in STEPS:
        kill_at(sys.argv[2], int(sys.argv[3]))
    context = tuned_context("killed", "local[2,4]", {"spark.ui.enabled": "false"})
    try:
        run(context, Path(sys.argv[1]))
    finally:
        context.stop()
