"""Deduplication: without Spark, and once on RDDs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkContext

from dstreams.spark.failures import UserFunctionError
from dstreams.structured.operators.deduplication import (
    DropDuplicates,
    DropDuplicatesWithinWatermark,
    KeyEvents,
    plan_deduplication,
)
from dstreams.structured.operators.physical_operator import RDDScanExec
from dstreams.structured.operators.stateless import EventTimeWatermarkExec
from dstreams.structured.operators.time_windows import split_time
from tests.dstreams.structured.operators.local_query import LocalQuery, LocalStore, in_us
from tests.dstreams.structured.operators.query import SparkQuery

Events = list[tuple[int | None, str]]


def dedupe(*, with_event_time: bool = False, delay_ms: int | None = 10_000) -> LocalQuery:
    keys = KeyEvents(None, True, with_event_time)
    return LocalQuery(
        lambda events: keys(0, events),
        lambda late, evict: DropDuplicates(late, evict, with_event_time),
        delay_ms,
    )


def dedupe_within(delay_ms: int = 10_000) -> LocalQuery:
    keys = KeyEvents(None, True)
    return LocalQuery(
        lambda events: keys(0, events),
        lambda late, evict: DropDuplicatesWithinWatermark(late, evict, delay_ms=delay_ms),
        delay_ms,
    )


def add(query: LocalQuery, *events: tuple[int | None, Any]) -> list[Any]:
    """Add events whose times are in seconds; return what goes out, its times in milliseconds."""
    rows = query.add([(None if s is None else s * 1000, v) for s, v in events])
    return sorted((time_us // 1000, value) for time_us, value in rows)


def test_duplicates() -> None:
    """The first of each key goes out, in this batch and in those after it."""
    query = dedupe(delay_ms=None)
    assert add(query, (0, 1), (0, 1), (0, 2)) == [(0, 1), (0, 2)]
    assert query.batches[-1].metrics.numDroppedDuplicateRows == 1
    assert query.batches[-1].counts == (2, 2, 0, 0)
    assert add(query, (0, 2), (0, 3)) == [(0, 3)]
    assert query.batches[-1].metrics.numDroppedDuplicateRows == 1
    assert query.batches[-1].counts == (3, 1, 0, 0)


def test_without_event_time_in_the_key_nothing_is_forgotten() -> None:
    """Late rows are dropped, but a key is remembered for ever."""
    query = dedupe()
    add(query, (5, "a"))
    assert add(query, (100, "b")) == [(100_000, "b")]
    assert add(query, (101, "a"), (89, "c")) == []
    assert query.batches[-2].counts == (2, 0, 0, 1)


def test_with_event_time_in_the_key_it_is_forgotten() -> None:
    """A key goes when the watermark reaches it, and its rows are late then."""
    query = dedupe(with_event_time=True)
    assert add(query, (5, "a"), (5, "a"), (6, "a")) == [(5_000, "a"), (6_000, "a")]
    assert add(query, (15, "a")) == [(15_000, "a")]
    assert query.batches[-1].counts == (2, 0, 1, 0)
    assert add(query, (5, "a"), (6, "a")) == []
    assert query.batches[-1].counts == (2, 0, 0, 1)


def test_rows_without_event_time_are_kept() -> None:
    """A row without an event time is never late, and its key never passed."""
    for with_event_time in (False, True):
        query = dedupe(with_event_time=with_event_time)
        add(query, (100, "x"))
        assert query.add([(None, "a"), (None, "a")]) == [(None, "a")]
        add(query, (200, "x"))
        assert query.add([(None, "a")]) == []


def test_within_the_watermark() -> None:
    """A key is remembered for the delay after its first event, and comes out again later."""
    query = dedupe_within()
    assert add(query, (5, "a"), (7, "a")) == [(5_000, "a")]
    assert add(query, (24, "b"), (20, "a")) == [(24_000, "b")]
    assert query.state.contents() == {"a": 15_000, "b": 34_000}
    assert add(query, (25, "b"), (16, "a")) == []
    assert query.batches[-1].counts == (1, 0, 1, 0)
    assert add(query, (17, "a")) == [(17_000, "a")]


def test_before_the_epoch() -> None:
    """A key that is to be forgotten before the epoch is forgotten at once."""
    query = dedupe_within()
    query.late_ms = query.watermark_ms = -100_000
    assert query.add([(-50_000, "a")]) == [(-50_000_000, "a")]


@pytest.mark.parametrize("within", [False, True])
def test_late_is_what_is_not_a_microsecond_after_the_watermark(*, within: bool) -> None:
    """A watermark is in milliseconds, an event in microseconds: the rest of one is not cut off."""
    task = DropDuplicatesWithinWatermark(1, 1) if within else DropDuplicates(1, 1)
    rows = [("a", (1000, "a")), ("b", (1001, "b"))]
    assert LocalStore().batch(task, rows).rows == [(1001, "b")]


def test_events_that_are_microseconds_apart_are_two() -> None:
    """An event time that is a key is the whole of it, in any kind of key."""
    for value in ("a", 7, None):
        keys = KeyEvents(None, True, with_event_time=True)
        store, task = LocalStore(), DropDuplicates(by_event_time=True)
        events = [(1_000_000, value), (1_000_100, value), (1_000_100, value)]
        assert sorted(store.batch(task, keys(0, events)).rows) == events[:2]
        forgets = DropDuplicates(evict_ms=1000, by_event_time=True)
        assert store.batch(forgets, []).metrics.numRemovedStateRows == 1


def test_a_key_function_that_fails() -> None:
    """The error names the record."""
    with pytest.raises(
        UserFunctionError, match=r"dropDuplicates\(f\) failed for record 3: TypeError"
    ):
        list(KeyEvents(len, False, where="dropDuplicates(f)")(0, [3]))


@pytest.mark.deep
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 40), st.sampled_from("abcd")), max_size=6), max_size=8
    ),
    st.sampled_from(["for ever", "event time", "within"]),
)
def test_each_key_once(batches: list[Events], kind: str) -> None:
    """The first row of each key is emitted, among rows that are not late and keys not evicted."""
    with_event_time = kind == "event time"
    query = dedupe_within() if kind == "within" else dedupe(with_event_time=with_event_time)
    remembered: dict[Any, float] = {}
    for batch in batches:
        events = [(s * 1000, v) for s, v in batch]
        late_ms, watermark_ms = query.late_ms, query.watermark_ms
        expected = []
        for time_ms, value in events:
            key = (time_ms, value) if with_event_time else value
            if time_ms > late_ms and key not in remembered:
                expected.append((time_ms, value))
                expires = {"for ever": float("inf"), "event time": time_ms}
                remembered[key] = expires.get(kind, time_ms + 10_000)
        assert sorted(query.add(events)) == sorted(in_us(expected))
        for mark in (watermark_ms, query.watermark_ms):
            remembered = {key: until for key, until in remembered.items() if until > mark}
        kept = query.state.contents()
        if with_event_time:
            kept = {((time or 0) // 1000, value): None for time, value in map(split_time, kept)}
        assert set(kept) == set(remembered)


def test_on_rdds(sc: SparkContext, tmp_path: Path) -> None:
    """The records of a batch, as a plan with and without event times."""
    plain = plan_deduplication(RDDScanExec(None), str.lower, numPartitions=2)
    query = SparkQuery(sc, plain, tmp_path / "plain")
    assert sorted(map(str.lower, query.add(["a", "A", "b"]))) == ["a", "b"]
    assert query.add(["B", "c"]) == ["c"]
    assert query.metrics["dedupe"].numDroppedDuplicateRows == 1

    marked = EventTimeWatermarkExec(RDDScanExec(None), lambda record: record[0] * 1000, 10_000)
    within = plan_deduplication(marked, lambda record: record[1], numPartitions=2, withinMs=10_000)
    query = SparkQuery(sc, within, tmp_path / "within")
    assert query.add([(5, "a")]) == [(5_000_000, (5, "a"))]
    assert query.add([(25, "b"), (6, "a")]) == [(25_000_000, (25, "b"))]
    assert query.add([(16, "a")]) == [(16_000_000, (16, "a"))]
