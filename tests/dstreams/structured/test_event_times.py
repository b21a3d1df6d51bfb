"""Event times of queries: as keys, hidden, and missing."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from dstreams.errors import InvalidStreamError
from dstreams.structured import StreamingDataset, StreamSession, window
from dstreams.structured.operators.deduplication import StreamingDeduplicateExec
from tests.dstreams.structured.plan.test_planning import marked, stateful
from tests.dstreams.structured.runs import QueryRun

NOON = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
BERLIN = timezone(timedelta(hours=1))


def after(microseconds: int) -> datetime:
    return NOON + timedelta(microseconds=microseconds)


def test_equal_records_are_duplicates_whatever_their_hidden_time_is(
    session: StreamSession,
) -> None:
    """After a map an event time is not part of a record, so equal records stay equal."""

    def build(rows: StreamingDataset) -> StreamingDataset:
        return rows.withWatermark(lambda row: row[1], "10 seconds").map(lambda row: row[0])

    run = QueryRun(session, lambda rows: build(rows).dropDuplicates(), "append")
    assert run.add(("a", 10_000), ("a", 11_000)) == ["a"]
    assert run.add(("a", 90_000), ("b", 90_000)) == ["b"]
    assert run.state()["tot"] == 2


def test_whole_records_end_with_the_watermark_where_they_tell_their_time() -> None:
    """Equal records have one time as long as they are what withWatermark was given, or hold it."""
    rows = marked("1 second")
    both = rows.union(marked("2 seconds")).filter(bool)
    windows = rows.groupByKey(window("timestamp", "1 second")).count()
    pairs = rows.join(rows, "value", within=("0 seconds", "1 second"))
    for dataset, ends in (
        (both, True),
        (windows, True),
        (pairs, True),
        (both.map(lambda row: row), False),
        (rows.union(rows.withWatermark(lambda row: 0, "1 second")), False),
    ):
        assert dataset.dropDuplicates().plan.has_event_time_key is ends  # type: ignore[attr-defined]
    deduplicated = stateful(rows.dropDuplicates())
    assert isinstance(deduplicated, StreamingDeduplicateExec)
    assert deduplicated.withEventTime


def test_keys_and_lateness_by_the_microsecond(session: StreamSession) -> None:
    """Events that are microseconds apart are two, and late is what the watermark has reached."""

    def build(rows: StreamingDataset) -> StreamingDataset:
        return rows.withWatermark("t", "0 seconds").dropDuplicates(["k", "t"])

    run = QueryRun(session, lambda rows: build(rows).map(lambda row: row["t"]), "append")
    assert run.add({"k": "a", "t": NOON}, {"k": "a", "t": after(100)}) == [after(100), NOON]
    late, next_one = {"k": "b", "t": NOON}, {"k": "b", "t": after(1)}
    assert run.add(late, next_one) == [after(1)]


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["update", "append"])
def test_a_time_as_key_comes_back_as_it_was(session: StreamSession, mode: str) -> None:
    """A watermark changes neither groups nor keys: their order, their kind, their microseconds."""

    def build(rows: StreamingDataset) -> StreamingDataset:
        return rows.withWatermark("t", "1 second").groupByKey("k", "t", "n").count()

    run = QueryRun(session, build, mode)
    zoned = after(100).astimezone(BERLIN)
    records = [{"k": "a", "n": 1, "t": moment} for moment in (NOON, after(100), zoned, 5000)]
    out = run.add(*records)
    if mode == "append":  # the first batch without data puts 5000 out, the next one the others
        out += run.add({"k": "z", "n": 0, "t": NOON + timedelta(seconds=9)})
    found = {(row.k, row.t, row.n): row.count for row in out}
    assert found == {("a", 5000, 1): 1, ("a", NOON, 1): 1, ("a", zoned, 1): 2}


def test_groups_without_an_event_time(session: StreamSession) -> None:
    """None is a key as any other: its group is there, is never late, and no watermark ends it."""

    def build(rows: StreamingDataset) -> StreamingDataset:
        return rows.withWatermark("t", "1 second").groupByKey("t", "k").count()

    run = QueryRun(session, build, "update")
    none, early = {"k": "a", "t": None}, {"k": "a", "t": 1000}
    assert run.add(none, early) == [(1000, "a", 1), (None, "a", 1)]
    assert run.add({"k": "b", "t": 20_000}) == [(20_000, "b", 1)]
    assert run.add(none) == [(None, "a", 2)]


def test_a_hidden_time_is_no_key() -> None:
    """Records that a map has made need not have it: what to do instead is said at once."""
    mapped = marked("1 second").map(vars)
    with pytest.raises(
        InvalidStreamError, match=r"after map .*vars: the event time cannot be a key"
    ) as one:
        mapped.groupByKey("timestamp", "value").count()
    assert "call withWatermark after that step" in str(one.value)
    mapped.groupByKey(window("timestamp", "1 second"), "value").count()


def test_one_group_for_all_has_a_row_in_each_batch(session: StreamSession) -> None:
    """All records are one group also where a batch has none: its row goes out, as in Spark."""

    def build(rows: StreamingDataset) -> StreamingDataset:
        return rows.withWatermark(lambda row: row, "1 second").groupByKey().count()

    run = QueryRun(session, build, "update")
    # A batch without data follows each one that moves the watermark.
    assert run.add(2000) == [(1,), (1,)]
    assert run.add(9000) == [(2,), (2,)]
    assert run.add(9000) == [(3,)]


def test_seconds_in_the_place_of_milliseconds(
    session: StreamSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Values like seconds are reported once per query and selector; small ones are not."""
    run = QueryRun(session, lambda rows: rows.withWatermark("t", "1 second"), "append")
    for seconds in (14_000, 1_700_000_000, 1_700_000_001):
        run.add({"t": seconds})
    found = [record.getMessage() for record in caplog.records if "seconds" in record.getMessage()]
    assert found == [
        "event time t of query run: suspect value, got 1700000000 ms, which is in January 1970; "
        "if these are seconds, return seconds * 1000, or a datetime"
    ]
