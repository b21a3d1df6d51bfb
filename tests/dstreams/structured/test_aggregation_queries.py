"""Queries that aggregate: the cases of Spark's own suites."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.structured import (
    StreamingDataset,
    StreamingQueryException,
    StreamSession,
    Window,
    session_window,
    window,
)
from dstreams.structured.api.aggregates import (
    Average,
    Count,
    Max,
    PercentileApprox,
    StdDev,
    Sum,
    UserAggregator,
    Variance,
)
from tests.dstreams.structured.conftest import MakeSession
from tests.dstreams.structured.runs import Build, QueryRun


def itself(record: Any) -> Any:
    return record


def seconds(record: int) -> int:
    return record * 1000


def second_of_pair(record: tuple[Any, int]) -> int:
    return record[1] * 1000


def key_of_pair(record: tuple[Any, int]) -> Any:
    return record[0]


def counts(numbers: StreamingDataset) -> StreamingDataset:
    return numbers.groupByKey(itself).count()


def windowed(events: StreamingDataset) -> StreamingDataset:
    marked = events.withWatermark(seconds, "10 seconds")
    return plain(marked.groupByKey(window(seconds, "5 seconds")).count())


def plain(rows: StreamingDataset) -> StreamingDataset:
    """Write a window as its start in seconds."""
    return rows.map(lambda row: (row[0].start_ms // 1000, row[1]))


@pytest.mark.deep
def test_complete(session: StreamSession, tmp_path: Path) -> None:
    """The whole result goes out in each batch."""
    run = QueryRun(session, counts, "complete", tmp_path / "checkpoint")
    assert run.add(3) == [(3, 1)]
    assert run.add(2) == [(2, 1), (3, 1)]
    run.restart()
    assert run.add(3, 2, 1) == [(1, 1), (2, 2), (3, 2)]
    assert run.add(4, 4, 4, 4) == [(1, 1), (2, 2), (3, 2), (4, 4)]


@pytest.mark.deep
def test_complete_in_order(session: StreamSession) -> None:
    """A complete result can be ordered and cut."""

    def build(numbers: StreamingDataset) -> StreamingDataset:
        return counts(numbers).orderBy(lambda row: (row[1], row[0]), ascending=False).limit(2)

    run = QueryRun(session, build, "complete")
    run.add(3, 2, 3, 1)
    assert session.tableBatches("run")[0] == [(3, 2), (2, 1)]
    run.add(1, 1)
    assert session.tableBatches("run")[1] == [(1, 3), (3, 2)]


@pytest.mark.parametrize("ascending", [True, False])
def test_order_of_none_and_nan(session: StreamSession, ascending: bool) -> None:
    """None comes first and NaN last, in descending order the other way round, as in Spark."""

    def build(rows: StreamingDataset) -> StreamingDataset:
        grouped = rows.groupByKey(lambda row: row[0]).agg(Max(lambda row: row[1]))
        return grouped.orderBy(lambda row: row[1], ascending=ascending)

    run = QueryRun(session, build, "complete")
    run.add(("a", 2.0), ("b", None), ("c", float("nan")), ("d", 1.0), ("c", 3.0))
    keys = [key for key, _ in session.tableBatches("run")[0]]
    assert keys == (["b", "d", "a", "c"] if ascending else ["c", "a", "d", "b"])


@pytest.mark.deep
def test_order_of_mixed_types(session: StreamSession) -> None:
    """Keys without a common order are an error that says so."""
    run = QueryRun(session, lambda rows: counts(rows).orderBy(lambda row: row[0]), "complete")
    with pytest.raises(
        StreamingQueryException, match=r"orderBy\(.*\): keys have no common order, got '<' not"
    ):
        run.add("a", 1)


NAN_KEYS: dict[str, Build] = {
    "groupByKey": lambda rows, _: rows.groupByKey(float).count(),
    "dropDuplicates": lambda rows, _: rows.dropDuplicates(float),
    "inner join": lambda rows, others: rows.join(others, float),
}


@pytest.mark.deep
@pytest.mark.parametrize("operation", NAN_KEYS)
def test_nan_as_a_key(session: StreamSession, operation: str) -> None:
    """NaN is refused as a key, and the error says by which operation and what to do."""
    run = QueryRun(session, NAN_KEYS[operation], "update", inputs=2)
    with pytest.raises(
        StreamingQueryException,
        match=rf"{operation}.*: the key nan cannot be placed: NaN cannot be a key.*map it to None",
    ):
        run.add("nan")


def test_update_counters(session: StreamSession) -> None:
    """Only changed keys go out, and counters count them."""

    def build(numbers: StreamingDataset) -> StreamingDataset:
        return counts(numbers.flatMap(lambda x: [x, x + 1]))

    run = QueryRun(session, build, "update")
    assert run.add(1) == [(1, 1), (2, 1)]
    assert run.state() == {"tot": 2, "upd": 2, "rem": 0, "drop": 0}
    assert run.add(2, 3) == [(2, 2), (3, 2), (4, 1)]
    assert run.state() == {"tot": 4, "upd": 3, "rem": 0, "drop": 0}


def test_several_keys_and_results(session: StreamSession) -> None:
    """A row has a field for each key and each result."""

    def build(numbers: StreamingDataset) -> StreamingDataset:
        mean = UserAggregator(_no_pair, _add_pair, _merge_pairs, _mean)
        grouped = numbers.groupByKey(itself, lambda x: x + 1)
        return grouped.agg(Count(), Sum(), Average(), Max(), mean)

    run = QueryRun(session, build, "update")
    assert run.add(1, 2) == [(1, 2, 1, 1, 1.0, 1, 1.0), (2, 3, 1, 2, 2.0, 2, 2.0)]
    assert run.add(1, 2) == [(1, 2, 2, 2, 1.0, 1, 1.0), (2, 3, 2, 4, 2.0, 2, 2.0)]


def _no_pair() -> tuple[int, int]:
    return (0, 0)


def _add_pair(buffer: Any, record: int) -> Any:
    return (buffer[0] + record, buffer[1] + 1)


def _merge_pairs(first: Any, second: Any) -> Any:
    return (first[0] + second[0], first[1] + second[1])


def _mean(buffer: Any) -> float:
    return float(buffer[0] / buffer[1])


@pytest.mark.deep
def test_failure_counts_once(session: StreamSession, tmp_path: Path) -> None:
    """A batch that failed half way and runs again counts its records once."""
    flag = tmp_path / "fail"

    def build(numbers: StreamingDataset) -> StreamingDataset:
        def check(x: int) -> int:
            if x == 4 and flag.exists():
                raise ValueError("told to fail")
            return x

        return counts(numbers.map(check))

    flag.touch()
    run = QueryRun(session, build, "update", tmp_path / "checkpoint")
    with pytest.raises(RuntimeError, match="told to fail"):
        run.add(1, 2, 3, 4)
    flag.unlink()
    run.restart()
    assert run.outputs() == [(1, 1), (2, 1), (3, 1), (4, 1)]


def test_all_records_in_one_group(session: StreamSession) -> None:
    """Without keys there is one row, also where a batch has no partitions."""
    run = QueryRun(session, lambda numbers: numbers.groupByKey().count(), "complete")
    assert run.add(1) == [(1,)]
    run.streams[0].addAll(session.sparkContext.emptyRDD())
    assert run.outputs() == [(1,)]
    assert run.add(1, 2) == [(3,)]


@pytest.mark.deep
def test_append(session: StreamSession, tmp_path: Path) -> None:
    """A window goes out once, when the watermark has passed it."""
    run = QueryRun(session, windowed, "append", tmp_path / "checkpoint")
    assert run.add(15) == []
    assert run.state() == {"tot": 1, "upd": 0, "rem": 0, "drop": 0}
    assert run.add(10, 12, 14) == []
    progress = run.query.recentProgress[-1]
    assert progress["eventTime"] == {
        "max": "1970-01-01T00:00:14.000Z",
        "min": "1970-01-01T00:00:10.000Z",
        "avg": "1970-01-01T00:00:12.000Z",
        "watermark": "1970-01-01T00:00:05.000Z",
    }
    assert run.add(25) == [(10, 3)]
    assert run.state() == {"tot": 2, "upd": 0, "rem": 1, "drop": 0}
    batches = [(p["batchId"], p["numInputRows"]) for p in run.query.recentProgress]
    assert batches == [(0, 1), (1, 0), (2, 3), (3, 1), (4, 0)]
    assert run.add(10) == []
    assert run.state()["drop"] == 1
    run.restart()
    assert run.add(17) == []
    assert run.add(40) == [(15, 2), (25, 1)]


def test_update(session: StreamSession) -> None:
    """Changed windows are emitted, and expired state is evicted."""
    run = QueryRun(session, windowed, "update")
    assert run.add(10, 11, 12, 13, 14, 15) == [(10, 5), (15, 1)]
    assert run.add(25) == [(25, 1)]
    assert run.state()["tot"] == 2
    assert run.add(10, 25) == [(25, 2)]
    assert run.state()["drop"] == 1
    assert run.add(10) == []


def test_complete_windows(session: StreamSession) -> None:
    """A complete result drops nothing and gives nothing up."""
    run = QueryRun(session, windowed, "complete")
    assert run.add(10, 11, 12) == [(10, 3)]
    assert run.add(25) == [(10, 3), (25, 1)]
    assert run.add(25) == [(10, 3), (25, 2)]
    assert run.add(10) == [(10, 4), (25, 2)]


@pytest.mark.deep
def test_trigger_once(session: StreamSession, tmp_path: Path) -> None:
    """A run of one batch: what the watermark ends comes with the next run."""
    checkpoint = tmp_path / "checkpoint"
    run = QueryRun(session, windowed, "append", checkpoint, trigger={"once": True})
    outputs, used = [], []
    for records in ([], [15], [10, 12, 14], [25], [50], [50]):
        if records:
            run.streams[0].addAll(records)
            run.restart()
        outputs.append(run.outputs())
        last = run.query.lastProgress
        used.append(None if last is None else last["eventTime"]["watermark"][17:19])
    assert outputs == [[], [], [], [], [(10, 3)], [(15, 1), (25, 1)]]
    assert used == [None, "00", "05", "05", "15", "40"]


def test_no_data_batches_off(make_session: MakeSession) -> None:
    """Without batches for watermarks alone, results wait for records."""
    session = make_session(**{"spark.sql.streaming.noDataMicroBatches.enabled": "false"})
    run = QueryRun(session, windowed, "append")
    run.add(10, 11)
    assert run.add(25) == []
    assert run.add(25) == [(10, 2)]


def two_inputs(left: StreamingDataset, right: StreamingDataset) -> StreamingDataset:
    marked = left.withWatermark(seconds, "10 seconds")
    return marked.union(right.withWatermark(seconds, "15 seconds"))


def step(run: QueryRun, left: int | None, right: int | None) -> int:
    """Add events to both inputs before the next batch; return the watermark after it."""
    for stream, event in zip(run.streams, (left, right), strict=True):
        if event is not None:
            stream.addAll([event])
    run.outputs()
    return run.watermark()


@pytest.mark.deep
@pytest.mark.parametrize(("policy", "expected"), [("max", (15, 115, 140)), ("min", (10, 110, 110))])
def test_watermark_policy(
    make_session: MakeSession, tmp_path: Path, policy: str, expected: tuple[int, int, int]
) -> None:
    """Several watermarks become one by policy, which the checkpoint keeps."""
    session = make_session(**{"spark.sql.streaming.multipleWatermarkPolicy": policy})
    run = QueryRun(session, two_inputs, "append", tmp_path / "checkpoint", inputs=2)
    run.query.stop()
    for stream, event in zip(run.streams, (20, 30), strict=True):
        stream.addAll([event])
    run.restart()
    run.outputs()
    assert run.watermark() == expected[0]
    other = "min" if policy == "max" else "max"
    session.conf.set("spark.sql.streaming.multipleWatermarkPolicy", other)
    run.query.stop()
    run.streams[0].addAll([120])
    run.streams[1].addAll([130])
    run.restart()
    run.outputs()
    assert run.watermark() == expected[1]
    assert step(run, 150, None) == expected[2] if policy == "max" else step(run, None, 150) == 110


def test_wrong_policy(make_session: MakeSession) -> None:
    """An unknown policy is refused at the start."""
    session = make_session(**{"spark.sql.streaming.multipleWatermarkPolicy": "random"})
    with pytest.raises(InvalidStreamError, match="use one of min, max"):
        QueryRun(session, windowed, "append")


def test_late_watermark_is_one_batch_behind(session: StreamSession) -> None:
    """The batch after the one that raised the watermark still takes older records."""

    def build(events: StreamingDataset) -> StreamingDataset:
        marked = events.withWatermark(seconds, "10 seconds")
        return marked.dropDuplicatesWithinWatermark(itself)

    run = QueryRun(session, build, "append")
    run.session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    run.query.stop()
    run.query = run._start()
    assert run.add(100) == [100]
    assert run.add(50) == [50]
    assert run.add(51) == []


def test_raw_event_time_as_key(session: StreamSession) -> None:
    """Grouped by the event time itself, a key ends when the watermark reaches it."""

    def build(events: StreamingDataset) -> StreamingDataset:
        return events.withWatermark(seconds, "10 seconds").groupByKey(seconds).count()

    run = QueryRun(session, build, "append")
    assert run.add(10, 10, 11) == []
    assert run.add(20) == [(10_000, 2)]


def test_window_of_windows(session: StreamSession) -> None:
    """The rows of a windowed aggregation can be grouped by larger windows, without loss."""

    def build(events: StreamingDataset) -> StreamingDataset:
        small = events.withWatermark(seconds, "0 seconds").groupByKey(window(seconds, "5 seconds"))
        large = small.count().groupByKey(window("window", "10 seconds"))
        return large.agg(Sum("count"))

    run = QueryRun(session, build, "append")
    assert run.add(1, 6, 7) == []
    assert run.add(21) == [(Window(0, 10_000), 3)]


@pytest.mark.deep
def test_sessions(session: StreamSession) -> None:
    """Sessions go out when the watermark has passed them."""

    def build(events: StreamingDataset) -> StreamingDataset:
        marked = events.withWatermark(second_of_pair, "10 seconds")
        grouped = marked.groupByKey(key_of_pair, session_window(second_of_pair, "5 seconds"))
        return grouped.count().map(
            lambda row: (
                row.key_of_pair,
                row.session_window.start.timestamp(),
                row.session_window.end.timestamp(),
                row.count,
            )
        )

    run = QueryRun(session, build, "append")
    assert run.add(("k", 10), ("k", 11)) == []
    assert run.add(("k", 17)) == []
    assert run.add(("k", 25)) == []
    assert run.add(("k", 35)) == [("k", 10, 16, 2), ("k", 17, 22, 1)]


def test_session_that_bridges(session: StreamSession) -> None:
    """An event between two sessions makes them one."""

    def build(events: StreamingDataset) -> StreamingDataset:
        marked = events.withWatermark(second_of_pair, "10 seconds")
        return marked.groupByKey(key_of_pair, session_window(second_of_pair, "5 seconds")).count()

    run = QueryRun(session, build, "complete")
    assert len(run.add(("k", 10), ("k", 18))) == 2
    (row,) = run.add(("k", 14))
    assert row == (Window(10_000, 23_000), "k", 3)
    assert run.state()["rem"] == 1
    assert run.state()["upd"] == 1


def test_windows_that_start_later(session: StreamSession) -> None:
    """Windows begin at an offset, before or after a whole one, whether they overlap or not."""

    def build(start: str, slide: str) -> Callable[[StreamingDataset], StreamingDataset]:
        windows = window(seconds, "10 seconds", slide, start)
        return lambda events: events.groupByKey(windows).count()

    late = QueryRun(session, build("3 seconds", "10 seconds"), "complete")
    assert late.add(2, 3, 12) == [(Window(-7000, 3000), 1), (Window(3000, 13_000), 2)]
    late.query.stop()
    late.forget()
    early = QueryRun(session, build("-2 seconds", "5 seconds"), "complete")
    assert early.add(4) == [(Window(-2000, 8000), 1), (Window(3000, 13_000), 1)]


def gap_of_pair(pair: tuple[Any, int]) -> Any:
    return {"short": "2 seconds", "long": timedelta(seconds=20), "off": "-1 second"}.get(
        pair[0][1:]
    )


def test_sessions_with_a_gap_for_each_record(session: StreamSession) -> None:
    """A session ends after the longest gap of its records; without a gap there is no session."""

    def build(events: StreamingDataset) -> StreamingDataset:
        return events.groupByKey(first_letter, session_window(second_of_pair, gap_of_pair)).count()

    run = QueryRun(session, build, "complete")
    rows = run.add(("kshort", 10), ("klong", 11), ("kshort", 30), ("kshort", 40), ("koff", 1))
    assert rows == [(Window(10_000, 32_000), "k", 3), (Window(40_000, 42_000), "k", 1)]
    assert run.add(("knone", 50)) == rows


def first_letter(pair: tuple[str, int]) -> str:
    return pair[0][0]


def test_statistics(session: StreamSession) -> None:
    """Variance, standard deviation and percentiles over batches."""

    def build(numbers: StreamingDataset) -> StreamingDataset:
        return numbers.groupByKey().agg(
            Variance(), StdDev(ddof=0), PercentileApprox(percentage=(0.5, 1.0))
        )

    run = QueryRun(session, build, "complete")
    run.add(1, 5)
    ((variance, deviation, percentiles),) = run.add(9, 13)
    assert (variance, deviation) == pytest.approx((26.666667, 4.472136))
    assert percentiles == [5, 13]


def test_drop_duplicates(session: StreamSession, tmp_path: Path) -> None:
    """The first record of each key goes out, also over a restart."""
    run = QueryRun(
        session, lambda numbers: numbers.dropDuplicates(itself), "append", tmp_path / "checkpoint"
    )
    assert run.add(1, 1, 2) == [1, 2]
    assert _duplicates(run) == 1
    run.restart()
    assert run.add(2, 3) == [3]
    assert _duplicates(run) == 1


def _duplicates(run: QueryRun) -> int:
    assert run.query.lastProgress is not None
    metrics = run.query.lastProgress["stateOperators"][0]["customMetrics"]
    return int(metrics["numDroppedDuplicateRows"])


def test_drop_duplicates_of_event_time(session: StreamSession) -> None:
    """With the event time among its parts, a key is forgotten when the watermark passes it."""

    def build(events: StreamingDataset) -> StreamingDataset:
        return events.withWatermark(seconds, "10 seconds").dropDuplicates([seconds, itself])

    run = QueryRun(session, build, "append")
    assert run.add(10, 10, 11) == [10, 11]
    assert run.add(25) == [25]
    assert run.state() == {"tot": 1, "upd": 0, "rem": 2, "drop": 0}


def test_join(session: StreamSession) -> None:
    """Records of two streams meet, and one that met none goes out when it cannot meet any more."""

    def build(left: StreamingDataset, right: StreamingDataset) -> StreamingDataset:
        marked = left.withWatermark(second_of_pair, "5 seconds")
        other = right.withWatermark(second_of_pair, "5 seconds")
        return marked.join(other, key_of_pair, "left_outer", within=("0 seconds", "5 seconds"))

    run = QueryRun(session, build, "append", inputs=2)
    run.add_to(0, ("a", 10), ("b", 10))
    assert run.add_to(1, ("a", 12), ("b", 16)) == [(("a", 10), ("a", 12))]
    run.add_to(0, ("c", 30))
    assert run.add_to(1, ("c", 31)) == [(("b", 10), None), (("c", 30), ("c", 31))]


def test_join_without_a_maximum(session: StreamSession) -> None:
    """Rows of the left wait for ever; rows of the right until the left has passed them."""

    def build(left: StreamingDataset, right: StreamingDataset) -> StreamingDataset:
        marked = left.withWatermark(second_of_pair, "1 second")
        other = right.withWatermark(second_of_pair, "1 second")
        return marked.join(other, key_of_pair, within=("5 seconds", None))

    run = QueryRun(session, build, "append", inputs=2)
    run.add_to(0, ("a", 5))
    assert run.add_to(1, ("a", 9), ("a", 10)) == [(("a", 5), ("a", 10))]
    run.add_to(0, ("b", 100))
    assert run.add_to(1, ("a", 100)) == [(("a", 5), ("a", 100))]
    assert run.state()["tot"] == 2  # the rows of the left


@pytest.mark.parametrize(
    ("how", "within"),
    [
        ("left_outer", ("0 seconds", None)),
        ("left_semi", ("0 seconds", None)),
        ("right_outer", (None, "0 seconds")),
    ],
)
def test_join_that_would_wait_for_ever(
    session: StreamSession, how: str, within: tuple[str | None, str | None]
) -> None:
    """A row that is emitted, or dropped, without a match must have a last moment for one."""
    left, right = (
        session.memoryStream(name).toDS().withWatermark(second_of_pair, "1 second")
        for name in ("input0", "input1")
    )
    joined = left.join(right, key_of_pair, how, within=within)
    with pytest.raises(InvalidStreamError, match=f"range of a {how} join must end after each"):
        joined.writeStream.format("memory").queryName("run").outputMode("append").start()


@pytest.mark.deep
def test_join_then_windows(session: StreamSession) -> None:
    """Pairs have an event time, so they can be counted in windows."""

    def build(left: StreamingDataset, right: StreamingDataset) -> StreamingDataset:
        marked = left.withWatermark(second_of_pair, "5 seconds")
        other = right.withWatermark(second_of_pair, "5 seconds")
        pairs = marked.join(other, key_of_pair, within=("0 seconds", "5 seconds"))
        return plain(pairs.groupByKey(window(second_of_pair, "10 seconds")).count())

    run = QueryRun(session, build, "append", inputs=2)
    run.add_to(0, ("a", 1), ("a", 2))
    run.add_to(1, ("a", 3))
    run.add_to(0, ("b", 30))
    assert run.add_to(1, ("b", 31)) == [(0, 2)]


def test_limit(session: StreamSession, tmp_path: Path) -> None:
    """In append mode the limit is of all batches together."""
    run = QueryRun(session, lambda numbers: numbers.limit(3), "append", tmp_path / "checkpoint")
    assert run.add(1, 2) == [1, 2]
    run.restart()
    assert len(run.add(3, 4)) == 1
    assert run.add(5) == []
