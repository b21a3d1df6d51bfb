"""A query that is killed: sums by key of numbers in files, one file a batch, and a ledger of them.

    python query.py DIRECTORY CHECKPOINT

It ends when it has read all files of DIRECTORY/inputs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from dstreams import GroupState, tuned_context
from dstreams.structured import StreamSession
from tests.recovery.application import KEYS, enter
from tests.support.jvms import OF_SPARK


def key_of(line: str) -> int:
    return int(line) % KEYS


def add_up(key: int, lines: Iterator[str], state: GroupState[int]) -> list[tuple[int, int]]:
    state.update(sum(map(int, lines)) + (state.getOption or 0))
    return [(key, state.get)]


def output(directory: str, rows: Any, batch_id: int) -> None:
    enter(directory, "sums", batch_id, rows)


def main() -> None:
    directory, checkpoint = sys.argv[1:]
    conf = {
        "spark.default.parallelism": "2",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": OF_SPARK,
    }
    session = StreamSession(tuned_context("query", "local[2,4]", conf))
    lines = session.readStream.text(f"{directory}/inputs", maxFilesPerTrigger=1)
    sums = lines.groupByKey(key_of).flatMapGroupsWithState(add_up, "update", "NoTimeout")
    writer = sums.writeStream.foreachBatch(partial(output, directory)).outputMode("update")
    writer = writer.trigger(availableNow=True).option("checkpointLocation", checkpoint)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
