"""How the files of a batch become an RDD: lines, whole files, records of one length, or other."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from pyspark import RDD, SparkContext

from dstreams.common.callables import describe, require_arity
from dstreams.common.configuration import COUNT
from dstreams.errors import InvalidStreamError
from dstreams.sources.file_listing import FileStamp, local_path, spark_path
from dstreams.spark.line_ranges import LineRanges, cut

ReadFiles = Callable[[SparkContext, list[str]], RDD[Any]]
FormatName = Literal["textFile", "wholeTextFiles", "binaryFiles"]

_OPEN_COST_BYTES = 4 << 20
_MAX_PARTITION_BYTES = 128 << 20
_LOCAL_OPEN_BYTES = 1 << 16


class FileFormat(Protocol):
    """What is read of each file."""

    def rdd(self, spark: SparkContext, files: Sequence[FileStamp]) -> RDD[Any]:
        """Return the records of *files*, of which there is at least one."""
        ...

    def count(self, files: Sequence[FileStamp]) -> int | None:
        """How many records that is, None where only reading can tell."""
        ...

    def refuses(self, file: FileStamp) -> str | None:
        """Say why a file cannot be read, None when it can as far as its size tells."""
        ...

    @property
    def has_partitions_of_files(self) -> bool:
        """Whether each partition that Spark makes is of one file."""
        ...


def file_format(read: object, operation: str) -> FileFormat:
    """Return the format that a user asked for.

    Args:
        read: name of a method of SparkContext, or ``f(spark, paths) -> RDD``.
        operation: who asks, for the message.

    Raises:
        InvalidStreamError: it is neither.
    """
    if isinstance(read, str):
        if read not in _FORMATS:
            raise InvalidStreamError(
                f"read of {operation} is {read!r}; use one of {', '.join(_FORMATS)}, or a function "
                "f(spark, paths) -> RDD"
            )
        return _FORMATS[read]
    if not callable(read):
        raise InvalidStreamError(
            f"read of {operation} must be one of {', '.join(_FORMATS)}, or a function "
            f"f(spark, paths) -> RDD, got {read!r} ({type(read).__name__})"
        )
    require_arity(read, (2,), operation, "f(spark, paths) -> RDD")
    return ByFunction(read, operation)


def partition_count(files: Sequence[FileStamp], parallelism: int) -> int:
    """How many partitions *files* are worth: few for many small ones, many for large ones.

    Args:
        files: what is read.
        parallelism: tasks that can run at the same time.

    Semantics: Spark SQL's rule for files (FilePartition.maxSplitBytes), with its defaults: opening
    a file costs as much as reading 4 MB, and a partition has 128 MB at most.
    """
    total = sum(file.size_bytes + _OPEN_COST_BYTES for file in files)
    share = -(-total // max(1, parallelism))
    return -(-total // min(_MAX_PARTITION_BYTES, max(_OPEN_COST_BYTES, share)))


@dataclass(frozen=True)
class TextLines:
    """Lines of UTF-8 text."""

    has_partitions_of_files: ClassVar[bool] = True

    def rdd(self, spark: SparkContext, files: Sequence[FileStamp]) -> RDD[str]:
        return combined(spark.textFile(joined(files)), files)

    def count(self, files: Sequence[FileStamp]) -> int | None:
        return None

    def refuses(self, file: FileStamp) -> str | None:
        return None


@dataclass(frozen=True)
class FixedRecords:
    """Records of one length, as bytes.

    Args:
        record_bytes: the length.

    Raises:
        InvalidStreamError: it is no whole number of at least 1.
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
            f"its {file.size_bytes} bytes are no whole number of records of {self.record_bytes} "
            f"bytes: the last has {rest}"
        )


@dataclass(frozen=True)
class WholeFiles:
    """Pairs (path, content), one for each file.

    Args:
        method: the method of SparkContext: ``wholeTextFiles`` or ``binaryFiles``.
    """

    has_partitions_of_files: ClassVar[bool] = False

    method: Literal["wholeTextFiles", "binaryFiles"]

    def rdd(self, spark: SparkContext, files: Sequence[FileStamp]) -> RDD[Any]:
        read: Callable[[str, int], RDD[Any]] = getattr(spark, self.method)
        return read(joined(files), partition_count(files, spark.defaultParallelism))

    def count(self, files: Sequence[FileStamp]) -> int | None:
        return len(files)

    def refuses(self, file: FileStamp) -> str | None:
        return None


@dataclass(frozen=True)
class ByFunction:
    """Whatever a function makes of the paths.

    Args:
        func: ``f(spark, paths) -> RDD``, called on the driver.
        operation: who asks, for the message.
    """

    has_partitions_of_files: ClassVar[bool] = False

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

    def count(self, files: Sequence[FileStamp]) -> int | None:
        return None

    def refuses(self, file: FileStamp) -> str | None:
        return None


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

    Args:
        files: what is read, as far as it is now.
        compressed_endings: how names end of files that have to be decompressed.
        parallelism: tasks that can run at the same time.
        skips_missing: whether files that vanish are passed over.

    Returns:
        None where the JVM must read: a file is compressed, has checksums of Hadoop's, is on another
        file system, or cannot be looked at.
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
    """Write the paths of files as ``SparkContext.textFile`` takes them."""
    return ",".join(spark_path(file.path) for file in files)


def combined(rdd: RDD[Any], files: Sequence[FileStamp]) -> RDD[Any]:
    """Read several small files in one task: Spark makes a task for each."""
    wanted = partition_count(files, rdd.context.defaultParallelism)
    return rdd.coalesce(wanted) if wanted < rdd.getNumPartitions() else rdd
