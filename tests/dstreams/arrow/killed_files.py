"""A program that writes blocks to Parquet files, and is killed in different places of a batch.

    python killed_files.py DIRECTORY BATCHES PLACE

PLACE is ``task``: the driver is killed by a task that has written half of its file; ``rename``:
before the directory of the second batch gets its name; anything else: by DSTREAMS_FAULTS, or never.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from typing import Any

from dstreams import StreamingContext, tuned_context
from tests.support.jvms import OF_SPARK

ROWS = 20


def line_of(row: tuple[Any, int]) -> str:
    return json.dumps({"shop": "ü", "cents": row[1]})


def killing(driver: int, place: str, block: Any) -> Any:
    """Kill the driver in its second batch of a life, after the first block of a file."""
    if place == "task" and ROWS * 3 // 2 in block.column("cents").to_pylist():
        os.kill(driver, signal.SIGKILL)
    return block


def define(directory: str, place: str) -> StreamingContext:
    conf = {
        "spark.default.parallelism": "2",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": OF_SPARK,
    }
    ssc = StreamingContext(tuned_context("killed files", "local[2,4]", conf), 1)
    ssc.checkpoint(f"{directory}/checkpoint")
    lines = ssc.rateStream(ROWS, uid="rows").map(line_of)
    blocks = lines.toBlocks({"shop": str, "cents": int}, 4, format="json")
    blocks.mapBlocks(partial(killing, os.getpid(), place)).saveAsParquetFiles(
        f"{directory}/out/sales"
    )
    return ssc


def main() -> None:
    directory, batches, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    # Restored, not recovered: the function that kills is that of this life.
    setup = partial(define, directory, place)
    ssc = StreamingContext.restore(f"{directory}/checkpoint", setup)
    rename, renamed = os.rename, []

    def rename_or_die(source: str, target: str) -> None:
        renamed.append(target)
        if place == "rename" and len(renamed) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    os.rename = rename_or_die  # type: ignore[assignment]
    for _ in range(batches):
        ssc.step()
    ssc.stop()


if __name__ == "__main__":
    main()
