"""Output operations: how functions are called, and what the built-in ones do."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import InvalidStreamError, StreamingContext
from dstreams.sinks.output_batch import BatchSink, OutputBatch
from dstreams.testing import BatchDriver


class Calls:
    """Functions of every kind that record their calls."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, rdd: RDD[Any]) -> None:
        self.seen.append(rdd.collect())

    def method(self, rdd: RDD[Any]) -> None:
        self.seen.append(rdd.collect())

    def method_of_two(self, time: datetime, rdd: RDD[Any]) -> None:
        self.seen.append((time, rdd.collect()))

    def with_a_prefix(self, prefix: str, rdd: RDD[Any]) -> None:
        self.seen.append((prefix, rdd.collect()))

    def with_a_default(self, rdd: RDD[Any], index: int = 7) -> None:
        self.seen.append((index, rdd.collect()))

    def with_the_rest(self, *rest: Any) -> None:
        self.seen.append(len(rest))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("object", [1]),
        ("method", [1]),
        ("method of two", (datetime.fromtimestamp(1), [1])),  # noqa: DTZ006 - as users get it
        ("partial", ("x", [1])),
        ("default", (7, [1])),
        ("rest", 1),
        ("lambda", [1]),
    ],
)
def test_functions_of_every_kind(sc: SparkContext, kind: str, wanted: Any) -> None:
    """By their signature: pyspark.streaming accepts neither partials nor objects."""
    calls = Calls()
    functions: dict[str, Any] = {
        "object": calls,
        "method": calls.method,
        "method of two": calls.method_of_two,
        "partial": partial(calls.with_a_prefix, "x"),
        "default": calls.with_a_default,
        "rest": calls.with_the_rest,
        "lambda": lambda rdd: calls.seen.append(rdd.collect()),
    }
    with BatchDriver(sc) as driver:
        driver.input([[1]]).foreachRDD(functions[kind])
        driver.run(1)
    assert calls.seen == [wanted]


def test_functions_that_want_the_batch_id(sc: SparkContext) -> None:
    """As a third argument of any name, or as the parameter batchId in any position."""
    seen: list[Any] = []

    class Ids:
        def method(self, time: datetime, rdd: RDD[Any], number: int) -> None:
            seen.append(("method", time.timestamp(), rdd.collect(), number))

    def by_name(rdd: RDD[Any], *, batchId: int) -> None:
        seen.append(("by name", rdd.collect(), batchId))

    def after_time(time: datetime, rdd: RDD[Any], batchId: int = -1) -> None:
        seen.append(("default", time.timestamp(), rdd.collect(), batchId))

    def of_two(rdd: RDD[Any], batchId: int) -> None:
        seen.append(("of two", rdd.collect(), batchId))

    with BatchDriver(sc) as driver:
        stream = driver.input([["a"], None, ["b"]])
        for func in (Ids().method, by_name, after_time, of_two):
            stream.foreachRDD(func)
        driver.run(3)
    assert seen == [
        ("method", 1, ["a"], 0),
        ("by name", ["a"], 0),
        ("default", 1, ["a"], 0),
        ("of two", ["a"], 0),
        ("method", 3, ["b"], 2),
        ("by name", ["b"], 2),
        ("default", 3, ["b"], 2),
        ("of two", ["b"], 2),
    ]


def test_functions_that_pyspark_calls_with_two_stay_so(sc: SparkContext) -> None:
    """Defaults and keywords belong to the function; a first parameter is never the id."""
    seen: list[Any] = []

    def with_more(time: datetime, rdd: RDD[Any], more: str = "own", **rest: Any) -> None:
        seen.append((time.timestamp(), more, rest))

    def odd(batchId: datetime, rdd: RDD[Any]) -> None:
        seen.append(batchId.timestamp())

    with BatchDriver(sc) as driver:
        stream = driver.input([["a"]])
        stream.foreachRDD(with_more)
        stream.foreachRDD(odd)
        driver.run(1)
    assert seen == [(1, "own", {}), 1]


def test_a_sink_is_told_its_batch(sc: SparkContext) -> None:
    """The stream's identity, the same in all batches, next to number and time."""
    seen: list[OutputBatch] = []

    class Sink(BatchSink):
        def write_batch(self, batch: OutputBatch, rdd: RDD[Any]) -> None:
            seen.append(batch)

    with BatchDriver(sc) as driver:
        driver.input([]).foreachRDD(Sink())
        driver.run(2)
    assert [(batch.batch_id, batch.time_ms) for batch in seen] == [(0, 1000), (1, 2000)]
    assert len({batch.stream_id for batch in seen}) == 1
    assert seen[0].stream_id.startswith("stream-")


def test_an_output_returns_nothing(sc: SparkContext) -> None:
    """It ends a stream, as in pyspark.streaming."""
    with BatchDriver(sc) as driver:
        stream = driver.input([])
        assert stream.foreachRDD(lambda rdd: None) is None
        assert stream.pprint() is None  # type: ignore[func-returns-value]


def test_pprint(sc: SparkContext, capsys: pytest.CaptureFixture[str]) -> None:
    """The batch time, that many records, and dots if there are more."""
    with BatchDriver(sc) as driver:
        driver.input([[1, 2, 3], None, []]).pprint(2)
        driver.run(3)
    line = "-" * 43
    first, second = (datetime.fromtimestamp(seconds) for seconds in (1, 3))  # noqa: DTZ006
    assert capsys.readouterr().out == (
        f"{line}\nTime: {first}\n{line}\n1\n2\n...\n\n{line}\nTime: {second}\n{line}\n\n"
    )


@pytest.mark.parametrize("wrong", [0, -1, "10", True, None])
def test_pprint_needs_a_number(sc: SparkContext, wrong: Any) -> None:
    """It is refused in the call."""
    with BatchDriver(sc) as driver, pytest.raises(InvalidStreamError) as refused:
        driver.input([]).pprint(wrong)
    assert str(refused.value) == f"num of pprint is {wrong!r}; use a whole number of at least 1"


def test_save_as_text_files(sc: SparkContext, tmp_path: Path) -> None:
    """A directory for each batch with an RDD, named by its time in milliseconds."""
    with BatchDriver(sc, 0.5) as driver:
        words = driver.input([["a", "b"], None, ["c"]])
        words.saveAsTextFiles(str(tmp_path / "words"), "txt")
        driver.run(3)
    found = {
        path.name: sorted(
            line for part in path.glob("part-*") for line in part.read_text().splitlines()
        )
        for path in tmp_path.iterdir()
    }
    assert found == {"words-500.txt": ["a", "b"], "words-1500.txt": ["c"]}


@pytest.mark.parametrize(("prefix", "suffix"), [(None, None), (1, None), ("p", 1)])
def test_save_as_text_files_needs_text(sc: SparkContext, prefix: Any, suffix: Any) -> None:
    """It is refused in the call."""
    with BatchDriver(sc) as driver, pytest.raises(InvalidStreamError, match="saveAsTextFiles must"):
        driver.input([]).saveAsTextFiles(prefix, suffix)


def test_batch_times_are_local(sc: SparkContext) -> None:
    """Functions get a naive datetime in the driver's zone, as pyspark.streaming passes it."""
    seen: list[datetime] = []
    with BatchDriver(sc) as driver:
        driver.input([]).foreachRDD(lambda time, rdd: seen.append(time))
        driver.run(1)
    assert seen[0].tzinfo is None
    assert seen[0].astimezone(timezone.utc) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)


def test_an_output_of_a_stopped_context(sc: SparkContext) -> None:
    """It is too late, as after the start."""
    ssc = StreamingContext(sc, 1)
    stream = ssc.queueStream([])
    ssc.stop(stopSparkContext=False)
    with pytest.raises(RuntimeError, match="output operations cannot be added after"):
        stream.pprint()
