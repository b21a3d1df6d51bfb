"""The example of FlatMapGroupsWithStateExec: groups of the rate source with event-time timeouts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.structured import GroupState, GroupStateTimeout, StreamingDataset, StreamSession
from dstreams.structured.sources.rate_source import RateRow
from dstreams.testing import ManualClock
from tests.support.waiting import wait_for


def state_func(
    key: int, values: Iterator[RateRow], state: GroupState[int]
) -> Iterator[tuple[int, int]]:
    return iter([(key, len(list(values)))])


def rate_groups(session: StreamSession) -> StreamingDataset[tuple[int, int]]:
    return (
        session.readStream.format("rate")
        .load()
        .withWatermark(eventTime="timestamp", delayThreshold="10 seconds")
        .groupByKey(lambda row: row.value % 2)
        .flatMapGroupsWithState(state_func, "update", GroupStateTimeout.EventTimeTimeout)
    )


def test_plan(session: StreamSession, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan has the operators of Spark's plan, in their order."""
    rate_groups(session).explain(outputMode="update")
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "== Physical Plan =="
    plan = [line.lstrip(" +-").removeprefix("*(1) ") for line in lines]
    assert [line.split()[0] for line in plan] == [
        "SerializeFromObject",
        "FlatMapGroupsWithState",
        "Sort",
        "Exchange",
        "AppendColumns",
        "EventTimeWatermark",
        "StreamingRelation",
    ]
    assert ", Update, EventTimeTimeout, " in plan[1]
    assert plan[2] == "Sort [key], false"
    assert plan[3].startswith("Exchange hashpartitioning(")
    assert plan[5] == "EventTimeWatermark timestamp#0, 10000 ms"
    assert plan[6].startswith("StreamingRelation rate[")
    assert plan[6].endswith("[timestamp, value]")


def test_query(session: StreamSession, clock: ManualClock) -> None:
    """Each batch counts the new rows of both groups, and the function keeps no state."""
    writer = rate_groups(session).writeStream.format("memory").queryName("groups")
    query = writer.trigger(processingTime="10 seconds").outputMode("update").start()

    def batches() -> list[list[tuple[int, int]]]:
        found = sorted(session.tableBatches("groups").items())
        return [sorted(rows) for _, rows in found if rows]

    def has_run_again() -> bool:
        clock.advance(10_000)
        return len(batches()) > 1 or not query.isActive

    wait_for(has_run_again)
    query.stop()
    assert query.exception() is None
    for (even, evens), (odd, odds) in batches():
        assert (even, odd) == (0, 1)
        assert abs(evens - odds) <= 1
    assert query.lastProgress is not None
    (operator,) = query.lastProgress["stateOperators"]
    assert operator["operatorName"] == "flatMapGroupsWithState"
    assert (operator["numRowsTotal"], operator["numRowsDroppedByWatermark"]) == (0, 0)


def test_append(session: StreamSession) -> None:
    """A function in update mode cannot be used by a query in append mode."""
    writer = rate_groups(session).writeStream.format("memory").queryName("groups")
    with pytest.raises(InvalidStreamError, match="update"):
        writer.outputMode("append").start()
