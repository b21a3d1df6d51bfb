"""What streams of files deliver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from checkpoint import files_in, open_files
from checkpoint.log.batch_records import BatchLog
from dstreams import BatchFailedError, DStream, StreamingContext
from dstreams.testing import ManualClock

START_MS = 100_000


@pytest.fixture
def ssc(sc: SparkContext) -> Iterator[StreamingContext]:
    """A context of one second, defined at 100 s, and stopped when the test ends."""
    context = StreamingContext(sc, 1, clock=ManualClock(START_MS))
    yield context
    context.stop(stopSparkContext=False)


def put(path: Path, content: bytes | str, modified_ms: int) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, ns=(0, modified_ms * 1_000_000))


def batches_of(
    ssc: StreamingContext, stream: DStream[Any], before_each: list[Callable[[], None]]
) -> list[list[Any]]:
    """Run a batch after each of *before_each*, and return what each batch held."""
    seen: list[list[Any]] = []
    stream.foreachRDD(lambda rdd: seen.append(sorted(rdd.collect())))
    for act in before_each:
        act()
        ssc.step()
    return seen


@pytest.mark.deep
@pytest.mark.parametrize(("new_files_only", "expected"), [(True, []), (False, ["before"])])
def test_files_that_were_there(
    ssc: StreamingContext, tmp_path: Path, new_files_only: bool, expected: list[str]
) -> None:
    """Ignored, or read, and then each new file in its batch."""
    put(tmp_path / "0", "before\n", START_MS - 5000)
    lines = ssc.fileStream(str(tmp_path), newFilesOnly=new_files_only)
    arrivals = [
        lambda: None,
        lambda: put(tmp_path / "1", "one\none more", START_MS + 1500),
        lambda: None,
        lambda: put(tmp_path / "2", "two", START_MS + 3500),
    ]
    assert batches_of(ssc, lines, arrivals) == [expected, ["one", "one more"], [], ["two"]]


def test_a_text_file_stream_has_new_files_only(ssc: StreamingContext, tmp_path: Path) -> None:
    """It is the file stream of lines, with its defaults."""
    put(tmp_path / "0", "before\n", START_MS - 5000)
    lines = ssc.textFileStream(str(tmp_path))
    arrivals = [lambda: put(tmp_path / "1", "grün", START_MS + 500)]
    assert batches_of(ssc, lines, arrivals) == [["grün"]]


def test_binary_records(ssc: StreamingContext, tmp_path: Path) -> None:
    """The records are those that were written, byte by byte."""
    records = [bytes(range(first, first + 5)) for first in range(0, 250, 5)]
    stream = ssc.binaryRecordsStream(str(tmp_path), 5)
    arrivals = [
        lambda: put(tmp_path / "a", b"".join(records), START_MS + 500),
        lambda: put(tmp_path / "b", b"12345", START_MS + 1500),
    ]
    assert batches_of(ssc, stream, arrivals) == [records, [b"12345"]]


def test_a_record_of_another_length(ssc: StreamingContext, tmp_path: Path) -> None:
    """The batch fails and names the file; the next batch reads the others."""
    seen: list[list[bytes]] = []
    ssc.binaryRecordsStream(str(tmp_path), 5).foreachRDD(lambda rdd: seen.append(rdd.collect()))
    put(tmp_path / "short", b"1234", START_MS + 500)
    put(tmp_path / "good", b"12345", START_MS + 500)
    with pytest.raises(
        BatchFailedError, match=r"/short \(its 4 bytes are not a multiple of the record"
    ):
        ssc.step()
    ssc.step()
    assert seen == [[b"12345"]]


def test_hidden_and_unfinished_names(ssc: StreamingContext, tmp_path: Path) -> None:
    """Left out until they have another name."""
    lines = ssc.textFileStream(str(tmp_path))

    def write() -> None:
        for name in (".x", "_x", "x._COPYING_", "x.tmp"):
            put(tmp_path / name, name, START_MS + 500)

    def finish() -> None:
        (tmp_path / "x._COPYING_").rename(tmp_path / "x")

    assert batches_of(ssc, lines, [write, finish]) == [[], ["x._COPYING_"]]


@pytest.mark.parametrize(
    ("max_age", "expected"), [(None, ["in time"]), (float("inf"), ["in time", "too old"])]
)
def test_files_older_than_the_window(
    ssc: StreamingContext, tmp_path: Path, max_age: float | None, expected: list[str]
) -> None:
    """Ignored, unless asked for; the window of 60 s does not include its beginning."""
    stream = ssc.fileStream(str(tmp_path), newFilesOnly=False, maxFileAge=max_age)

    def write() -> None:
        put(tmp_path / "a", "too old", START_MS + 1000 - 60_000)
        put(tmp_path / "b", "in time", START_MS + 1000 - 59_999)

    assert batches_of(ssc, stream, [write]) == [expected]


def test_files_are_limited_and_each_is_read_once(ssc: StreamingContext, tmp_path: Path) -> None:
    """The oldest first, whatever their names, and a change afterwards is not read."""
    stream = ssc.fileStream(str(tmp_path), maxFilesPerBatch=2)

    def write() -> None:
        for number, name in enumerate("dcbae"):
            put(tmp_path / name, name, START_MS + 100 + number)

    arrivals = [write, lambda: put(tmp_path / "d", "changed", START_MS + 1500), lambda: None]
    assert batches_of(ssc, stream, [*arrivals, lambda: None]) == [
        ["c", "d"],
        ["a", "b"],
        ["e"],
        [],
    ]


def test_files_are_in_the_checkpoint_before_they_are_read(
    ssc: StreamingContext, tmp_path: Path
) -> None:
    """An output finds them in the begin record of its own batch."""
    directory, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    directory.mkdir()
    ssc.checkpoint(str(checkpoint))
    records: list[list[list[str]]] = []

    def look(rdd: RDD[str]) -> None:
        (stream,) = checkpoint.glob("stream-*")
        log = BatchLog(open_files(stream))
        said = (log.read(time_ms).inputs.values() for time_ms in log.times())
        records.append([[Path(path).name for path in files_in(one)] for (one,) in said])

    ssc.textFileStream(str(directory)).foreachRDD(look)
    put(directory / "a", "one", START_MS + 500)
    ssc.step(2)
    assert records == [[["a"]], [["a"], []]]


def test_a_graceful_stop_reads_what_is_there(sc: SparkContext, tmp_path: Path) -> None:
    """All of it, also where a batch may have few files."""
    clock = ManualClock(START_MS)
    ssc = StreamingContext(sc, 1, clock=clock)
    seen: list[str] = []
    ssc.fileStream(str(tmp_path), maxFilesPerBatch=1).foreachRDD(
        lambda rdd: seen.extend(rdd.collect())
    )
    ssc.start()
    for number in range(3):
        put(tmp_path / str(number), f"line {number}", START_MS + 1 + number)
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    assert seen == ["line 0", "line 1", "line 2"]
