"""The task for the records of groups, without Spark and files."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark import cloudpickle

from dstreams.spark.failures import UserFunctionError
from dstreams.spark.state_version import StateMetrics
from dstreams.state.flat_map_groups import EventTime, FlatMapGroups
from dstreams.state.group_state import NO_TIMESTAMP, GroupState, GroupStateTimeout
from tests.dstreams.state.stores import DictStore, FieldsEncoder

SECOND = datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)


def values_of(key: Any, values: Iterator[Any], state: GroupState[Any]) -> list[Any]:
    return list(values)


def test_late_is_what_the_watermark_has_reached_to_the_microsecond() -> None:
    """A value is late up to the watermark, of a stream as of a query, and none is after it."""
    event_time = EventTime(lambda moment: moment, "eventTime")
    timeout = GroupStateTimeout.EventTimeTimeout
    task = FlatMapGroups(
        func=values_of,
        timeoutConf=timeout,
        batchTimestampMs=9000,
        eventTimeWatermark=1000,
        lateWatermark=1000,
        event_time=event_time,
    )
    after = SECOND + timedelta(microseconds=1)
    metrics = StateMetrics()
    store: Any = DictStore()
    pairs = iter([("a", SECOND), ("a", after), ("a", 1000), ("a", None)])
    assert list(task(store, iter(()), pairs, metrics)) == [after, None]
    assert metrics.numRowsDroppedByWatermark == 2
    assert metrics.eventTimeMaxMs == 1000


@pytest.mark.parametrize(
    ("version", "row"), [(1, ("x", 1, NO_TIMESTAMP)), (2, (("x", 1), NO_TIMESTAMP))]
)
def test_a_task_has_the_format_of_its_operator(version: int, row: Any) -> None:
    """The task is sent to workers, makes its state manager, and keeps initial states and data."""

    def pair(key: Any, values: Iterator[Any], state: GroupState[Any]) -> list[Any]:
        state.update(("x", len(list(values))))
        return [key]

    task = FlatMapGroups(
        func=pair,
        timeoutConf=GroupStateTimeout.ProcessingTimeTimeout,
        batchTimestampMs=1000,
        stateEncoder=FieldsEncoder(tuple),
        stateFormatVersion=version,
        skipEmittingInitialStateKeys=True,
    )
    sent: FlatMapGroups = pickle.loads(cloudpickle.dumps(task))
    store: Any = DictStore()
    initial = iter([("b", ("y", 0))])
    assert list(sent(store, initial, iter([("a", 1)]), StateMetrics())) == ["a"]
    assert store.rows["a"] == row
    assert sent.stateManager.get_state(store, "b").state == ("y", 0)


@pytest.mark.parametrize(
    ("moment", "remedy"),
    [
        ("2026-11-23T20:15:00", "(str); parse the text: f(record) instead of the"),
        (1.5, "1.5 (float); return round(1000 * seconds)"),
        (True, "got True (bool)"),
    ],
)
def test_an_event_time_of_another_type_says_what_to_write(moment: Any, remedy: str) -> None:
    """JSON has times as texts, and as seconds."""
    event_time = EventTime(lambda record: record, "withWatermark(time)")
    with pytest.raises(UserFunctionError, match="must return a datetime, a whole") as error:
        event_time(moment)
    assert remedy in str(error.value)
