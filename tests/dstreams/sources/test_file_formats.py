"""Files as lines, as records of one length, as wholes, and as a function says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from dstreams.errors import InvalidStreamError
from dstreams.sources.file_formats import (
    FileFormat,
    FixedRecords,
    TextLines,
    file_format,
    partition_count,
)
from dstreams.sources.file_listing import FileStamp

MB = 1 << 20


def put(directory: Path, contents: dict[str, bytes]) -> list[FileStamp]:
    stamps = []
    for name, content in contents.items():
        (directory / name).write_bytes(content)
        stamps.append(FileStamp(f"file://{directory}/{name}", 0, len(content)))
    return stamps


def sizes(*sizes_bytes: int) -> list[FileStamp]:
    return [FileStamp(f"/{number}", 0, size) for number, size in enumerate(sizes_bytes)]


@pytest.mark.parametrize(
    ("files", "parallelism", "expected"),
    [
        (sizes(0), 1, 1),
        (sizes(0), 8, 1),
        (sizes(*[10] * 8), 8, 8),
        (sizes(*[10] * 8), 2, 2),
        (sizes(*[10] * 1000), 2, 32),
        (sizes(*[10] * 1000), 200, 200),
        (sizes(64 * MB), 8, 8),
        (sizes(1000 * MB), 2, 8),
    ],
)
def test_partitions_follow_bytes_and_files(
    files: Sequence[FileStamp], parallelism: int, expected: int
) -> None:
    """A partition for each task that can run, more for much data, fewer for little."""
    assert partition_count(files, parallelism) == expected


@pytest.mark.deep
def test_a_thousand_small_files_are_few_tasks(sc: SparkContext, tmp_path: Path) -> None:
    """Every line is there, once."""
    files = put(tmp_path, {f"{number:04}": f"line {number}\n".encode() for number in range(1000)})
    rdd = TextLines().rdd(sc, files)
    assert rdd.getNumPartitions() <= 32
    assert sorted(rdd.collect()) == sorted(f"line {number}" for number in range(1000))


def test_a_large_file_is_still_split(sc: SparkContext, tmp_path: Path) -> None:
    """Files are combined, never made into larger parts than Spark would read."""
    files = put(tmp_path, {"small": b"x\n", "large": b"0123456\n" * (8 * MB)})
    assert TextLines().rdd(sc, files).getNumPartitions() >= 2


def test_records_of_one_length(sc: SparkContext, tmp_path: Path) -> None:
    """As bytes, from several files, and counted beforehand."""
    files = put(tmp_path, {"a": b"aaaaabbbbb", "b": b"\x00\x01\xff\n\r", "empty": b""})
    records = FixedRecords(5)
    assert sorted(records.rdd(sc, files).collect()) == [b"\x00\x01\xff\n\r", b"aaaaa", b"bbbbb"]
    assert records.count(files) == 3


@pytest.mark.parametrize("length", [0, -1, 2.0, "5", None, True])
def test_a_length_that_is_none_is_refused(length: Any) -> None:
    """At definition, with the value."""
    with pytest.raises(InvalidStreamError, match="recordLength of binaryRecordsStream is"):
        FixedRecords(length)


@pytest.mark.parametrize(("size", "reason"), [(0, None), (10, None), (11, "the last record has 1")])
def test_a_size_that_is_no_multiple_is_refused(size: int, reason: str | None) -> None:
    """Before the file is opened."""
    refusal = FixedRecords(5).refuses(FileStamp("/a", 0, size))
    assert refusal is None if reason is None else reason in str(refusal)


@pytest.mark.parametrize(
    ("read", "content"), [("wholeTextFiles", "grün\n"), ("binaryFiles", "grün\n".encode())]
)
def test_whole_files_are_pairs_of_path_and_content(
    sc: SparkContext, tmp_path: Path, read: str, content: object
) -> None:
    """Names with commas and patterns are read as they are; the count is that of the files."""
    files = put(tmp_path, {"a,b": "grün\n".encode(), "[x]": "grün\n".encode()})
    whole = file_format(read, "fileStream")
    pairs = sorted(whole.rdd(sc, files).collect())
    assert [(path.rpartition("/")[2], found) for path, found in pairs] == [
        ("[x]", content),
        ("a,b", content),
    ]
    assert whole.count(files) == 2
    assert whole.refuses(files[0]) is None


def test_a_function_reads_whatever_it_can(sc: SparkContext, tmp_path: Path) -> None:
    """It gets the context and the paths as they are listed."""
    files = put(tmp_path, {"a": b"1", "b": b"2"})

    def lengths(spark: SparkContext, paths: list[str]) -> RDD[int]:
        return spark.parallelize([len(path) for path in paths])

    own = file_format(lengths, "fileStream")
    assert own.rdd(sc, files).collect() == [len(file.path) for file in files]
    assert own.count(files) is None
    assert own.refuses(files[0]) is None


def test_a_function_that_returns_no_rdd_is_named() -> None:
    """The message says which function and what it returned."""

    def broken(spark: SparkContext, paths: list[str]) -> Any:
        return paths

    with pytest.raises(
        InvalidStreamError, match=r"broken.*, the read of fileStream, must return an RDD, got list"
    ):
        file_format(broken, "fileStream").rdd(None, sizes(1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("read", "message"),
    [
        ("text", "must be one of textFile, wholeTextFiles, binaryFiles, .* got 'text'"),
        (5, r"read of fileStream must be one of .* got 5 \(int\)"),
        (lambda paths: None, r"f\(spark, paths\) -> RDD"),
    ],
)
def test_an_unknown_way_to_read_is_refused(read: object, message: str) -> None:
    """At definition, with what there is."""
    with pytest.raises(InvalidStreamError, match=message):
        file_format(read, "fileStream")


@pytest.mark.parametrize("read", ["textFile", "wholeTextFiles", "binaryFiles"])
def test_the_ways_to_read_are_methods_of_sparkcontext(read: str) -> None:
    """The names of SparkContext's methods are accepted."""
    assert callable(getattr(SparkContext, read))
    way: FileFormat = file_format(read, "fileStream")
    assert way.refuses(FileStamp("/a", 0, 7)) is None
