"""Printing batches: the text of pyspark.streaming, one write, one job, whole input read."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import SparkContext

from dstreams.errors import InvalidStreamError
from dstreams.sinks.console import ConsolePrinter
from tests.support.batches import batch_at
from tests.support.jobs import count_jobs

LINE = "-------------------------------------------"


class Writes(io.StringIO):
    """Keeps each write apart."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def write(self, text: str) -> int:
        self.texts.append(text)
        return len(text)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is UTC, so that printed times are known."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("num", [0, -1, 2.0, "3", None, True])
def test_a_number_of_records_below_one_is_refused(num: Any) -> None:
    """The message has the value as it was given."""
    with pytest.raises(InvalidStreamError, match="use a whole number of at least 1") as refused:
        ConsolePrinter(num)
    assert str(refused.value).startswith(f"num of pprint is {num!r}; ")


@pytest.mark.usefixtures("utc")
def test_a_batch_is_printed_as_pyspark_does_in_one_write(sc: SparkContext) -> None:
    """Dashes, local time, records by str, a blank line."""
    out = Writes()
    ConsolePrinter(10, out)(batch_at(1500), sc.parallelize([("a", 1), "b", None]))
    assert out.texts == [f"{LINE}\nTime: 1970-01-01 00:00:01.500000\n{LINE}\n('a', 1)\nb\nNone\n\n"]


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("count", "body"), [(0, ""), (2, "0\n1\n"), (3, "0\n1\n2\n"), (4, "0\n1\n2\n...\n")]
)
def test_more_records_than_asked_for_are_three_dots(
    sc: SparkContext, count: int, body: str
) -> None:
    """Dots only when there is at least one more, wherever the partitions end."""
    out = Writes()
    ConsolePrinter(3, out)(batch_at(1000), sc.parallelize(range(count), 3))
    assert out.texts == [f"{LINE}\nTime: 1970-01-01 00:00:01\n{LINE}\n{body}\n"]


def test_the_default_is_standard_output_at_the_time_of_printing(
    sc: SparkContext, capsys: pytest.CaptureFixture[str]
) -> None:
    """A notebook or a test that replaces sys.stdout sees the batches."""
    ConsolePrinter()(batch_at(0), sc.emptyRDD())
    assert capsys.readouterr().out.startswith(f"{LINE}\nTime: ")


def test_printing_is_one_job_that_reads_everything(sc: SparkContext) -> None:
    """Also when the first partition has more than enough; nothing is left unread in a worker."""
    read = sc.accumulator(0)

    def counted(record: int) -> int:
        read.add(1)
        return record

    rdd = sc.parallelize(range(1000), 4).map(counted)
    assert count_jobs(sc, lambda: ConsolePrinter(2, io.StringIO())(batch_at(0), rdd)) == 1
    assert read.value == 1000
