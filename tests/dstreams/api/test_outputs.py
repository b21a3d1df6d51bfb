"""Output operations: how functions are called, and what the built-in ones do."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams import InvalidStreamError, StreamingContext
from dstreams.testing import BatchDriver


class Calls:
    """Functions of every kind, which write down how they were called."""

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
    """Counted by their signature: pyspark.streaming takes neither partials nor objects."""
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


def test_an_output_returns_nothing(sc: SparkContext) -> None:
    """It is the end of a stream, as in pyspark.streaming."""
    with BatchDriver(sc) as driver:
        stream = driver.input([])
        assert stream.foreachRDD(lambda rdd: None) is None  # type: ignore[func-returns-value]
        assert stream.pprint() is None  # type: ignore[func-returns-value]


def test_pprint(sc: SparkContext, capsys: pytest.CaptureFixture[str]) -> None:
    """The batch time, so many records, and dots when there are more."""
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
    """Refused where it is called."""
    with BatchDriver(sc) as driver, pytest.raises(InvalidStreamError, match="num of pprint must"):
        driver.input([]).pprint(wrong)


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
    """Refused where it is called."""
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
    """Too late, like after the start."""
    ssc = StreamingContext(sc, 1)
    stream = ssc.queueStream([])
    ssc.stop(stopSparkContext=False)
    with pytest.raises(RuntimeError, match="output operations cannot be added after"):
        stream.pprint()
