"""Reading a checkpoint of a query of pyspark.sql.streaming, without changing it.

Progress is in files of JSON. State is read by Spark's own readers of batch SQL, ``state-metadata``
and ``statestore``, so its formats are Spark's affair::

    metadata            the id of the query
    offsets/NUMBER      the watermark, the time, and the end of each source; written before a batch
    commits/NUMBER      the watermark of the next batch; written after a batch
    sources/NUMBER/     the files that a source of files has read; of Kafka, where it began
    state/NUMBER/       the state of an operator
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from checkpoint import CheckpointError, Files, open_existing, unsigned, without_secrets
from dstreams.errors import RestartError
from dstreams.spark.failures import summarize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VERSIONS = ("v1", "v2")
_BATCH = re.compile(r"\d+")
_FILE_LOG = re.compile(r"(\d+)(\.compact)?")


@dataclass(frozen=True)
class SparkBatch:
    """A batch that Spark has planned.

    Args:
        batch_id: its number.
        timestamp_ms: the time of the batch.
        watermark_ms: its watermark.
        conf: the settings that a checkpoint keeps.
        ends: the end of each source, None before its first record.
    """

    batch_id: int
    timestamp_ms: int
    watermark_ms: int
    conf: Mapping[str, str]
    ends: tuple[Any, ...]


@dataclass(frozen=True)
class SparkFile:
    """A file that a source has read; *number* counts the batches with files, from 0."""

    path: str
    modified_ms: int
    number: int


@dataclass(frozen=True)
class SparkOperator:
    """A stateful operator: its number, from the sink to the sources, name and partitions."""

    number: int
    name: str
    partitions: int


@dataclass(frozen=True)
class SparkQuery:
    """The checkpoint of a query.

    Args:
        files: its directory.
        url: the same for Spark.
        committed: the newest batch that is complete, None before the first one.
        next_watermark_ms: the watermark after it.
        pending: the batch that was planned after it, None without one.
        operators: the stateful operators.
    """

    files: Files
    url: str
    committed: SparkBatch | None
    next_watermark_ms: int
    pending: SparkBatch | None
    operators: tuple[SparkOperator, ...]

    @property
    def newest(self) -> SparkBatch:
        """The newest batch that was planned."""
        newest = self.pending or self.committed
        assert newest is not None, "a checkpoint without batches is refused"
        return newest

    def files_of(self, source: int, upto: int) -> list[SparkFile]:
        """Return the files that a source has read, up to the number of a batch with files."""
        directory = f"sources/{source}/"
        matches = map(_FILE_LOG.fullmatch, _names(self.files, directory))
        found = [match for match in matches if match]
        compact = max((int(one[1]) for one in found if one[2]), default=-1)
        logs = {int(one[1]): one[0] for one in found if int(one[1]) > compact and not one[2]}
        missing = [number for number in range(compact + 1, upto + 1) if number not in logs]
        if missing:
            raise _damaged(self.files, f"{directory}{missing[0]}", "it is missing")
        if compact >= 0:
            logs[compact] = f"{compact}.compact"
        entries = []
        for number in sorted(logs):
            name = f"{directory}{logs[number]}"
            for data in _read(self.files, name)[1:]:
                try:
                    path, at = unquote(data["path"]), int(data["timestamp"])
                    entries.append(SparkFile(path, at, int(data["batchId"])))
                except (KeyError, TypeError, ValueError) as error:
                    raise _damaged(self.files, name, f"it has no file in {data!r}") from error
        return [entry for entry in entries if entry.number <= upto]

    def start_of(self, source: int) -> Any:
        """Return where a source of Kafka began."""
        return _read(self.files, f"sources/{source}/0")[1]

    def state(self, spark: SparkContext, operator: SparkOperator) -> DataFrame:
        """Return key and value of each state after the newest complete batch."""
        assert self.committed is not None, "state exists only after a complete batch"
        options = {"batchId": self.committed.batch_id, "operatorId": operator.number}
        frame = _load(spark, "statestore", self.url, options)
        # A state without keys has one partition, even if the description has more.
        count = operator.partitions if columns_of(frame, "key") else 1
        for partition in range(count):  # Spark reads those that are there
            directory = f"state/{operator.number}/{partition}/"
            if not self.files.list(directory):
                raise _damaged(self.files, directory, "it is missing")
        return frame


def read_spark_query(url: str, spark: SparkContext) -> SparkQuery:
    """Read the checkpoint of a query.

    Raises:
        RestartError: *url* is not a checkpoint of a query, is damaged, or has state that this Spark
            cannot read.
    """
    try:
        files = unsigned(open_existing(url))  # Spark does not sign
        where = files.url if files.url.startswith("file:") else url.rstrip("/")
        committed, planned = _newest(files, "commits/"), _newest(files, "offsets/")
        if not files.exists("metadata") or planned < 0:
            raise RestartError(
                f"{without_secrets(url)!r} is not the checkpoint of a query of Spark, or of one "
                "that has planned no batch: it has no file metadata and none in offsets; give the "
                "checkpointLocation of the query"
            )
        if not 0 <= planned - committed <= 1:
            raise _damaged(
                files, f"offsets/{planned}", f"the newest of commits is {committed}, not its own"
            )
        last = _batch(files, committed) if committed >= 0 else None
        pending = _batch(files, planned) if planned > committed else None
        next_ms = 0
        if last is not None:
            [next_ms], _ = _fields(files, f"commits/{committed}", "nextBatchWatermarkMs")
        has_state = bool(files.list("state/")) and last is not None
        operators = tuple(_operators(files, spark, where)) if has_state else ()
    except (CheckpointError, FileNotFoundError, ValueError) as error:
        raise RestartError(
            f"the checkpoint of Spark {without_secrets(url)!r} cannot be adopted: {error}"
        ) from error
    return SparkQuery(files, where, last, next_ms, pending, operators)


def _names(files: Files, directory: str) -> list[str]:
    return [name.removeprefix(directory) for name in files.list(directory)]


def _newest(files: Files, directory: str) -> int:
    names = filter(_BATCH.fullmatch, _names(files, directory))
    return max(map(int, names), default=-1)


def _batch(files: Files, number: int) -> SparkBatch:
    fields = ("batchTimestampMs", "batchWatermarkMs", "conf")
    (timestamp_ms, watermark_ms, conf), ends = _fields(files, f"offsets/{number}", *fields)
    return SparkBatch(number, timestamp_ms, watermark_ms, conf, tuple(ends))


def _fields(files: Files, name: str, *fields: str) -> tuple[list[Any], list[Any]]:
    """Return fields of the first line of a log, and the lines after it."""
    try:
        _, first, *others = _read(files, name)
        return [first[field] for field in fields], others
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(files, name, f"line 2 does not have {', '.join(fields)}") from error


def _read(files: Files, name: str) -> list[Any]:
    """Return the lines of a log: its version, then JSON, or None for a source without offset."""
    try:
        lines = files.read(name).decode().lstrip("\0").splitlines()
        if not lines or lines[0] not in _VERSIONS:
            raise ValueError(f"its version is {lines[0] if lines else 'missing'}, not v1")
        return [lines[0], *(None if line == "-" else json.loads(line) for line in lines[1:])]
    except (FileNotFoundError, ValueError) as error:
        raise _damaged(files, name, error) from error


def _damaged(files: Files, name: str, why: object) -> RestartError:
    return RestartError(
        f"the checkpoint of Spark {files.url} cannot be adopted: {name} is damaged, missing or of "
        f"a newer format: {why}; restore it from a copy"
    )


def _operators(files: Files, spark: SparkContext, url: str) -> Iterator[SparkOperator]:
    try:
        rows = _load(spark, "state-metadata", url).collect()
    except (Py4JJavaError, PySparkException) as error:
        raise _damaged(files, "state/", summarize(error)) from error
    if not rows:
        raise RestartError(
            f"the checkpoint of Spark {files.url} cannot be adopted: its state has no description, "
            "which Spark writes since release 4.0; let the query run with such a release first"
        )
    # An operator has a row for each of its stores.
    found = {row.operatorId: (row.operatorName, row.numPartitions) for row in rows}
    for number, (name, partitions) in sorted(found.items()):
        yield SparkOperator(number, name, partitions)


def _load(
    spark: SparkContext, reader: str, url: str, options: Mapping[str, Any] | None = None
) -> DataFrame:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - loaded only if needed

    try:
        return SparkSession(spark).read.format(reader).options(**(options or {})).load(url)
    except PySparkException as error:
        raise RestartError(
            f"the state of the checkpoint of Spark {without_secrets(url)!r} cannot be read by the "
            f"data source {reader}, which Spark has since release 4.0: {summarize(error)}; use the "
            "release that wrote it, or a newer one"
        ) from error


def columns_of(frame: DataFrame, part: str) -> Sequence[Any]:
    """Return the columns of the *key* or the *value* of a state."""
    kind: Any = frame.schema[part].dataType
    return list(kind.fields)
