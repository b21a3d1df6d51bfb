"""A query over the files of a directory, which runs until it is stopped or fails.

python -m tests.dstreams.structured.rival_program DIRECTORY NAME
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import SparkContext

from dstreams import tuned_context
from dstreams.structured import StreamingQueryException, StreamSession


def run(spark: SparkContext, directory: Path, name: str) -> None:
    """Copy lines, and say on the way what has become of it."""
    session = StreamSession(spark, {"spark.sql.shuffle.partitions": "1"})
    lines = session.readStream.text(str(directory / "inputs"), maxFilesPerTrigger=1)
    counted = lines.dropDuplicates().writeStream.format("text")
    query = counted.option("checkpointLocation", str(directory / "checkpoint")).start(
        str(directory / "output")
    )
    (directory / f"{name}.started").touch()
    try:
        while not query.awaitTermination(0.1):
            if (directory / f"{name}.stop").exists():
                query.processAllAvailable()
                query.stop()
    except StreamingQueryException as error:
        (directory / f"{name}.failed").write_text(str(error))


if __name__ == "__main__":
    context = tuned_context("rival", "local[1]", {"spark.ui.enabled": "false"})
    try:
        run(context, Path(sys.argv[1]), sys.argv[2])
    finally:
        context.stop()
