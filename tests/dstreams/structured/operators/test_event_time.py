"""Event times: what is gathered of them, and how records travel with them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams.spark.failures import UserFunctionError
from dstreams.state.flat_map_groups import EventTime
from dstreams.structured.operators.deduplication import KeyEvents
from dstreams.structured.operators.execution_context import EventTimeStats, ExecutionContext
from dstreams.structured.operators.grouping import Grouping
from dstreams.structured.operators.physical_operator import RDDScanExec
from dstreams.structured.operators.stateless import EventTimeWatermarkExec, MarkEvents
from dstreams.structured.operators.time_windows import TimeWindows
from tests.support.jobs import count_jobs

AVG_MS = pytest.approx(11000 / 3)


def test_stats() -> None:
    """One time more, and those of another partition."""
    stats = EventTimeStats(100, 10, 20.0, 5).merge(EventTimeStats(80, 80, 80.0, 1))
    assert stats == EventTimeStats(100, 10, 30.0, 6)
    assert stats.merge(EventTimeStats(80, 5, 15.0, 4)) == EventTimeStats(100, 5, 24.0, 10)
    assert stats.merge(None) == stats
    assert EventTimeStats.of_all([stats, stats]) == EventTimeStats(100, 10, 30.0, 12)
    assert EventTimeStats.of_all([]) is None
    assert EventTimeStats.of([]) is None


def test_a_mean_of_very_many() -> None:
    """The mean of 10 ** 10 large times is near them."""
    large = 10**10
    stats = EventTimeStats(large, large, float(large), large).merge(
        EventTimeStats(large + 2, large + 2, float(large + 2), large)
    )
    assert stats.avg_ms == pytest.approx(large + 1, rel=1e-12)


def test_no_event_time_counts_as_the_epoch() -> None:
    """A record without an event time travels without one, and is gathered as 0."""
    seen: list[Any] = []
    mark = MarkEvents(lambda time: time, False, lambda *report: seen.append(report))
    assert list(mark(3, [5000, None, 7999])) == [(5000, 5000), (None, None), (7999, 7999)]
    assert list(mark(4, [])) == []
    assert seen == [(3, 3, EventTimeStats(7, 0, pytest.approx(13 / 3, abs=0.01), 3))]


def test_the_second_watermark_counts() -> None:
    """Events that are marked again get another time."""
    mark = MarkEvents(lambda record: record[1], True, lambda *report: None)
    assert list(mark(0, [(1, ("a", 10)), (2, ("b", 20))])) == [(10, ("a", 10)), (20, ("b", 20))]


def test_an_event_time_that_fails_names_the_record() -> None:
    """The error says which record has none, and what it was asked by."""
    mark = MarkEvents(lambda record: record["ts"], False, lambda *report: None, "f")
    with pytest.raises(UserFunctionError, match=r"f failed for record \{'x': 1\}: KeyError: 'ts'"):
        list(mark(0, [{"ts": 1}, {"x": 1}]))


def no_third(word: str) -> str:
    """A function that raises StopIteration."""
    if word == "c":
        raise StopIteration
    return word


@pytest.mark.parametrize("by", ["key", "event time", "key of a window"])
def test_a_stop_iteration_is_an_error(by: str) -> None:
    """It fails the batch and names the record, instead of ending the iteration."""
    events = [(second, word) for second, word in enumerate("abcd")]
    if by == "key":
        made: Any = KeyEvents(no_third, True, where="dropDuplicates")(0, events)
    elif by == "event time":
        time = EventTime(lambda word: ord(no_third(word)), "withWatermark")
        made = MarkEvents(time, False, lambda *_: None)(0, "abcd")
    else:
        grouping = Grouping(key=no_third, windows=TimeWindows(1000))
        made = grouping.assign_columns(events, True)
    with pytest.raises(UserFunctionError, match="failed for record 'c': StopIteration"):
        list(made)


def test_last_moment_of_a_day() -> None:
    """An event of the last microsecond of a day has that time, and no watermark of the next."""
    midnight = datetime(2026, 11, 22, tzinfo=timezone.utc)
    event_time = EventTime(lambda moment: moment, "withWatermark")
    seen: list[EventTimeStats] = []
    mark = MarkEvents(event_time, False, lambda split, records, stats: seen.append(stats))
    ((time_us, _),) = mark(0, [midnight - timedelta(microseconds=1)])
    assert time_us == midnight.timestamp() * 1_000_000 - 1
    [stats] = seen
    assert stats.max_ms == midnight.timestamp() * 1000 - 1


def test_milliseconds_and_datetimes_are_one_time() -> None:
    """Each kind of event time that a user may give comes to the same number."""
    event_time = EventTime(lambda moment: moment, "withWatermark")
    moment = datetime(1970, 1, 1, 0, 0, 1, 500, tzinfo=timezone.utc)
    assert event_time.of_all([1000, 2]) == [1_000_000, 2000]
    assert event_time.of_all([1000, None, moment]) == [1_000_000, None, 1_000_500]
    assert event_time(moment) == 1_000_500


def test_gathered_with_the_job_that_runs(sc: SparkContext) -> None:
    """One job gives the rows and the times; running again counts nothing twice."""
    moment = datetime(1970, 1, 1, 0, 0, 7, tzinfo=timezone.utc)
    scan = RDDScanExec(sc.parallelize([1000, moment, 3000], 2))
    plan = EventTimeWatermarkExec(scan, lambda record: record, 500, "clicks")
    context = ExecutionContext(sc)
    rows = plan.execute(context)
    assert context.event_times() == {"clicks": None}
    assert count_jobs(sc, rows.collect) == 1
    assert context.event_times() == {"clicks": EventTimeStats(7000, 1000, AVG_MS, 3)}
    rows.count()
    assert context.event_times()["clicks"] == EventTimeStats(7000, 1000, AVG_MS, 3)
