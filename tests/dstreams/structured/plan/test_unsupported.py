"""Which queries are refused: the matrix that Spark answers with, cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dstreams.structured import (
    GroupStateTimeout,
    OutputMode,
    StreamingDataset,
    StreamSession,
    UnsupportedOperationError,
    session_window,
    window,
)
from dstreams.structured.api.aggregates import Count, CountDistinct
from dstreams.structured.plan.logical import Union
from dstreams.structured.plan.unsupported import check_supported

EVENT_TIME = GroupStateTimeout.EventTimeTimeout
MODES = (OutputMode.Append, OutputMode.Update, OutputMode.Complete)


class Rate:
    """The steps of the queries of the matrix."""

    def __init__(self, session: StreamSession) -> None:
        self.rate = session.readStream.format("rate").load()
        self.marked = self.rate.withWatermark("timestamp", "10 seconds")

    def windowed(self, dataset: StreamingDataset, spec: Any = "timestamp") -> StreamingDataset:
        return dataset.groupByKey(window(spec, "5 seconds")).count()


def groups(
    dataset: StreamingDataset, mode: str, timeout: GroupStateTimeout = GroupStateTimeout.NoTimeout
) -> StreamingDataset:
    return dataset.groupByKey(_value).flatMapGroupsWithState(_rows, mode, timeout)


def mapped(dataset: StreamingDataset) -> StreamingDataset:
    return dataset.groupByKey(_value).mapGroupsWithState(_rows)


def counted(dataset: StreamingDataset) -> StreamingDataset:
    return dataset.groupByKey(_value).count()


def joined(left: StreamingDataset, right: StreamingDataset, how: str) -> StreamingDataset:
    within = ("0 seconds", "5 seconds") if how != "inner" else None
    return left.join(right, "value", how, within=within)


def timed(left: StreamingDataset, right: StreamingDataset, how: str) -> StreamingDataset:
    """Join streams, of which one has no watermark."""
    names = ("eventTime", "otherEventTime")
    times = {
        name: _time
        for name, side in zip(names, (left, right), strict=True)
        if side.plan.event_time is None
    }
    return left.join(right, "value", how, within=("0 seconds", "5 seconds"), **times)


def _value(row: Any) -> Any:
    return getattr(row, "value", row)


def _time(row: Any) -> Any:
    return 1000


def _rows(key: Any, values: Any, state: Any) -> list[Any]:
    return []


def remarked(dataset: StreamingDataset) -> StreamingDataset:
    return dataset.withWatermark(_time, "10 seconds")


Matrix = dict[str, tuple[Callable[[Rate], StreamingDataset], tuple[int, int, int]]]

# The rule that refuses the query in append, update and complete mode; 0 where it runs.
MATRIX: Matrix = {
    "map only": (lambda r: r.rate.map(str), (0, 0, 14)),
    "count, no watermark": (lambda r: counted(r.rate), (13, 0, 0)),
    "windowed count": (lambda r: r.windowed(r.marked), (0, 0, 0)),
    "count, event time not a key": (lambda r: counted(r.marked), (13, 0, 0)),
    "session window and key": (
        lambda r: r.marked.groupByKey("value", session_window("timestamp", "5 seconds")).count(),
        (0, 16, 0),
    ),
    "count then orderBy": (lambda r: counted(r.rate).orderBy(_value), (13, 19, 0)),
    "count then limit": (lambda r: counted(r.rate).limit(3), (13, 19, 0)),
    "limit": (lambda r: r.rate.limit(3), (0, 19, 14)),
    "orderBy": (lambda r: r.rate.orderBy("value"), (19, 19, 14)),
    "dropDuplicates": (lambda r: r.rate.dropDuplicates("value"), (0, 0, 14)),
    "count then dropDuplicates": (
        lambda r: counted(r.rate).dropDuplicates(_value),
        (13, 0, 0),
    ),
    "dropDuplicatesWithinWatermark": (
        lambda r: r.marked.dropDuplicatesWithinWatermark("value"),
        (0, 0, 14),
    ),
    "dropDuplicatesWithinWatermark, no watermark": (
        lambda r: r.rate.dropDuplicatesWithinWatermark("value"),
        (20, 20, 14),
    ),
    "flatMapGroupsWithState append": (lambda r: groups(r.rate, "append"), (0, 7, 14)),
    "flatMapGroupsWithState update": (lambda r: groups(r.rate, "update"), (7, 0, 14)),
    "flatMapGroupsWithState append then count": (
        lambda r: counted(groups(r.rate, "append")),
        (13, 0, 0),
    ),
    "flatMapGroupsWithState append then windowed count": (
        lambda r: r.windowed(remarked(groups(r.rate, "append")), _time),
        (0, 0, 0),
    ),
    "flatMapGroupsWithState update then windowed count": (
        lambda r: r.windowed(remarked(groups(r.rate, "update")), _time),
        (8, 8, 8),
    ),
    "flatMapGroupsWithState update then count": (
        lambda r: counted(groups(r.rate, "update")),
        (13, 8, 8),
    ),
    "count then flatMapGroupsWithState append": (
        lambda r: groups(counted(r.rate), "append"),
        (13, 17, 17),
    ),
    "mapGroupsWithState": (lambda r: mapped(r.rate), (6, 0, 14)),
    "mapGroupsWithState then count": (lambda r: counted(mapped(r.rate)), (13, 0, 6)),
    "withWatermark twice": (lambda r: remarked(r.marked.map(str)), (21, 21, 14)),
    "withWatermark behind a union": (
        lambda r: remarked(r.rate.union(r.marked)),
        (21, 21, 14),
    ),
    "withWatermark behind windows": (
        lambda r: r.windowed(remarked(r.windowed(r.marked)), _time),
        (21, 21, 21),
    ),
    "two flatMapGroupsWithState append": (
        lambda r: groups(groups(r.rate, "append"), "append"),
        (0, 4, 4),
    ),
    "two flatMapGroupsWithState update": (
        lambda r: groups(groups(r.rate, "update"), "update"),
        (4, 4, 4),
    ),
    "two mapGroupsWithState": (lambda r: mapped(mapped(r.rate)), (2, 2, 2)),
    "mapGroupsWithState and flatMapGroupsWithState": (
        lambda r: groups(mapped(r.rate), "update"),
        (3, 3, 3),
    ),
    "event-time timeout, no watermark": (
        lambda r: groups(r.rate, "append", EVENT_TIME),
        (10, 7, 14),
    ),
    "event-time timeout of update, no watermark": (
        lambda r: groups(r.rate, "update", EVENT_TIME),
        (7, 10, 14),
    ),
    "event-time timeout then count": (
        lambda r: counted(groups(r.marked, "append", EVENT_TIME)),
        (13, 17, 17),
    ),
    "event-time timeout then flatMapGroupsWithState": (
        lambda r: groups(groups(r.marked, "append", EVENT_TIME), "append"),
        (17, 4, 4),
    ),
    "event-time timeout then dropDuplicates": (
        lambda r: groups(r.marked, "append", EVENT_TIME).dropDuplicates(_value),
        (0, 7, 14),
    ),
    "event-time timeout then dropDuplicatesWithinWatermark": (
        lambda r: remarked(groups(r.marked, "append", EVENT_TIME)).dropDuplicatesWithinWatermark(
            _value
        ),
        (17, 7, 14),
    ),
    "inner join, no watermark": (lambda r: joined(r.rate, r.rate, "inner"), (0, 0, 14)),
    "left outer join": (lambda r: joined(r.marked, r.marked, "left_outer"), (0, 18, 14)),
    "left semi join": (lambda r: joined(r.marked, r.marked, "left_semi"), (0, 0, 14)),
    "full outer join": (lambda r: joined(r.marked, r.marked, "full_outer"), (0, 18, 14)),
    "full outer join, watermark on the left": (
        lambda r: timed(r.marked, r.rate, "full_outer"),
        (18, 18, 14),
    ),
    "left outer join, no watermark": (
        lambda r: joined(r.rate, r.rate, "left_outer"),
        (18, 18, 14),
    ),
    "left outer join, watermark on the right": (
        lambda r: timed(r.rate, r.marked, "left_outer"),
        (0, 18, 14),
    ),
    "left outer join, watermark on the left": (
        lambda r: timed(r.marked, r.rate, "left_outer"),
        (18, 18, 14),
    ),
    "inner join then windowed count": (
        lambda r: r.windowed(joined(r.marked, r.marked, "inner")),
        (0, 0, 18),
    ),
    "left outer join then windowed count": (
        lambda r: r.windowed(joined(r.marked, r.marked, "left_outer")),
        (0, 18, 18),
    ),
    "dropDuplicates of event time then windowed count": (
        lambda r: r.windowed(r.marked.dropDuplicates(["value", "timestamp"])),
        (0, 0, 0),
    ),
    # Spark refuses it by rule 15: its state cannot hold the values.
    "count distinct": (
        lambda r: r.rate.groupByKey("value").agg(CountDistinct()),
        (13, 0, 0),
    ),
    "windowed count then windowed count": (
        lambda r: r.windowed(r.windowed(r.marked), "window"),
        (0, 17, 17),
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("query", MATRIX)
def test_matrix(session: StreamSession, query: str, mode: OutputMode) -> None:
    """A query is refused by the rule of the matrix, or by none."""
    build, rules = MATRIX[query]
    expected = rules[MODES.index(mode)]
    plan = build(Rate(session)).plan
    if expected == 0:
        check_supported(plan, mode)  # does not raise
        return
    with pytest.raises(UnsupportedOperationError) as refused:
        check_supported(plan, mode)
    assert refused.value.rule == expected


def test_messages_say_what_to_write(session: StreamSession) -> None:
    """A message names what is refused and what to write instead."""
    rate = Rate(session)
    with pytest.raises(
        UnsupportedOperationError, match=r"window of the event time.*or use output mode update"
    ):
        check_supported(counted(rate.rate).plan, OutputMode.Append)
    with pytest.raises(UnsupportedOperationError, match=r"withWatermark\(eventTime, delay\)"):
        check_supported(groups(rate.rate, "append", EVENT_TIME).plan, OutputMode.Append)


def test_no_source() -> None:
    """A query needs a streaming source."""

    class Nothing(Union):
        def walk(self) -> Any:
            return iter(())

    with pytest.raises(UnsupportedOperationError, match="no streaming source") as refused:
        check_supported(Nothing(None, None), OutputMode.Append)  # type: ignore[arg-type]
    assert refused.value.rule == 1


def test_refused_before_anything_starts(session: StreamSession) -> None:
    """A query that is refused leaves no run behind; the check can be switched off."""
    words = session.memoryStream().toDS().groupByKey(str).agg(Count())
    writer = words.writeStream.format("noop")
    with pytest.raises(UnsupportedOperationError):
        writer.start()
    assert session.streams.active == []


def test_function_mode_complete(session: StreamSession) -> None:
    """A function cannot have mode complete."""
    with pytest.raises(ValueError, match="output mode of function should be append or update"):
        groups(Rate(session).rate, "complete")


def test_streaming_initial_state(session: StreamSession) -> None:
    """A stream cannot be an initial state."""
    rate = Rate(session).rate
    with pytest.raises(ValueError, match="must not be a stream"):
        rate.groupByKey(_value).flatMapGroupsWithState(_rows, "update", initialState=rate)


def test_a_window_of_another_event_time(session: StreamSession) -> None:
    """Two functions may have the same text; a window ends by the watermark's own alone."""
    plan = Rate(session).windowed(Rate(session).marked, _time).plan
    with pytest.raises(
        UnsupportedOperationError,
        match=r"^window\(.*_time:\d+, .* and withWatermark\(timestamp\) use two different",
    ):
        check_supported(plan, OutputMode.Append)
    plan = counted(Rate(session).marked).plan
    with pytest.raises(UnsupportedOperationError, match=r"or use output mode update or complete$"):
        check_supported(plan, OutputMode.Append)
