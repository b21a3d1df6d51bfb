"""Planning of the steps of a query, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.state.group_state import OutputMode
from dstreams.structured.api.dataset import StreamingDataset
from dstreams.structured.conf import QueryConf
from dstreams.structured.operators.deduplication import StreamingDeduplicateWithinWatermarkExec
from dstreams.structured.operators.execution_context import StatefulOperatorStateInfo
from dstreams.structured.operators.join import StreamingSymmetricHashJoinExec, TimeRange
from dstreams.structured.operators.physical_operator import PhysicalOperator
from dstreams.structured.operators.stateful_operator import StatefulOperator, StateStoreWriter
from dstreams.structured.plan.logical import StreamingRelation
from dstreams.structured.plan.planning import plan_query
from dstreams.structured.sources.rate_source import RateStreamSource
from dstreams.structured.window_function import window

CONF = QueryConf(shuffle_partitions=2)


def rate() -> StreamingDataset:
    environment: Any = None
    source = RateStreamSource(1, 0, None)
    return StreamingDataset(StreamingRelation(source), environment)


def marked(delay: str) -> StreamingDataset:
    return rate().withWatermark("timestamp", delay)


def planned(dataset: StreamingDataset, mode: OutputMode = OutputMode.Append) -> PhysicalOperator:
    return plan_query(dataset.plan, mode, CONF).root


def stateful(dataset: StreamingDataset) -> Any:
    """Return the one operator with state."""
    (operator,) = (step for step in planned(dataset).walk() if isinstance(step, StateStoreWriter))
    return operator


@pytest.mark.parametrize("delays", [("10 seconds", "2 seconds"), ("2 seconds", "10 seconds")])
def test_duplicates_of_a_union_are_remembered_for_the_longest_delay(
    delays: tuple[str, str],
) -> None:
    """A duplicate may come as late as the slower of the streams allows, whichever is first."""
    left, right = map(marked, delays)
    operator = stateful(left.union(right).dropDuplicatesWithinWatermark("value"))
    assert isinstance(operator, StreamingDeduplicateWithinWatermarkExec)
    assert operator.delayMs == 10_000


@pytest.mark.parametrize(("within", "wanted"), [(None, False), (("0 seconds", "1 hour"), True)])
def test_a_join_wants_a_batch_only_where_rows_are_given_up(
    within: tuple[str, str] | None, *, wanted: bool
) -> None:
    """Without a time range the watermark evicts no row of a join, so it starts no batch."""
    joined = stateful(marked("1 second").join(marked("1 second"), "value", within=within))
    running = joined.inBatch(StatefulOperatorStateInfo.empty(2), 1000, 1000)
    assert running.shouldRunAnotherBatch(2000) is wanted


def time_of(row: Any) -> Any:
    return row.timestamp


def windows(rows: StreamingDataset) -> StreamingDataset:
    return rows.groupByKey("value", window("timestamp", "5 seconds")).count()


HOUR = ("0 seconds", "1 hour")


@pytest.mark.parametrize(
    ("join", "time_range", "watermarks"),
    [
        (
            lambda: marked("1 second").join(rate(), "value", within=HOUR, otherEventTime=time_of),
            TimeRange(0, 3_600_000),
            (True, False),
        ),
        (
            lambda: rate().join(marked("1 second"), "value", within=HOUR, eventTime="timestamp"),
            TimeRange(0, 3_600_000),
            (False, True),
        ),
        (
            lambda: rate().join(
                rate(), "value", within=HOUR, eventTime=time_of, otherEventTime=time_of
            ),
            TimeRange(0, 3_600_000),
            (False, False),
        ),
        (
            lambda: marked("1 second").join(marked("1 second"), ["value", "timestamp"]),
            TimeRange(0, 0),
            (True, True),
        ),
        (
            lambda: rate().join(
                marked("1 second"), ["timestamp", "value"], "left_outer", otherOn=["timestamp", len]
            ),
            TimeRange(0, 0),
            (False, True),
        ),
        (lambda: rate().join(rate(), ["value", "timestamp"]), None, (False, False)),
        (lambda: marked("1 second").join(rate(), "value"), None, (True, False)),
        (
            lambda: windows(marked("1 second")).join(windows(marked("1 second")), ["window"]),
            TimeRange(0, 0),
            (True, True),
        ),
    ],
)
def test_the_range_and_the_watermarks_of_a_join(
    join: Any, time_range: TimeRange | None, watermarks: tuple[bool, bool]
) -> None:
    """Event times come from watermarks or are given; equal event times are a range of zero."""
    joins = [
        step for step in planned(join()).walk() if isinstance(step, StreamingSymmetricHashJoinExec)
    ]
    assert [step.condition.time_range for step in joins] == [time_range]
    assert [step.condition.watermarks for step in joins] == [watermarks]


def test_event_times_that_do_not_fit_a_join() -> None:
    """A side has one event time; both need one for a range."""
    with pytest.raises(InvalidStreamError, match="eventTime of join: the records already have the"):
        marked("1 second").join(rate(), "value", within=HOUR, eventTime="timestamp")
    with pytest.raises(InvalidStreamError, match="needs event times on both sides; call withWater"):
        planned(marked("1 second").join(rate(), "value", within=HOUR))


@pytest.mark.parametrize(
    ("build", "operators"),
    [
        (
            lambda rows: rows.groupByKey("value").count(),
            ["StateStoreRestoreExec", "StateStoreSaveExec"],
        ),
        (
            lambda rows: rows.groupByKey("value").flatMapGroupsWithState(no_rows, "append"),
            ["FlatMapGroupsWithStateExec"],
        ),
        (lambda rows: rows.dropDuplicates("value"), ["StreamingDeduplicateExec"]),
    ],
    ids=["aggregation", "groups", "duplicates"],
)
def test_strategies(build: Any, operators: list[str]) -> None:
    """Each step has a strategy of its own: aggregations alone restore and save."""
    plan = planned(build(marked("1 second")), OutputMode.Append)
    stateful = [type(step).__name__ for step in plan.walk() if isinstance(step, StatefulOperator)]
    assert stateful == operators


def test_state_formats() -> None:
    """Operators have the state formats of the settings."""
    conf = QueryConf(
        shuffle_partitions=2, aggregation_state_format=1, flat_map_groups_state_format=1
    )
    rows = marked("1 second").groupByKey("value")
    for dataset in (rows.count(), rows.flatMapGroupsWithState(no_rows, "append")):
        plan = plan_query(dataset.plan, OutputMode.Append, conf).root
        steps: list[Any] = [step for step in plan.walk() if isinstance(step, StatefulOperator)]
        formats = {getattr(step, "groups", step).stateFormatVersion for step in steps}
        assert formats == {1}


def no_rows(key: Any, values: Any, state: Any) -> list[Any]:
    return []
