"""Count the rows of two groups in sessions, which end by event time.

    python examples/structured_sessions.py sessions

The rate source makes five rows per second: ten for group 0, ten for group 1, and so on. A session
ends when its group has no row for one second of event time and the watermark has passed. Started
again with the same directory, the program resumes. Ctrl-C stops it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

from dstreams import tuned_context
from dstreams.structured import (
    GroupState,
    GroupStateTimeout,
    OutputMode,
    StreamingDataset,
    StreamSession,
)

GAP_MS = 1000


def group_of(row: Any) -> int:
    """Return the group of a row, 0 or 1."""
    return int(row.value) // 10 % 2


def count_session(
    group: int, rows: Iterator[Any], state: GroupState[int]
) -> Iterable[tuple[int, int, str]]:
    """Return the number of rows in the session of a group, and whether it is open or closed."""
    if state.hasTimedOut:
        counted = state.get
        state.remove()
        return [(group, counted, "closed")]
    times = [row.timestamp for row in rows]
    state.update((state.getOption or 0) + len(times))
    last_ms = round(max(times).timestamp() * 1000)
    state.setTimeoutTimestamp(max(last_ms + GAP_MS, state.getCurrentWatermarkMs()))
    return [(group, state.get, "open")]


def sessions_of(session: StreamSession) -> StreamingDataset:
    """Return the query."""
    return (
        session.readStream.format("rate")
        .option("rowsPerSecond", 5)
        .load()
        .withWatermark("timestamp", "500 milliseconds")
        .groupByKey(group_of)
        .flatMapGroupsWithState(
            count_session, OutputMode.Update, GroupStateTimeout.EventTimeTimeout
        )
    )


def count_sessions(checkpoint: str, trigger: str) -> None:
    """Run until Ctrl-C."""
    session = StreamSession(tuned_context("structured_sessions", "local[2,4]"))
    session.conf.set("spark.sql.shuffle.partitions", 2)

    sessions = sessions_of(session)
    sessions.explain(outputMode="update")

    query = (
        sessions.writeStream.format("console")
        .trigger(processingTime=trigger)
        .outputMode(OutputMode.Update)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        pass
    finally:
        session.stop()
        session.sparkContext.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", help="checkpoint directory")
    parser.add_argument("--trigger", default="1 second", help="interval of batches")
    arguments = parser.parse_args()
    count_sessions(arguments.checkpoint, arguments.trigger)
