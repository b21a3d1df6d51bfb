"""Batch datasets: one program over history and over a stream, and what only one of them can do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams.errors import InvalidStreamError
from dstreams.structured import (
    GroupState,
    StatefulProcessor,
    StreamingDataset,
    StreamSession,
    UnsupportedOperationError,
    session_window,
    window,
)
from dstreams.structured.api.aggregates import Count, Sum
from tests.dstreams.structured.runs import QueryRun

Dataset = StreamingDataset[Any]

CLICKS = [
    {"user": "ann", "at": 1_000, "n": 1},
    {"user": "bob", "at": 2_000, "n": 2},
    {"user": "ann", "at": 11_000, "n": 3},
    {"user": "ann", "at": 12_000, "n": 3},
    {"user": "bob", "at": 61_000, "n": 5},
]


def user(click: dict[str, Any]) -> str:
    name: str = click["user"]
    return name


def tens(click: dict[str, Any]) -> int:
    number: int = click["n"]
    return number * 10


def total(key: str, clicks: Iterator[Any], state: GroupState[int]) -> Iterator[tuple[str, int]]:
    """Return the sum of a user so far."""
    state.update((state.getOption or 0) + sum(click["n"] for click in clicks))
    yield key, state.get


class Totals(StatefulProcessor):
    """The sum of each user so far, in a state variable."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        before = self.total.get()[0] if self.total.exists() else 0
        self.total.update((before + sum(row.n for row in rows),))
        yield key[0], self.total.get()[0]


def timed(clicks: Dataset) -> Dataset:
    return clicks.withWatermark("at", "1 hour")


PROGRAMS: dict[str, tuple[str, Callable[[Dataset], Dataset]]] = {
    "map and filter": ("append", lambda clicks: clicks.filter(lambda one: one["n"] > 1).map(tens)),
    "flatMap": ("append", lambda clicks: clicks.flatMap(lambda one: [one["user"]] * one["n"])),
    "count": ("complete", lambda clicks: clicks.groupByKey("user").count()),
    "total": ("complete", lambda clicks: clicks.groupByKey().agg(Count(), Sum("n"))),
    "windows": (
        "complete",
        lambda clicks: (
            timed(clicks).groupByKey(window("at", "10 seconds", "5 seconds"), "user").agg(Sum("n"))
        ),
    ),
    "windows without a watermark": (
        "complete",
        lambda clicks: clicks.groupByKey(window("at", "10 seconds")).count(),
    ),
    "sessions": (
        "complete",
        lambda clicks: (
            timed(clicks).groupByKey(session_window("at", "5 seconds"), "user").agg(Sum("n"))
        ),
    ),
    "duplicates": ("append", lambda clicks: clicks.map(tens).dropDuplicates()),
    "duplicates by event time": (
        "append",
        lambda clicks: timed(clicks).dropDuplicates(["user", "at"]).map(tens),
    ),
    "groups": (
        "update",
        lambda clicks: clicks.groupByKey(user).flatMapGroupsWithState(total, "update"),
    ),
    "groups with timers": (
        "append",
        lambda clicks: (
            timed(clicks)
            .groupByKey(user)
            .flatMapGroupsWithState(total, "append", "EventTimeTimeout", {"ann": 100})
        ),
    ),
    "a processor": (
        "update",
        lambda clicks: clicks.groupByKey("user").transformWithState(Totals(), None, "update"),
    ),
    "order and limit": (
        "complete",
        lambda clicks: clicks.groupByKey("user").agg(Sum("n")).orderBy(lambda row: row[1]).limit(1),
    ),
    "union": ("append", lambda clicks: clicks.map(tens).union(timed(clicks).map(user))),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_program_over_history_and_a_stream(session: StreamSession, program: str) -> None:
    """A batch dataset has the rows of a stream that has read all of it in one batch."""
    mode, build = PROGRAMS[program]
    streamed = QueryRun(session, build, mode).add(*CLICKS)
    batch = build(session.createDataset(CLICKS))
    assert not batch.isStreaming
    assert sorted(batch.collect(), key=repr) == streamed != []


def test_sources(session: StreamSession, sc: SparkContext, tmp_path: Path) -> None:
    """Rows come from a list, an RDD, a function, or files, which are read at each action."""
    lines = tmp_path / "in"
    lines.mkdir()
    (lines / "a.json").write_text("1\n2\n")
    read = session.read.json(lines)
    rows = [1, 2]
    for dataset in (
        session.createDataset(rows),
        session.createDataset(sc.parallelize(rows, 2)),
        session.createDataset(lambda: list(rows)),
        session.createDataset(lambda: sc.parallelize(rows, 1)),
        read,
    ):
        assert dataset.map(lambda n: n + 1).collect() == [2, 3]
    (lines / "b.json").write_text(json.dumps({"n": 3}))
    assert read.count() == 3
    some = session.read.text(lines, pathGlobFilter="a*")
    assert some.filter(lambda line: line != "2").collect() == ["1"]
    table = tmp_path / "table"
    table.mkdir()
    (table / "a.csv").write_text("word,n\na,1\n")
    words = session.read.schema("word string, n int").csv(table, header=True)
    assert words.groupByKey("word").agg(Sum("n")).collect() == [("a", 1)]


def test_actions(session: StreamSession, capsys: pytest.CaptureFixture[str]) -> None:
    """They have the names of Spark."""
    numbers = session.createDataset([(1, "a"), (2, "b"), (3, "c")]).filter(lambda row: row[0] > 1)
    assert (numbers.count(), numbers.take(1), numbers.first()) == (2, [(2, "b")], (2, "b"))
    assert numbers.rdd.keys().sum() == 5
    nothing = session.createDataset([])
    assert (nothing.isEmpty(), nothing.first(), nothing.collect()) == (True, None, [])
    assert nothing.groupByKey().count().collect() == [(0,)]
    numbers.show(1)
    shown = capsys.readouterr().out
    assert "|  2|  b|" in shown
    assert "|  3|  c|" not in shown
    assert shown.endswith("only showing top 1 rows\n")
    assert "Scan 3 rows" in numbers.explanation()


REFUSED: dict[str, tuple[Callable[[StreamSession], Any], str]] = {
    "an action on a stream": (
        lambda session: session.memoryStream().toDS().collect(),
        "collect needs a batch dataset.*writeStream",
    ),
    "rdd of a stream": (lambda session: session.memoryStream().toDS().rdd, "rdd needs a batch"),
    "a sink for a batch dataset": (
        lambda session: session.createDataset([1]).writeStream,
        "writeStream needs records from a stream.*use collect",
    ),
    "a union of both": (
        lambda session: (
            session.createDataset([1])
            .union(session.memoryStream().toDS())
            .writeStream.format("noop")
            .start()
        ),
        "union of a stream and a batch dataset",
    ),
    "duplicates within a watermark": (
        lambda session: (
            timed(session.createDataset(CLICKS)).dropDuplicatesWithinWatermark().count()
        ),
        "dropDuplicatesWithinWatermark is not supported on a batch dataset",
    ),
    "text": (lambda session: session.createDataset("abc"), "takes a list.*got str"),
    "a dict": (lambda session: session.createDataset({"a": 1}), "dict; pass list"),  # type: ignore[arg-type]
    "a function of text": (
        lambda session: session.createDataset(lambda: "abc").count(),
        "takes a list.*got str",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(session: StreamSession, case: str) -> None:
    """What needs a stream refuses a batch dataset, and the reverse."""
    act, message = REFUSED[case]
    with pytest.raises(InvalidStreamError, match=message) as raised:
        act(session)
    if "takes" not in message and "pass" not in message:
        assert isinstance(raised.value, UnsupportedOperationError)
        assert raised.value.rule == 22


@pytest.mark.parametrize(
    "action", [Dataset.collect, Dataset.count, Dataset.first, Dataset.isEmpty, Dataset.show]
)
def test_a_failing_function(session: StreamSession, action: Callable[[Dataset], Any]) -> None:
    """Each action raises an error of a few lines, which names the function and the record."""
    failing = session.createDataset([{"m": 1}]).map(tens)
    with pytest.raises(Exception, match=r"failed for record \{'m': 1\}: KeyError: 'n'") as raised:
        action(failing)
    assert "\tat " not in str(raised.value)
    assert "\tat " in raised.value.java  # type: ignore[attr-defined]
