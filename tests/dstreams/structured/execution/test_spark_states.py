"""Rows of Spark's states as entries of stores, and states that do not fit an operator."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import StructType

from dstreams.errors import RestartError
from dstreams.state.ddl import parse_schema
from dstreams.state.group_state import OutputMode
from dstreams.structured import StreamingDataset, StreamSession, window
from dstreams.structured.api.aggregates import (
    Average,
    CollectList,
    Count,
    First,
    Max,
    StdDev,
    Sum,
)
from dstreams.structured.execution.spark_states import NotAdoptableError, entries_of, is_alone
from dstreams.structured.operators.stateful_operator import StateStoreWriter
from dstreams.structured.operators.time_windows import TimeWindows
from dstreams.structured.plan.planning import plan_query

Build = Callable[[StreamingDataset[Any]], StreamingDataset[Any]]

SCHEMA = "user string, n int, at timestamp"


def entries(
    session: StreamSession, build: Build, key: str, value: str, schema: str = SCHEMA
) -> Callable[[Row], Any]:
    """Return the conversion of a state with such columns for the operator of a query."""
    rows = session.readStream.schema(schema).json("/nowhere")
    planned = plan_query(build(rows).plan, OutputMode.Update, session.conf.frozen())
    [operator] = [step for step in planned.root.walk() if isinstance(step, StateStoreWriter)]
    parts = {"key": parse_schema(key), "value": parse_schema(value)}
    made = StructType()
    for name, columns in parts.items():
        made = made.add(name, columns)
    frame: Any = SimpleNamespace(schema=made)
    return entries_of(frame, operator, planned)


def test_buffers(session: StreamSession) -> None:
    """Each aggregate has its buffer, also without values."""
    convert = entries(
        session,
        lambda rows: rows.groupByKey("user").agg(Average("n"), StdDev("n"), First("n"), Max("at")),
        "user string",
        "sum double, count long, n double, avg double, m2 double, first int, valueSet boolean, "
        "max timestamp",
    )
    instant = datetime(2026, 1, 1, 12, 0, 0, 5, timezone.utc)
    at = instant.astimezone().replace(tzinfo=None)  # in local time, as PySpark gives it
    found = convert(Row(key=Row("a"), value=Row(6.0, 3, 3.0, 2.0, 2.0, None, True, at)))
    of_day = [(6.0, 3), (3, 2.0, 2.0), (None,), instant]
    assert found == ("a", (None, (of_day,), None))
    empty = convert(Row(key=Row(None), value=Row(0.0, 0, 0.0, 0.0, 0.0, None, False, None)))
    assert empty == (None, (None, ([None, None, None, None],), None))


def test_sums_of_decimals(session: StreamSession) -> None:
    """A sum with its scale is taken; one without, or that may be one, is refused."""
    schema = "user string, n int, cost decimal(8,2)"

    def of(value: str, *functions: Any) -> Callable[[Row], Any]:
        build: Build = lambda rows: rows.groupByKey("user").agg(*functions)  # noqa: E731
        return entries(session, build, "user string", value, schema)

    convert = of("sum decimal(18,2), isEmpty boolean", Sum("cost"))
    assert convert(Row(key=Row("a"), value=Row(None, True))) == ("a", (None, (None,), None))
    assert of("sum long", Sum("n"))(Row(key=Row("a"), value=Row(3))) == ("a", (None, (3,), None))
    for value, function in [
        ("sum long", Sum("cost")),
        ("sum double, count long", Average("cost")),
        ("sum long", Sum(lambda row: row.cost)),
    ]:
        with pytest.raises(NotAdoptableError, match="without its scale; name the field"):
            of(value, function)


@pytest.mark.parametrize(
    ("build", "key", "value", "expected"),
    [
        (
            lambda rows: rows.groupByKey("user").agg(CollectList("n")),
            "user string",
            "buf binary",
            r"it computes CollectList\(of='n'\) here, and its values there are buf",
        ),
        (
            lambda rows: rows.groupByKey("user").agg(First("n", by="at")),
            "user string",
            "first int, valueSet boolean",
            "use the same aggregates in the same order",
        ),
        (
            lambda rows: rows.groupByKey("user").count(),
            "user struct<first: string>",
            "count long",
            "its column user is struct<first:string>; only plain values can be taken",
        ),
        (
            lambda rows: rows.groupByKey("user").count(),
            "user string, n int",
            "count long",
            "its keys are user here, and user, n there",
        ),
        (
            lambda rows: rows.map(lambda row: row.n).dropDuplicates(),
            "user string, n int, at timestamp",
            "none string",
            "its keys are whole records here, and user, n, at there; name the fields as subset",
        ),
        (
            lambda rows: rows.groupByKey("user").flatMapGroupsWithState(
                lambda key, rows, state: [], "update", "ProcessingTimeTimeout"
            ),
            "user string",
            "groupState struct<n: int>",
            "it has a timeout here, and not so there",
        ),
        (
            lambda rows: rows.groupByKey("user").flatMapGroupsWithState(
                lambda key, rows, state: [], "update"
            ),
            "user string",
            "n int",
            "its format is not known: its values have n",
        ),
    ],
)
def test_states_that_do_not_fit(
    session: StreamSession, build: Build, key: str, value: str, expected: str
) -> None:
    """The message has what is here and what is there."""
    with pytest.raises(NotAdoptableError, match=expected):
        entries(session, build, key, value)


def test_keys_by_name_and_place(session: StreamSession) -> None:
    """Fields are found by their names, functions take the columns that are left."""
    convert = entries(
        session,
        lambda rows: rows.groupByKey(lambda row: row.n, "user").agg(Count()),
        "user string, n int",
        "count long",
    )
    assert convert(Row(key=Row("a", 3), value=Row(7))) == ((3, "a"), (None, (7,), None))


WINDOWS = [
    # The windows of the query; the start of one of Spark, which is of 10 s, in seconds; fits.
    (("10 seconds",), 20, True),
    (("10 seconds",), -10, True),
    (("10 seconds",), 25, False),
    (("10 seconds", "5 seconds"), 25, True),
    (("10 seconds", "5 seconds"), -5, True),
    (("10 seconds", "4 seconds"), 25, False),
    (("10 seconds", None, "3 seconds"), 23, True),
    (("10 seconds", None, "3 seconds"), -7, True),
    (("10 seconds", None, "3 seconds"), 20, False),
    (("10 seconds",), 20.0005, False),
    (("20 seconds",), 20, False),
]


@pytest.mark.parametrize(("spans", "start_s", "fits"), WINDOWS)
def test_windows(
    session: StreamSession, spans: tuple[str | None, ...], start_s: float, fits: bool
) -> None:
    """A window of the query's size that begins where one of the query does is taken."""
    windows: Any = window("at", *spans)  # type: ignore[arg-type]
    convert = entries(
        session,
        lambda rows: rows.groupByKey(windows).agg(Count()),
        "window struct<start: timestamp, end: timestamp>",
        "count long",
    )
    start, end = (
        datetime.fromtimestamp(at_s, timezone.utc).astimezone().replace(tzinfo=None)
        for at_s in (start_s, start_s + 10)
    )
    row = Row(key=Row(Row(start=start, end=end)), value=Row(7))
    if fits:
        assert convert(row) == ((start_s + 10) * 1000, (None, (7,), None))
    else:
        with pytest.raises(RestartError, match=r"it has the Window\(.*, which is not one of the"):
            convert(row)


def ends_of(batches: list[list[int]], windows: TimeWindows, delay: int) -> tuple[set[int], int]:
    """Return the ends of windows that a state has after batches, and the last watermark."""
    ends: set[int] = set()
    watermark = newest = 0
    for times in batches:
        watermark = max(watermark, newest - delay)
        ends.update(end for time in times for end in windows.ends(time))
        ends = {end for end in ends if end > watermark}
        newest = max([newest, *times])
    return ends, watermark


@given(
    batches=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=5),
    step=st.integers(1, 4),
    times=st.integers(2, 3),
    more=st.integers(0, 5),
    delay=st.integers(0, 15),
)
def test_slides(batches: list[list[int]], step: int, times: int, more: int, delay: int) -> None:
    """Windows of the same slide are never refused, those of a multiple always, up to the delay."""
    size, slide = times * step + more, times * step
    same, other = TimeWindows(size, step), TimeWindows(size, slide)
    ends, watermark = ends_of(batches, same, delay)
    assert not any(is_alone(end, ends, same, watermark) for end in ends)
    ends, watermark = ends_of(batches, other, delay)
    assert delay < step or any(is_alone(end, ends, same, watermark) for end in ends)
