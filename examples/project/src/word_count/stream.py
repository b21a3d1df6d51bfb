"""Count words across batches and restarts.

    word-count DIRECTORY

DIRECTORY has the checkpoint, and the counts after each batch: counts-TIME, with milliseconds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from dstreams import DStream, StreamingContext, tuned_context

BATCH_S = 1


def counted(lines: DStream[str]) -> DStream[tuple[str, int]]:
    """Return the count of each word so far. The test calls this with its own batches."""
    return lines.flatMap(str.split).map(with_one).updateStateByKey(add, uid="counts")


def with_one(word: str) -> tuple[str, int]:
    """Return a word with the count 1."""
    return word, 1


def add(ones: Sequence[int], count: int | None) -> int:
    """Return the new count of a word. Called for each known word in each batch."""
    return sum(ones) + (count or 0)


def define(ssc: StreamingContext, lines: DStream[str], directory: str) -> StreamingContext:
    """Define the processing of the lines. Each batch is written exactly once across crashes."""
    ssc.checkpoint(f"{directory}/checkpoint")
    counted(lines).saveAsTextFiles(f"{directory}/counts")
    return ssc


def context() -> StreamingContext:
    """Return a context that stops gracefully."""
    conf = {
        "spark.streaming.stopGracefullyOnShutdown": "true",
        "spark.dstreams.stop.batchTimeout": "4min",  # the unit waits for 5
    }
    spark = tuned_context("word-count", conf=conf)
    return StreamingContext(spark, BATCH_S)


def source(ssc: StreamingContext, directory: str) -> DStream[str]:
    """Return the input lines, from files that are moved to DIRECTORY/input."""
    return from_files(ssc, directory)


def from_files(ssc: StreamingContext, directory: str) -> DStream[str]:
    """Return the lines of the files in DIRECTORY/input, regardless of their age."""
    Path(directory, "input").mkdir(parents=True, exist_ok=True)
    return ssc.fileStream(f"{directory}/input", newFilesOnly=False, maxFileAge=math.inf)


def setup(directory: str) -> StreamingContext:
    """Define the stream. Called only at the first start; a restart uses the checkpoint."""
    ssc = context()
    return define(ssc, source(ssc, directory), directory)


def main() -> None:
    """Start the stream, or resume it."""
    if len(sys.argv) != 2:
        sys.exit("usage: word-count DIRECTORY")
    directory = str(Path(sys.argv[1]).absolute())
    ssc = StreamingContext.getOrCreate(f"{directory}/checkpoint", lambda: setup(directory))
    ssc.start()
    ssc.awaitTermination()
