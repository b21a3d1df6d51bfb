"""Count words, over all batches and restarts.

    word-count DIRECTORY

DIRECTORY has the checkpoint, and the counts after each batch: counts-TIME, by milliseconds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from dstreams import DStream, StreamingContext, tuned_context

BATCH_S = 1


def counted(lines: DStream[str]) -> DStream[tuple[str, int]]:
    """Return how often each word has come so far. The test calls it, with batches of its own."""
    return lines.flatMap(str.split).map(with_one).updateStateByKey(add, uid="counts")


def with_one(word: str) -> tuple[str, int]:
    """Return a word as it is counted."""
    return word, 1


def add(ones: Sequence[int], count: int | None) -> int:
    """Return the new count of a word; called for each known word in each batch."""
    return sum(ones) + (count or 0)


def define(ssc: StreamingContext, lines: DStream[str], directory: str) -> StreamingContext:
    """Define what is done with the lines. Each batch is written exactly once, whatever dies."""
    ssc.checkpoint(f"{directory}/checkpoint")
    counted(lines).saveAsTextFiles(f"{directory}/counts")
    return ssc


def context() -> StreamingContext:
    """Return a context that ends what it has begun when it is told to stop."""
    conf = {
        "spark.streaming.stopGracefullyOnShutdown": "true",
        "spark.dstreams.stop.batchTimeout": "4min",  # the unit waits for 5
    }
    spark = tuned_context("word-count", conf=conf)
    return StreamingContext(spark, BATCH_S)


def source(ssc: StreamingContext, directory: str) -> DStream[str]:
    """Return the lines that come: those of files that are moved into DIRECTORY/input."""
    return from_files(ssc, directory)


def from_files(ssc: StreamingContext, directory: str) -> DStream[str]:
    """Return the lines of the files in DIRECTORY/input, however old they are."""
    Path(directory, "input").mkdir(parents=True, exist_ok=True)
    return ssc.fileStream(f"{directory}/input", newFilesOnly=False, maxFileAge=math.inf)


def setup(directory: str) -> StreamingContext:
    """Define the stream: called the first time only. A restart has it from the checkpoint."""
    ssc = context()
    return define(ssc, source(ssc, directory), directory)


def main() -> None:
    """Start the stream, or go on where it was."""
    if len(sys.argv) != 2:
        sys.exit("usage: word-count DIRECTORY")
    directory = str(Path(sys.argv[1]).absolute())
    ssc = StreamingContext.getOrCreate(f"{directory}/checkpoint", lambda: setup(directory))
    ssc.start()
    ssc.awaitTermination()
