"""Late records and records whose function failed, in outputs of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dstreams.common import faults
from dstreams.errors import InvalidStreamError
from dstreams.spark.rejected_records import RejectedRecord
from dstreams.state.group_state import GroupStateTimeout
from dstreams.structured import (
    StatefulProcessor,
    StatefulProcessorHandle,
    StreamingDataset,
    StreamingQueryException,
    StreamSession,
    session_window,
    window,
)
from dstreams.structured.api.aggregates import Count as Records
from dstreams.structured.api.aggregates import First, Max, Sum
from dstreams.structured.sources.committed_files import committed_lines
from tests.dstreams.structured.runs import QueryRun

EVENT_TIME = GroupStateTimeout.EventTimeTimeout
Build = Callable[[StreamingDataset], StreamingDataset]


def ms(row: Any) -> int:
    return row[0] * 1000  # type: ignore[no-any-return]


def key(row: Any) -> Any:
    return row[1]


def group(group_key: Any, rows: Any, state: Any) -> list[Any]:
    state.update(1)
    return [(group_key, sorted(rows))]


def groups(timeout: GroupStateTimeout) -> Build:
    return lambda rows: rows.groupByKey(key).flatMapGroupsWithState(group, "append", timeout)


class Count(StatefulProcessor):
    """Emits the number of the rows of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.seen = handle.getValueState("seen", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        yield key, len(list(rows))


def processor(rows: StreamingDataset) -> StreamingDataset:
    return rows.groupByKey(key).transformWithState(Count(), timeMode="eventTime")


def join(rows: StreamingDataset) -> StreamingDataset:
    return rows.join(rows.filter(lambda row: False), key, within=("0 seconds", "1 second"))


# When the second batch comes, the watermark is 90 s.
FIRST = [(100, "a")]
SECOND = [(20, "b"), (85, "c"), (95, "d")]
deep = pytest.mark.deep
OPERATORS: dict[str, tuple[Build, str, str, str]] = {
    # how it is built, its output mode, the late keys, and the keys of dropped rows
    "windows": (
        lambda rows: rows.groupByKey(window(ms, "10 seconds")).count(),
        "append",
        "b c",
        "b c",
    ),
    "sliding windows": (
        lambda rows: rows.groupByKey(window(ms, "20 seconds", "10 seconds")).count(),
        "update",
        "b",
        "b b c",
    ),
    "windows, complete": (
        lambda rows: rows.groupByKey(window(ms, "10 seconds")).count(),
        "complete",
        "",
        "",
    ),
    "event times": (lambda rows: rows.groupByKey(ms).count(), "append", "b c", "b c"),
    "sessions": (
        lambda rows: rows.groupByKey(key, session_window(ms, "10 seconds")).count(),
        "append",
        "b",
        "b",
    ),
    "duplicates": (lambda rows: rows.dropDuplicates(key), "append", "b c", "b c"),
    "duplicates, then windows": (
        lambda rows: rows.dropDuplicates(key).groupByKey(window(ms, "10 seconds")).count(),
        "append",
        "b c",
        "b c",
    ),
    "duplicates for a time": (
        lambda rows: rows.dropDuplicatesWithinWatermark(key),
        "append",
        "b c",
        "b c",
    ),
    "join": (join, "append", "b c", "b c"),
    "timers": (groups(EVENT_TIME), "append", "b c", "b c"),
    "processor": (processor, "append", "b c", "b c"),
    "no timers": (groups(GroupStateTimeout.NoTimeout), "append", "", ""),
}


@pytest.mark.parametrize(
    "name",
    [name if name in ("windows", "join") else pytest.param(name, marks=deep) for name in OPERATORS],
)
def test_late_records_of_each_operator(session: StreamSession, name: str) -> None:
    """Each record that an operator drops goes to the output once; counts stay those of Spark."""
    build, mode, late, dropped = OPERATORS[name]
    output = session.sink("memory", queryName="late")

    def marked(rows: StreamingDataset) -> StreamingDataset:
        return build(rows.withWatermark(ms, "10 seconds", lateOutput=output))

    run = QueryRun(session, marked, mode)
    run.add(*FIRST)
    run.query.processAllAvailable()
    assert session.table("late") == []
    run.add(*SECOND)
    found: list[RejectedRecord] = session.table("late")
    assert sorted(record[1] for record in (one.record for one in found)) == late.split()
    counts = [
        operator["numRowsDroppedByWatermark"]
        for progress in run.query.recentProgress
        for operator in progress["stateOperators"]
    ]
    assert sum(counts) == len(dropped.split())
    for one in found:
        assert one.operator == run.query._execution.planned.names[0]
        assert one.reason == f"late: event time {ms(one.record)} ms, watermark 90000 ms"
        assert (one.event_time_ms, one.offset) == (ms(one.record), None)


@deep
def test_a_restart_may_add_the_output(session: StreamSession, tmp_path: Path) -> None:
    """The state fits a query with or without it; earlier late records are not there."""

    def build(output: Any) -> Build:
        return lambda rows: rows.withWatermark(ms, "10 seconds", lateOutput=output).dropDuplicates(
            key
        )

    run = QueryRun(session, build(None), "append", tmp_path / "checkpoint")
    run.add((100, "a"))
    run.add((50, "b"))
    run.restart(build(session.sink("memory", queryName="late")))
    assert run.add((51, "c"), (120, "a"), (120, "d")) == [(120, "d")]
    assert [one.record for one in session.table("late")] == [(51, "c")]


@deep
@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("windows", "out.done"),
        ("windows", "commit.start"),
        ("windows", "commit.done"),
        ("sessions", "commit.start"),
        ("join", "commit.start"),
    ],
)
def test_late_records_of_a_batch_that_runs_again(
    session: StreamSession, tmp_path: Path, name: str, step: str
) -> None:
    """After a crash and a restart, each late record is in the output once."""
    build, mode, late, _ = OPERATORS[name]
    output = session.sink("json", str(tmp_path / "late"))

    def marked(rows: StreamingDataset) -> StreamingDataset:
        return build(rows.withWatermark(ms, "10 seconds", lateOutput=output))

    run = QueryRun(session, marked, mode, tmp_path / "checkpoint")
    run.add(*FIRST)
    faults._faults[step] = faults.Fault(None, "raise")
    run.streams[0].addAll(SECOND)
    with pytest.raises(StreamingQueryException, match=f"fault at {step}"):
        run.query.processAllAvailable()
    run.restart()
    run.add((96, "e"), (30, "f"))
    dropped = [json.loads(line)["record"][1] for line in lines_of(tmp_path / "late")]
    assert sorted(dropped) == late.split() + ["f"] * bool(late)
    run.query.stop()


def number(line: str) -> tuple[int, str]:
    return int(line), line


def seven(line: str) -> int:
    return 7000


def parsed(kind: str, on_error: Any) -> Build:
    """Return a query that makes numbers of lines by one of the functions of records."""
    if kind == "filter":
        return lambda lines: lines.filter(lambda line: int(line) > 1, onError=on_error)
    if kind == "flatMap":
        return lambda lines: lines.flatMap(lambda line: [int(line)] * 2, onError=on_error)
    if kind == "map of events":
        return lambda lines: lines.withWatermark(seven, "1 second").map(int, onError=on_error)
    return lambda lines: lines.map(int, onError=on_error)


@pytest.mark.parametrize(
    ("kind", "good", "event_time_ms"),
    [
        ("map", [1, 2], None),
        pytest.param("flatMap", [1, 1, 2, 2], None, marks=deep),
        pytest.param("filter", ["2"], None, marks=deep),
        pytest.param("map of events", [1, 2], 7000, marks=deep),
    ],
)
def test_records_whose_function_fails(
    session: StreamSession, kind: str, good: list[Any], event_time_ms: int | None
) -> None:
    """They are skipped, counted in the progress of their source, and go to the output."""
    output = session.sink("memory", queryName="bad")
    run = QueryRun(session, parsed(kind, output), "append")
    assert run.add("1", "x", "2", "y") == good
    progress = run.query.lastProgress
    assert progress is not None
    assert progress["sources"][0]["metrics"]["rejected"] == "2"
    assert progress["sink"]["metrics"] == {"MemorySink[bad]": "2"}
    first, second = sorted(session.table("bad"), key=lambda one: str(one.record))
    assert (first.record, second.record) == ("x", "y")
    assert first.operator.startswith(f"{kind.split(maxsplit=1)[0]}(")
    assert first.reason == "ValueError: invalid literal for int() with base 10: 'x'"
    assert (first.event_time_ms, first.offset) == (event_time_ms, None)


class Read(NamedTuple):
    """A record of a topic: seconds, a key and an amount as text."""

    value: str
    topic: str = "clicks"
    partition: int = 2
    offset: int = 7


def at(record: Read) -> int:
    return int(record.value.split()[0]) * 1000


def who(record: Read) -> str:
    return record.value.split()[1]


def amount(record: Read) -> int:
    return int(record.value.split()[2])


def as_list(record: Read) -> Any:
    return who(record) if len(who(record)) == 1 else list(who(record))


def gap(record: Read) -> str:
    return f"{amount(record)} seconds"


def counted(on_error: Any, *keys: Any) -> Build:
    return lambda rows: (
        rows.withWatermark(at, "1 second").groupByKey(*keys, onError=on_error).count()
    )


FUNCTIONS: dict[str, tuple[Callable[[Any], Build], str, int, str, int | None]] = {
    # how it is built with onError, a bad record, the number of results of the others, the begin of
    # the operator, and the event time of the record
    "event time": (
        lambda out: lambda rows: rows.withWatermark(at, "1 second", onError=out),
        "x a 1",
        2,
        "withWatermark(",
        None,
    ),
    "kind of an event time": (
        lambda out: lambda rows: rows.withWatermark("value", "1 second", onError=out),
        "x a 1",
        0,
        "withWatermark(value)",
        None,
    ),
    "key": (lambda out: counted(out, who), "3", 2, "groupByKey(", 3000),
    "unhashable key": (lambda out: counted(out, as_list), "3 bc", 2, "groupByKey(", 3000),
    "unknown field": (lambda out: counted(out, "user"), "3", 0, "groupByKey(user)", 3000),
    "key of a window": (
        lambda out: counted(out, window(at, "1 second"), who),
        "3",
        2,
        "groupByKey(window(",
        3000,
    ),
    "other time of a window": (
        lambda out: counted(out, window(lambda row: amount(row) * 1000, "1 second")),
        "3 a ?",
        2,
        "groupByKey(window(",
        3000,
    ),
    "gap of a session": (
        lambda out: counted(out, who, session_window(at, gap)),
        "3 a ?",
        2,
        "groupByKey(",
        3000,
    ),
    "key of groups": (
        lambda out: (
            lambda rows: rows.groupByKey(who, onError=out).flatMapGroupsWithState(
                lambda of, rows, state: [of], "update"
            )
        ),
        "3",
        2,
        "groupByKey(",
        None,
    ),
    "aggregate": (
        lambda out: (
            lambda rows: (
                rows.withWatermark(at, "1 second")
                .groupByKey(who)
                .agg(Records(), Sum(amount), Max("value"), onError=out)
            )
        ),
        "3 a ?",
        2,
        "agg(count, sum_amount, max_value)",
        3000,
    ),
    "order of an aggregate": (
        lambda out: lambda rows: rows.groupByKey(who).agg(First("value", by=amount), onError=out),
        "3 a ?",
        2,
        "agg(first_value)",
        None,
    ),
    "duplicates": (
        lambda out: lambda rows: rows.dropDuplicates(who, onError=out),
        "3",
        2,
        "dropDuplicates(",
        None,
    ),
    "duplicates for a time": (
        lambda out: (
            lambda rows: rows.withWatermark(at, "1 second").dropDuplicatesWithinWatermark(
                as_list, onError=out
            )
        ),
        "3 bc",
        2,
        "dropDuplicatesWithinWatermark(",
        3000,
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("event time", "key of a window", "aggregate")
        else pytest.param(name, marks=deep)
        for name in FUNCTIONS
    ],
)
def test_functions_of_the_next_operator(session: StreamSession, name: str) -> None:
    """A record for which one fails goes to the output once; without one, it fails the batch."""
    build, bad, results, operator, event_time_ms = FUNCTIONS[name]
    good, mode = [Read("1 a 1"), Read("2 b 2")], "complete" if "session" in name else "update"
    run = QueryRun(session, build(session.sink("memory", queryName="bad")), mode)
    assert len(run.add(*good, Read(bad))) == results
    found: list[RejectedRecord] = session.table("bad")
    sources = [progress["sources"][0] for progress in run.query.recentProgress]
    counts = [
        source["metrics"]["rejected"] for source in sources if "rejected" in source["metrics"]
    ]
    assert counts == [str(len(found))]
    assert len(found) == 3 - results
    (one,) = [one for one in found if one.record.value == bad]
    assert one.operator.startswith(operator)
    assert re.match(r"\w+Error: |withWatermark\(value\) must return a datetime", one.reason)
    assert (one.event_time_ms, one.offset) == (event_time_ms, ("clicks", 2, 7))
    run.query.stop()
    run = QueryRun(session, build("fail"), mode)
    with pytest.raises(StreamingQueryException):
        run.add(*good, Read(bad))


@deep
@pytest.mark.parametrize("step", ["out.done", "commit.start", "commit.done"])
def test_failed_keys_of_a_batch_that_runs_again(
    session: StreamSession, tmp_path: Path, step: str
) -> None:
    """After a crash and a restart, each failed record is in the output once, and not counted."""
    output = session.sink("json", str(tmp_path / "bad"))

    def build(rows: StreamingDataset) -> StreamingDataset:
        timed = rows.withWatermark(at, "1 second", onError=output)
        return timed.groupByKey(who, onError=output).agg(Sum(amount), onError=output)

    run = QueryRun(session, build, "complete", tmp_path / "checkpoint")
    run.add(Read("1 a 1"))
    faults._faults[step] = faults.Fault(None, "raise")
    run.streams[0].addAll([Read("1 a 2"), Read("x"), Read("2"), Read("2 b"), Read("2 b 4")])
    with pytest.raises(StreamingQueryException, match=f"fault at {step}"):
        run.query.processAllAvailable()
    run.restart()
    assert run.add(Read("3"), Read("3 a 3")) == [("a", 6), ("b", 4)]
    kept = [json.loads(line) for line in lines_of(tmp_path / "bad")]
    assert sorted(one["record"]["value"] for one in kept) == ["2", "2 b", "3", "x"]
    assert {one["operator"].partition("(")[0] for one in kept} == {
        "withWatermark",
        "groupByKey",
        "agg",
    }
    run.query.stop()


def test_records_are_only_counted(session: StreamSession, caplog: pytest.LogCaptureFixture) -> None:
    """Without an output, skipped records are in the progress and in the log."""
    run = QueryRun(session, parsed("map", "skip"), "append")
    assert run.add("1", "x") == [1]
    progress = run.query.lastProgress
    assert progress is not None
    assert progress["sources"][0]["metrics"]["rejected"] == "1"
    assert "batch 0: 1 failed and was skipped, such as map(" in caplog.text
    run.query.stop()
    run = QueryRun(session, parsed("map", "fail"), "append")
    with pytest.raises(StreamingQueryException, match="failed for record 'x'"):
        run.add("x")


def test_an_output_that_fails_after_another(session: StreamSession, tmp_path: Path) -> None:
    """All outputs belong to the batch: it runs again, and each row is in its output once."""
    attempts: list[int] = []

    def fails_once(rows: Any, batch_id: int) -> None:
        attempts.append(batch_id)
        if len(attempts) == 1:
            raise OSError("no space left")

    late = session.sink("json", str(tmp_path / "late"))
    source = session.memoryStream()
    query = (
        source.toDS()
        .map(number, onError=fails_once)
        .withWatermark(ms, "1 second", lateOutput=late)
        .dropDuplicates(key)
        .writeStream.format("text")
    )
    options = {"checkpointLocation": str(tmp_path / "checkpoint")}
    source.addData("9", "x")
    running = query.start(str(tmp_path / "good"), **options)
    with pytest.raises(StreamingQueryException, match="no space left"):
        running.processAllAvailable()
    running = query.start(str(tmp_path / "good"), **options)
    running.processAllAvailable()
    source.addData("3", "12")
    running.processAllAvailable()
    running.stop()
    assert sorted(lines_of(tmp_path / "good")) == ["(12, '12')", "(9, '9')"]
    (record,) = map(json.loads, lines_of(tmp_path / "late"))
    assert (record["operator"], record["record"]) == ("dedupe-0", [3, "3"])
    assert attempts[:2] == [0, 0]


def lines_of(directory: Path) -> list[str]:
    return [line for lines in committed_lines(str(directory)).values() for line in lines]


def test_arguments(session: StreamSession, tmp_path: Path) -> None:
    """Outputs are sinks or functions, each with its own place; a file needs a checkpoint."""
    lines = session.memoryStream().toDS()
    with pytest.raises(InvalidStreamError, match="onError of map must be a sink, such as"):
        lines.map(int, onError="ignore")  # type: ignore[arg-type]
    with pytest.raises(InvalidStreamError, match="onError of agg must be a sink, such as"):
        lines.groupByKey(int).agg(Records(), onError=Sum())  # type: ignore[call-overload]
    one_argument: Any = len
    with pytest.raises(InvalidStreamError, match=r"lateOutput of withWatermark.*f\(rows, batch"):
        lines.withWatermark(ms, "1 second", lateOutput=one_argument)
    with pytest.raises(InvalidStreamError, match="in kafka needs the option topic"):
        session.sink("kafka")
    with pytest.raises(InvalidStreamError, match="has no checkpoint of its own"):
        session.sink("json", "late", checkpointLocation="here")
    files = [session.sink("json", str(tmp_path / "bad")) for _ in range(2)]
    twice = lines.map(int, onError=files[0]).filter(bool, onError=files[1])
    with pytest.raises(InvalidStreamError, match="two outputs of the query write to FileSink"):
        twice.writeStream.format("noop").start()
    with pytest.raises(InvalidStreamError, match=r"FileSink\[.*bad\] needs a checkpoint"):
        lines.map(int, onError=files[0]).writeStream.format("noop").start()
    outputs = (files[0], session.sink("console"))
    marked = [lines.withWatermark(ms, "1 second", lateOutput=one) for one in outputs]
    either = marked[0].union(marked[1]).dropDuplicates()
    with pytest.raises(InvalidStreamError, match="have 2 different lateOutputs"):
        either.writeStream.format("noop").start(checkpointLocation=str(tmp_path / "checkpoint"))


def test_batch_datasets(session: StreamSession) -> None:
    """They can skip records, but have no batch to which a sink could belong."""
    lines = session.createDataset(["1", "x", "2"])
    assert sorted(lines.map(int, onError="skip").collect()) == [1, 2]
    with pytest.raises(InvalidStreamError, match="onError of map takes a sink only in a stream"):
        lines.map(int, onError=session.sink("noop"))
    counts = lines.groupByKey(int, onError="skip").count().collect()
    assert sorted(map(tuple, counts)) == [(1, 1), (2, 1)]
    marked = lines.withWatermark(seven, "1 second", lateOutput=session.sink("noop"))
    assert sorted(marked.dropDuplicates().collect()) == ["1", "2", "x"]


def test_without_a_request_the_plan_is_the_same(session: StreamSession) -> None:
    """No operator is added, unless late records are to be kept."""
    rows = session.memoryStream().toDS()
    plans = [
        rows.withWatermark(ms, "1 second", lateOutput=output).dropDuplicates().explanation()
        for output in (None, session.sink("noop"))
    ]
    assert "LateRecords" not in plans[0]
    assert "LateRecords dedupe-0, NoopSink" in plans[1]
