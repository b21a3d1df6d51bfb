"""DataStreamReader and BatchReader: the sources of records."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from pyspark import RDD, SparkContext

from dstreams.common.settings import (
    COUNT,
    FLAG,
    PATH,
    SEPARATOR,
    TEXT,
    Kind,
    Settings,
    choice,
    duration,
    read_options,
)
from dstreams.errors import InvalidStreamError, SourceError
from dstreams.sources.socket import SocketTextSource
from dstreams.sources.source import Source
from dstreams.structured.api.api_hints import OF_READERS, Instead
from dstreams.structured.plan.logical import BatchRelation, LogicalPlan, StreamingRelation
from dstreams.structured.sources.committed_files import VisibleFiles
from dstreams.structured.sources.file_source import CleanSource, FileStreamSource
from dstreams.structured.sources.kafka_options import KafkaOptions
from dstreams.structured.sources.kafka_row_source import KafkaRowSource, kafka_rows
from dstreams.structured.sources.query_formats import BadLines, RecordSchema, format_of
from dstreams.structured.sources.rate_source import RateStreamSource
from dstreams.structured.sources.static_rows import StaticRows

if TYPE_CHECKING:
    from dstreams.arrow.schemas import BlockSchema
    from dstreams.structured.api.dataset import StreamingDataset

_GLOB = Kind(
    "a pattern of *, ?, [abc] and [!abc]; keep other files in another directory",
    lambda names: TEXT.allows(names) and not any(sign in names for sign in ("{", "\\", "[^")),
)
_BAD_LINES = replace(
    choice(*get_args(BadLines)),
    rule=f"one of {', '.join(get_args(BadLines))}: no record has a column for invalid lines",
)
_FILE_OPTIONS = {
    "path": PATH,
    "maxFilesPerTrigger": COUNT,
    "pathGlobFilter": _GLOB,
    "latestFirst": FLAG,
    "maxFileAge": duration(),
    "cleanSource": choice(*get_args(CleanSource)),
    "sourceArchiveDir": PATH,
    "recursiveFileLookup": FLAG,
}
_OPTIONS = {
    "rate": {"rowsPerSecond": COUNT, "rampUpTime": duration(least_ms=0), "numPartitions": COUNT},
    "socket": {"host": TEXT, "port": COUNT},
    "text": _FILE_OPTIONS,
    "json": {**_FILE_OPTIONS, "mode": _BAD_LINES},
    "csv": {
        **_FILE_OPTIONS,
        "mode": _BAD_LINES,
        "header": FLAG,
        "sep": SEPARATOR,
        "delimiter": SEPARATOR,
        "enforceSchema": FLAG,
    },
    "parquet": _FILE_OPTIONS,
}
_FORMATS = (*_OPTIONS, "kafka")
_OF_TRIGGERS = (
    "path",
    "maxFilesPerTrigger",
    "latestFirst",
    "maxFileAge",
    "cleanSource",
    "sourceArchiveDir",
)
_BATCH_OPTIONS = {
    name: {key: kind for key, kind in _OPTIONS[name].items() if key not in _OF_TRIGGERS}
    for name in ("text", "json", "csv", "parquet")
}


class _SocketSource(SocketTextSource):
    """Lines as ``str``, for trials, because lines of an uncommitted batch are lost with the driver.

    Semantics: the source ``socket`` of Spark. A restart after a loss fails with an error.
    """

    @property
    def name(self) -> str:
        return f"socket[{self.host}:{self.port}]"

    @property
    def fields(self) -> tuple[str, ...]:
        return ("value",)


@dataclass(frozen=True, repr=False)
class DataStreamReader(Instead):
    """Configures a source; each method returns a new reader.

    ======= =================================== ================================================
    source  records                             options
    ======= =================================== ================================================
    rate    ``RateRow(timestamp, value)``       rowsPerSecond, rampUpTime, numPartitions
    socket  lines, as ``str``                   host, port
    text    lines, as ``str``                   path, maxFilesPerTrigger, pathGlobFilter,
                                                latestFirst, maxFileAge, recursiveFileLookup,
                                                cleanSource, sourceArchiveDir
    json    the value of each line, or a Row    the same, mode
    csv     Rows                                the same, header, sep (or delimiter),
                                                enforceSchema
    parquet Rows                                those of text
    kafka   :class:`KafkaRow`, key and value    those of Spark, see :meth:`format`
            bytes
    ======= =================================== ================================================

    Option names are case-insensitive; unknown options are refused, not ignored. A line that is not
    JSON, or does not fit the schema, fails the batch (mode ``FAILFAST``), or is skipped
    (``DROPMALFORMED``). Sources with Rows need :meth:`schema`; JSON has Rows if it is called.

    ``cleanSource`` is ``off``; ``delete`` or ``archive`` remove a file once its batch is committed,
    the latter to its path below ``sourceArchiveDir`` on the same file system. A file may stay
    behind after a failure, which is logged, or a crash. ``recursiveFileLookup`` reads the files of
    all subdirectories, except hidden ones.

    Semantics: pyspark.sql.streaming.DataStreamReader.
    """

    make: Callable[[LogicalPlan], StreamingDataset[Any]]
    source_format: str | None = None
    given: dict[str, Any] = field(default_factory=dict)
    columns: RecordSchema | None = None

    _instead = OF_READERS

    def format(self, source: str) -> DataStreamReader:
        """Read from ``rate``, ``socket``, ``text``, ``json``, ``csv``, ``parquet`` or ``kafka``.

        Options of ``kafka`` are those of Spark:

        - topics: one of ``subscribe``, ``subscribePattern`` and ``assign``
        - start of a query without a checkpoint: ``startingOffsets``, ``startingTimestamp``,
          ``startingOffsetsByTimestamp`` with ``startingOffsetsByTimestampStrategy``
        - size of a batch: ``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger`` with
          ``maxTriggerDelay``, ``minPartitions``
        - others: ``failOnDataLoss``, ``includeHeaders``, ``groupIdPrefix``,
          ``kafkaConsumer.pollTimeoutMs``
        - clients: ``kafka.bootstrap.servers``, which is required, and other ``kafka.*``

        Raises:
            InvalidStreamError: the source is unknown.
        """
        if not isinstance(source, str) or source not in _FORMATS:
            raise InvalidStreamError(
                f"unknown source {source!r}; use one of {', '.join(_FORMATS)}, or memoryStream of "
                "the session"
            )
        return replace(self, source_format=source)

    def schema(self, schema: BlockSchema) -> DataStreamReader:
        """Set the columns of files of CSV, Parquet or JSON.

        Records are Rows with the names of the columns; structs in them are dicts. If the schema is
        a dataclass or NamedTuple, records are instances of it.

        Args:
            schema: a StructType or its DDL text, such as ``"word string, count bigint"``; a
                dataclass or NamedTuple; a dict of names and types; or a ``pyarrow.Schema``. Columns
                are nullable, except those of Python types without ``| None``.

        Raises:
            InvalidStreamError: *schema* is none of these, or has a type without an Arrow type.
            EnvironmentNotReadyError: pyarrow is not installed.
        """
        return replace(self, columns=RecordSchema.of(schema))

    def option(self, key: str, value: Any) -> DataStreamReader:
        """Set one option of the source; see the table above."""
        return replace(self, given={**self.given, key: value})

    def options(self, **options: Any) -> DataStreamReader:
        """Set several options of the source."""
        return replace(self, given={**self.given, **options})

    def text(self, path: str | os.PathLike[str], **options: Any) -> StreamingDataset[str]:
        """Read lines of the text files that appear in a directory, each as ``str``."""
        return self.load(path, "text", **options)

    def json(self, path: str | os.PathLike[str], **options: Any) -> StreamingDataset[Any]:
        """Read the JSON files that appear in a directory, each line as one record."""
        return self.load(path, "json", **options)

    def csv(self, path: str | os.PathLike[str], **options: Any) -> StreamingDataset[Any]:
        """Read the CSV files that appear in a directory, each line as a Row of :meth:`schema`.

        Values are in the order of the columns. An empty value is null, ``""`` the empty string; a
        quotation mark in quotes is doubled, and a value has no line end.

        Args:
            path: directory.
            options: as :meth:`option`. *header*: the first line of each file has names, which are
                ignored; with ``enforceSchema=False`` the batch fails unless they are those of the
                schema. *sep*: separator of values, by default a comma.

        Raises:
            InvalidStreamError: :meth:`schema` was not called, or has a type that CSV lacks.
        """
        return self.load(path, "csv", **options)

    def parquet(self, path: str | os.PathLike[str], **options: Any) -> StreamingDataset[Any]:
        """Read the Parquet files that appear in a directory, each row as a Row of :meth:`schema`.

        Columns are found by name; one that a file lacks is null. Integers, decimals, floats and
        times of a file may be narrower than their column, other types must be the same.

        Raises:
            InvalidStreamError: :meth:`schema` was not called.
        """
        return self.load(path, "parquet", **options)

    def load(
        self,
        path: str | os.PathLike[str] | None = None,
        format: str | None = None,
        schema: BlockSchema | None = None,
        **options: Any,
    ) -> StreamingDataset[Any]:
        """Return the records.

        Args:
            path: directory of a file source; a Hadoop glob pattern for several.
            format: as :meth:`format`.
            schema: as :meth:`schema`.
            options: as :meth:`option`.

        Raises:
            InvalidStreamError: no format was given, or an option is unknown, missing or invalid.
        """
        reader = self if format is None else self.format(format)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**options)._loaded(path)

    def _loaded(self, path: str | os.PathLike[str] | None) -> StreamingDataset[Any]:
        if self.source_format is None:
            raise InvalidStreamError(f"call format with one of {', '.join(_FORMATS)} before load")
        given = self.given if path is None else {**self.given, "path": path}
        if self.columns is not None and self.source_format not in ("json", "csv", "parquet"):
            raise InvalidStreamError(
                f"the source {self.source_format} has no schema, its records are Python objects; "
                "omit schema, and use map(f) on the result of load"
            )
        if self.source_format == "kafka":
            source = KafkaRowSource(KafkaOptions.of(given, is_stream=True))
            return self.make(StreamingRelation(source))
        what = f"source {self.source_format}"
        options = read_options(given, _OPTIONS[self.source_format], what)
        return self.make(StreamingRelation(self._source(options)))

    def _source(self, options: dict[str, Any]) -> Source:
        if self.source_format == "rate":
            rows, ramp_ms = options.get("rowsPerSecond", 1), options.get("rampUpTime", 0)
            return RateStreamSource(rows, ramp_ms, options.get("numPartitions"))
        if self.source_format == "socket":
            host, port = self._needed(options, "host"), self._needed(options, "port")
            return _SocketSource(host, port)
        path = self._needed(options, "path")
        return _file_source(path, self.source_format or "", self.columns, options)

    def _needed(self, options: dict[str, Any], key: str) -> Any:
        if key not in options:
            raise InvalidStreamError(f"source {self.source_format} needs option {key!r}")
        return options[key]


@dataclass(frozen=True, repr=False)
class KafkaBatchReader:
    """Reads a range of Kafka topics as a batch dataset; each method returns a new reader.

    Options are those of streams (:meth:`DataStreamReader.format`) except the ones for triggers,
    and ``endingOffsets``, ``endingTimestamp`` or ``endingOffsetsByTimestamp``. The default range is
    everything.

    Semantics: the source ``kafka`` of Spark 4.3 in ``spark.read``.
    """

    spark: SparkContext
    make: Callable[[LogicalPlan], StreamingDataset[Any]]
    given: dict[str, Any] = field(default_factory=dict)

    def option(self, key: str, value: Any) -> KafkaBatchReader:
        """Set one option."""
        return replace(self, given={**self.given, key: value})

    def options(self, **options: Any) -> KafkaBatchReader:
        """Set several options."""
        return replace(self, given={**self.given, **options})

    def load(self, **options: Any) -> StreamingDataset[Any]:
        """Return the records as ``KafkaRow``; the range is determined by this call.

        Raises:
            InvalidStreamError: an option is unknown, missing or invalid.
            SourceError: the brokers do not answer, or lack the offsets of the options.
        """
        settings = Settings.from_conf(dict(self.spark.getConf().getAll()))
        asked = KafkaOptions.of({**self.given, **options}, is_stream=False)
        rows = kafka_rows(self.spark, settings, asked)
        return self.make(BatchRelation(StaticRows(rows, "kafka", KafkaRowSource(asked).fields)))


@dataclass(frozen=True)
class BatchReader:
    """Reads the current contents of a directory or a topic as a batch dataset.

    From the directory of a file sink, it reads only committed files. Files are those that are there
    when the records are read.
    """

    spark: SparkContext
    make: Callable[[LogicalPlan], StreamingDataset[Any]]
    columns: RecordSchema | None = None

    def schema(self, schema: BlockSchema) -> BatchReader:
        """Set the columns of files; argument and errors as of :meth:`DataStreamReader.schema`."""
        return replace(self, columns=RecordSchema.of(schema))

    def format(self, source: str) -> KafkaBatchReader:
        """Read from ``kafka``; for files, use :meth:`text` and its neighbours.

        Raises:
            InvalidStreamError: *source* is not ``kafka``.
        """
        if source != "kafka":
            raise InvalidStreamError(
                f"read has no source {source!r}; use kafka, or text, json, csv or parquet(path)"
            )
        return KafkaBatchReader(self.spark, self.make)

    def text(self, path: str | os.PathLike[str], **options: Any) -> StreamingDataset[str]:
        """Return the lines of text files.

        Args:
            path: directory.
            options: *pathGlobFilter*: pattern of file names. *recursiveFileLookup*: also read
                the files of subdirectories.

        Raises:
            SourceError: the directory does not exist.
            InvalidStreamError: an option is unknown or invalid.
        """
        return self._files(path, "text", options)

    def json(self, path: str | os.PathLike[str], **options: Any) -> StreamingDataset[Any]:
        """Return the values of the lines of JSON files, or Rows of :meth:`schema` if it is set.

        Args:
            path: directory.
            options: *mode*: with ``FAILFAST``, the default, a line that is not JSON is an error;
                with ``DROPMALFORMED`` it is skipped. *pathGlobFilter*: pattern of file names.

        Raises:
            SourceError: the directory does not exist.
            InvalidStreamError: an option is unknown or invalid.
        """
        return self._files(path, "json", options)

    def csv(self, path: str | os.PathLike[str], **options: Any) -> StreamingDataset[Any]:
        """Return Rows of :meth:`schema` from CSV files.

        Args:
            path: directory.
            options: as of :meth:`DataStreamReader.csv` and of :meth:`json`.

        Raises:
            SourceError: the directory does not exist.
            InvalidStreamError: :meth:`schema` was not called, or an option is unknown or invalid.
        """
        return self._files(path, "csv", options)

    def parquet(self, path: str | os.PathLike[str], **options: Any) -> StreamingDataset[Any]:
        """Return Rows of :meth:`schema` from Parquet files, as :meth:`DataStreamReader.parquet`.

        Args:
            path: directory.
            options: *pathGlobFilter*: pattern of file names. *recursiveFileLookup*: also read
                the files of subdirectories.

        Raises:
            SourceError: the directory does not exist.
            InvalidStreamError: :meth:`schema` was not called, or an option is unknown or invalid.
        """
        return self._files(path, "parquet", options)

    def _files(
        self, path: str | os.PathLike[str], file_format: str, given: Mapping[str, Any]
    ) -> StreamingDataset[Any]:
        what = f"read.{file_format}"
        directory = PATH.of(os.fspath(path), f"path of {what}")
        options = read_options(given, _BATCH_OPTIONS[file_format], what)
        source = _file_source(directory, file_format, self.columns, options)
        read = partial(_records, self.spark, source)
        read()  # a missing directory is reported here
        return self.make(BatchRelation(StaticRows(read, source.name, source.fields)))


def _file_source(
    directory: str, file_format: str, columns: RecordSchema | None, options: Mapping[str, Any]
) -> FileStreamSource:
    return FileStreamSource(
        directory,
        format_of(
            file_format,
            columns,
            options.get("mode", "FAILFAST"),
            sep=options.get("sep", options.get("delimiter", ",")),
            has_header=options.get("header", False),
            is_header_checked=not options.get("enforceSchema", True),
        ),
        options.get("maxFilesPerTrigger"),
        options.get("pathGlobFilter"),
        options.get("latestFirst", False),
        options.get("maxFileAge"),
        options.get("cleanSource", "off"),
        options.get("sourceArchiveDir"),
        options.get("recursiveFileLookup", False),
    )


def _records(spark: SparkContext, source: FileStreamSource) -> RDD[Any]:
    files = VisibleFiles(source.directory, spark, is_recursive=source.is_recursive).files()
    if files is None:
        raise SourceError(f"directory {source.directory!r} does not exist")
    wanted = [file for file in files if source.has_name_of(file)]
    return source.format.rdd(spark, wanted) if wanted else spark.emptyRDD()
