"""Formats of files: lines, whole files, records of a fixed length, or a user function."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pyspark import RDD, SparkContext

from dstreams.common.callables import describe, require_arity
from dstreams.common.settings import COUNT
from dstreams.errors import InvalidStreamError
from dstreams.sources.file_listing import FileStamp, local_path, spark_path
from dstreams.spark.lines import LineRanges, cut

ReadFiles = Callable[[SparkContext, list[str]], RDD[Any]]
FormatName = Literal["textFile", "wholeTextFiles", "binaryFiles"]

_OPEN_COST_BYTES = 4 << 20
_MAX_PARTITION_BYTES = 128 << 20
_LOCAL_OPEN_BYTES = 1 << 16


class FileFormat(ABC):
    """Reads the records of files.

    Attributes:
        has_partitions_of_files: whether Spark puts only one file into each partition.
    """

    has_partitions_of_files: ClassVar[bool] = False

    @abstractmethod
    def rdd(self, spark: SparkContext, files: Sequence[FileStamp]) -> RDD[Any]:
        """Return the records of *files*, at least one."""

    def count(self, files: Sequence[FileStamp]) -> int | None:
        """Return the number of records, None if only reading can count them."""
        return None

    def refuses(self, file: FileStamp) -> str | None:
        """Return the reason why a file of this size cannot be read, None if it can."""
        return None


def file_format(read: object, operation: str) -> FileFormat:
    """Return the format for *read*: a method of SparkContext, or ``f(spark, paths) -> RDD``.

    Raises:
        InvalidStreamError: *read* is neither.
    """
    if isinstance(read, str) and read in _FORMATS:
        return _FORMATS[read]
    if not callable(read):
        raise InvalidStreamError(
            f"read of {operation} must be one of {', '.join(_FORMATS)}, or a function "
            f"f(spark, paths) -> RDD, got {read!r} ({type(read).__name__})"
        )
    require_arity(read, (2,), operation, "f(spark, paths) -> RDD")
    return ByFunction(read, operation)


def partition_count(files: Sequence[FileStamp], parallelism: int) -> int:
    """Return the number of partitions for files, given the tasks that can run at the same time.

    Semantics: Spark SQL's rule (FilePartition.maxSplitBytes) with its defaults: opening a file
    costs as much as reading 4 MB, and a partition has at most 128 MB.
    """
    total = sum(file.size_bytes + _OPEN_COST_BYTES for file in files)
    share = -(-total // max(1, parallelism))
    return -(-total // min(_MAX_PARTITION_BYTES, max(_OPEN_COST_BYTES, share)))


@dataclass(frozen=True)
class TextLines(FileFormat):
    """Lines of UTF-8 text."""

    has_partitions_of_files: ClassVar[bool] = True

    def rdd(self, spark: SparkContext, files: Sequence[FileStamp]) -> RDD[str]:
        return combined(spark.textFile(joined(files)), files)


@dataclass(frozen=True)
class FixedRecords(FileFormat):
    """Records of *record_bytes* each.

    Raises:
        InvalidStreamError: *record_bytes* is not a positive integer.
    """

    has_partitions_of_files: ClassVar[bool] = True

    record_bytes: int

    def __post_init__(self) -> None:
        COUNT.require(self.record_bytes, "recordLength of binaryRecordsStream")

    def rdd(self, spark: SparkContext, files: Sequence[FileStamp]) -> RDD[bytes]:
        return combined(spark.binaryRecords(joined(files), self.record_bytes), files)

    def count(self, files: Sequence[FileStamp]) -> int | None:
        return sum(file.size_bytes for file in files) // self.record_bytes

    def refuses(self, file: FileStamp) -> str | None:
        rest = file.size_bytes % self.record_bytes
        if rest == 0:
            return None
        return (
            f"its {file.size_bytes} bytes are not a multiple of the record length, "
            f"{self.record_bytes} bytes: the last record has {rest}"
        )


@dataclass(frozen=True)
class WholeFiles(FileFormat):
    """Pairs (path, content), one for each file, read by *method* of SparkContext."""

    method: Literal["wholeTextFiles", "binaryFiles"]

    def rdd(self, spark: SparkContext, files: Sequence[FileStamp]) -> RDD[Any]:
        read: Callable[[str, int], RDD[Any]] = getattr(spark, self.method)
        return read(joined(files), partition_count(files, spark.defaultParallelism))

    def count(self, files: Sequence[FileStamp]) -> int | None:
        return len(files)


@dataclass(frozen=True)
class ByFunction(FileFormat):
    """Records that a user function ``f(spark, paths) -> RDD`` reads, called on the driver."""

    func: Callable[..., Any]
    operation: str

    def rdd(self, spark: SparkContext, files: Sequence[FileStamp]) -> RDD[Any]:
        made = self.func(spark, [file.path for file in files])
        if not isinstance(made, RDD):
            raise InvalidStreamError(
                f"{describe(self.func)}, the read of {self.operation}, must return an RDD, "
                f"got {type(made).__name__}"
            )
        return made


TEXT_LINES = TextLines()

_FORMATS: dict[str, FileFormat] = {
    "textFile": TEXT_LINES,
    "wholeTextFiles": WholeFiles("wholeTextFiles"),
    "binaryFiles": WholeFiles("binaryFiles"),
}


def line_ranges(
    files: Sequence[FileStamp],
    compressed_endings: tuple[str, ...],
    parallelism: int,
    skips_missing: bool,
) -> LineRanges | None:
    """Divide the lines of files among tasks that read them without the JVM.

    Returns:
        None if the JVM must read: a file is compressed, has a checksum of Hadoop, is on another
        file system, or is not accessible.
    """
    now = []
    for file in files:
        path = local_path(file.path)
        if path is None or path.endswith(compressed_endings):
            return None
        directory, _, name = path.rpartition("/")
        try:
            size = os.stat(path).st_size
        except OSError:
            return None
        if os.path.exists(f"{directory}/.{name}.crc"):
            return None
        now.append(FileStamp(path, file.modified_ms, size))
    worth = -(-sum(file.size_bytes for file in now) // _LOCAL_OPEN_BYTES)
    partitions = max(1, min(partition_count(now, parallelism), worth))
    sizes = ((file.path, file.size_bytes) for file in now)
    return LineRanges(cut(sizes, partitions, _LOCAL_OPEN_BYTES), skips_missing)


def joined(files: Sequence[FileStamp]) -> str:
    """Return the paths of files as an argument of ``SparkContext.textFile``."""
    return ",".join(spark_path(file.path) for file in files)


def combined(rdd: RDD[Any], files: Sequence[FileStamp]) -> RDD[Any]:
    """Coalesce partitions of small files: Spark creates a task for each file."""
    wanted = partition_count(files, rdd.context.defaultParallelism)
    return rdd.coalesce(wanted) if wanted < rdd.getNumPartitions() else rdd
