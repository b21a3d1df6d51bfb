"""Invalid arguments are refused when they are passed, and the error has the remedy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint import CheckpointError
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.structured import StreamingDataset, StreamSession, session_window, window
from dstreams.structured.api.aggregates import Count


def itself(record: Any) -> Any:
    return record


def no_rows(key: Any, values: Any, state: Any) -> list[Any]:
    return []


class ClassWriter:
    """A writer for foreach."""

    def process(self, row: Any) -> None: ...


class WrongOpen(ClassWriter):
    """A writer whose open takes one argument."""

    def open(self, partition_id: int) -> bool:
        return True


READERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no format": (lambda read: read.load(), "call format with one of rate, socket, text, json"),
    "unknown format": (lambda read: read.format("pulsar"), "unknown source 'pulsar'"),
    "format that is no text": (lambda read: read.format(["rate"]), r"unknown source \['rate'\]"),
    "unknown option": (
        lambda read: read.format("rate").option("rows", 5).load(),
        "source rate has no option 'rows'; there are rowsPerSecond",
    ),
    "mistaken option": (
        lambda read: read.format("rate").option("rowPerSeconds", 5).load(),
        r"no option 'rowPerSeconds'; did you mean rowsPerSecond\? there are",
    ),
    "rows a second": (
        lambda read: read.format("rate").option("ROWSPERSECOND", 0).load(),
        "rowsPerSecond of source rate is 0; use a whole number of at least 1",
    ),
    "ramp-up": (
        lambda read: read.load(format="rate", rampUpTime="soon"),
        "rampUpTime of source rate is 'soon'; use a duration of at least 0 ms",
    ),
    "no port": (lambda read: read.load(format="socket", host="localhost"), "needs option 'port'"),
    "port": (lambda read: read.load(format="socket", host="h", port=99999), "from 1 to 65535"),
    "no path": (lambda read: read.text(None), "source text needs option 'path'"),
    "path that is none": (
        lambda read: read.text(5),
        "path of source text is 5; use a path or a URL",
    ),
    "braces in a pattern": (
        lambda read: read.text("in", pathGlobFilter="*.{csv,txt}"),
        r"pathGlobFilter of source text is '\*\.{csv,txt}'; use a pattern of \*, \?, \[abc\]",
    ),
    "schema": (lambda read: read.load("in", "json", 5), "readStream.schema needs a schema"),
    "mode": (
        lambda read: read.json("in", mode="PERMISSIVE"),
        "mode of source json is 'PERMISSIVE'; use one of FAILFAST, DROPMALFORMED",
    ),
    "mode of text": (lambda read: read.text("in", mode="FAILFAST"), "no option 'mode'"),
}


@pytest.mark.parametrize("name", READERS)
def test_readers(session: StreamSession, name: str) -> None:
    """Invalid sources are refused before anything starts."""
    call, message = READERS[name]
    with pytest.raises(InvalidStreamError, match=message):
        call(session.readStream)


DATASETS: dict[str, tuple[Callable[[StreamingDataset], Any], str]] = {
    "map of no function": (lambda words: words.map(3), "map needs a function"),  # type: ignore[arg-type]
    "map of two": (lambda words: words.map(lambda a, b: a), "takes \\(a, b\\)"),  # type: ignore[arg-type,misc]
    "union": (lambda words: words.union([1]), "union takes another StreamingDataset, got list"),  # type: ignore[arg-type]
    "delay": (lambda words: words.withWatermark(itself, "-1 second"), "must not be negative"),
    "delay of no text": (
        lambda words: words.withWatermark(itself, 5),
        "delayThreshold of withWatermark is 5, which is not a duration",
    ),
    "idle timeout": (
        lambda words: words.withWatermark(itself, "1 second", "0 seconds"),
        "idleTimeout of withWatermark must be positive",
    ),
    "event time": (lambda words: words.withWatermark(None, "1 second"), "name of a field or a"),  # type: ignore[arg-type]
    "two windows": (
        lambda words: words.groupByKey(window(itself, "1 second"), session_window("t", "1 day")),
        "takes one window, got 2",
    ),
    "window of months": (
        lambda words: words.groupByKey(window(itself, "1 month")),
        "must not be in months or years",
    ),
    "key": (lambda words: words.groupByKey(3), "name of a field or a function"),
    "aggregator": (lambda words: words.groupByKey(itself).agg(object()), "lacks zero"),  # type: ignore[arg-type]
    "no aggregator": (lambda words: words.groupByKey(itself).agg(), "at least one aggregator"),
    "class of aggregators": (
        lambda words: words.groupByKey(itself).agg(Count),  # type: ignore[arg-type]
        "got a class; pass",
    ),
    "reduction": (
        lambda words: words.groupByKey(itself).reduceGroups(lambda a: a),  # type: ignore[arg-type,misc]
        "let it take 2 positional",
    ),
    "name": (lambda words: words.groupByKey(itself).count(name=5), "must be a text that is not"),  # type: ignore[arg-type]
    "empty name of a join": (
        lambda words: words.join(words, itself, name=" "),
        "name of inner join must be a text",
    ),
    "timeout": (
        lambda words: words.groupByKey(itself).flatMapGroupsWithState(no_rows, "append", "soon"),
        "timeoutConf of flatMapGroupsWithState must be one of .*, got 'soon'",
    ),
    "mode of a function": (
        lambda words: words.groupByKey(itself).flatMapGroupsWithState(no_rows, "most"),
        "unknown output mode 'most'",
    ),
    "initial state": (
        lambda words: words.groupByKey(itself).mapGroupsWithState(no_rows, initialState=5),  # type: ignore[arg-type]
        "initialState of mapGroupsWithState must be pairs of key and state, got 5",
    ),
    "initial states without keys": (
        lambda words: words.groupByKey(itself).mapGroupsWithState(no_rows, initialState=[1, 2]),  # type: ignore[list-item]
        "must be pairs of key and state, got 1",
    ),
    "window and state": (
        lambda words: words.groupByKey(window(itself, "1 second")).mapGroupsWithState(no_rows),
        "windows are for agg, count and reduceGroups",
    ),
    "duplicates": (lambda words: words.dropDuplicates(5), "a list of these, got 5"),  # type: ignore[arg-type]
    "no duplicates": (lambda words: words.dropDuplicates([]), "omit it to use the whole record"),
    "join": (lambda words: words.join(words, itself, "cross"), "must be one of inner, left_outer"),
    "range of a join": (
        lambda words: words.join(words, itself, within=("1 hour", "0 seconds")),
        "must be a minimum and a maximum",
    ),
    "limit": (lambda words: words.limit(-1), "limit must be a whole number"),
    "order": (lambda words: words.orderBy(4), "name of a field or a function"),  # type: ignore[arg-type]
    "mode of explain": (
        lambda words: words.explain(outputMode="most"),
        "unknown output mode 'most'",
    ),
}


@pytest.mark.parametrize("name", DATASETS)
def test_datasets(session: StreamSession, name: str) -> None:
    """Invalid steps of a query are refused when they are added."""
    call, message = DATASETS[name]
    with pytest.raises(InvalidStreamError, match=message):
        call(session.memoryStream().toDS())


def test_driver_only_values(session: StreamSession) -> None:
    """A function that takes along what stays on the driver is refused, and so is a writer."""
    words = session.memoryStream().toDS()
    with pytest.raises(InvalidStreamError, match="a SparkContext"):
        words.map(lambda record: (record, session.sparkContext))
    lock = threading.Lock()
    with pytest.raises(InvalidStreamError, match=r"foreach cannot send .* 'lock'"):
        words.writeStream.foreach(lambda row: lock.acquire())


def test_unknown_field_of_a_source(session: StreamSession) -> None:
    """A field that the records of a source do not have is named at once."""
    with pytest.raises(
        InvalidStreamError, match="unknown field 'time'; the records have timestamp, va"
    ):
        session.readStream.format("rate").load().withWatermark("time", "1 second")


WRITERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no sink": (lambda write: write.start(), "a query needs a sink"),
    "unknown sink": (lambda write: write.format("pulsar"), "unknown sink 'pulsar'"),
    "mode": (lambda write: write.outputMode("most"), "unknown output mode 'most'"),
    "mode of the sink": (
        lambda write: write.outputMode("update").start("/nowhere", "text", checkpointLocation="/c"),
        "does not support output mode update; use append",
    ),
    "no checkpoint": (lambda write: write.start("/nowhere", "text"), "needs a checkpoint"),
    "no directory": (lambda write: write.start(None, "json"), r"json needs a directory"),
    "checkpoint": (
        lambda write: write.start(None, "noop", checkpointLocation=5),
        "checkpointLocation of a sink is 5; use a path or a URL",
    ),
    "no name": (lambda write: write.format("memory").start(), "needs queryName"),
    "name": (lambda write: write.queryName(" "), "queryName must be a non-empty str"),
    "option": (lambda write: write.option("quote", True), "a sink has no option 'quote'"),
    "rows": (
        lambda write: write.start(None, "console", numRows="x"),
        "numRows of a sink is 'x'; use a whole number",
    ),
    "cells": (
        lambda write: write.start(None, "console", truncate="x"),
        "truncate of a sink is 'x'; use one of true, false",
    ),
    "partitions": (lambda write: write.start("p", partitionBy="a"), "use foreachBatch to choose"),
    "continuous": (
        lambda write: write.trigger(continuous="1 second"),
        "continuous='1 second'.* is not supported: queries run in batches",
    ),
    "real time": (lambda write: write.trigger(realTime="5 minutes"), "is not supported"),
    "no trigger": (lambda write: write.trigger(), "got none of them"),
    "foreach": (lambda write: write.foreach(3), "a function of a row, or an object with process"),
    "foreach of a class": (lambda write: write.foreach(ClassWriter), "an object with process"),
    "foreach of two": (lambda write: write.foreach(lambda a, b: None), r"foreach calls f\(row\)"),
    "open": (lambda write: write.foreach(WrongOpen()), r"calls open\(partition_id, epoch_id\)"),
    "foreachBatch": (lambda write: write.foreachBatch(itself), r"calls f\(rows, batch id\)"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_writers(session: StreamSession, name: str) -> None:
    """Invalid sinks are refused, and no query runs."""
    call, message = WRITERS[name]
    with pytest.raises(InvalidStreamError, match=message):
        call(session.memoryStream().toDS().writeStream)
    assert session.streams.active == []


@pytest.mark.parametrize("timeout", [0, -1, True, "soon"])
def test_timeouts(session: StreamSession, timeout: Any) -> None:
    """Waiting is for a positive number of seconds, or for ever."""
    query = session.memoryStream().toDS().writeStream.format("noop").start()
    with pytest.raises(InvalidStreamError, match="timeout must be a positive number of seconds"):
        query.awaitTermination(timeout)
    if timeout != 0:  # that one only looks, as in pyspark
        with pytest.raises(InvalidStreamError, match="must be 0 or a positive number of seconds"):
            session.streams.awaitAnyTermination(timeout)


def test_directories_that_are_not_there(session: StreamSession, tmp_path: Path) -> None:
    """A missing input directory and an invalid checkpoint directory are refused."""
    with pytest.raises(SourceError, match="does not exist"):
        session.read.text(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    writer = session.memoryStream().toDS().writeStream
    with pytest.raises(CheckpointError, match=r"cannot create .*file: Not a directory"):
        writer.start(None, "noop", checkpointLocation=tmp_path / "file")
    assert session.streams.active == []
